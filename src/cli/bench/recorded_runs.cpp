#include "cli/bench/recorded_runs.h"

#include <fmt/format.h>

#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string_view>

#include "cli/bench/routing_choice.h"
#include "cli/io/file_error.h"
#include "cli/io/json_file.h"
#include "plan/problem.h"

namespace mok::cli {
namespace {

using Json = nlohmann::json;

constexpr int64_t kMaxIndex = std::numeric_limits<int32_t>::max();  // of the plan's counts
constexpr int64_t kMaxWidth = int64_t{1} << 30;                     // of a layer (plan/validate.h)
constexpr int64_t kMaxSms = 4096;                                   // as mok plan has it
constexpr double kTimeBoundMs = 1e9;

struct Range {
    int64_t low, high;
};
constexpr Range kBytes{0, std::numeric_limits<int64_t>::max()};

// Fields of one object of a file, with sentences that name where they are.
class Fields {
  public:
    Fields(const Json& object, const std::filesystem::path& file, std::string where)
        : object_(object), file_(file), where_(std::move(where)) {
        if (!object.is_object()) fail("", "a JSON object");
    }
    std::string text(const char* key) const {
        const Json& value = at(key);
        if (!value.is_string()) fail(key, "a text");
        return value.get<std::string>();
    }
    int64_t whole(const char* key, Range range) const {
        const Json& value = at(key);
        // Above 2^63 - 1 a number of JSON is unsigned, and would be read as a negative one.
        const bool fits = value.is_number_integer() &&
                          (!value.is_number_unsigned() ||
                           value.get<uint64_t>() <= static_cast<uint64_t>(kBytes.high));
        if (!fits || value.get<int64_t>() < range.low || value.get<int64_t>() > range.high) {
            fail(key, fmt::format("a whole number from {} to {}", range.low, range.high));
        }
        return value.get<int64_t>();
    }
    double time_ms(const char* key) const {
        const Json& value = at(key);
        const double ms = value.is_number() ? value.get<double>() : 0.0;
        if (!(ms > 0.0 && ms < kTimeBoundMs)) {
            fail(key, fmt::format("a number above 0 and below {:g}", kTimeBoundMs));
        }
        return ms;
    }
    const Json& array(const char* key) const {
        const Json& value = at(key);
        if (!value.is_array()) fail(key, "a list");
        return value;
    }
    // A field that may be null or missing.
    template <class Read, class... Arguments>
    auto optional(const char* key, Read read, Arguments... arguments) const {
        using Value = decltype((this->*read)(key, arguments...));
        const auto found = object_.find(key);
        const bool absent = found == object_.end() || found->is_null();
        return absent ? std::optional<Value>()
                      : std::optional<Value>((this->*read)(key, arguments...));
    }

  private:
    const Json& at(const char* key) const {
        const auto found = object_.find(key);
        if (found == object_.end()) fail(key, "a value");
        return *found;
    }
    [[noreturn]] void fail(const char* key, std::string_view expected) const {
        const auto found = object_.is_object() ? object_.find(key) : object_.end();
        const std::string text = !object_.is_object()     ? object_.dump()
                                 : found == object_.end() ? "nothing"
                                                          : found->dump();
        throw io::FileError(fmt::format("{}: {}{}{}: expected {}, found {}", file_.string(), where_,
                                        *key == '\0' ? "" : ".", key, expected,
                                        text.substr(0, 60)));
    }

    const Json& object_;
    const std::filesystem::path& file_;
    std::string where_;
};

RecordedPass record_of(const Fields& f, const std::string& device) {
    RecordedPass r;
    r.device = device;
    r.pass = f.text("pass");
    r.shape = f.text("shape");
    r.routing = f.text("routing");
    r.ranks = f.whole("ranks", {1, plan::kMaxRanks});
    r.tokens_per_rank = f.whole("tokens_per_rank", {0, kMaxIndex});
    r.hidden = f.whole("hidden", {1, kMaxWidth});
    r.intermediate = f.whole("intermediate", {1, kMaxWidth});
    r.median_ms = f.time_ms("median_ms");
    r.peer = f.optional("peer", &Fields::text);
    r.peer_median_ms = f.optional("peer_median_ms", &Fields::time_ms);
    r.minibatch_rows = f.optional("minibatch_rows", &Fields::whole, Range{1, kMaxIndex});
    r.max_sms = f.optional("max_sms", &Fields::whole, Range{1, kMaxSms});
    r.workspace_bytes = f.optional("workspace_bytes", &Fields::whole, kBytes);
    r.context_bytes = f.optional("context_bytes", &Fields::whole, kBytes);
    r.peak_bytes = f.optional("peak_bytes", &Fields::whole, kBytes);
    return r;
}

}  // namespace

std::vector<RecordedPass> read_records(const std::vector<std::filesystem::path>& files) {
    std::vector<RecordedPass> records;
    for (const std::filesystem::path& path : files) {
        const Json json = io::read_json(path);
        const Fields run(json, path, "record file");
        const std::string device = run.text("device");
        const Json& list = run.array("records");
        for (size_t i = 0; i < list.size(); ++i) {
            const Fields fields(list[i], path, fmt::format("records[{}]", i));
            records.push_back(record_of(fields, device));
        }
    }
    return records;
}

std::optional<double> skew_of(const std::string& routing) {
    try {
        const RoutingChoice choice = parse_routing(routing);
        if (choice.kind == RoutingChoice::Kind::OneRank) return std::nullopt;
        return choice.exponent;
    } catch (const std::invalid_argument&) {
        return std::nullopt;  // of another benchmark
    }
}

}  // namespace mok::cli

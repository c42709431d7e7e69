#include "cli/bench/recorded_runs.h"

#include <fmt/format.h>

#include <cmath>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "cli/bench/routing_choice.h"
#include "cli/io/file_error.h"

namespace mok::cli {
namespace {

using Json = nlohmann::json;

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
    int64_t whole(const char* key) const {
        const Json& value = at(key);
        if (!value.is_number_integer() || value.get<int64_t>() < 0) fail(key, "a whole number");
        return value.get<int64_t>();
    }
    double positive(const char* key) const {
        const Json& value = at(key);
        if (!value.is_number() || !(value.get<double>() > 0.0)) fail(key, "a number above 0");
        return value.get<double>();
    }
    const Json& array(const char* key) const {
        const Json& value = at(key);
        if (!value.is_array()) fail(key, "a list");
        return value;
    }
    // A field that may be null or missing.
    template <class Read>
    auto optional(const char* key, Read read) const {
        using Value = decltype((this->*read)(key));
        const auto found = object_.find(key);
        const bool absent = found == object_.end() || found->is_null();
        return absent ? std::optional<Value>() : std::optional<Value>((this->*read)(key));
    }

  private:
    const Json& at(const char* key) const {
        const auto found = object_.find(key);
        if (found == object_.end()) fail(key, "a value");
        return *found;
    }
    [[noreturn]] void fail(const char* key, const char* expected) const {
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
    r.ranks = f.whole("ranks");
    r.tokens_per_rank = f.whole("tokens_per_rank");
    r.hidden = f.whole("hidden");
    r.intermediate = f.whole("intermediate");
    r.median_ms = f.positive("median_ms");
    r.peer = f.optional("peer", &Fields::text);
    r.peer_median_ms = f.optional("peer_median_ms", &Fields::positive);
    r.minibatch_rows = f.optional("minibatch_rows", &Fields::whole);
    r.max_sms = f.optional("max_sms", &Fields::whole);
    r.workspace_bytes = f.optional("workspace_bytes", &Fields::whole);
    r.context_bytes = f.optional("context_bytes", &Fields::whole);
    r.peak_bytes = f.optional("peak_bytes", &Fields::whole);
    return r;
}

}  // namespace

std::vector<RecordedPass> read_records(const std::vector<std::filesystem::path>& files) {
    std::vector<RecordedPass> records;
    for (const std::filesystem::path& path : files) {
        std::ifstream file(path, std::ios::binary);
        if (!file) throw io::FileError(path.string() + ": cannot be read");
        const std::string text{std::istreambuf_iterator<char>(file), {}};
        const Json json = Json::parse(text, nullptr, false);
        if (json.is_discarded()) throw io::FileError(path.string() + ": is not JSON");
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

#include "cli/bench/peers.h"

#include <fmt/format.h>
#include <stdlib.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <stdexcept>

namespace mok::cli {
namespace {

namespace fs = std::filesystem;

// Ids, then weights, for as long as the peer reads them.
class RoutingFile {
  public:
    explicit RoutingFile(const BenchCase& c) {
        std::string name = (fs::temp_directory_path() / "mok-routing-XXXXXX").string();
        const int descriptor = mkstemp(name.data());
        if (descriptor < 0) throw PeerError(name + ": cannot be made");
        close(descriptor);
        path_ = name;
        std::ofstream file(path_, std::ios::binary);
        const auto write = [&file](const auto& values) {
            file.write(reinterpret_cast<const char*>(values.data()),
                       static_cast<std::streamsize>(values.size() * sizeof(values[0])));
        };
        write(c.topk_ids);
        write(c.topk_weights);
        if (!file.flush()) {
            remove();
            throw PeerError(path_.string() + ": cannot be written");
        }
    }
    ~RoutingFile() { remove(); }
    RoutingFile(const RoutingFile&) = delete;
    RoutingFile& operator=(const RoutingFile&) = delete;
    std::string path() const { return path_.string(); }

  private:
    void remove() const {
        std::error_code ignored;
        fs::remove(path_, ignored);
    }
    fs::path path_;
};

std::optional<std::string> text_of(const nlohmann::json& answer, const char* key) {
    const auto found = answer.find(key);
    if (found == answer.end() || !found->is_string()) return std::nullopt;
    return found->get<std::string>();
}

}  // namespace

std::string find_peer_script() {
    std::error_code error;
    const fs::path program = fs::read_symlink("/proc/self/exe", error);
    const fs::path folder = program.parent_path();
    for (const fs::path& candidate :
         {folder / "../../bench/peers/peer.py", folder / "../share/openmok/peers/peer.py"}) {
        if (fs::is_regular_file(candidate, error)) return fs::canonical(candidate).string();
    }
    throw std::invalid_argument(
        fmt::format("--peer-script: bench/peers/peer.py is neither in the tree nor in the "
                    "installation that {} is of: give its path",
                    program.string()));
}

Peers::Peers(const PeerOptions& options, int num_ranks)
    : options_(options),
      process_({options.python, options.script, "--ranks", std::to_string(num_ranks)}) {}

std::vector<std::string> Peers::setup(const BenchCase& c) {
    const RoutingFile routing(c);
    names_.clear();
    const nlohmann::json answer = process_.ask({{"setup",
                                                 {{"name", c.name},
                                                  {"hidden", c.shape.hidden},
                                                  {"intermediate", c.shape.intermediate},
                                                  {"experts", c.shape.num_experts},
                                                  {"top_k", c.shape.top_k},
                                                  {"tokens_per_rank", c.tokens_per_rank},
                                                  {"ranks", c.num_ranks},
                                                  {"seed", c.seed},
                                                  {"routing_file", routing.path()},
                                                  {"backward", c.backward},
                                                  {"peers", options_.kinds}}}},
                                               PeerProcess::Seconds(options_.setup_bound_s));
    std::vector<std::string> notes;
    try {
        names_ = answer.at("names").get<std::vector<std::string>>();
        for (const auto& [name, why] : answer.at("left_out").items()) {
            notes.push_back(fmt::format("peer {} was not run: {}", name, why.get<std::string>()));
        }
    } catch (const nlohmann::json::exception&) {
        throw PeerError(fmt::format("peer {}: expected names and left_out in its answer, found {}",
                                    options_.script, answer.dump().substr(0, 200)));
    }
    torch_ = text_of(answer, "torch");
    nccl_ = text_of(answer, "nccl");
    return notes;
}

void Peers::release() {
    names_.clear();
    process_.ask({{"release", true}}, PeerProcess::Seconds(options_.run_bound_s));
}

PeerRun Peers::run(const std::string& name, BenchPass pass) {
    const nlohmann::json answer = process_.ask({{"run", name}, {"pass", pass_name(pass)}},
                                               PeerProcess::Seconds(options_.run_bound_s));
    const auto fail = [&](const char* expected) {
        throw PeerError(fmt::format("peer {}: expected {} in its answer, found {}", options_.script,
                                    expected, answer.dump().substr(0, 200)));
    };
    // A number of bytes that may be null or missing.
    const auto bytes = [&](const char* key, const char* expected) -> std::optional<int64_t> {
        const auto found = answer.find(key);
        if (found == answer.end() || found->is_null()) return std::nullopt;
        if (!found->is_number_integer() || found->get<int64_t>() < 0) fail(expected);
        return found->get<int64_t>();
    };
    const auto ms = answer.find("ms");
    if (ms == answer.end() || !ms->is_number()) fail("a number of ms");
    return {ms->get<double>(),
            bytes("pass_peak_bytes", "a whole number of pass_peak_bytes from 0 or null"),
            bytes("saved_bytes", "a whole number of saved_bytes from 0 or null")};
}

}  // namespace mok::cli

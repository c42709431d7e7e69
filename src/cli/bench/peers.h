#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cli/bench/in_turn.h"
#include "cli/bench/peer_process.h"
#include "cli/bench/timed_layer.h"

namespace mok::cli {

// The grouped products alone, by these names among what the peer program can run.
inline constexpr const char* kGemmOnly = "gemm_only";                      // balanced
inline constexpr const char* kGemmOnlyOwnCounts = "gemm_only_own_counts";  // the run's own rows

struct PeerOptions {
    std::vector<std::string> kinds;  // of kPeerKinds
    std::string python = "python3";  // a path, or a name on PATH
    std::string script;              // bench/peers/peer.py
    double setup_bound_s = 300.0;    // it compiles its kernels
    double run_bound_s = 60.0;
};
inline constexpr const char* kPeerKinds[] = {"torch", "deep_ep", "sonicmoe", "transformer_engine"};

// bench/peers/peer.py beside the build or the installation that this program is of. Throws
// std::invalid_argument where it is in neither.
std::string find_peer_script();

// One execution of a pass by a peer.
struct PeerRun {
    double ms;
    // Of its own allocator, above what was there before the pass, of the rank that has most.
    std::optional<int64_t> peak_bytes;   // a backward's with its forward
    std::optional<int64_t> saved_bytes;  // what a forward keeps besides its output
};

// What other libraries make of the same layer: one program, bench/peers/peer.py, with all of them.
// Every call throws PeerError.
class Peers {
  public:
    Peers(const PeerOptions& options, int num_ranks);

    // Tensors of the case, with our routing. Returns a line for each peer that was left out.
    std::vector<std::string> setup(const BenchCase& c);
    // Peers, kGemmOnly and kGemmOnlyOwnCounts, as far as the last setup has them.
    const std::vector<std::string>& names() const { return names_; }
    PeerRun run(const std::string& name, BenchPass pass);
    // Gives back the memory of the last setup.
    void release();

    const std::optional<std::string>& torch_version() const { return torch_; }
    const std::optional<std::string>& nccl_version() const { return nccl_; }

  private:
    PeerOptions options_;
    PeerProcess process_;
    std::vector<std::string> names_;
    std::optional<std::string> torch_, nccl_;
};

}  // namespace mok::cli

#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <vector>

#include "cli/train/checkpoint.h"
#include "cli/train/config.h"
#include "cli/train/rank_trainer.h"

namespace mok::train {

// How a run is carried out; of all this the weights depend on the kind of device alone.
struct RunOptions {
    Device device;  // where ranks are threads; CUDA: all of them share it
    int num_ranks = 4;
    // This process's rank of a group of num_ranks processes; absent: the ranks are threads of this
    // process.
    std::optional<Group> processes;
    int max_workers = 0;            // threads of a rank in the layer; 0: all there are
    int64_t checkpoint_every = 0;   // steps; 0: at the end alone
    int64_t stop_after = 0;         // end after this step; 0: after the last one
    int64_t eval_sequences = 2048;  // of each part of the text, at most
    std::filesystem::path checkpoint;
};

struct RunResult {
    double train_seconds = 0.0;
    std::vector<int64_t> train_starts;  // the sequences evaluated
    std::vector<int64_t> held_out_starts;
    Evaluation train, held_out, held_out_zeroed;
};

// Bytes that a run of this configuration needs at least: the weights with their state and one
// step's batch.
double least_bytes(const Config& config);

// Trains from `state` to the last step (or to stop_after) on R ranks, with a progress line on
// stderr, writes the checkpoint and evaluates (only after the last step). `state` is moved on.
// Of ranks in processes each calls this with a model and a state of its own, which afterwards are
// equal on all; rank 0 alone has the line and writes. Throws InputError with the same sentence on
// every rank where they differ before the first step.
RunResult train(Model& model, RunState& state, const RunOptions& options);

}  // namespace mok::train

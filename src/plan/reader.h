#pragma once

#include "plan/program.h"

namespace mok::plan {

// Readers go through a role's program for somebody who asks for rising i, and give the tasks of
// decode() without its searches: what comes next follows from what came before by additions. On a
// GPU every role reads its program so: code that each reader runs for the first time waits for its
// instructions, and takes their place in a cache that the products need.

// The phases of a pipeline's steps that have tasks, one after the other.
class PhaseReader {
  public:
    PhaseReader() = default;
    MOK_HD explicit PhaseReader(const Pipeline& pipeline) : pipeline_(pipeline) {}

    // False: there is no further one. Otherwise kind, tiles and parts of `at` are its.
    MOK_HD bool next(PhaseTasks& at) {
        for (; step_ < pipeline_.num_steps(); phase_ = 0, ++step_) {
            while (phase_ < pipeline_.num_phases) {
                const Phase& phase = pipeline_.phases[phase_++];
                at.kind = phase.kind;
                at.parts = phase.parts;
                at.tiles = pipeline_.tiles_at(phase, step_);
                if (at.tiles.count() > 0 && at.parts > 0) return true;
            }
        }
        return false;
    }

  private:
    Pipeline pipeline_;
    int32_t step_ = 0, phase_ = 0;
};

// The compute role's program.
class ComputeReader {
  public:
    MOK_HD explicit ComputeReader(const Pass& pass)
        : pass_(pass), phases_(shared_pipeline(pass)), num_blocks_(plan::num_blocks(pass)) {}

    // Goes on to task i, not below the last call's. False: the program has no such task.
    MOK_HD bool seek(int64_t i) {
        while (!at_.has(i)) {
            if (!next_phase()) return false;
        }
        const int32_t rest = static_cast<int32_t>(i - at_.begin);
        while (rest >= before_ + tiles_ * at_.parts) next_group();
        in_group_ = rest - before_;
        return true;
    }

    // Of the task that seek has found.
    MOK_HD bool is_shared() const { return block_ < 0; }
    MOK_HD int32_t macro() const { return macro_; }  // of a routed expert's
    MOK_HD Task task() const {
        if (is_wgrad(at_.kind)) {
            Task task = wgrad_task(pass_.problem, is_shared(), in_group_);
            if (is_shared()) return task;
            task.macro = macro_;
            task.piece = begin_;
            return task;
        }
        const int32_t part = in_group_ / tiles_, visit = begin_ + in_group_ - part * tiles_;
        if (is_shared()) return {at_.kind, pass_.first_shared_tile + visit, part, -1, -1};
        const Run run = run_in_segment(pass_.problem, segment_, visit, macro_);
        return {at_.kind, tile_in_run(run, visit), part, -1, -1};
    }

  private:
    MOK_HD bool next_phase() {
        at_.begin += int64_t{at_.tiles.count()} * at_.parts;
        while (!find_phase()) {
            if (++block_ >= num_blocks_) {
                block_ = num_blocks_ - 1;
                at_.tiles = {0, 0};
                return false;
            }
            phases_ = PhaseReader(compute_pipeline(pass_, block_));
            macro_ = walks_down(pass_.kind) ? num_blocks_ - 1 - block_ : block_;
            in_pipeline_ = true;
        }
        begin_ = at_.tiles.begin;
        before_ = tiles_ = segment_left_ = 0;
        return true;
    }
    // The block's next phase; behind its pipeline stand its weight gradients.
    MOK_HD bool find_phase() {
        if (!in_pipeline_) return false;
        if (phases_.next(at_)) return true;
        in_pipeline_ = false;
        at_.tiles = {0, 0};
        if (!has_wgrads(pass_.kind)) return false;
        at_.kind = TaskKind::DownWgrad;
        if (is_shared()) {
            at_.parts = static_cast<int32_t>(shared_wgrad_tasks(pass_));
            at_.tiles = {0, at_.parts > 0 ? 1 : 0};
        } else {
            const int32_t* pieces = pass_.table.macro_piece_begin + block_;
            at_.parts = wgrad_parts(pass_.problem, false);
            at_.tiles = {pieces[0], pieces[1]};
        }
        return at_.tiles.count() > 0;
    }
    // See group_by_group. A piece of weight gradients is a group for itself.
    MOK_HD void next_group() {
        before_ += tiles_ * at_.parts;
        begin_ += tiles_;
        if (is_wgrad(at_.kind)) {
            tiles_ = 1;
            return;
        }
        if (segment_left_ == 0) {
            int32_t end = at_.tiles.end;
            if (!is_shared()) {
                segment_ = segment_of(pass_.problem, pass_.table, pass_.table.tile_expert[begin_]);
                end = min_of(end, segment_.end / kTileRows);
            }
            segment_left_ = end - begin_;
            group_tiles_ = ceil_div(segment_left_, ceil_div(segment_left_, kGroupTiles));
        }
        tiles_ = min_of(group_tiles_, segment_left_);
        segment_left_ -= tiles_;
    }

    const Pass& pass_;
    PhaseReader phases_;
    int32_t num_blocks_, block_ = -1, macro_ = 0;  // block -1: the shared expert's
    bool in_pipeline_ = true;
    PhaseTasks at_{TaskKind::GateUp, {0, 0}, 1, 0};
    int32_t begin_ = 0, tiles_ = 0, before_ = 0;  // the group's first visit, its size, the phase's
                                                  // tasks before it
    int32_t segment_left_ = 0, group_tiles_ = 0;  // tiles of its expert behind it
    Segment segment_{0, 0, 0};
    int32_t in_group_ = 0;
};

// The communication role's: all of its program, or the dispatch tasks alone, numbered from 0 in the
// order that they have among all.
enum class CommTasks : int32_t { All, Dispatches };
class CommReader {
  public:
    MOK_HD explicit CommReader(const Pass& pass, CommTasks tasks = CommTasks::All)
        : pass_(pass), phases_(pipeline_of(pass, tasks)) {}

    MOK_HD bool seek(int64_t i) {
        while (!at_.has(i)) {
            at_.begin += int64_t{at_.tiles.count()} * at_.parts;
            at_.tiles = {0, 0};
            if (!phases_.next(at_)) return false;
            macro_ = macrobatch_of_tile(pass_.problem, at_.tiles.begin);
        }
        in_phase_ = static_cast<int32_t>(i - at_.begin);
        return true;
    }
    MOK_HD int32_t macro() const { return macro_; }
    MOK_HD Task task() const {
        const int32_t visit = at_.tiles.begin + in_phase_ / kCommParts;
        int32_t tile = visit;  // of a single rank, whose own rows every run starts with
        if (pass_.problem.num_ranks > 1) {
            const Segment segment =
                segment_of(pass_.problem, pass_.table, pass_.table.tile_expert[visit]);
            tile = tile_in_run(run_in_segment(pass_.problem, segment, visit, macro_), visit);
        }
        return {at_.kind, tile, in_phase_ % kCommParts, -1, -1};
    }

  private:
    MOK_HD static Pipeline pipeline_of(const Pass& pass, CommTasks tasks) {
        Pipeline pipeline = comm_pipeline(pass);
        if (tasks == CommTasks::Dispatches) --pipeline.num_phases;  // the last one combines
        return pipeline;
    }

    const Pass& pass_;
    PhaseReader phases_;
    PhaseTasks at_{TaskKind::DispatchX, {0, 0}, 1, 0};
    int32_t macro_ = 0, in_phase_ = 0;
};

}  // namespace mok::plan

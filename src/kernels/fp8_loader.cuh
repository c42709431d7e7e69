#pragma once

#include "arch/copy.cuh"
#include "kernels/fp8_layout.cuh"
#include "kernels/fp8_params.h"
#include "kernels/pair.cuh"

// The loader role of the FP8 forward: one thread of every CTA streams each task's operands into
// shared memory, stage by stage: tiles of elements, and with every block of k the scales of A's
// rows and of B's two blocks of rows. Of weights that both CTAs of a pair need each loads half for
// both.
namespace mok::kernels::fp8 {

// The matrices of a task: A is 128 rows of x or hidden, B two blocks of 128 weight rows.
struct OperandMaps {
    const CUtensorMap *a, *b0, *b1;
};

// Where a task's operands come from.
class Source {
  public:
    static constexpr int kTileK = fp8::kTileK;
    static constexpr uint32_t kRowBytes = kScaleBytes;

    __device__ Source(const Fp8ForwardParams& p, const Fp8ExpertMaps& maps, SharedMemory& smem)
        : p_(p), maps_(maps), smem_(smem) {}

    __device__ OperandMaps begin(const TileTask& e) {
        const plan::Problem& problem = p_.pass.problem;
        const bool gate_up = e.kind == static_cast<int32_t>(plan::TaskKind::GateUp);
        k_blocks_ = k_blocks(e);
        row_scales_ = (gate_up ? p_.ring_x8.scales : p_.hidden_scales) + int64_t{e.row} * k_blocks_;
        next_ = 0;
        if (gate_up) {
            weights_[0] = scales_of(p_.gate_weight_scales, e.expert, problem.intermediate, e.part);
            weights_[1] = scales_of(p_.up_weight_scales, e.expert, problem.intermediate, e.part);
        } else {
            const float* down = p_.down_weight_scales;
            weights_[0] = scales_of(down, e.expert, problem.hidden, 2 * e.part);
            weights_[1] = scales_of(down, e.expert, problem.hidden, 2 * e.part + 1);
        }
        read_ahead();
        if (gate_up) return {&maps_.x, &maps_.gate, &maps_.up};
        return {&maps_.hidden_load, &maps_.down, &maps_.down};
    }

    __device__ static int32_t k_blocks(const TileTask& e) { return k_blocks_of(e); }
    // Called for the task's blocks of k in turn.
    __device__ void write(int stage) {
#pragma unroll
        for (int i = 0; i < 2; ++i) smem_.weight_scale[stage][i] = weight_[i];
        read_ahead();
    }
    __device__ void load_rows(int stage, int32_t k, arch::Barrier* full) const {
        arch::load_bytes(smem_.row_scales(stage), row_scales_ + int64_t{k} * plan::kTileRows,
                         kScaleBytes, full);
    }

  private:
    // Where the scales of a weight's rows [128 block, 128 block + 128) begin, null behind its end.
    __device__ const float* scales_of(const float* scales, int32_t expert, int32_t outer,
                                      int32_t block) const {
        const int32_t blocks = plan::ceil_div(outer, 128);
        if (block >= blocks) return nullptr;
        return scales + (int64_t{expert} * blocks + block) * k_blocks_;
    }
    // The weights' scales are read a block before they are written.
    __device__ void read_ahead() {
        if (next_ == k_blocks_) return;
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            weight_[i] = weights_[i] != nullptr ? __ldg(weights_[i] + next_) : 0.0f;
        }
        ++next_;
    }

    const Fp8ForwardParams& p_;
    const Fp8ExpertMaps& maps_;
    SharedMemory& smem_;
    // Of the task whose blocks are being loaded.
    const float* row_scales_ = nullptr;             // [k_blocks][128]
    const float* weights_[2] = {nullptr, nullptr};  // [k_blocks] each
    float weight_[2];                               // of the block before next_
    int32_t k_blocks_ = 0, next_ = 0;
};

// The loader role (loader.cuh, whose protocol between the CTAs of a pair this follows).
class Loader {
  public:
    __device__ Loader(const Source& source, SharedMemory& smem, const arch::Cluster& cluster)
        : source_(source), smem_(smem), is_second_(cluster.rank == 1) {
        stage_.parity = 1;  // all stages are empty
        if (is_paired(cluster)) peer_full_ = arch::cluster_address(smem.full, cluster.rank ^ 1);
    }

    __device__ void run() {
        arch::RingState<kQueue> task;
        arch::barrier_wait(&smem_.stages_given, 0);
        while (true) {
            arch::barrier_wait(&smem_.task_full[task.index], task.parity);
            const TileTask t = smem_.queue[task.index].task;
            if (t.kind < 0) return;
            const Operands o = operands_of(t);
            arch::barrier_arrive(&smem_.task_empty[task.index]);
            task.advance();
            // The scheduler acquired what the task reads and handed it on by the queue's barrier.
            arch::fence_global_to_copies();
            for (int32_t k = 0; k < o.k_blocks; ++k) {
                load_block(o, k);
                stage_.advance();
            }
        }
    }

  private:
    struct Operands {
        const CUtensorMap* a;   // null: nothing
        const CUtensorMap* b0;  // null: nothing
        const CUtensorMap* b1;  // null: the other CTA of the pair loads the other block
        int32_t a_row, b0_row, b1_row, expert;
        uint32_t b0_offset, bytes;  // in the stage; that come in all
        int32_t k_blocks;
    };

    __device__ Operands operands_of(const TileTask& e) {
        const OperandMaps maps = source_.begin(e);
        const bool gate_up = e.kind == static_cast<int32_t>(plan::TaskKind::GateUp);
        const bool loads_b = !e.is_dry || e.shares_b;
        Operands o;
        o.a = e.is_dry ? nullptr : maps.a;
        o.b0 = maps.b0;
        o.b1 = maps.b1;
        o.a_row = e.row;
        o.b0_row = e.part * (gate_up ? plan::kGateUpCols : plan::kOutCols);
        o.b1_row = o.b0_row + (gate_up ? 0 : 128);
        o.b0_offset = kABytes;
        o.expert = e.expert;
        o.bytes = (o.a != nullptr ? kABytes + Source::kRowBytes : 0) + (loads_b ? kBBytes : 0);
        o.k_blocks = Source::k_blocks(e);
        if (e.shares_b) {
            if (is_second_) {
                o.b0 = o.b1;
                o.b0_row = o.b1_row;
                o.b0_offset += kBBytes / 2;
            }
            o.b1 = nullptr;
        } else if (e.is_dry) {
            o.b0 = nullptr;
        }
        return o;
    }

    __device__ void load_block(const Operands& o, int32_t k) {
        arch::Barrier* full = &smem_.full[stage_.index];
        uint8_t* stage = smem_.stage[stage_.index];
        const int32_t col = k * Source::kTileK;
        arch::barrier_wait(&smem_.empty[stage_.index], stage_.parity);
        if (o.a != nullptr) source_.write(stage_.index);
        arch::barrier_arrive_expect(full, o.bytes);
        if (o.a != nullptr) {
            arch::load_tile(stage, o.a, col, o.a_row, 0, full);
            source_.load_rows(stage_.index, k, full);
        }
        // B, when nobody that it is for still reads the stage.
        if (peer_full_ != 0) {
            arch::barrier_wait(&smem_.peer_empty[stage_.index], stage_.parity);
            if (o.b1 == nullptr && o.b0 != nullptr) {
                arch::barrier_arrive(full);
                arch::load_tile_by_fours_for_all<kPair>(stage + o.b0_offset, o.b0, col, o.b0_row,
                                                        o.expert, full);
                return;
            }
            arch::cluster_arrive(peer_full_ + stage_.index * sizeof(arch::Barrier));
        }
        if (o.b0 == nullptr) return;
        arch::load_tile_by_fours(stage + kABytes, o.b0, col, o.b0_row, o.expert, full);
        arch::load_tile_by_fours(stage + kABytes + kBBytes / 2, o.b1, col, o.b1_row, o.expert,
                                 full);
    }

    Source source_;
    SharedMemory& smem_;
    bool is_second_;
    uint32_t peer_full_ = 0;  // the other CTA's full[0]; 0: no pair
    arch::RingState<kStages> stage_;
};

}  // namespace mok::kernels::fp8

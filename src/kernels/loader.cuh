#pragma once

#include "arch/copy.cuh"
#include "kernels/forward_params.h"
#include "kernels/pair.cuh"

// The loader role: one thread of every CTA streams each task's operands into shared memory, stage
// by stage. Of weights that both CTAs of a pair need each loads half for both.
namespace mok::kernels {

class Loader {
  public:
    __device__ Loader(const ForwardParams& p, const ExpertMaps& routed, const ExpertMaps& shared,
                      ForwardSharedMemory& smem, const arch::Cluster& cluster)
        : routed_(routed), shared_(shared), smem_(smem), is_second_(cluster.rank == 1) {
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
    // The operands of a task: A is 128 rows of x or hidden, B two blocks of 128 weight rows.
    struct Operands {
        const CUtensorMap* a;   // null: nothing
        const CUtensorMap* b0;  // null: nothing
        const CUtensorMap* b1;  // null: the other CTA of the pair loads the other block
        int32_t a_row, b0_row, b1_row, expert;
        uint32_t b0_offset, bytes;  // in the stage; that come in all
        int32_t k_blocks;
    };

    __device__ Operands operands_of(const TileTask& e) const {
        const ExpertMaps& maps = e.shared ? shared_ : routed_;
        const bool gate_up = e.kind == static_cast<int32_t>(plan::TaskKind::GateUp);
        const bool loads_b = !e.is_dry || e.shares_b;
        Operands o;
        o.a = e.is_dry ? nullptr : (gate_up ? &maps.x : &maps.hidden);
        o.b0 = gate_up ? &maps.gate : &maps.down;
        o.b1 = gate_up ? &maps.up : &maps.down;
        o.a_row = e.row;
        o.b0_row = e.part * (gate_up ? plan::kGateUpCols : plan::kOutCols);
        o.b1_row = o.b0_row + (gate_up ? 0 : 128);
        o.b0_offset = kABytes;
        o.expert = e.expert;
        o.bytes = (o.a != nullptr ? kABytes : 0) + (loads_b ? kBBytes : 0);
        o.k_blocks = e.k_blocks;
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
        const int32_t col = k * kTileK;
        arch::barrier_wait(&smem_.empty[stage_.index], stage_.parity);
        arch::barrier_arrive_expect(full, o.bytes);
        if (o.a != nullptr) arch::load_tile(stage, o.a, col, o.a_row, 0, full);
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

    const ExpertMaps& routed_;
    const ExpertMaps& shared_;
    ForwardSharedMemory& smem_;
    bool is_second_;
    uint32_t peer_full_ = 0;  // the other CTA's full[0]; 0: no pair
    arch::RingState<kStages> stage_;
};

}  // namespace mok::kernels

#pragma once

#include "arch/copy.cuh"
#include "arch/cta_pair.cuh"
#include "kernels/blackwell.cuh"
#include "kernels/forward_params.h"
#include "kernels/pair_halves.h"
#include "kernels/task_queue.cuh"

// A forward on pairs of CTAs that multiply as one: tiles of 256 x 256. Two neighbouring tasks of
// the same weights are a product of their 256 rows; each CTA loads its own rows and half of the
// weights, the first one's issuer multiplies for both, and each finishes its own rows. Tasks of
// different weights take turns (scheduler.cuh): the CTA whose turn it is not multiplies what lies
// in its stages and nobody reads these sums.
namespace mok::kernels {

inline constexpr int kPairStageBytes = kABytes + kBBytes / 2;
inline constexpr int kPairStages = 6;
static_assert(kPairStages * kPairStageBytes <= kStages * kStageBytes);
static_assert(kPairStageBytes % 1024 == 0, "the swizzle's period");

// Of a CTA.
struct PairMemory : ForwardSharedMemory {
    BlackwellState blackwell;
    arch::Barrier
        pair_full[kPairStages];  // the first CTA's: both loaders and their bytes -> issuer
    arch::Barrier pair_empty[kPairStages];  // each CTA's: products -> its loader

    // All bytes of the stages; a stage has A's rows, then B's.
    __device__ uint8_t* bytes() { return reinterpret_cast<uint8_t*>(stage); }
    __device__ uint8_t* pair_stage(int i) { return bytes() + i * kPairStageBytes; }
};
inline constexpr int kPairBytes = sizeof(PairMemory) + 1024;
static_assert(kPairBytes <= 232448, "227 KB of shared memory a CTA");

// readers: of a task's entry in the queue, beside the consumers.
__device__ inline void init_pair_barriers(PairMemory& smem, int readers) {
    for (int i = 0; i < kPairStages; ++i) {
        arch::barrier_init(&smem.pair_full[i], kPair);
        arch::barrier_init(&smem.pair_empty[i], 1);
    }
    for (int i = 0; i < kTickets; ++i) {
        arch::barrier_init(&smem.ticket_full[i], 1);
        arch::barrier_init(&smem.ticket_empty[i], 1);
    }
    for (int i = 0; i < kQueue; ++i) {
        arch::barrier_init(&smem.task_full[i], 32);  // the scheduler's lanes
        arch::barrier_init(&smem.task_empty[i], readers + kConsumers * 128);
        arch::barrier_init(&smem.task_done[i], kConsumers * 4);
    }
    init_batches(smem);
    arch::barrier_init(&smem.stages_given, 1);
    init_launch_control(smem.blackwell.launch);
    init_tensor_memory(smem.blackwell.tensor, kPair);
    arch::barrier_init_fence();
}

// The scheduler's tickets: the first CTA's, for as long as the pair stays, and by mail the
// second's.
class LaunchedPairTickets {
  public:
    static constexpr bool kMultipliesAsOne = true;

    __device__ LaunchedPairTickets(const PassParams& p, SharedMemory& smem, LaunchControl& control,
                                   const arch::Cluster& cluster)
        : p_(p),
          control_(control),
          is_first_(cluster.rank == 0),
          tasks_(p, control, kPair),
          mail_(smem, cluster) {}
    __device__ void begin() const {}
    __device__ uint32_t next() {
        const uint32_t ticket = is_first_ ? claimed() : mail_.receive();
        if (is_first_) mail_.send(ticket);
        if (ticket == kLeaves) {
            leave(control_);
            return kNoTask;
        }
        return ticket;
    }
    __device__ void end() {
        if (is_first_) tasks_.end();
    }

  private:
    static constexpr uint32_t kLeaves = kNoTask - 1;  // no more tasks for this pair

    __device__ uint32_t claimed() {
        if (arch::signal_peek(p_.aborted) != 0) return kNoTask;
        const uint32_t ticket = tasks_.next_task(p_, plan::Role::Compute);
        return ticket == kNoTask ? kLeaves : ticket;
    }

    const PassParams& p_;
    LaunchControl& control_;
    bool is_first_;
    LaunchedTasks tasks_;
    TicketMail mail_;
};

// The loader role: one thread of each CTA. Operands says what a task's stages hold: begin(task),
// then k_blocks() of bytes() each, that load(stage, k, barrier) brings and counts at a barrier of
// the first CTA. Of a task that is not its turn, or whose wait has expired, a CTA loads the weights
// alone.
template <class Operands>
class PairLoader {
  public:
    __device__ PairLoader(const Operands& operands, PairMemory& smem)
        : operands_(operands), smem_(smem), full_(arch::cluster_address(smem.pair_full, 0)) {
        stage_.parity = 1;  // all stages are empty
    }

    __device__ void run() {
        for_each_task_to_load(smem_, [&](const TileTask& t) {
            operands_.begin(t);
            for (int32_t k = 0; k < operands_.k_blocks(); ++k) {
                const uint32_t full = full_ + stage_.index * sizeof(arch::Barrier);
                arch::barrier_wait(&smem_.pair_empty[stage_.index], stage_.parity);
                arch::pair_arrive_expect(full, operands_.bytes());
                operands_.load(stage_.index, k, full);
                stage_.advance();
            }
        });
    }

  private:
    Operands operands_;
    PairMemory& smem_;
    uint32_t full_;  // the first CTA's pair_full[0]
    arch::RingState<Operands::kStages> stage_;
};

// Of BF16: rows of x or hidden, and of gate, up or down, 64 elements of k a stage.
class PairOperands {
  public:
    static constexpr int kStages = kPairStages;

    __device__ PairOperands(const ExpertMaps& routed, const ExpertMaps& shared, PairMemory& smem,
                            const arch::Cluster& cluster)
        : routed_(routed),
          shared_(shared),
          smem_(smem),
          rank_(static_cast<int32_t>(cluster.rank)) {}

    __device__ void begin(const TileTask& e) {
        const ExpertMaps& maps = e.shared ? shared_ : routed_;
        const bool gate_up = e.kind == static_cast<int32_t>(plan::TaskKind::GateUp);
        const PairHalf half = pair_half(gate_up, e.part, rank_);
        a_ = e.is_dry ? nullptr : (gate_up ? &maps.x : &maps.hidden);
        a_row_ = e.row;
        b_ = half.matrix == PairWeights::Gate ? &maps.gate
             : half.matrix == PairWeights::Up ? &maps.up
                                              : &maps.down;
        b_row_ = half.row;
        expert_ = e.expert;
        k_blocks_ = e.k_blocks;
    }
    __device__ int32_t k_blocks() const { return k_blocks_; }
    __device__ uint32_t bytes() const { return (a_ != nullptr ? kABytes : 0) + kBBytes / 2; }
    __device__ void load(int stage, int32_t k, uint32_t full) const {
        uint8_t* const at = smem_.pair_stage(stage);
        const int32_t col = k * kTileK;
        if (a_ != nullptr) arch::load_tile_of_pair(at, a_, col, a_row_, 0, full);
        arch::load_tile_by_fours_of_pair(at + kABytes, b_, col, b_row_, expert_, full);
    }

  private:
    const ExpertMaps& routed_;
    const ExpertMaps& shared_;
    PairMemory& smem_;
    int32_t rank_;
    // Of the task whose blocks are being loaded.
    const CUtensorMap* a_ = nullptr;  // null: nothing
    const CUtensorMap* b_ = nullptr;
    int32_t a_row_ = 0, b_row_ = 0, expert_ = 0, k_blocks_ = 0;
};

// The issuer role: one thread of each CTA, of which the first CTA's multiplies for both. Products
// says how: await() waits for what a task's first product needs beside an empty accumulator,
// sums(i) is the accumulator's column, multiply(stage, sums, first) issues a stage's products.
template <class Products>
class PairIssuer {
  public:
    __device__ PairIssuer(const Products& products, PairMemory& smem)
        : products_(products), smem_(smem), tensor_(smem.blackwell.tensor) {
        sums_.parity = 1;  // both accumulators are empty
    }

    __device__ void run(bool is_first) {
        for_each_task_to_issue(smem_, [&](int32_t k_blocks) {
            if (is_first) issue(Products::k_blocks(k_blocks));
        });
    }

  private:
    __device__ void issue(int32_t k_blocks) {
        arch::pair_wait(&tensor_.empty[sums_.index], sums_.parity);
        products_.await();
        const uint32_t sums = arch::tensor_address(tensor_.address, 0, Products::sums(sums_.index));
        for (int32_t k = 0; k < k_blocks; ++k) {
            arch::pair_wait(&smem_.pair_full[stage_.index], stage_.parity);
            arch::umma_fence_after();
            products_.multiply(stage_.index, sums, k == 0);
            arch::umma_commit_pair(&smem_.pair_empty[stage_.index]);
            stage_.advance();
        }
        arch::umma_commit_pair(&tensor_.full[sums_.index]);
        sums_.advance();
    }

    Products products_;
    PairMemory& smem_;
    TensorMemory& tensor_;
    arch::RingState<Products::kStages> stage_;
    arch::RingState<kAccumulators> sums_;
};

// Of BF16.
class PairProducts {
  public:
    static constexpr int kStages = kPairStages;

    __device__ explicit PairProducts(PairMemory& smem) : smem_(smem) {}
    __device__ static int32_t k_blocks(int32_t of_task) { return of_task; }
    __device__ static uint32_t sums(int i) { return i * kAccumulatorColumns; }
    __device__ void await() const {}
    __device__ void multiply(int stage, uint32_t sums, bool first) const {
        using enum arch::Major;
        constexpr uint32_t kInstruction =
            arch::umma_instruction(2 * plan::kTileRows, plan::kOutCols, K, K);
        constexpr uint64_t kStep = arch::umma_operand_step(K);
        const uint32_t at = arch::shared_address(smem_.pair_stage(stage));
        const uint64_t a = arch::umma_operand(at, K), b = arch::umma_operand(at + kABytes, K);
#pragma unroll
        for (int step = 0; step < kTileK / 16; ++step) {
            arch::umma_m256n256k16(sums, a + step * kStep, b + step * kStep, kInstruction,
                                   !first || step != 0);
        }
    }

  private:
    PairMemory& smem_;
};

}  // namespace mok::kernels

#pragma once

#include "kernels/exchange.cuh"
#include "kernels/mxfp8_params.h"
#include "kernels/mxfp8_unpack.cuh"
#include "kernels/shuffle.cuh"
#include "plan/memory_map.h"

// Dispatch in Mxfp8: elements and scales cross the link, and become BF16 numbers on arrival.
namespace mok::kernels {

// This lane's row of a dispatch task.
struct PackedRow {
    const uint8_t* elements;  // at its home, [padded]
    const Ue8m0* scales;      // there, [padded / 32]
    int32_t slot;             // the first that gets it
};

// Rows by pieces of 2048 columns, three at a time by the copy engine into one half of the
// exchange's buffer, while the warp unpacks those of the other half. Scales come by ordinary loads.
class PackedRows {
  public:
    __device__ PackedRows(SharedMemory& smem, int32_t cols)
        : full_(&smem.batch_full[0]),
          buffer_(smem.exchange),
          cols_(cols),
          padded_(static_cast<int32_t>(plan::fp8_padded(cols))),
          pieces_(plan::ceil_div(padded_, kPiece)),
          lane_(threadIdx.x % 32) {}

    // `rows`: the lanes that have one. place_of(slot) is a slot's row in the ring, and
    // next_of(slot) the slot that also gets it, -1: none. All lanes call it; their ordinary stores
    // are under way on return.
    template <class PlaceOf, class NextOf>
    __device__ void move(uint32_t rows, const PackedRow& mine, uint32_t& parity, PlaceOf&& place_of,
                         NextOf&& next_of) {
        const int32_t total = __popc(rows) * pieces_;
        const int lane_of = lane_of_bit(rows, lane_);
        if (total > 0) begin(0, total, lane_of, mine);
        for (int32_t first = 0; first < total; first += kPieces) {
            arch::barrier_wait(full_, parity);
            parity ^= 1;
            const int half = first / kPieces % 2;
            const bool lifted = put_scales(half);
            __syncwarp();
            if (first + kPieces < total) begin(first + kPieces, total, lane_of, mine);
            for (int32_t i = 0; i < min(kPieces, total - first); ++i) {
                const int32_t unit = first + i, row = unit / pieces_;
                const int from = __shfl_sync(~0u, lane_of, row);
                const int32_t begin_col = (unit - row * pieces_) * kPiece;
                for (int32_t slot = __shfl_sync(~0u, mine.slot, from); slot >= 0;) {
                    const int32_t next = next_of(slot);
                    Bf16* const to = place_of(slot) + begin_col;
                    const int32_t end = min(kPiece, cols_ - begin_col);
                    if (lifted) {
                        unpack<true>(half, i, end, to);
                    } else {
                        unpack<false>(half, i, end, to);
                    }
                    slot = next;
                }
            }
            __syncwarp();
        }
    }

  private:
    static constexpr int32_t kPiece = 2048, kPieces = 3;
    static constexpr int32_t kPieceWords = kPiece / 128;  // of scales, four in a word
    static constexpr int32_t kScalesAt = 2 * kPieces * kPiece;
    static constexpr int32_t kWords = kPieces * kPieceWords;
    static_assert(kScalesAt + 2 * kWords * 4 <= kExchangeBytes && kWords <= 64);

    __device__ uint8_t* piece(int half, int32_t i) const {
        return buffer_ + (half * kPieces + i) * kPiece;
    }
    __device__ uint32_t* scale_words(int half) const {
        return reinterpret_cast<uint32_t*>(buffer_ + kScalesAt) + half * kWords;
    }

    // The copies of pieces [first, first + kPieces), and their scales into registers.
    __device__ void begin(int32_t first, int32_t total, int lane_of, const PackedRow& mine) {
        const int half = first / kPieces % 2;
        const int32_t unit = first + lane_, row = min(unit, total - 1) / pieces_;
        const int from = __shfl_sync(~0u, lane_of, row & 31);
        const int32_t offset = (unit - row * pieces_) * kPiece;
        const uint8_t* source = pointer_of(mine.elements, from) + offset;
        const bool copies = lane_ < kPieces && unit < total;
        const uint32_t bytes = copies ? min(kPiece, padded_ - offset) : 0;
        const uint32_t sum = __reduce_add_sync(~0u, bytes);
        if (lane_ == 0) arch::barrier_arrive_expect(full_, sum);
        __syncwarp();
        if (copies) arch::load_bytes(piece(half, lane_), source, bytes, full_);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const int32_t word = lane_ + 32 * i, of = min(first + word / kPieceWords, total - 1);
            const int32_t of_row = of / pieces_, at = (of - of_row * pieces_) * kPieceWords;
            const Ue8m0* scales = pointer_of(mine.scales, __shfl_sync(~0u, lane_of, of_row & 31));
            const int32_t index = at + word % kPieceWords;
            words_[i] = 0;
            if (word < kWords && index < padded_ / 128) {
                words_[i] = reinterpret_cast<const uint32_t*>(scales)[index];
            }
        }
    }
    // To where unpack finds them; whether all of them can be lifted.
    __device__ bool put_scales(int half) const {
        uint32_t most = 0;
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            if (lane_ + 32 * i < kWords) scale_words(half)[lane_ + 32 * i] = words_[i];
            most = __vmaxu4(most, words_[i]);
        }
        const uint32_t high = __vcmpgtu4(most, kMostLifted * 0x01010101u);
        return __all_sync(~0u, high == 0);
    }

    // The first `end` columns of a piece, eight a lane at a time, kAtOnce times at once: one warp
    // alone hides little of what an instruction takes. kLifted: all scales can be.
    template <bool kLifted>
    __device__ void unpack(int half, int32_t i, int32_t end, Bf16* to) const {
        constexpr int32_t kStep = 8 * 32;
        constexpr int kAtOnce = 4;
        uint32_t elements = arch::shared_address(piece(half, i)) + 8 * lane_;
        uint32_t scales = arch::shared_address(scale_words(half) + i * kPieceWords) + lane_ / 4;
        to += 8 * lane_;
#pragma unroll 1
        for (int32_t left = end - 8 * lane_; left > 0; left -= kAtOnce * kStep) {
            uint2 e[kAtOnce];
            Ue8m0 s[kAtOnce];
#pragma unroll
            for (int k = 0; k < kAtOnce; ++k) {
                e[k] = arch::load_shared_words(elements + k * kStep);
                s[k] = {arch::load_shared_byte(scales + k * (kStep / 32))};
            }
#pragma unroll
            for (int k = 0; k < kAtOnce; ++k) {
                const int4 eight = unpack_eight<kLifted>(e[k], s[k]);
                if (left > k * kStep) arch::store_global_chunk(to + k * kStep, eight);
            }
            elements += kAtOnce * kStep;
            scales += kAtOnce * (kStep / 32);
            to += kAtOnce * kStep;
        }
    }

    template <class T>
    __device__ static const T* pointer_of(const T* p, int from) {
        return reinterpret_cast<const T*>(
            __shfl_sync(~0u, reinterpret_cast<unsigned long long>(p), from));
    }

    arch::Barrier* full_;
    uint8_t* buffer_;
    int32_t cols_, padded_, pieces_;
    int lane_;
    uint32_t words_[2];  // scales of the pieces that begin() has begun
};

// DispatchX of a forward in Mxfp8. A task is told with the next call.
class UnpackedRows {
  public:
    __device__ UnpackedRows(const Mxfp8ForwardParams& p, SharedMemory& smem) : p_(p), smem_(smem) {}

    __device__ void use(const ExchangeRoom& /*room*/) {}  // always the exchange's own buffer

    __device__ void put(const CommClaim& at, const uint8_t* source, uint64_t begin) {
        finish();
        const int32_t hidden = p_.pass.problem.hidden;
        const plan::RouteTable& t = p_.pass.table;
        PackedRow mine{source, nullptr, at.row.slot};
        if (source != nullptr) mine.scales = scales_of(at.row);
        PackedRows(smem_, hidden)
            .move(
                __ballot_sync(~0u, source != nullptr), mine, parity_,
                [&](int32_t slot) {
                    return p_.ring_x + int64_t{plan::ring_row(p_.pass.problem, slot)} * hidden;
                },
                [&](int32_t slot) { return t.slot_next[slot]; });
        pulled_ = pulled_claim(p_, at, begin);
        untold_ = true;
    }
    __device__ void finish() {
        if (untold_) tell_pulled(p_, pulled_);
        untold_ = false;
    }

  private:
    __device__ const Ue8m0* scales_of(const LaneRow& row) const {
        const plan::Problem& problem = p_.pass.problem;
        return p_.peer_x8[row.home].scales +
               int64_t{row.route / problem.top_k} * plan::fp8_scale_bytes(problem.hidden);
    }

    const Mxfp8ForwardParams& p_;
    SharedMemory& smem_;
    uint32_t parity_ = 0;
    PulledClaim pulled_;
    bool untold_ = false;
};

__device__ inline auto mover_of(const Mxfp8ForwardParams& p, SharedMemory& smem) {
    return UnpackedRows(p, smem);
}
__device__ inline int32_t pulled_bytes(const Mxfp8ForwardParams& p) {
    return p.pass.problem.hidden * 2;
}
__device__ inline const uint8_t* pulled_source(const Mxfp8ForwardParams& p,
                                               plan::TaskKind /*DispatchX*/, const LaneRow& row) {
    const int64_t token = row.route / p.pass.problem.top_k;
    return p.peer_x8[row.home].elements + token * plan::fp8_padded(p.pass.problem.hidden);
}

}  // namespace mok::kernels

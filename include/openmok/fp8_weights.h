#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace mok {

class Workspace;
struct Weights;

// The routed experts' gate, up and down in FP8, in both orientations, for a layer whose precision
// is one of FP8: every pass reads these instead of the BF16 or F32 matrices, by Weights::fp8. Made
// once for a layer, it keeps its memory, at one address, until it ends; `quantize_weights` fills
// it, once per optimizer step. Calls captured into a graph or gathered bytes may rely on the
// address.
class Fp8Weights {
  public:
    // Room for this rank's experts of a workspace's shape, not yet filled. Throws ShapeError where
    // the workspace's precision is BF16.
    explicit Fp8Weights(const Workspace& workspace);
    ~Fp8Weights();
    Fp8Weights(Fp8Weights&&) noexcept;
    Fp8Weights& operator=(Fp8Weights&&) noexcept;

    // What an optimizer step calls: until the next quantize_weights every pass refuses these
    // weights with ShapeError.
    void invalidate();
    // The opposite, for a caller that has filled the memory itself, with bytes that
    // quantize_weights has made on another rank of the same experts. On CUDA Mxfp8 has the same
    // weights a second time, as BF16 numbers: both calls make them, on the workspace's stream.
    void set_filled();

    // Whether passes take them: since the last quantize_weights or set_filled, no invalidate().
    bool is_filled() const;

    // The whole memory; plan::fp8_weights_map in src/plan/memory_map.h says what lies where.
    std::byte* data();
    int64_t bytes() const;

    struct Impl;
    Impl& impl() const { return *impl_; }

  private:
    std::unique_ptr<Impl> impl_;
};

// Quantises weights.gate, up and down (BF16, or F32 rounded to BF16 first) into `to`. Not
// collective: the call concerns this rank's memory alone.
void quantize_weights(Workspace& workspace, const Weights& weights, Fp8Weights& to);

}  // namespace mok

#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "cli/train/config.h"
#include "cli/train/matrix.h"
#include "math/bf16.h"

namespace mok::train {

// The weights, in the order in which they lie in memory. Those up to kHead are the dense ones whose
// gradients each sequence computes for itself.
enum class Weight : int {
    MoeNorm,     // [H]
    Router,      // [E, H]
    HeadNorm,    // [H]
    Head,        // [256, H]
    Embedding,   // [rows, H]
    Gate,        // [E, I, H], cut by rank
    Up,          // [E, I, H]
    Down,        // [E, H, I]
    SharedGate,  // [S, H], S = 0: empty
    SharedUp,    // [S, H]
    SharedDown,  // [H, S]
};
inline constexpr int kNumWeights = 11;

struct WeightInfo {
    std::string name;  // as in the checkpoint
    std::vector<int64_t> shape;
    int64_t offset = 0;  // in elements; a multiple of 16
    int64_t size = 0;
    bool decays = false;
    double init_scale = 0.0;  // standard deviation; 0: all ones
};

// Every weight with its place in a buffer.
std::array<WeightInfo, kNumWeights> placed_weights(const Config& config);

// The FP32 master weights with their gradients and Adam moments, each in one buffer in which weight
// w lies at info(w).offset; and the BF16 weights that the layer reads. One object for ranks that
// are threads: in each phase of a step an element is written by one rank, and rank barriers lie
// between the phases. Of ranks in processes each has one (exchange.h).
class Parameters {
  public:
    // Weights drawn from the seed, moments and gradients zero.
    explicit Parameters(const Config& config);

    const WeightInfo& info(Weight weight) const { return infos_[static_cast<int>(weight)]; }
    const std::array<WeightInfo, kNumWeights>& infos() const { return infos_; }
    float* value(Weight weight) { return values.data() + info(weight).offset; }
    float* gradient(Weight weight) { return gradients.data() + info(weight).offset; }
    const Bf16* rounded(Weight weight) const { return bf16.data() + info(weight).offset; }
    // Elements of the dense weights with their padding: the first ones of every buffer.
    int64_t dense_size() const { return info(Weight::Embedding).offset; }
    // Weights, without the padding.
    int64_t count() const;
    // Rounds elements [begin, end) of `values` to `bf16`.
    void round(int64_t begin, int64_t end);
    // Zeroes the gradients of the weights first..last.
    void clear_gradients(Weight first, Weight last);

    // SHA-256 of the values, FP32 little-endian, weights in the order of their names.
    std::string hash() const;

    Buffer values, gradients, first_moments, second_moments;
    std::vector<Bf16> bf16;

  private:
    void draw(uint64_t seed);

    std::array<WeightInfo, kNumWeights> infos_;
};

}  // namespace mok::train

#pragma once

#include <span>

#include "cli/common/global_layer.h"

namespace mok::cli {

enum class Elements { Float, F32, Ids, I64 };

// One tensor of the input file and where it stands in GlobalInputs, in its weights, or in the
// result as a gradient. Letters are dimensions: N, H, K, E, I, S, R.
struct TensorRule {
    const char* name;
    const char* letters;
    Elements elements;
    bool required;
    ConstTensor GlobalInputs::*input = nullptr;
    ConstTensor Weights::*weight = nullptr;
    std::vector<float> GlobalResult::*grad = nullptr;  // F32 gradient, in the output file

    ConstTensor& in(GlobalInputs& inputs) const {
        return weight ? inputs.weights.*weight : inputs.*input;
    }
    const ConstTensor& in(const GlobalInputs& inputs) const {
        return weight ? inputs.weights.*weight : inputs.*input;
    }
};

// Every tensor but tokens_per_rank. The first that has a letter sets its value: that order names
// the tensor a user would take as given.
std::span<const TensorRule> tensor_rules();

}  // namespace mok::cli

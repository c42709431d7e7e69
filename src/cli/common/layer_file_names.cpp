#include "cli/common/layer_file_names.h"

namespace mok::cli {

std::span<const TensorRule> tensor_rules() {
    using In = GlobalInputs;
    using W = Weights;
    using R = GlobalResult;
    using enum Elements;
    static const TensorRule kRules[] = {
        {"hidden_states", "NH", Float, true, &In::x, nullptr, nullptr},
        {"topk_ids", "NK", Ids, true, &In::topk_ids, nullptr, nullptr},
        {"topk_weights", "NK", F32, true, &In::topk_weights, nullptr, &R::d_topk_weights},
        {"gate_proj", "EIH", Float, true, nullptr, &W::gate, &R::d_gate},
        {"up_proj", "EIH", Float, true, nullptr, &W::up, &R::d_up},
        {"down_proj", "EHI", Float, true, nullptr, &W::down, &R::d_down},
        {"gate_bias", "EI", Float, false, nullptr, &W::gate_bias, &R::d_gate_bias},
        {"up_bias", "EI", Float, false, nullptr, &W::up_bias, &R::d_up_bias},
        {"down_bias", "EH", Float, false, nullptr, &W::down_bias, &R::d_down_bias},
        {"shared_gate_proj", "SH", Float, false, nullptr, &W::shared_gate, &R::d_shared_gate},
        {"shared_up_proj", "SH", Float, false, nullptr, &W::shared_up, &R::d_shared_up},
        {"shared_down_proj", "HS", Float, false, nullptr, &W::shared_down, &R::d_shared_down},
        {"shared_weights", "N", F32, false, &In::shared_weights, nullptr, &R::d_shared_weights},
        {"grad_output", "NH", Float, false, &In::grad_output, nullptr, nullptr},
    };
    return kRules;
}

}  // namespace mok::cli

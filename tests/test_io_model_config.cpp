#include <gtest/gtest.h>

#include <fstream>
#include <limits>
#include <string>

#include "cli/io/file_error.h"
#include "cli/io/model_config.h"
#include "temporary_folder.h"

// The configs are the relevant fields of the published config.json files, as published; the right
// values are the models' published sizes.
namespace mok::io {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

void expect_shape(const ModelShape& shape, int hidden, int intermediate, int experts, int top_k,
                  int shared_intermediate, int local_ep64) {
    SCOPED_TRACE(shape.name);
    EXPECT_EQ(shape.hidden, hidden);
    EXPECT_EQ(shape.intermediate, intermediate);
    EXPECT_EQ(shape.experts, experts);
    EXPECT_EQ(shape.top_k, top_k);
    EXPECT_EQ(shape.shared_intermediate, shared_intermediate);
    EXPECT_EQ(shape.local_ep64, local_ep64);
}

void expect_activation(const ModelShape& shape, float limit, float alpha, float beta) {
    SCOPED_TRACE(shape.name);
    EXPECT_EQ(shape.activation.limit, limit);
    EXPECT_EQ(shape.activation.alpha, alpha);
    EXPECT_EQ(shape.activation.beta, beta);
}

const char kMixtral[] = R"({"architectures": ["MixtralForCausalLM"], "hidden_act": "silu",
    "hidden_size": 4096, "intermediate_size": 14336, "model_type": "mixtral",
    "num_experts_per_tok": 2, "num_hidden_layers": 32, "num_local_experts": 8,
    "sliding_window": null})";
const char kQwen3[] = R"({"architectures": ["Qwen3MoeForCausalLM"], "hidden_act": "silu",
    "hidden_size": 2048, "intermediate_size": 6144, "model_type": "qwen3_moe",
    "moe_intermediate_size": 768, "norm_topk_prob": true, "num_experts": 128,
    "num_experts_per_tok": 8})";
const char kDeepSeekV3[] = R"({"architectures": ["DeepseekV3ForCausalLM"], "hidden_act": "silu",
    "hidden_size": 7168, "intermediate_size": 18432, "model_type": "deepseek_v3",
    "moe_intermediate_size": 2048, "n_group": 8, "n_routed_experts": 256, "n_shared_experts": 1,
    "num_experts_per_tok": 8, "topk_group": 4})";
const char kGptOss[] = R"({"architectures": ["GptOssForCausalLM"], "experts_per_token": 4,
    "hidden_act": "silu", "hidden_size": 2880, "intermediate_size": 2880, "model_type": "gpt_oss",
    "num_experts_per_tok": 4, "num_local_experts": 128, "swiglu_limit": 7.0})";
const char kQwen2Moe[] = R"({"architectures": ["Qwen2MoeForCausalLM"], "hidden_act": "silu",
    "hidden_size": 2048, "intermediate_size": 5632, "model_type": "qwen2_moe",
    "moe_intermediate_size": 1408, "num_experts": 60, "num_experts_per_tok": 4,
    "shared_expert_intermediate_size": 5632})";

TEST(ModelConfig, ReadsThePublishedConfigs) {
    expect_shape(parse_model_config(kMixtral, "f"), 4096, 14336, 8, 2, 0, 0);
    expect_shape(parse_model_config(kQwen3, "f"), 2048, 768, 128, 8, 0, 2);
    expect_shape(parse_model_config(kDeepSeekV3, "f"), 7168, 2048, 256, 8, 2048, 4);
    expect_shape(parse_model_config(kGptOss, "f"), 2880, 2880, 128, 4, 0, 2);
    expect_shape(parse_model_config(kQwen2Moe, "f"), 2048, 1408, 60, 4, 5632, 0);
    EXPECT_EQ(parse_model_config(kQwen3, "f").name, "qwen3_moe");
}

TEST(ModelConfig, ReadsTheActivation) {
    expect_activation(parse_model_config(kMixtral, "f"), kInfinity, 1.0f, 0.0f);
    expect_activation(parse_model_config(kGptOss, "f"), 7.0f, 1.702f, 1.0f);
}

TEST(ModelConfig, ReadsTheLanguageModelOfAMultimodalOne) {
    const std::string text = std::string(R"({"model_type": "outer", "hidden_size": 1,
        "vision_config": {"hidden_size": 2}, "text_config": )") +
                             kDeepSeekV3 + "}";
    expect_shape(parse_model_config(text, "f"), 7168, 2048, 256, 8, 2048, 4);
}

TEST(ModelConfig, ReadsFieldsThatAreListedPerLayer) {
    const auto text = [](const char* widths) {
        return std::string(R"({"hidden_act": "silu", "hidden_size": 4096, "num_experts": 64,
            "moe_topk": [8, 8], "moe_intermediate_size": )") +
               widths + R"(, "num_shared_expert": [2, 2]})";
    };
    expect_shape(parse_model_config(text("[3072, 3072]"), "f"), 4096, 3072, 64, 8, 6144, 1);
    EXPECT_THROW(parse_model_config(text("[3072, 1024]"), "f"), FileError);
    EXPECT_THROW(parse_model_config(text("[]"), "f"), FileError);
}

TEST(ModelConfig, ReadsAFile) {
    const TemporaryFolder folder;
    std::ofstream(folder.path() / "config.json") << kGptOss;
    expect_shape(read_model_config(folder.path() / "config.json"), 2880, 2880, 128, 4, 0, 2);
    EXPECT_THROW(read_model_config(folder.path() / "none.json"), FileError);
}

std::string error_of(const std::string& text) {
    try {
        parse_model_config(text, "c.json");
    } catch (const FileError& error) {
        return error.what();
    }
    return "";
}

std::string changed(std::string text, const std::string& from, const std::string& to) {
    return text.replace(text.find(from), from.size(), to);
}

TEST(ModelConfig, NamesTheMissingQuantityAndItsNames) {
    EXPECT_EQ(error_of(changed(kQwen3, "\"num_experts\"", "\"no\"")),
              "c.json: expected the number of experts, found none of the fields num_experts, "
              "num_local_experts, n_routed_experts, moe_num_experts");
    EXPECT_EQ(error_of(changed(kQwen3, "hidden_size", "no")),
              "c.json: expected the hidden size, found none of the fields hidden_size");
    EXPECT_EQ(error_of(changed(kQwen3, "num_experts_per_tok", "no")),
              "c.json: expected the number of experts per token, found none of the fields "
              "num_experts_per_tok, experts_per_token, moe_topk, moe_k, top_k");
    EXPECT_EQ(error_of(changed(kMixtral, "intermediate_size", "no")),
              "c.json: expected the width of an expert, found none of the fields "
              "moe_intermediate_size, intermediate_size");
    EXPECT_EQ(error_of(changed(kMixtral, "hidden_act", "no")),
              "c.json: expected the activation, found none of the fields hidden_act, "
              "hidden_activation");
}

TEST(ModelConfig, RefusesWrongValues) {
    EXPECT_EQ(error_of(changed(kMixtral, "4096", "-1")),
              "c.json: expected hidden_size to be an integer from 0 to 2^31 - 1, found -1");
    EXPECT_NE(error_of(changed(kMixtral, "4096", "2147483648")), "");
    EXPECT_NE(error_of(changed(kMixtral, "4096", "4096.5")), "");
    EXPECT_NE(error_of(changed(kMixtral, "4096", "\"4096\"")), "");
    EXPECT_EQ(error_of(changed(kMixtral, "4096", "0")),
              "c.json: expected the hidden size of at least 1, found 0");
    EXPECT_EQ(error_of(changed(kMixtral, "\"num_experts_per_tok\": 2", "\"top_k\": 9")),
              "c.json: expected at most as many experts per token as experts (8), found 9");
    EXPECT_EQ(error_of(changed(kMixtral, "\"silu\"", "\"gelu\"")),
              "c.json: expected hidden_act silu, the only one this layer computes, found \"gelu\"");
    EXPECT_NE(error_of(changed(kGptOss, "7.0", "0")), "");
    EXPECT_NE(error_of(changed(kGptOss, "7.0", "\"7\"")), "");
    EXPECT_NE(error_of(changed(kDeepSeekV3, "\"n_shared_experts\": 1",
                               "\"n_shared_experts\": 2000000000")),
              "");
}

TEST(ModelConfig, RefusesWhatIsNotAJsonObject) {
    EXPECT_EQ(error_of(""), "c.json: expected JSON, found an error at byte 1");
    EXPECT_EQ(error_of("[]"), "c.json: expected a JSON object, found array");
    EXPECT_NE(error_of("{\"hidden_size\": 1e999}"), "");
    EXPECT_NE(error_of(std::string(1'000'000, '[')), "");
    std::string nested;
    for (int i = 0; i < 200'000; ++i) nested += "{\"text_config\":";
    EXPECT_NE(error_of(nested + "1" + std::string(200'000, '}')), "");
}

TEST(NamedModels, AgreeWithThePublishedConfigs) {
    expect_shape(named_model("mixtral-8x7b"), 4096, 14336, 8, 2, 0, 0);
    expect_shape(named_model("qwen3-30b-a3b"), 2048, 768, 128, 8, 0, 2);
    expect_shape(named_model("deepseek-v3"), 7168, 2048, 256, 8, 2048, 4);
    expect_shape(named_model("gpt-oss-120b"), 2880, 2880, 128, 4, 0, 2);
    expect_activation(named_model("gpt-oss-120b"), 7.0f, 1.702f, 1.0f);
    expect_activation(named_model("deepseek-v3"), kInfinity, 1.0f, 0.0f);
}

TEST(NamedModels, AreSoundAndNamedInTheError) {
    for (const ModelShape& shape : named_models()) {
        SCOPED_TRACE(shape.name);
        EXPECT_GT(shape.hidden, 0);
        EXPECT_GT(shape.intermediate, 0);
        EXPECT_GE(shape.top_k, 1);
        EXPECT_LE(shape.top_k, shape.experts);
        EXPECT_EQ(shape.local_ep64, shape.experts % 64 == 0 ? shape.experts / 64 : 0);
        try {
            named_model("x");
            ADD_FAILURE() << "accepted";
        } catch (const std::invalid_argument& error) {
            EXPECT_NE(std::string(error.what()).find(shape.name), std::string::npos);
        }
    }
    EXPECT_GE(named_models().size(), 11u);
}

}  // namespace
}  // namespace mok::io

#include "cli/io/model_config.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <initializer_list>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>

#include "cli/io/file_error.h"
#include "cli/io/mapped_file.h"

namespace mok::io {

namespace {

using Json = nlohmann::json;
using Names = std::initializer_list<const char*>;

// The names by which the public configs know each quantity; the first that is present counts.
const Names kHidden = {"hidden_size"};
const Names kExperts = {"num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"};
const Names kTopK = {"num_experts_per_tok", "experts_per_token", "moe_topk", "moe_k", "top_k"};
// Where both are present, intermediate_size is the width of the dense layers.
const Names kIntermediate = {"moe_intermediate_size", "intermediate_size"};
const Names kSharedIntermediate = {"shared_expert_intermediate_size", "shared_intermediate_size"};
// Shared experts of the width of a routed one.
const Names kSharedExperts = {"n_shared_experts", "num_shared_experts", "num_shared_expert",
                              "moe_num_shared_experts"};
const Names kActivation = {"hidden_act", "hidden_activation"};

// One JSON object of a config file, read with sentences.
class Fields {
  public:
    Fields(const Json& object, std::string_view file) : object_(object), file_(file) {}

    int require(Names names, std::string_view quantity) const {
        const auto value = find(names);
        if (!value) {
            fail("expected {}, found none of the fields {}", quantity, fmt::join(names, ", "));
        }
        if (*value == 0) fail("expected {} of at least 1, found 0", quantity);
        return *value;
    }

    // A non-negative integer, or a list that repeats one for every layer; null counts as absent.
    std::optional<int> find(Names names) const {
        for (const char* name : names) {
            const Json* value = present(name);
            if (value == nullptr) continue;
            if (!value->is_array()) return integer(*value, name);
            if (value->empty()) fail("expected {} to hold an integer, found an empty list", name);
            for (const Json& item : *value) {
                if (item != value->front()) {
                    fail("expected {} to be the same in every layer, found differing values", name);
                }
            }
            return integer(value->front(), name);
        }
        return std::nullopt;
    }

    std::optional<float> find_number(const char* name) const {
        const Json* value = present(name);
        if (value == nullptr) return std::nullopt;
        if (!value->is_number())
            fail("expected {} to be a number, found {}", name, type_of(*value));
        return value->get<float>();
    }

    std::string require_text(Names names, std::string_view quantity) const {
        for (const char* name : names) {
            const Json* value = present(name);
            if (value == nullptr) continue;
            if (!value->is_string()) {
                fail("expected {} to be a string, found {}", name, type_of(*value));
            }
            return value->get<std::string>();
        }
        fail("expected {}, found none of the fields {}", quantity, fmt::join(names, ", "));
    }

    template <typename... Parts>
    [[noreturn]] void fail(fmt::format_string<Parts...> text, Parts&&... parts) const {
        throw FileError(
            fmt::format("{}: {}", file_, fmt::format(text, std::forward<Parts>(parts)...)));
    }

  private:
    const Json* present(const char* name) const {
        const auto found = object_.find(name);
        return found == object_.end() || found->is_null() ? nullptr : &*found;
    }

    int integer(const Json& value, const char* name) const {
        if (!value.is_number_unsigned() ||
            value.get<std::uint64_t>() > std::numeric_limits<int>::max()) {
            fail("expected {} to be an integer from 0 to 2^31 - 1, found {}", name,
                 value.is_number() ? value.dump() : type_of(value));
        }
        return value.get<int>();
    }

    static std::string type_of(const Json& value) {
        return fmt::format("the JSON type {}", value.type_name());
    }

    const Json& object_;
    std::string_view file_;
};

Json parse_object(std::string_view text, std::string_view file) {
    Json json;
    try {
        json = Json::parse(text);
    } catch (const Json::parse_error& error) {
        throw FileError(
            fmt::format("{}: expected JSON, found an error at byte {}", file, error.byte));
    } catch (const Json::exception&) {
        throw FileError(fmt::format("{}: expected JSON, found a number beyond all types", file));
    }
    if (!json.is_object()) {
        throw FileError(
            fmt::format("{}: expected a JSON object, found {}", file, json.type_name()));
    }
    return json;
}

// Multimodal models keep the language model in an object of its own.
const Json& language_model(const Json& config) {
    for (const char* name : {"text_config", "language_config"}) {
        const auto found = config.find(name);
        if (found != config.end() && found->is_object()) return *found;
    }
    return config;
}

// gpt-oss writes its limit into the config but has alpha and beta in its model code
// (github.com/openai/gpt-oss, swiglu: alpha 1.702, and one added to the linear part).
Activation read_activation(const Fields& fields, std::string_view model_type) {
    const std::string function = fields.require_text(kActivation, "the activation");
    if (function != "silu" && function != "swish") {
        fields.fail("expected hidden_act silu, the only one this layer computes, found {}",
                    in_quotes(function));
    }
    Activation activation;
    if (model_type == "gpt_oss") activation = {.alpha = 1.702f, .beta = 1.0f};
    activation.limit = fields.find_number("swiglu_limit").value_or(activation.limit);
    activation.alpha = fields.find_number("swiglu_alpha").value_or(activation.alpha);
    activation.beta = fields.find_number("swiglu_beta").value_or(activation.beta);
    if (!(activation.limit > 0)) {
        fields.fail("expected swiglu_limit above 0, found {}", activation.limit);
    }
    return activation;
}

int shared_width(const Fields& fields, int intermediate) {
    if (const auto width = fields.find(kSharedIntermediate)) return *width;
    const std::int64_t width = std::int64_t{fields.find(kSharedExperts).value_or(0)} * intermediate;
    if (width > std::numeric_limits<int>::max()) {
        fields.fail("expected shared experts of less than 2^31 columns together, found {}", width);
    }
    return static_cast<int>(width);
}

void complete(ModelShape& shape, const Fields& fields) {
    if (shape.top_k > shape.experts) {
        fields.fail("expected at most as many experts per token as experts ({}), found {}",
                    shape.experts, shape.top_k);
    }
    shape.local_ep64 = shape.experts % 64 == 0 ? shape.experts / 64 : 0;
}

}  // namespace

ModelShape parse_model_config(std::string_view text, std::string_view file) {
    const Json config = parse_object(text, file);
    const Json& model = language_model(config);
    const Fields fields(model, file);
    const std::string type =
        model.contains("model_type") ? fields.require_text({"model_type"}, "the model's type") : "";

    ModelShape shape;
    shape.name = type.empty() ? std::string(file) : type;
    shape.hidden = fields.require(kHidden, "the hidden size");
    shape.experts = fields.require(kExperts, "the number of experts");
    shape.top_k = fields.require(kTopK, "the number of experts per token");
    shape.intermediate = fields.require(kIntermediate, "the width of an expert");
    shape.shared_intermediate = shared_width(fields, shape.intermediate);
    shape.activation = read_activation(fields, type);
    complete(shape, fields);
    return shape;
}

ModelShape read_model_config(const std::filesystem::path& path) {
    const MappedFile file(path);
    const auto bytes = file.bytes();
    return parse_model_config({reinterpret_cast<const char*>(bytes.data()), bytes.size()},
                              path.string());
}

}  // namespace mok::io

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <nlohmann/json.hpp>
#include <stdexcept>

#include "cli/io/model_config.h"
#include "cli/io/shapes_json.h"

namespace mok::io {

namespace {

// data/shapes.json is ours, so a field that is missing in it is an error of the build, which every
// test of this file meets: the JSON library's exception is left as it is.
std::vector<ModelShape> read_shapes() {
    const nlohmann::json shapes = nlohmann::json::parse(kShapesJson);
    std::vector<ModelShape> models;
    for (const auto& [name, row] : shapes.items()) {
        if (name == "comment") continue;
        ModelShape shape;
        shape.name = name;
        shape.hidden = row.at("hidden");
        shape.intermediate = row.at("intermediate");
        shape.experts = row.at("experts");
        shape.top_k = row.at("top_k");
        shape.shared_intermediate = row.at("shared").get<int>() * shape.intermediate;
        shape.local_ep64 = row.at("local_ep64");
        if (const auto activation = row.find("activation"); activation != row.end()) {
            shape.activation = {activation->at("limit"), activation->at("alpha"),
                                activation->at("beta")};
        }
        models.push_back(shape);
    }
    return models;
}

}  // namespace

const std::vector<ModelShape>& named_models() {
    static const std::vector<ModelShape> models = read_shapes();
    return models;
}

const ModelShape& named_model(std::string_view name) {
    std::vector<std::string_view> names;
    for (const ModelShape& model : named_models()) {
        if (model.name == name) return model;
        names.push_back(model.name);
    }
    throw std::invalid_argument(
        fmt::format("expected a model of {}, found \"{}\"", fmt::join(names, ", "), name));
}

}  // namespace mok::io

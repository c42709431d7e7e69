#include "cli/train/checkpoint.h"

#include <fmt/format.h>

#include <charconv>
#include <cstring>
#include <span>

#include "cli/io/safetensors.h"

namespace mok::train {
namespace {

constexpr const char* kFormat = "openmok train 1";

struct Part {
    const char* prefix;
    Buffer Parameters::*buffer;
};
constexpr Part kParts[] = {{"", &Parameters::values},
                           {"adam.first.", &Parameters::first_moments},
                           {"adam.second.", &Parameters::second_moments}};

io::TensorEntry f32_entry(std::string name, std::vector<int64_t> shape,
                          std::span<const float> values) {
    return {std::move(name), io::DType::F32, std::move(shape), std::as_bytes(values)};
}

[[noreturn]] void refuse(const std::filesystem::path& path, const std::string& what,
                         const std::string& expected, const std::string& found) {
    throw InputError(fmt::format("{}: {}: expected {}, found {}", path.string(), what, expected,
                                 found.empty() ? "nothing" : found));
}

std::string metadata_value(const io::SafetensorsFile& file, const std::string& key) {
    const auto found = file.metadata().find(key);
    return found == file.metadata().end() ? "" : found->second;
}

void require_metadata(const io::SafetensorsFile& file, const std::string& key,
                      const std::string& expected) {
    const std::string found = metadata_value(file, key);
    if (found != expected) {
        refuse(file.path(), fmt::format("checkpoint of another run, its {}", key), expected, found);
    }
}

void read_tensor(const io::SafetensorsFile& file, const std::string& name,
                 const std::vector<int64_t>& shape, std::span<float> values) {
    const auto tensor = file.find(name);
    if (!tensor) refuse(file.path(), fmt::format("tensor {}", name), "it", "");
    if (tensor->dtype != io::DType::F32 || tensor->shape != shape) {
        refuse(
            file.path(), fmt::format("tensor {}", name),
            fmt::format("F32 [{}]", fmt::join(shape, ", ")),
            fmt::format("{} [{}]", io::dtype_name(tensor->dtype), fmt::join(tensor->shape, ", ")));
    }
    std::memcpy(values.data(), tensor->data.data(), values.size_bytes());
}

int64_t read_step(const io::SafetensorsFile& file, int64_t steps) {
    const std::string text = metadata_value(file, "step");
    int64_t step = -1;
    const auto parsed = std::from_chars(text.data(), text.data() + text.size(), step);
    if (parsed.ec != std::errc() || parsed.ptr != text.data() + text.size() || step < 0 ||
        step > steps) {
        refuse(file.path(), "step", fmt::format("0 to {}", steps), text);
    }
    return step;
}

}  // namespace

void write_checkpoint(const std::filesystem::path& path, const Config& config,
                      const std::string& text_sha256, const Parameters& parameters,
                      const RunState& state) {
    std::vector<io::TensorEntry> tensors;
    for (const Part& part : kParts) {
        for (const WeightInfo& info : parameters.infos()) {
            if (info.size == 0) continue;
            tensors.push_back(f32_entry(
                part.prefix + info.name, info.shape,
                {(parameters.*part.buffer).data() + info.offset, static_cast<size_t>(info.size)}));
        }
    }
    tensors.push_back(f32_entry("loss", {state.steps_done}, state.losses));
    io::Metadata metadata{{"format", kFormat},
                          {"step", fmt::to_string(state.steps_done)},
                          {"text_sha256", text_sha256},
                          {"hash", parameters.hash()}};
    for (const auto& [name, value] : config.fields()) metadata["config." + name] = value;
    io::write_safetensors(path, tensors, metadata);
}

RunState read_checkpoint(const std::filesystem::path& path, const Config& config,
                         const std::string& text_sha256, Parameters& parameters) {
    const io::SafetensorsFile file(path);
    require_metadata(file, "format", kFormat);
    for (const auto& [name, value] : config.fields()) {
        require_metadata(file, "config." + name, value);
    }
    require_metadata(file, "text_sha256", text_sha256);
    RunState state;
    state.steps_done = read_step(file, config.steps);
    state.losses.resize(state.steps_done);
    read_tensor(file, "loss", {state.steps_done}, state.losses);
    for (const Part& part : kParts) {
        for (const WeightInfo& info : parameters.infos()) {
            if (info.size == 0) continue;
            read_tensor(
                file, part.prefix + info.name, info.shape,
                {(parameters.*part.buffer).data() + info.offset, static_cast<size_t>(info.size)});
        }
    }
    parameters.round(0, static_cast<int64_t>(parameters.values.size()));
    require_metadata(file, "hash", parameters.hash());
    return state;
}

}  // namespace mok::train

#include "cli/doctor_command.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <chrono>
#include <memory>
#include <stdexcept>
#include <vector>

#include "cli/backend.h"
#include "cli/common/random_case.h"
#include "cli/doctor/gpu.h"
#include "cli/doctor/machine.h"
#include "cli/doctor/rack.h"
#include "cli/version.h"

namespace mok::cli {
namespace {

using Json = nlohmann::ordered_json;

// Runs a small layer, forward and backward on two ranks, against the FP64 oracle. "works", or what
// is wrong.
std::string try_backend(const Device& device) {
    CaseOptions small;
    small.shape.hidden = 64;
    small.shape.intermediate = 32;
    small.shape.num_experts = 4;
    small.shape.top_k = 2;
    small.num_tokens = 50;
    GlobalOptions two_ranks;
    two_ranks.device = device;
    two_ranks.num_ranks = 2;
    two_ranks.group.timeout = std::chrono::seconds(20);
    try {
        const RandomCase batch = random_case(small);
        const GlobalResult found = run_global(batch.shape, batch.inputs(), two_ranks);
        const std::vector<Mismatch> mismatches = compare_with_oracle(batch, found);
        return mismatches.empty() ? "works" : mismatches.front().sentence();
    } catch (const std::exception& e) {
        return e.what();
    }
}

std::vector<std::string> what_will_not_work(const Json& facts) {
    std::vector<std::string> sentences;
    if (facts["cpu_backend"] != "works") {
        sentences.push_back(
            fmt::format("the CPU backend: {}", facts["cpu_backend"].get<std::string>()));
    }
    const size_t num_gpus = facts["gpu"]["devices"].size();
    const std::string why_not = why_no_cuda(0);
    if (!has_cuda_backend()) {
        sentences.push_back(fmt::format(
            "--backend cuda: this build has no CUDA backend{}",
            num_gpus > 0 ? fmt::format(", so the {} GPUs of this machine are not used", num_gpus)
                         : ", and no GPU was found"));
    } else if (!why_not.empty()) {
        sentences.push_back(fmt::format("--backend cuda: {}", why_not));
    } else if (facts["cuda_backend"] != "works") {
        sentences.push_back(
            fmt::format("--backend cuda: {}", facts["cuda_backend"].get<std::string>()));
    }
    sentences.push_back(
        "--backend cpu: ranks in several processes, for its ranks are threads of one process");
    return sentences;
}

// The CUDA backend on the first GPU: "works", what is wrong, or why it cannot be used.
std::string try_cuda_backend() {
    if (!has_cuda_backend()) return "not in this build";
    const std::string why_not = why_no_cuda(0);
    return why_not.empty() ? try_backend({Device::Kind::Cuda, 0}) : why_not;
}

Json find_facts() {
    const BackendChoice choice = choose_backend("auto");
    Json facts;
    facts["mok"] = {{"version", kVersion},
                    {"commit", kCommit},
                    {"compiler", kCompiler},
                    {"backends", built_backends()},
                    {"gpu_architectures", built_gpu_architectures()},
                    {"compiled_but_not_run_yet", unproven_gpu_architectures()}};
    facts["processor"] = processor_facts();
    facts["memory"] = memory_facts();
    facts["gpu"] = gpu_facts();
    facts["rack"] = rack_facts(fabric_handles());
    facts["cuda"] = cuda_facts();
    facts["nccl"] = nccl_facts();
    facts["backend"] = {{"chosen", backend_name(choice.backend)}, {"why", choice.reason}};
    facts["cpu_backend"] = try_backend({});
    facts["cuda_backend"] = try_cuda_backend();
    facts["will_not_work"] = what_will_not_work(facts);
    return facts;
}

std::string words(std::string name) {
    std::replace(name.begin(), name.end(), '_', ' ');
    return name;
}

// A value on one line: lists by commas, a GPU's facts too.
std::string value_text(const Json& value) {
    if (value.is_string()) return value.get<std::string>();
    if (!value.is_structured()) return value.dump();
    if (value.empty()) return "none";
    std::vector<std::string> parts;
    for (const auto& [name, part] : value.items()) {
        parts.push_back(value.is_array() ? value_text(part)
                                         : fmt::format("{} {}", words(name), value_text(part)));
    }
    return fmt::format("{}", fmt::join(parts, value.front().is_structured() ? "; " : ", "));
}

void print_facts(const Json& facts) {
    for (const auto& [name, section] : facts.items()) {
        if (section.is_string()) {
            fmt::print("{}: {}\n", words(name), section.get<std::string>());
            continue;
        }
        fmt::print("{}\n", words(name));
        for (const auto& [key, value] : section.items()) {
            if (section.is_array()) {
                fmt::print("  - {}\n", value_text(value));
            } else {
                fmt::print("  {}: {}\n", words(key), value_text(value));
            }
        }
    }
}

void doctor(bool as_json) {
    const Json facts = find_facts();
    if (as_json) {
        fmt::print("{}\n", facts.dump(2, ' ', false, Json::error_handler_t::replace));
    } else {
        print_facts(facts);
    }
    if (facts["cpu_backend"] != "works") {
        throw std::runtime_error(fmt::format("doctor: the CPU backend does not work: {}",
                                             facts["cpu_backend"].get<std::string>()));
    }
    if (has_cuda_backend() && why_no_cuda(0).empty() && facts["cuda_backend"] != "works") {
        throw std::runtime_error(fmt::format("doctor: the CUDA backend does not work: {}",
                                             facts["cuda_backend"].get<std::string>()));
    }
}

}  // namespace

void add_doctor_command(CLI::App& app) {
    const auto as_json = std::make_shared<bool>(false);
    CLI::App* command = app.add_subcommand(
        "doctor", "Say what this machine has, which backend a run takes and what will not work.");
    command->add_flag("--json", *as_json, "Print JSON");
    command->footer(
        "Exit status 0 where the CPU backend works, and the CUDA backend where there is a GPU for "
        "it: "
        "a small\nlayer is run on each.");
    command->callback([as_json] { doctor(*as_json); });
}

}  // namespace mok::cli

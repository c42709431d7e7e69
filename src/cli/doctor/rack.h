#pragma once

#include <nlohmann/json.hpp>
#include <vector>

// What a group of ranks on several hosts needs: GPUs that are registered with one NVLink fabric,
// and a driver that hands memory on to other hosts of it.
namespace mok::cli {

// {"fabric": for each GPU its state and clique, "imex_channels", "several_hosts": "possible among
// GPUs of clique ..." or what is missing}. fabric_handles: of each GPU, whether its driver hands
// memory on by fabric handles (CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED).
nlohmann::ordered_json rack_facts(const std::vector<bool>& fabric_handles);

}  // namespace mok::cli

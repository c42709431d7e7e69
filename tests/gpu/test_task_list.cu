// The list of tasks as the GPU decodes it against the host's, for 100 seeded problems and every
// kind of pass: the same functions, compiled for each GPU architecture. Prints the hash of the
// whole list, which is the same on every GPU. `host`: the host's hash alone, without a GPU.

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "cli/common/random.h"
#include "plan/program.h"
#include "table_case.h"

using namespace mok;
using namespace mok::table_test;

namespace {

void check(cudaError_t error, const char* what) {
    if (error == cudaSuccess) return;
    std::printf("%s: %s\n", what, cudaGetErrorString(error));
    std::exit(2);
}

// One thread a task.
__global__ void decode_all(const plan::Pass pass, plan::Role role, int64_t count,
                           plan::Task* tasks) {
    const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
    if (i == 0 && plan::count(pass, role) != count) tasks[0].tile = -2;
    if (i < count) tasks[i] = plan::decode(pass, role, i);
}

template <class T>
T* device_copy(const std::vector<T>& from) {
    T* data = nullptr;
    check(cudaMalloc(&data, from.size() * sizeof(T) + 1), "cudaMalloc");
    check(cudaMemcpy(data, from.data(), from.size() * sizeof(T), cudaMemcpyHostToDevice),
          "cudaMemcpy");
    return data;
}

bool equal(const plan::Task& a, const plan::Task& b) {
    return a.kind == b.kind && a.tile == b.tile && a.part == b.part && a.macro == b.macro &&
           a.piece == b.piece;
}

// FNV-1a of the fields.
uint64_t with(uint64_t hash, const plan::Task& t) {
    for (const int32_t value : {static_cast<int32_t>(t.kind), t.tile, t.part, t.macro, t.piece}) {
        for (int byte = 0; byte < 4; ++byte) {
            hash = (hash ^ (static_cast<uint32_t>(value) >> 8 * byte & 255)) * 1099511628211u;
        }
    }
    return hash;
}

}  // namespace

int main(int argc, char** argv) {
    const bool on_gpu = argc < 2 || std::strcmp(argv[1], "host") != 0;
    Random random(8);
    uint64_t hash = 14695981039346656037u;
    int64_t num_tasks = 0;
    for (int i = 0; i < 100; ++i) {
        Case c = random_case(random);
        std::vector<int32_t> memory(plan::route_table_ints(c.problem));
        plan::RouteTable table = plan::route_table_at(c.problem, memory.data());
        std::vector<const int32_t*> ids;
        for (const auto& home : c.ids) ids.push_back(home.data());
        plan::build_route_table(c.problem, ids.data(), c.num_tokens.data(), table);
        int32_t* device_memory = on_gpu ? device_copy(memory) : nullptr;
        for (const plan::PassKind kind :
             {plan::PassKind::Forward, plan::PassKind::Recompute, plan::PassKind::Backward,
              plan::PassKind::BackwardInput, plan::PassKind::Wgrad}) {
            const plan::Pass pass{kind, c.problem, table};
            for (const plan::Role role : {plan::Role::Compute, plan::Role::Comm}) {
                std::vector<plan::Task> tasks(plan::count(pass, role));
                for (size_t t = 0; t < tasks.size(); ++t) {
                    tasks[t] = plan::decode(pass, role, static_cast<int64_t>(t));
                    hash = with(hash, tasks[t]);
                }
                num_tasks += static_cast<int64_t>(tasks.size());
                if (!on_gpu || tasks.empty()) continue;
                std::vector<plan::Task> found(tasks.size());
                plan::Task* device_tasks = device_copy(found);
                const plan::Pass there{kind, c.problem,
                                       plan::route_table_at(c.problem, device_memory)};
                decode_all<<<static_cast<unsigned>((tasks.size() + 127) / 128), 128>>>(
                    there, role, static_cast<int64_t>(tasks.size()), device_tasks);
                check(cudaGetLastError(), "decode_all");
                check(cudaMemcpy(found.data(), device_tasks, found.size() * sizeof(plan::Task),
                                 cudaMemcpyDeviceToHost),
                      "decode_all");
                check(cudaFree(device_tasks), "cudaFree");
                for (size_t t = 0; t < tasks.size(); ++t) {
                    if (equal(tasks[t], found[t])) continue;
                    std::printf(
                        "case %d%s: pass %d role %d task %zu: expected kind %d tile %d "
                        "part %d, found kind %d tile %d part %d\n",
                        i, c.name.c_str(), static_cast<int>(kind), static_cast<int>(role), t,
                        static_cast<int>(tasks[t].kind), tasks[t].tile, tasks[t].part,
                        static_cast<int>(found[t].kind), found[t].tile, found[t].part);
                    return 1;
                }
            }
        }
        if (on_gpu) check(cudaFree(device_memory), "cudaFree");
    }
    std::printf("%lld tasks of 100 problems, hash %016llx%s\n", static_cast<long long>(num_tasks),
                static_cast<unsigned long long>(hash), on_gpu ? ", the GPU's are the host's" : "");
    return 0;
}

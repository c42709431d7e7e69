// kernels/table_builder against plan::build_route_table: every byte of the table, over random
// problems, thread-block limits, graph replays and faults. Then its time.

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "cli/common/random.h"
#include "kernels/table_builder.h"
#include "plan/rows.h"
#include "table_case.h"

using namespace mok;
using namespace mok::table_test;
using plan::RouteTable;

namespace {

void check(cudaError_t error, const char* what) {
    if (error == cudaSuccess) return;
    std::printf("%s: %s\n", what, cudaGetErrorString(error));
    std::exit(2);
}
#define CHECK(call) check((call), #call)

constexpr int32_t kPoison = 0x5a5a5a5a;
constexpr int64_t kGuard = 64;  // ints before and behind the table

template <class T>
class DeviceArray {
  public:
    explicit DeviceArray(int64_t count) : count_(count) {
        CHECK(cudaMalloc(&data_, std::max<int64_t>(1, count) * sizeof(T)));
    }
    ~DeviceArray() { cudaFree(data_); }
    DeviceArray(const DeviceArray&) = delete;
    DeviceArray& operator=(const DeviceArray&) = delete;

    T* data() const { return data_; }
    void write(const std::vector<T>& from) {
        CHECK(cudaMemcpy(data_, from.data(), from.size() * sizeof(T), cudaMemcpyHostToDevice));
    }
    std::vector<T> read() const {
        std::vector<T> to(count_);
        CHECK(cudaMemcpy(to.data(), data_, count_ * sizeof(T), cudaMemcpyDeviceToHost));
        return to;
    }

  private:
    T* data_ = nullptr;
    int64_t count_;
};

// ---- The device's side of a case --------------------------------------------------------------
class DeviceCase {
  public:
    explicit DeviceCase(const Case& c)
        : ids_(num_ids(c)),
          num_tokens_(c.problem.num_ranks),
          id_pointers_(c.problem.num_ranks),
          count_pointers_(c.problem.num_ranks),
          table_(route_table_ints(c.problem) + 2 * kGuard),
          expert_rows_(plan::num_local_experts(c.problem)),
          report_(1) {
        std::vector<int32_t> all;
        std::vector<const int32_t*> ids, counts;
        for (int32_t h = 0; h < c.problem.num_ranks; ++h) {
            ids.push_back(ids_.data() + all.size());
            counts.push_back(num_tokens_.data() + h);
            all.insert(all.end(), c.ids[h].begin(), c.ids[h].end());
        }
        ids_.write(all);
        num_tokens_.write(c.num_tokens);
        id_pointers_.write(ids);
        count_pointers_.write(counts);
    }

    kernels::TableInputs inputs() const { return {id_pointers_.data(), count_pointers_.data()}; }
    RouteTable table(const Problem& p) const { return route_table_at(p, table_.data() + kGuard); }
    void poison() {
        table_.write(std::vector<int32_t>(table_.read().size(), kPoison));
        expert_rows_.write(std::vector<int32_t>(expert_rows_.read().size(), kPoison));
        report_.write({{kernels::TableFault::None, {false, -7, -7, -7, -7}}});
    }
    void write_num_tokens(const std::vector<int32_t>& counts) { num_tokens_.write(counts); }
    cudaError_t launch(const Problem& p, void* scratch, int max_blocks, cudaStream_t stream) const {
        return kernels::launch_build_table(p, inputs(),
                                           {table(p), expert_rows_.data(), report_.data()}, scratch,
                                           max_blocks, stream);
    }
    std::vector<int32_t> block() const { return table_.read(); }
    std::vector<int32_t> expert_rows() const { return expert_rows_.read(); }
    kernels::TableReport report() const { return report_.read()[0]; }

  private:
    static int64_t num_ids(const Case& c) {
        int64_t count = 0;
        for (const auto& ids : c.ids) count += static_cast<int64_t>(ids.size());
        return count;
    }
    DeviceArray<int32_t> ids_, num_tokens_;
    DeviceArray<const int32_t*> id_pointers_, count_pointers_;
    DeviceArray<int32_t> table_, expert_rows_;
    DeviceArray<kernels::TableReport> report_;
};

// ---- Comparison -------------------------------------------------------------------------------
struct Expected {
    std::vector<int32_t> block, expert_rows;
    plan::BadId bad;
};

Expected expected_of(const Case& c) {
    Expected e;
    e.block.assign(route_table_ints(c.problem) + 2 * kGuard, kPoison);
    RouteTable t = route_table_at(c.problem, e.block.data() + kGuard);
    std::vector<const int32_t*> ids;
    for (const auto& of_home : c.ids) ids.push_back(of_home.data());
    e.bad = build_route_table(c.problem, ids.data(), c.num_tokens.data(), t);
    for (int32_t i = 0; i < plan::num_local_experts(c.problem); ++i) {
        e.expert_rows.push_back(e.bad.found ? 0 : plan::segment_rows(c.problem, t, i));
    }
    return e;
}

// The array of a table that an int of its block belongs to, and the index there.
std::string place_of(const Problem& p, int64_t at) {
    const RouteTable t = route_table_at(p, nullptr);
    const auto offset = [](const int32_t* array) {
        return static_cast<int64_t>(reinterpret_cast<intptr_t>(array) / sizeof(int32_t));
    };
    const std::pair<const char*, int64_t> arrays[] = {
        {"num_tokens", offset(t.num_tokens)},
        {"segment_begin", offset(t.segment_begin)},
        {"home_begin", offset(t.home_begin)},
        {"segment_cursor", offset(t.segment_cursor)},
        {"tile_expert", offset(t.tile_expert)},
        {"slot_home", offset(t.slot_home)},
        {"slot_route", offset(t.slot_route)},
        {"slot_lead", offset(t.slot_lead)},
        {"slot_next", offset(t.slot_next)},
        {"macro_first_expert", offset(t.macro_first_expert)},
        {"macro_piece_begin", offset(t.macro_piece_begin)},
        {"behind the table", route_table_ints(p)}};
    std::pair<const char*, int64_t> place{"before the table", -kGuard};
    for (const auto& array : arrays) {
        if (array.second <= at) place = array;
    }
    return std::string(place.first) + "[" + std::to_string(at - place.second) + "]";
}

bool same_table(const Case& c, const Expected& expected, const DeviceCase& device,
                const char* when) {
    const std::vector<int32_t> got = device.block();
    const kernels::TableReport report = device.report();
    if (report.fault != kernels::TableFault::None || report.bad.found) {
        std::printf("FAIL %s,%s: fault %d, bad id %d\n", when, c.name.c_str(),
                    static_cast<int>(report.fault), report.bad.found);
        return false;
    }
    if (device.expert_rows() != expected.expert_rows) {
        std::printf("FAIL %s,%s: the rows of the experts differ\n", when, c.name.c_str());
        return false;
    }
    int64_t wrong = 0;
    for (size_t i = 0; i < got.size(); ++i) {
        if (got[i] == expected.block[i]) continue;
        if (wrong == 0) std::printf("FAIL %s,%s\n", when, c.name.c_str());
        if (wrong < 5) {
            std::printf("    %s: expected %d, found %d\n",
                        place_of(c.problem, static_cast<int64_t>(i) - kGuard).c_str(),
                        expected.block[i], got[i]);
        }
        ++wrong;
    }
    if (wrong > 0) std::printf("    %lld ints differ\n", static_cast<long long>(wrong));
    return wrong == 0;
}

bool guards_hold(const Case& c, const DeviceCase& device, const char* when) {
    const std::vector<int32_t> got = device.block();
    for (int64_t i = 0; i < kGuard; ++i) {
        if (got[i] != kPoison || got[got.size() - 1 - i] != kPoison) {
            std::printf("FAIL %s,%s: written outside the table\n", when, c.name.c_str());
            return false;
        }
    }
    return true;
}

// One scratch for all cases, zeroed once, as a caller keeps it.
class Scratch {
  public:
    void* at_least(int64_t bytes) {
        if (bytes > bytes_) {
            cudaFree(data_);
            CHECK(cudaMalloc(&data_, bytes));
            CHECK(cudaMemset(data_, 0, bytes));
            bytes_ = bytes;
        }
        return data_;
    }
    ~Scratch() { cudaFree(data_); }

  private:
    void* data_ = nullptr;
    int64_t bytes_ = 0;
};

// ---- Tests ------------------------------------------------------------------------------------
int test_case(const Case& c, Scratch& scratch, Random& random) {
    constexpr int kBlocks[] = {1, 2, 7, 50, 1000};
    const Expected expected = expected_of(c);
    DeviceCase device(c);
    void* const memory = scratch.at_least(kernels::table_scratch_bytes(c.problem));
    int failures = 0;
    for (const int max_blocks : {kBlocks[random.below(4)], kBlocks[4]}) {
        device.poison();
        CHECK(device.launch(c.problem, memory, max_blocks, nullptr));
        CHECK(cudaDeviceSynchronize());
        const std::string when = "max_blocks " + std::to_string(max_blocks);
        failures += !same_table(c, expected, device, when.c_str());
    }
    return failures;
}

int test_graph(const Case& c, Scratch& scratch) {
    const Expected expected = expected_of(c);
    DeviceCase device(c);
    void* const memory = scratch.at_least(kernels::table_scratch_bytes(c.problem));
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    CHECK(cudaStreamCreate(&stream));
    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    CHECK(device.launch(c.problem, memory, 1000, stream));
    CHECK(cudaStreamEndCapture(stream, &graph));
    CHECK(cudaGraphInstantiate(&exec, graph, 0));
    int failures = 0;
    for (int replay = 0; replay < 3; ++replay) {
        device.poison();
        CHECK(cudaGraphLaunch(exec, stream));
        CHECK(cudaStreamSynchronize(stream));
        failures += !same_table(c, expected, device, "graph replay");
    }
    CHECK(cudaGraphExecDestroy(exec));
    CHECK(cudaGraphDestroy(graph));
    CHECK(cudaStreamDestroy(stream));
    return failures;
}

int test_bad_ids(Case c, Scratch& scratch, Random& random) {
    const Problem& p = c.problem;
    std::vector<int32_t> homes;
    for (int32_t h = 0; h < p.num_ranks; ++h) {
        if (!c.ids[h].empty()) homes.push_back(h);
    }
    if (homes.empty()) return 0;
    const int32_t values[] = {-2, INT32_MIN, INT32_MAX, p.num_experts};
    for (int64_t n = 1 + random.below(5); n > 0; --n) {
        std::vector<int32_t>& ids = c.ids[homes[random.below(std::ssize(homes))]];
        ids[random.below(std::ssize(ids))] = values[random.below(4)];
    }
    const Expected expected = expected_of(c);
    const plan::BadId want = expected.bad;
    DeviceCase device(c);
    void* const memory = scratch.at_least(kernels::table_scratch_bytes(p));
    device.poison();
    CHECK(device.launch(p, memory, 1000, nullptr));
    CHECK(cudaDeviceSynchronize());
    const kernels::TableReport got = device.report();
    const bool same = got.fault == kernels::TableFault::None && got.bad.found == want.found &&
                      got.bad.home == want.home && got.bad.token == want.token &&
                      got.bad.choice == want.choice && got.bad.id == want.id &&
                      device.expert_rows() == expected.expert_rows;
    if (!same) {
        std::printf(
            "FAIL bad id,%s: expected home %d token %d choice %d id %d, found %d %d %d %d\n",
            c.name.c_str(), want.home, want.token, want.choice, want.id, got.bad.home,
            got.bad.token, got.bad.choice, got.bad.id);
    }
    return !same + !guards_hold(c, device, "bad id");
}

// A count out of range, a scratch whose barrier is broken, and the same scratch zeroed again.
int test_faults(const Case& c, Scratch& scratch) {
    const Problem& p = c.problem;
    DeviceCase device(c);
    const int64_t bytes = kernels::table_scratch_bytes(p);
    void* const memory = scratch.at_least(bytes);
    const auto fault_of_launch = [&] {
        device.poison();
        CHECK(device.launch(p, memory, 1000, nullptr));
        CHECK(cudaDeviceSynchronize());
        return device.report().fault;
    };
    int failures = 0;
    const auto expect = [&](kernels::TableFault want, const char* when) {
        const kernels::TableFault got = fault_of_launch();
        if (got == want) return;
        std::printf("FAIL %s: expected fault %d, found %d\n", when, static_cast<int>(want),
                    static_cast<int>(got));
        ++failures;
    };
    for (const int32_t wrong : {p.max_tokens + 1, -1}) {
        std::vector<int32_t> counts = c.num_tokens;
        counts.back() = wrong;
        device.write_num_tokens(counts);
        expect(kernels::TableFault::NumTokens, "count of tokens out of range");
        failures += !guards_hold(c, device, "count of tokens out of range");
    }
    device.write_num_tokens(c.num_tokens);
    const uint64_t broken = uint64_t{1} << 63;
    CHECK(cudaMemcpy(memory, &broken, sizeof(broken), cudaMemcpyHostToDevice));
    expect(kernels::TableFault::Barrier, "broken barrier");
    CHECK(cudaMemset(memory, 0, bytes));
    expect(kernels::TableFault::None, "zeroed scratch");
    failures += !same_table(c, expected_of(c), device, "zeroed scratch");
    return failures;
}

// ---- Times ------------------------------------------------------------------------------------
float median(std::vector<float> times) {
    std::sort(times.begin(), times.end());
    return times[times.size() / 2];
}

template <class Work>
float median_us(cudaStream_t stream, Work&& work) {
    cudaEvent_t begin, end;
    CHECK(cudaEventCreate(&begin));
    CHECK(cudaEventCreate(&end));
    std::vector<float> times;
    for (int i = 0; i < 55; ++i) {
        CHECK(cudaEventRecord(begin, stream));
        work();
        CHECK(cudaEventRecord(end, stream));
        CHECK(cudaEventSynchronize(end));
        float ms = 0;
        CHECK(cudaEventElapsedTime(&ms, begin, end));
        if (i >= 5) times.push_back(1000 * ms);
    }
    CHECK(cudaEventDestroy(begin));
    CHECK(cudaEventDestroy(end));
    return median(times);
}

int time_shape(const TimedShape& shape, std::vector<std::string>& lines) {
    constexpr int kInGraph = 20;
    const Case c = timed_case(shape);
    DeviceCase device(c);
    Scratch scratch;
    void* const memory = scratch.at_least(kernels::table_scratch_bytes(c.problem));
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    CHECK(cudaStreamCreate(&stream));
    const auto launch = [&] { CHECK(device.launch(c.problem, memory, 1000, stream)); };
    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    for (int i = 0; i < kInGraph; ++i) launch();
    CHECK(cudaStreamEndCapture(stream, &graph));
    CHECK(cudaGraphInstantiate(&exec, graph, 0));
    const float single = median_us(stream, launch);
    const float chained = median_us(stream, [&] { CHECK(cudaGraphLaunch(exec, stream)); });
    device.poison();
    launch();
    CHECK(cudaStreamSynchronize(stream));
    const int failures = !same_table(c, expected_of(c), device, "timed");
    char line[160];
    std::snprintf(line, sizeof(line), "%-28s %10.2f %10.2f", shape.name, single,
                  chained / kInGraph);
    lines.push_back(line);
    CHECK(cudaGraphExecDestroy(exec));
    CHECK(cudaGraphDestroy(graph));
    CHECK(cudaStreamDestroy(stream));
    return failures;
}

}  // namespace

int main(int argc, char** argv) {
    const int cases = argc > 1 ? std::atoi(argv[1]) : 300;
    const bool times = argc <= 2 || std::strcmp(argv[2], "untimed") != 0;
    Random random(20240607);
    Scratch scratch;
    int failures = 0;
    for (int i = 0; i < cases && failures < 10; ++i) {
        const Case c = random_case(random);
        failures += test_case(c, scratch, random);
        failures += test_bad_ids(c, scratch, random);
        if (i % 10 == 0) failures += test_graph(c, scratch) + test_faults(c, scratch);
    }
    std::vector<std::string> lines;
    if (times) {
        constexpr TimedShape kShapes[] = {{"R=1 T=2048 K=8 E_l=12", 1, 2048, 8, 12},
                                          {"R=1 T=8192 K=10 E_l=16", 1, 8192, 10, 16},
                                          {"R=1 T=2048 K=8 E_l=384", 1, 2048, 8, 384},
                                          {"R=8 T=8192 K=8 E_l=48", 8, 8192, 8, 384},
                                          {"R=64 T=2048 K=8 E_l=6", 64, 2048, 8, 384}};
        for (const TimedShape& shape : kShapes) failures += time_shape(shape, lines);
        std::printf("%-28s %10s %10s\n", "median us of 50", "launch", "in graph");
        for (const std::string& line : lines) std::printf("%s\n", line.c_str());
    }
    std::printf("%d cases, %d failures\n", cases, failures);
    return failures == 0 ? 0 : 1;
}

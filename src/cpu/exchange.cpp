#include <cstring>

#include "cpu/tasks.h"

// Dispatch and combine: rows between home ranks and this expert rank, in the ring.
namespace mok::cpu {
namespace {

// Pulls each lead's token row once and writes it to every slot of its pull group. Padding is not
// written: no CPU task reads past a tile's real rows.
template <class Deliver>
void pull_leads(const RankPass& d, const plan::Task& task, Rows rows, Bf16* Window::*source,
                Deliver&& deliver) {
    const plan::Problem& p = d.problem();
    const plan::RouteTable& t = d.table();
    const int64_t row_bytes = int64_t{p.hidden} * sizeof(Bf16);
    const int32_t begin = task.tile * plan::kTileRows + task.part * plan::kCommRows;
    for (int32_t lead = begin; lead < begin + plan::kCommRows; ++lead) {
        const int32_t home = t.slot_home[lead];
        if (home < 0 || t.slot_lead[lead] != lead) continue;
        const int64_t token = t.slot_route[lead] / p.top_k;
        const Bf16* row = d.windows[home].*source + token * p.hidden;
        for (int32_t slot = lead; slot >= 0; slot = t.slot_next[slot]) {
            std::memcpy(slot_row(d, rows, slot), row, row_bytes);
            deliver(home, slot);
        }
        d.counters->pulled[home].fetch_add(row_bytes, std::memory_order_relaxed);
    }
}

// Pushes the real rows of a task's group to [token * K + choice] at home.
template <class Deliver>
void push_rows(const RankPass& d, const plan::Task& task, Deliver&& deliver) {
    const plan::Problem& p = d.problem();
    const plan::RouteTable& t = d.table();
    const TileRows out = tile_rows(d, Rows::Out, task.tile);
    const int64_t row_bytes = int64_t{p.hidden} * sizeof(Bf16);
    const int32_t begin = task.part * plan::kCommRows;
    for (int32_t r = begin; r < begin + plan::kCommRows && r < out.num; ++r) {
        const int32_t slot = task.tile * plan::kTileRows + r;
        const int32_t home = t.slot_home[slot];
        const int64_t route = t.slot_route[slot];
        std::memcpy(d.windows[home].combine + route * p.hidden, out.at + r * out.cols, row_bytes);
        deliver(home, route, r);
        d.counters->pushed[home].fetch_add(row_bytes, std::memory_order_relaxed);
    }
}

}  // namespace

// x of the slots of a tile's leads, home -> ring.
void dispatch_x(const RankPass& d, const plan::Task& task) {
    pull_leads(d, task, Rows::X, &Window::x, [](int32_t, int32_t) {});
}

// d_y of the same slots, and each slot's own router weight.
void dispatch_d_y(const RankPass& d, const plan::Task& task) {
    pull_leads(d, task, Rows::DY, &Window::d_y, [&d](int32_t home, int32_t slot) {
        *slot_weight(d, slot) = d.windows[home].topk_weights[d.table().slot_route[slot]];
    });
}

// y rows, ring -> home.
void combine_y(const RankPass& d, const plan::Task& task) {
    push_rows(d, task, [](int32_t, int64_t, int32_t) {});
}

// d_x rows, and d_w = sum over parts of <d_hidden', hidden> + <d_y, bd>, in the order of the parts.
void combine_d_x(const RankPass& d, const plan::Task& task) {
    const int64_t parts = plan::gate_up_parts(d.problem(), false) + 1;
    const float* partials = tile_router_partials(d, task.tile);
    push_rows(d, task, [&](int32_t home, int64_t route, int32_t r) {
        float sum = 0.0f;
        for (int64_t i = 0; i < parts; ++i) sum += partials[r * parts + i];
        d.windows[home].d_topk_weights[route] = sum;
    });
}

}  // namespace mok::cpu

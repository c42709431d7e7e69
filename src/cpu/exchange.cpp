#include <cstring>
#include <vector>

#include "cpu/tasks.h"
#include "plan/traffic.h"

// Dispatch and combine: rows between home ranks and this expert rank, in the ring.
namespace mok::cpu {
namespace {

// Each lead's token row is pulled once and written to every slot of its pull group: pull(home,
// token) makes it ready, deliver(home, slot) writes it. Padding is not written: no CPU task reads
// past a tile's real rows.
template <class Pull, class Deliver>
void pull_leads(const RankPass& d, const plan::Task& task, Pull&& pull, Deliver&& deliver) {
    const plan::Problem& p = d.problem();
    const plan::RouteTable& t = d.table();
    const int64_t row_bytes = plan::pulled_row_bytes(p, d.pass.kind);
    const int32_t begin = plan::first_comm_slot(task);
    for (int32_t lead = begin; lead < begin + plan::kCommRows; ++lead) {
        const int32_t home = t.slot_home[lead];
        if (home < 0 || t.slot_lead[lead] != lead) continue;
        pull(home, t.slot_route[lead] / p.top_k);
        for (int32_t slot = lead; slot >= 0; slot = t.slot_next[slot]) deliver(home, slot);
        d.counters->pulled[home].fetch_add(row_bytes, std::memory_order_relaxed);
    }
}

// A row in FP8: of its home, or quantised on arrival, which gives the same bytes.
struct QuantisedRow {
    std::vector<E4m3> elements;
    std::vector<std::byte> scales;

    explicit QuantisedRow(const plan::Problem& p) {
        if (!plan::is_fp8(p)) return;
        elements.resize(plan::fp8_padded(p.hidden));
        scales.resize(plan::fp8_scale_bytes(p.hidden));
    }
    Fp8Row row() { return {elements.data(), scales.data()}; }
};

void write_fp8(const RankPass& d, Rows8 rows, int32_t slot, const Fp8Row& from) {
    place_row(d.problem().precision, from, fp8_tile(d, rows, slot / plan::kTileRows),
              slot % plan::kTileRows);
}

// The tiles whose rows some task of the pass reads in FP8.
bool reads_fp8(const RankPass& d, plan::TaskKind reader, int32_t tile) {
    return plan::is_fp8(d.problem()) && plan::routed_range(d.pass, reader).has(tile);
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

// x of the slots of a tile's leads, home -> ring or context; in FP8 x8 too where products read it.
// (Tiles and visits of a range are the same set, plan/pass.h.) A forward in FP8 needs no x in BF16
// but what the context keeps.
void dispatch_x(const RankPass& d, const plan::Task& task) {
    const plan::Problem& p = d.problem();
    const bool backward = plan::is_backward(d.pass.kind), fp8 = plan::is_fp8(p);
    const auto reader = backward ? plan::TaskKind::Replay : plan::TaskKind::GateUp;
    QuantisedRow quantised(p);
    const Bf16* x = nullptr;
    Fp8Row x8{};
    pull_leads(
        d, task,
        [&](int32_t home, int64_t token) {
            const Window& window = d.windows[home];
            x = window.x + token * p.hidden;
            if (plan::pulls_fp8(p, d.pass.kind)) {
                x8 = {window.x8.elements + token * plan::fp8_padded(p.hidden),
                      window.x8.scales + token * plan::fp8_scale_bytes(p.hidden)};
            } else if (fp8) {
                x8 = quantised.row();
                quantise_row(p.precision, x, p.hidden, x8);
            }
        },
        [&](int32_t, int32_t slot) {
            const bool keeps = plan::row_is_kept(d.pass, plan::RowBuffer::X, slot);
            if (!fp8 || backward || keeps) {
                std::memcpy(slot_row(d, Rows::X, slot), x, p.hidden * sizeof(Bf16));
            }
            if (reads_fp8(d, reader, slot / plan::kTileRows)) write_fp8(d, Rows8::X, slot, x8);
        });
}

// d_y of the same slots, and each slot's own router weight; in FP8 d_y8 too.
void dispatch_d_y(const RankPass& d, const plan::Task& task) {
    const plan::Problem& p = d.problem();
    QuantisedRow quantised(p);
    const Bf16* d_y = nullptr;
    pull_leads(
        d, task,
        [&](int32_t home, int64_t token) {
            d_y = d.windows[home].d_y + token * p.hidden;
            if (plan::is_fp8(p)) quantise_row(p.precision, d_y, p.hidden, quantised.row());
        },
        [&](int32_t home, int32_t slot) {
            std::memcpy(slot_row(d, Rows::DY, slot), d_y, p.hidden * sizeof(Bf16));
            if (reads_fp8(d, plan::TaskKind::DownDgrad, slot / plan::kTileRows)) {
                write_fp8(d, Rows8::DY, slot, quantised.row());
            }
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

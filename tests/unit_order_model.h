#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/fp8_unit_order.h"
#include "pipeline_model.h"
#include "plan/program.h"
#include "plan/signals.h"

// A backward in Fp8Block on CTAs whose roles run in any order: schedulers that claim tasks and
// units (fp8_backward_scheduler.cuh), consumers that work on a queue of kEntries and tell a task in
// the middle of the next one (backward_consumer.cuh), exchanges that claim one ahead and tell one
// behind (exchange.cuh). Nobody computes.
namespace mok_test {

namespace plan = mok::plan;
namespace kernels = mok::kernels;

class UnitOrderModel {
  public:
    UnitOrderModel(const plan::Pass& pass, int num_ctas, int comm_at_once, uint64_t seed)
        : pass_(pass), ahead_(pass), model_(seed), comm_at_once_(comm_at_once) {
        signals_.resize(plan::num_signals(pass.problem));
        for (auto& of_kind : done_) of_kind.resize(plan::num_tiles(pass.table));
        for (int64_t i = 0; i < plan::count(pass, plan::Role::Compute); ++i) {
            compute_.push_back(plan::decode(pass, plan::Role::Compute, i));
        }
        // What moves nothing is claimed only where rows of the ring are used again.
        const bool combines = plan::num_macrobatches(pass.problem, pass.table) > 1;
        for (int64_t i = 0; i < plan::count(pass, plan::Role::Comm); ++i) {
            const plan::Task task = plan::decode(pass, plan::Role::Comm, i);
            if (combines || task.kind != plan::TaskKind::CombineDX) comm_.push_back(task);
        }
        comm_singles_ = static_cast<size_t>(plan::round_up(2 * num_ctas, 4));
        for (int c = 0; c < num_ctas; ++c) {
            ctas_.push_back(std::make_unique<Cta>());
            const std::string name = "CTA " + std::to_string(c) + "'s ";
            model_.add(name + "scheduler", schedule(*ctas_[c]));
            model_.add(name + "consumers", consume(*ctas_[c]));
            model_.add(name + "exchange", exchange(*ctas_[c]));
        }
    }

    // Empty where all went well: the pass has ended, and every unit was made once.
    std::string run() {
        const std::string failure = model_.run();
        if (!failure.empty()) return failure;
        for (int k = 0; k < plan::kQuantisedKinds; ++k) {
            const int32_t each = ahead_.of_tile(static_cast<kernels::UnitKind>(k));
            for (const int32_t made : done_[k]) {
                if (made != each) return "a tile without all of its units, or with too many";
            }
        }
        return "";
    }
    int64_t units_made() const { return units_made_; }

  private:
    static constexpr int kEntries = 4;  // backward_layout.cuh

    struct Entry {
        bool is_unit;
        kernels::UnitKind kind;
        int32_t tile;
        plan::Task task;
    };
    struct Cta {
        std::deque<Entry> queue;
        int held = 0;  // entries that are not told
        bool ended = false, stages_given = false;
    };
    using Waits = std::vector<plan::Wait>;

    static ModelThread::Until until(std::function<bool()> ready) { return {std::move(ready)}; }
    static ModelThread::Until yield() {
        return until([] { return true; });
    }
    uint32_t& signal(plan::SignalKind kind, int32_t index) {
        return signals_[plan::signal_index(pass_.problem, kind, index)];
    }
    bool are_met(const Waits& waits) {
        for (const plan::Wait& w : waits) {
            if (signal(w.kind, w.index) < w.want) return false;
        }
        return true;
    }
    bool units_are_done(const plan::Task& task) const {
        bool done = true;
        kernels::for_each_units_read(
            pass_, task, [&](kernels::UnitKind kind, int32_t begin, int32_t end) {
                for (int32_t tile = begin; tile < end; ++tile) {
                    done = done && done_[static_cast<int>(kind)][tile] == ahead_.of_tile(kind);
                }
            });
        return done;
    }

    ModelThread schedule(Cta& cta) {
        const auto has_room = [&cta] { return cta.held < kEntries; };
        int32_t known[plan::kQuantisedKinds] = {};
        while (true) {
            const size_t i = next_compute_++;
            co_await yield();
            if (i >= compute_.size()) break;
            const plan::Task& task = compute_[i];
            const kernels::UnitsWanted want = ahead_.before(task);
            for (int k = 0; k < plan::kQuantisedKinds; ++k) {
                const auto kind = static_cast<kernels::UnitKind>(k);
                while (known[k] < want.at[k]) {
                    if (next_unit_[k] >= want.at[k]) break;
                    const int32_t unit = next_unit_[k]++;
                    known[k] = unit + 1;
                    const int32_t tile = plan::tile_at_visit(pass_.problem, pass_.table,
                                                             unit / ahead_.of_tile(kind));
                    Waits waits;
                    kernels::for_each_unit_wait(pass_, kind, tile,
                                                [&](const plan::Wait& w) { waits.push_back(w); });
                    co_await until([this, &waits] { return are_met(waits); });
                    co_await until(has_room);
                    ++cta.held;
                    cta.queue.push_back({true, kind, tile, {}});
                }
            }
            Waits waits;
            plan::for_each_wait(pass_, task, [&](const plan::Wait& w) { waits.push_back(w); });
            co_await until(
                [this, &waits, &task] { return are_met(waits) && units_are_done(task); });
            co_await until(has_room);
            ++cta.held;
            cta.queue.push_back({false, {}, task.tile, task});
        }
        cta.ended = true;
    }

    void tell(Cta& cta, std::vector<Entry>& last) {
        for (const Entry& e : last) {
            --cta.held;
            if (e.is_unit) {
                ++done_[static_cast<int>(e.kind)][e.tile];
                ++units_made_;
                continue;
            }
            plan::for_each_compute_arrival(
                e.task, [&](const plan::Arrival& a) { signal(a.kind, a.index) += a.count; });
        }
        last.clear();
    }
    ModelThread consume(Cta& cta) {
        std::vector<Entry> last;
        co_await until([&cta] { return cta.stages_given; });
        while (true) {
            if (cta.queue.empty()) {
                tell(cta, last);
                co_await until([&cta] { return cta.ended || !cta.queue.empty(); });
                if (cta.queue.empty()) co_return;
            }
            const Entry e = cta.queue.front();
            cta.queue.pop_front();
            co_await yield();
            tell(cta, last);
            co_await yield();
            last.push_back(e);
        }
    }

    // Neighbouring tasks of a tile.
    struct Claim {
        size_t first, count;  // 0: no more
    };
    Claim comm_claim(size_t ticket) const {
        const bool alone = ticket < comm_singles_;
        const size_t first =
            alone ? ticket : comm_singles_ + (ticket - comm_singles_) * comm_at_once_;
        return {first, first >= comm_.size() ? 0 : alone ? 1 : comm_at_once_};
    }
    Waits comm_waits(const Claim& claim) const {
        Waits waits;
        for (size_t i = claim.first; i < claim.first + claim.count; ++i) {
            plan::for_each_wait(pass_, comm_[i], [&](const plan::Wait& w) { waits.push_back(w); });
        }
        return waits;
    }
    void tell(std::vector<Claim>& pulled) {
        for (const Claim& claim : pulled) {
            for (size_t i = claim.first; i < claim.first + claim.count; ++i) {
                plan::for_each_arrival(pass_, comm_[i], [&](const plan::Arrival& a) {
                    signal(a.kind, a.index) += a.count;
                });
            }
        }
        pulled.clear();
    }
    ModelThread exchange(Cta& cta) {
        constexpr int kClaimsOfOne = 2;
        std::vector<Claim> pulled;  // not told yet
        size_t claimed = next_comm_++;
        for (int n = 0;; ++n) {
            const Claim at = comm_claim(claimed);
            if (at.count > 0) claimed = next_comm_++;
            co_await yield();
            const bool dispatch =
                at.count > 0 && (comm_[at.first].kind == plan::TaskKind::DispatchX ||
                                 comm_[at.first].kind == plan::TaskKind::DispatchDY);
            const Waits waits = dispatch ? comm_waits(at) : Waits{};
            const bool leaves = !cta.stages_given &&
                                (n == kClaimsOfOne || at.count == 0 || !dispatch || !waits.empty());
            if (leaves || at.count == 0 || !dispatch) tell(pulled);
            if (leaves) cta.stages_given = true;
            if (at.count == 0) co_return;
            if (!are_met(waits)) {
                tell(pulled);
                co_await until([this, &waits] { return are_met(waits); });
            }
            tell(pulled);  // at the latest when the rows behind them have come
            pulled.push_back(at);
            if (!dispatch) tell(pulled);
            co_await yield();
        }
    }

    const plan::Pass& pass_;
    kernels::UnitsAhead ahead_;
    Model model_;
    std::vector<plan::Task> compute_, comm_;
    std::vector<uint32_t> signals_;
    std::array<std::vector<int32_t>, plan::kQuantisedKinds> done_;
    std::array<int32_t, plan::kQuantisedKinds> next_unit_{};
    size_t next_compute_ = 0, next_comm_ = 0, comm_at_once_, comm_singles_ = 0;
    int64_t units_made_ = 0;
    std::vector<std::unique_ptr<Cta>> ctas_;
};

}  // namespace mok_test

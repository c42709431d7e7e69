#pragma once

#include <array>
#include <deque>
#include <random>
#include <string>
#include <vector>

#include "backward_cta_model.h"

namespace mok_test {

// The BF16 backward on Hopper by a pair of CTAs: what src/kernels/pair.cuh, backward_loader.cuh,
// backward_pair_scheduler.cuh and backward_consumer.cuh wait for and hand over. Arrivals at the
// other CTA's barriers come at some time later; none may be on its way when both have ended.
class HopperPairModel {
    static constexpr int kStages = 4, kTickets = 2, kCtas = 2;

  public:
    // What the CTAs do beside each other: two tasks, or one that is dry in the other CTA. One of
    // `waits_for`'s steps must be told before the task; -1: none.
    struct Step {
        ModelTask task;
        bool shares_b;
        std::array<bool, kCtas> is_dry;
        std::array<int, kCtas> waits_for;
        std::array<bool, kCtas> half;  // the second consumer has no rows
        int stages() const { return task.k_blocks + task.own_stages; }
    };
    enum class Fault {
        None,
        ToldLate,
        StageGivenLate,
        PeerNotAwaited,
        EndsAtOnce,
        SlotsNotAwaited
    };

    HopperPairModel(uint64_t seed, const std::vector<Step>& steps, Fault fault)
        : model_(seed), random_(seed), steps_(steps), fault_(fault), left_(steps.size(), 0) {
        for (size_t i = 0; i < left_.size(); ++i)
            left_[i] = !steps[i].is_dry[0] + !steps[i].is_dry[1];
        for (int rank = 0; rank < kCtas; ++rank) sides_.emplace_back(model_);
    }
    std::string run() {
        for (int rank = 0; rank < kCtas; ++rank) {
            add("exchange", exchange(rank));
            add("scheduler", scheduler(rank));
            add("loader", loader(rank));
            add("teller", teller(rank));
            for (int c = 0; c < kConsumers; ++c) {
                for (int w = 0; w < kWarps; ++w) add("consumer", consumer(rank, c, w));
            }
        }
        model_.add("end", end());
        return model_.run();
    }

  private:
    // Block k of a step: its A, and halves of its B.
    struct Place {
        int step = -1, k = -1;
        bool operator==(const Place&) const = default;
    };
    struct Stage {
        Place a, b[2];
    };
    struct Side {
        explicit Side(Model& model) : stages_given(model.barrier(kCtas)) {
            for (int i = 0; i < kStages; ++i) {
                full.push_back(&model.barrier(kCtas));  // loaders
                empty.push_back(&model.barrier(kConsumers));
                peer_empty.push_back(&model.barrier(kConsumers));
            }
            for (int i = 0; i < kTickets; ++i) {
                ticket_full.push_back(&model.barrier(1));
                ticket_empty.push_back(&model.barrier(1));
            }
            for (int i = 0; i < kEntries; ++i) {
                entry_full.push_back(&model.barrier(1));
                entry_done.push_back(&model.barrier(kConsumers * kWarps));
                entry_empty.push_back(&model.barrier(2 + kConsumers * kWarps));
            }
            for (int c = 0; c < kConsumers; ++c) one_consumer.emplace_back(kWarps);
        }
        std::vector<ModelBarrier*> full, empty, peer_empty, ticket_full, ticket_empty, entry_full,
            entry_done, entry_empty;
        ModelBarrier& stages_given;
        std::deque<ModelSync> one_consumer;
        std::array<Stage, kStages> stage;
        std::array<int, kTickets> ticket{};
        std::array<int, kEntries> entry{};  // step, -1: no more
    };

    void add(const char* name, ModelThread thread) {
        ++threads_;
        model_.add(name, std::move(thread));
    }
    // The CTAs of a cluster end together.
    ModelThread end() {
        co_await ModelThread::Until{[this] { return ended_ == threads_; }};
        model_.expect(on_their_way_ == 0, "an arrival is on its way when the CTAs end");
    }
    void arrive_far(ModelBarrier& barrier) {
        ++on_their_way_;
        travel(barrier);
    }
    // Some take long.
    void travel(ModelBarrier& barrier) {
        model_.copy([this, &barrier] {
            if (random_() % 8 < 7) return travel(barrier);
            --on_their_way_;
            barrier.arrive();
        });
    }
    void give_back(int rank, int stage) {
        sides_[rank].empty[stage]->arrive();
        arrive_far(*sides_[rank ^ 1].peer_empty[stage]);
    }

    ModelThread exchange(int rank) {
        sides_[rank].stages_given.arrive();
        arrive_far(sides_[rank ^ 1].stages_given);
        ++ended_;
        co_return;
    }

    ModelThread scheduler(int rank) {
        Side &own = sides_[rank], &second = sides_[1];
        ModelRing<kTickets> mail;
        ModelRing<kEntries> at;
        at.parity = 1;
        if (rank == 0) mail.parity = 1;
        for (int next = 0, step = 0; step >= 0; ++next) {
            if (rank == 0) {
                step = next < static_cast<int>(steps_.size()) ? next : -1;
                co_await Model::wait(*own.ticket_empty[mail.index], mail.parity);
                model_.copy([&second, slot = mail.index, step] {
                    second.ticket[slot] = step;
                    second.ticket_full[slot]->copied();
                });
            } else {
                own.ticket_full[mail.index]->arrive_expect(1);
                co_await Model::wait(*own.ticket_full[mail.index], mail.parity);
                step = own.ticket[mail.index];
                model_.expect(step < 0 || step == next, "a ticket of another step");
                arrive_far(*sides_[0].ticket_empty[mail.index]);
            }
            mail.advance();
            if (step >= 0 && !steps_[step].is_dry[rank] && steps_[step].waits_for[rank] >= 0) {
                const int other = steps_[step].waits_for[rank];
                co_await ModelThread::Until{[this, other] { return left_[other] == 0; }};
            }
            co_await Model::wait(*own.entry_empty[at.index], at.parity);
            own.entry[at.index] = step;
            own.entry_full[at.index]->arrive();
            at.advance();
        }
        for (int i = 0; i < kTickets && rank == 0 && fault_ != Fault::SlotsNotAwaited; ++i) {
            co_await Model::wait(*own.ticket_empty[mail.index], mail.parity);
            mail.advance();
        }
        ++ended_;
    }
    ModelThread teller(int rank) {
        Side& own = sides_[rank];
        for (ModelRing<kEntries> at;; at.advance()) {
            co_await Model::wait(*own.entry_full[at.index], at.parity);
            const int step = own.entry[at.index];
            if (step < 0) break;
            co_await Model::wait(*own.entry_done[at.index], at.parity);
            if (!steps_[step].is_dry[rank]) --left_[step];
            own.entry_empty[at.index]->arrive();
        }
        ++ended_;
    }

    void load(int rank, int stage, Place Stage::*part, const Place& place) {
        Side& to = sides_[rank];
        model_.copy([&to, stage, part, place] {
            to.stage[stage].*part = place;
            to.full[stage]->copied();
        });
    }
    void load_half_of_b(int rank, int stage, int half, const Place& place) {
        Side& to = sides_[rank];
        model_.copy([&to, stage, half, place] {
            to.stage[stage].b[half] = place;
            to.full[stage]->copied();
        });
    }
    ModelThread loader(int rank) {
        Side &own = sides_[rank], &peer = sides_[rank ^ 1];
        ModelRing<kEntries> entry;
        ModelRing<kStages> stage;
        stage.parity = 1;
        co_await Model::wait(own.stages_given, 0);
        while (true) {
            co_await Model::wait(*own.entry_full[entry.index], entry.parity);
            const int number = own.entry[entry.index];
            own.entry_empty[entry.index]->arrive();
            entry.advance();
            if (number < 0) break;
            const Step& step = steps_[number];
            const bool dry = step.is_dry[rank];
            for (int k = 0; k < step.stages(); ++k) {
                const Place place{number, k};
                const bool product = k < step.task.k_blocks, shares = product && step.shares_b;
                // Gate and up come where A lies; FP32 sums leave by an empty stage.
                const bool a = !dry && (product || !step.task.wgrad());
                const bool b = product && !dry;
                const int at = stage.index;
                ModelBarrier* const full = own.full[at];
                co_await Model::wait(*own.empty[at], stage.parity);
                full->arrive_expect(a + 2 * b);
                if (a) load(rank, at, &Stage::a, place);
                if (fault_ != Fault::PeerNotAwaited) {
                    co_await Model::wait(*own.peer_empty[at], stage.parity);
                }
                if (shares) {
                    full->arrive();
                    load_half_of_b(rank, at, rank, place);
                    load_half_of_b(rank ^ 1, at, rank, place);
                } else {
                    arrive_far(*peer.full[at]);
                    if (b) load_half_of_b(rank, at, 0, place);
                    if (b) load_half_of_b(rank, at, 1, place);
                }
                stage.advance();
            }
        }
        for (int i = 0; i < kStages && fault_ != Fault::EndsAtOnce; ++i) {
            co_await Model::wait(*own.empty[stage.index], stage.parity);
            co_await Model::wait(*own.peer_empty[stage.index], stage.parity);
            stage.advance();
        }
        ++ended_;
    }

    // The stage holds what was meant for this step, from its arrival until it is given back.
    void check(int rank, int stage, const Place& want, bool product) {
        const Stage& has = sides_[rank].stage[stage];
        bool right = has.a == want;
        if (product) right = right && has.b[0] == want && has.b[1] == want;
        model_.expect(right, "a stage of step " + std::to_string(want.step) + " is another's");
    }
    ModelThread consumer(int rank, int which, int warp) {
        Side& own = sides_[rank];
        ModelSync& sync = own.one_consumer[which];
        ModelRing<kEntries> entry;
        ModelRing<kStages> stage;
        uint32_t synced = 0;
        int last = -1, owed = -1;
        const bool first = warp == 0;
        const auto end_last = [&] {
            if (last >= 0) own.entry_done[last]->arrive();
            last = -1;
        };
        while (true) {
            if (!own.entry_full[entry.index]->is_past(entry.parity)) {
                end_last();
                co_await Model::wait(*own.entry_full[entry.index], entry.parity);
            }
            const int number = own.entry[entry.index];
            if (number < 0) break;
            const Step& step = steps_[number];
            const int blocks = step.task.k_blocks;
            const bool idle = !step.task.wgrad() && which == 1 && step.half[rank];
            if (step.is_dry[rank] || idle) {
                if (owed >= 0) {
                    co_await sync(synced);
                    if (first) give_back(rank, owed);
                    owed = -1;
                }
                end_last();
                for (int k = 0; k < step.stages(); ++k) {
                    if (first) {
                        co_await Model::wait(*own.full[stage.index], stage.parity);
                        give_back(rank, stage.index);
                    }
                    stage.advance();
                }
                co_await sync(synced);
            } else {
                if (blocks > 0 && !own.full[stage.index]->is_past(stage.parity) &&
                    fault_ != Fault::ToldLate) {
                    end_last();
                }
                int previous = -1;
                for (int k = 0; k < blocks; ++k) {
                    co_await Model::wait(*own.full[stage.index], stage.parity);
                    check(rank, stage.index, {number, k}, true);
                    co_await sync(synced);  // products hold the warps together
                    if (k > 0) check(rank, previous, {number, k - 1}, true);
                    co_await sync(synced);
                    if (first && k > 0) give_back(rank, previous);
                    if (owed >= 0 && k == (fault_ == Fault::StageGivenLate ? 5 : 1)) {
                        co_await sync(synced);
                        if (first) give_back(rank, owed);
                        owed = -1;
                    }
                    if (k == 5) end_last();
                    previous = stage.index;
                    stage.advance();
                }
                if (first && blocks > 0) give_back(rank, previous);
                if (owed >= 0) {
                    co_await sync(synced);
                    if (first) give_back(rank, owed);
                    owed = -1;
                }
                end_last();
                previous = -1;
                for (int k = blocks; k < step.stages(); ++k) {
                    co_await Model::wait(*own.full[stage.index], stage.parity);
                    if (!step.task.wgrad()) check(rank, stage.index, {number, k}, false);
                    co_await sync(synced);
                    if (step.task.wgrad()) {
                        owed = stage.index;
                    } else {
                        if (first && previous >= 0) give_back(rank, previous);
                        previous = stage.index;
                    }
                    stage.advance();
                }
                if (first && previous >= 0) give_back(rank, previous);
            }
            last = entry.index;
            own.entry_empty[entry.index]->arrive();
            entry.advance();
        }
        if (owed >= 0) {
            co_await sync(synced);
            if (first) give_back(rank, owed);
        }
        end_last();
        ++ended_;
    }

    Model model_;
    std::mt19937_64 random_;
    const std::vector<Step>& steps_;
    Fault fault_;
    std::vector<int> left_;  // of a step: CTAs that have not told their task yet
    std::deque<Side> sides_;
    int threads_ = 0, ended_ = 0, on_their_way_ = 0;
};

}  // namespace mok_test

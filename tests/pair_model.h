#pragma once

#include "backward_cta_model.h"

namespace mok_test {

// The BF16 backward by a pair of CTAs.
class PairModel {
    static constexpr int kOwn = 2, kProducts = 3, kSums = 2, kCtas = 2;

  public:
    // Steps of both CTAs; those of one of them dry in one of the lists.
    using Steps = std::array<std::vector<ModelTask>, kCtas>;

    PairModel(uint64_t seed, const Steps& steps, Fault fault)
        : model_(seed), steps_(steps), left_(steps[0].size(), 0), begun_(model_.barrier(all())) {
        for (size_t i = 0; i < left_.size(); ++i)
            left_[i] = !steps[0][i].is_dry + !steps[1][i].is_dry;
        for (int i = 0; i < kProducts; ++i) pair_full_.push_back(&model_.barrier(kCtas));
        for (int i = 0; i < kSums; ++i) sums_empty_.push_back(&model_.barrier(all()));
        for (int cta = 0; cta < kCtas; ++cta) {
            // Loader, issuer.
            sides_.emplace_back(*this, cta, steps[cta], fault);
        }
    }
    std::string run() {
        for (Side& side : sides_) {
            side.cta.add_common();
            model_.add("loader", side.loader());
            model_.add("issuer", side.issuer());
            for (int c = 0; c < kConsumers; ++c) {
                for (int w = 0; w < kWarps; ++w) {
                    model_.add("consumer", side.cta.consumer(side, c, w));
                }
            }
        }
        return model_.run();
    }

  private:
    static constexpr int all() { return kCtas * kConsumers * kWarps; }

    struct Side {
        Side(PairModel& pair_model, int which, const std::vector<ModelTask>& list, Fault fault)
            : pair(pair_model),
              rank(which),
              tasks(list),
              cta(pair_model.model_, list, pair_model.left_, fault, 2, 0) {
            for (int i = 0; i < kProducts; ++i) {
                pair_empty.push_back(&pair.model_.barrier(1));
            }
            for (int i = 0; i < kSums; ++i) sums_full.push_back(&pair.model_.barrier(1));
        }

        // For Cta::consumer: its ring holds none of the products' stages, but blocks of A once
        // more.
        int row_blocks(const ModelTask&) const { return 0; }
        int read_blocks(const ModelTask& t) const { return t.k_blocks; }
        void begin(int, bool) {
            ++pair.put_;
            pair.begun_.arrive();
        }
        ModelThread::Until await(int which, int warp) {
            const ModelRing<kSums>& at = taken[which][warp];
            return Model::wait(*sums_full[at.index], at.parity);
        }
        void take(int task, int which, int warp) {
            ModelRing<kSums>& at = taken[which][warp];
            pair.model_.expect(pair.sums_task_[at.index] == task, "sums of another task");
            pair.sums_empty_[at.index]->arrive();
            at.advance();
        }

        ModelThread loader() {
            ModelRing<kEntries> entry;
            ModelRing<kOwn> own;
            ModelRing<kProducts> product;
            own.parity = product.parity = 1;
            for (size_t i = 0; i < tasks.size(); ++i) {
                const ModelTask& t = tasks[i];
                const int task = static_cast<int>(i);
                co_await Model::wait(*cta.entry_full_[entry.index], entry.parity);
                cta.entry_empty_[entry.index]->arrive();
                entry.advance();
                for (int k = 0; k < t.k_blocks; ++k) {
                    co_await Model::wait(*pair_empty[product.index], product.parity);
                    bring(product.index, {task, k, false});
                    product.advance();
                    if (t.has_bias && !t.is_dry) {
                        co_await Model::wait(*cta.empty_[own.index], own.parity);
                        cta.fill(own.index, {task, k, false}, true);
                        own.advance();
                    }
                }
                for (int s = 0; s < (t.is_dry ? 0 : t.own_stages); ++s) {
                    co_await Model::wait(*cta.empty_[own.index], own.parity);
                    cta.fill(own.index, {task, s, true}, !t.wgrad());
                    own.advance();
                }
            }
        }
        void bring(int stage, const Content& content) {
            ModelBarrier* const full = pair.pair_full_[stage];
            full->arrive_expect(1);
            pair.model_.copy([this, stage, content, full] {
                at[stage] = content;
                full->copied();
            });
        }
        ModelThread issuer() {
            ModelRing<kEntries> entry;
            ModelRing<kProducts> product;
            ModelRing<kSums> sums;
            sums.parity = 1;
            uint32_t begun = 0;
            for (size_t i = 0; i < tasks.size(); ++i) {
                const ModelTask& t = tasks[i];
                const int task = static_cast<int>(i);
                co_await Model::wait(*cta.entry_full_[entry.index], entry.parity);
                cta.entry_empty_[entry.index]->arrive();
                entry.advance();
                if (rank != 0 || t.k_blocks == 0) continue;
                co_await Model::wait(*pair.sums_empty_[sums.index], sums.parity);
                if (t.continues) {
                    co_await Model::wait(pair.begun_, begun);
                    begun ^= 1;
                }
                for (int k = 0; k < t.k_blocks; ++k) {
                    co_await Model::wait(*pair.pair_full_[product.index], product.parity);
                    pair.multiply(product.index, sums.index, {task, k, false}, t);
                    product.advance();
                }
                sums.advance();
            }
        }

        PairModel& pair;
        int rank;
        const std::vector<ModelTask>& tasks;
        Cta<kOwn> cta;
        std::vector<ModelBarrier*> pair_empty, sums_full;
        std::array<Content, kProducts> at;
        ModelRing<kSums> taken[kConsumers][kWarps];
    };

    void multiply(int stage, int sums, const Content& block, const ModelTask& t) {
        model_.product([this, stage, sums, block, &t] {
            for (const Side& side : sides_) {
                model_.expect(side.at[stage] == block, "a block of products is another's");
            }
            if (block.k == 0 && t.continues) {
                model_.expect(put_ == all(), "sums to go on from are missing");
                put_ = 0;
            }
            sums_task_[sums] = block.task;
            for (Side& side : sides_) {
                side.pair_empty[stage]->arrive();
                if (block.k + 1 == t.k_blocks) side.sums_full[sums]->arrive();
            }
        });
    }

    Model model_;
    const Steps& steps_;
    std::vector<int> left_;
    ModelBarrier& begun_;
    std::vector<ModelBarrier*> pair_full_, sums_empty_;
    std::deque<Side> sides_;
    std::array<int, kSums> sums_task_{-1, -1};
    int put_ = 0;
};

}  // namespace mok_test

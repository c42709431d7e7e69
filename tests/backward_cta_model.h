#pragma once

#include <array>
#include <deque>
#include <random>
#include <string>
#include <vector>

#include "pipeline_model.h"
#include "plan/task.h"

// What consumers, scheduler and teller of a CTA of a Blackwell backward wait for and hand over, for
// test_blackwell_pipelines.
namespace mok_test {

using mok::plan::TaskKind;

constexpr int kEntries = 4, kConsumers = 2, kWarps = 2;  // warps of a consumer: two stand for four

struct ModelTask {
    TaskKind kind;
    int k_blocks;    // of 64
    int own_stages;  // behind the products: gate and up, or where FP32 sums leave
    bool continues, has_bias;
    int waits_for;        // a task of the list, -1: none
    bool is_dry = false;  // of a pair: a step of the other CTA's task

    bool wgrad() const { return mok::plan::is_wgrad(kind); }
};
inline std::vector<ModelTask> random_tasks(uint64_t seed, int count) {
    std::mt19937_64 random(seed);
    std::vector<ModelTask> tasks;
    for (int i = 0; i < count; ++i) {
        constexpr TaskKind kKinds[] = {TaskKind::Replay, TaskKind::DownDgrad, TaskKind::GateUpDgrad,
                                       TaskKind::DownWgrad, TaskKind::GateWgrad};
        ModelTask t{kKinds[random() % 5], 1 + static_cast<int>(random() % 7), 0, false, false, -1};
        if (t.kind == TaskKind::GateUpDgrad) t.k_blocks *= 2;
        if (t.kind == TaskKind::DownDgrad) t.own_stages = 1 + static_cast<int>(random() % 4);
        if (t.wgrad()) {
            if (random() % 8 == 0) t.k_blocks = 0;  // nothing to add
            const bool works = t.k_blocks > 0;
            t.own_stages = works && random() % 2 == 0;
            t.continues = works && random() % 3 == 0;
            t.has_bias = works && random() % 2 == 0;
        }
        if (i > 0 && random() % 3 == 0) t.waits_for = static_cast<int>(random() % i);
        tasks.push_back(t);
    }
    return tasks;
}

// What a kernel takes care of, left out.
enum class Fault { None, MakersRunAhead, StageGivenBackLate, ToldLate };

// What lies in a stage: block k of a task's products, or one of its own stages behind them.
struct Content {
    int task = -1, k = -1;
    bool own = false;
    bool operator==(const Content&) const = default;
};

// What consumers, scheduler and teller of a CTA do, the same in both kernels. kStages: of the ring
// that consumers read.
template <int kStages>
class Cta {
  public:
    // readers: of an entry, beside scheduler, teller and consumers. stage_readers: beside
    // consumers. left[i]: how many CTAs have not told task i yet.
    Cta(Model& model, const std::vector<ModelTask>& tasks, std::vector<int>& left, Fault fault,
        int readers, int stage_readers)
        : model_(model),
          tasks_(tasks),
          left_(left),
          fault_(fault),
          all_consumers_(kConsumers * kWarps) {
        for (int i = 0; i < kEntries; ++i) {
            entry_full_.push_back(&model.barrier(1));
            entry_done_.push_back(&model.barrier(kConsumers * kWarps));
            entry_empty_.push_back(&model.barrier(1 + readers + kConsumers * kWarps));
        }
        for (int i = 0; i < kStages; ++i) {
            full_.push_back(&model.barrier(1));
            empty_.push_back(&model.barrier(stage_readers + kConsumers));
        }
        for (int c = 0; c < kConsumers; ++c) one_consumer_.emplace_back(kWarps);
    }

    ModelThread scheduler() {
        ModelRing<kEntries> at;
        at.parity = 1;
        for (const ModelTask& t : tasks_) {
            if (!t.is_dry && t.waits_for >= 0) {
                co_await ModelThread::Until{[this, &t] { return left_[t.waits_for] == 0; }};
            }
            co_await Model::wait(*entry_empty_[at.index], at.parity);
            entry_full_[at.index]->arrive();
            at.advance();
        }
    }
    ModelThread teller() {
        ModelRing<kEntries> at;
        for (size_t i = 0; i < tasks_.size(); ++i) {
            co_await Model::wait(*entry_full_[at.index], at.parity);
            co_await Model::wait(*entry_done_[at.index], at.parity);
            if (!tasks_[i].is_dry) --left_[i];
            entry_empty_[at.index]->arrive();
            at.advance();
        }
    }

    // Barriers and stages, and what the kernels add.
    Model& model_;
    const std::vector<ModelTask>& tasks_;
    std::vector<int>& left_;
    Fault fault_;
    std::vector<ModelBarrier*> entry_full_, entry_done_, entry_empty_, full_, empty_;
    std::array<Content, kStages> stage_;
    ModelSync all_consumers_;
    std::deque<ModelSync> one_consumer_;

    // A warp of a consumer. Sums: await(task), give(), begin() of the kernel's accumulators;
    // row_blocks(task): stages of this ring that products take, of which consumers read them where
    // reads(task).
    template <class Kernel>
    ModelThread consumer(Kernel& kernel, int which, int warp) {
        ModelRing<kEntries> entry;
        ModelRing<kStages> stage;
        uint32_t all = 0, one = 0;
        int last = -1, owed = -1;
        const bool first = warp == 0;
        const auto end_last = [&] {
            if (last >= 0) entry_done_[last]->arrive();
            last = -1;
        };
        for (size_t i = 0; i < tasks_.size(); ++i) {
            const ModelTask& t = tasks_[i];
            const int task = static_cast<int>(i);
            if (!entry_full_[entry.index]->is_past(entry.parity)) {
                end_last();
                co_await Model::wait(*entry_full_[entry.index], entry.parity);
            }
            const int rows = kernel.row_blocks(t);
            if (t.k_blocks > 0 && t.continues) {
                kernel.begin(task, t.is_dry);
                co_await ModelThread::Until{};
            }
            // What is done beside products, all of it before their sums.
            const bool late = fault_ == Fault::StageGivenBackLate && t.has_bias;
            if (owed >= 0 && !late) {
                co_await all_consumers_(all);
                if (first) empty_[owed]->arrive();
                owed = -1;
            }
            if (fault_ != Fault::ToldLate) end_last();
            if (t.k_blocks > 0 && !t.is_dry && t.has_bias) {
                for (int k = 0; k < kernel.read_blocks(t); ++k) {
                    co_await Model::wait(*full_[stage.index], stage.parity);
                    if (owed >= 0 && k == 1) {
                        co_await all_consumers_(all);
                        if (first) empty_[owed]->arrive();
                        owed = -1;
                    }
                    check(stage.index, {task, k, false}, "a consumer's block of A");
                    co_await one_consumer_[which](one);
                    if (first) empty_[stage.index]->arrive();
                    stage.advance();
                }
            } else {
                stage.advance(rows);
            }
            if (t.k_blocks > 0) {
                co_await kernel.await(which, warp);
                kernel.take(task, which, warp);
            }
            if (fault_ == Fault::ToldLate) end_last();
            if (owed >= 0) {
                co_await all_consumers_(all);
                if (first) empty_[owed]->arrive();
                owed = -1;
            }
            int previous = -1;
            for (int own = 0; own < (t.is_dry ? 0 : t.own_stages); ++own) {
                co_await Model::wait(*full_[stage.index], stage.parity);
                check(stage.index, {task, own, true}, "a consumer's own stage");
                co_await all_consumers_(all);
                if (t.wgrad()) {
                    owed = stage.index;
                } else {
                    if (first && previous >= 0) empty_[previous]->arrive();
                    previous = stage.index;
                }
                stage.advance();
            }
            if (first && previous >= 0) empty_[previous]->arrive();
            last = entry.index;
            entry_empty_[entry.index]->arrive();
            entry.advance();
        }
        end_last();
    }
    void check(int stage, const Content& want, const char* what) {
        model_.expect(stage_[stage] == want, std::string(what) + " of task " +
                                                 std::to_string(want.task) + " is another's");
    }
    void fill(int stage, const Content& content, bool bytes) {
        if (!bytes) {
            stage_[stage] = content;
            full_[stage]->arrive();
            return;
        }
        full_[stage]->arrive_expect(1);
        model_.copy([this, stage, content] {
            stage_[stage] = content;
            full_[stage]->copied();
        });
    }
    void add_common() {
        model_.add("scheduler", scheduler());
        model_.add("teller", teller());
    }
};

}  // namespace mok_test

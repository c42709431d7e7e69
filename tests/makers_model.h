#pragma once

#include "backward_cta_model.h"
#include "kernels/block_scaled_tiles.h"

namespace mok_test {

// The MXFP8 backward of a CTA: makers between rows and products.
class MakersModel {
    static constexpr int kRows = 2, kOperands = mok::kernels::block_scaled::kOperandStages,
                         kMakerWarps = 3;

  public:
    MakersModel(uint64_t seed, const std::vector<ModelTask>& tasks, Fault fault)
        : model_(seed),
          tasks_(tasks),
          fault_(fault),
          left_(tasks.size(), 1),
          cta_(model_, tasks_, left_, fault, 1 + kMakerWarps, 1),
          makers_(kMakerWarps),
          sums_full_(model_.barrier(1)),
          sums_empty_(model_.barrier(kConsumers * kWarps)),
          begun_(model_.barrier(kConsumers * kWarps)) {
        for (int i = 0; i < kOperands; ++i) {
            operand_full_.push_back(&model_.barrier(1));
            operand_empty_.push_back(&model_.barrier(1));
        }
    }
    std::string run() {
        cta_.add_common();
        model_.add("loader", loader());
        for (int w = 0; w < kMakerWarps; ++w) model_.add("maker", maker(w));
        for (int c = 0; c < kConsumers; ++c) {
            for (int w = 0; w < kWarps; ++w) model_.add("consumer", cta_.consumer(*this, c, w));
        }
        return model_.run();
    }

    // For Cta::consumer.
    int row_blocks(const ModelTask& t) const {
        return mok::kernels::block_scaled::row_blocks(t.kind, t.k_blocks);
    }
    int read_blocks(const ModelTask& t) const { return row_blocks(t); }
    void begin(int task, bool) {
        model_.expect(sums_task_ != task, "sums begin twice");
        ++put_;
        begun_.arrive();
    }
    ModelThread::Until await(int which, int warp) {
        const uint32_t parity = taken_[which][warp];
        taken_[which][warp] ^= 1;
        return Model::wait(sums_full_, parity);
    }
    void take(int task, int, int) {
        model_.expect(sums_task_ == task, "sums of another task");
        sums_empty_.arrive();
    }

  private:
    static int operands(const ModelTask& t) {
        return mok::kernels::block_scaled::operand_blocks(t.kind, t.k_blocks);
    }

    ModelThread loader() {
        ModelRing<kEntries> entry;
        ModelRing<kRows> rows;
        ModelRing<kOperands> operand;
        rows.parity = operand.parity = 1;
        for (size_t i = 0; i < tasks_.size(); ++i) {
            const ModelTask& t = tasks_[i];
            const int task = static_cast<int>(i);
            co_await Model::wait(*cta_.entry_full_[entry.index], entry.parity);
            cta_.entry_empty_[entry.index]->arrive();
            entry.advance();
            const int per_operand = t.wgrad() ? 2 : 1;
            for (int k = 0; k < row_blocks(t); ++k) {
                if (k % per_operand == 0) {
                    co_await Model::wait(*operand_empty_[operand.index], operand.parity);
                    bring_weights(operand.index, {task, k / per_operand, false}, !t.wgrad());
                    operand.advance();
                }
                co_await Model::wait(*cta_.empty_[rows.index], rows.parity);
                cta_.fill(rows.index, {task, k, false}, true);
                rows.advance();
            }
            for (int own = 0; own < t.own_stages; ++own) {
                co_await Model::wait(*cta_.empty_[rows.index], rows.parity);
                cta_.fill(rows.index, {task, own, true}, !t.wgrad());
                rows.advance();
            }
        }
    }
    void bring_weights(int stage, const Content& content, bool bytes) {
        if (!bytes) {
            operand_full_[stage]->arrive();
            return;
        }
        operand_full_[stage]->arrive_expect(1);
        model_.copy([this, stage, content] {
            weights_[stage] = content;
            operand_full_[stage]->copied();
        });
    }

    ModelThread maker(int warp) {
        ModelRing<kEntries> entry;
        ModelRing<kRows> rows;
        ModelRing<kOperands> operand;
        uint32_t sync = 0, sums = 1, begun = 0;
        for (size_t i = 0; i < tasks_.size(); ++i) {
            const ModelTask& t = tasks_[i];
            const int task = static_cast<int>(i), num_rows = row_blocks(t);
            co_await Model::wait(*cta_.entry_full_[entry.index], entry.parity);
            cta_.entry_empty_[entry.index]->arrive();
            entry.advance();
            for (int k = 0, o = 0; k < num_rows; ++o) {
                co_await Model::wait(*operand_full_[operand.index], operand.parity);
                for (int half = 0; half < (t.wgrad() ? 2 : 1) && k < num_rows; ++half, ++k) {
                    co_await Model::wait(*cta_.full_[rows.index], rows.parity);
                    cta_.check(rows.index, {task, k, false}, "a maker's rows");
                    made_[operand.index][warp] = {task, o, false};
                    co_await makers_(sync);
                    if (warp == 0) cta_.empty_[rows.index]->arrive(t.has_bias ? 1 : 1 + kConsumers);
                    rows.advance();
                }
                if (warp == 0) {
                    if (o == 0) {
                        co_await Model::wait(sums_empty_, sums);
                        if (t.continues) {
                            co_await Model::wait(begun_, begun);
                            begun ^= 1;
                        }
                    }
                    multiply(operand.index, {task, o, false}, !t.wgrad(), t.continues,
                             o + 1 == operands(t));
                }
                operand.advance();
            }
            if (num_rows > 0) sums ^= 1;
            if (t.own_stages == 0) continue;
            for (int own = 0; own < t.own_stages; ++own) {
                if (warp == 0) {
                    co_await Model::wait(*cta_.full_[rows.index], rows.parity);
                    cta_.empty_[rows.index]->arrive();
                }
                rows.advance();
            }
            if (fault_ != Fault::MakersRunAhead) co_await makers_(sync);
        }
    }
    void multiply(int stage, const Content& operand, bool of_weights, bool continues, bool last) {
        model_.product([this, stage, operand, of_weights, continues, last] {
            for (const Content& made : made_[stage]) {
                model_.expect(made == operand, "an operand is another's");
            }
            model_.expect(!of_weights || weights_[stage] == operand, "weights are another's");
            if (operand.k == 0 && continues) {
                model_.expect(put_ == kConsumers * kWarps, "sums to go on from are missing");
                put_ = 0;
            }
            sums_task_ = operand.task;
            operand_empty_[stage]->arrive();
            if (last) sums_full_.arrive();
        });
    }

    Model model_;
    const std::vector<ModelTask>& tasks_;
    Fault fault_;
    std::vector<int> left_;
    Cta<kRows> cta_;
    ModelSync makers_;
    ModelBarrier &sums_full_, &sums_empty_, &begun_;
    std::vector<ModelBarrier*> operand_full_, operand_empty_;
    std::array<Content, kOperands> weights_;
    std::array<std::array<Content, kMakerWarps>, kOperands> made_;
    uint32_t taken_[kConsumers][kWarps] = {};
    int sums_task_ = -1, put_ = 0;
};

}  // namespace mok_test

#pragma once

#include <gtest/gtest.h>

#include <coroutine>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

// Threads of a kernel as coroutines, run in random order, with barriers as mbarrier has them,
// copies that complete in any order and products that run in the order of issue. A run ends when
// every thread has ended, or with a failure: nobody can go on, or an arrival too many.
namespace mok_test {

// A phase is over when `count` arrivals and all copies that it expects have come. wait(parity) is
// past when the phase under way is of the other parity, as mbarrier.try_wait.parity has it.
class ModelBarrier {
  public:
    explicit ModelBarrier(int count) : count_(count), pending_(count) {}

    void arrive(int times = 1) {
        ok_ = ok_ && times <= pending_;
        pending_ -= times;
        settle();
    }
    void arrive_expect(int copies) {
        copies_ += copies;
        arrive();
    }
    void copied() {
        --copies_;
        settle();
    }
    bool is_past(uint32_t parity) const { return (phase_ & 1) != parity; }
    bool ok() const { return ok_; }

  private:
    void settle() {
        if (pending_ != 0 || copies_ != 0) return;
        ++phase_;
        pending_ = count_;
    }

    int count_, pending_, copies_ = 0;
    uint32_t phase_ = 0;
    bool ok_ = true;
};

template <int kStages>
struct ModelRing {
    int index = 0;
    uint32_t parity = 0;
    void advance(int steps = 1) {
        for (; steps > 0; --steps) {
            if (++index < kStages) continue;
            index = 0;
            parity ^= 1;
        }
    }
};

// A thread, or a warp whose lanes do not part. It waits by co_await for a condition.
class ModelThread {
  public:
    struct promise_type {
        std::function<bool()> ready;
        ModelThread get_return_object() {
            return ModelThread(std::coroutine_handle<promise_type>::from_promise(*this));
        }
        std::suspend_always initial_suspend() noexcept { return {}; }
        std::suspend_always final_suspend() noexcept { return {}; }
        void return_void() {}
        void unhandled_exception() { throw; }
    };
    struct Until {
        std::function<bool()> ready;
        bool await_ready() const { return false; }
        void await_suspend(std::coroutine_handle<promise_type> h) {
            h.promise().ready = std::move(ready);
        }
        void await_resume() const {}
    };

    ModelThread(ModelThread&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
    ~ModelThread() {
        if (handle_) handle_.destroy();
    }
    bool done() const { return handle_.done(); }
    bool can_go_on() const {
        return !done() && (!handle_.promise().ready || handle_.promise().ready());
    }
    void go_on() { handle_.resume(); }

  private:
    explicit ModelThread(std::coroutine_handle<promise_type> h) : handle_(h) {}
    std::coroutine_handle<promise_type> handle_;
};

// bar.sync among `count` threads; each has a place of its own.
class ModelSync {
  public:
    explicit ModelSync(int count) : barrier_(count) {}
    ModelThread::Until operator()(uint32_t& parity) {
        barrier_.arrive();
        const uint32_t mine = parity;
        parity ^= 1;
        return {[this, mine] { return barrier_.is_past(mine); }};
    }

  private:
    ModelBarrier barrier_;
};

class Model {
  public:
    explicit Model(uint64_t seed) : random_(seed) {}

    ModelBarrier& barrier(int count) {
        barriers_.push_back(std::make_unique<ModelBarrier>(count));
        return *barriers_.back();
    }
    void add(const std::string& name, ModelThread thread) {
        names_.push_back(name);
        threads_.push_back(std::move(thread));
    }
    static ModelThread::Until wait(const ModelBarrier& bar, uint32_t parity) {
        return {[&bar, parity] { return bar.is_past(parity); }};
    }
    // Done at some time; those of copies in any order, those of products one behind another.
    void copy(std::function<void()> action) { copies_.push_back(std::move(action)); }
    void product(std::function<void()> action) { products_.push_back(std::move(action)); }
    void expect(bool holds, const std::string& what) {
        if (!holds && failure_.empty()) failure_ = what;
    }

    // Empty where all went well.
    std::string run() {
        while (failure_.empty()) {
            std::vector<size_t> ready;
            bool all_done = true;
            for (size_t i = 0; i < threads_.size(); ++i) {
                all_done = all_done && threads_[i].done();
                if (threads_[i].can_go_on()) ready.push_back(i);
            }
            if (all_done && copies_.empty() && products_.empty()) break;
            const size_t choices = ready.size() + copies_.size() + !products_.empty();
            if (choices == 0) return "nobody can go on: " + waiting();
            size_t at = random_() % choices;
            if (at < ready.size()) {
                threads_[ready[at]].go_on();
            } else if ((at -= ready.size()) < copies_.size()) {
                const auto action = std::move(copies_[at]);
                copies_.erase(copies_.begin() + static_cast<std::ptrdiff_t>(at));
                action();
            } else {
                const auto action = std::move(products_.front());
                products_.pop_front();
                action();
            }
            for (const auto& bar : barriers_) expect(bar->ok(), "an arrival too many");
        }
        return failure_;
    }

  private:
    std::string waiting() const {
        std::string text;
        for (size_t i = 0; i < threads_.size(); ++i) {
            if (!threads_[i].done()) text += (text.empty() ? "" : ", ") + names_[i];
        }
        return text;
    }

    std::mt19937_64 random_;
    std::vector<std::unique_ptr<ModelBarrier>> barriers_;
    std::vector<std::string> names_;
    std::vector<ModelThread> threads_;
    std::vector<std::function<void()>> copies_;
    std::deque<std::function<void()>> products_;
    std::string failure_;
};

}  // namespace mok_test

// Executors for tests of what must not depend on who runs tasks, in which order, and with which
// memory.
#ifndef TF_DYNEMB_CC_CORE_TESTING_EXECUTORS_H_
#define TF_DYNEMB_CC_CORE_TESTING_EXECUTORS_H_

#include <cstdint>
#include <functional>
#include <new>
#include <thread>
#include <vector>

#include "cc/core/base/context.h"

namespace dynemb {

// Runs each task on a thread of its own.
class ThreadPerTask : public Executor {
 public:
  int concurrency() const override { return 4; }

 private:
  void RunEach(int64_t tasks, int64_t, const std::function<void(int64_t)>& task) override {
    std::vector<std::thread> threads;
    for (int64_t i = 0; i < tasks; ++i) threads.emplace_back([&task, i] { task(i); });
    for (std::thread& thread : threads) thread.join();
  }
};

// Runs the last task first.
class BackwardExecutor : public Executor {
 public:
  int concurrency() const override { return 4; }

 private:
  void RunEach(int64_t tasks, int64_t, const std::function<void(int64_t)>& task) override {
    for (int64_t i = tasks; i-- > 0;) task(i);
  }
};

// As if there were no memory for what it runs, but for its first runs.
class NoMemoryExecutor : public Executor {
 public:
  explicit NoMemoryExecutor(int64_t first_runs = 0) : left_(first_runs) {}
  int concurrency() const override { return 2; }

 private:
  void RunEach(int64_t tasks, int64_t, const std::function<void(int64_t)>& task) override {
    if (left_-- <= 0) throw std::bad_alloc();
    for (int64_t i = 0; i < tasks; ++i) task(i);
  }

  int64_t left_;
};

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_CORE_TESTING_EXECUTORS_H_

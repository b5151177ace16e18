// ThreadsExecutor: the calling thread and others that wait for work. One caller at a time.
#ifndef TF_DYNEMB_BENCHMARKS_THREADS_EXECUTOR_H_
#define TF_DYNEMB_BENCHMARKS_THREADS_EXECUTOR_H_

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "cc/core/base/context.h"

namespace dynemb {

class ThreadsExecutor : public Executor {
 public:
  // `threads` in all, the caller among them.
  explicit ThreadsExecutor(int threads) {
    for (int i = 1; i < threads; ++i) helpers_.emplace_back([this] { Help(); });
  }
  ~ThreadsExecutor() override {
    Begin(0, nullptr);
    for (std::thread& helper : helpers_) helper.join();
  }

  int concurrency() const override { return static_cast<int>(helpers_.size()) + 1; }

  void RunEach(int64_t tasks, int64_t, const std::function<void(int64_t)>& task) override {
    Begin(tasks, &task);
    Work();
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [this] { return busy_ == 0; });
  }

 private:
  // All helpers take part in every call; without a task they end.
  void Begin(int64_t tasks, const std::function<void(int64_t)>* task) {
    std::lock_guard<std::mutex> lock(mutex_);
    tasks_ = tasks;
    task_ = task;
    next_ = 0;
    busy_ = static_cast<int>(helpers_.size());
    ++call_;
    changed_.notify_all();
  }

  void Work() {
    for (int64_t i; (i = next_.fetch_add(1)) < tasks_;) (*task_)(i);
  }

  void Help() {
    for (int64_t seen = 0;;) {
      std::unique_lock<std::mutex> lock(mutex_);
      changed_.wait(lock, [&] { return call_ != seen; });
      seen = call_;
      if (!task_) return;
      lock.unlock();
      Work();
      lock.lock();
      if (--busy_ == 0) changed_.notify_all();
    }
  }

  std::vector<std::thread> helpers_;
  std::mutex mutex_;
  std::condition_variable changed_;
  int64_t call_ = 0, tasks_ = 0;
  const std::function<void(int64_t)>* task_ = nullptr;
  std::atomic<int64_t> next_{0};
  int busy_ = 0;
};

}  // namespace dynemb

#endif  // TF_DYNEMB_BENCHMARKS_THREADS_EXECUTOR_H_

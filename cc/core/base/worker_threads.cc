#include "cc/core/base/worker_threads.h"

#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <new>
#include <system_error>
#include <thread>

#include "cc/core/base/shared_tasks.h"

namespace dynemb {
namespace {

class WorkerThreads final : public Executor {
 public:
  // So many besides the caller. Those that cannot be started are done without.
  explicit WorkerThreads(int threads) {
    for (int t = 0; t < threads; ++t) {
      try {
        std::thread([this] { Serve(); }).detach();
        ++started_;
      } catch (const std::system_error&) {
        break;
      }
    }
  }

  int concurrency() const override { return started_ + 1; }

 private:
  void RunEach(int64_t tasks, int64_t, const std::function<void(int64_t)>& task) override {
    if (tasks <= 1 || started_ == 0) {
      for (int64_t i = 0; i < tasks; ++i) task(i);
      return;
    }
    const auto call = std::make_shared<SharedTasks>(tasks, 1, &task);
    int64_t helpers = 0;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      try {
        for (; helpers < std::min<int64_t>(started_, tasks - 1); ++helpers) calls_.push_back(call);
      } catch (const std::bad_alloc&) {  // with those that have been asked
      }
    }
    for (int64_t i = 0; i < helpers; ++i) work_.notify_one();
    call->Work();
    call->Wait();
  }

  void Serve() {
    for (;;) {
      std::shared_ptr<SharedTasks> call;
      {
        std::unique_lock<std::mutex> lock(mutex_);
        work_.wait(lock, [this] { return !calls_.empty(); });
        call = std::move(calls_.front());
        calls_.pop_front();
      }
      call->Work();
    }
  }

  int started_ = 0;
  std::mutex mutex_;
  std::condition_variable work_;
  std::deque<std::shared_ptr<SharedTasks>> calls_;
};

int Processors() { return std::max(1, static_cast<int>(std::thread::hardware_concurrency())); }

}  // namespace

Executor* ComputeThreads() {
  static WorkerThreads* const threads = new WorkerThreads(std::min(Processors(), 64) - 1);
  return threads;
}

Executor* ReadThreads() {
  static WorkerThreads* const threads = new WorkerThreads(15);
  return threads;
}

}  // namespace dynemb

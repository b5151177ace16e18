#include "cc/core/base/io_threads.h"

#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <list>
#include <mutex>
#include <new>
#include <system_error>
#include <thread>

namespace dynemb {
namespace {

thread_local bool is_io_thread = false;

class IoThreadPool final : public Executor {
 public:
  IoThreadPool()
      : wanted_(std::clamp(static_cast<int>(std::thread::hardware_concurrency()), 2, 16)) {
    for (int t = 0; t < wanted_; ++t) {
      try {
        std::thread([this] { Serve(); }).detach();
        ++started_;
      } catch (const std::system_error&) {
        break;  // those that there are will do, and without any the caller works
      } catch (const std::bad_alloc&) {
        break;
      }
    }
  }

  int concurrency() const override { return std::max(1, started_); }

 private:
  void RunEach(int64_t tasks, int64_t, const std::function<void(int64_t)>& task) override {
    if (tasks <= 0) return;
    if (is_io_thread || started_ == 0) {
      for (int64_t i = 0; i < tasks; ++i) task(i);
      return;
    }
    // All memory is taken here: the threads move the list's node.
    std::list<Call> here(1);
    Call& call = here.front();
    call.tasks = tasks;
    call.task = &task;
    call.home = &here;
    std::unique_lock<std::mutex> lock(mutex_);
    calls_.splice(calls_.end(), here);
    work_.notify_all();
    done_.wait(lock, [&] { return call.finished == tasks; });
  }

  struct Call {
    int64_t tasks = 0;
    int64_t begun = 0, finished = 0;
    const std::function<void(int64_t)>* task = nullptr;
    std::list<Call>* home = nullptr;  // where it belongs once all of its tasks have begun
  };

  void Serve() {
    is_io_thread = true;
    setpriority(PRIO_PROCESS, static_cast<id_t>(syscall(SYS_gettid)), 10);
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
      work_.wait(lock, [&] { return !calls_.empty(); });
      // Calls take turns, so that a short one does not wait for a long one.
      Call& call = calls_.front();
      const int64_t number = call.begun++;
      std::list<Call>& next = call.begun < call.tasks ? calls_ : *call.home;
      next.splice(next.end(), calls_, calls_.begin());
      lock.unlock();
      (*call.task)(number);
      lock.lock();
      if (++call.finished == call.tasks) done_.notify_all();
    }
  }

  const int wanted_;
  int started_ = 0;
  std::mutex mutex_;
  std::condition_variable work_, done_;
  std::list<Call> calls_;  // that have tasks to begin
};

}  // namespace

Executor* IoThreads() {
  static IoThreadPool* const pool = new IoThreadPool();
  return pool;
}

}  // namespace dynemb

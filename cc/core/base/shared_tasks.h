// SharedTasks: the tasks of one call, which threads take in turn, the caller among them.
//
// The caller alone can do them all. So a call may hold a lock, and all threads that could help may
// wait for it.
#ifndef TF_DYNEMB_CC_CORE_BASE_SHARED_TASKS_H_
#define TF_DYNEMB_CC_CORE_BASE_SHARED_TASKS_H_

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>

namespace dynemb {

// To be owned by all who work, since threads may come after the call has returned: to them no task
// is left. Tasks must not throw.
class SharedTasks {
 public:
  // task(0) .. task(tasks - 1), of which a thread takes so many at once. `task` must live until
  // Wait has returned.
  SharedTasks(int64_t tasks, int64_t at_once, const std::function<void(int64_t)>* task)
      : tasks_(tasks), at_once_(at_once), task_(task) {}
  SharedTasks(const SharedTasks&) = delete;
  SharedTasks& operator=(const SharedTasks&) = delete;

  // Runs tasks until all are taken.
  void Work() {
    int64_t ran = 0;
    for (int64_t begin; (begin = next_.fetch_add(at_once_)) < tasks_;) {
      const int64_t end = std::min(tasks_, begin + at_once_);
      for (int64_t i = begin; i < end; ++i) (*task_)(i);
      ran += end - begin;
    }
    if (ran == 0) return;
    std::lock_guard<std::mutex> lock(mutex_);
    done_ += ran;
    if (done_ == tasks_) all_done_.notify_all();
  }
  // For the caller, after Work: waits for the tasks that others have taken.
  void Wait() {
    std::unique_lock<std::mutex> lock(mutex_);
    all_done_.wait(lock, [this] { return done_ == tasks_; });
  }

 private:
  const int64_t tasks_, at_once_;
  const std::function<void(int64_t)>* const task_;
  std::atomic<int64_t> next_{0};
  std::mutex mutex_;
  std::condition_variable all_done_;
  int64_t done_ = 0;
};

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_CORE_BASE_SHARED_TASKS_H_

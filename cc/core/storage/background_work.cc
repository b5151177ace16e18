#include "cc/core/storage/background_work.h"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <new>
#include <system_error>
#include <thread>

namespace dynemb {

class BackgroundThread {
 public:
  // Lives for ever.
  static BackgroundThread* Get() {
    static BackgroundThread* const thread = new BackgroundThread;
    return thread;
  }

  void Wake(BackgroundWork* work) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (work->is_running_) {
      work->is_woken_ = true;
    } else {
      Queue(work);
    }
  }

  void Remove(BackgroundWork* work) {
    std::unique_lock<std::mutex> lock(mutex_);
    work->is_ending_ = true;
    ended_.wait(lock, [&] { return !work->is_running_; });
    if (work->is_queued_) turns_.erase(std::find(turns_.begin(), turns_.end(), work));
  }

  void Finish(BackgroundWork* work) {
    std::unique_lock<std::mutex> lock(mutex_);
    ended_.wait(lock, [&] { return !work->is_running_ && !work->is_queued_; });
  }

 private:
  // Without memory, or a thread, the work is left.
  void Queue(BackgroundWork* work) {
    if (work->is_queued_ || work->is_ending_ || !Start()) return;
    try {
      turns_.push_back(work);
    } catch (const std::bad_alloc&) {
      return;
    }
    work->is_queued_ = true;
    work_.notify_one();
  }

  bool Start() {
    if (is_started_) return true;
    try {
      std::thread([this] { Serve(); }).detach();
      is_started_ = true;
    } catch (const std::system_error&) {
    } catch (const std::bad_alloc&) {
    }
    return is_started_;
  }

  void Serve() {
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
      work_.wait(lock, [this] { return !turns_.empty(); });
      BackgroundWork* const work = turns_.front();
      turns_.pop_front();
      work->is_queued_ = false;
      work->is_running_ = true;
      work->is_woken_ = false;
      lock.unlock();
      const bool more = work->slice_();
      lock.lock();
      work->is_running_ = false;
      if (more || work->is_woken_) Queue(work);
      ended_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable work_, ended_;
  std::deque<BackgroundWork*> turns_;
  bool is_started_ = false;
};

BackgroundWork::~BackgroundWork() { BackgroundThread::Get()->Remove(this); }

void BackgroundWork::Wake() { BackgroundThread::Get()->Wake(this); }

void BackgroundWork::Finish() { BackgroundThread::Get()->Finish(this); }

}  // namespace dynemb

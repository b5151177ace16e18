// FairSharedMutex: a lock for many readers or one writer that starves neither.
//
// A writer that waits keeps new readers out, so that it waits for those alone that hold the lock
// already; and the readers that came while it held the lock go before the next writer. (A
// phase-fair lock: Brandenburg and Anderson, "Spin-based reader-writer synchronization for
// multiprocessor real-time systems", 2010; here waiting threads sleep. std::shared_mutex promises
// nothing, and with glibc readers that overlap keep a writer out for ever.)
//
// A thread must not take the lock shared while it holds it shared: a writer that came in between
// would wait for the one, and the other for the writer.
#ifndef TF_DYNEMB_CC_CORE_BASE_FAIR_SHARED_MUTEX_H_
#define TF_DYNEMB_CC_CORE_BASE_FAIR_SHARED_MUTEX_H_

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>

namespace dynemb {

// For std::shared_lock and std::unique_lock.
class FairSharedMutex {
 public:
  FairSharedMutex() = default;
  FairSharedMutex(const FairSharedMutex&) = delete;
  FairSharedMutex& operator=(const FairSharedMutex&) = delete;

  void lock_shared() {
    if (state_.fetch_add(1, std::memory_order_acquire) >= kClosed) WaitShared();
  }
  bool try_lock_shared() {
    uint32_t state = state_.load(std::memory_order_relaxed);
    while (state < kClosed) {
      if (state_.compare_exchange_weak(state, state + 1, std::memory_order_acquire)) return true;
    }
    return false;
  }
  void unlock_shared() {
    if (state_.fetch_sub(1, std::memory_order_release) == kClosed + 1) {
      std::lock_guard<std::mutex> lock(mutex_);
      writers_.notify_all();
    }
  }

  void lock() {
    std::unique_lock<std::mutex> lock(mutex_);
    const uint64_t ticket = next_ticket_++;
    writers_.wait(lock, [&] { return serving_ == ticket; });
    state_.fetch_or(kClosed, std::memory_order_relaxed);
    writers_.wait(lock, [&] { return state_.load(std::memory_order_acquire) == kClosed; });
  }
  bool try_lock() {
    std::lock_guard<std::mutex> lock(mutex_);
    uint32_t open = 0;
    if (serving_ != next_ticket_ ||
        !state_.compare_exchange_strong(open, kClosed, std::memory_order_acquire)) {
      return false;
    }
    ++next_ticket_;
    return true;
  }
  void unlock() {
    std::lock_guard<std::mutex> lock(mutex_);
    state_.fetch_add(waiting_readers_, std::memory_order_relaxed);
    waiting_readers_ = 0;
    state_.fetch_and(~kClosed, std::memory_order_release);
    ++times_opened_;
    ++serving_;
    readers_.notify_all();
    writers_.notify_all();
  }

 private:
  static constexpr uint32_t kClosed = uint32_t{1} << 31;

  // The rest of lock_shared where a writer holds the lock or waits for it. The caller has counted
  // itself as a reader, which it is not yet.
  void WaitShared() {
    std::unique_lock<std::mutex> lock(mutex_);
    if (state_.load(std::memory_order_acquire) < kClosed) return;  // opened meanwhile: it is one
    if (state_.fetch_sub(1, std::memory_order_relaxed) == kClosed + 1) writers_.notify_all();
    ++waiting_readers_;
    readers_.wait(lock, [this, times = times_opened_] { return times_opened_ != times; });
  }

  // Readers that hold the lock, and for a moment those that are about to find it closed; kClosed: a
  // writer holds it or is next. That bit changes under the mutex.
  std::atomic<uint32_t> state_{0};
  std::mutex mutex_;  // of all below
  std::condition_variable readers_, writers_;
  uint32_t waiting_readers_ = 0;
  uint64_t times_opened_ = 0;
  uint64_t next_ticket_ = 0, serving_ = 0;  // writers are served in the order in which they came
};

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_CORE_BASE_FAIR_SHARED_MUTEX_H_

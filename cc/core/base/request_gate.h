// RequestGate: any number of requests at a time, or one switch of what they read.
//
// A switch waits for the requests that have begun, for as long as it is told, and those that come
// meanwhile wait for the switch. They wait without a thread: a server's threads are needed by the
// requests that have begun. A request that enters again, by a function within a function, never
// waits, so that it cannot wait for a switch that waits for it.
//
// Where requests are long, switches would keep the others waiting most of the time. So the gate is
// closed by force for a tenth of the time at most: after it was closed, a switch first waits nine
// times as long, a minute at most, for a moment in which no request is inside, while others still
// enter.
#ifndef TF_DYNEMB_CC_CORE_BASE_REQUEST_GATE_H_
#define TF_DYNEMB_CC_CORE_BASE_REQUEST_GATE_H_

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

namespace dynemb {

class RequestGate {
 public:
  // Calls `entered` at once, on this thread, or later, by Open. `request`: a number that the
  // functions within a request share. If it throws std::bad_alloc, nothing entered.
  void Enter(int64_t request, std::function<void()> entered) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      int64_t& times = entered_[request];
      if (closed_ && times == 0) {
        waiting_.emplace_back(request, std::move(entered));
        return;
      }
      if (times++ == 0) ++inside_;
    }
    entered();
  }

  // As often as Enter has called.
  void Leave(int64_t request) {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto within = entered_.find(request);
    if (--within->second > 0) return;
    entered_.erase(within);
    if (--inside_ > 0) return;
    closed_ = closed_ || wanted_;  // before anybody else enters
    empty_.notify_all();
  }

  // Keeps new requests out, until Open, which is to be called in any case. Returns whether nobody
  // is inside: false if requests took longer than `longest_wait` after new ones were kept out, or
  // after End. Calls `each_second` while it waits.
  bool Close(
      std::chrono::duration<double> longest_wait,
      const std::function<void()>& each_second = [] {}) {
    std::unique_lock<std::mutex> lock(mutex_);
    wanted_ = true;
    WaitUntilEmpty(&lock, open_until_, each_second);
    wanted_ = false;
    closed_ = true;
    closed_at_ = Clock::now();
    WaitUntilEmpty(&lock, closed_at_ + std::chrono::duration_cast<Clock::duration>(longest_wait),
                   each_second);
    return inside_ == 0;
  }

  // Lets in who waits; calls `run` with what each gave to Enter.
  void Open(const std::function<void(std::function<void()>)>& run) {
    std::vector<std::pair<int64_t, std::function<void()>>> entering;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (closed_) {
        const Clock::time_point now = Clock::now();
        open_until_ = now + std::min<Clock::duration>(9 * (now - closed_at_), kLongestOpen);
      }
      closed_ = false;
      entering.swap(waiting_);
      for (const auto& [request, entered] : entering) {
        if (entered_[request]++ == 0) ++inside_;  // takes no memory: it is there since Enter
      }
    }
    for (auto& [request, entered] : entering) run(std::move(entered));
  }

  // Close waits no more from now on.
  void End() {
    std::lock_guard<std::mutex> lock(mutex_);
    ended_ = true;
    empty_.notify_all();
  }

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::seconds kLongestOpen{60};

  void WaitUntilEmpty(std::unique_lock<std::mutex>* lock, Clock::time_point until,
                      const std::function<void()>& each_second) {
    const auto may_end = [this] { return inside_ == 0 || ended_; };
    for (;;) {
      const Clock::time_point now = Clock::now();
      const Clock::time_point next = std::min(until, now + std::chrono::seconds(1));
      if (empty_.wait_until(*lock, next, may_end) || next == until || until <= now) return;
      lock->unlock();
      each_second();
      lock->lock();
    }
  }

  std::mutex mutex_;  // of what follows
  std::condition_variable empty_;
  // How often each request has entered; 0 of one that waits.
  std::unordered_map<int64_t, int64_t> entered_;
  int64_t inside_ = 0;  // requests that have entered
  std::vector<std::pair<int64_t, std::function<void()>>> waiting_;
  bool closed_ = false;
  bool wanted_ = false;  // a switch waits for a moment without requests
  bool ended_ = false;
  Clock::time_point closed_at_, open_until_;
};

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_CORE_BASE_REQUEST_GATE_H_

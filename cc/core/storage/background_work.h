// BackgroundWork: what the owner does between calls, a slice at a time, on a thread of the process.
//
// All owners share the thread and take turns, a slice each. A slice may take the locks of its
// owner. Where no thread can be started nothing is done: it is work that calls can do without.
#ifndef TF_DYNEMB_CC_CORE_STORAGE_BACKGROUND_WORK_H_
#define TF_DYNEMB_CC_CORE_STORAGE_BACKGROUND_WORK_H_

#include <functional>
#include <utility>

namespace dynemb {

class BackgroundWork {
 public:
  // slice(): does a part of what there is to do; false: there is no more. Must not throw.
  explicit BackgroundWork(std::function<bool()> slice) : slice_(std::move(slice)) {}
  // Waits for a slice that is under way. The owner holds no lock that a slice takes.
  ~BackgroundWork();
  BackgroundWork(const BackgroundWork&) = delete;
  BackgroundWork& operator=(const BackgroundWork&) = delete;

  // That there is something to do. From any thread, and soon back.
  void Wake();
  // Waits until there is nothing to do.
  void Finish();

 private:
  friend class BackgroundThread;
  const std::function<bool()> slice_;
  // Of the thread's lock.
  bool is_queued_ = false;  // for a turn
  bool is_running_ = false;
  bool is_woken_ = false;   // while it was running
  bool is_ending_ = false;  // no more turns
};

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_CORE_STORAGE_BACKGROUND_WORK_H_

// RunCalls: calls of different sizes, each of which could use all threads by itself.
#ifndef TF_DYNEMB_CC_CORE_BASE_RUN_CALLS_H_
#define TF_DYNEMB_CC_CORE_BASE_RUN_CALLS_H_

#include <cstdint>
#include <functional>
#include <mutex>
#include <vector>

#include "cc/core/base/context.h"
#include "cc/core/base/status.h"

namespace dynemb {

// The first error of several threads.
class FirstError {
 public:
  void Add(const Status& status) {
    if (status.ok()) return;
    std::lock_guard<std::mutex> lock(mutex_);
    if (first_.ok()) first_ = status;
  }
  // What is known of a whole call, whose executor says `ran`.
  Status Or(const Status& ran) const { return first_.ok() ? ran : first_; }

 private:
  std::mutex mutex_;
  Status first_;
};

// Runs call(i, context) for i in [0, sizes.size()), each once. A large call, by its size, runs on
// all threads; small ones run side by side, each on one thread. On a device they run one after the
// other. An error stops none of the others; returns the first one. `nanoseconds`: the approximate
// time of a call of size 1, by default that of a table's call per key.
Status RunCalls(const Context& context, const std::vector<int64_t>& sizes,
                const std::function<Status(int64_t, const Context&)>& call,
                int64_t nanoseconds = 200);

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_CORE_BASE_RUN_CALLS_H_

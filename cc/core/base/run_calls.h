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

// Runs call(i, context) for i in [0, sizes.size()), each once. Large ones, by their sizes, have the
// whole context; small ones run side by side, each on one thread. Of a device, one after the other.
// Returns the first error, which stops none of the others. `nanoseconds`: about what one of a size
// takes, of which calls of tables need so many for a key.
Status RunCalls(const Context& context, const std::vector<int64_t>& sizes,
                const std::function<Status(int64_t, const Context&)>& call,
                int64_t nanoseconds = 200);

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_CORE_BASE_RUN_CALLS_H_

// NoMemoryExecutor: as if there were no memory for what it runs, but for its first runs.
#ifndef TF_DYNEMB_CC_CORE_TESTING_NO_MEMORY_EXECUTOR_H_
#define TF_DYNEMB_CC_CORE_TESTING_NO_MEMORY_EXECUTOR_H_

#include <cstdint>
#include <functional>
#include <new>

#include "cc/core/base/context.h"

namespace dynemb {

class NoMemoryExecutor : public Executor {
 public:
  explicit NoMemoryExecutor(int64_t first_runs = 0) : left_(first_runs) {}
  int concurrency() const override { return 2; }

 private:
  void RunEach(int64_t tasks, int64_t, const std::function<void(int64_t)>& task) override {
    if (left_-- <= 0) throw std::bad_alloc();
    for (int64_t i = 0; i < tasks; ++i) task(i);
  }

  int64_t left_;
};

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_CORE_TESTING_NO_MEMORY_EXECUTOR_H_

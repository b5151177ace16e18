// Context: where and with what a bulk call runs.
//
// A host call borrows threads through Executor; a device call is put into the order of a stream. A
// table checks that the context and all spans are of its own memory space. No exception of a task
// reaches the threads of an Executor.
#ifndef TF_DYNEMB_CC_CORE_BASE_CONTEXT_H_
#define TF_DYNEMB_CC_CORE_BASE_CONTEXT_H_

#include <atomic>
#include <cstdint>
#include <functional>

#include "cc/core/base/macros.h"
#include "cc/core/base/no_memory.h"
#include "cc/core/base/span.h"
#include "cc/core/base/status.h"

namespace dynemb {

// Threads of somebody else. The kernels pass TensorFlow's intra-op pool.
class Executor {
 public:
  virtual ~Executor() = default;
  // How many tasks may run at once; at least 1.
  virtual int concurrency() const = 0;
  // Runs task(0) .. task(tasks - 1), each once, in any order and on any thread, and returns when
  // all have returned. `nanoseconds_per_task` is an estimate that helps the pool to bundle.
  // kResourceExhausted: some of them ran out of memory, which stops none of the others; or there
  // was none to begin with, and no task has run.
  template <typename F>
  Status Run(int64_t tasks, int64_t nanoseconds_per_task, const F& task) {
    std::atomic<bool> no_memory{false};
    // Of two references, for which a std::function takes no memory.
    const auto try_task = [&no_memory, &task](int64_t number) {
      if (!OrNoMemory([&] { Call(task, number); }).ok()) no_memory = true;
    };
    const Status ran = OrNoMemory([&] { RunEach(tasks, nanoseconds_per_task, try_task); });
    return no_memory ? NoMemory() : ran;
  }

 private:
  // Not inlined into the function that catches, where GCC keeps less of a task in registers.
  template <typename F>
  DYNEMB_NOINLINE static void Call(const F& task, int64_t number) {
    task(number);
  }
  // Run, for tasks that throw nothing. It may throw std::bad_alloc before the first task.
  virtual void RunEach(int64_t tasks, int64_t nanoseconds_per_task,
                       const std::function<void(int64_t)>& task) = 0;
};

// The calling thread alone.
class InlineExecutor : public Executor {
 public:
  int concurrency() const override { return 1; }

 private:
  void RunEach(int64_t tasks, int64_t, const std::function<void(int64_t)>& task) override {
    for (int64_t i = 0; i < tasks; ++i) task(i);
  }
};

class UseMarks;

struct Context {
  MemorySpace space = MemorySpace::kHost;
  // Host calls: never null. Device calls: may be null.
  Executor* executor = nullptr;
  // Device calls: the stream (cudaStream_t or the simulated device's). Results are there in stream
  // order.
  void* stream = nullptr;
  // Calls that look keys up in a cache: where it notes that they are used; null: nowhere.
  UseMarks* use_marks = nullptr;
};

// Host calls on the calling thread.
struct OneThread : Context {
  OneThread() { executor = &inline_executor; }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;
  InlineExecutor inline_executor;
};

// The context of host calls: one of a device may have no executor.
struct HostContext : Context {
  explicit HostContext(const Context& from) {
    executor = from.executor != nullptr ? from.executor : &inline_executor;
  }
  InlineExecutor inline_executor;
};

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_CORE_BASE_CONTEXT_H_

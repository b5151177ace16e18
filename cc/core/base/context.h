// Context: where and with what a bulk call runs.
//
// A host call borrows threads through Executor; a device call is put into the order of a stream. A
// table checks that the context and all spans are of its own memory space.
#ifndef TF_DYNEMB_CC_CORE_BASE_CONTEXT_H_
#define TF_DYNEMB_CC_CORE_BASE_CONTEXT_H_

#include <cstdint>
#include <functional>

#include "cc/core/base/span.h"

namespace dynemb {

// Threads of somebody else. The kernels pass TensorFlow's intra-op pool.
class Executor {
 public:
  virtual ~Executor() = default;
  // How many tasks may run at once; at least 1.
  virtual int concurrency() const = 0;
  // Runs task(0) .. task(tasks - 1), each once, in any order and on any thread, and returns when
  // all have returned. `nanoseconds_per_task` is an estimate that helps the pool to bundle.
  virtual void Run(int64_t tasks, int64_t nanoseconds_per_task,
                   const std::function<void(int64_t)>& task) = 0;
};

// The calling thread alone.
class InlineExecutor : public Executor {
 public:
  int concurrency() const override { return 1; }
  void Run(int64_t tasks, int64_t, const std::function<void(int64_t)>& task) override {
    for (int64_t i = 0; i < tasks; ++i) task(i);
  }
};

struct Context {
  MemorySpace space = MemorySpace::kHost;
  // Host calls: never null. Device calls: may be null.
  Executor* executor = nullptr;
  // Device calls: the stream (cudaStream_t or the fake device's). Results are there in stream
  // order.
  void* stream = nullptr;
};

// Host calls on the calling thread.
struct OneThread : Context {
  OneThread() { executor = &inline_executor; }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;
  InlineExecutor inline_executor;
};

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_CORE_BASE_CONTEXT_H_

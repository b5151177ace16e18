// StreamOrder: calls of several streams to one thing, in an order: as a lock for readers and
// writers that no host thread waits for.
#ifndef TF_DYNEMB_CC_GPU_TABLE_STREAM_ORDER_H_
#define TF_DYNEMB_CC_GPU_TABLE_STREAM_ORDER_H_

#include <cuda_runtime_api.h>

#include <cstddef>
#include <map>

#include "cc/core/base/context.h"
#include "cc/core/base/status.h"

namespace dynemb {

// Work that is put into a stream between Begin and End runs after the work of the calls before that
// it must not run beside: a reader's after the last writer's, a writer's after that of all. Between
// the two nobody else may call: the caller holds a mutex. Contexts of the host need no order.
//
// A stream waits for its own marks too, which costs next to nothing: a new stream may have the
// address of one that was destroyed while it still had work.
class StreamOrder {
 public:
  StreamOrder() = default;
  StreamOrder(const StreamOrder&) = delete;
  StreamOrder& operator=(const StreamOrder&) = delete;
  ~StreamOrder();

  Status Begin(const Context& context, bool writes);
  Status End(const Context& context, bool writes);

  // The host waits until all that was begun has been done.
  Status WaitForAll();

 private:
  struct Mark {
    cudaEvent_t event = nullptr;
    bool set = false;
  };
  Status Record(const Context& context, Mark* mark);
  static Status WaitFor(const Context& context, const Mark& mark);
  // The mark of a stream that reads. Where there are many, those of streams that have done what
  // they were given make room for it.
  Mark* ReaderMark(cudaStream_t stream);

  static constexpr size_t kManyReaders = 16;
  Mark writer_;
  std::map<cudaStream_t, Mark> readers_;  // by stream; `set` since the last writer
};

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_GPU_TABLE_STREAM_ORDER_H_

// KnownCounts: how many rows a table has, and what the host knows of it without waiting.
#ifndef TF_DYNEMB_CC_GPU_TABLE_KNOWN_COUNTS_H_
#define TF_DYNEMB_CC_GPU_TABLE_KNOWN_COUNTS_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "cc/core/base/context.h"
#include "cc/core/base/status.h"
#include "cc/gpu/table/device_buffer.h"
#include "cc/gpu/table/write_rows.cu.h"

namespace dynemb {

// The counts are in the table's memory, where kernels count. The host has an upper bound: what it
// last heard, and all keys of the calls since. Calls that insert send the counts to the host, which
// takes note of them when they have come.
class KnownCounts {
 public:
  KnownCounts() = default;
  // Exchanges the two.
  KnownCounts& operator=(KnownCounts&& o) noexcept;
  ~KnownCounts();

  Status Init(const Context& context, DeviceMemory* memory);
  Status Clear(const Context& context);

  RowCounts* there() const { return buffer_.as<RowCounts>(); }
  ReadCounts reads() const { return {reads_.as<ReadCounts::Count>()}; }
  // Adds what reads have found and missed. Waits for the stream.
  Status AddReads(const Context& context, TableCounters* counters) const;
  // There are no more rows than that.
  int64_t most_rows() const { return most_rows_; }

  // Takes note of what has come.
  void Poll();
  // Waits for the stream.
  Status Read(const Context& context, RowCounts* counts);
  Status ReadAndForgetFull(const Context& context, RowCounts* counts);
  // Of a call that has failed and given back what it took.
  Status ForgetTaken(const Context& context);

  // The end of a call that inserted at most so many rows, up to `limit` in all.
  Status EndCall(const Context& context, int64_t limit, int64_t inserted);
  // Its two halves: what a kernel does then; and what follows when that has been put into the
  // stream.
  CountRows Ending(const Context& context, int64_t limit, int64_t inserted) const {
    const bool sends = !RunsOnHost(context.space) && !under_way_ && inserted > 0;
    return {there(), limit, sends ? sent_ : nullptr};
  }
  Status Ended(const Context& context, int64_t inserted);

 private:
  DeviceBuffer buffer_, reads_;
  RowCounts* sent_ = nullptr;   // pinned: where they come
  cudaEvent_t came_ = nullptr;  // they have
  bool under_way_ = false;
  int64_t inserted_since_ = 0;  // they were sent
  int64_t most_rows_ = 0;
};

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_GPU_TABLE_KNOWN_COUNTS_H_

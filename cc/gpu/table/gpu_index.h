// GpuIndex: the index of a GPU table as the host sees it: how large it is, and how it grows.
#ifndef TF_DYNEMB_CC_GPU_TABLE_GPU_INDEX_H_
#define TF_DYNEMB_CC_GPU_TABLE_GPU_INDEX_H_

#include <cstdint>

#include "cc/core/base/context.h"
#include "cc/core/base/status.h"
#include "cc/gpu/table/device_buffer.h"
#include "cc/gpu/table/index.cu.h"

namespace dynemb {

// It grows by half at a time, beginning before it is full. Then every call that inserts moves a
// share of the keys to the new array, as much as its keys are of what the old one still has room
// for: so no call does all the work, and none finds the old one full.
class GpuIndex {
 public:
  explicit GpuIndex(DeviceMemory* memory) : memory_(memory) {}

  // The smallest index, in place of what there was, which nothing uses any more.
  Status Clear(const Context& context);

  // Without keys, and as large as it is.
  Status Empty(const Context& context);

  const Index& view() const { return view_; }
  int64_t cells() const {
    return int64_t{growing() ? view_.next.count : view_.current.count} * kCells;
  }
  int64_t bytes() const { return current_.bytes() + next_.bytes(); }

  // How many keys fit. Reaches `rows` after a MakeRoom of them that found memory.
  int64_t limit() const { return limit_; }
  // Will MakeRoom for so many keys take memory?
  bool TakesMemory(int64_t rows) const { return rows > (growing() ? limit_ : start_); }
  // Makes room for `rows` keys in all, `inserting` of which are about to be inserted, and begins to
  // grow where it would for `ahead`. Without memory it does what it can: see limit().
  Status MakeRoom(const Context& context, int64_t rows, int64_t inserting, int64_t ahead);
  // What an index takes that was reserved for so many keys.
  static int64_t ReservedBytes(int64_t rows);
  // One array, with room for so many keys, that does not begin to grow before.
  Status Reserve(const Context& context, int64_t rows);

 private:
  static constexpr int64_t kCells = IndexChunk::kCells;
  bool growing() const { return view_.next.count != 0; }
  // Begins to grow to `chunks`. *begun: there was memory.
  Status Begin(const Context& context, int64_t chunks, int64_t start, int64_t limit, bool* begun);
  // Moves the keys of the next so many chunks.
  Status Move(const Context& context, int64_t chunks);

  DeviceMemory* memory_;
  Index view_;
  DeviceBuffer current_, next_;
  int64_t moved_chunks_ = 0;       // of the current part
  int64_t start_ = 0, limit_ = 0;  // of the current part: when to grow, and what it takes
  int64_t next_start_ = 0, next_limit_ = 0;
};

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_GPU_TABLE_GPU_INDEX_H_

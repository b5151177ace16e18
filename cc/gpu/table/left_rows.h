// LeftRows: keys and values of rows that leave a GPU table by its policy, on their way to the host.
#ifndef TF_DYNEMB_CC_GPU_TABLE_LEFT_ROWS_H_
#define TF_DYNEMB_CC_GPU_TABLE_LEFT_ROWS_H_

#include <cstdint>

#include "cc/core/base/context.h"
#include "cc/core/base/macros.h"
#include "cc/core/base/status.h"
#include "cc/core/table/evicted_rows.h"
#include "cc/gpu/table/atomics.cu.h"
#include "cc/gpu/table/scratch.h"

namespace dynemb {

// The rows of one call, as kernels see them.
struct LeavingRows {
  int64_t* count = nullptr;  // null: rows that leave are not kept
  Key* keys = nullptr;       // null: there was no memory for them; they are counted
  char* values = nullptr;    // packed
  int64_t value_bytes = 0, room = 0;

  // False: there is no room, and the row must stay. By one thread.
  DYNEMB_HOST_DEVICE bool Add(Key key, const char* row) const {
    if (count == nullptr) return true;
    const int64_t at = AtomicAdd(count, int64_t{1});
    if (keys == nullptr) return true;
    if (at >= room) return false;
    keys[at] = key;
    char* const value = values + at * value_bytes;
    for (int64_t i = 0; i < value_bytes; ++i) value[i] = row[i];
    return true;
  }
};

class LeftRows {
 public:
  explicit LeftRows(DeviceMemory* memory) : scratch_(memory) {}

  // Before a call by which up to so many leave; unless there must be room for `all`, for fewer
  // where they are many bytes. Where there is no memory for their values, they are counted as
  // dropped.
  Status Begin(const Context& context, int64_t rows, bool all, int64_t value_bytes,
               LeavingRows* leaving);
  // After it; in the order of their hashes. Waits for the stream. *overflow: there were more.
  Status End(const Context& context, const LeavingRows& leaving, EvictedRows* to, bool* overflow);

  void Free() { scratch_.Free(); }

 private:
  Scratch scratch_;
};

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_GPU_TABLE_LEFT_ROWS_H_

// RowStore: the rows of a GPU table as the host sees them: slabs that never move.
#ifndef TF_DYNEMB_CC_GPU_TABLE_ROW_STORE_H_
#define TF_DYNEMB_CC_GPU_TABLE_ROW_STORE_H_

#include <cstdint>
#include <utility>
#include <vector>

#include "cc/core/base/context.h"
#include "cc/core/base/status.h"
#include "cc/core/table/row_layout.h"
#include "cc/gpu/table/device_buffer.h"
#include "cc/gpu/table/rows.cu.h"

namespace dynemb {

class RowStore {
 public:
  RowStore(DeviceMemory* memory, const RowLayout& layout);

  // Makes room for so many rows, or for as many as there is memory for: see capacity().
  Status Grow(const Context& context, int64_t rows);
  int64_t capacity() const { return capacity_; }
  // Of slabs and the list of free rows.
  int64_t bytes() const { return slab_bytes_ + free_rows_.bytes(); }

  RowSlabs view() const { return {addresses_.as<char*>(), sizes_, stride_bytes_}; }

  // Memory for the numbers of all rows, in which the free ones are listed; taken when it is first
  // asked for, and again when there are more rows, with what was in it. kResourceExhausted.
  Status FreeRows(const Context& context, RowRef** free_rows);
  // What there is of it, which may be nothing.
  RowRef* free_rows() const { return free_rows_.as<RowRef>(); }

  // A store of rows of another layout with the same numbers, but without what is in them and
  // without a list of free ones. kResourceExhausted.
  Status MakeLike(const Context& context, const RowLayout& layout, RowStore* like) const;
  // Takes the place of a store that this one was made like.
  void Replace(RowStore* store) {
    free_rows_ = std::move(store->free_rows_);
    *store = std::move(*this);
  }

 private:
  static constexpr int64_t kMostSlabs = 1 << 16;

  DeviceMemory* memory_;
  int64_t stride_bytes_;
  SlabSizes sizes_;
  std::vector<DeviceBuffer> slabs_;
  DeviceBuffer addresses_;  // of the slabs, for kernels
  DeviceBuffer free_rows_;
  int64_t capacity_ = 0, slab_bytes_ = 0;
};

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_GPU_TABLE_ROW_STORE_H_

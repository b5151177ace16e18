// RowStore: the rows of a GPU table as the host sees them: slabs that never move, and slabs of
// marks beside them where changes are tracked.
#ifndef TF_DYNEMB_CC_GPU_TABLE_ROW_STORE_H_
#define TF_DYNEMB_CC_GPU_TABLE_ROW_STORE_H_

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "cc/core/base/context.h"
#include "cc/core/base/status.h"
#include "cc/core/table/row_layout.h"
#include "cc/gpu/table/device_buffer.h"
#include "cc/gpu/table/rows.cu.h"

namespace dynemb {

// Blocks of memory and a list of where they are, for kernels.
class SlabList {
 public:
  explicit SlabList(DeviceMemory* memory) : memory_(memory) {}

  // What the list of so many blocks takes.
  static int64_t ListBytes(int64_t slabs);
  // Adds a block and waits for the stream. *added: there was memory.
  Status Add(const Context& context, int64_t bytes, bool* added);
  // Gives the memory of a block back, which nothing uses any more.
  void Free(int64_t slab);

  int64_t size() const { return static_cast<int64_t>(slabs_.size()); }
  int64_t bytes() const { return bytes_ + addresses_.bytes(); }
  char* slab(int64_t i) const { return slabs_[static_cast<size_t>(i)].as<char>(); }
  template <typename T>
  T* const* there() const {
    return addresses_.as<T*>();
  }

 private:
  DeviceMemory* memory_;
  std::vector<DeviceBuffer> slabs_;
  DeviceBuffer addresses_;
  int64_t bytes_ = 0;
};

class RowStore {
 public:
  RowStore(DeviceMemory* memory, const RowLayout& layout);

  // No more than so many, whatever is asked for; of a store that has not more. Negative: any
  // number.
  void SetLimit(int64_t rows) { limit_ = rows; }
  // The list of free rows grows with the rows, not when it is first asked for.
  void ListFreeRows() { lists_free_rows_ = true; }
  // What so many rows take, with marks and a list of free ones, of which there are so many bytes.
  int64_t BytesOf(int64_t rows, int64_t marks_bytes, int64_t free_rows_bytes) const;
  int64_t marks_bytes() const { return marks_.bytes(); }
  int64_t free_rows_bytes() const { return free_rows_.bytes(); }

  // Makes room for so many rows, or for as many as there is memory for: see capacity().
  Status Grow(const Context& context, int64_t rows);
  int64_t capacity() const { return capacity_; }
  // Of slabs, marks and the list of free rows.
  int64_t bytes() const { return slabs_.bytes() + marks_.bytes() + free_rows_.bytes(); }

  RowSlabs view() const { return {slabs_.there<char>(), sizes_, stride_bytes_}; }

  // From now on rows have marks, which are 0 at first. kResourceExhausted.
  Status BeginMarks(const Context& context);
  // Of an epoch that is current.
  RowMarks marks(int64_t epoch) const {
    return {has_marks_ ? marks_.there<int64_t>() : nullptr, sizes_, epoch};
  }

  // Memory for the numbers of all rows, in which the free ones are listed; taken when it is first
  // asked for, and again when there are more rows, with what was in it. kResourceExhausted.
  Status FreeRows(const Context& context, RowRef** free_rows);
  // What there is of it, which may be nothing.
  RowRef* free_rows() const { return free_rows_.as<RowRef>(); }

  // A store of rows of another layout with the same numbers, `used` of them, but without what is in
  // them, without marks and a list of free ones. It keeps its limit. kResourceExhausted.
  Status MakeLike(const Context& context, const RowLayout& layout, int64_t used,
                  RowStore* like) const;
  // What MakeLike has left out is taken from the store that this one was made like.
  void TakeMarksAndFreeRows(RowStore* from) {
    // Without rows there may be marks of a slab for which there was no memory.
    if (capacity_ > 0) marks_ = std::move(from->marks_);
    std::swap(has_marks_, from->has_marks_);
    free_rows_ = std::move(from->free_rows_);
  }
  // Calls move(first row, rows) for each slab, of the rows up to number `used`, and gives its
  // memory back.
  template <typename F>
  Status EmptySlabs(const Context& context, int64_t used, const F& move) {
    int64_t first = 0;
    for (int64_t slab = 0; slab < slabs_.size(); ++slab) {
      const int64_t rows = RowsOfSlab(slab);
      if (first < used) DYNEMB_RETURN_IF_ERROR(move(first, std::min(rows, used - first)));
      DYNEMB_RETURN_IF_ERROR(Wait(context));
      slabs_.Free(slab);
      first += rows;
    }
    return {};
  }

 private:
  // How many rows are in a slab: fewer than SlabSizes say in the last one of a store with a limit.
  int64_t RowsOfSlab(int64_t slab) const;
  Status AddMarks(const Context& context, int64_t rows, bool* added);
  // Makes the list of free rows long enough for so many. kResourceExhausted.
  Status ListFreeRows(const Context& context, int64_t rows);

  DeviceMemory* memory_;
  int64_t stride_bytes_;
  SlabSizes sizes_;
  SlabList slabs_;
  SlabList marks_;  // where there are marks: for each slab of rows one, or for one more
  bool has_marks_ = false;
  DeviceBuffer free_rows_;
  int64_t capacity_ = 0;
  int64_t limit_ = -1;
  bool lists_free_rows_ = false;
};

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_GPU_TABLE_ROW_STORE_H_

#include <algorithm>

#include "cc/gpu/table/row_store.h"

namespace dynemb {
namespace {

constexpr int64_t kFirstSlabBytes = int64_t{64} << 10;
constexpr int64_t kMostSlabBytes = int64_t{128} << 20;

// The largest power of two of rows, at least one, that are not larger than so many bytes.
int RowBits(int64_t bytes, int64_t stride_bytes) {
  int bits = 0;
  while ((stride_bytes << (bits + 1)) <= bytes) ++bits;
  return bits;
}

}  // namespace

int64_t SlabList::ListBytes(int64_t slabs) {
  constexpr int64_t kLeastSlabs = 64;
  int64_t room = kLeastSlabs;
  while (room < slabs) room *= 2;
  return room * static_cast<int64_t>(sizeof(char*));
}

Status SlabList::Add(const Context& context, int64_t bytes, bool* added) {
  *added = false;
  const int64_t list_bytes = ListBytes(size() + 1);
  if (addresses_.bytes() < list_bytes) {
    DeviceBuffer larger;
    if (!larger.Allocate(memory_, list_bytes)) return {};
    DYNEMB_RETURN_IF_ERROR(
        CopyAny(context, larger.as<char>(), addresses_.as<char>(), addresses_.bytes()));
    DYNEMB_RETURN_IF_ERROR(Wait(context));
    addresses_ = std::move(larger);
  }
  DeviceBuffer buffer;
  if (!buffer.Allocate(memory_, bytes)) return {};
  char* const address = buffer.as<char>();
  const Status copied =
      CopyAny(context, addresses_.as<char*>() + size(), &address, sizeof(address));
  DYNEMB_RETURN_IF_ERROR(Wait(context));  // `address` ends here
  DYNEMB_RETURN_IF_ERROR(copied);
  bytes_ += buffer.bytes();
  slabs_.push_back(std::move(buffer));
  *added = true;
  return {};
}

void SlabList::Free(int64_t slab) {
  DeviceBuffer& buffer = slabs_[static_cast<size_t>(slab)];
  bytes_ -= buffer.bytes();
  buffer.Free();
}

RowStore::RowStore(DeviceMemory* memory, const RowLayout& layout)
    : memory_(memory),
      stride_bytes_((layout.row_bytes + 15) / 16 * 16),
      slabs_(memory),
      marks_(memory) {
  sizes_.first_bits = RowBits(kFirstSlabBytes, stride_bytes_);
  sizes_.most_bits = RowBits(kMostSlabBytes, stride_bytes_);
}

int64_t RowStore::RowsOfSlab(int64_t slab) const {
  const int64_t rows = sizes_.rows(slab);
  if (limit_ < 0) return rows;
  int64_t at_slab, of_slab;  // where the row would lie that is one too many
  sizes_.Locate(static_cast<uint64_t>(limit_), &at_slab, &of_slab);
  return slab < at_slab ? rows : slab == at_slab ? of_slab : 0;
}

int64_t RowStore::BytesOf(int64_t rows, int64_t marks_bytes, int64_t free_rows_bytes) const {
  int64_t slab = 0, of_slab = 0;
  if (rows > 0) sizes_.Locate(static_cast<uint64_t>(rows - 1), &slab, &of_slab);
  const int64_t list = SlabList::ListBytes(slab + 1);
  const int64_t marks = rows * static_cast<int64_t>(sizeof(int64_t)) + list;
  const int64_t free_rows = rows * static_cast<int64_t>(sizeof(RowRef));
  return rows * stride_bytes_ + list + std::max(marks, marks_bytes) +
         std::max(free_rows, free_rows_bytes);
}

Status RowStore::Grow(const Context& context, int64_t rows) {
  while (capacity_ < rows) {
    const int64_t more = RowsOfSlab(slabs_.size());
    bool added = more > 0 && capacity_ + more <= int64_t{kNoRow};
    if (added && has_marks_ && marks_.size() == slabs_.size()) {
      DYNEMB_RETURN_IF_ERROR(AddMarks(context, more, &added));
    }
    if (added && lists_free_rows_) {
      const Status listed = ListFreeRows(context, capacity_ + more);
      added = listed.ok();
      if (!added && listed.code() != Code::kResourceExhausted) return listed;
    }
    if (added) DYNEMB_RETURN_IF_ERROR(slabs_.Add(context, more * stride_bytes_, &added));
    if (!added) return {};
    capacity_ += more;
  }
  return {};
}

Status RowStore::AddMarks(const Context& context, int64_t rows, bool* added) {
  const int64_t bytes = rows * static_cast<int64_t>(sizeof(int64_t));
  DYNEMB_RETURN_IF_ERROR(marks_.Add(context, bytes, added));
  return *added ? FillBytes(context, marks_.slab(marks_.size() - 1), 0, bytes) : Status();
}

Status RowStore::BeginMarks(const Context& context) {
  bool added = true;
  while (added && marks_.size() < slabs_.size()) {
    DYNEMB_RETURN_IF_ERROR(AddMarks(context, RowsOfSlab(marks_.size()), &added));
  }
  if (added) {
    has_marks_ = true;
    return {};
  }
  DYNEMB_RETURN_IF_ERROR(Wait(context));
  marks_ = SlabList(memory_);
  return ResourceExhausted("no GPU memory for the marks of ", capacity_, " rows");
}

Status RowStore::FreeRows(const Context& context, RowRef** free_rows) {
  DYNEMB_RETURN_IF_ERROR(ListFreeRows(context, capacity_));
  *free_rows = free_rows_.as<RowRef>();
  return {};
}

Status RowStore::ListFreeRows(const Context& context, int64_t rows) {
  if (limit_ >= 0) rows = limit_;
  const int64_t bytes = std::max<int64_t>(rows, 1) * static_cast<int64_t>(sizeof(RowRef));
  if (free_rows_.bytes() >= bytes) return {};
  DeviceBuffer buffer;
  if (!buffer.Allocate(memory_, bytes)) {
    return ResourceExhausted("no GPU memory for the list of ", rows, " rows");
  }
  DYNEMB_RETURN_IF_ERROR(FillBytes(context, buffer.as<char>(), 0, bytes));
  DYNEMB_RETURN_IF_ERROR(
      CopyAny(context, buffer.as<char>(), free_rows_.as<char>(), free_rows_.bytes()));
  DYNEMB_RETURN_IF_ERROR(Wait(context));
  free_rows_ = std::move(buffer);
  return {};
}

Status RowStore::MakeLike(const Context& context, const RowLayout& layout, int64_t used,
                          RowStore* like) const {
  const int64_t limit = like->limit_;
  const bool lists_free_rows = like->lists_free_rows_;
  *like = RowStore(memory_, layout);
  like->limit_ = limit;
  if (capacity_ == 0) {
    like->lists_free_rows_ = lists_free_rows;
    return {};
  }
  like->sizes_ = sizes_;
  DYNEMB_RETURN_IF_ERROR(like->Grow(context, limit < 0 ? capacity_ : std::min(capacity_, limit)));
  like->lists_free_rows_ = lists_free_rows;  // which it takes from this one
  if (like->capacity_ >= used) return {};
  *like = RowStore(memory_, layout);
  return ResourceExhausted("no GPU memory for rows of ", layout.row_bytes,
                           " bytes beside the present ones");
}

}  // namespace dynemb

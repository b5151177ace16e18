// Segment: one independently grown part of a host table: an index over rows in slabs. Not
// thread-safe; the table holds a lock for it.
//
// The index (key_index.h) grows by half, into a larger array. If it is large, then not at once: for
// a while there are two arrays, and each insertion moves a few chunks from the old one to the new
// one, from front to back. No key of the chunks that are left wants or lies in another one, so that
// the hash of a key says which of the arrays it is in.
//
// A row is `value | slots | meta` and lies in a block of rows, one after the other; its reference
// is (block, row in the block), 16 bits each. Rows never move, and references stay valid, when the
// index grows. Nothing in a row says whose it is, or whether it is used: the index alone knows.
// Erased rows are in a list, each with the reference of the next in its first bytes; the others
// that are not used lie at the end of the last block.
//
// Costs: a find touches 1 line of index and the row; memory is 16 to 24 bytes of index per row, key
// included, if all were inserted without a size being reserved, and up to 1/32 of the rows in the
// last block ahead of need.
#ifndef TF_DYNEMB_CC_CORE_TABLE_SEGMENT_H_
#define TF_DYNEMB_CC_CORE_TABLE_SEGMENT_H_

#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "cc/core/base/macros.h"
#include "cc/core/table/key_index.h"
#include "cc/core/table/row_layout.h"
#include "cc/core/table/slab_arena.h"
#include "cc/core/table/stripes.h"

namespace dynemb {

// Bit positions of Mix64(key): the segment is in bits 58-63 (host_table), the chunk comes from bits
// 26-57, so that the keys of a segment want chunks in the order of their hashes.
class Segment {
 public:
  using Ref = KeyIndex::Ref;
  static constexpr Ref kNone = KeyIndex::kNone;
  static constexpr int64_t kIndexBytesPerRow = 16;  // at least

  // `phase` in [0, 1) shifts the sizes at which the index grows, and how much more than what is
  // reserved it takes, so that the segments of one table do not all grow in the same batch. The
  // arenas, of rows and of indices, must outlive the segment.
  Segment(SlabArena* row_arena, SlabArena* index_arena, const RowLayout& layout, double phase);
  ~Segment();
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;

  int64_t size() const { return size_; }
  // Rows that it has memory for: those that there are, erased ones, and those of the last block.
  int64_t allocated_rows() const;
  const RowLayout& layout() const { return layout_; }

  // As KeyIndex.
  Ref FindAtHome(int64_t key, uint64_t hash, bool* beyond, bool* marked) const {
    *beyond = *marked = false;
    if (index_.empty()) return kNone;
    return IndexOf(hash).FindAtHome(key, hash, beyond, marked);
  }
  Ref FindBeyond(int64_t key, uint64_t hash, bool* marked) const {
    return IndexOf(hash).FindBeyond(key, hash, marked);
  }
  // Adds a missing key; the row's bytes are undefined. kNone: no memory.
  Ref Insert(int64_t key, uint64_t hash);
  // Removes a key that is there. Returns whether it was marked.
  bool Erase(int64_t key, uint64_t hash);
  // Removes all rows and gives back all memory.
  void Clear();
  // Whether the index has two arrays.
  bool growing() const { return !old_index_.empty(); }
  // If the index is growing, moves the keys of at least so many chunks, 1 or more.
  void ContinueGrowth(uint32_t chunks);
  // Makes the index large enough for `rows` rows. False: no memory, nothing changed.
  bool ReserveIndex(int64_t rows);
  // The bytes of an index that is made so large while it is empty, by a segment of this phase; and
  // the most bytes of rows that a segment takes which never has more than so many.
  static int64_t IndexBytes(int64_t rows, double phase);
  static int64_t RowBytes(int64_t rows, const RowLayout& layout);

  char* row(Ref ref) const { return blocks_[ref >> 16].rows + (ref & 0xffffu) * layout_.row_bytes; }

  // Takes memory for all rows of `from`, under this segment's layout. This one must be empty, and
  // shares the arena of indices with the other. False: no memory.
  bool AllocateRowsOf(const Segment& from);
  // Then takes over everything, with the same references: `convert(old_row, new_row)` fills each
  // row from its slots_offset on; values are copied. `from` is empty afterwards. Its memory is
  // given back block by block.
  template <typename Convert>
  void TakeRows(Segment* from, const Convert& convert);

  // A key's mark says whether the change log lists it or, in a cache, whether its row is dirty. As
  // KeyIndex.
  bool Mark(int64_t key, uint64_t hash) { return IndexOf(hash).Mark(key, hash); }
  void Unmark(int64_t key, uint64_t hash) { IndexOf(hash).Unmark(key, hash); }
  void ClearMarks() {
    index_.ClearMarks();
    old_index_.ClearMarks();
  }

  using Entry = KeyIndex::Entry;
  // Appends the rows with hashes of this range, ascending.
  void AppendRange(HashRange hashes, std::vector<Entry>* entries) const;
  void PrefetchRange(HashRange hashes) const;
  // Calls visit(entry) for the rows with hashes of this range, in no order, with what fetch(row)
  // asks for fetched ahead. `visit` must not erase: that moves keys.
  template <typename Fetch, typename Visit>
  void ForEachInRange(HashRange hashes, const Fetch& fetch, const Visit& visit) const;
  // Number of bits of stripes that are two to four chunks each, or more if those were too many.
  int StripeBits() const;

  DYNEMB_ALWAYS_INLINE void PrefetchChunk(uint64_t hash) const {
    if (!index_.empty()) IndexOf(hash).Prefetch(hash);
  }

 private:
  // The next in the list of erased rows.
  Ref NextFree(Ref ref) const {
    Ref next;
    std::memcpy(&next, row(ref), sizeof(next));
    return next;
  }

  struct Block {
    char* rows;
    uint32_t row_count;
  };

  Ref AllocateRow();
  bool AddBlock(uint32_t row_count);
  void FreeBlock(Block* block);
  // Whether keys of this hash are in the array that the index grows from.
  bool InOldIndex(uint64_t hash) const {
    if (old_index_.empty()) return false;
    const uint32_t home = old_index_.Home(hash);
    return old_begin_ <= home && home < old_end_;
  }
  const KeyIndex& IndexOf(uint64_t hash) const { return InOldIndex(hash) ? old_index_ : index_; }
  KeyIndex& IndexOf(uint64_t hash) { return InOldIndex(hash) ? old_index_ : index_; }
  bool GrowIndex();
  // Begins to grow it to a whole number of chunks. False: too many or no memory, nothing changed.
  bool BeginGrowth(double chunks_wanted);
  void MoveChunk(uint32_t at);
  // Moves the keys of the last chunk of the old array, and of those before it that overflow into
  // it.
  void MoveLastChunks();
  static double ChunksFor(int64_t rows);
  static double ReservedChunks(int64_t rows, double phase);
  // How many rows a new block has, of a segment of so many.
  static int64_t RowsOfBlock(int64_t rows, const RowLayout& layout);

  SlabArena* const row_arena_;
  SlabArena* const index_arena_;
  RowLayout layout_;
  const double phase_;

  KeyIndex index_;
  KeyIndex old_index_;  // where not empty, the keys in its chunks [old_begin_, old_end_) are here
  uint32_t old_begin_ = 0, old_end_ = 0;
  int64_t size_ = 0;

  std::vector<Block> blocks_;
  uint32_t fresh_ = 0;  // rows of the last block that have been handed out
  Ref free_ = kNone;    // head of the list of erased rows
};

template <typename Fetch, typename Visit>
void Segment::ForEachInRange(HashRange hashes, const Fetch& fetch, const Visit& visit) const {
  const auto fetch_row = [&](Ref ref) DYNEMB_INLINE_LAMBDA { fetch(row(ref)); };
  if (index_.empty()) return;
  index_.ForEachInRange(hashes, 0, index_.chunk_count(), fetch_row, visit);
  if (old_index_.empty()) return;
  old_index_.ForEachInRange(hashes, old_begin_, old_end_, fetch_row, visit);
}

template <typename Convert>
void Segment::TakeRows(Segment* from, const Convert& convert) {
  for (size_t b = 0; b < blocks_.size(); ++b) {
    Block& old = from->blocks_[b];
    const uint32_t n = b + 1 < blocks_.size() ? old.row_count : from->fresh_;
    for (uint32_t r = 0; r < n; ++r) {
      const char* const old_row = old.rows + r * from->layout_.row_bytes;
      char* const new_row = blocks_[b].rows + r * layout_.row_bytes;
      // An erased row keeps its place in the list so.
      std::memcpy(new_row, old_row, static_cast<size_t>(layout_.slots_offset));
      convert(old_row, new_row);
    }
    from->FreeBlock(&old);
  }
  from->blocks_.clear();
  std::swap(index_, from->index_);
  std::swap(old_index_, from->old_index_);
  std::swap(old_begin_, from->old_begin_);
  std::swap(old_end_, from->old_end_);
  std::swap(size_, from->size_);
  std::swap(fresh_, from->fresh_);
  std::swap(free_, from->free_);
}

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_CORE_TABLE_SEGMENT_H_

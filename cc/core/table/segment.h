// Segment: one independently grown part of a host table: an index over rows in slabs. Not
// thread-safe; the table holds a lock for it.
//
// The index is an array of 64-byte chunks, one cache line each:
//
//   byte  0                      40                         60     61         62    64
//        | 5 keys, 8 bytes each | 5 references to rows, 4 B | used | overflow | pad |
//
// Bit c of `used` says that cell c holds a key. `overflow` counts the keys that wanted this chunk
// and went on to a later one because it was full: a search for a key that is not there ends at the
// first chunk where it is 0, usually the first. An erased key leaves an empty cell and lowers the
// counts on its way, so there are no tombstones and erasing never degrades the index. (The counts
// are those of F14: Bronson and Shi, "Open-sourcing F14 for faster, more memory-efficient hash
// tables", 2019.) A count that has reached 255 stays there; it costs probes, never a wrong answer.
// Keys lie in the index in the order of their hashes, so that it grows by reading and writing
// memory from front to back.
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

#include "cc/core/base/hash.h"
#include "cc/core/table/row_layout.h"
#include "cc/core/table/slab_arena.h"
#include "cc/core/table/stripes.h"

namespace dynemb {

// Bit positions of Mix64(key): the segment is in bits 58-63 (host_table), the chunk comes from bits
// 26-57, so that the keys of a segment want chunks in the order of their hashes.
class Segment {
 public:
  using Ref = uint32_t;
  static constexpr Ref kNone = 0xffffffffu;
  static constexpr int64_t kIndexBytesPerRow = 16;  // at least

  // `phase` in [0, 1) shifts the sizes at which the index grows, and how much more than what is
  // reserved it takes, so that the segments of one table do not all grow in the same batch. The
  // arenas, of rows and of indices, must outlive the segment.
  Segment(SlabArena* row_arena, SlabArena* index_arena, const RowLayout& layout, double phase);
  ~Segment();
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;

  int64_t size() const { return size_; }
  const RowLayout& layout() const { return layout_; }

  // The row of a key that is in the chunk it wants. Otherwise nullptr; whether the key may then be
  // in a later chunk is in *beyond, and the first of these is fetched ahead.
  char* FindAtHome(int64_t key, uint64_t hash, bool* beyond) const {
    *beyond = false;
    if (chunk_count_ == 0) return nullptr;
    const uint32_t home = Home(hash);
    const Chunk& chunk = chunks_[home];
    if (const uint32_t mask = Match(chunk, key)) return row(chunk.refs[__builtin_ctz(mask)]);
    if (chunk.overflow != 0) {
      *beyond = true;
      __builtin_prefetch(&chunks_[Next(home)]);
    }
    return nullptr;
  }
  // The row of a key that is in a later chunk, or nullptr.
  char* FindBeyond(int64_t key, uint64_t hash) const;
  // Adds a key that is not there; the row's bytes are undefined. nullptr: no memory.
  char* Insert(int64_t key, uint64_t hash);
  // Removes a key that is there.
  void Erase(int64_t key, uint64_t hash);
  // Removes all rows and gives back all memory.
  void Clear();
  // Makes the index large enough for `rows` rows. False: no memory, nothing changed.
  bool ReserveIndex(int64_t rows);

  // Moves all rows to a new layout; `convert(old_row, new_row)` fills one, also those that are
  // erased, with whatever bytes. References stay valid. False: no memory, nothing changed.
  template <typename Convert>
  bool Relayout(const RowLayout& layout, Convert convert);

  char* row(Ref ref) const { return rows_[ref >> 16] + (ref & 0xffffu) * layout_.row_bytes; }
  // Calls visit(key, row) for all rows, in no order, with the line at `offset` of the row fetched
  // ahead. `visit` may erase its row.
  template <typename Visit>
  void ForEachRow(int64_t offset, const Visit& visit) const;

  struct Entry {
    uint64_t hash;
    int64_t key;
    Ref ref;
  };
  // Appends the rows with hashes of this range, ascending.
  void AppendRange(HashRange hashes, std::vector<Entry>* entries) const;
  void PrefetchRange(HashRange hashes) const;
  // Number of bits of stripes that are two to four chunks each, or more if those were too many.
  int StripeBits() const;

  void PrefetchChunk(uint64_t hash) const {
    if (chunk_count_ != 0) __builtin_prefetch(&chunks_[Home(hash)]);
  }

 private:
  static constexpr int kCells = 5;

  struct alignas(64) Chunk {
    int64_t keys[kCells];
    Ref refs[kCells];
    uint8_t used;
    uint8_t overflow;
    uint8_t padding[2];
  };
  static_assert(sizeof(Chunk) == 64, "a chunk is a cache line");

  // Bit c: cell c of the chunk holds this key.
  static uint32_t Match(const Chunk& chunk, int64_t key) {
    uint32_t mask = 0;
    for (int c = 0; c < kCells; ++c) mask |= static_cast<uint32_t>(chunk.keys[c] == key) << c;
    return mask & chunk.used;
  }
  uint32_t Home(uint64_t hash) const {
    return ReduceRange(static_cast<uint32_t>(hash >> 26), chunk_count_);
  }
  uint32_t Next(uint32_t chunk) const { return chunk + 1 == chunk_count_ ? 0 : chunk + 1; }

  // The next in the list of erased rows.
  Ref NextFree(Ref ref) const {
    Ref next;
    std::memcpy(&next, row(ref), sizeof(next));
    return next;
  }

  Ref AllocateRow();
  bool AddBlock();
  // Puts a row into the index, which has room.
  void Link(int64_t key, uint64_t hash, Ref ref);
  bool GrowIndex();
  // To a whole number of chunks. False: too many or no memory, nothing changed.
  bool Rehash(double chunks_wanted);
  static double ChunksFor(int64_t rows);
  void FreeRows(std::vector<char*>* rows, int64_t row_bytes);

  SlabArena* const row_arena_;
  SlabArena* const index_arena_;
  RowLayout layout_;
  const double phase_;

  Chunk* chunks_ = nullptr;
  uint32_t chunk_count_ = 0;
  int64_t max_rows_ = 0;  // that the index holds before it grows
  int64_t size_ = 0;

  std::vector<char*> rows_;           // the memory of each block
  std::vector<uint32_t> block_rows_;  // how many rows it has
  uint32_t fresh_ = 0;                // rows of the last block that have been handed out
  Ref free_ = kNone;                  // head of the list of erased rows
};

template <typename Visit>
void Segment::ForEachRow(int64_t offset, const Visit& visit) const {
  constexpr uint32_t kAhead = 4;  // chunks
  for (uint32_t at = 0; at < chunk_count_; ++at) {
    if (at + kAhead < chunk_count_) {
      const Chunk& ahead = chunks_[at + kAhead];
      for (uint32_t used = ahead.used; used != 0; used &= used - 1) {
        __builtin_prefetch(row(ahead.refs[__builtin_ctz(used)]) + offset);
      }
    }
    const Chunk& chunk = chunks_[at];
    for (uint32_t used = chunk.used; used != 0; used &= used - 1) {
      const int cell = __builtin_ctz(used);
      visit(chunk.keys[cell], row(chunk.refs[cell]));
    }
  }
}

template <typename Convert>
bool Segment::Relayout(const RowLayout& layout, Convert convert) {
  std::vector<char*> rows;
  for (const uint32_t n : block_rows_) {
    rows.push_back(static_cast<char*>(row_arena_->Allocate(n * layout.row_bytes)));
    if (rows.back() == nullptr) {
      rows.pop_back();
      FreeRows(&rows, layout.row_bytes);
      return false;
    }
  }
  for (size_t b = 0; b < rows.size(); ++b) {
    const uint32_t n = b + 1 < rows.size() ? block_rows_[b] : fresh_;
    for (uint32_t r = 0; r < n; ++r) {
      convert(rows_[b] + r * layout_.row_bytes, rows[b] + r * layout.row_bytes);
    }
  }
  for (Ref ref = free_; ref != kNone; ref = NextFree(ref)) {
    const Ref next = NextFree(ref);
    std::memcpy(rows[ref >> 16] + (ref & 0xffffu) * layout.row_bytes, &next, sizeof(next));
  }
  FreeRows(&rows_, layout_.row_bytes);
  rows_ = std::move(rows);
  layout_ = layout;
  return true;
}

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_CORE_TABLE_SEGMENT_H_

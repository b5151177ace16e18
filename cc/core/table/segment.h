// Segment: one independently grown part of a host table: an index over rows in slabs. Not
// thread-safe; the table holds a lock for it.
//
// The index is an array of 64-byte chunks, one cache line each:
//
//   byte  0        12         13    16                                          64
//        | 12 tags | overflow | pad | 12 references to rows, 4 bytes each        |
//
// A tag is 0x80 | 7 bits of the hash, or 0 for an empty cell; all tags of a chunk are compared at
// once. `overflow` counts the keys that wanted this chunk and went on to a later one because it was
// full: a search for a key that is not there ends at the first chunk where it is 0, usually the
// first. An erased key leaves an empty cell and lowers the counts on its way, so there are no
// tombstones and erasing never degrades the index. (The layout is that of F14: Bronson and Shi,
// "Open-sourcing F14 for faster, more memory-efficient hash tables", 2019.) A count that has
// reached 255 stays there; it costs probes, never a wrong answer.
//
// A row is `key (8 bytes) | value | slots | meta` and lies in a block; its reference is (block, row
// in the block), 16 bits each. Rows never move, and references stay valid, when the index grows and
// when the rows are laid out anew. A bitmap per block tells which rows live; the others are in a
// list of free rows, linked through their key bytes, or lie at the end of the last block, never
// used yet.
//
// Costs: a find touches 1 line of index and the row; growing the index by a factor of 2 reads all
// keys of the segment; memory is 6.7 to 13.3 bytes of index per row, 8 of key, and up to 1/8 of the
// rows in the last block ahead of need.
#ifndef TF_DYNEMB_CC_CORE_TABLE_SEGMENT_H_
#define TF_DYNEMB_CC_CORE_TABLE_SEGMENT_H_

#include <cstdint>
#include <cstring>
#include <vector>

#include "cc/core/base/hash.h"
#include "cc/core/table/row_layout.h"
#include "cc/core/table/slab_arena.h"

namespace dynemb {

// Bit positions of Mix64(key): the segment is in bits 58-63 (host_table), the chunk comes from bits
// 20-51, the tag from bits 0-6.
class Segment {
 public:
  using Ref = uint32_t;
  static constexpr Ref kNone = 0xffffffffu;

  // `phase` in [0, 1) shifts the sizes at which the index grows, so that the segments of one table
  // do not all grow in the same batch. The arena must outlive the segment.
  Segment(SlabArena* arena, const RowLayout& layout, double phase);
  ~Segment();
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;

  int64_t size() const { return size_; }
  int64_t index_bytes() const { return int64_t{chunk_count_} * sizeof(Chunk); }
  const RowLayout& layout() const { return layout_; }

  // The row of a key, or kNone.
  Ref Find(int64_t key, uint64_t hash) const;
  // The same, guessed from the tags alone: kNone is sure, a row may turn out to be another key's.
  Ref FindCandidate(uint64_t hash) const;
  // Adds a key that is not there; the row's bytes after the key are undefined. kNone: no memory.
  Ref Insert(int64_t key, uint64_t hash);
  // Removes a key that is there.
  void Erase(int64_t key, uint64_t hash);
  // Removes all rows and gives back all memory.
  void Clear();
  // Makes the index large enough for `rows` rows. False: no memory, nothing changed.
  bool ReserveIndex(int64_t rows);

  // Moves all rows to a new layout; `convert(old_row, new_row)` fills a live row's value, slots and
  // meta (both after the key). References stay valid. False: no memory, nothing changed.
  template <typename Convert>
  bool Relayout(const RowLayout& layout, Convert convert);

  int64_t key(Ref ref) const {
    int64_t key;
    std::memcpy(&key, RowStart(ref), sizeof(key));
    return key;
  }
  char* value(Ref ref) const { return RowStart(ref) + kKeyBytes; }
  char* slots(Ref ref) const { return value(ref) + layout_.slots_offset; }
  char* meta(Ref ref) const { return value(ref) + layout_.meta_offset; }

  void PrefetchChunk(uint64_t hash) const {
    if (chunk_count_ != 0) __builtin_prefetch(&chunks_[Home(hash)]);
  }
  // Fetches the row's key and first `bytes` after it.
  void PrefetchRow(Ref ref, int64_t bytes) const {
    const char* row = RowStart(ref);
    for (int64_t at = 0; at < bytes + kKeyBytes; at += 64) __builtin_prefetch(row + at);
  }

  // The first live row at or after `ref`, in the order of references, or kNone.
  Ref NextLive(Ref ref) const;

 private:
  static constexpr int kCells = 12;
  static constexpr int kKeyBytes = 8;

  struct alignas(64) Chunk {
    uint8_t tags[kCells];
    uint8_t overflow;
    uint8_t padding[3];
    Ref refs[kCells];
  };
  static_assert(sizeof(Chunk) == 64, "a chunk is a cache line");

  struct Block {
    char* data;
    uint32_t rows;
    std::vector<uint64_t> live;  // bit r: row r holds a key
  };

  static uint8_t Tag(uint64_t hash) { return static_cast<uint8_t>(0x80u | (hash & 0x7fu)); }
  // Bit c: cell c of the chunk has this tag.
  static uint32_t Match(const Chunk& chunk, uint8_t tag);
  uint32_t Home(uint64_t hash) const {
    return ReduceRange(static_cast<uint32_t>(hash >> 20), chunk_count_);
  }
  uint32_t Next(uint32_t chunk) const { return chunk + 1 == chunk_count_ ? 0 : chunk + 1; }

  char* RowStart(Ref ref) const { return blocks_[ref >> 16].data + (ref & 0xffffu) * stride_; }
  bool IsLive(Ref ref) const {
    return blocks_[ref >> 16].live[(ref & 0xffffu) / 64] >> (ref & 63u) & 1;
  }
  int64_t BlockBytes(const Block& block, int64_t stride) const { return block.rows * stride; }

  Ref AllocateRow();
  bool AddBlock();
  // Puts a row into the index, which has room.
  void Link(uint64_t hash, Ref ref);
  bool Rehash(uint32_t chunk_count);
  void FreeBlocks(std::vector<Block>* blocks, int64_t stride);

  SlabArena* const arena_;
  RowLayout layout_;
  int64_t stride_;
  const double phase_;

  Chunk* chunks_ = nullptr;
  uint32_t chunk_count_ = 0;
  int64_t max_rows_ = 0;  // that the index holds before it grows
  int64_t size_ = 0;

  std::vector<Block> blocks_;
  uint32_t fresh_ = 0;  // rows of the last block that have been handed out
  Ref free_ = kNone;    // head of the list of erased rows
};

template <typename Convert>
bool Segment::Relayout(const RowLayout& layout, Convert convert) {
  const int64_t stride = kKeyBytes + layout.row_bytes;
  std::vector<Block> blocks = blocks_;
  for (size_t b = 0; b < blocks.size(); ++b) {
    blocks[b].data = static_cast<char*>(arena_->Allocate(BlockBytes(blocks[b], stride)));
    if (blocks[b].data == nullptr) {
      blocks.resize(b);
      FreeBlocks(&blocks, stride);
      return false;
    }
  }
  for (size_t b = 0; b < blocks.size(); ++b) {
    for (uint32_t r = 0; r < blocks[b].rows; ++r) {
      const char* from = blocks_[b].data + r * stride_;
      char* to = blocks[b].data + r * stride;
      std::memcpy(to, from, kKeyBytes);  // the key, or the link of a free row
      if (IsLive(static_cast<Ref>(b << 16 | r))) convert(from + kKeyBytes, to + kKeyBytes);
    }
  }
  FreeBlocks(&blocks_, stride_);
  blocks_ = std::move(blocks);
  layout_ = layout;
  stride_ = stride;
  return true;
}

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_CORE_TABLE_SEGMENT_H_

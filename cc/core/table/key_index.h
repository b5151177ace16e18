// KeyIndex: from keys to the references of their rows, in one array. Not thread-safe.
//
// The array is of 64-byte chunks, one cache line each:
//
//   byte  0                      40                         60     61         62      64
//        | 5 keys, 8 bytes each | 5 references to rows, 4 B | used | overflow | marks |
//
// Bit c of `used` says that cell c holds a key. `overflow` counts the keys that wanted this chunk
// and went on to a later one because it was full: a search for a missing key ends at the
// first chunk where it is 0, usually the first. An erased key lowers the counts on its way, so
// there are no tombstones. (The counts are those of F14: Bronson and Shi, "Open-sourcing F14 for
// faster, more memory-efficient hash tables", 2019.) A count that has reached 255 stays there; it
// costs probes, never a wrong answer. The cell of an erased key is filled from the next chunk, if a
// key lies there that wanted this one or an earlier one: without that, keys drift away from the
// chunks that they want while others come and go (segment_test.cc: from 9 % of them to 29 % when
// all have been replaced ten times; with it 11 %). Keys are in the array in the order of their
// hashes, so that it grows by reading and writing memory from front to back. A key may be marked:
// bit c of `marks` is the mark of cell c. The other 11 bits are the number of ClearMarks calls when
// the mark was set; marks with an older number do not count, so that ClearMarks takes constant
// time.
#ifndef TF_DYNEMB_CC_CORE_TABLE_KEY_INDEX_H_
#define TF_DYNEMB_CC_CORE_TABLE_KEY_INDEX_H_

#include <algorithm>
#include <cstdint>

#include "cc/core/base/hash.h"
#include "cc/core/base/macros.h"
#include "cc/core/table/slab_arena.h"
#include "cc/core/table/stripes.h"

namespace dynemb {

// Hashes are Mix64 of keys, of which bits 26-57 choose the chunk.
class KeyIndex {
 public:
  using Ref = uint32_t;
  static constexpr Ref kNone = 0xffffffffu;
  static constexpr int kCells = 5;  // of a chunk
  static constexpr double kMaxLoad = 0.8;

  struct Entry {
    uint64_t hash;
    int64_t key;
    Ref ref;
  };

  static int64_t Bytes(double chunks) {
    return static_cast<int64_t>(chunks) * static_cast<int64_t>(sizeof(Chunk));
  }

  // An array of so many chunks. False: too many or no memory. It must have none.
  bool Allocate(SlabArena* arena, double chunks);
  void Free(SlabArena* arena);

  bool empty() const { return chunk_count_ == 0; }
  uint32_t chunk_count() const { return chunk_count_; }
  // How many keys it takes until it ought to grow.
  int64_t capacity() const { return static_cast<int64_t>(kMaxLoad * kCells * chunk_count_); }
  // The chunk that a key of this hash wants. Neither this nor a search may be asked of an empty
  // one.
  uint32_t Home(uint64_t hash) const {
    return ReduceRange(static_cast<uint32_t>(hash >> 26), chunk_count_);
  }
  // Whether a key that wants this chunk or an earlier one lies in a later one.
  bool overflows(uint32_t chunk) const { return chunks_[chunk].overflow != 0; }

  // The row of a key that is in the chunk it wants. Otherwise kNone; whether the key may then be in
  // a later chunk is in *beyond, and the first of these is fetched ahead. *marked: it is there, and
  // marked.
  Ref FindAtHome(int64_t key, uint64_t hash, bool* beyond, bool* marked) const {
    *beyond = *marked = false;
    const uint32_t home = Home(hash);
    const Chunk& chunk = chunks_[home];
    if (const uint32_t mask = Match(chunk, key)) {
      *marked = AreMarked(chunk, mask);
      return chunk.refs[__builtin_ctz(mask)];
    }
    if (chunk.overflow != 0) {
      *beyond = true;
      __builtin_prefetch(&chunks_[Next(home)]);
    }
    return kNone;
  }
  // The row of a key that is in a later chunk, or kNone. *marked: it is there, and marked.
  Ref FindBeyond(int64_t key, uint64_t hash, bool* marked) const;

  // Adds a missing key. There must be an unused cell. False: there is none before
  // chunk `end`, and nothing has changed.
  bool Insert(int64_t key, uint64_t hash, Ref ref, bool marked, uint32_t end);
  bool Insert(const Entry& entry, bool marked) {
    return Insert(entry.key, entry.hash, entry.ref, marked, kNoEnd);
  }
  // Removes a key that is there, and may move others. Returns its row, and whether it was marked.
  Ref Erase(int64_t key, uint64_t hash, bool* marked);

  // Marks a key that is there. Returns whether it was marked before.
  bool Mark(int64_t key, uint64_t hash) {
    Chunk& chunk = chunks_[ChunkOf(key, hash)];
    return MarkCells(&chunk, Match(chunk, key));
  }
  // Takes the mark of a key away that is there; all marks.
  void Unmark(int64_t key, uint64_t hash) {
    Chunk& chunk = chunks_[ChunkOf(key, hash)];
    chunk.marks &= static_cast<uint16_t>(~Match(chunk, key));
  }
  void ClearMarks();

  // Always inline: gcc takes a function that only prefetches for one without effects, and drops
  // calls of it.
  DYNEMB_ALWAYS_INLINE void Prefetch(uint64_t hash) const {
    __builtin_prefetch(&chunks_[Home(hash)]);
  }
  DYNEMB_ALWAYS_INLINE void PrefetchRange(HashRange hashes) const {
    const uint32_t last = Home(hashes.last);
    for (uint32_t at = Home(hashes.first); at <= last; ++at) __builtin_prefetch(&chunks_[at]);
  }

  // Calls visit(entry, marked) for the keys in a chunk.
  template <typename Visit>
  void ForEachInChunk(uint32_t at, const Visit& visit) const {
    const Chunk& chunk = chunks_[at];
    for (uint32_t used = chunk.used; used != 0; used &= used - 1) {
      const int cell = __builtin_ctz(used);
      const int64_t key = chunk.keys[cell];
      visit(Entry{Mix64(static_cast<uint64_t>(key)), key, chunk.refs[cell]},
            AreMarked(chunk, 1u << cell));
    }
  }

  // Calls visit(entry) for the keys with hashes of this range that lie in the chunks [begin, end),
  // in no order, and fetch(ref) some time before. Keys that lie there must want no other chunk.
  // `visit` must not erase: that moves keys.
  template <typename Fetch, typename Visit>
  void ForEachInRange(HashRange hashes, uint32_t begin, uint32_t end, const Fetch& fetch,
                      const Visit& visit) const;

 private:
  static constexpr uint16_t kSince = 0xffe0;  // the bits of Chunk::marks that are no marks
  static constexpr uint32_t kNoEnd = 0xffffffffu;

  struct alignas(64) Chunk {
    int64_t keys[kCells];
    Ref refs[kCells];
    uint8_t used;
    uint8_t overflow;
    uint16_t marks;  // they count if the upper 11 bits are marks_since_
  };
  static_assert(sizeof(Chunk) == 64, "a chunk is a cache line");

  // Bit c: cell c of the chunk holds this key.
  static uint32_t Match(const Chunk& chunk, int64_t key) {
    uint32_t mask = 0;
    for (int c = 0; c < kCells; ++c) mask |= static_cast<uint32_t>(chunk.keys[c] == key) << c;
    return mask & chunk.used;
  }
  // Where a key lies that is there.
  uint32_t ChunkOf(int64_t key, uint64_t hash) const {
    uint32_t at = Home(hash);
    while (Match(chunks_[at], key) == 0) at = Next(at);
    return at;
  }
  uint32_t Next(uint32_t chunk) const { return chunk + 1 == chunk_count_ ? 0 : chunk + 1; }
  // Fills an unused cell of a chunk with a key of the next one that is not in the chunk it wants,
  // then that one's cell, and so on.
  void FillCell(uint32_t at, int cell);

  // Whether one of some cells is marked.
  bool AreMarked(const Chunk& chunk, uint32_t cells) const {
    return (chunk.marks & kSince) == marks_since_ && (chunk.marks & cells) != 0;
  }
  // Marks some cells. Returns whether one of them was marked.
  bool MarkCells(Chunk* chunk, uint32_t cells) {
    if ((chunk->marks & kSince) != marks_since_) chunk->marks = marks_since_;
    const bool were_marked = (chunk->marks & cells) != 0;
    if (!were_marked) chunk->marks |= static_cast<uint16_t>(cells);
    return were_marked;
  }

  Chunk* chunks_ = nullptr;
  uint32_t chunk_count_ = 0;
  uint16_t marks_since_ = 0;
};

template <typename Fetch, typename Visit>
void KeyIndex::ForEachInRange(HashRange hashes, uint32_t begin, uint32_t end, const Fetch& fetch,
                              const Visit& visit) const {
  constexpr uint32_t kAhead = 4;  // chunks
  const uint32_t last = Home(hashes.last);
  if (last < begin) return;
  const bool whole = begin == 0 && end == chunk_count_;
  uint32_t at = std::max(begin, Home(hashes.first));
  const uint32_t homes = last - at + 1;
  for (uint32_t probes = 1; probes <= chunk_count_; ++probes, ++at) {
    if (at >= end) {  // keys that want the last chunks may lie in the first ones
      if (!whole) return;
      at = 0;
    }
    if (at + kAhead < end) {
      const Chunk& ahead = chunks_[at + kAhead];
      for (uint32_t used = ahead.used; used != 0; used &= used - 1) {
        fetch(ahead.refs[__builtin_ctz(used)]);
      }
    }
    ForEachInChunk(at, [&](const Entry& entry, bool) {
      if (hashes.first <= entry.hash && entry.hash <= hashes.last) visit(entry);
    });
    if (probes >= homes && !overflows(at)) return;
  }
}

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_CORE_TABLE_KEY_INDEX_H_

// The index: which row a key has.
//
// An array of chunks, each a cache line of the GPU:
//
//   byte  0                       80                          120                124   128
//        | 10 keys, 8 bytes each | 10 references to rows, 4 B | used, overflow, 4 B | pad |
//
// As in host memory (cc/core/table/segment.h), but for the size: a random access of 128 bytes costs
// a tenth more than one of 64, and where searches of 5 cells go on to 0.78 further chunks at nine
// tenths of load, those of 10 go on to 0.33.
//
// Bits 0 to 9 of the word say which cells hold a key; the bits from 10 on count the keys that
// wanted this chunk and went on to a later one because it was full: a search ends at the first
// chunk where it is 0. An erased key leaves an empty cell and lowers the counts on its way, so
// there are no tombstones. Keys lie in the order of their hashes.
//
// Growing. A second array takes the keys over piece by piece: those whose hashes' upper half is
// less than `moved` are in `next`, the others in `current`. What the first array still has of the
// keys that have gone is looked at by nobody.
//
// Kernels either search, or change the index: a cell that is being written is never compared. Those
// that change it have a thread for each key, and the keys are distinct.
#ifndef TF_DYNEMB_CC_GPU_TABLE_INDEX_CU_H_
#define TF_DYNEMB_CC_GPU_TABLE_INDEX_CU_H_

#include <cuda_runtime.h>

#include <cstdint>

#include "cc/core/base/hash.h"
#include "cc/core/base/macros.h"
#include "cc/core/table/table.h"
#include "cc/gpu/table/atomics.cu.h"

namespace dynemb {

using RowRef = uint32_t;
inline constexpr RowRef kNoRow = 0xffffffffu;

struct alignas(128) IndexChunk {
  static constexpr int kCells = 10;
  static constexpr uint32_t kLastWriteTime = (1u << kCells) - 1;
  static constexpr int kOverflowShift = kCells;
  Key keys[kCells];
  RowRef refs[kCells];
  uint32_t state;
};
static_assert(sizeof(IndexChunk) == 128);

// A chunk in registers, read in pieces of 16 bytes.
DYNEMB_HOST_DEVICE inline IndexChunk LoadChunk(const IndexChunk* chunk) {
#ifdef __CUDA_ARCH__
  constexpr int kKeyPieces = IndexChunk::kCells / 2, kPieces = 8;
  uint4 pieces[kPieces];
#pragma unroll
  for (int i = 0; i < kPieces; ++i) pieces[i] = __ldg(reinterpret_cast<const uint4*>(chunk) + i);
  IndexChunk loaded;
#pragma unroll
  for (int i = 0; i < kKeyPieces; ++i) {
    const uint4 piece = pieces[i];
    loaded.keys[2 * i] = static_cast<Key>(static_cast<uint64_t>(piece.y) << 32 | piece.x);
    loaded.keys[2 * i + 1] = static_cast<Key>(static_cast<uint64_t>(piece.w) << 32 | piece.z);
  }
  const uint4 a = pieces[kKeyPieces], b = pieces[kKeyPieces + 1], c = pieces[kKeyPieces + 2];
  const RowRef refs[] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w, c.x, c.y};
#pragma unroll
  for (int i = 0; i < IndexChunk::kCells; ++i) loaded.refs[i] = refs[i];
  loaded.state = c.z;
  return loaded;
#else
  return *chunk;
#endif
}

struct IndexPart {
  IndexChunk* chunks = nullptr;
  uint32_t count = 0;

  DYNEMB_HOST_DEVICE uint32_t Home(uint64_t hash) const {
    return ReduceRange(static_cast<uint32_t>(hash >> 32), count);
  }
  DYNEMB_HOST_DEVICE uint32_t Next(uint32_t at) const { return at + 1 == count ? 0 : at + 1; }
  // The least upper half of a hash whose home is chunk `at` or a later one.
  DYNEMB_HOST_DEVICE uint64_t FirstHash(uint64_t at) const {
    return ((at << 32) + count - 1) / count;
  }
};

struct Index {
  IndexPart current, next;
  uint64_t moved = 0;  // up to 2^32

  DYNEMB_HOST_DEVICE bool HasMoved(uint64_t hash) const { return hash >> 32 < moved; }
  DYNEMB_HOST_DEVICE IndexPart PartOf(uint64_t hash) const {
    const bool in_next = HasMoved(hash);
    return {in_next ? next.chunks : current.chunks, in_next ? next.count : current.count};
  }
};

// The row of a key, or kNoRow. A thread reads a chunk at a time: threads that search wait for
// memory all at once, and need no words with each other.
DYNEMB_HOST_DEVICE inline RowRef FindRow(const Index& index, Key key) {
  const uint64_t hash = Mix64(static_cast<uint64_t>(key));
  const IndexPart part = index.PartOf(hash);
  uint32_t at = part.Home(hash);
  for (uint32_t seen = 0; seen < part.count; ++seen, at = part.Next(at)) {
    const IndexChunk chunk = LoadChunk(part.chunks + at);
    RowRef row = kNoRow;
#pragma unroll
    for (int cell = 0; cell < IndexChunk::kCells; ++cell) {
      const bool equal = chunk.keys[cell] == key && (chunk.state >> cell & 1) != 0;
      row = equal ? chunk.refs[cell] : row;
    }
    if (row != kNoRow || chunk.state >> IndexChunk::kOverflowShift == 0) return row;
  }
  return kNoRow;
}

// Puts a key that is not in the part into it. There is an empty cell.
DYNEMB_HOST_DEVICE inline void InsertKey(const IndexPart& part, Key key, uint64_t hash,
                                         RowRef row) {
  for (uint32_t at = part.Home(hash);; at = part.Next(at)) {
    IndexChunk* const chunk = part.chunks + at;
    uint32_t state = AtomicLoad(&chunk->state);
    while ((state & IndexChunk::kLastWriteTime) != IndexChunk::kLastWriteTime) {
      uint32_t bit = 1;
      int cell = 0;
      for (; (state & bit) != 0; bit <<= 1) ++cell;
      state = AtomicOr(&chunk->state, bit);
      if ((state & bit) != 0) continue;  // another key was faster
      chunk->keys[cell] = key;
      chunk->refs[cell] = row;
      return;
    }
    AtomicAdd(&chunk->state, 1u << IndexChunk::kOverflowShift);
  }
}

// Empties a cell, whose key has that hash.
DYNEMB_HOST_DEVICE inline void EraseCell(const IndexPart& part, uint32_t at, int cell,
                                         uint64_t hash) {
  AtomicAnd(&part.chunks[at].state, ~(1u << cell));
  for (uint32_t passed = part.Home(hash); passed != at; passed = part.Next(passed)) {
    AtomicAdd(&part.chunks[passed].state, 0u - (1u << IndexChunk::kOverflowShift));
  }
}

// Takes a key out of the part, which has it, and returns its row.
DYNEMB_HOST_DEVICE inline RowRef EraseKey(const IndexPart& part, Key key, uint64_t hash) {
  for (uint32_t at = part.Home(hash);; at = part.Next(at)) {
    const IndexChunk& chunk = part.chunks[at];
    const uint32_t state = AtomicLoad(&chunk.state);
    for (int cell = 0; cell < IndexChunk::kCells; ++cell) {
      if ((state >> cell & 1) == 0 || chunk.keys[cell] != key) continue;
      EraseCell(part, at, cell, hash);
      return chunk.refs[cell];
    }
  }
}

// Calls visit(key, hash, row, chunk, cell) for each key of the part whose home is chunk `home`,
// wherever it is. `visit` may write to other parts, and erase the key (EraseCell): a thread erases
// the keys of its home alone, so what it still has to visit is counted on its way.
template <typename Visit>
DYNEMB_HOST_DEVICE void ForEachOfHome(const IndexPart& part, uint32_t home, const Visit& visit) {
  uint32_t at = home;
  for (uint32_t seen = 0; seen < part.count; ++seen, at = part.Next(at)) {
    const IndexChunk& chunk = part.chunks[at];
    const uint32_t state = AtomicLoad(&chunk.state);
    for (int cell = 0; cell < IndexChunk::kCells; ++cell) {
      if ((state >> cell & 1) == 0) continue;
      const uint64_t hash = Mix64(static_cast<uint64_t>(chunk.keys[cell]));
      if (part.Home(hash) == home) visit(chunk.keys[cell], hash, chunk.refs[cell], at, cell);
    }
    if (state >> IndexChunk::kOverflowShift == 0) return;
  }
}

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_GPU_TABLE_INDEX_CU_H_

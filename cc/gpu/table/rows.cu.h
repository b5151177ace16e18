// Rows of a GPU table as kernels see them: where a row lies, how its parts are read, written and
// begun.
#ifndef TF_DYNEMB_CC_GPU_TABLE_ROWS_CU_H_
#define TF_DYNEMB_CC_GPU_TABLE_ROWS_CU_H_

#include <cuda_runtime.h>

#include <cstdint>

#include "cc/core/base/dtype.h"
#include "cc/core/base/macros.h"
#include "cc/core/initializer/initializer.h"
#include "cc/core/policy/eviction.h"
#include "cc/core/table/row_layout.h"
#include "cc/core/table/table.h"
#include "cc/gpu/table/index.cu.h"
#include "cc/gpu/table/tile.cu.h"

namespace dynemb {

// Rows lie in slabs, one after the other. The first slab has 2^first_bits rows, each further one as
// many as all before it together and 2^first_bits more, until they have 2^most_bits; from then on
// all have so many. So a reference tells its slab without a search, and little is taken ahead of
// need.
struct SlabSizes {
  int first_bits = 0, most_bits = 0;

  DYNEMB_HOST_DEVICE int64_t rows(int64_t slab) const {
    const int64_t bits = first_bits + slab;
    return int64_t{1} << (bits < most_bits ? bits : most_bits);
  }
  // Slab and row of it, by the number of a row.
  DYNEMB_HOST_DEVICE void Locate(uint64_t row, int64_t* slab, int64_t* row_of_slab) const {
    const uint64_t shifted = row + (uint64_t{1} << first_bits);
    if (shifted >> most_bits != 0) {
      *slab = most_bits - first_bits - 1 + static_cast<int64_t>(shifted >> most_bits);
      *row_of_slab = static_cast<int64_t>(shifted & ((uint64_t{1} << most_bits) - 1));
      return;
    }
#ifdef __CUDA_ARCH__
    const int bits = 63 - __clzll(static_cast<long long>(shifted));  // NOLINT
#else
    const int bits = 63 - __builtin_clzll(shifted);
#endif
    *slab = bits - first_bits;
    *row_of_slab = static_cast<int64_t>(shifted - (uint64_t{1} << bits));
  }
};

struct RowSlabs {
  char* const* slabs = nullptr;  // in the table's memory
  SlabSizes sizes;
  int64_t stride_bytes = 0;  // of rows, a multiple of 16

  DYNEMB_HOST_DEVICE char* operator[](RowRef row) const {
    int64_t slab, row_of_slab;
    sizes.Locate(row, &slab, &row_of_slab);
    return slabs[slab] + row_of_slab * stride_bytes;
  }
};

inline constexpr int64_t kNoTime = 0;  // RowScores::kNoTime

// Which rows have expired: those that were last written longer ago than a time, and count as
// missing.
struct Expiry {
  int64_t last_write_at = -1;  // from the begin of a row; -1: no row expires
  int64_t now = 0, ttl = 0;

  DYNEMB_HOST_DEVICE bool HasExpired(const char* row) const {
    if (last_write_at < 0) return false;
    // A time that a file says may be anything.
    const int64_t written = ReadInt64(row + last_write_at);
    const uint64_t age = static_cast<uint64_t>(now) - static_cast<uint64_t>(written);
    return written != kNoTime && written < now && age > static_cast<uint64_t>(ttl);
  }
};

// The rows that keys have.
struct LiveRows {
  Index index;
  RowSlabs rows;
  Expiry expiry;

  // Null: it has none, or one that has expired.
  DYNEMB_HOST_DEVICE const char* Find(Key key) const {
    const RowRef found = FindRow(index, key);
    if (found == kNoRow) return nullptr;
    const char* const row = rows[found];
    return expiry.HasExpired(row) ? nullptr : row;
  }
};

// The marks of rows, which lie beside them in slabs of their own: the epoch in which a row was last
// written, 0 before changes were tracked.
struct RowMarks {
  int64_t* const* slabs = nullptr;  // in the table's memory; null: changes are not tracked
  SlabSizes sizes;
  int64_t epoch = 0;  // the current one

  DYNEMB_HOST_DEVICE int64_t* At(RowRef row) const {
    int64_t slab, row_of_slab;
    sizes.Locate(row, &slab, &row_of_slab);
    return slabs[slab] + row_of_slab;
  }
  // Of a row that is written. By one lane.
  DYNEMB_HOST_DEVICE void Set(RowRef row) const {
    if (slabs != nullptr) *At(row) = epoch;
  }
};

// Numbers are read and written four at a time, where they are aligned so.
inline constexpr int64_t kBlock = 4;
template <typename T>
struct alignas(sizeof(T) * kBlock < 16 ? sizeof(T) * kBlock : 16) Block {
  T number[kBlock];
};

// Numbers [4 block, 4 block + 4) of the `dim` at `from`. `aligned`: as Block is.
template <typename T>
DYNEMB_HOST_DEVICE void LoadBlock(const T* from, int64_t block, int64_t dim, bool aligned,
                                  Block<T>* to) {
  if (aligned && block * kBlock + kBlock <= dim) {
    *to = reinterpret_cast<const Block<T>*>(from)[block];
    return;
  }
  for (int64_t i = 0; i < kBlock && block * kBlock + i < dim; ++i) {
    to->number[i] = from[block * kBlock + i];
  }
}
template <typename T>
DYNEMB_HOST_DEVICE void StoreBlock(const Block<T>& from, int64_t block, int64_t dim, bool aligned,
                                   T* to) {
  if (aligned && block * kBlock + kBlock <= dim) {
    reinterpret_cast<Block<T>*>(to)[block] = from;
    return;
  }
  for (int64_t i = 0; i < kBlock && block * kBlock + i < dim; ++i) {
    to[block * kBlock + i] = from.number[i];
  }
}
template <typename T>
DYNEMB_HOST_DEVICE bool IsAligned(const T* at) {
  return reinterpret_cast<uintptr_t>(at) % alignof(Block<T>) == 0;
}

// Copies bytes, in the largest pieces that both ends and the number allow.
template <typename Piece>
DYNEMB_HOST_DEVICE void CopyPieces(const Tile& tile, char* to, const char* from, int64_t bytes) {
  for (int64_t i = tile.lane; i < bytes / static_cast<int64_t>(sizeof(Piece)); i += tile.width) {
    reinterpret_cast<Piece*>(to)[i] = reinterpret_cast<const Piece*>(from)[i];
  }
}
DYNEMB_HOST_DEVICE inline void CopyByTile(const Tile& tile, char* to, const char* from,
                                          int64_t bytes) {
  const uint64_t all = reinterpret_cast<uintptr_t>(to) | reinterpret_cast<uintptr_t>(from) |
                       static_cast<uint64_t>(bytes);
  if (all % 16 == 0) return CopyPieces<uint4>(tile, to, from, bytes);
  if (all % 4 == 0) return CopyPieces<uint32_t>(tile, to, from, bytes);
  return CopyPieces<char>(tile, to, from, bytes);
}

// Row number `i` of buffers is filled from a row of a table, as far as there are buffers, but for
// keys.
DYNEMB_HOST_DEVICE inline void CopyRowOut(const Tile& tile, const RowLayout& layout,
                                          const char* row, const RowParts& to, int64_t i) {
  if (to.values.data != nullptr) CopyByTile(tile, to.values[i], row, layout.value_bytes);
  if (to.slots.data != nullptr) {
    CopyByTile(tile, to.slots[i], row + layout.slots_offset, layout.slots_bytes);
  }
  if (to.meta.data != nullptr) {
    CopyByTile(tile, to.meta[i], row + layout.meta_offset, layout.meta_bytes);
  }
}
// The other way; the buffers have all parts of a row.
DYNEMB_HOST_DEVICE inline void CopyRowIn(const Tile& tile, const RowLayout& layout,
                                         const ConstRowParts& from, int64_t i, char* row) {
  CopyByTile(tile, row, from.values[i], layout.value_bytes);
  if (layout.slots_bytes > 0) {
    CopyByTile(tile, row + layout.slots_offset, from.slots[i], layout.slots_bytes);
  }
  if (layout.meta_bytes > 0) {
    CopyByTile(tile, row + layout.meta_offset, from.meta[i], layout.meta_bytes);
  }
}

// The initial values of a table's rows: cc/core/initializer, in a form that kernels can read.
struct InitialPart {
  int64_t end = 0;  // of its columns
  Distribution distribution;
  double constant = 0;
};
struct InitialValues {
  InitialPart only;                    // of all columns, where
  const InitialPart* parts = nullptr;  // there are no parts
  const double* constants = nullptr;   // one per column, in place of all these; or none
  uint64_t seed = 0;
  int64_t dim = 0;
  DType dtype = DType::kFloat32;

  // Numbers [4 block, 4 block + 4) of the value of a key. Apart from the code around it: where
  // values are rarely needed they take no registers, and kernels for many rules share it.
  template <typename V>
  DYNEMB_NOINLINE DYNEMB_HOST_DEVICE Block<V> Values(Key key, int64_t block) const {
    Block<V> values = {};
    const Random128 random =
        Philox4x32(seed, static_cast<uint64_t>(key), static_cast<uint64_t>(block));
    const InitialPart* part = parts == nullptr ? &only : parts;
#pragma unroll
    for (int64_t i = 0; i < kBlock; ++i) {
      const int64_t column = block * kBlock + i;
      if (column >= dim) break;
      while (column >= part->end) ++part;
      if (constants != nullptr) {
        values.number[i] = FromConstant<V>(constants[column]);
      } else if (part->distribution.kind == Distribution::Kind::kConstant) {
        values.number[i] = FromConstant<V>(part->constant);
      } else {
        values.number[i] = static_cast<V>(Draw(part->distribution, random.word[i]));
      }
    }
    return values;
  }
  // A whole value, by a tile.
  template <typename V>
  DYNEMB_HOST_DEVICE void FillValueOf(const Tile& tile, Key key, V* value) const {
    for (int64_t block = tile.lane; block * kBlock < dim; block += tile.width) {
      StoreBlock(Values<V>(key, block), block, dim, false, value);
    }
  }
  DYNEMB_HOST_DEVICE void FillValue(const Tile& tile, Key key, char* value) const {
    switch (dtype) {
      case DType::kFloat64:
        return FillValueOf(tile, key, reinterpret_cast<double*>(value));
      case DType::kFloat16:
        return FillValueOf(tile, key, reinterpret_cast<Float16*>(value));
      case DType::kBFloat16:
        return FillValueOf(tile, key, reinterpret_cast<BFloat16*>(value));
      case DType::kInt8:
        return FillValueOf(tile, key, reinterpret_cast<int8_t*>(value));
      case DType::kInt32:
        return FillValueOf(tile, key, reinterpret_cast<int32_t*>(value));
      case DType::kInt64:
        return FillValueOf(tile, key, reinterpret_cast<int64_t*>(value));
      case DType::kFloat32:
        return FillValueOf(tile, key, reinterpret_cast<float*>(value));
    }
  }
};

// What a call writes to the meta of the rows that it writes.
struct RowStamp {
  int64_t now = 0;
  int64_t meta_offset = 0, meta_bytes = 0;
  int64_t used = -1, count = -1;  // places in the meta
  // Of a policy that adds writes: the place of the score, and what a write adds; of decayed counts
  // and of scores that add up also logarithms in the table's memory.
  int64_t score = -1, write = 0;
  EvictionPolicy::Order order = EvictionPolicy::Order::kNone;
  const DecayLogs* logs = nullptr;
  // Of scores that are given: their place, that of a new row, and each key's, if the call has some.
  int64_t given = -1, first_score = 0;
  const int64_t* scores = nullptr;

  RowStamp() = default;
  RowStamp(const RowLayout& layout, const Stamp& stamp)
      : now(stamp.now),
        meta_offset(layout.meta_offset),
        meta_bytes(layout.meta_bytes),
        used(layout.meta_field[static_cast<int>(MetaField::kLastWriteTime)]),
        count(layout.meta_field[static_cast<int>(MetaField::kCount)]) {}

  DYNEMB_HOST_DEVICE static int64_t* Number(char* at) { return reinterpret_cast<int64_t*>(at); }
  // AddWrite of the policy.
  DYNEMB_HOST_DEVICE int64_t Add(int64_t sum) const {
    if (order == EvictionPolicy::Order::kDecayedCount) return logs->Add(sum, write);
    if (order == EvictionPolicy::Order::kEpochCount) return AddEpochWrite(sum, write);
    return AddCountedWrite(sum, write);
  }
  // Of a row that the call has written so many times, which may be new; `position` is one of its
  // key. By one lane.
  DYNEMB_HOST_DEVICE void Write(char* row, bool is_new, int64_t writes, int64_t position) const {
    char* const meta = row + meta_offset;
    for (int64_t at = 0; is_new && at < meta_bytes; at += 8) *Number(meta + at) = 0;
    if (score >= 0) {
      int64_t sum = is_new ? kNeverWritten : *Number(meta + score);
      for (int64_t i = 0; i < writes; ++i) sum = Add(sum);
      *Number(meta + score) = sum;
    }
    if (given >= 0 && is_new) *Number(meta + given) = first_score;
    if (scores != nullptr && writes > 0) {
      const int64_t one = scores[position];
      *Number(meta + given) = logs != nullptr ? logs->Add(*Number(meta + given), one) : one;
    }
    if (used >= 0 && writes > 0) *Number(meta + used) = now;
    if (count >= 0) {
      // Unsigned, since the count of a row that was inserted whole may be anything.
      *Number(meta + count) = static_cast<int64_t>(static_cast<uint64_t>(*Number(meta + count)) +
                                                   static_cast<uint64_t>(writes));
    }
  }
};

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_GPU_TABLE_ROWS_CU_H_

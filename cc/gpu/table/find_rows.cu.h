// Kernels that search: which rows the keys of a batch have, and what they hold.
#ifndef TF_DYNEMB_CC_GPU_TABLE_FIND_ROWS_CU_H_
#define TF_DYNEMB_CC_GPU_TABLE_FIND_ROWS_CU_H_

#include <algorithm>
#include <cstdint>

#include "cc/core/lookup/bags.h"
#include "cc/core/table/table.h"
#include "cc/gpu/table/grouped_batch.cu.h"
#include "cc/gpu/table/index.cu.h"
#include "cc/gpu/table/rows.cu.h"
#include "cc/gpu/table/tile.cu.h"

namespace dynemb {

// Where a call reports.
struct Reports {
  Outcome* outcomes = nullptr;
  int64_t* misses = nullptr;
  int64_t* miss_count = nullptr;

  Reports() = default;
  explicit Reports(const Report& report)
      : outcomes(report.outcomes.data_or_null()),
        misses(report.misses == nullptr ? nullptr : report.misses->at.data),
        miss_count(report.misses == nullptr ? nullptr : report.misses->count) {}

  DYNEMB_HOST_DEVICE void Set(int64_t position, Outcome outcome) const {
    if (outcomes != nullptr) outcomes[position] = outcome;
    if (misses == nullptr || outcome == Outcome::kFound || outcome == Outcome::kInserted) return;
    misses[AtomicAdd(miss_count, int64_t{1})] = position;
  }
};

// How many keys of reads had a row and had none, in the table's memory. Each warp adds to one of
// several, so that they do not wait for each other.
struct ReadCounts {
  static constexpr int64_t kCounts = 64;
  struct alignas(32) Count {
    uint64_t found, missing;
  };
  Count* counts = nullptr;

  DYNEMB_HOST_DEVICE void Add(const Tile& warp, int64_t number, bool found, bool missing) const {
    const unsigned all_found = warp.Vote(found), all_missing = warp.Vote(missing);
    if (warp.lane != 0) return;
    Count& count = counts[number % kCounts];
    if (all_found != 0) AtomicAdd(&count.found, uint64_t{CountBits(all_found)});
    if (all_missing != 0) AtomicAdd(&count.missing, uint64_t{CountBits(all_missing)});
  }
};

// What values can be copied in, between rows and there.
inline int64_t PieceBytes(int64_t value_bytes, DType dtype, const Rows& values) {
  const uint64_t all = static_cast<uint64_t>(value_bytes) |
                       (values.offsets != nullptr ? static_cast<uint64_t>(SizeOf(dtype))
                                                  : reinterpret_cast<uintptr_t>(values.data) |
                                                        static_cast<uint64_t>(values.stride_bytes));
  return all % 16 == 0 ? 16 : all % 4 == 0 ? 4 : all % 2 == 0 ? 2 : 1;
}

// Table::Find, by warps: each lane searches a key; then their rows are copied one after the other,
// each by as many lanes as it has pieces. Piece: what rows are copied in, which divides a value's
// size and all addresses.
template <typename Piece>
struct FindValues {
  static constexpr int kRowsAtOnce = 2;  // that a lane waits for

  Entries entries;
  LiveRows rows;
  InitialValues missing;
  int64_t value_bytes;
  int copy_width;  // lanes to a row, up to a tile's
  Rows values;
  Reports reports;
  ReadCounts counts;

  DYNEMB_HOST_DEVICE void operator()(const Tile& tile, int64_t group) const {
    const int64_t i = group * tile.width + tile.lane;
    const int64_t position = i < entries.most ? entries.position(i) : -1;
    const Key key = position < 0 ? 0 : entries.keys[position];
    const char* const row = position < 0 ? nullptr : rows.Find(key);
    char* const to = position < 0 ? nullptr : values[position];
    Copy(tile, row, to);
    if (position >= 0) {
      reports.Set(position, row == nullptr ? Outcome::kMissing : Outcome::kFound);
    }
    counts.Add(tile, group, row != nullptr, row == nullptr && position >= 0);
    unsigned without = tile.Vote(row == nullptr && to != nullptr);
    for (int lane = 0; without != 0; ++lane, without >>= 1) {
      if ((without & 1) == 0) continue;
      missing.FillValue(tile, tile.Broadcast(key, lane), tile.Broadcast(to, lane));
    }
  }

  DYNEMB_HOST_DEVICE void Copy(const Tile& tile, const char* row, char* to) const {
    const int width = copy_width < tile.width ? copy_width : tile.width;
    const int at_once = tile.width / width, of_these = tile.lane / width;
    const int64_t pieces = value_bytes / static_cast<int64_t>(sizeof(Piece));
    for (int first = 0; first < tile.width; first += kRowsAtOnce * at_once) {
      const Piece* from[kRowsAtOnce];
      Piece* target[kRowsAtOnce];
#pragma unroll
      for (int r = 0; r < kRowsAtOnce; ++r) {
        const int lane = first + r * at_once + of_these;
        const bool is_row = lane < tile.width;
        from[r] = reinterpret_cast<const Piece*>(tile.Broadcast(row, is_row ? lane : 0));
        target[r] = reinterpret_cast<Piece*>(tile.Broadcast(to, is_row ? lane : 0));
        if (!is_row) from[r] = nullptr;
      }
      for (int64_t p = tile.lane % width; p < pieces; p += width) {
        Piece piece[kRowsAtOnce];
#pragma unroll
        for (int r = 0; r < kRowsAtOnce; ++r) {
          if (from[r] != nullptr) piece[r] = from[r][p];
        }
#pragma unroll
        for (int r = 0; r < kRowsAtOnce; ++r) {
          if (from[r] != nullptr) target[r][p] = piece[r];
        }
      }
    }
  }
};

// Table::ReadRows, by warps: each lane searches a key; then all copy one row after the other.
struct ReadFoundRows {
  Entries entries;
  LiveRows rows;
  RowLayout layout;
  RowParts out;
  bool copies;  // whether `out` has anything
  Reports reports;
  ReadCounts counts;

  DYNEMB_HOST_DEVICE void operator()(const Tile& warp, int64_t group) const {
    const int64_t i = group * warp.width + warp.lane;
    const int64_t position = i < entries.most ? entries.position(i) : -1;
    const char* const row = position < 0 ? nullptr : rows.Find(entries.keys[position]);
    if (position >= 0) {
      reports.Set(position, row == nullptr ? Outcome::kMissing : Outcome::kFound);
    }
    counts.Add(warp, group, row != nullptr, row == nullptr && position >= 0);
    unsigned there = copies ? warp.Vote(row != nullptr) : 0;
    for (int lane = 0; there != 0; ++lane, there >>= 1) {
      if ((there & 1) == 0) continue;
      CopyRowOut(warp, layout, warp.Broadcast(row, lane), out, warp.Broadcast(position, lane));
    }
  }
};

// GpuTable::FindBags, a tile for each bag: each lane searches an id, and then all add up the rows
// in their order, a few columns each, in registers.
template <typename V>
struct PoolBags {
  using T = ComputeType<V>;
  static constexpr int kBlocks = 1;  // of a lane's columns that are summed at once
  static constexpr int kRows = 4;    // that are waited for together
  // Lanes to a bag, so that they go through its ids once, if its columns are not too many.
  static int Width(int64_t dim) {
    return std::max(8, TileWidth((dim + kBlock * kBlocks - 1) / (kBlock * kBlocks)));
  }

  LiveRows rows;
  InitialValues missing;
  int64_t dim;
  Span<const Key> ids;
  Span<const int64_t> begins;
  bool mean;
  const T* weights;  // or null
  Rows out;
  ReadCounts counts;

  DYNEMB_HOST_DEVICE void operator()(const Tile& tile, int64_t bag) const {
    const int64_t begin = begins[bag] < 0 ? 0 : begins[bag];
    const int64_t end = begins[bag + 1] < ids.size ? begins[bag + 1] : ids.size;
    T* const to = reinterpret_cast<T*>(out[bag]);
    const int64_t step = int64_t{kBlocks} * tile.width;
    for (int64_t first = tile.lane; (first - tile.lane) * kBlock < dim; first += step) {
      Block<T> sum[kBlocks] = {};
      double weight_sum = 0;
      for (int64_t id = begin; id < end; id += tile.width) {
        const int64_t own = id + tile.lane;
        const Key key = own < end ? ids[own] : 0;
        const char* const row = own < end ? rows.Find(key) : nullptr;
        if (first == tile.lane) {
          counts.Add(tile, bag, row != nullptr, own < end && row == nullptr);
        }
        const T weight = own < end && weights != nullptr ? weights[own] : T(1);
        const auto count = static_cast<int>(end - id < tile.width ? end - id : tile.width);
        for (int lane = 0; lane < count; lane += kRows) {
          AddRows(tile, first, key, row, weight, lane, count, sum, &weight_sum);
        }
      }
      const bool zeros = mean && weight_sum == 0;
      const T divisor = !mean || zeros ? T(1) : static_cast<T>(weight_sum);
#pragma unroll
      for (int b = 0; b < kBlocks; ++b) {
        const int64_t block = first + int64_t{b} * tile.width;
        for (T& number : sum[b].number) number = zeros ? T(0) : number / divisor;
        if (block * kBlock < dim) StoreBlock(sum[b], block, dim, IsAligned(to), to);
      }
    }
  }

  // Adds the rows of lanes [lane, lane + kRows) below `count`, each with what it has looked up.
  DYNEMB_HOST_DEVICE void AddRows(const Tile& tile, int64_t first, Key own_key, const char* own_row,
                                  T own_weight, int lane, int count, Block<T>* sum,
                                  double* weight_sum) const {
    Block<V> values[kRows][kBlocks] = {};
    T weight[kRows];
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const int from = lane + r < count ? lane + r : lane;
      const Key key = tile.Broadcast(own_key, from);
      const char* const row = tile.Broadcast(own_row, from);
      weight[r] = lane + r < count ? tile.Broadcast(own_weight, from) : T(0);
#pragma unroll
      for (int b = 0; b < kBlocks; ++b) {
        const int64_t block = first + int64_t{b} * tile.width;
        if (lane + r >= count || block * kBlock >= dim) continue;
        if (row == nullptr) {
          values[r][b] = missing.template Values<V>(key, block);
        } else {
          LoadBlock(reinterpret_cast<const V*>(row), block, dim, dim % kBlock == 0, &values[r][b]);
        }
      }
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (lane + r >= count) continue;
      *weight_sum += static_cast<double>(weight[r]);
#pragma unroll
      for (int b = 0; b < kBlocks; ++b) {
        for (int i = 0; i < kBlock; ++i) {
          sum[b].number[i] += weight[r] * static_cast<T>(values[r][b].number[i]);
        }
      }
    }
  }
};

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_GPU_TABLE_FIND_ROWS_CU_H_

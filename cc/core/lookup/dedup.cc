#include "cc/core/lookup/dedup.h"

#include <algorithm>

#include "cc/core/base/copy_bytes.h"
#include "cc/core/base/hash.h"
#include "cc/core/base/sort_by_part.h"
#include "cc/core/table/value_functions.h"

namespace dynemb {
namespace {

constexpr int64_t kRowsPerTask = 512;
constexpr int64_t kFetchedAhead = 64;

}  // namespace

// In one thread. Several, which sort keys into parts first, took 0.6 to 0.8 of the time with 8 and
// 16 threads and 262,144 keys, and more time with fewer of either.
Dedup::Dedup(Span<const Key> keys) : inverse_(keys.size) {
  // Open addressing over 1 + places in unique_, at most half full.
  int64_t cells = 16;
  while (cells < 2 * keys.size) cells *= 2;
  std::vector<int64_t> table(cells);
  for (int64_t begin = 0; begin < keys.size; begin += kFetchedAhead) {
    uint64_t first_cells[kFetchedAhead];
    const int64_t end = std::min(keys.size, begin + kFetchedAhead);
    for (int64_t i = begin; i < end; ++i) {
      first_cells[i - begin] = Mix64(static_cast<uint64_t>(keys[i])) & (cells - 1);
      __builtin_prefetch(&table[first_cells[i - begin]]);
    }
    for (int64_t i = begin; i < end; ++i) {
      uint64_t at = first_cells[i - begin];
      while (table[at] != 0 && unique_[table[at] - 1] != keys[i]) at = (at + 1) & (cells - 1);
      if (table[at] == 0) {
        unique_.push_back(keys[i]);
        table[at] = static_cast<int64_t>(unique_.size());
      }
      inverse_[i] = table[at] - 1;
    }
  }
}

Status SumByKey(const Context& context, const Dedup& dedup, DType dtype, int64_t dim,
                ConstRows rows, Span<const double> scales, Rows sums) {
  // Positions grouped by key: those of key u are grouped[begin[u]] .. grouped[begin[u + 1] - 1].
  const std::vector<int64_t>& inverse = dedup.inverse();
  const int64_t n = static_cast<int64_t>(inverse.size());
  std::vector<int64_t> begin(dedup.size() + 1), grouped(n);
  DYNEMB_RETURN_IF_ERROR(SortByPart(
      context, n, dedup.size(), [&](int64_t i) { return inverse[i]; },
      [&](int64_t i, int64_t, int64_t place) { grouped[place] = i; }, begin.data()));

  const SumFunction sum = SumFor(dtype);
  const int64_t tasks = (dedup.size() + kRowsPerTask - 1) / kRowsPerTask;
  return context.executor->Run(tasks, kRowsPerTask * (10 + dim / 2), [&](int64_t task) {
    const int64_t end = std::min(dedup.size(), (task + 1) * kRowsPerTask);
    for (int64_t u = task * kRowsPerTask; u < end; ++u) {
      const Span<const int64_t> positions(&grouped[begin[u]], begin[u + 1] - begin[u]);
      if (positions.size == 1 && scales.empty()) {
        CopyBytes(sums[u], rows[positions[0]], dim * SizeOf(dtype));
      } else {
        sum(dim, rows, positions, scales.data_or_null(), sums[u]);
      }
    }
  });
}

}  // namespace dynemb

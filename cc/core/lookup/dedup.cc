#include "cc/core/lookup/dedup.h"

#include <algorithm>

#include "cc/core/base/copy_bytes.h"
#include "cc/core/base/hash.h"
#include "cc/core/table/value_functions.h"

namespace dynemb {
namespace {

constexpr int64_t kRowsPerTask = 512;

}  // namespace

Dedup::Dedup(Span<const Key> keys) : inverse_(keys.size) {
  // Open addressing over places in unique_, at most half full.
  int64_t cells = 16;
  while (cells < 2 * keys.size) cells *= 2;
  std::vector<int64_t> table(cells, -1);
  for (int64_t i = 0; i < keys.size; ++i) {
    uint64_t at = Mix64(static_cast<uint64_t>(keys[i])) & (cells - 1);
    while (table[at] >= 0 && unique_[table[at]] != keys[i]) at = (at + 1) & (cells - 1);
    if (table[at] < 0) {
      table[at] = static_cast<int64_t>(unique_.size());
      unique_.push_back(keys[i]);
    }
    inverse_[i] = table[at];
  }
}

Status SumByKey(const Context& context, const Dedup& dedup, DType dtype, int64_t dim,
                ConstRows rows, Span<const double> scales, Rows sums) {
  // Positions grouped by key: those of key u are grouped[begin[u]] .. grouped[begin[u + 1] - 1].
  const int64_t n = static_cast<int64_t>(dedup.inverse().size());
  std::vector<int64_t> begin(dedup.size() + 2);
  for (const int64_t u : dedup.inverse()) ++begin[u + 2];
  for (size_t u = 2; u < begin.size(); ++u) begin[u] += begin[u - 1];
  std::vector<int64_t> grouped(n);
  for (int64_t i = 0; i < n; ++i) grouped[begin[dedup.inverse()[i] + 1]++] = i;

  const SumFunction sum = SumFor(dtype);
  const int64_t tasks = (dedup.size() + kRowsPerTask - 1) / kRowsPerTask;
  return context.executor->Run(tasks, kRowsPerTask * (20 + dim), [&](int64_t task) {
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

#include "cc/core/lookup/sum_by_key.h"

#include <algorithm>

#include "cc/core/base/copy_bytes.h"
#include "cc/core/base/sort_by_part.h"
#include "cc/core/table/value_functions.h"

namespace dynemb {
namespace {

constexpr int64_t kRowsPerTask = 512;

}  // namespace

Status SumByKey(const Context& context, const DistinctKeys& keys, DType dtype, int64_t dim,
                ConstRows rows, Span<const double> scales, Rows sums) {
  // Positions grouped by key: those of key u are grouped[begin[u]] .. grouped[begin[u + 1] - 1].
  const std::vector<int64_t>& numbers = keys.numbers();
  const int64_t n = static_cast<int64_t>(numbers.size());
  std::vector<int64_t> begin(keys.size() + 1), grouped(n);
  DYNEMB_RETURN_IF_ERROR(SortByPart(
      context, n, keys.size(), [&](int64_t i) { return numbers[i]; },
      [&](int64_t i, int64_t, int64_t place) { grouped[place] = i; }, begin.data()));

  const SumFunction sum = SumFor(dtype);
  const int64_t tasks = (keys.size() + kRowsPerTask - 1) / kRowsPerTask;
  return context.executor->Run(tasks, kRowsPerTask * (10 + dim / 2), [&](int64_t task) {
    const int64_t end = std::min(keys.size(), (task + 1) * kRowsPerTask);
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

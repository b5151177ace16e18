#include "cc/core/table/memory_bound.h"

#include <algorithm>
#include <cmath>

#include "cc/core/table/batch_order.h"
#include "cc/core/table/segment.h"

namespace dynemb {
namespace {

constexpr int64_t kSegments = BatchOrder::kSegments;

}  // namespace

int64_t RowsOfSegment(int64_t rows_of_table) {
  if (rows_of_table == 0) return 0;
  const double mean = static_cast<double>(rows_of_table) / kSegments;
  const double most = mean + 6 * std::sqrt(mean) + 1;
  return std::min(rows_of_table, static_cast<int64_t>(most));
}

int64_t IndexBytes(int64_t rows) {
  int64_t bytes = 0;
  for (int64_t s = 0; s < kSegments; ++s) {
    bytes += Segment::IndexBytes(RowsOfSegment(rows), static_cast<double>(s) / kSegments);
  }
  return bytes;
}

int64_t RowBytes(int64_t rows, const RowLayout& layout) {
  return kSegments * Segment::RowBytes(RowsOfSegment(rows), layout);
}

int64_t RowsWithin(int64_t bytes, const RowLayout& layout, int64_t index_bytes) {
  int64_t fit = 0, too_many = bytes / layout.row_bytes + 1;
  while (too_many - fit > 1) {
    const int64_t rows = fit + (too_many - fit) / 2;
    const int64_t taken = std::max(index_bytes, IndexBytes(rows)) + RowBytes(rows, layout);
    (taken <= bytes ? fit : too_many) = rows;
  }
  return fit;
}

}  // namespace dynemb

#include "cc/core/table/call_checks.h"

namespace dynemb {

Status CheckContext(const Context& context) {
  if (context.space != MemorySpace::kHost) return WrongSpace("context");
  if (context.executor == nullptr) return InvalidArgument("context.executor: got null");
  return Status();
}

Status CheckBatch(const Context& context, const Batch& batch, const Report& report) {
  DYNEMB_RETURN_IF_ERROR(CheckContext(context));
  const int64_t n = batch.keys.size;
  DYNEMB_RETURN_IF_ERROR(CheckSpan("keys", batch.keys));
  int64_t taking_part = n;
  if (const Positions* select = batch.select) {
    DYNEMB_RETURN_IF_ERROR(CheckSpan("select", select->at));
    if (select->count == nullptr) return InvalidArgument("select.count: got null");
    taking_part = *select->count;
    if (taking_part < 0 || taking_part > select->at.size) {
      return InvalidArgument("select.count: got ", taking_part, ", want 0 to ", select->at.size);
    }
    for (int64_t j = 0; j < taking_part; ++j) {
      if (select->at[j] < 0 || select->at[j] >= n) {
        return InvalidArgument("select: got position ", select->at[j], ", want 0 to ", n - 1);
      }
    }
  }
  if (!report.outcomes.empty()) {
    DYNEMB_RETURN_IF_ERROR(CheckSpan("outcomes", report.outcomes));
    if (report.outcomes.size != n) {
      return InvalidArgument("outcomes: got room for ", report.outcomes.size, ", want ", n);
    }
  }
  if (report.misses != nullptr) {
    DYNEMB_RETURN_IF_ERROR(CheckSpan("misses", report.misses->at));
    if (report.misses->count == nullptr || report.misses->at.size < taking_part) {
      return InvalidArgument("misses: got room for ", report.misses->at.size, ", want ",
                             taking_part, " and a count");
    }
  }
  return Status();
}

Status CheckValues(const char* what, const Batch& batch, ConstRows rows, DType dtype, int64_t dim) {
  if (rows.space != MemorySpace::kHost) return WrongSpace(what);
  const int64_t element = SizeOf(dtype);
  const int64_t value_bytes = dim * element;
  if (rows.data == nullptr && rows.count > 0) return InvalidArgument(what, ": got null");
  // No rows have no stride, and what would be their offsets may be null.
  const bool any_place = rows.offsets != nullptr || rows.count == 0;
  if (any_place && rows.count == batch.keys.size) return Status();
  if (rows.count != batch.keys.size || rows.stride_bytes < value_bytes ||
      rows.stride_bytes % element != 0 || reinterpret_cast<uintptr_t>(rows.data) % element != 0) {
    return InvalidArgument(what, ": got ", rows.count, " rows ", rows.stride_bytes,
                           " bytes apart, want ", batch.keys.size, " rows of ", dim, " ",
                           Name(dtype), ", at least ", value_bytes, " bytes apart and aligned to ",
                           element);
  }
  return Status();
}

Status CheckScales(const Batch& batch, const Update& update) {
  DYNEMB_RETURN_IF_ERROR(CheckSpan("scales", update.scales));
  if (update.scales.empty() || update.scales.size == batch.keys.size) return Status();
  return InvalidArgument("scales: got ", update.scales.size, ", want one per key, ",
                         batch.keys.size, ", or none");
}

Status CheckPart(const char* what, int64_t n, int64_t bytes, ConstRows rows) {
  if (rows.data == nullptr) return Status();
  if (rows.space != MemorySpace::kHost) return WrongSpace(what);
  if (rows.count != n || rows.stride_bytes < bytes) {
    return InvalidArgument(what, ": got ", rows.count, " rows ", rows.stride_bytes,
                           " bytes apart, want ", n, " rows at least ", bytes, " bytes apart");
  }
  return Status();
}

Status CheckCounts(const Span<int64_t>& counts, int prefix_bits, int* bits) {
  DYNEMB_RETURN_IF_ERROR(CheckSpan("counts", counts));
  *bits = 0;
  while (*bits < 16 && (int64_t{1} << *bits) < counts.size) ++*bits;
  if (*bits > 0 && counts.size == int64_t{1} << *bits && prefix_bits >= 0 &&
      prefix_bits + *bits <= 128 && prefix_bits % *bits == 0 && 64 % *bits == 0) {
    return Status();
  }
  return InvalidArgument("histogram: got ", counts.size, " counts after ", prefix_bits,
                         " bits, want a power of two up to 65536 whose logarithm divides 64 "
                         "and prefix_bits");
}

Status CheckParts(const Cursor& cursor) {
  constexpr int64_t kMost = 1 << 20;
  if (cursor.parts >= 1 && cursor.parts <= kMost && cursor.part >= 0 &&
      cursor.part < cursor.parts) {
    return Status();
  }
  return InvalidArgument("cursor: got part ", cursor.part, " of ", cursor.parts, ", want 0 to ",
                         "parts - 1 of 1 to ", kMost);
}

}  // namespace dynemb

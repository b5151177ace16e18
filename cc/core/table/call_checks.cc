#include "cc/core/table/call_checks.h"

namespace dynemb {

Status CheckContext(const Context& context, MemorySpace space) {
  if (context.space != space) return WrongSpace("context", space);
  if (space == MemorySpace::kHost && context.executor == nullptr)
    return InvalidArgument("context.executor: got null");
  return Status();
}

namespace {

// Positions in host memory.
Status CheckPositions(const Positions& select, int64_t n) {
  const int64_t taking_part = *select.count;
  if (taking_part < 0 || taking_part > select.at.size) {
    return InvalidArgument("select.count: got ", taking_part, ", want 0 to ", select.at.size);
  }
  const int64_t outside = FirstOutside(Span<const int64_t>(select.at.data, taking_part), n);
  if (outside == taking_part) return Status();
  return InvalidArgument("select: got position ", select.at[outside], ", want 0 to ", n - 1);
}

}  // namespace

Status CheckBatch(const Context& context, const Batch& batch, const Report& report,
                  MemorySpace space) {
  DYNEMB_RETURN_IF_ERROR(CheckContext(context, space));
  const int64_t n = batch.keys.size;
  DYNEMB_RETURN_IF_ERROR(CheckSpan("keys", batch.keys, space));
  int64_t most = n;  // that may take part
  if (const Positions* select = batch.select) {
    DYNEMB_RETURN_IF_ERROR(CheckSpan("select", select->at, space));
    if (select->at.space != space) return WrongSpace("select", space);  // so is its count
    if (select->count == nullptr) return InvalidArgument("select.count: got null");
    if (space == MemorySpace::kHost) DYNEMB_RETURN_IF_ERROR(CheckPositions(*select, n));
    most = select->at.size;
  }
  if (!report.outcomes.empty()) {
    DYNEMB_RETURN_IF_ERROR(CheckSpan("outcomes", report.outcomes, space));
    if (report.outcomes.size != n) {
      return InvalidArgument("outcomes: got room for ", report.outcomes.size, ", want ", n);
    }
  }
  if (report.misses != nullptr) {
    if (report.misses->at.space != space) return WrongSpace("misses", space);  // so is its count
    DYNEMB_RETURN_IF_ERROR(CheckSpan("misses", report.misses->at, space));
    if (report.misses->count == nullptr || report.misses->at.size < most) {
      return InvalidArgument("misses: got room for ", report.misses->at.size, ", want ", most,
                             " and a count");
    }
  }
  return Status();
}
Status CheckValues(const char* what, const Batch& batch, ConstRows rows, DType dtype, int64_t dim,
                   MemorySpace space) {
  if (rows.space != space) return WrongSpace(what, space);
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

Status CheckScales(const Batch& batch, const Update& update, MemorySpace space) {
  if (update.scales.empty()) return Status();
  DYNEMB_RETURN_IF_ERROR(CheckSpan("scales", update.scales, space));
  if (update.scales.size == batch.keys.size) return Status();
  return InvalidArgument("scales: got ", update.scales.size, ", want one per key, ",
                         batch.keys.size, ", or none");
}

Status CheckStamp(const Batch& batch, const Stamp& stamp, MemorySpace space) {
  if (stamp.scores.empty()) return Status();
  DYNEMB_RETURN_IF_ERROR(CheckSpan("scores", stamp.scores, space));
  if (stamp.scores.size == batch.keys.size) return Status();
  return InvalidArgument("scores: got ", stamp.scores.size, ", want one per key, ", batch.keys.size,
                         ", or none");
}

Status CheckExists(const Batch& batch, const Span<const bool>& exists, MemorySpace space) {
  DYNEMB_RETURN_IF_ERROR(CheckSpan("exists", exists, space));
  if (exists.size == batch.keys.size) return Status();
  return InvalidArgument("exists: got ", exists.size, " flags, want one per key, ",
                         batch.keys.size);
}

Status CheckPart(const char* what, int64_t n, int64_t bytes, ConstRows rows, MemorySpace space) {
  if (rows.data == nullptr) return Status();
  if (rows.space != space) return WrongSpace(what, space);
  if (rows.count != n || rows.stride_bytes < bytes) {
    return InvalidArgument(what, ": got ", rows.count, " rows ", rows.stride_bytes,
                           " bytes apart, want ", n, " rows at least ", bytes, " bytes apart");
  }
  return Status();
}

Status CheckExport(const RowLayout& layout, const RowParts& out, MemorySpace space) {
  const int64_t capacity = out.keys.size;
  if (out.keys.data != nullptr) DYNEMB_RETURN_IF_ERROR(CheckSpan("out.keys", out.keys, space));
  if (capacity < 1) return InvalidArgument("out.keys: got room for ", capacity, " rows, want 1");
  DYNEMB_RETURN_IF_ERROR(CheckPart("out.values", capacity, layout.value_bytes, out.values, space));
  DYNEMB_RETURN_IF_ERROR(CheckPart("out.slots", capacity, layout.slots_bytes, out.slots, space));
  return CheckPart("out.meta", capacity, layout.meta_bytes, out.meta, space);
}

Status CheckRowsToRead(const RowLayout& layout, const Batch& batch, const RowParts& rows,
                       MemorySpace space) {
  const int64_t n = batch.keys.size;
  DYNEMB_RETURN_IF_ERROR(CheckPart("values", n, layout.value_bytes, rows.values, space));
  DYNEMB_RETURN_IF_ERROR(CheckPart("slots", n, layout.slots_bytes, rows.slots, space));
  DYNEMB_RETURN_IF_ERROR(CheckPart("meta", n, layout.meta_bytes, rows.meta, space));
  if (rows.keys.data == nullptr) return Status();
  DYNEMB_RETURN_IF_ERROR(CheckSpan("keys of rows", rows.keys, space));
  if (rows.keys.size == n) return Status();
  return InvalidArgument("keys of rows: got room for ", rows.keys.size, ", want ", n);
}

Status CheckRowsToInsert(const RowLayout& layout, const Batch& batch, const ConstRowParts& rows,
                         MemorySpace space) {
  const int64_t n = batch.keys.size;
  DYNEMB_RETURN_IF_ERROR(CheckPart("values", n, layout.value_bytes, rows.values, space));
  DYNEMB_RETURN_IF_ERROR(CheckPart("slots", n, layout.slots_bytes, rows.slots, space));
  DYNEMB_RETURN_IF_ERROR(CheckPart("meta", n, layout.meta_bytes, rows.meta, space));
  if (n == 0 || (rows.values.data && (rows.slots.data || layout.slots_bytes == 0) &&
                 (rows.meta.data || layout.meta_bytes == 0))) {
    return Status();
  }
  return InvalidArgument("rows to insert: a part that the schema has is missing");
}

Status CheckCounts(const Span<int64_t>& counts, int prefix_bits, int* bits, MemorySpace space) {
  DYNEMB_RETURN_IF_ERROR(CheckSpan("counts", counts, space));
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

Status CheckTablePart(const TablePart& part) {
  constexpr int64_t kMost = 1 << 20;
  if (part.parts >= 1 && part.parts <= kMost && part.part >= 0 && part.part < part.parts) {
    return Status();
  }
  return InvalidArgument("part of a table: got part ", part.part, " of ", part.parts,
                         ", want 0 to parts - 1 of 1 to ", kMost);
}

Status CheckMetaField(const RowLayout& layout, MetaField field) {
  if (layout.meta_field[static_cast<int>(field)] >= 0) return Status();
  return FailedPrecondition("the table's rows have no meta field ", Name(field));
}

Status CheckOptimizer(const TableSchema& schema, const OptimizerSpec& rule) {
  if (schema.rule == rule) return Status();
  return FailedPrecondition("the table is trained by ", schema.rule.DebugString(), ", got ",
                            rule.DebugString(), "; set the optimizer first");
}

Status OtherRule(const OptimizerSpec& attached, const OptimizerSpec& got) {
  return FailedPrecondition(
      "the table is trained by ", attached.DebugString(), ", got ", got.DebugString(),
      "; use the same one, or reset_optimizer() to begin with another and without its slots");
}

Status CheckMove(const TableSchema& from, const TableSchema& to) {
  DYNEMB_RETURN_IF_ERROR(to.Validate());
  TableSchema same = to;
  same.rule = from.rule;
  same.meta = from.meta;
  if (same.ToText() == from.ToText()) return Status();
  return InvalidArgument("schema: rows of\n", from.ToText(), "cannot be moved into a table of\n",
                         to.ToText(), "want another optimizer or meta fields at most");
}

Status EpochNotLater(int64_t got, int64_t current) {
  return InvalidArgument("epoch: got ", got, ", want more than ", current);
}

Status ChangesNotKnown(int64_t since) {
  return FailedPrecondition(
      "changes since epoch ", since,
      ": they are not known; the table was not tracked then, was cleared, or more has changed than "
      "it has rows; save a full snapshot");
}

}  // namespace dynemb

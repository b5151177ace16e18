#include "cc/core/table/host_table.h"

#include <algorithm>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <utility>

#include "cc/core/base/fair_shared_mutex.h"
#include "cc/core/table/call_checks.h"
#include "cc/core/table/host_table_impl.h"
#include "cc/core/table/memory_bound.h"

namespace dynemb {
namespace {

Initializer MissingValue(const TableSchema& schema, const TableOptions& options) {
  Initializer initializer = schema.initializer;
  if (const auto value = options.missing_value) {
    initializer = Initializer();
    initializer.constant = {*value};
  }
  return initializer;
}

}  // namespace

HostTable::HostTable(const TableSchema& schema, const TableOptions& options,
                     std::shared_ptr<SlabArena> index_arena)
    : schema_(schema),
      layout_(schema),
      options_(options),
      missing_value_(MissingValue(schema, options)),
      fill_(FillFor(schema.value_dtype)),
      add_(AddFor(schema.value_dtype)),
      gradient_dtype_(GradientDType(schema.value_dtype)),
      sum_(SumFor(gradient_dtype_)),
      initial_slots_(static_cast<size_t>(std::max<int64_t>(1, layout_.slots_bytes))),
      index_arena_(std::move(index_arena)) {
  FillInitialSlots(schema_, initial_slots_.data());
  for (int s = 0; s < kSegments; ++s) {
    parts_[s].emplace(&row_arena_, index_arena_.get(), layout_, static_cast<double>(s) / kSegments);
  }
  if (options_.eviction.evicts() || options_.eviction.expires()) {
    evictor_.emplace(RowScores(options_.eviction, layout_, schema_.value_dtype, options_.clock),
                     layout_, options_.evicted, &parts_);
  }
}

HostTable::~HostTable() { GiveBack(size()); }

Status HostTable::Make(const TableSchema& schema, TableOptions options,
                       std::unique_ptr<HostTable>* table) {
  DYNEMB_RETURN_IF_ERROR(schema.Validate());
  DYNEMB_RETURN_IF_ERROR(options.Validate());
  for (int field = 0; field < kMetaFields; ++field) {
    if (!options.eviction.meta().has(MetaField(field)) || schema.meta.has(MetaField(field)))
      continue;
    return InvalidArgument("eviction: want the meta field ", Name(MetaField(field)),
                           " in the schema, for the policy to read");
  }
  DYNEMB_RETURN_IF_ERROR(SetBudget(RowLayout(schema), 0, &options));
  // A table that takes the place of this one goes on with its clock.
  if (options.clock == nullptr) options.clock = std::make_shared<PolicyClock>();
  auto made = std::make_unique<HostTable>(schema, options, NewIndexArena());
  if (options.max_bytes >= 0) DYNEMB_RETURN_IF_ERROR(made->ReserveWithin());
  if (options.track_changes) DYNEMB_RETURN_IF_ERROR(made->BeginEpoch(OneThread(), 1));
  *table = std::move(made);
  return Status();
}

// An index is read twice for each key, and is a small part of a table: a quarter of a huge page
// is enough to take one.
std::shared_ptr<SlabArena> HostTable::NewIndexArena() {
  return std::make_shared<SlabArena>(int64_t{512} << 10);
}

Status HostTable::Clear(const Context& context) {
  DYNEMB_RETURN_IF_ERROR(CheckContext(context));
  for (auto& part : parts_) {
    std::unique_lock<FairSharedMutex> lock(part->mutex);
    const int64_t rows = part->segment.size();
    part->changes.Forget();
    part->segment.Clear();
    // Again as large as it will be. Without memory it is tried again by insertions.
    if (options_.max_bytes >= 0) static_cast<void>(part->segment.ReserveIndex(RowsOfIndex()));
    counters_.Add(&TableCounters::erased, rows);
    GiveBack(rows);
  }
  return Status();
}

Status HostTable::Reserve(const Context& context, int64_t rows) {
  DYNEMB_RETURN_IF_ERROR(CheckContext(context));
  if (rows < 0) return InvalidArgument("rows: got ", rows, ", want 0 or more");
  if (options_.max_bytes >= 0) return Status();  // its index has the size that it will have
  const int64_t share = RowsOfSegment(rows);
  const int64_t expected = std::min(rows, int64_t{1} << 26);  // more would make no difference
  row_arena_.Expect(expected * layout_.row_bytes);
  index_arena_->Expect(expected * Segment::kIndexBytesPerRow);
  for (auto& part : parts_) {
    std::unique_lock<FairSharedMutex> lock(part->mutex);
    if (!part->segment.ReserveIndex(share)) {
      return ResourceExhausted("no memory for an index of ", rows, " rows");
    }
  }
  return Status();
}

int64_t HostTable::memory_bytes() const {
  int64_t bytes = row_arena_.memory_bytes() + index_arena_->memory_bytes();
  for (const auto& part : parts_) {
    std::shared_lock<FairSharedMutex> lock(part->mutex);
    bytes += part->changes.memory_bytes();
  }
  return bytes;
}

int64_t HostTable::size() const {
  int64_t rows = 0;
  for (const auto& part : parts_) {
    std::shared_lock<FairSharedMutex> lock(part->mutex);
    rows += part->segment.size();
  }
  // Of rows that came and left meanwhile both may have been counted.
  return options_.budget == nullptr ? rows : std::min(rows, options_.budget->max_rows());
}

int64_t HostTable::room() const {
  return options_.budget == nullptr ? INT64_MAX : options_.budget->room();
}

int64_t HostTable::max_rows() const {
  return options_.budget == nullptr ? INT64_MAX : options_.budget->max_rows();
}

Status HostTable::SetBudget(const RowLayout& layout, int64_t index_bytes, TableOptions* options) {
  if (!options->is_bounded() || options->budget != nullptr) return Status();
  int64_t rows = options->max_rows;
  if (options->max_bytes >= 0) {
    const int64_t fit = RowsWithin(options->max_bytes, layout, index_bytes);
    if (fit == 0) {
      return InvalidArgument("max_bytes: got ", options->max_bytes,
                             " for each shard, want at least ",
                             std::max(index_bytes, IndexBytes(1)) + RowBytes(1, layout),
                             ", which an index takes and a row of ", layout.row_bytes,
                             " bytes in each segment; an optimizer makes rows larger");
    }
    rows = rows < 0 ? fit : std::min(rows, fit);
  }
  options->budget = std::make_shared<RowBudget>(rows);
  return Status();
}

int64_t HostTable::RowsOfIndex() const { return RowsOfSegment(options_.budget->max_rows()); }

Status HostTable::ReserveWithin() {
  for (auto& part : parts_) {
    if (!part->segment.ReserveIndex(RowsOfIndex())) {
      return ResourceExhausted(
          "max_bytes: got ", options_.max_bytes, ", and there is no memory for the index of ",
          options_.budget->max_rows(),
          " rows, which is made at once; give a smaller max_bytes, or max_rows");
    }
  }
  return LimitArenas();
}

Status HostTable::LimitArenas() {
  const int64_t index_bytes = index_arena_->memory_bytes();
  index_arena_->SetLimit(index_bytes);
  row_arena_.SetLimit(options_.max_bytes - index_bytes);
  return Status();
}

Status MakeHostTable(const TableSchema& schema, const TableOptions& options,
                     std::unique_ptr<Table>* table) {
  std::unique_ptr<HostTable> made;
  DYNEMB_RETURN_IF_ERROR(HostTable::Make(schema, options, &made));
  *table = std::move(made);
  return Status();
}

Status MakeCacheTable(const TableSchema& schema, TableOptions options,
                      std::unique_ptr<CacheTable>* table) {
  options.marks_dirty = true;
  std::unique_ptr<HostTable> made;
  DYNEMB_RETURN_IF_ERROR(HostTable::Make(schema, options, &made));
  *table = std::move(made);
  return Status();
}

}  // namespace dynemb

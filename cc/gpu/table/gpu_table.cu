#include <algorithm>
#include <mutex>
#include <optional>
#include <type_traits>
#include <utility>

#include "cc/core/optimizer/rule.h"
#include "cc/core/table/call_checks.h"
#include "cc/gpu/table/gpu_table_impl.h"

namespace dynemb {

GpuTableOfMemory::GpuTableOfMemory(const TableSchema& schema, DeviceMemory* memory)
    : memory_(memory),
      schema_(schema),
      layout_(schema),
      index_(memory),
      rows_(memory, layout_),
      scratch_(memory),
      arguments_(memory),
      initial_(memory),
      missing_(memory),
      erased_(memory),
      room_scratch_(memory),
      candidates_(memory),
      admitter_(memory),
      left_(memory) {}

GpuTableOfMemory::~GpuTableOfMemory() {
  at_end_.emplace(device_);
  static_cast<void>(order_.WaitForAll());  // an error of the device was another call's
}

Status GpuTableOfMemory::Init(const TableOptions& options) {
  options_ = options;
  if (options_.clock == nullptr) options_.clock = std::make_shared<PolicyClock>();
  DYNEMB_RETURN_IF_ERROR(SetLimits(Taken()));
  if (evicts() || expires()) rows_.ListFreeRows();
  if (!RunsOnHost(space())) {
    DYNEMB_RETURN_IF_ERROR(FromCuda(cudaGetDevice(&device_), "asking for the device"));
  }
  const Context context = OwnContext();
  DYNEMB_RETURN_IF_ERROR(index_.Clear(context));
  DYNEMB_RETURN_IF_ERROR(ReserveWithin(context));
  DYNEMB_RETURN_IF_ERROR(counts_.Init(context, memory_));
  DYNEMB_RETURN_IF_ERROR(SetInitialRows(context));
  if (options_.track_changes) DYNEMB_RETURN_IF_ERROR(StartEpoch(context, 1));
  DYNEMB_RETURN_IF_ERROR(LoadKernels(context));
  return Wait(context);
}

Status GpuTableOfMemory::SetLimits(const Taken& taken) {
  max_rows_ = options_.max_rows;
  if (options_.max_bytes < 0) return {};
  // Rows that are put back are in the table for a moment beside those that leave for them.
  const auto bytes_of = [&](int64_t rows) {
    const int64_t capacity = evicts() ? rows + RowsPutBackAtOnce(rows) : rows;
    return std::max(taken.index, GpuIndex::ReservedBytes(capacity)) +
           rows_.BytesOf(capacity, taken.marks, taken.free_rows);
  };
  const int64_t most = std::min<int64_t>(options_.max_bytes, int64_t{1} << 50);
  int64_t fit = 0, too_many = std::min<int64_t>(most / layout_.row_bytes, kNoRow / 2) + 1;
  while (too_many - fit > 1) {
    const int64_t rows = fit + (too_many - fit) / 2;
    (bytes_of(rows) <= most ? fit : too_many) = rows;
  }
  if (fit == 0) {
    return InvalidArgument("max_bytes: got ", options_.max_bytes, " for each shard, want at least ",
                           bytes_of(1), ", which an index takes and a row of ", layout_.row_bytes,
                           " bytes; an optimizer makes rows larger");
  }
  max_rows_ = max_rows_ < 0 ? fit : std::min(max_rows_, fit);
  rows_.SetLimit(RowsAtMost());
  return {};
}

Status GpuTableOfMemory::ReserveWithin(const Context& context) {
  return options_.max_bytes < 0 ? Status() : index_.Reserve(context, RowsAtMost());
}

Status GpuTableOfMemory::SetInitialRows(const Context& context) {
  DYNEMB_RETURN_IF_ERROR(initial_.SetSchema(context, schema_));
  if (options_.missing_value) {
    TableSchema missing = schema_;
    missing.initializer = Initializer();
    missing.initializer.constant = {*options_.missing_value};
    DYNEMB_RETURN_IF_ERROR(missing_.SetSchema(context, missing));
  }
  if (options_.eviction.half_life == 0 && !options_.eviction.adds_scores()) return {};
  if (!decay_logs_.Allocate(memory_, sizeof(DecayLogs))) {
    return ResourceExhausted("no GPU memory for a table");
  }
  static const DecayLogs logs;
  return CopyAny(context, decay_logs_.as<DecayLogs>(), &logs, sizeof(logs));
}

Context GpuTableOfMemory::OwnContext() const {
  Context context;
  context.space = space();
  context.stream = memory_->stream();
  return context;
}

Expiry GpuTableOfMemory::expiry() const {
  if (!expires()) return {};
  return {FieldOffset(MetaField::kLastWriteTime), options_.clock->now(), options_.eviction.ttl};
}

Status GpuTableOfMemory::Find(const Context& context, const Batch& batch, Rows values,
                              const Report& report) const {
  DYNEMB_RETURN_IF_ERROR(CheckBatch(context, batch, report, space()));
  DYNEMB_RETURN_IF_ERROR(
      CheckValues("values", batch, values, schema_.value_dtype, schema_.dim, space()));
  return InTurn(context, false, [&]() -> Status {
    const Reports reports(report);
    DYNEMB_RETURN_IF_ERROR(BeginReport(context, reports));
    const auto find = [&](auto piece) {
      using Piece = decltype(piece);
      const Entries entries(batch);
      return ForEachTile<kWarp>(
          context, WarpsFor(context, entries.most),
          FindValues<Piece>{entries, live_rows(), missing_values(), layout_.value_bytes,
                            TileWidth(layout_.value_bytes / static_cast<int64_t>(sizeof(Piece))),
                            values, reports, counts_.reads()});
    };
    switch (PieceBytes(layout_.value_bytes, schema_.value_dtype, values)) {
      case 16:
        return find(uint4());
      case 4:
        return find(uint32_t());
      case 2:
        return find(uint16_t());
      default:
        return find(uint8_t());
    }
  });
}

Status GpuTableOfMemory::ReadRows(const Context& context, const Batch& batch, const RowParts& rows,
                                  const Report& report) const {
  DYNEMB_RETURN_IF_ERROR(CheckBatch(context, batch, report, space()));
  DYNEMB_RETURN_IF_ERROR(CheckRowsToRead(layout_, batch, rows, space()));
  return InTurn(context, false, [&]() -> Status {
    const Reports reports(report);
    DYNEMB_RETURN_IF_ERROR(BeginReport(context, reports));
    const Entries entries(batch);
    const bool copies = rows.keys.data != nullptr || rows.values.data != nullptr ||
                        rows.slots.data != nullptr || rows.meta.data != nullptr;
    return ForEachTile<kWarp>(
        context, WarpsFor(context, entries.most),
        ReadFoundRows{entries, live_rows(), layout_, rows, copies, reports, counts_.reads()});
  });
}

Status GpuTableOfMemory::CheckBags(const Context& context, const DeviceBags& bags,
                                   const Rows& out) const {
  DYNEMB_RETURN_IF_ERROR(CheckContext(context, space()));
  DYNEMB_RETURN_IF_ERROR(CheckSpan("ids", bags.ids, space()));
  DYNEMB_RETURN_IF_ERROR(CheckSpan("begins", bags.begins, space()));
  if (bags.pooling == Pooling::kNone) return InvalidArgument("pooling: got none, want sum or mean");
  if (bags.begins.size < 1) return InvalidArgument("begins: got none, want one more than bags");
  if (!IsFloating(schema_.value_dtype)) {
    return InvalidArgument("bags of ", Name(schema_.value_dtype), ": want floating values");
  }
  Batch of_bags;
  of_bags.keys = Span<const Key>(reinterpret_cast<const Key*>(bags.begins.data),
                                 bags.begins.size - 1, space());
  return CheckValues("out", of_bags, out, GradientDType(schema_.value_dtype), schema_.dim, space());
}

Status GpuTableOfMemory::Clear(const Context& context) {
  DYNEMB_RETURN_IF_ERROR(CheckContext(context, space()));
  return InTurn(context, true, [&]() -> Status {
    RowCounts counts;
    DYNEMB_RETURN_IF_ERROR(counts_.Read(context, &counts));
    // One of a table that is bounded by bytes keeps the size that it has.
    DYNEMB_RETURN_IF_ERROR(options_.max_bytes >= 0 ? index_.Empty(context) : index_.Clear(context));
    DYNEMB_RETURN_IF_ERROR(counts_.Clear(context));
    counters_.written += static_cast<int64_t>(counts.written);
    counters_.distinct += static_cast<int64_t>(counts.distinct);
    counters_.inserted += static_cast<int64_t>(counts.inserted);
    heads_ = inserted_ = 0;  // as the counts begin anew
    counters_.expired += static_cast<int64_t>(counts.expired);
    counters_.erased += static_cast<int64_t>(counts.removed) + counts.rows();
    rows_ = RowStore(memory_, layout_);
    if (options_.max_bytes >= 0) rows_.SetLimit(RowsAtMost());
    if (evicts() || expires()) rows_.ListFreeRows();
    if (epoch_ > 0) DYNEMB_RETURN_IF_ERROR(rows_.BeginMarks(context));
    scratch_.Free();
    room_scratch_.Free();
    candidates_.Free();
    left_.Free();
    return erased_.ForgetAll(context, epoch_);
  });
}

Status GpuTableOfMemory::Reserve(const Context& context, int64_t rows) {
  DYNEMB_RETURN_IF_ERROR(CheckContext(context, space()));
  if (rows < 0) return InvalidArgument("rows: got ", rows, ", want 0 or more");
  if (options_.max_bytes >= 0) return {};  // its index has the size that it will have
  return InTurn(context, true, [&] { return index_.Reserve(context, rows); });
}
// The rows go from one table to another, which has been prepared for them.
class GpuTableOfMemory::Move final : public RowMove {
 public:
  Move(GpuTableOfMemory* from, std::unique_ptr<GpuTableOfMemory> to)
      : from_(from), to_(std::move(to)) {}
  std::unique_ptr<Table> Run(const Context& context) override {
    from_->MoveTo(context, to_.get());
    return std::move(to_);
  }

 private:
  GpuTableOfMemory* const from_;
  std::unique_ptr<GpuTableOfMemory> to_;
};

Status GpuTableOfMemory::PrepareMove(const Context& context, const TableSchema& schema,
                                     std::unique_ptr<RowMove>* move) {
  DYNEMB_RETURN_IF_ERROR(CheckContext(context, space()));
  DYNEMB_RETURN_IF_ERROR(CheckMove(schema_, schema));
  auto to = std::make_unique<GpuTableOfMemory>(schema, memory_);
  to->device_ = device_;
  to->options_ = options_;
  DYNEMB_RETURN_IF_ERROR(InTurn(context, true, [&]() -> Status {
    const Status prepared = PrepareRows(context, to.get());
    const Status waited = Wait(context);  // also where what has begun is of no use
    return prepared.ok() ? waited : prepared;
  }));
  *move = std::make_unique<Move>(this, std::move(to));
  return {};
}

int64_t GpuTableOfMemory::room() const { return max_rows_ < 0 ? INT64_MAX : max_rows_ - size(); }

bool GpuTableOfMemory::HasRoom(int64_t rows) const {
  if (max_rows_ < 0) return true;
  {
    std::lock_guard<FairSharedMutex> lock(mutex_);
    const DeviceGuard guard(device_);
    counts_.Poll();
    if (rows <= max_rows_ - counts_.most_rows()) return true;
  }
  return rows <= room();
}
int64_t GpuTableOfMemory::size() const {
  int64_t rows = 0;
  const Context context = OwnContext();
  // An error is the device's, which nothing can be asked any more.
  static_cast<void>(InTurn(context, true, [&]() -> Status {
    RowCounts counts;
    DYNEMB_RETURN_IF_ERROR(counts_.Read(context, &counts));
    rows = counts.rows();
    return {};
  }));
  return rows;
}

TableCounters GpuTableOfMemory::counters() const {
  RowCounts counts;
  const Context context = OwnContext();
  TableCounters counters;
  static_cast<void>(InTurn(context, true, [&]() -> Status {
    DYNEMB_RETURN_IF_ERROR(counts_.Read(context, &counts));
    counters = counters_;
    return counts_.AddReads(context, &counters);
  }));
  counters.written += static_cast<int64_t>(counts.written);
  counters.distinct += static_cast<int64_t>(counts.distinct);
  counters.inserted += static_cast<int64_t>(counts.inserted);
  counters.expired += static_cast<int64_t>(counts.expired);
  counters.erased += static_cast<int64_t>(counts.removed) - counters.evicted - counters.expired;
  return counters;
}

int64_t GpuTableOfMemory::memory_bytes() const {
  std::lock_guard<FairSharedMutex> lock(mutex_);
  return index_.bytes() + rows_.bytes();
}

int64_t GpuTableOfMemory::index_cells() const {
  std::lock_guard<FairSharedMutex> lock(mutex_);
  return index_.cells();
}

// The limits of a table bounded by max_bytes to which the rows of this one move: as many bytes, for
// rows of another size.
Status GpuTableOfMemory::PrepareLimits(const Context& context, const RowCounts& counts,
                                       GpuTableOfMemory* to) const {
  if (rows_.capacity() == 0) {  // whose index can have another size
    DYNEMB_RETURN_IF_ERROR(to->SetLimits(Taken()));
    DYNEMB_RETURN_IF_ERROR(to->index_.Clear(context));
    return to->ReserveWithin(context);
  }
  const Taken taken = {index_.bytes(), rows_.marks_bytes(), rows_.free_rows_bytes()};
  DYNEMB_RETURN_IF_ERROR(to->SetLimits(taken));
  to->max_rows_ = std::min(to->max_rows_, max_rows_);
  to->rows_.SetLimit(to->RowsAtMost());
  if (counts.fresh <= to->RowsAtMost() && counts.rows() <= to->max_rows_) return {};
  return ResourceExhausted(
      "max_bytes: got ", options_.max_bytes, ", want ",
      taken.index + to->rows_.BytesOf(counts.fresh, taken.marks, taken.free_rows),
      " for the places of ", counts.fresh, " rows of ", to->layout_.row_bytes,
      " bytes, as an optimizer makes them; before they had ", layout_.row_bytes,
      "; give a larger max_bytes");
}

Status GpuTableOfMemory::PrepareRows(const Context& context, GpuTableOfMemory* to) const {
  RowCounts counts;
  DYNEMB_RETURN_IF_ERROR(counts_.Read(context, &counts));
  to->max_rows_ = max_rows_;
  if (options_.max_bytes >= 0) DYNEMB_RETURN_IF_ERROR(PrepareLimits(context, counts, to));
  if (evicts() || expires()) to->rows_.ListFreeRows();
  DYNEMB_RETURN_IF_ERROR(rows_.MakeLike(context, to->layout_, counts.fresh, &to->rows_));
  DYNEMB_RETURN_IF_ERROR(to->SetInitialRows(context));
  // One row, by which the kernel is loaded.
  return Convert(context, 0, std::min<int64_t>(counts.fresh, 1), *to);
}

void GpuTableOfMemory::MoveTo(const Context& context, GpuTableOfMemory* to) {
  // An error is the device's, which the next call hears of.
  static_cast<void>(InTurn(context, true, [&]() -> Status {
    RowCounts counts;
    DYNEMB_RETURN_IF_ERROR(counts_.Read(context, &counts));
    return rows_.EmptySlabs(context, counts.fresh, [&](int64_t first, int64_t n) {
      return Convert(context, first, n, *to);
    });
  }));
  to->rows_.TakeMarksAndFreeRows(&rows_);
  if (to->index_.bytes() == 0) to->index_ = std::move(index_);
  to->counts_ = std::move(counts_);
  to->scratch_ = std::move(scratch_);
  to->erased_ = std::move(erased_);
  to->epoch_ = epoch_;
  to->hand_ = hand_;
  to->expired_hand_ = expired_hand_;
  to->heads_ = heads_;
  to->inserted_ = inserted_;
  to->counters_ = counters_;
}

Status GpuTableOfMemory::Convert(const Context& context, int64_t first, int64_t n,
                                 const GpuTableOfMemory& to) const {
  const bool same_slots = to.schema_.rule == schema_.rule;
  return ForEachRow(context, n,
                    ConvertRows{rows_.view(), to.rows_.view(), layout_, to.layout_,
                                same_slots ? nullptr : to.initial_.slots(), first});
}

Status MakeGpuTable(const TableSchema& schema, const TableOptions& options, DeviceMemory* memory,
                    std::unique_ptr<GpuTable>* table) {
  DYNEMB_RETURN_IF_ERROR(schema.Validate());
  DYNEMB_RETURN_IF_ERROR(options.Validate());
  const MetaFields wanted = options.eviction.meta();
  if ((wanted.bits & ~schema.meta.bits) != 0) {
    return InvalidArgument("eviction: want the meta field that the policy reads in the schema");
  }
  auto made = std::make_unique<GpuTableOfMemory>(schema, memory);
  DYNEMB_RETURN_IF_ERROR(made->Init(options));
  *table = std::move(made);
  return {};
}

}  // namespace dynemb

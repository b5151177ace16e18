#include <algorithm>
#include <mutex>
#include <new>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "cc/core/base/fair_shared_mutex.h"
#include "cc/core/optimizer/rule.h"
#include "cc/core/table/call_checks.h"
#include "cc/core/table/evictor.h"
#include "cc/gpu/for_each.cu.h"
#include "cc/gpu/table/apply_rows.h"
#include "cc/gpu/table/device_guard.h"
#include "cc/gpu/table/erase_log.h"
#include "cc/gpu/table/evict_rows.h"
#include "cc/gpu/table/find_rows.cu.h"
#include "cc/gpu/table/gpu_index.h"
#include "cc/gpu/table/gpu_table.h"
#include "cc/gpu/table/group_batch.h"
#include "cc/gpu/table/initial_rows.h"
#include "cc/gpu/table/known_counts.h"
#include "cc/gpu/table/row_store.h"
#include "cc/gpu/table/scan_rows.cu.h"
#include "cc/gpu/table/scratch.h"
#include "cc/gpu/table/sort_pairs.h"
#include "cc/gpu/table/stream_order.h"
#include "cc/gpu/table/write_rows.cu.h"

namespace dynemb {
namespace {

constexpr int64_t kMoreErased = 1 << 18;                               // see gpu_table.h
constexpr int64_t kCallsAhead = 6, kHeadroomBytes = int64_t{4} << 20;  // see Headroom
constexpr int kMostWaitsInVain = 2;
constexpr int64_t kKeysAtOnce = 1 << 20;  // of those that have changed, to the host
// Chunks of the index that EraseBelow goes through before other calls get a turn; where erased keys
// are noted, as many as have keys that fit into the list.
constexpr int64_t kChunksAtOnce = 1 << 20, kNotedChunksAtOnce = 1 << 15;

class GpuTableOfMemory final : public GpuTable {
 public:
  GpuTableOfMemory(const TableSchema& schema, DeviceMemory* memory)
      : memory_(memory),
        schema_(schema),
        layout_(schema),
        index_(memory),
        rows_(memory, layout_),
        scratch_(memory),
        initial_(memory),
        erased_(memory),
        room_scratch_(memory),
        candidates_(memory) {}
  ~GpuTableOfMemory() override {
    at_end_.emplace(device_);
    static_cast<void>(order_.WaitForAll());  // an error of the device was another call's
  }

  Status Init(const TableOptions& options) {
    DYNEMB_RETURN_IF_ERROR(SetLimits(options));
    if (!RunsOnHost(space())) {
      DYNEMB_RETURN_IF_ERROR(FromCuda(cudaGetDevice(&device_), "asking for the device"));
    }
    const Context context = OwnContext();
    DYNEMB_RETURN_IF_ERROR(index_.Clear(context));
    DYNEMB_RETURN_IF_ERROR(counts_.Init(context, memory_));
    DYNEMB_RETURN_IF_ERROR(initial_.SetSchema(context, schema_));
    DYNEMB_RETURN_IF_ERROR(SetDecayLogs(context));
    if (options.track_changes) DYNEMB_RETURN_IF_ERROR(StartEpoch(context, 1));
    // CUDA loads a kernel when it is first called, which takes memory. Those that end a call that
    // has failed are called here for that.
    DYNEMB_RETURN_IF_ERROR(ForEach(context, 1, RemoveInserted{GroupedBatch(), index_.view()}));
    DYNEMB_RETURN_IF_ERROR(ForEach(context, 1, ReportFull{Entries(), Reports()}));
    DYNEMB_RETURN_IF_ERROR(counts_.EndCall(context, 0, 0));
    return Wait(context);
  }

  MemorySpace space() const override { return memory_->space(); }
  const TableSchema& schema() const override { return schema_; }

  Status Find(const Context& context, const Batch& batch, Rows values,
              const Report& report) const override {
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
            FindValues<Piece>{entries, index_.view(), rows_.view(), initial_.values(),
                              layout_.value_bytes,
                              TileWidth(layout_.value_bytes / static_cast<int64_t>(sizeof(Piece))),
                              values, reports});
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

  Status ReadRows(const Context& context, const Batch& batch, const RowParts& rows,
                  const Report& report) const override {
    DYNEMB_RETURN_IF_ERROR(CheckBatch(context, batch, report, space()));
    DYNEMB_RETURN_IF_ERROR(CheckRowsToRead(layout_, batch, rows, space()));
    return InTurn(context, false, [&]() -> Status {
      const Reports reports(report);
      DYNEMB_RETURN_IF_ERROR(BeginReport(context, reports));
      const Entries entries(batch);
      return ForEachTile<kWarp>(
          context, WarpsFor(context, entries.most),
          ReadFoundRows{entries, index_.view(), rows_.view(), layout_, rows, reports});
    });
  }

  Status FindBags(const Context& context, const DeviceBags& bags, Rows out) const override {
    DYNEMB_RETURN_IF_ERROR(CheckContext(context, space()));
    DYNEMB_RETURN_IF_ERROR(CheckSpan("ids", bags.ids, space()));
    DYNEMB_RETURN_IF_ERROR(CheckSpan("begins", bags.begins, space()));
    if (bags.pooling == Pooling::kNone)
      return InvalidArgument("pooling: got none, want sum or mean");
    if (bags.begins.size < 1) return InvalidArgument("begins: got none, want one more than bags");
    if (!IsFloating(schema_.value_dtype)) {
      return InvalidArgument("bags of ", Name(schema_.value_dtype), ": want floating values");
    }
    Batch of_bags;
    of_bags.keys = Span<const Key>(reinterpret_cast<const Key*>(bags.begins.data),
                                   bags.begins.size - 1, space());
    DYNEMB_RETURN_IF_ERROR(
        CheckValues("out", of_bags, out, GradientDType(schema_.value_dtype), schema_.dim, space()));
    return InTurn(context, false, [&] {
      return VisitDType(schema_.value_dtype, [&](auto tag) -> Status {
        using V = typename decltype(tag)::type;
        if constexpr (std::is_integral_v<V>) {
          return Status();
        } else {
          using T = ComputeType<V>;
          return ForEachTile<0>(
              context, out.count,
              PoolBags<V>{index_.view(), rows_.view(), initial_.values(), schema_.dim, bags.ids,
                          bags.begins, bags.pooling == Pooling::kMean,
                          reinterpret_cast<const T*>(bags.weights), out},
              PoolBags<V>::Width(schema_.dim));
        }
      });
    });
  }

  Status Apply(const Context& context, const Batch& batch, ConstRows gradients,
               const Update& update, const Stamp& stamp, const Report& report) override {
    DYNEMB_RETURN_IF_ERROR(CheckBatch(context, batch, report, space()));
    DYNEMB_RETURN_IF_ERROR(CheckValues("gradients", batch, gradients,
                                       GradientDType(schema_.value_dtype), schema_.dim, space()));
    DYNEMB_RETURN_IF_ERROR(CheckScales(batch, update, space()));
    DYNEMB_RETURN_IF_ERROR(CheckStamp(batch, stamp, space()));
    if (update.rule == nullptr) return InvalidArgument("update.rule: got none");
    std::unique_ptr<RowUpdater> checked;
    DYNEMB_RETURN_IF_ERROR(
        MakeRowUpdater(update.rule->name, schema_.value_dtype, update.hyper, &checked));
    DYNEMB_RETURN_IF_ERROR(CheckAttached(schema_, *update.rule));
    return InTurn(context, true, [&] {
      How how;
      how.in_order = true;
      how.scratch_bytes = ApplyScratchBytes(schema_, Entries(batch).most);
      const auto apply = [&](const GroupedBatch& grouped) {
        return ApplyRows(context, schema_,
                         {grouped, gradients, update, rows_.view(), marks(), layout_,
                          Stamped(stamp), initial_.values()},
                         &scratch_);
      };
      return update.if_missing == IfMissing::kInsert
                 ? Write(context, batch, report, how, AnyHead(), apply)
                 : Write(context, batch, report, how, NoHead(), apply);
    });
  }

  Status Upsert(const Context& context, const Batch& batch, ConstRows values, const Stamp& stamp,
                const Report& report) override {
    DYNEMB_RETURN_IF_ERROR(CheckBatch(context, batch, report, space()));
    DYNEMB_RETURN_IF_ERROR(
        CheckValues("values", batch, values, schema_.value_dtype, schema_.dim, space()));
    DYNEMB_RETURN_IF_ERROR(CheckStamp(batch, stamp, space()));
    return InTurn(context, true, [&] {
      How how;
      how.last_counts = true;
      return Write(context, batch, report, how, AnyHead(), [&](const GroupedBatch& grouped) {
        return ForEachHead(
            context, grouped, rows_.view(), marks(), RowWidth(),
            UpsertHead{initial_slots(), Stamped(stamp), layout_.value_bytes, values});
      });
    });
  }

  Status Accumulate(const Context& context, const Batch& batch, ConstRows values_or_deltas,
                    Span<const bool> exists, const Stamp& stamp, const Report& report) override {
    DYNEMB_RETURN_IF_ERROR(CheckBatch(context, batch, report, space()));
    DYNEMB_RETURN_IF_ERROR(CheckValues("values_or_deltas", batch, values_or_deltas,
                                       schema_.value_dtype, schema_.dim, space()));
    DYNEMB_RETURN_IF_ERROR(CheckExists(batch, exists, space()));
    DYNEMB_RETURN_IF_ERROR(CheckStamp(batch, stamp, space()));
    return InTurn(context, true, [&] {
      How how;
      how.in_order = how.each_reports = true;
      return Write(
          context, batch, report, how, UnseenHead{exists.data}, [&](const GroupedBatch& grouped) {
            return VisitDType(schema_.value_dtype, [&](auto tag) {
              using V = typename decltype(tag)::type;
              return ForEachRow(
                  context, grouped.size,
                  AccumulateHeads<V>{grouped, rows_.view(), marks(), initial_slots(),
                                     Stamped(stamp), schema_.dim, values_or_deltas, exists.data});
            });
          });
    });
  }

  Status Erase(const Context& context, const Batch& batch, const Report& report) override {
    DYNEMB_RETURN_IF_ERROR(CheckBatch(context, batch, report, space()));
    return InTurn(context, true, [&]() -> Status {
      FreedRows freed;
      const Status begun = BeginErasing(context, Entries(batch).most, &freed);
      if (!begun.ok()) return SayFull(context, batch, report, begun);
      return Write(context, batch, report, {}, NoHead(), [&](const GroupedBatch& grouped) {
        return ForEach(context, grouped.size, EraseHeads{grouped, index_.view(), freed});
      });
    });
  }

  Status InsertRows(const Context& context, const Batch& batch, const ConstRowParts& rows,
                    const RowParts& displaced, const Report& report) override {
    DYNEMB_RETURN_IF_ERROR(CheckBatch(context, batch, report, space()));
    DYNEMB_RETURN_IF_ERROR(CheckRowsToInsert(layout_, batch, rows, space()));
    DYNEMB_RETURN_IF_ERROR(CheckRowsToRead(layout_, batch, displaced, space()));
    const bool displaces = displaced.keys.data != nullptr || displaced.values.data != nullptr ||
                           displaced.slots.data != nullptr || displaced.meta.data != nullptr;
    return InTurn(context, true, [&] {
      // Rows come with scores: those of the table and of the batch leave by them together.
      How how;
      how.last_counts = how.whole_rows = true;
      return Write(
          context, batch, report, how, AnyHead(), [&](const GroupedBatch& grouped) -> Status {
            if (displaces) {
              DYNEMB_RETURN_IF_ERROR(ForEachRow(
                  context, grouped.size, DisplaceRows{grouped, rows_.view(), layout_, displaced}));
            }
            return ForEachHead(context, grouped, rows_.view(), marks(), RowWidth(),
                               InsertRow{layout_, rows});
          });
    });
  }

  Status Clear(const Context& context) override {
    DYNEMB_RETURN_IF_ERROR(CheckContext(context, space()));
    return InTurn(context, true, [&]() -> Status {
      RowCounts counts;
      DYNEMB_RETURN_IF_ERROR(counts_.Read(context, &counts));
      DYNEMB_RETURN_IF_ERROR(index_.Clear(context));
      DYNEMB_RETURN_IF_ERROR(counts_.Clear(context));
      counters_.inserted += static_cast<int64_t>(counts.inserted);
      counters_.erased += static_cast<int64_t>(counts.removed) + counts.rows();
      rows_ = RowStore(memory_, layout_);
      if (epoch_ > 0) DYNEMB_RETURN_IF_ERROR(rows_.BeginMarks(context));
      scratch_.Free();
      room_scratch_.Free();
      candidates_.Free();
      return erased_.ForgetAll(context, epoch_);
    });
  }

  Status Reserve(const Context& context, int64_t rows) override {
    DYNEMB_RETURN_IF_ERROR(CheckContext(context, space()));
    if (rows < 0) return InvalidArgument("rows: got ", rows, ", want 0 or more");
    return InTurn(context, true, [&] { return index_.Reserve(context, rows); });
  }

  Status Export(const Context& context, Cursor* cursor, const RowParts& out,
                int64_t* rows) const override {
    DYNEMB_RETURN_IF_ERROR(CheckContext(context, space()));
    DYNEMB_RETURN_IF_ERROR(CheckExport(layout_, out, space()));
    DYNEMB_RETURN_IF_ERROR(CheckTablePart(*cursor));
    return InTurn(context, true, [&] { return ExportNext(context, cursor, out, rows); });
  }

  Status BeginEpoch(const Context& context, int64_t epoch) override {
    DYNEMB_RETURN_IF_ERROR(CheckContext(context, space()));
    return InTurn(context, true, [&] { return StartEpoch(context, epoch); });
  }

  int64_t epoch() const override {
    std::lock_guard<FairSharedMutex> lock(mutex_);
    return epoch_;
  }

  Status ChangedKeys(const Context& context, int64_t since, const TablePart& part,
                     std::vector<Key>* keys) const override {
    DYNEMB_RETURN_IF_ERROR(CheckContext(context, space()));
    DYNEMB_RETURN_IF_ERROR(CheckTablePart(part));
    keys->clear();
    return InTurn(context, true, [&]() -> Status {
      const Status collected =
          OrNoMemory([&] { return CollectChanges(context, since, part, keys); });
      if (collected.code() == Code::kResourceExhausted) *keys = {};
      return collected;
    });
  }

  void TrimChanges(int64_t through) override {
    std::lock_guard<FairSharedMutex> lock(mutex_);
    erased_.Forget(std::min(through, epoch_ - 1));
  }

  Status Histogram(const Context& context, MetaField field, const RowOrder& prefix, int prefix_bits,
                   Span<int64_t> counts) const override {
    DYNEMB_RETURN_IF_ERROR(CheckContext(context, space()));
    return InTurn(context, false, [&]() -> Status {
      DYNEMB_RETURN_IF_ERROR(CheckMetaField(layout_, field));
      int bits;
      DYNEMB_RETURN_IF_ERROR(CheckCounts(counts, prefix_bits, &bits, space()));
      return ForEach(context, ChunkCount(index_.view()),
                     CountDigits{index_.view(), rows_.view(), FieldOffset(field), prefix,
                                 prefix_bits, bits, counts.data});
    });
  }

  Status EraseBelow(const Context& context, MetaField field, const RowOrder& bound,
                    int64_t* erased) override {
    DYNEMB_RETURN_IF_ERROR(CheckContext(context, space()));
    DYNEMB_RETURN_IF_ERROR(CheckMetaField(layout_, field));
    *erased = 0;
    uint64_t first = 0;  // hash that has not been looked at
    for (bool done = false; !done;) {
      DYNEMB_RETURN_IF_ERROR(InTurn(
          context, true, [&] { return EraseSlice(context, field, bound, &first, &done, erased); }));
    }
    return {};
  }

  Status PrepareMove(const Context& context, const TableSchema& schema,
                     std::unique_ptr<RowMove>* move) override {
    DYNEMB_RETURN_IF_ERROR(CheckContext(context, space()));
    DYNEMB_RETURN_IF_ERROR(CheckMove(schema_, schema));
    auto to = std::make_unique<GpuTableOfMemory>(schema, memory_);
    to->device_ = device_;
    to->max_rows_ = max_rows_;
    to->on_full_ = on_full_;
    to->eviction_ = eviction_;
    DYNEMB_RETURN_IF_ERROR(InTurn(context, true, [&]() -> Status {
      const Status prepared = PrepareRows(context, to.get());
      const Status waited = Wait(context);  // also where what has begun is of no use
      return prepared.ok() ? waited : prepared;
    }));
    *move = std::make_unique<Move>(this, std::move(to));
    return {};
  }

  // What others may insert meanwhile is not counted.
  int64_t room() const override { return max_rows_ < 0 ? INT64_MAX : max_rows_ - size(); }
  bool HasRoom(int64_t rows) const override {
    if (max_rows_ < 0) return true;
    {
      std::lock_guard<FairSharedMutex> lock(mutex_);
      const DeviceGuard guard(device_);
      counts_.Poll();
      if (rows <= max_rows_ - counts_.most_rows()) return true;
    }
    return rows <= room();
  }
  int64_t max_rows() const override { return max_rows_ < 0 ? INT64_MAX : max_rows_; }

  int64_t size() const override {
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
  TableCounters counters() const override {
    RowCounts counts;
    const Context context = OwnContext();
    TableCounters counters;
    static_cast<void>(InTurn(context, true, [&]() -> Status {
      DYNEMB_RETURN_IF_ERROR(counts_.Read(context, &counts));
      counters = counters_;
      return {};
    }));
    counters.inserted += static_cast<int64_t>(counts.inserted);
    counters.erased += static_cast<int64_t>(counts.removed) - counters.evicted;
    return counters;
  }
  int64_t memory_bytes() const override {
    std::lock_guard<FairSharedMutex> lock(mutex_);
    return index_.bytes() + rows_.bytes();
  }
  int device() const override { return device_; }
  int64_t index_cells() const override {
    std::lock_guard<FairSharedMutex> lock(mutex_);
    return index_.cells();
  }

 private:
  // How a call that changes rows works.
  struct How {
    bool in_order = false;      // it looks at all entries of a key, in their order
    int64_t scratch_bytes = 0;  // that it takes for itself
    bool each_reports = false;  // entries have outcomes of their own
    bool last_counts = false;   // of the entries of a key
    bool whole_rows = false;    // they come with scores
  };

  // The limit of rows, and what a full table does.
  Status SetLimits(const TableOptions& options) {
    if (options.eviction.expires() || options.missing_value || options.max_bytes >= 0 ||
        options.keep_evicted > 0) {
      return InvalidArgument(
          "devices: got a GPU for a table with TTL, max_bytes, keep_evicted or a value for missing "
          "keys, want host memory; a table on a GPU can have max_rows, on_full, and LRU, LFU, "
          "SmallNorm or Score");
    }
    DYNEMB_RETURN_IF_ERROR(options.Validate());
    const MetaFields wanted = options.eviction.meta();
    if ((wanted.bits & ~schema_.meta.bits) != 0) {
      return InvalidArgument("eviction: want the meta field that the policy reads in the schema");
    }
    max_rows_ = options.max_rows;
    on_full_ = options.on_full;
    eviction_ = options.eviction;
    return {};
  }
  // Whether a full table goes on.
  bool goes_on() const {
    return max_rows_ >= 0 && (eviction_.evicts() || on_full_ == OnFull::kDecline);
  }

  // What a call writes to the meta of its rows: where the policy goes by time, that does not fall.
  RowStamp Stamped(Stamp stamp) {
    if (eviction_.uses_time()) {
      clock_ = std::max(clock_, stamp.now);
      stamp.now = std::max<int64_t>(clock_, 0);
    }
    RowStamp stamped(layout_, stamp);
    if (eviction_.half_life > 0) {
      stamped.score = layout_.meta_field[static_cast<int>(MetaField::kScore)];
      stamped.write = DecayedWrite(stamp.now, eviction_.half_life);
      stamped.logs = decay_logs_.as<DecayLogs>();
    }
    if (eviction_.order == EvictionPolicy::Order::kGiven && !stamp.scores.empty()) {
      stamped.given = layout_.meta_field[static_cast<int>(MetaField::kScore)];
      stamped.scores = stamp.scores.data;
    }
    return stamped;
  }
  Status SetDecayLogs(const Context& context) {
    if (eviction_.half_life == 0) return {};
    if (!decay_logs_.Allocate(memory_, sizeof(DecayLogs))) {
      return ResourceExhausted("no GPU memory for a table");
    }
    static const DecayLogs logs;
    return CopyAny(context, decay_logs_.as<DecayLogs>(), &logs, sizeof(logs));
  }

  // For the table's own waits.
  Context OwnContext() const {
    Context context;
    context.space = space();
    context.stream = memory_->stream();
    return context;
  }

  // The rows go from one table to another, which has been prepared for them.
  class Move final : public RowMove {
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

  // Runs a call when it is its turn, on the table's device.
  template <typename F>
  Status InTurn(const Context& context, bool writes, const F& call) const {
    std::lock_guard<FairSharedMutex> lock(mutex_);
    const DeviceGuard guard(device_);
    DYNEMB_RETURN_IF_ERROR(order_.Begin(context, writes));
    const Status status = OrNoMemory(call);
    const Status ended = order_.End(context, writes);
    return status.ok() ? ended : status;
  }

  template <typename Body>
  Status ForEachRow(const Context& context, int64_t n, const Body& body) const {
    return ForEachTile<0>(context, n, body, RowWidth());
  }
  int RowWidth() const { return TileWidth(layout_.row_bytes / 16); }

  static Status BeginReport(const Context& context, const Reports& reports) {
    if (reports.miss_count == nullptr) return {};
    return FillBytes(context, reports.miss_count, 0, sizeof(int64_t));
  }

  // The frame of all calls that change rows by key: groups the batch, finds its keys, inserts those
  // that are missing and wanted, does the work, reports.
  template <typename Wanted, typename Work>
  Status Write(const Context& context, const Batch& batch, const Report& report, const How& how,
               const Wanted& wanted, const Work& work) {
    constexpr bool kInserts = !std::is_same_v<Wanted, NoHead>;
    const Reports reports(report);
    DYNEMB_RETURN_IF_ERROR(BeginReport(context, reports));
    GroupedBatch grouped;
    // Where there may not be room for all, the first ones of the batch get it, in two passes.
    const bool in_order = how.in_order || (kInserts && goes_on());
    const Status begun = GroupBatch(context, batch, in_order,
                                    how.scratch_bytes * (goes_on() ? 2 : 1), &scratch_, &grouped);
    if (!begun.ok()) return SayFull(context, batch, report, begun);
    grouped.last_counts = how.last_counts && in_order;
    const int64_t inserting = kInserts ? grouped.size : 0;
    // A table that evicts has all rows that are put back in it before it does.
    const bool is_bounded = max_rows_ >= 0 && !(how.whole_rows && eviction_.evicts());
    const int64_t max_rows = is_bounded ? max_rows_ : INT64_MAX;
    int64_t limit = rows_.capacity();
    if constexpr (kInserts) {
      DYNEMB_RETURN_IF_ERROR(MakeRoom(context, inserting, max_rows, &limit));
    }
    const int64_t most = counts_.most_rows() + inserting;
    const bool may_be_full = kInserts && std::min(most, max_rows) > limit;
    DYNEMB_RETURN_IF_ERROR(ForEach(context, grouped.size, FindHeads{grouped, index_.view()}));
    const auto report_entries = [&]() -> Status {
      if (reports.outcomes == nullptr && reports.misses == nullptr) return {};
      return ForEach(context, grouped.size, ReportEntries{grouped, how.each_reports, reports});
    };
    Status status;
    if constexpr (kInserts) {
      Status room;
      if (most > max_rows) {
        // Rows that are put back, as by a restore, are not declined.
        const bool refuses = !eviction_.evicts() && (on_full_ == OnFull::kError || how.whole_rows);
        room = MakeRoomForMissing(context, grouped, wanted, refuses, [&] {
          grouped.kind = HeadKind::kFound;
          status = work(grouped);
          grouped.kind = HeadKind::kNotFound;
          return status;
        });
      }
      const bool has_written = grouped.kind == HeadKind::kNotFound && status.ok();
      if (!room.ok() && !has_written) return SayFull(context, batch, report, room);
      if (!room.ok()) {
        DYNEMB_RETURN_IF_ERROR(
            ForEachTile<kWarp>(context, WarpsFor(context, grouped.size),
                               LeaveOut<Wanted>{grouped, wanted, 0, 0, Outcome::kFull}));
        if (how.each_reports) DYNEMB_RETURN_IF_ERROR(work(grouped));
        DYNEMB_RETURN_IF_ERROR(report_entries());
        return room;
      }
      DYNEMB_RETURN_IF_ERROR(ForEachTile<kWarp>(
          context, WarpsFor(context, grouped.size),
          InsertHeads<Wanted>{grouped, index_.view(), counts_.there(), rows_.free_rows(),
                              std::min(limit, max_rows), wanted}));
    }
    // Whatever happens, what has been taken and freed is counted.
    status = work(grouped);
    Status reported;
    if (!status.ok() && kInserts) {
      // A kernel has not been started, the one that writes the rows or one before it: keys must not
      // have rows with anything in them.
      static_cast<void>(ForEach(context, grouped.size, RemoveInserted{grouped, index_.view()}));
      static_cast<void>(counts_.ForgetTaken(context));
      if (grouped.kind == HeadKind::kAll) status = SayFull(context, batch, report, status);
    }
    if (status.ok() || grouped.kind == HeadKind::kNotFound) reported = report_entries();
    DYNEMB_RETURN_IF_ERROR(counts_.EndCall(context, std::min(limit, max_rows), inserting));
    DYNEMB_RETURN_IF_ERROR(status);
    DYNEMB_RETURN_IF_ERROR(reported);
    Status evicted;
    if (how.whole_rows && eviction_.evicts() && most > max_rows_) {
      evicted = EvictDownTo(context, max_rows_);
    }
    if (!may_be_full) return evicted;
    RowCounts counts;
    DYNEMB_RETURN_IF_ERROR(counts_.ReadAndForgetFull(context, &counts));
    if (counts.full == 0) return evicted;
    return ResourceExhausted("no GPU memory for more rows; the table has ", counts.rows());
  }

  // Before missing keys are inserted for which there may not be room below max_rows. Where there is
  // not: calls write_found(), which writes the keys that have rows, evicts rows, and leaves the
  // last missing keys out where that is not enough. kResourceExhausted: it `refuses`, or there is
  // no memory to work in.
  template <typename Wanted, typename WriteFound>
  Status MakeRoomForMissing(const Context& context, const GroupedBatch& grouped,
                            const Wanted& wanted, bool refuses, const WriteFound& write_found) {
    std::vector<uint32_t> missing(static_cast<size_t>(WarpsFor(context, grouped.size)));
    const auto warps = static_cast<int64_t>(missing.size());
    DYNEMB_RETURN_IF_ERROR(room_scratch_.Begin(
        context, Scratch::Bytes<uint32_t>(warps) + Scratch::Bytes<uint32_t>(1)));
    uint32_t* const there = room_scratch_.Take<uint32_t>(warps);
    DYNEMB_RETURN_IF_ERROR(
        ForEachTile<kWarp>(context, warps, CountMissing<Wanted>{grouped, wanted, there}));
    DYNEMB_RETURN_IF_ERROR(
        CopyAny(context, missing.data(), there, warps * static_cast<int64_t>(sizeof(uint32_t))));
    RowCounts counts;
    DYNEMB_RETURN_IF_ERROR(counts_.Read(context, &counts));
    int64_t all = 0;
    for (const uint32_t of_warp : missing) all += of_warp;
    int64_t room = max_rows_ - counts.rows();
    if (all <= room) return {};
    if (refuses) {
      return ResourceExhausted("max_rows: got ", all, " keys without a row, for ", counts.rows(),
                               " rows of at most ", max_rows_,
                               "; want a larger max_rows, or an eviction policy");
    }
    DYNEMB_RETURN_IF_ERROR(write_found());
    if (eviction_.evicts()) {
      DYNEMB_RETURN_IF_ERROR(EvictDownTo(context, std::max<int64_t>(max_rows_ - all, 0)));
      room = max_rows_ - counts_.most_rows();
    }
    if (all <= room) return {};
    int64_t first_warp = 0;
    for (; room >= missing[static_cast<size_t>(first_warp)]; ++first_warp) {
      room -= missing[static_cast<size_t>(first_warp)];
    }
    DYNEMB_RETURN_IF_ERROR(
        ForEachTile<kWarp>(context, warps - first_warp,
                           LeaveOut<Wanted>{grouped, wanted, first_warp,
                                            static_cast<uint32_t>(room), Outcome::kDeclined}));
    uint32_t* const declined_there = room_scratch_.Take<uint32_t>(1);
    uint32_t declined = 0;
    DYNEMB_RETURN_IF_ERROR(FillBytes(context, declined_there, 0, sizeof(declined)));
    DYNEMB_RETURN_IF_ERROR(
        ForEachTile<kWarp>(context, warps, CountDeclined{grouped, declined_there}));
    DYNEMB_RETURN_IF_ERROR(CopyAny(context, &declined, declined_there, sizeof(declined)));
    DYNEMB_RETURN_IF_ERROR(Wait(context));
    counters_.declined += declined;
    return {};
  }

  // Removes the rows of the lowest scores until there are no more than `rows`, as the Evictor of
  // cc/core/table/evictor.h: a hand goes over the hashes, and of kCandidates times as many rows as
  // have to leave, or kUnitRows, those leave that have the lowest scores.
  Status EvictDownTo(const Context& context, int64_t rows) {
    constexpr uint64_t kHashes = uint64_t{1} << 32;  // upper halves
    RowCounts counts;
    DYNEMB_RETURN_IF_ERROR(counts_.Read(context, &counts));
    for (int64_t passed = 0, left; (left = counts.rows() - rows) > 0;) {
      const int64_t there = counts.rows();
      if (passed > 2 * there) return Status(Code::kInternal, "evicting: rows were not found");
      const int64_t wanted = std::max(Evictor::kUnitRows, left * Evictor::kCandidates);
      passed += wanted;
      const uint64_t size =
          wanted >= there
              ? kHashes
              : std::max<uint64_t>(
                    1, static_cast<uint64_t>(static_cast<double>(wanted) /
                                             static_cast<double>(there) * 4294967296.0));
      const uint64_t first = hand_ << 32, last = ((hand_ + size) % kHashes << 32) - 1;
      hand_ = (hand_ + size) % kHashes;
      int64_t found;
      DYNEMB_RETURN_IF_ERROR(candidates_.Collect(
          context, index_.view(), rows_.view(), RowScore(eviction_, schema_, layout_),
          size == kHashes ? 0 : first, size == kHashes ? ~uint64_t{0} : last,
          std::min(wanted, there), &found));
      const int64_t leaving = std::min(left, found);
      if (leaving == 0) continue;
      FreedRows freed;
      DYNEMB_RETURN_IF_ERROR(BeginErasing(context, leaving, &freed));
      DYNEMB_RETURN_IF_ERROR(candidates_.Erase(context, index_.view(), leaving, freed));
      DYNEMB_RETURN_IF_ERROR(counts_.EndCall(context, rows_.capacity(), 0));
      counters_.evicted += leaving;
      DYNEMB_RETURN_IF_ERROR(counts_.Read(context, &counts));
    }
    return {};
  }

  // Room for `inserting` more rows, or as many as there is memory for: *limit in all.
  Status MakeRoom(const Context& context, int64_t inserting, int64_t max_rows, int64_t* limit) {
    counts_.Poll();
    const auto most = [&] { return std::min(counts_.most_rows() + inserting, max_rows); };
    int64_t needed = most(), ahead = needed;
    if (needed > rows_.capacity() || index_.TakesMemory(needed)) {
      RowCounts counts;
      DYNEMB_RETURN_IF_ERROR(counts_.Read(context, &counts));
      needed = most();
      const bool in_vain = needed <= rows_.capacity() && !index_.TakesMemory(needed);
      waits_in_vain_ = in_vain ? waits_in_vain_ + 1 : 0;
      if (waits_in_vain_ >= kMostWaitsInVain) {
        ahead = std::min(needed + Headroom(inserting), std::max(needed, max_rows));
      }
    } else {
      waits_in_vain_ = 0;
    }
    // What is needed comes first, for there may not be memory for both.
    DYNEMB_RETURN_IF_ERROR(rows_.Grow(context, needed));
    DYNEMB_RETURN_IF_ERROR(index_.MakeRoom(context, needed, inserting, ahead));
    DYNEMB_RETURN_IF_ERROR(rows_.Grow(context, ahead));
    *limit = std::min(rows_.capacity(), index_.limit());
    return {};
  }

  // Rows for which there is room beyond a call, where one after the other has waited to hear that
  // there is enough: those of calls like it whose counts have not come when the next ones are made.
  // Where that is much memory, no more than a share of what the table has.
  int64_t Headroom(int64_t inserting) const {
    const int64_t most = std::max(kHeadroomBytes / layout_.row_bytes, rows_.capacity() / 8);
    const int64_t calls = std::min(kCallsAhead * inserting, most);
    return max_rows_ < 0 ? calls : std::clamp<int64_t>(max_rows_ - counts_.most_rows(), 0, calls);
  }

  // The end of a call without memory to work in: nothing has been done to any key, which is
  // reported. Returns the error.
  static Status SayFull(const Context& context, const Batch& batch, const Report& report,
                        const Status& error) {
    if (error.code() != Code::kResourceExhausted) return error;
    const Reports reports(report);
    DYNEMB_RETURN_IF_ERROR(BeginReport(context, reports));
    const Entries entries(batch);
    DYNEMB_RETURN_IF_ERROR(ForEach(context, entries.most, ReportFull{entries, reports}));
    return error;
  }

  // Before a call that erases at most so many rows.
  Status BeginErasing(const Context& context, int64_t most, FreedRows* freed) {
    *freed = {counts_.there(), nullptr, ErasedKeys()};
    DYNEMB_RETURN_IF_ERROR(rows_.FreeRows(context, &freed->free_rows));
    if (epoch_ == 0) return {};
    if (!erased_.HasRoom(most)) DYNEMB_RETURN_IF_ERROR(DrainErased(context));
    DYNEMB_RETURN_IF_ERROR(erased_.MakeRoom(context, most));
    freed->erased = erased_.there(epoch_);
    return {};
  }

  // Takes the erased keys to the host, which forgets them where it has no memory. Waits for the
  // stream.
  Status DrainErased(const Context& context, bool* overflow = nullptr) const {
    try {
      DYNEMB_RETURN_IF_ERROR(erased_.Drain(context, overflow));
    } catch (const std::bad_alloc&) {
      return erased_.ForgetAll(context, epoch_);
    }
    RowCounts counts;
    DYNEMB_RETURN_IF_ERROR(counts_.Read(context, &counts));
    erased_.Limit(2 * int64_t{counts.fresh} + kMoreErased);
    return {};
  }

  // Erases rows below `bound` whose hashes are *first or somewhat larger.
  Status EraseSlice(const Context& context, MetaField field, const RowOrder& bound, uint64_t* first,
                    bool* done, int64_t* erased) {
    FreedRows freed;
    DYNEMB_RETURN_IF_ERROR(BeginErasing(context, 1, &freed));
    const int64_t chunks = epoch_ > 0 ? kNotedChunksAtOnce : kChunksAtOnce;
    const uint64_t last = EndOfSlice(*first, ~uint64_t{0}, SliceWidth(chunks));
    DYNEMB_RETURN_IF_ERROR(
        ForEachInRange(context, index_.view(), *first, last,
                       EraseIfBelow{rows_.view(), FieldOffset(field), bound, freed}));
    RowCounts counts;
    DYNEMB_RETURN_IF_ERROR(counts_.Read(context, &counts));
    *erased += counts.freed;
    DYNEMB_RETURN_IF_ERROR(counts_.EndCall(context, rows_.capacity(), 0));
    if (epoch_ > 0) {
      bool overflow;
      DYNEMB_RETURN_IF_ERROR(DrainErased(context, &overflow));
      if (overflow) return {};  // some are left: once more
    }
    *done = last == ~uint64_t{0};
    *first = last + 1;
    return {};
  }

  Status StartEpoch(const Context& context, int64_t epoch) {
    if (epoch <= epoch_) return EpochNotLater(epoch, epoch_);
    if (epoch_ == 0) {
      DYNEMB_RETURN_IF_ERROR(rows_.BeginMarks(context));
      erased_.Begin(epoch);
    }
    epoch_ = epoch;
    return {};
  }
  RowMarks marks() const { return rows_.marks(epoch_); }

  InitialSlots initial_slots() const {
    return {initial_.slots(), layout_.slots_offset, layout_.slots_bytes};
  }

  int64_t FieldOffset(MetaField field) const {
    return layout_.meta_offset + layout_.meta_field[static_cast<int>(field)];
  }

  // What a move needs, so that MoveTo needs nothing more.
  Status PrepareRows(const Context& context, GpuTableOfMemory* to) const {
    DYNEMB_RETURN_IF_ERROR(rows_.MakeLike(context, to->layout_, &to->rows_));
    DYNEMB_RETURN_IF_ERROR(to->initial_.SetSchema(context, to->schema_));
    DYNEMB_RETURN_IF_ERROR(to->SetDecayLogs(context));
    RowCounts counts;
    DYNEMB_RETURN_IF_ERROR(counts_.Read(context, &counts));
    // One row, by which the kernel is loaded.
    return Convert(context, 0, std::min<int64_t>(counts.fresh, 1), *to);
  }
  void MoveTo(const Context& context, GpuTableOfMemory* to) {
    // An error is the device's, which the next call hears of.
    static_cast<void>(InTurn(context, true, [&]() -> Status {
      RowCounts counts;
      DYNEMB_RETURN_IF_ERROR(counts_.Read(context, &counts));
      return rows_.EmptySlabs(context, counts.fresh, [&](int64_t first, int64_t n) {
        return Convert(context, first, n, *to);
      });
    }));
    to->rows_.TakeMarksAndFreeRows(&rows_);
    to->index_ = std::move(index_);
    to->counts_ = std::move(counts_);
    to->scratch_ = std::move(scratch_);
    to->erased_ = std::move(erased_);
    to->epoch_ = epoch_;
    to->clock_ = clock_;
    to->hand_ = hand_;
    to->counters_ = counters_;
  }
  Status Convert(const Context& context, int64_t first, int64_t n,
                 const GpuTableOfMemory& to) const {
    const bool same_slots = to.schema_.rule == schema_.rule;
    return ForEachRow(context, n,
                      ConvertRows{rows_.view(), to.rows_.view(), layout_, to.layout_,
                                  same_slots ? nullptr : to.initial_.slots(), first});
  }

  // The first hash of a part of the table; of all parts 2^64, which is 0.
  static uint64_t FirstHash(const TablePart& of, int64_t part) {
    return (static_cast<uint64_t>(part) << 32) / static_cast<uint64_t>(of.parts) << 32;
  }
  // How many upper halves of hashes have their homes in so many chunks.
  uint64_t SliceWidth(int64_t chunks) const {
    constexpr int64_t kMostChunks = int64_t{1} << 31;
    return (static_cast<uint64_t>(std::min(chunks, kMostChunks)) << 32) /
           static_cast<uint64_t>(index_.cells() / IndexChunk::kCells);
  }
  // The last hash of a slice that is so wide and does not go beyond `last`.
  static uint64_t EndOfSlice(uint64_t first, uint64_t last, uint64_t width) {
    const uint64_t left = (last >> 32) - (first >> 32);
    return width > left ? last : (((first >> 32) + width) << 32) - 1;
  }

  // ChangedKeys, which may throw for want of host memory.
  Status CollectChanges(const Context& context, int64_t since, const TablePart& part,
                        std::vector<Key>* keys) const {
    if (epoch_ == 0) return ChangesNotKnown(since);
    DYNEMB_RETURN_IF_ERROR(DrainErased(context));
    if (!erased_.Knows(since)) return ChangesNotKnown(since);
    const uint64_t first = FirstHash(part, part.part), last = FirstHash(part, part.part + 1) - 1;
    DYNEMB_RETURN_IF_ERROR(CollectWritten(context, since, first, last, keys));
    const std::vector<Key> erased = erased_.Since(since, first, last);
    std::vector<bool> is_back(erased.size());
    for (const Key key : *keys) {
      const auto found = std::lower_bound(erased.begin(), erased.end(), key);
      if (found != erased.end() && *found == key) is_back[found - erased.begin()] = true;
    }
    for (size_t i = 0; i < erased.size(); ++i) {
      if (!is_back[i]) keys->push_back(erased[i]);
    }
    return {};
  }
  // Keys with hashes in [first, last] whose rows were written after the epoch `since`.
  Status CollectWritten(const Context& context, int64_t since, uint64_t first, uint64_t last,
                        std::vector<Key>* keys) const {
    constexpr int64_t kLeastKeys = 1 << 10;  // for a table that leaves no memory
    int64_t room = kKeysAtOnce;
    Status begun;
    do {
      begun = scratch_.Begin(context, Scratch::Bytes<Key>(room) + Scratch::Bytes<int64_t>(1));
      if (begun.ok()) break;
      room /= 2;
    } while (begun.code() == Code::kResourceExhausted && room >= kLeastKeys);
    DYNEMB_RETURN_IF_ERROR(begun);
    int64_t* const count = scratch_.Take<int64_t>(1);
    return CollectWritten(context, {marks(), since, room, scratch_.Take<Key>(room), count}, first,
                          last, keys);
  }
  // Through a buffer, piece by piece if need be.
  Status CollectWritten(const Context& context, const CollectChanged& collect, uint64_t first,
                        uint64_t last, std::vector<Key>* keys) const {
    int64_t count = 0;
    DYNEMB_RETURN_IF_ERROR(FillBytes(context, collect.count, 0, sizeof(count)));
    DYNEMB_RETURN_IF_ERROR(ForEachInRange(context, index_.view(), first, last, collect));
    DYNEMB_RETURN_IF_ERROR(CopyAny(context, &count, collect.count, sizeof(count)));
    DYNEMB_RETURN_IF_ERROR(Wait(context));
    if (count <= collect.room) {
      const auto before = keys->size();
      keys->resize(before + static_cast<size_t>(count));
      DYNEMB_RETURN_IF_ERROR(CopyAny(context, keys->data() + before, collect.keys,
                                     count * static_cast<int64_t>(sizeof(Key))));
      return Wait(context);
    }
    const uint64_t width = (last - first) / static_cast<uint64_t>(2 * count / collect.room);
    for (uint64_t begin = first;;) {
      const uint64_t end = last - begin <= width ? last : begin + width;
      DYNEMB_RETURN_IF_ERROR(CollectWritten(context, collect, begin, end, keys));
      if (end == last) return {};
      begin = end + 1;
    }
  }

  // The next rows of an export, by their hashes.
  Status ExportNext(const Context& context, Cursor* cursor, const RowParts& out,
                    int64_t* rows) const {
    const uint64_t last = FirstHash(*cursor, cursor->part + 1) - 1;
    if (cursor->position[1] == 0) cursor->position[0] = FirstHash(*cursor, cursor->part);
    const int64_t capacity = out.keys.size;
    uint64_t width = SliceWidth(capacity / IndexChunk::kCells + 1);
    *rows = 0;
    for (; !cursor->done && *rows == 0; width *= 2) {
      const uint64_t first = cursor->position[0];
      const uint64_t until = EndOfSlice(first, last, width);
      int64_t found;
      DYNEMB_RETURN_IF_ERROR(ExportRange(context, first, until, out, &found));
      *rows = std::min(found, capacity);
      cursor->position[1] = 1;
      cursor->position[0] = until + 1;
      cursor->done = until == last;
      if (found <= capacity) continue;
      uint64_t hash;
      DYNEMB_RETURN_IF_ERROR(CopyAny(context, &hash, range_.hashes + capacity, sizeof(hash)));
      DYNEMB_RETURN_IF_ERROR(Wait(context));
      cursor->position[0] = hash;
      cursor->done = false;
    }
    return {};
  }

  // Exports the first rows with hashes in [first, last], of `found` in all.
  Status ExportRange(const Context& context, uint64_t first, uint64_t last, const RowParts& out,
                     int64_t* found) const {
    const int64_t capacity = out.keys.size;
    *found = 2 * capacity + 64;
    int64_t room = 0;
    int64_t temp_bytes;
    uint64_t* hashes;
    RowRef* refs;
    while (*found > room) {
      room = *found;
      DYNEMB_RETURN_IF_ERROR(SortTempBytes(context, room, &temp_bytes));
      DYNEMB_RETURN_IF_ERROR(scratch_.Begin(
          context, 2 * (Scratch::Bytes<uint64_t>(room) + Scratch::Bytes<RowRef>(room)) +
                       Scratch::Bytes<int64_t>(1) + Scratch::Bytes<char>(temp_bytes)));
      hashes = scratch_.Take<uint64_t>(room);
      refs = scratch_.Take<RowRef>(room);
      int64_t* const count = scratch_.Take<int64_t>(1);
      DYNEMB_RETURN_IF_ERROR(FillBytes(context, count, 0, sizeof(*count)));
      DYNEMB_RETURN_IF_ERROR(ForEachInRange(context, index_.view(), first, last,
                                            CollectRows{room, hashes, refs, count}));
      DYNEMB_RETURN_IF_ERROR(CopyAny(context, found, count, sizeof(*found)));
      DYNEMB_RETURN_IF_ERROR(Wait(context));
    }
    if (*found == 0) return {};
    range_ = {scratch_.Take<uint64_t>(room), scratch_.Take<RowRef>(room)};
    DYNEMB_RETURN_IF_ERROR(SortPairs(context, *found, 64,
                                     Pairs64{hashes, refs, range_.hashes, range_.rows},
                                     scratch_.Take<char>(temp_bytes), temp_bytes));
    return ForEachRow(context, std::min(*found, capacity),
                      ExportRows{range_.hashes, range_.rows, rows_.view(), layout_, out});
  }

  std::optional<DeviceGuard> at_end_;  // while all members below give their memory back
  DeviceMemory* const memory_;
  int device_ = -1;  // where the memory is; -1: on the host
  int64_t max_rows_ = -1;
  OnFull on_full_ = OnFull::kError;
  EvictionPolicy eviction_;
  const TableSchema schema_;
  const RowLayout layout_;
  // Held while a call is put into its stream. Fair, so that a call of many slices lets others
  // through.
  mutable FairSharedMutex mutex_;
  mutable StreamOrder order_;
  int64_t epoch_ = 0;  // 0: changes are not tracked
  GpuIndex index_;
  RowStore rows_;
  mutable KnownCounts counts_;
  mutable Scratch scratch_;
  InitialRows initial_;
  DeviceBuffer decay_logs_;
  mutable EraseLog erased_;
  int waits_in_vain_ = 0;  // one after the other, for counts that would not have been needed
  Scratch room_scratch_;
  CandidateRows candidates_;
  int64_t clock_ = INT64_MIN;  // the latest time of a write
  uint64_t hand_ = 0;          // the upper half of the hash where eviction goes on
  TableCounters counters_;     // what the host counts
  // What ExportRange has found, in the scratch memory.
  struct Range {
    uint64_t* hashes;
    RowRef* rows;
  };
  mutable Range range_ = {};
};

}  // namespace

Status MakeGpuTable(const TableSchema& schema, const TableOptions& options, DeviceMemory* memory,
                    std::unique_ptr<GpuTable>* table) {
  DYNEMB_RETURN_IF_ERROR(schema.Validate());
  auto made = std::make_unique<GpuTableOfMemory>(schema, memory);
  DYNEMB_RETURN_IF_ERROR(made->Init(options));
  *table = std::move(made);
  return {};
}

}  // namespace dynemb

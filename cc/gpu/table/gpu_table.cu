#include <algorithm>
#include <mutex>
#include <type_traits>
#include <utility>
#include <vector>

#include "cc/core/table/call_checks.h"
#include "cc/core/table/erase_log.h"
#include "cc/gpu/for_each.cu.h"
#include "cc/gpu/table/apply_rows.h"
#include "cc/gpu/table/device_guard.h"
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

class GpuTableOfMemory final : public GpuTable {
 public:
  GpuTableOfMemory(const TableSchema& schema, DeviceMemory* memory)
      : memory_(memory),
        schema_(schema),
        layout_(schema),
        index_(memory),
        rows_(memory, layout_),
        scratch_(memory),
        initial_(memory) {}
  ~GpuTableOfMemory() override {
    const DeviceGuard guard(device_);
    static_cast<void>(order_.WaitForAll());  // an error of the device was another call's
  }

  Status Init() {
    if (!RunsOnHost(space())) {
      DYNEMB_RETURN_IF_ERROR(FromCuda(cudaGetDevice(&device_), "asking for the device"));
    }
    const Context context = OwnContext();
    DYNEMB_RETURN_IF_ERROR(index_.Clear(context));
    DYNEMB_RETURN_IF_ERROR(counts_.Init(context, memory_));
    DYNEMB_RETURN_IF_ERROR(initial_.SetSchema(context, schema_));
    return Wait(context);
  }

  MemorySpace space() const override { return memory_->space(); }
  TableSchema schema() const override {
    std::lock_guard<std::mutex> lock(mutex_);
    return schema_;
  }

  Status Find(const Context& context, const Batch& batch, IfMissing if_missing, Rows values,
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
                              if_missing == IfMissing::kInitialValue, layout_.value_bytes,
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
    if (update.rule == nullptr) return InvalidArgument("update.rule: got none");
    std::unique_ptr<RowUpdater> checked;
    DYNEMB_RETURN_IF_ERROR(
        MakeRowUpdater(update.rule->name, schema_.value_dtype, update.hyper, &checked));
    return InTurn(context, true, [&]() -> Status {
      DYNEMB_RETURN_IF_ERROR(CheckAttached(schema_, *update.rule));
      const int64_t more_bytes = ApplyScratchBytes(schema_, Entries(batch).most);
      return Write(context, batch, report, {true, more_bytes}, AnyHead(),
                   [&](const GroupedBatch& grouped) {
                     return ApplyRows(context, schema_,
                                      {grouped, gradients, update, rows_.view(), layout_,
                                       RowStamp(layout_, stamp, version_), initial_.values()},
                                      &scratch_);
                   });
    });
  }

  Status Upsert(const Context& context, const Batch& batch, ConstRows values, const Stamp& stamp,
                const Report& report) override {
    DYNEMB_RETURN_IF_ERROR(CheckBatch(context, batch, report, space()));
    DYNEMB_RETURN_IF_ERROR(
        CheckValues("values", batch, values, schema_.value_dtype, schema_.dim, space()));
    return InTurn(context, true, [&] {
      return Write(context, batch, report, {}, AnyHead(), [&](const GroupedBatch& grouped) {
        return ForEachHead(
            context, grouped, rows_.view(), RowWidth(),
            UpsertHead{born(), RowStamp(layout_, stamp, version_), layout_.value_bytes, values});
      });
    });
  }

  Status Accumulate(const Context& context, const Batch& batch, ConstRows values_or_deltas,
                    Span<const bool> exists, const Stamp& stamp, const Report& report) override {
    DYNEMB_RETURN_IF_ERROR(CheckBatch(context, batch, report, space()));
    DYNEMB_RETURN_IF_ERROR(CheckValues("values_or_deltas", batch, values_or_deltas,
                                       schema_.value_dtype, schema_.dim, space()));
    DYNEMB_RETURN_IF_ERROR(CheckExists(batch, exists, space()));
    return InTurn(context, true, [&] {
      const How how = {true, 0, true};
      return Write(
          context, batch, report, how, UnseenHead{exists.data}, [&](const GroupedBatch& grouped) {
            return VisitDType(schema_.value_dtype, [&](auto tag) {
              using V = typename decltype(tag)::type;
              return ForEachRow(context, grouped.size,
                                AccumulateHeads<V>{grouped, rows_.view(), born(),
                                                   RowStamp(layout_, stamp, version_), schema_.dim,
                                                   values_or_deltas, exists.data});
            });
          });
    });
  }

  Status Erase(const Context& context, const Batch& batch, const Report& report) override {
    DYNEMB_RETURN_IF_ERROR(CheckBatch(context, batch, report, space()));
    return InTurn(context, true, [&]() -> Status {
      FreedRows freed;
      DYNEMB_RETURN_IF_ERROR(BeginErasing(context, &freed));
      return Write(context, batch, report, {}, NoHead(), [&](const GroupedBatch& grouped) {
        return ForEach(context, grouped.size, EraseHeads{grouped, index_.view(), freed});
      });
    });
  }

  Status Clear(const Context& context) override {
    DYNEMB_RETURN_IF_ERROR(CheckContext(context, space()));
    return InTurn(context, true, [&]() -> Status {
      DYNEMB_RETURN_IF_ERROR(Wait(context));
      DYNEMB_RETURN_IF_ERROR(index_.Clear(context));
      DYNEMB_RETURN_IF_ERROR(counts_.Clear(context));
      rows_ = RowStore(memory_, layout_);
      scratch_.Free();
      erase_log_.Lose(version_);
      return {};
    });
  }

  Status Attach(const Context& context, const RuleSpec& rule) override {
    DYNEMB_RETURN_IF_ERROR(CheckContext(context, space()));
    return InTurn(context, true, [&]() -> Status {
      if (schema_.rule == rule) return {};
      if (!schema_.rule.name.empty()) return OtherRule(schema_.rule, rule);
      TableSchema schema = schema_;
      schema.rule = rule;
      DYNEMB_RETURN_IF_ERROR(schema.Validate());
      return Relayout(context, schema, RowLayout(schema, version_ > 0));
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
    return InTurn(context, true, [&]() -> Status {
      DYNEMB_RETURN_IF_ERROR(CheckExport(layout_, out, space()));
      if (cursor->since_version >= 0 && version_ == 0) return NotFollowing(cursor->since_version);
      DYNEMB_RETURN_IF_ERROR(CheckParts(*cursor));
      return ExportNext(context, cursor, out, rows);
    });
  }

  Status Import(const Context& context, const ConstRowParts& rows) override {
    Batch batch;
    batch.keys = rows.keys;
    DYNEMB_RETURN_IF_ERROR(CheckBatch(context, batch, Report(), space()));
    return InTurn(context, true, [&]() -> Status {
      DYNEMB_RETURN_IF_ERROR(CheckImport(layout_, rows, space()));
      return Write(context, batch, Report(), {}, AnyHead(), [&](const GroupedBatch& grouped) {
        return ForEachHead(
            context, grouped, rows_.view(), RowWidth(),
            ImportHead{RowStamp(layout_, {}, version_), layout_.value_bytes, layout_.slots_offset,
                       layout_.slots_bytes, rows.values, rows.slots, rows.meta});
      });
    });
  }

  Status BeginVersion(const Context& context, int64_t version) override {
    DYNEMB_RETURN_IF_ERROR(CheckContext(context, space()));
    return InTurn(context, true, [&]() -> Status {
      if (version <= version_) {
        return InvalidArgument("version: got ", version, ", want more than ", version_);
      }
      if (version_ == 0) {
        if (!log_.Allocate(memory_, kErasedLimit * sizeof(Key))) {
          return ResourceExhausted("no GPU memory for the log of erased keys");
        }
        DYNEMB_RETURN_IF_ERROR(Relayout(context, schema_, RowLayout(schema_, true)));
        erase_log_.Lose(version - 1);
      }
      DYNEMB_RETURN_IF_ERROR(ReadLog(context));
      version_ = version;
      erase_log_.Compact();
      return {};
    });
  }

  int64_t version() const override {
    std::lock_guard<std::mutex> lock(mutex_);
    return version_;
  }

  Status Erased(const Context& context, int64_t since, std::vector<Key>* keys) const override {
    DYNEMB_RETURN_IF_ERROR(CheckContext(context, space()));
    keys->clear();
    return InTurn(context, true, [&]() -> Status {
      if (version_ == 0) return NotFollowing(since);
      DYNEMB_RETURN_IF_ERROR(ReadLog(context));
      DYNEMB_RETURN_IF_ERROR(erase_log_.CheckKnown(since));
      erase_log_.AppendSince(0, since, keys);
      return {};
    });
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
    return InTurn(context, true, [&]() -> Status {
      DYNEMB_RETURN_IF_ERROR(CheckMetaField(layout_, field));
      FreedRows freed;
      DYNEMB_RETURN_IF_ERROR(BeginErasing(context, &freed));
      DYNEMB_RETURN_IF_ERROR(
          ForEach(context, ChunkCount(index_.view()),
                  EraseRowsBelow{index_.view(), rows_.view(), FieldOffset(field), bound, freed}));
      RowCounts counts;
      DYNEMB_RETURN_IF_ERROR(counts_.Read(context, &counts));
      *erased = counts.freed;
      return counts_.EndCall(context, rows_.capacity(), 0);
    });
  }

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
  int64_t memory_bytes() const override {
    std::lock_guard<std::mutex> lock(mutex_);
    return index_.bytes() + rows_.bytes();
  }
  int device() const override { return device_; }
  int64_t index_cells() const override {
    std::lock_guard<std::mutex> lock(mutex_);
    return index_.cells();
  }

 private:
  // How a call that changes rows works.
  struct How {
    bool in_order = false;      // it looks at all entries of a key, in their order
    int64_t scratch_bytes = 0;  // that it takes for itself
    bool each_reports = false;  // entries have outcomes of their own
  };

  // For the table's own waits.
  Context OwnContext() const {
    Context context;
    context.space = space();
    context.stream = memory_->stream();
    return context;
  }

  // Runs a call when it is its turn, on the table's device.
  template <typename F>
  Status InTurn(const Context& context, bool writes, const F& call) const {
    std::lock_guard<std::mutex> lock(mutex_);
    const DeviceGuard guard(device_);
    DYNEMB_RETURN_IF_ERROR(order_.Begin(context, writes));
    const Status status = call();
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
    const Status begun =
        GroupBatch(context, batch, how.in_order, how.scratch_bytes, &scratch_, &grouped);
    if (begun.code() == Code::kResourceExhausted) {
      const Entries entries(batch);
      DYNEMB_RETURN_IF_ERROR(ForEach(context, entries.most, ReportFull{entries, reports}));
    }
    DYNEMB_RETURN_IF_ERROR(begun);
    const int64_t inserting = kInserts ? grouped.size : 0;
    int64_t limit = rows_.capacity();
    if constexpr (kInserts) DYNEMB_RETURN_IF_ERROR(MakeRoom(context, inserting, &limit));
    const bool may_be_full = counts_.most_rows() + inserting > limit && kInserts;
    DYNEMB_RETURN_IF_ERROR(ForEach(context, grouped.size, FindHeads{grouped, index_.view()}));
    if constexpr (kInserts) {
      DYNEMB_RETURN_IF_ERROR(
          ForEachTile<kWarp>(context, WarpsFor(context, grouped.size),
                             InsertHeads<Wanted>{grouped, index_.view(), counts_.there(),
                                                 rows_.free_rows(), limit, wanted}));
    }
    // Whatever happens, what has been taken and freed is counted.
    Status status = work(grouped);
    if (status.ok() && (reports.outcomes != nullptr || reports.misses != nullptr)) {
      status = ForEach(context, grouped.size, ReportEntries{grouped, how.each_reports, reports});
    }
    DYNEMB_RETURN_IF_ERROR(counts_.EndCall(context, limit, inserting));
    DYNEMB_RETURN_IF_ERROR(status);
    if (!may_be_full) return {};
    RowCounts counts;
    DYNEMB_RETURN_IF_ERROR(counts_.ReadAndForgetFull(context, &counts));
    if (counts.full == 0) return {};
    return ResourceExhausted("no GPU memory for more rows; the table has ", counts.rows());
  }

  // Room for `inserting` more rows, or as many as there is memory for: *limit in all.
  Status MakeRoom(const Context& context, int64_t inserting, int64_t* limit) {
    counts_.Poll();
    const auto needed = [&] { return counts_.most_rows() + inserting; };
    if (needed() > rows_.capacity() || index_.TakesMemory(needed())) {
      RowCounts counts;
      DYNEMB_RETURN_IF_ERROR(counts_.Read(context, &counts));
    }
    DYNEMB_RETURN_IF_ERROR(rows_.Grow(context, needed()));
    DYNEMB_RETURN_IF_ERROR(index_.MakeRoom(context, needed(), inserting));
    *limit = std::min(rows_.capacity(), index_.limit());
    return {};
  }

  Status BeginErasing(const Context& context, FreedRows* freed) {
    *freed = {counts_.there(), nullptr, version_ > 0 ? log_.as<Key>() : nullptr, kErasedLimit};
    return rows_.FreeRows(context, &freed->free_rows);
  }

  BornSlots born() const { return {initial_.slots(), layout_.slots_offset, layout_.slots_bytes}; }

  int64_t FieldOffset(MetaField field) const {
    return layout_.meta_offset + layout_.meta_field[static_cast<int>(field)];
  }

  // Lays all rows out anew, beside the old ones.
  Status Relayout(const Context& context, const TableSchema& schema, const RowLayout& layout) {
    RowCounts counts;
    DYNEMB_RETURN_IF_ERROR(counts_.Read(context, &counts));
    RowStore rows(memory_, layout);
    InitialRows initial(memory_);
    const auto convert = [&]() -> Status {
      DYNEMB_RETURN_IF_ERROR(rows_.MakeLike(context, layout, &rows));
      DYNEMB_RETURN_IF_ERROR(initial.SetSchema(context, schema));
      const bool new_slots = layout.slots_bytes != layout_.slots_bytes;
      return ForEachRow(context, counts.fresh,
                        ConvertRows{rows_.view(), rows.view(), layout_, layout,
                                    new_slots ? initial.slots() : nullptr});
    };
    const Status converted = convert();
    DYNEMB_RETURN_IF_ERROR(Wait(context));  // also where what has begun is of no use
    DYNEMB_RETURN_IF_ERROR(converted);
    rows.Replace(&rows_);
    initial_ = std::move(initial);
    layout_ = layout;
    schema_.rule = schema.rule;  // nothing else has changed, and the rest is read without the lock
    return {};
  }

  // The next rows of an export, by their hashes.
  Status ExportNext(const Context& context, Cursor* cursor, const RowParts& out,
                    int64_t* rows) const {
    const auto bound = [&](int64_t part) {
      return (static_cast<uint64_t>(part) << 32) / static_cast<uint64_t>(cursor->parts) << 32;
    };
    const uint64_t last = bound(cursor->part + 1) - 1;  // 2^64 is 0 here
    if (cursor->position[1] == 0) cursor->position[0] = bound(cursor->part);
    const int64_t capacity = out.keys.size;
    const auto chunks = static_cast<uint64_t>(index_.cells() / IndexChunk::kCells);
    constexpr uint64_t kMostChunks = uint64_t{1} << 31;
    const uint64_t wanted = static_cast<uint64_t>(capacity) / IndexChunk::kCells + 1;
    uint64_t width = (std::min(wanted, kMostChunks) << 32) / chunks;  // upper halves of hashes
    *rows = 0;
    for (; !cursor->done && *rows == 0; width *= 2) {
      const uint64_t first = cursor->position[0];
      const uint64_t left = (last >> 32) - (first >> 32);
      const uint64_t until = width > left ? last : (((first >> 32) + width) << 32) - 1;
      int64_t found;
      DYNEMB_RETURN_IF_ERROR(ExportRange(context, first, until, *cursor, out, &found));
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
  Status ExportRange(const Context& context, uint64_t first, uint64_t last, const Cursor& cursor,
                     const RowParts& out, int64_t* found) const {
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
      for (const bool from_next : {false, true}) {
        const IndexPart& part = from_next ? index_.view().next : index_.view().current;
        if (part.count == 0) continue;
        const uint32_t first_home = part.Home(first);
        DYNEMB_RETURN_IF_ERROR(ForEach(
            context, int64_t{part.Home(last)} - first_home + 1,
            CollectRange{index_.view(), from_next, first_home, first, last, rows_.view(),
                         layout_.version_offset, cursor.since_version, room, hashes, refs, count}));
      }
      DYNEMB_RETURN_IF_ERROR(CopyAny(context, found, count, sizeof(*found)));
      DYNEMB_RETURN_IF_ERROR(Wait(context));
    }
    if (*found == 0) return {};
    range_ = {scratch_.Take<uint64_t>(room), scratch_.Take<RowRef>(room)};
    DYNEMB_RETURN_IF_ERROR(SortPairs(context, *found, 64,
                                     Pairs64{hashes, refs, range_.hashes, range_.rows},
                                     scratch_.Take<char>(temp_bytes), temp_bytes));
    return ForEachRow(context, std::min(*found, capacity),
                      ExportRows{range_.hashes, range_.rows, rows_.view(), layout_.value_bytes,
                                 layout_.slots_offset, layout_.slots_bytes, layout_.meta_offset,
                                 layout_.meta_bytes, out});
  }

  // Takes what was erased in this version from the device's log to the host's.
  Status ReadLog(const Context& context) const {
    if (version_ == 0) return {};
    RowCounts counts;
    DYNEMB_RETURN_IF_ERROR(counts_.ReadAndForgetLogged(context, &counts));
    if (counts.logged > kErasedLimit) {
      erase_log_.Lose(version_);
      return {};
    }
    std::vector<Key> keys(static_cast<size_t>(counts.logged));
    DYNEMB_RETURN_IF_ERROR(
        CopyAny(context, keys.data(), log_.as<Key>(), counts.logged * sizeof(Key)));
    DYNEMB_RETURN_IF_ERROR(Wait(context));
    for (const Key key : keys) erase_log_.Add(0, key, version_);
    return {};
  }

  DeviceMemory* const memory_;
  int device_ = -1;  // where the memory is; -1: on the host
  // Held while a call is put into its stream. Value dtype, dim and initializer never change and are
  // read without it.
  mutable std::mutex mutex_;
  mutable StreamOrder order_;
  TableSchema schema_;
  RowLayout layout_;
  int64_t version_ = 0;  // 0: changes are not followed
  GpuIndex index_;
  RowStore rows_;
  mutable KnownCounts counts_;
  mutable Scratch scratch_;
  InitialRows initial_;
  DeviceBuffer log_;  // keys erased in this version
  mutable EraseLog erase_log_{1};
  // What ExportRange has found, in the scratch memory.
  struct Range {
    uint64_t* hashes;
    RowRef* rows;
  };
  mutable Range range_ = {};
};

}  // namespace

Status MakeGpuTable(const TableSchema& schema, DeviceMemory* memory,
                    std::unique_ptr<GpuTable>* table) {
  DYNEMB_RETURN_IF_ERROR(schema.Validate());
  auto made = std::make_unique<GpuTableOfMemory>(schema, memory);
  DYNEMB_RETURN_IF_ERROR(made->Init());
  *table = std::move(made);
  return {};
}

}  // namespace dynemb

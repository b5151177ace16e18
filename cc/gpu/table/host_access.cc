#include "cc/gpu/table/host_access.h"

#include <algorithm>
#include <cstring>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "cc/core/table/call_checks.h"
#include "cc/core/table/call_report.h"
#include "cc/core/table/distinct_keys.h"
#include "cc/gpu/table/device_guard.h"
#include "cc/gpu/table/staging.h"

namespace dynemb {
namespace {

// A move whose table is called through the host, too.
class MoveThroughHost final : public RowMove {
 public:
  MoveThroughHost(std::shared_ptr<GpuTable> from, std::unique_ptr<RowMove> move,
                  DeviceMemory* memory, const Context& there)
      : from_(std::move(from)), move_(std::move(move)), memory_(memory), there_(there) {}

  std::unique_ptr<Table> Run(const Context&) override {
    auto* const moved = static_cast<GpuTable*>(move_->Run(there_).release());
    // Whoever holds the table that the rows came from may hold the memory by it.
    const auto release = [from = std::move(from_)](GpuTable* table) { delete table; };
    return MakeHostAccess(std::shared_ptr<GpuTable>(moved, release), memory_);
  }

 private:
  std::shared_ptr<GpuTable> from_;
  const std::unique_ptr<RowMove> move_;
  DeviceMemory* const memory_;
  const Context there_;
};

class HostAccessOfTable final : public HostAccess {
 public:
  HostAccessOfTable(std::shared_ptr<GpuTable> table, DeviceMemory* memory, const Context& context)
      : table_(std::move(table)),
        layout_(table_->schema()),
        memory_(memory),
        there_(context),
        staging_(memory, context) {}
  ~HostAccessOfTable() override { at_end_.emplace(table_->device()); }

  const std::shared_ptr<GpuTable>& table() const override { return table_; }
  MemorySpace space() const override { return MemorySpace::kHost; }
  const TableSchema& schema() const override { return table_->schema(); }

  Status Find(const Context& context, const Batch& batch, Rows values,
              const Report& report) const override {
    const TableSchema& schema = table_->schema();
    DYNEMB_RETURN_IF_ERROR(CheckBatch(context, batch, report));
    DYNEMB_RETURN_IF_ERROR(CheckValues("values", batch, values, schema.value_dtype, schema.dim));
    const int64_t bytes = schema.dim * SizeOf(schema.value_dtype);
    const Turn turn(this);
    Call call(batch);
    DYNEMB_RETURN_IF_ERROR(Begin(&call, report, bytes, 1));
    DYNEMB_RETURN_IF_ERROR(staging_.Send());
    const Staged<char> rows = staging_.Take<char>(call.size() * bytes);
    DYNEMB_RETURN_IF_ERROR(table_->Find(there_, call.batch(there_),
                                        RowsOf(rows, call.size(), bytes), call.report(there_)));
    DYNEMB_RETURN_IF_ERROR(staging_.Fetch(rows, call.outcomes));
    for (int64_t i = 0; i < call.size(); ++i) {
      std::memcpy(values[call.positions[i]], rows.host + i * bytes, bytes);
    }
    call.Report(report);
    return {};
  }

  Status ReadRows(const Context& context, const Batch& batch, const RowParts& rows,
                  const Report& report) const override {
    DYNEMB_RETURN_IF_ERROR(CheckBatch(context, batch, report));
    DYNEMB_RETURN_IF_ERROR(CheckRowsToRead(layout_, batch, rows));
    const Turn turn(this);
    const Call call(batch);
    std::vector<Outcome> outcomes(call.positions.size());
    for (int64_t first = 0, size = 0; first < call.size(); first += size) {
      DYNEMB_RETURN_IF_ERROR(InPieces([&](int64_t most) {
        size = std::min(call.size() - first, most);
        return ReadPiece(call.Piece(first, size), rows, outcomes.data() + first);
      }));
    }
    call.Report(report, [&](int64_t i) { return outcomes[i]; });
    return {};
  }

  Status Apply(const Context& context, const Batch& batch, ConstRows gradients,
               const Update& update, const Stamp& stamp, const Report& report) override {
    const TableSchema& schema = table_->schema();
    const DType dtype = GradientDType(schema.value_dtype);
    DYNEMB_RETURN_IF_ERROR(CheckBatch(context, batch, report));
    DYNEMB_RETURN_IF_ERROR(CheckValues("gradients", batch, gradients, dtype, schema.dim));
    DYNEMB_RETURN_IF_ERROR(CheckScales(batch, update));
    DYNEMB_RETURN_IF_ERROR(CheckStamp(batch, stamp));
    const int64_t bytes = schema.dim * SizeOf(dtype);
    const Turn turn(this);
    Call call(batch);
    DYNEMB_RETURN_IF_ERROR(
        Begin(&call, report, bytes + BytesOf(update.scales) + BytesOf(stamp.scores), 3));
    const Staged<char> rows = Gather(call, gradients, bytes);
    Update update_there = update;
    update_there.scales = Gather(call, update.scales);
    const Stamp stamp_there = {stamp.now, Gather(call, stamp.scores)};
    return call.Finish(&staging_, report, [&] {
      return table_->Apply(there_, call.batch(there_), RowsOf(rows, call.size(), bytes),
                           update_there, stamp_there, call.report(there_));
    });
  }

  Status Upsert(const Context& context, const Batch& batch, ConstRows values, const Stamp& stamp,
                const Report& report) override {
    const TableSchema& schema = table_->schema();
    DYNEMB_RETURN_IF_ERROR(CheckBatch(context, batch, report));
    DYNEMB_RETURN_IF_ERROR(CheckValues("values", batch, values, schema.value_dtype, schema.dim));
    DYNEMB_RETURN_IF_ERROR(CheckStamp(batch, stamp));
    const int64_t bytes = schema.dim * SizeOf(schema.value_dtype);
    const Turn turn(this);
    Call call(batch);
    DYNEMB_RETURN_IF_ERROR(Begin(&call, report, bytes + BytesOf(stamp.scores), 2));
    const Staged<char> rows = Gather(call, values, bytes);
    const Stamp stamp_there = {stamp.now, Gather(call, stamp.scores)};
    return call.Finish(&staging_, report, [&] {
      return table_->Upsert(there_, call.batch(there_), RowsOf(rows, call.size(), bytes),
                            stamp_there, call.report(there_));
    });
  }

  Status Accumulate(const Context& context, const Batch& batch, ConstRows values_or_deltas,
                    Span<const bool> exists, const Stamp& stamp, const Report& report) override {
    const TableSchema& schema = table_->schema();
    DYNEMB_RETURN_IF_ERROR(CheckBatch(context, batch, report));
    DYNEMB_RETURN_IF_ERROR(
        CheckValues("values_or_deltas", batch, values_or_deltas, schema.value_dtype, schema.dim));
    DYNEMB_RETURN_IF_ERROR(CheckExists(batch, exists));
    DYNEMB_RETURN_IF_ERROR(CheckStamp(batch, stamp));
    const int64_t bytes = schema.dim * SizeOf(schema.value_dtype);
    const Turn turn(this);
    Call call(batch);
    DYNEMB_RETURN_IF_ERROR(
        Begin(&call, report, bytes + BytesOf(exists) + BytesOf(stamp.scores), 3));
    const Staged<char> rows = Gather(call, values_or_deltas, bytes);
    const Span<const bool> seen = Gather(call, exists);
    const Stamp stamp_there = {stamp.now, Gather(call, stamp.scores)};
    return call.Finish(&staging_, report, [&] {
      return table_->Accumulate(there_, call.batch(there_), RowsOf(rows, call.size(), bytes), seen,
                                stamp_there, call.report(there_));
    });
  }

  Status Erase(const Context& context, const Batch& batch, const Report& report) override {
    DYNEMB_RETURN_IF_ERROR(CheckBatch(context, batch, report));
    const Turn turn(this);
    Call call(batch);
    DYNEMB_RETURN_IF_ERROR(Begin(&call, report, 0, 0));
    return call.Finish(&staging_, report, [&] {
      return table_->Erase(there_, call.batch(there_), call.report(there_));
    });
  }

  Status InsertRows(const Context& context, const Batch& batch, const ConstRowParts& rows,
                    const RowParts& displaced, const Report& report) override {
    DYNEMB_RETURN_IF_ERROR(CheckBatch(context, batch, report));
    DYNEMB_RETURN_IF_ERROR(CheckRowsToInsert(layout_, batch, rows));
    DYNEMB_RETURN_IF_ERROR(CheckRowsToRead(layout_, batch, displaced));
    const Turn turn(this);
    // Each key is sent once, with its last row, so that it is in one piece.
    const Call call(batch);
    std::vector<Key> keys;
    for (const int64_t position : call.positions) keys.push_back(batch.keys[position]);
    const DistinctKeys distinct{Span<const Key>(keys)};
    std::vector<int64_t> last(static_cast<size_t>(distinct.size()));
    for (int64_t i = 0; i < call.size(); ++i) last[distinct.numbers()[i]] = call.positions[i];
    std::vector<Outcome> outcomes(batch.keys.size, Outcome::kFull);  // by the last position
    const Status status = InsertAll(batch.keys, last, rows, displaced, outcomes.data());
    if (!status.ok() && status.code() != Code::kResourceExhausted) return status;
    for (int64_t i = 0; i < call.size(); ++i) {
      const int64_t to = call.positions[i], from = last[distinct.numbers()[i]];
      if (outcomes[from] != Outcome::kFound) continue;
      if (displaced.keys.data != nullptr) displaced.keys[to] = keys[i];
      if (to == from) continue;
      const auto copy = [&](const Rows& part, int64_t bytes) {
        if (part.data != nullptr) std::memcpy(part[to], part[from], bytes);
      };
      copy(displaced.values, layout_.value_bytes);
      copy(displaced.slots, layout_.slots_bytes);
      copy(displaced.meta, layout_.meta_bytes);
    }
    call.Report(report, [&](int64_t i) { return outcomes[last[distinct.numbers()[i]]]; });
    return status;
  }

  Status Clear(const Context& context) override {
    DYNEMB_RETURN_IF_ERROR(CheckContext(context));
    return table_->Clear(there_);
  }
  Status Reserve(const Context& context, int64_t rows) override {
    DYNEMB_RETURN_IF_ERROR(CheckContext(context));
    return table_->Reserve(there_, rows);
  }

  Status RemoveExpired(const Context& context) override {
    DYNEMB_RETURN_IF_ERROR(CheckContext(context));
    return table_->RemoveExpired(there_);
  }

  Status Export(const Context& context, Cursor* cursor, const RowParts& out,
                int64_t* rows) const override {
    DYNEMB_RETURN_IF_ERROR(CheckContext(context));
    DYNEMB_RETURN_IF_ERROR(CheckExport(layout_, out));
    const Turn turn(this);
    return InPieces([&](int64_t most) {
      return ExportPiece(cursor, out, std::min(out.keys.size, most), rows);
    });
  }

  Status BeginEpoch(const Context& context, int64_t epoch) override {
    DYNEMB_RETURN_IF_ERROR(CheckContext(context));
    return table_->BeginEpoch(there_, epoch);
  }
  int64_t epoch() const override { return table_->epoch(); }
  Status ChangedKeys(const Context& context, int64_t since, const TablePart& part,
                     std::vector<Key>* keys) const override {
    DYNEMB_RETURN_IF_ERROR(CheckContext(context));
    return table_->ChangedKeys(there_, since, part, keys);
  }
  void TrimChanges(const std::vector<int64_t>& positions) override {
    table_->TrimChanges(positions);
  }

  Status Histogram(const Context& context, MetaField field, const RowOrder& prefix, int prefix_bits,
                   Span<int64_t> counts) const override {
    DYNEMB_RETURN_IF_ERROR(CheckContext(context));
    int bits;
    DYNEMB_RETURN_IF_ERROR(CheckMetaField(layout_, field));
    DYNEMB_RETURN_IF_ERROR(CheckCounts(counts, prefix_bits, &bits));
    const Turn turn(this);
    DYNEMB_RETURN_IF_ERROR(staging_.Begin(counts.size * sizeof(int64_t), 1));
    const Staged<int64_t> staged = staging_.Take<int64_t>(counts.size);
    std::memcpy(staged.host, counts.data, counts.size * sizeof(int64_t));
    DYNEMB_RETURN_IF_ERROR(staging_.Send());
    DYNEMB_RETURN_IF_ERROR(table_->Histogram(there_, field, prefix, prefix_bits,
                                             {staged.there, counts.size, there_.space}));
    DYNEMB_RETURN_IF_ERROR(staging_.Fetch(staged));
    std::memcpy(counts.data, staged.host, counts.size * sizeof(int64_t));
    return {};
  }
  Status EraseBelow(const Context& context, MetaField field, const RowOrder& bound,
                    int64_t* erased) override {
    DYNEMB_RETURN_IF_ERROR(CheckContext(context));
    return table_->EraseBelow(there_, field, bound, erased);
  }

  Status PrepareMove(const Context& context, const TableSchema& schema,
                     std::unique_ptr<RowMove>* move) override {
    DYNEMB_RETURN_IF_ERROR(CheckContext(context));
    std::unique_ptr<RowMove> prepared;
    DYNEMB_RETURN_IF_ERROR(table_->PrepareMove(there_, schema, &prepared));
    *move = std::make_unique<MoveThroughHost>(table_, std::move(prepared), memory_, there_);
    return {};
  }

  int64_t size() const override { return table_->size(); }
  int64_t room() const override { return table_->room(); }
  bool HasRoom(int64_t rows) const override { return table_->HasRoom(rows); }
  int64_t max_rows() const override { return table_->max_rows(); }
  TableCounters counters() const override { return table_->counters(); }
  EvictedRows* evicted() const override { return table_->evicted(); }
  int64_t memory_bytes() const override { return table_->memory_bytes(); }

 private:
  // One call at a time, on the table's device.
  struct Turn {
    explicit Turn(const HostAccessOfTable* access)
        : lock(access->mutex_), guard(access->table_->device()) {}
    const std::lock_guard<std::mutex> lock;
    const DeviceGuard guard;
  };

  // The keys that take part in a call, one after the other, and what becomes of them.
  struct Call {
    Call(Span<const Key> keys, std::vector<int64_t> at) : keys_of(keys), positions(std::move(at)) {}
    explicit Call(const Batch& of) : keys_of(of.keys) {
      positions.resize(static_cast<size_t>(of.size()));
      for (int64_t i = 0; i < of.size(); ++i) positions[i] = of.position(i);
    }
    int64_t size() const { return static_cast<int64_t>(positions.size()); }
    // Of so many of the keys.
    Call Piece(int64_t first, int64_t n) const {
      const auto begin = positions.begin() + first;
      return {keys_of, {begin, begin + n}};
    }
    Batch batch(const Context& there) const { return {{keys.there, size(), there.space}}; }
    dynemb::Report report(const Context& there) const {
      return {{outcomes.there, size(), there.space}, nullptr};
    }
    // Sends what was staged, makes the call, fetches the outcomes and reports them.
    template <typename F>
    Status Finish(Staging* staging, const dynemb::Report& report, const F& make) {
      DYNEMB_RETURN_IF_ERROR(staging->Send());
      const Status status = make();
      if (!status.ok() && status.code() != Code::kResourceExhausted) return status;
      DYNEMB_RETURN_IF_ERROR(staging->Fetch(outcomes));
      Report(report);
      return status;
    }
    void Report(const dynemb::Report& report) const {
      Report(report, [&](int64_t i) { return outcomes.host[i]; });
    }
    template <typename F>
    void Report(const dynemb::Report& report, const F& outcome) const {
      CallReport whole(report);
      TaskReport reported(report);
      for (int64_t i = 0; i < size(); ++i) reported.Set(positions[i], outcome(i));
      whole.Add(reported);
    }

    Span<const Key> keys_of;
    std::vector<int64_t> positions;
    Staged<Key> keys;
    Staged<Outcome> outcomes;
  };

  // Room for a call with so many bytes per key in so many pieces; its keys are staged. Without room
  // nothing is done to any key, which is reported.
  Status Begin(Call* call, const Report& report, int64_t bytes_per_key, int pieces) const {
    const int64_t n = call->size();
    const Status begun = staging_.Begin(n * (8 + 1 + bytes_per_key), pieces + 2);
    if (begun.code() == Code::kResourceExhausted) {
      call->Report(report, [](int64_t) { return Outcome::kFull; });
    }
    DYNEMB_RETURN_IF_ERROR(begun);
    call->keys = staging_.Take<Key>(n);
    for (int64_t i = 0; i < n; ++i) call->keys.host[i] = call->keys_of[call->positions[i]];
    call->outcomes = staging_.Take<Outcome>(n);
    // As long as nobody says otherwise.
    std::fill_n(call->outcomes.host, n, Outcome::kFull);
    return {};
  }
  Staged<char> Gather(const Call& call, const ConstRows& rows, int64_t bytes) const {
    const Staged<char> staged = staging_.Take<char>(call.size() * bytes);
    for (int64_t i = 0; i < call.size(); ++i) {
      std::memcpy(staged.host + i * bytes, rows[call.positions[i]], bytes);
    }
    return staged;
  }
  // What there is for each key, if there is anything.
  template <typename T>
  Span<const T> Gather(const Call& call, const Span<const T>& of_keys) const {
    if (of_keys.empty()) return {};
    const Staged<T> staged = staging_.Take<T>(call.size());
    for (int64_t i = 0; i < call.size(); ++i) staged.host[i] = of_keys[call.positions[i]];
    return {staged.there, call.size(), there_.space};
  }
  template <typename T>
  static int64_t BytesOf(const Span<const T>& of_keys) {
    return of_keys.empty() ? 0 : static_cast<int64_t>(sizeof(T));
  }
  Rows RowsOf(const Staged<char>& staged, int64_t n, int64_t bytes) const {
    return {staged.there, n, bytes, there_.space};
  }
  // Calls for whole rows may be for all of a table, and of one that leaves no memory. So they go in
  // pieces, as large as there is room for: runs piece(most rows).
  template <typename F>
  Status InPieces(const F& piece) const {
    for (int64_t bytes = kMostBytes;; bytes /= 2) {
      const Status status = piece(RowsIn(bytes));
      if (status.code() != Code::kResourceExhausted || bytes == kLeastBytes) return status;
    }
  }
  int64_t RowsIn(int64_t bytes) const { return std::max<int64_t>(1, bytes / (8 + RowBytes())); }

  // Whole rows on their way back: the parts that are asked for.
  struct RowsBack {
    Rows wanted[3];
    int64_t bytes[3];  // per row
    Staged<char> staged[3];
    RowParts there;

    int64_t row_bytes() const { return bytes[0] + bytes[1] + bytes[2]; }
    void Copy(int64_t from, int64_t to) const {
      for (int p = 0; p < 3; ++p) {
        if (bytes[p] == 0) continue;
        std::memcpy(wanted[p][to], staged[p].host + from * bytes[p], bytes[p]);
      }
    }
  };
  RowsBack Wanted(const RowParts& rows) const {
    RowsBack back = {{rows.values, rows.slots, rows.meta},
                     {layout_.value_bytes, layout_.slots_bytes, layout_.meta_bytes},
                     {},
                     {}};
    for (int p = 0; p < 3; ++p) {
      if (back.wanted[p].data == nullptr) back.bytes[p] = 0;
    }
    return back;
  }
  // Memory for n of them. Rows that the call leaves out come back too.
  Status Take(int64_t n, RowsBack* back) const {
    Rows* const there[] = {&back->there.values, &back->there.slots, &back->there.meta};
    for (int p = 0; p < 3; ++p) {
      back->staged[p] = staging_.Take<char>(n * back->bytes[p]);
      if (back->bytes[p] == 0) continue;
      *there[p] = RowsOf(back->staged[p], n, back->bytes[p]);
      DYNEMB_RETURN_IF_ERROR(FillBytes(there_, back->staged[p].there, 0, back->staged[p].size));
    }
    return {};
  }

  Status ReadPiece(Call call, const RowParts& rows, Outcome* outcomes) const {
    RowsBack back = Wanted(rows);
    DYNEMB_RETURN_IF_ERROR(Begin(&call, {}, back.row_bytes(), 3));
    DYNEMB_RETURN_IF_ERROR(staging_.Send());
    DYNEMB_RETURN_IF_ERROR(Take(call.size(), &back));
    DYNEMB_RETURN_IF_ERROR(
        table_->ReadRows(there_, call.batch(there_), back.there, call.report(there_)));
    DYNEMB_RETURN_IF_ERROR(
        staging_.Fetch(call.outcomes, back.staged[0], back.staged[1], back.staged[2]));
    for (int64_t i = 0; i < call.size(); ++i) {
      outcomes[i] = call.outcomes.host[i];
      if (outcomes[i] == Outcome::kFound) back.Copy(i, call.positions[i]);
    }
    return {};
  }

  // Inserts the rows at these positions, which are those of distinct keys. Outcomes, which are
  // kFull, and displaced rows are by position.
  Status InsertAll(Span<const Key> keys, std::vector<int64_t> positions, const ConstRowParts& rows,
                   const RowParts& displaced, Outcome* outcomes) {
    Status status;
    int64_t bytes = kMostBytes;
    for (auto begin = positions.begin(); begin != positions.end();) {
      const auto end = begin + std::min<int64_t>(positions.end() - begin, RowsIn(bytes));
      status = InsertPiece(Call(keys, {begin, end}), rows, displaced, outcomes);
      if (!status.ok() && status.code() != Code::kResourceExhausted) return status;
      // What has found no room is tried again in smaller pieces.
      begin =
          std::partition(begin, end, [&](int64_t at) { return outcomes[at] != Outcome::kFull; });
      if (status.ok()) continue;
      if (bytes == kLeastBytes) return status;
      bytes /= 2;
    }
    return status;
  }
  Status InsertPiece(Call call, const ConstRowParts& rows, const RowParts& displaced,
                     Outcome* outcomes) {
    RowsBack back = Wanted(displaced);
    DYNEMB_RETURN_IF_ERROR(Begin(&call, {}, RowBytes() + back.row_bytes(), 6));
    const auto gather = [&](const ConstRows& part, int64_t bytes) -> ConstRows {
      if (bytes == 0) return {};
      return RowsOf(Gather(call, part, bytes), call.size(), bytes);
    };
    const ConstRowParts there = {{},
                                 gather(rows.values, layout_.value_bytes),
                                 gather(rows.slots, layout_.slots_bytes),
                                 gather(rows.meta, layout_.meta_bytes)};
    DYNEMB_RETURN_IF_ERROR(staging_.Send());
    DYNEMB_RETURN_IF_ERROR(Take(call.size(), &back));
    const Status status =
        table_->InsertRows(there_, call.batch(there_), there, back.there, call.report(there_));
    if (!status.ok() && status.code() != Code::kResourceExhausted) return status;
    DYNEMB_RETURN_IF_ERROR(
        staging_.Fetch(call.outcomes, back.staged[0], back.staged[1], back.staged[2]));
    for (int64_t i = 0; i < call.size(); ++i) {
      outcomes[call.positions[i]] = call.outcomes.host[i];
      if (call.outcomes.host[i] == Outcome::kFound) back.Copy(i, call.positions[i]);
    }
    return status;
  }

  Status ExportPiece(Cursor* cursor, const RowParts& out, int64_t n, int64_t* rows) const {
    RowsBack back = Wanted(out);
    DYNEMB_RETURN_IF_ERROR(staging_.Begin(n * (8 + back.row_bytes()), 4));
    const auto keys = staging_.Take<Key>(out.keys.data == nullptr ? 0 : n);
    DYNEMB_RETURN_IF_ERROR(Take(n, &back));
    back.there.keys = {keys.size == 0 ? nullptr : keys.there, n, there_.space};
    DYNEMB_RETURN_IF_ERROR(table_->Export(there_, cursor, back.there, rows));
    const auto written = [&](auto piece) {
      piece.size = piece.size / n * *rows;
      return piece;
    };
    DYNEMB_RETURN_IF_ERROR(staging_.Fetch(written(keys), written(back.staged[0]),
                                          written(back.staged[1]), written(back.staged[2])));
    if (keys.size > 0) std::memcpy(out.keys.data, keys.host, *rows * sizeof(Key));
    for (int64_t i = 0; i < *rows; ++i) back.Copy(i, i);
    return {};
  }

  int64_t RowBytes() const {
    return layout_.value_bytes + layout_.slots_bytes + layout_.meta_bytes;
  }

  static constexpr int64_t kMostBytes = int64_t{16} << 20, kLeastBytes = int64_t{1} << 14;
  std::optional<DeviceGuard> at_end_;  // while all members below give their memory back
  const std::shared_ptr<GpuTable> table_;
  const RowLayout layout_;
  DeviceMemory* const memory_;
  const Context there_;
  mutable std::mutex mutex_;  // for the staging memory
  mutable Staging staging_;
};

}  // namespace

std::unique_ptr<HostAccess> MakeHostAccess(std::shared_ptr<GpuTable> table, DeviceMemory* memory) {
  static InlineExecutor executor;  // of tables whose memory is the host's
  Context context;
  context.space = memory->space();
  context.executor = &executor;
  context.stream = memory->stream();
  return std::make_unique<HostAccessOfTable>(std::move(table), memory, context);
}

}  // namespace dynemb

#include "cc/gpu/table/host_access.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstring>
#include <mutex>
#include <utility>
#include <vector>

#include "cc/core/table/call_checks.h"
#include "cc/core/table/call_report.h"
#include "cc/gpu/table/device_buffer.h"
#include "cc/gpu/table/device_guard.h"

namespace dynemb {
namespace {

// A piece of a Staging: the same numbers in both memories.
template <typename T>
struct Staged {
  T* host = nullptr;
  T* there = nullptr;
  int64_t size = 0;
};

// Memory of the host, pinned, and as much of the table's, in which calls lay out what they send and
// fetch. In the order of one stream.
class Staging {
 public:
  Staging(DeviceMemory* memory, const Context& context) : memory_(memory), context_(context) {}
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;
  ~Staging() { FreeHost(); }

  // Begins a call that takes up to so many bytes, in `pieces` pieces.
  Status Begin(int64_t bytes, int pieces) {
    taken_ = 0;
    bytes += pieces * kAlignment;
    if (bytes <= there_.bytes()) return {};
    DYNEMB_RETURN_IF_ERROR(Wait(context_));  // a call that failed may have left copies under way
    FreeHost();
    if (!there_.Allocate(memory_, bytes)) {
      return ResourceExhausted("no GPU memory for the ", bytes, " bytes of a call from the host");
    }
    if (RunsOnHost(context_.space)) {
      host_ = new char[bytes];
      return {};
    }
    void* host = nullptr;
    const Status status = FromCuda(cudaMallocHost(&host, static_cast<size_t>(bytes)),
                                   "allocating pinned memory for a call from the host");
    host_ = static_cast<char*>(host);
    if (!status.ok()) there_.Free();
    return status;
  }
  template <typename T>
  Staged<T> Take(int64_t size) {
    const Staged<T> piece = {reinterpret_cast<T*>(host_ + taken_),
                             reinterpret_cast<T*>(there_.as<char>() + taken_), size};
    taken_ += (size * static_cast<int64_t>(sizeof(T)) + kAlignment - 1) / kAlignment * kAlignment;
    return piece;
  }
  // All that has been taken so far, to the table's memory.
  Status Send() { return CopyAny(context_, there_.as<char>(), host_, taken_); }
  // Pieces back, and waits for them.
  template <typename... T>
  Status Fetch(const Staged<T>&... pieces) {
    Status status;
    const auto fetch = [&](const auto& piece) {
      if (!status.ok()) return;
      status = CopyAny(context_, piece.host, piece.there,
                       piece.size * static_cast<int64_t>(sizeof(*piece.host)));
    };
    (fetch(pieces), ...);
    const Status waited = Wait(context_);
    return status.ok() ? waited : status;
  }

 private:
  static constexpr int64_t kAlignment = 256;
  void FreeHost() {
    if (host_ == nullptr) return;
    if (RunsOnHost(context_.space)) {
      delete[] host_;
    } else {
      cudaFreeHost(host_);
    }
    host_ = nullptr;
  }

  DeviceMemory* const memory_;
  const Context context_;
  DeviceBuffer there_;
  char* host_ = nullptr;
  int64_t taken_ = 0;
};

class HostAccessOfTable final : public HostAccess {
 public:
  HostAccessOfTable(std::shared_ptr<GpuTable> table, DeviceMemory* memory, const Context& context)
      : table_(std::move(table)), there_(context), staging_(memory, context) {}

  const std::shared_ptr<GpuTable>& table() const override { return table_; }
  MemorySpace space() const override { return MemorySpace::kHost; }
  TableSchema schema() const override { return table_->schema(); }

  Status Find(const Context& context, const Batch& batch, IfMissing if_missing, Rows values,
              const Report& report) const override {
    const TableSchema schema = table_->schema();
    DYNEMB_RETURN_IF_ERROR(CheckBatch(context, batch, report));
    DYNEMB_RETURN_IF_ERROR(CheckValues("values", batch, values, schema.value_dtype, schema.dim));
    const int64_t bytes = schema.dim * SizeOf(schema.value_dtype);
    const Turn turn(this);
    Call call(batch);
    DYNEMB_RETURN_IF_ERROR(Begin(&call, report, bytes, 1));
    DYNEMB_RETURN_IF_ERROR(staging_.Send());
    const Staged<char> rows = staging_.Take<char>(call.size() * bytes);
    // Rows that are left out come back too.
    DYNEMB_RETURN_IF_ERROR(FillBytes(there_, rows.there, 0, rows.size));
    DYNEMB_RETURN_IF_ERROR(table_->Find(there_, call.batch(there_), if_missing,
                                        RowsOf(rows, call.size(), bytes), call.report(there_)));
    DYNEMB_RETURN_IF_ERROR(staging_.Fetch(rows, call.outcomes));
    for (int64_t i = 0; i < call.size(); ++i) {
      if (if_missing == IfMissing::kLeave && call.outcomes.host[i] == Outcome::kMissing) continue;
      std::memcpy(values[call.positions[i]], rows.host + i * bytes, bytes);
    }
    call.Report(report);
    return {};
  }

  Status Apply(const Context& context, const Batch& batch, ConstRows gradients,
               const Update& update, const Stamp& stamp, const Report& report) override {
    const TableSchema schema = table_->schema();
    const DType dtype = GradientDType(schema.value_dtype);
    DYNEMB_RETURN_IF_ERROR(CheckBatch(context, batch, report));
    DYNEMB_RETURN_IF_ERROR(CheckValues("gradients", batch, gradients, dtype, schema.dim));
    DYNEMB_RETURN_IF_ERROR(CheckScales(batch, update));
    const int64_t bytes = schema.dim * SizeOf(dtype);
    const int64_t scale_bytes = update.scales.empty() ? 0 : sizeof(double);
    const Turn turn(this);
    Call call(batch);
    DYNEMB_RETURN_IF_ERROR(Begin(&call, report, bytes + scale_bytes, 2));
    const Staged<char> rows = Gather(call, gradients, bytes);
    Update update_there = update;
    if (scale_bytes > 0) {
      const Staged<double> scales = staging_.Take<double>(call.size());
      for (int64_t i = 0; i < call.size(); ++i) {
        scales.host[i] = update.scales[call.positions[i]];
      }
      update_there.scales = {scales.there, call.size(), there_.space};
    }
    return call.Finish(&staging_, report, [&] {
      return table_->Apply(there_, call.batch(there_), RowsOf(rows, call.size(), bytes),
                           update_there, stamp, call.report(there_));
    });
  }

  Status Upsert(const Context& context, const Batch& batch, ConstRows values, const Stamp& stamp,
                const Report& report) override {
    const TableSchema schema = table_->schema();
    DYNEMB_RETURN_IF_ERROR(CheckBatch(context, batch, report));
    DYNEMB_RETURN_IF_ERROR(CheckValues("values", batch, values, schema.value_dtype, schema.dim));
    const int64_t bytes = schema.dim * SizeOf(schema.value_dtype);
    const Turn turn(this);
    Call call(batch);
    DYNEMB_RETURN_IF_ERROR(Begin(&call, report, bytes, 1));
    const Staged<char> rows = Gather(call, values, bytes);
    return call.Finish(&staging_, report, [&] {
      return table_->Upsert(there_, call.batch(there_), RowsOf(rows, call.size(), bytes), stamp,
                            call.report(there_));
    });
  }

  Status Accumulate(const Context& context, const Batch& batch, ConstRows values_or_deltas,
                    Span<const bool> exists, const Stamp& stamp, const Report& report) override {
    const TableSchema schema = table_->schema();
    DYNEMB_RETURN_IF_ERROR(CheckBatch(context, batch, report));
    DYNEMB_RETURN_IF_ERROR(
        CheckValues("values_or_deltas", batch, values_or_deltas, schema.value_dtype, schema.dim));
    DYNEMB_RETURN_IF_ERROR(CheckExists(batch, exists));
    const int64_t bytes = schema.dim * SizeOf(schema.value_dtype);
    const Turn turn(this);
    Call call(batch);
    DYNEMB_RETURN_IF_ERROR(Begin(&call, report, bytes + 1, 2));
    const Staged<char> rows = Gather(call, values_or_deltas, bytes);
    const Staged<bool> seen = staging_.Take<bool>(call.size());
    for (int64_t i = 0; i < call.size(); ++i) seen.host[i] = exists[call.positions[i]];
    return call.Finish(&staging_, report, [&] {
      return table_->Accumulate(there_, call.batch(there_), RowsOf(rows, call.size(), bytes),
                                {seen.there, call.size(), there_.space}, stamp,
                                call.report(there_));
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

  Status Clear(const Context& context) override {
    DYNEMB_RETURN_IF_ERROR(CheckContext(context));
    return table_->Clear(there_);
  }
  Status Attach(const Context& context, const RuleSpec& rule) override {
    DYNEMB_RETURN_IF_ERROR(CheckContext(context));
    return table_->Attach(there_, rule);
  }
  Status Reserve(const Context& context, int64_t rows) override {
    DYNEMB_RETURN_IF_ERROR(CheckContext(context));
    return table_->Reserve(there_, rows);
  }

  Status Export(const Context& context, Cursor* cursor, const RowParts& out,
                int64_t* rows) const override {
    DYNEMB_RETURN_IF_ERROR(CheckContext(context));
    const Turn turn(this);
    const RowLayout layout(table_->schema());
    DYNEMB_RETURN_IF_ERROR(CheckExport(layout, out));
    return InPieces(layout, [&](int64_t most) {
      return ExportPiece(layout, cursor, out, std::min(out.keys.size, most), rows);
    });
  }

  Status Import(const Context& context, const ConstRowParts& rows) override {
    Batch batch;
    batch.keys = rows.keys;
    DYNEMB_RETURN_IF_ERROR(CheckBatch(context, batch, {}));
    const Turn turn(this);
    const RowLayout layout(table_->schema());
    DYNEMB_RETURN_IF_ERROR(CheckImport(layout, rows));
    for (int64_t first = 0, size = 0; first < rows.keys.size; first += size) {
      DYNEMB_RETURN_IF_ERROR(InPieces(layout, [&](int64_t most) {
        size = std::min(rows.keys.size - first, most);
        return ImportPiece(layout, rows, first, size);
      }));
    }
    return {};
  }

  Status BeginVersion(const Context& context, int64_t version) override {
    DYNEMB_RETURN_IF_ERROR(CheckContext(context));
    return table_->BeginVersion(there_, version);
  }
  int64_t version() const override { return table_->version(); }
  Status Erased(const Context& context, int64_t since, std::vector<Key>* keys) const override {
    DYNEMB_RETURN_IF_ERROR(CheckContext(context));
    return table_->Erased(there_, since, keys);
  }

  Status Histogram(const Context& context, MetaField field, const RowOrder& prefix, int prefix_bits,
                   Span<int64_t> counts) const override {
    DYNEMB_RETURN_IF_ERROR(CheckContext(context));
    int bits;
    DYNEMB_RETURN_IF_ERROR(CheckMetaField(RowLayout(table_->schema()), field));
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

  int64_t size() const override { return table_->size(); }
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
    explicit Call(const Batch& of) : keys_of(of.keys) {
      const int64_t n = of.select == nullptr ? of.keys.size : *of.select->count;
      positions.resize(static_cast<size_t>(n));
      for (int64_t i = 0; i < n; ++i) positions[i] = of.select == nullptr ? i : of.select->at[i];
    }
    int64_t size() const { return static_cast<int64_t>(positions.size()); }
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
    return {};
  }
  Staged<char> Gather(const Call& call, const ConstRows& rows, int64_t bytes) const {
    const Staged<char> staged = staging_.Take<char>(call.size() * bytes);
    for (int64_t i = 0; i < call.size(); ++i) {
      std::memcpy(staged.host + i * bytes, rows[call.positions[i]], bytes);
    }
    return staged;
  }
  Rows RowsOf(const Staged<char>& staged, int64_t n, int64_t bytes) const {
    return {staged.there, n, bytes, there_.space};
  }
  // Exports and imports may be of the whole table, and of one that leaves no memory. So they go in
  // pieces, as large as there is room for: runs piece(most rows).
  template <typename F>
  static Status InPieces(const RowLayout& layout, const F& piece) {
    constexpr int64_t kMostBytes = int64_t{16} << 20, kLeastBytes = int64_t{1} << 14;
    for (int64_t bytes = kMostBytes;; bytes /= 2) {
      const Status status = piece(std::max<int64_t>(1, bytes / (8 + RowBytes(layout))));
      if (status.code() != Code::kResourceExhausted || bytes == kLeastBytes) return status;
    }
  }

  Status ExportPiece(const RowLayout& layout, Cursor* cursor, const RowParts& out, int64_t n,
                     int64_t* rows) const {
    // Of the parts that are asked for.
    const Rows* const wanted[] = {&out.values, &out.slots, &out.meta};
    const int64_t bytes_of_part[] = {layout.value_bytes, layout.slots_bytes, layout.meta_bytes};
    int64_t bytes[3] = {};
    for (int p = 0; p < 3; ++p) bytes[p] = wanted[p]->data == nullptr ? 0 : bytes_of_part[p];
    DYNEMB_RETURN_IF_ERROR(staging_.Begin(n * (8 + bytes[0] + bytes[1] + bytes[2]), 4));
    const auto keys = staging_.Take<Key>(out.keys.data == nullptr ? 0 : n);
    Staged<char> staged[3];
    Rows there[3];
    for (int p = 0; p < 3; ++p) {
      staged[p] = staging_.Take<char>(n * bytes[p]);
      if (bytes[p] > 0) there[p] = RowsOf(staged[p], n, bytes[p]);
    }
    DYNEMB_RETURN_IF_ERROR(table_->Export(
        there_, cursor,
        {{keys.size == 0 ? nullptr : keys.there, n, there_.space}, there[0], there[1], there[2]},
        rows));
    const auto written = [&](auto piece) {
      piece.size = piece.size / n * *rows;
      return piece;
    };
    DYNEMB_RETURN_IF_ERROR(
        staging_.Fetch(written(keys), written(staged[0]), written(staged[1]), written(staged[2])));
    if (keys.size > 0) std::memcpy(out.keys.data, keys.host, *rows * sizeof(Key));
    for (int p = 0; p < 3; ++p) {
      for (int64_t i = 0; bytes[p] > 0 && i < *rows; ++i) {
        std::memcpy((*wanted[p])[i], staged[p].host + i * bytes[p], bytes[p]);
      }
    }
    return {};
  }

  Status ImportPiece(const RowLayout& layout, const ConstRowParts& rows, int64_t first,
                     int64_t size) {
    Batch piece;
    piece.keys = {rows.keys.data + first, size};
    Call call(piece);
    DYNEMB_RETURN_IF_ERROR(Begin(&call, {}, RowBytes(layout), 3));
    const auto gather = [&](ConstRows part, int64_t bytes) -> ConstRows {
      if (bytes == 0) return {};
      if (part.offsets != nullptr) part.offsets += first;
      if (part.offsets == nullptr) part.data += first * part.stride_bytes;
      return RowsOf(Gather(call, part, bytes), size, bytes);
    };
    const ConstRowParts there = {call.batch(there_).keys, gather(rows.values, layout.value_bytes),
                                 gather(rows.slots, layout.slots_bytes),
                                 gather(rows.meta, layout.meta_bytes)};
    DYNEMB_RETURN_IF_ERROR(staging_.Send());
    const Status status = table_->Import(there_, there);
    DYNEMB_RETURN_IF_ERROR(Wait(there_));
    return status;
  }

  static int64_t RowBytes(const RowLayout& layout) {
    return layout.value_bytes + layout.slots_bytes + layout.meta_bytes;
  }

  const std::shared_ptr<GpuTable> table_;
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

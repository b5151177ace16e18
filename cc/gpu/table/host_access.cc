#include "cc/gpu/table/host_access.h"

#include <cuda_runtime_api.h>

#include <cstring>
#include <mutex>
#include <utility>
#include <vector>

#include "cc/core/table/call_checks.h"
#include "cc/core/table/call_report.h"
#include "cc/gpu/table/device_buffer.h"

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
    FreeHost();
    if (!there_.Allocate(memory_, bytes)) {
      return ResourceExhausted("no GPU memory for the ", bytes, " bytes of a call from the host");
    }
    if (context_.space == MemorySpace::kHost) {
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
    if (context_.space == MemorySpace::kHost) {
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

class HostAccess final : public Table {
 public:
  HostAccess(std::shared_ptr<GpuTable> table, DeviceMemory* memory, const Context& context)
      : table_(std::move(table)), there_(context), staging_(memory, context) {}
  ~HostAccess() override {
    if (there_.stream == nullptr) return;
    cudaStreamSynchronize(StreamOf(there_));
    cudaStreamDestroy(StreamOf(there_));
  }

  MemorySpace space() const override { return MemorySpace::kHost; }
  TableSchema schema() const override { return table_->schema(); }

  Status Find(const Context& context, const Batch& batch, IfMissing if_missing, Rows values,
              const Report& report) const override {
    const TableSchema schema = table_->schema();
    DYNEMB_RETURN_IF_ERROR(CheckBatch(context, batch, report));
    DYNEMB_RETURN_IF_ERROR(CheckValues("values", batch, values, schema.value_dtype, schema.dim));
    const int64_t bytes = schema.dim * SizeOf(schema.value_dtype);
    std::lock_guard<std::mutex> lock(mutex_);
    Call call(batch);
    DYNEMB_RETURN_IF_ERROR(Begin(&call, bytes, 1));
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
    std::lock_guard<std::mutex> lock(mutex_);
    Call call(batch);
    DYNEMB_RETURN_IF_ERROR(Begin(&call, bytes + scale_bytes, 2));
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
    std::lock_guard<std::mutex> lock(mutex_);
    Call call(batch);
    DYNEMB_RETURN_IF_ERROR(Begin(&call, bytes, 1));
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
    std::lock_guard<std::mutex> lock(mutex_);
    Call call(batch);
    DYNEMB_RETURN_IF_ERROR(Begin(&call, bytes + 1, 2));
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
    std::lock_guard<std::mutex> lock(mutex_);
    Call call(batch);
    DYNEMB_RETURN_IF_ERROR(Begin(&call, 0, 0));
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
    std::lock_guard<std::mutex> lock(mutex_);
    const RowLayout layout(table_->schema());
    DYNEMB_RETURN_IF_ERROR(CheckExport(layout, out));
    const int64_t n = out.keys.size;
    DYNEMB_RETURN_IF_ERROR(staging_.Begin(n * (8 + RowBytes(layout)), 4));
    const Staged<Key> keys = staging_.Take<Key>(n);
    const Staged<char> values = staging_.Take<char>(n * layout.value_bytes);
    const Staged<char> slots = staging_.Take<char>(n * layout.slots_bytes);
    const Staged<char> meta = staging_.Take<char>(n * layout.meta_bytes);
    const auto part = [&](const Rows& wanted, const Staged<char>& staged, int64_t bytes) {
      return wanted.data == nullptr ? Rows() : RowsOf(staged, n, bytes);
    };
    const RowParts parts = {{out.keys.data == nullptr ? nullptr : keys.there, n, there_.space},
                            part(out.values, values, layout.value_bytes),
                            part(out.slots, slots, layout.slots_bytes),
                            part(out.meta, meta, layout.meta_bytes)};
    DYNEMB_RETURN_IF_ERROR(table_->Export(there_, cursor, parts, rows));
    const auto written = [&](auto piece, int64_t width) {
      piece.size = *rows * width;
      return piece;
    };
    DYNEMB_RETURN_IF_ERROR(
        staging_.Fetch(written(keys, out.keys.data == nullptr ? 0 : 1),
                       written(values, out.values.data == nullptr ? 0 : layout.value_bytes),
                       written(slots, out.slots.data == nullptr ? 0 : layout.slots_bytes),
                       written(meta, out.meta.data == nullptr ? 0 : layout.meta_bytes)));
    const auto copy = [&](const Rows& to, const Staged<char>& from, int64_t bytes) {
      for (int64_t i = 0; to.data != nullptr && bytes > 0 && i < *rows; ++i) {
        std::memcpy(to[i], from.host + i * bytes, bytes);
      }
    };
    if (out.keys.data != nullptr) std::memcpy(out.keys.data, keys.host, *rows * sizeof(Key));
    copy(out.values, values, layout.value_bytes);
    copy(out.slots, slots, layout.slots_bytes);
    copy(out.meta, meta, layout.meta_bytes);
    return {};
  }

  Status Import(const Context& context, const ConstRowParts& rows) override {
    Batch batch;
    batch.keys = rows.keys;
    DYNEMB_RETURN_IF_ERROR(CheckBatch(context, batch, {}));
    std::lock_guard<std::mutex> lock(mutex_);
    const RowLayout layout(table_->schema());
    DYNEMB_RETURN_IF_ERROR(CheckImport(layout, rows));
    Call call(batch);
    DYNEMB_RETURN_IF_ERROR(Begin(&call, RowBytes(layout), 3));
    const auto gather = [&](const ConstRows& part, int64_t bytes) -> ConstRows {
      if (bytes == 0) return {};
      return RowsOf(Gather(call, part, bytes), call.size(), bytes);
    };
    const ConstRowParts there = {call.batch(there_).keys, gather(rows.values, layout.value_bytes),
                                 gather(rows.slots, layout.slots_bytes),
                                 gather(rows.meta, layout.meta_bytes)};
    DYNEMB_RETURN_IF_ERROR(staging_.Send());
    const Status status = table_->Import(there_, there);
    DYNEMB_RETURN_IF_ERROR(Wait(there_));
    return status;
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
    std::lock_guard<std::mutex> lock(mutex_);
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
      CallReport whole(report);
      TaskReport reported(report);
      for (int64_t i = 0; i < size(); ++i) reported.Set(positions[i], outcomes.host[i]);
      whole.Add(reported);
    }

    Span<const Key> keys_of;
    std::vector<int64_t> positions;
    Staged<Key> keys;
    Staged<Outcome> outcomes;
  };

  // Room for a call with so many bytes per key in so many pieces; its keys are staged.
  Status Begin(Call* call, int64_t bytes_per_key, int pieces) const {
    const int64_t n = call->size();
    DYNEMB_RETURN_IF_ERROR(staging_.Begin(n * (8 + 1 + bytes_per_key), pieces + 2));
    call->keys = staging_.Take<Key>(n);
    for (int64_t i = 0; i < n; ++i) call->keys.host[i] = call->keys_of[call->positions[i]];
    call->outcomes = staging_.Take<Outcome>(n);
    // What a call that finds no memory to work in does not write.
    std::memset(call->outcomes.host, static_cast<int>(Outcome::kFull), n);
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
  static int64_t RowBytes(const RowLayout& layout) {
    return layout.value_bytes + layout.slots_bytes + layout.meta_bytes;
  }

  const std::shared_ptr<GpuTable> table_;
  const Context there_;
  mutable std::mutex mutex_;  // for the staging memory
  mutable Staging staging_;
};

}  // namespace

Status MakeHostAccess(std::shared_ptr<GpuTable> table, DeviceMemory* memory,
                      std::unique_ptr<Table>* access) {
  static InlineExecutor executor;  // of tables whose memory is the host's
  Context context;
  context.space = memory->space();
  context.executor = &executor;
  if (context.space == MemorySpace::kDevice) {
    cudaStream_t stream = nullptr;
    DYNEMB_RETURN_IF_ERROR(
        FromCuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "making a stream"));
    context.stream = stream;
  }
  *access = std::make_unique<HostAccess>(std::move(table), memory, context);
  return {};
}

}  // namespace dynemb

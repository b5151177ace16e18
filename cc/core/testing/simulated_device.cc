#include "cc/core/testing/simulated_device.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

namespace dynemb {
namespace {

[[noreturn]] void Die(const char* what) {
  std::perror(what);
  std::abort();
}

char* Map(int64_t bytes, int protection) {
  constexpr int kFlags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  void* memory = mmap(nullptr, bytes, protection, kFlags, -1, 0);
  if (memory == MAP_FAILED) Die("simulated device: mmap");
  return static_cast<char*>(memory);
}

}  // namespace

SimulatedDevice::SimulatedDevice(int64_t bytes)
    : bytes_(bytes),
      addresses_(Map(bytes, PROT_NONE)),
      contents_(Map(bytes, PROT_READ | PROT_WRITE)) {}

SimulatedDevice::~SimulatedDevice() {
  munmap(addresses_, bytes_);
  munmap(contents_, bytes_);
}

char* SimulatedDevice::Allocate(int64_t bytes) {
  constexpr int64_t kAlignment = 256;  // as cudaMalloc
  const int64_t rounded = (std::max<int64_t>(bytes, 1) + kAlignment - 1) / kAlignment * kAlignment;
  std::lock_guard<std::mutex> lock(mutex_);
  int64_t offset = 0;
  for (const auto& [start, size] : blocks_) {
    if (start - offset >= rounded) break;
    offset = start + size;
  }
  if (offset + rounded > bytes_) return nullptr;
  blocks_[offset] = rounded;
  return addresses_ + offset;
}

void SimulatedDevice::Free(char* data) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (blocks_.erase(data - addresses_) != 1) Die("simulated device: freed what was not allocated");
}

void SimulatedDevice::CopyIn(char* to_device, const char* from_host, int64_t bytes) {
  if (bytes > 0) std::memcpy(Content(to_device), from_host, bytes);
}

void SimulatedDevice::CopyOut(char* to_host, const char* from_device, int64_t bytes) {
  if (bytes > 0) std::memcpy(to_host, Content(from_device), bytes);
}

Context SimulatedDevice::context() {
  Context context;
  context.space = MemorySpace::kSimulatedDevice;
  context.stream = this;
  return context;
}

bool SimulatedDevice::Owns(const void* data, int64_t bytes) const {
  const char* begin = static_cast<const char*>(data);
  return begin >= addresses_ && begin <= addresses_ + bytes_ && bytes >= 0 &&
         bytes <= addresses_ + bytes_ - begin;
}

namespace {

class SimulatedDeviceTable final : public Table {
 public:
  SimulatedDeviceTable(SimulatedDevice* device, std::unique_ptr<Table> table)
      : device_(device), table_(std::move(table)) {
    host_.executor = &executor_;
  }

  MemorySpace space() const override { return MemorySpace::kSimulatedDevice; }
  const TableSchema& schema() const override { return table_->schema(); }
  int64_t size() const override { return table_->size(); }
  int64_t memory_bytes() const override { return table_->memory_bytes(); }

  Status Find(const Context& context, const Batch& batch, Rows values,
              const Report& report) const override {
    OnHost call(device_, context);
    const Batch host_batch = call.Of(batch);
    const Rows host_values = call.Of(values);
    const Report host_report = call.Of(report);
    return call.Run([&] { return table_->Find(host_, host_batch, host_values, host_report); });
  }

  Status ReadRows(const Context& context, const Batch& batch, const RowParts& rows,
                  const Report& report) const override {
    OnHost call(device_, context);
    const Batch host_batch = call.Of(batch);
    const RowParts host_rows = call.Of(rows);
    const Report host_report = call.Of(report);
    return call.Run([&] { return table_->ReadRows(host_, host_batch, host_rows, host_report); });
  }

  Status Apply(const Context& context, const Batch& batch, ConstRows gradients,
               const Update& update, const Stamp& stamp, const Report& report) override {
    OnHost call(device_, context);
    const Batch host_batch = call.Of(batch);
    const ConstRows host_gradients = call.Of(gradients);
    Update host_update = update;
    host_update.scales = call.Of(update.scales);
    const Report host_report = call.Of(report);
    return call.Run([&] {
      return table_->Apply(host_, host_batch, host_gradients, host_update, stamp, host_report);
    });
  }

  Status Upsert(const Context& context, const Batch& batch, ConstRows values, const Stamp& stamp,
                const Report& report) override {
    OnHost call(device_, context);
    const Batch host_batch = call.Of(batch);
    const ConstRows host_values = call.Of(values);
    const Report host_report = call.Of(report);
    return call.Run(
        [&] { return table_->Upsert(host_, host_batch, host_values, stamp, host_report); });
  }

  Status Accumulate(const Context& context, const Batch& batch, ConstRows values_or_deltas,
                    Span<const bool> exists, const Stamp& stamp, const Report& report) override {
    OnHost call(device_, context);
    const Batch host_batch = call.Of(batch);
    const ConstRows host_rows = call.Of(values_or_deltas);
    const Span<const bool> host_exists = call.Of(exists);
    const Report host_report = call.Of(report);
    return call.Run([&] {
      return table_->Accumulate(host_, host_batch, host_rows, host_exists, stamp, host_report);
    });
  }

  Status Erase(const Context& context, const Batch& batch, const Report& report) override {
    OnHost call(device_, context);
    const Batch host_batch = call.Of(batch);
    const Report host_report = call.Of(report);
    return call.Run([&] { return table_->Erase(host_, host_batch, host_report); });
  }

  Status InsertRows(const Context& context, const Batch& batch, const ConstRowParts& rows,
                    const RowParts& displaced, const Report& report) override {
    OnHost call(device_, context);
    const Batch host_batch = call.Of(batch);
    const ConstRowParts host_rows = call.Of(rows);
    const RowParts host_displaced = call.Of(displaced);
    const Report host_report = call.Of(report);
    return call.Run([&] {
      return table_->InsertRows(host_, host_batch, host_rows, host_displaced, host_report);
    });
  }

  Status Clear(const Context& context) override {
    OnHost call(device_, context);
    return call.Run([&] { return table_->Clear(host_); });
  }

  Status Reserve(const Context& context, int64_t rows) override {
    OnHost call(device_, context);
    return call.Run([&] { return table_->Reserve(host_, rows); });
  }

  Status PrepareMove(const Context& context, const TableSchema& schema,
                     std::unique_ptr<RowMove>* move) override {
    OnHost call(device_, context);
    return call.Run([&]() -> Status {
      std::unique_ptr<RowMove> host_move;
      DYNEMB_RETURN_IF_ERROR(table_->PrepareMove(host_, schema, &host_move));
      *move = std::make_unique<Move>(device_, std::move(host_move));
      return Status();
    });
  }

  // The cursor and the number of rows are the host's: they steer the caller's loop.
  Status Export(const Context& context, Cursor* cursor, const RowParts& out,
                int64_t* rows) const override {
    OnHost call(device_, context);
    const RowParts host_out = call.Of(out);
    return call.Run([&] { return table_->Export(host_, cursor, host_out, rows); });
  }

  Status BeginEpoch(const Context& context, int64_t epoch) override {
    OnHost call(device_, context);
    return call.Run([&] { return table_->BeginEpoch(host_, epoch); });
  }
  int64_t epoch() const override { return table_->epoch(); }

  // The keys are the host's, as the number of rows of an export.
  Status ChangedKeys(const Context& context, int64_t since, const TablePart& part,
                     std::vector<Key>* keys) const override {
    OnHost call(device_, context);
    return call.Run([&] { return table_->ChangedKeys(host_, since, part, keys); });
  }
  void TrimChanges(const std::vector<int64_t>& positions) override {
    table_->TrimChanges(positions);
  }

  Status Histogram(const Context& context, MetaField field, const RowOrder& prefix, int prefix_bits,
                   Span<int64_t> counts) const override {
    OnHost call(device_, context);
    const Span<int64_t> host_counts = call.Of(counts);
    return call.Run(
        [&] { return table_->Histogram(host_, field, prefix, prefix_bits, host_counts); });
  }

  Status EraseBelow(const Context& context, MetaField field, const RowOrder& bound,
                    int64_t* erased) override {
    OnHost call(device_, context);
    return call.Run([&] { return table_->EraseBelow(host_, field, bound, erased); });
  }

 private:
  // The arguments of one call, labelled for the host table; remembers the first that is not the
  // device's.
  class OnHost {
   public:
    OnHost(SimulatedDevice* device, const Context& context) : device_(device) {
      if (context.space != MemorySpace::kSimulatedDevice || context.stream != device) {
        Refuse("the context is not the simulated device's");
      }
    }

    template <typename T>
    Span<T> Of(const Span<T>& span) {
      if (span.data == nullptr && span.size == 0) return Span<T>();
      const int64_t bytes = span.size * static_cast<int64_t>(sizeof(T));
      return Span<T>(Of(span.data, bytes, span.space), span.size);
    }
    template <typename Byte>
    BasicRows<Byte> Of(const BasicRows<Byte>& rows) {
      if (rows.data == nullptr && rows.count == 0) return BasicRows<Byte>();
      if (rows.offsets != nullptr) {
        const Span<const int64_t> offsets(rows.offsets, rows.count, rows.space);
        return BasicRows<Byte>(Of(rows.data, 0, rows.space), Of(offsets));
      }
      const int64_t bytes = rows.count > 0 ? (rows.count - 1) * rows.stride_bytes : 0;
      return BasicRows<Byte>(Of(rows.data, bytes, rows.space), rows.count, rows.stride_bytes);
    }
    template <typename K, typename R>
    BasicRowParts<K, R> Of(const BasicRowParts<K, R>& parts) {
      return {Of(parts.keys), Of(parts.values), Of(parts.slots), Of(parts.meta)};
    }
    Batch Of(const Batch& batch) {
      return {Of(batch.keys), batch.select == nullptr ? nullptr : Of(*batch.select, &select_)};
    }
    Report Of(const Report& report) {
      return {Of(report.outcomes),
              report.misses == nullptr ? nullptr : Of(*report.misses, &misses_)};
    }

    // Runs f() unless something was refused.
    template <typename F>
    Status Run(F&& f) {
      return status_.ok() ? f() : status_;
    }

   private:
    Positions* Of(const Positions& positions, Positions* copy) {
      *copy = {Of(positions.at),
               Of(positions.count, sizeof(int64_t), MemorySpace::kSimulatedDevice)};
      return copy;
    }
    template <typename T>
    T* Of(T* data, int64_t bytes, MemorySpace space) {
      if (space != MemorySpace::kSimulatedDevice) Refuse("a span is of another memory space");
      if (data == nullptr) return nullptr;
      if (!device_->Owns(data, bytes)) Refuse("a span is not in its memory");
      return device_->Content(data);
    }
    void Refuse(const char* why) {
      if (status_.ok()) status_ = InvalidArgument("simulated device: ", why);
    }

    SimulatedDevice* const device_;
    Status status_;
    Positions select_;
    Positions misses_;
  };

  // The host table's move, into a table on the device.
  class Move : public RowMove {
   public:
    Move(SimulatedDevice* device, std::unique_ptr<RowMove> host_move)
        : device_(device), host_move_(std::move(host_move)) {
      host_.executor = &executor_;
    }
    std::unique_ptr<Table> Run(const Context& context) override {
      if (context.stream != device_) Die("simulated device: a move in a foreign context");
      return MakeSimulatedDeviceTable(device_, host_move_->Run(host_));
    }

   private:
    SimulatedDevice* const device_;
    const std::unique_ptr<RowMove> host_move_;
    InlineExecutor executor_;
    Context host_;
  };

  SimulatedDevice* const device_;
  const std::unique_ptr<Table> table_;
  InlineExecutor executor_;
  Context host_;
};

}  // namespace

std::unique_ptr<Table> MakeSimulatedDeviceTable(SimulatedDevice* device,
                                                std::unique_ptr<Table> host_table) {
  return std::make_unique<SimulatedDeviceTable>(device, std::move(host_table));
}

}  // namespace dynemb

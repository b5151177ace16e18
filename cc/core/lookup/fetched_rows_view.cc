#include "cc/core/lookup/fetched_rows_view.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "cc/core/base/copy_bytes.h"
#include "cc/core/table/call_checks.h"
#include "cc/core/table/call_report.h"
#include "cc/core/table/key_numbers.h"

namespace dynemb {
namespace {

constexpr int64_t kKeysPerTask = 1024;
constexpr int64_t kNanosecondsPerKey = 20;
constexpr int64_t kMostKeys = int64_t{1} << 31;

class FetchedRowsView final : public RowReader {
 public:
  FetchedRowsView(Span<const Key> keys, ConstRows values, TableSchema schema,
                  std::shared_ptr<const void> memory)
      : keys_(keys),
        values_(values),
        schema_(std::move(schema)),
        memory_(std::move(memory)),
        places_(keys.size) {
    for (int64_t i = 0; i < keys.size; ++i) {
      places_.Add(keys[i], keys_.data, static_cast<uint32_t>(i));
    }
  }

  MemorySpace space() const override { return MemorySpace::kHost; }
  const TableSchema& schema() const override { return schema_; }

  Status Find(const Context& context, const Batch& batch, Rows values,
              const Report& report) const override {
    DYNEMB_RETURN_IF_ERROR(CheckBatch(context, batch, report));
    DYNEMB_RETURN_IF_ERROR(CheckValues("values", batch, values, schema_.value_dtype, schema_.dim));
    const int64_t bytes = schema_.dim * SizeOf(schema_.value_dtype);
    return Read(context, batch, report, [&](int64_t i, uint32_t place) {
      if (place != kNone) {
        CopyBytes(values[i], values_[place], bytes);
      } else {
        std::memset(values[i], 0, static_cast<size_t>(bytes));
      }
    });
  }

  Status ReadRows(const Context& context, const Batch& batch, const RowParts& rows,
                  const Report& report) const override {
    const RowLayout layout(schema_);
    DYNEMB_RETURN_IF_ERROR(CheckBatch(context, batch, report));
    DYNEMB_RETURN_IF_ERROR(CheckRowsToRead(layout, batch, rows));
    return Read(context, batch, report, [&](int64_t i, uint32_t place) {
      if (place == kNone || rows.values.data == nullptr) return;
      CopyBytes(rows.values[i], values_[place], layout.value_bytes);
    });
  }

 private:
  static constexpr uint32_t kNone = KeyNumbers<uint32_t>::kNone;

  // Calls read(i, place or kNone) for the positions of a batch.
  template <typename F>
  Status Read(const Context& context, const Batch& batch, const Report& report,
              const F& read) const {
    const int64_t n = batch.size();
    const int64_t tasks = (n + kKeysPerTask - 1) / kKeysPerTask;
    CallReport whole(report);
    return context.executor->Run(tasks, kKeysPerTask * kNanosecondsPerKey, [&](int64_t task) {
      TaskReport reported(report);
      const int64_t end = std::min(n, (task + 1) * kKeysPerTask);
      for (int64_t j = task * kKeysPerTask; j < end; ++j) {
        const int64_t i = batch.position(j);
        const uint32_t place = places_.Find(batch.keys[i], keys_.data);
        read(i, place);
        reported.Set(i, place == kNone ? Outcome::kMissing : Outcome::kFound);
      }
      whole.Add(reported);
    });
  }

  const Span<const Key> keys_;
  const ConstRows values_;
  const TableSchema schema_;
  const std::shared_ptr<const void> memory_;
  KeyNumbers<uint32_t> places_;  // of keys among keys_
};

}  // namespace

Status MakeFetchedRowsView(Span<const Key> keys, ConstRows values, DType dtype, int64_t dim,
                           std::shared_ptr<const void> memory, std::unique_ptr<RowReader>* view) {
  TableSchema schema;
  schema.value_dtype = dtype;
  schema.dim = dim;
  DYNEMB_RETURN_IF_ERROR(schema.Validate());
  Batch batch;
  batch.keys = keys;
  DYNEMB_RETURN_IF_ERROR(CheckSpan("keys", keys));
  DYNEMB_RETURN_IF_ERROR(CheckValues("values", batch, values, dtype, dim));
  if (keys.size > kMostKeys) {
    return InvalidArgument("keys: got ", keys.size, ", want up to ", kMostKeys);
  }
  *view = std::make_unique<FetchedRowsView>(keys, values, std::move(schema), std::move(memory));
  return Status();
}

}  // namespace dynemb

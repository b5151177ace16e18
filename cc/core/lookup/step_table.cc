#include "cc/core/lookup/step_table.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "cc/core/base/copy_bytes.h"
#include "cc/core/base/hash.h"
#include "cc/core/table/call_checks.h"
#include "cc/core/table/call_report.h"

namespace dynemb {
namespace {

constexpr int64_t kKeysPerTask = 1024;
constexpr int64_t kNanosecondsPerKey = 20;
constexpr int64_t kMostKeys = int64_t{1} << 31;

Status ReadOnly() {
  return FailedPrecondition("the rows that a step has fetched can only be looked up");
}

class StepTable final : public Table {
 public:
  StepTable(Span<const Key> keys, ConstRows values, TableSchema schema,
            std::shared_ptr<const void> memory)
      : keys_(keys), values_(values), schema_(std::move(schema)), memory_(std::move(memory)) {
    // Open addressing over places in keys_, at most half full.
    size_t cells = 16;
    while (cells < 2 * static_cast<size_t>(keys.size)) cells *= 2;
    places_.resize(cells, kNone);
    for (int64_t i = 0; i < keys.size; ++i) {
      const size_t cell = CellOf(keys[i]);
      if (places_[cell] != kNone) continue;
      places_[cell] = static_cast<uint32_t>(i);
      ++size_;
    }
  }

  MemorySpace space() const override { return MemorySpace::kHost; }
  TableSchema schema() const override { return schema_; }

  Status Find(const Context& context, const Batch& batch, IfMissing if_missing, Rows values,
              const Report& report) const override {
    DYNEMB_RETURN_IF_ERROR(CheckBatch(context, batch, report));
    DYNEMB_RETURN_IF_ERROR(CheckValues("values", batch, values, schema_.value_dtype, schema_.dim));
    const int64_t bytes = schema_.dim * SizeOf(schema_.value_dtype);
    const int64_t n = batch.select == nullptr ? batch.keys.size : *batch.select->count;
    CallReport whole(report);
    context.executor->Run((n + kKeysPerTask - 1) / kKeysPerTask, kKeysPerTask * kNanosecondsPerKey,
                          [&](int64_t task) {
                            TaskReport reported(report);
                            const int64_t end = std::min(n, (task + 1) * kKeysPerTask);
                            for (int64_t j = task * kKeysPerTask; j < end; ++j) {
                              const int64_t i = batch.select == nullptr ? j : batch.select->at[j];
                              const uint32_t place = places_[CellOf(batch.keys[i])];
                              if (place != kNone) {
                                CopyBytes(values[i], values_[place], bytes);
                              } else if (if_missing == IfMissing::kInitialValue) {
                                std::memset(values[i], 0, bytes);
                              }
                              reported.Set(i, place == kNone ? Outcome::kMissing : Outcome::kFound);
                            }
                            whole.Add(reported);
                          });
    return Status();
  }

  Status Apply(const Context&, const Batch&, ConstRows, const Update&, const Stamp&,
               const Report&) override {
    return ReadOnly();
  }
  Status Upsert(const Context&, const Batch&, ConstRows, const Stamp&, const Report&) override {
    return ReadOnly();
  }
  Status Accumulate(const Context&, const Batch&, ConstRows, Span<const bool>, const Stamp&,
                    const Report&) override {
    return ReadOnly();
  }
  Status Erase(const Context&, const Batch&, const Report&) override { return ReadOnly(); }
  Status Clear(const Context&) override { return ReadOnly(); }
  Status Attach(const Context&, const RuleSpec&) override { return ReadOnly(); }
  Status Reserve(const Context&, int64_t) override { return ReadOnly(); }
  Status Export(const Context&, Cursor*, const RowParts&, int64_t*) const override {
    return ReadOnly();
  }
  Status Import(const Context&, const ConstRowParts&) override { return ReadOnly(); }
  Status BeginVersion(const Context&, int64_t) override { return ReadOnly(); }
  int64_t version() const override { return 0; }
  Status Erased(const Context&, int64_t, std::vector<Key>*) const override { return ReadOnly(); }
  Status Histogram(const Context&, MetaField, const RowOrder&, int, Span<int64_t>) const override {
    return ReadOnly();
  }
  Status EraseBelow(const Context&, MetaField, const RowOrder&, int64_t*) override {
    return ReadOnly();
  }

  int64_t size() const override { return size_; }
  int64_t memory_bytes() const override {
    return static_cast<int64_t>(places_.size() * sizeof(places_[0]));
  }

 private:
  static constexpr uint32_t kNone = 0xffffffffu;

  // The cell that has the key, or the empty one where it would be.
  size_t CellOf(Key key) const {
    const size_t mask = places_.size() - 1;
    size_t cell = Mix64(static_cast<uint64_t>(key)) & mask;
    while (places_[cell] != kNone && keys_[places_[cell]] != key) cell = (cell + 1) & mask;
    return cell;
  }

  const Span<const Key> keys_;
  const ConstRows values_;
  const TableSchema schema_;
  const std::shared_ptr<const void> memory_;
  std::vector<uint32_t> places_;
  int64_t size_ = 0;
};

}  // namespace

Status MakeStepTable(Span<const Key> keys, ConstRows values, DType dtype, int64_t dim,
                     std::shared_ptr<const void> memory, std::unique_ptr<Table>* table) {
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
  *table = std::make_unique<StepTable>(keys, values, std::move(schema), std::move(memory));
  return Status();
}

}  // namespace dynemb

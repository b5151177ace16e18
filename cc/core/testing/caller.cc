#include "cc/core/testing/caller.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "cc/core/table/schema_change.h"

namespace dynemb {
namespace {

// Runs call(report) and fetches the outcomes if they are wanted.
template <typename F>
Status WithReport(TestMemory* memory, size_t size, Outcomes* outcomes, const F& call) {
  if (outcomes == nullptr) return call(Report());
  Mirror<Outcome> there(memory, static_cast<int64_t>(size));
  Report report;
  report.outcomes = there.span();
  const Status status = call(report);
  there.Pull();
  outcomes->assign(there.host(), there.host() + size);
  return status;
}

// A stamp whose scores, in host memory, lie in a table's.
struct StampThere {
  StampThere(TestMemory* memory, const Stamp& of_host)
      : scores(memory, {of_host.scores.begin(), of_host.scores.end()}), stamp{of_host.now} {
    if (!of_host.scores.empty()) stamp.scores = scores.span();
  }
  const Mirror<int64_t> scores;
  Stamp stamp;
};

}  // namespace

Caller::Caller(Table* table, TestMemory* memory)
    : table_(table), memory_(memory), dim_(table->schema().dim) {}

Status Caller::Find(const Keys& keys, Floats* values, Outcomes* outcomes) const {
  const Mirror<Key> there(memory_, keys);
  values->resize(keys.size() * dim_);
  Mirror<float> out(memory_, *values);
  const Status status = WithReport(memory_, keys.size(), outcomes, [&](const Report& report) {
    return table_->Find(memory_->context(), {there.span()}, out.rows(there.size(), dim_), report);
  });
  out.Pull();
  values->assign(out.host(), out.host() + out.size());
  return status;
}

Status Caller::ReadRows(const Keys& keys, TableContent* rows, Outcomes* outcomes) const {
  const Mirror<Key> there(memory_, keys);
  PartBuffers buffers(memory_, table_->schema(), there.size());
  RowParts parts = buffers.parts();
  parts.keys = Span<Key>();
  Outcomes found;
  const Status status = WithReport(memory_, keys.size(), &found, [&](const Report& report) {
    return table_->ReadRows(memory_->context(), {there.span()}, parts, report);
  });
  rows->clear();
  buffers.Pull();
  for (size_t i = 0; status.ok() && i < keys.size(); ++i) {
    if (found[i] == Outcome::kFound) (*rows)[keys[i]] = buffers.row(static_cast<int64_t>(i));
  }
  if (outcomes != nullptr) *outcomes = std::move(found);
  return status;
}

Status Caller::Apply(const Keys& keys, const Floats& gradients, const OptimizerSpec& rule,
                     const std::vector<double>& hyper, const Stamp& stamp, Outcomes* outcomes,
                     IfMissing if_missing) const {
  const Mirror<Key> there(memory_, keys);
  const Mirror<float> in(memory_, gradients);
  const StampThere stamped(memory_, stamp);
  return WithReport(memory_, keys.size(), outcomes, [&](const Report& report) {
    return table_->Apply(memory_->context(), {there.span()}, in.rows(there.size(), dim_),
                         {&rule, hyper, {}, if_missing}, stamped.stamp, report);
  });
}

Status Caller::Upsert(const Keys& keys, const Floats& values, const Stamp& stamp,
                      Outcomes* outcomes) const {
  const Mirror<Key> there(memory_, keys);
  const Mirror<float> in(memory_, values);
  const StampThere stamped(memory_, stamp);
  return WithReport(memory_, keys.size(), outcomes, [&](const Report& report) {
    return table_->Upsert(memory_->context(), {there.span()}, in.rows(there.size(), dim_),
                          stamped.stamp, report);
  });
}

Status Caller::Accumulate(const Keys& keys, const Floats& deltas, const std::vector<bool>& exists,
                          const Stamp& stamp, Outcomes* outcomes) const {
  const Mirror<Key> there(memory_, keys);
  const Mirror<float> in(memory_, deltas);
  const Mirror<bool> flags(memory_, exists);
  const StampThere stamped(memory_, stamp);
  return WithReport(memory_, keys.size(), outcomes, [&](const Report& report) {
    return table_->Accumulate(memory_->context(), {there.span()}, in.rows(there.size(), dim_),
                              flags.span(), stamped.stamp, report);
  });
}

Status Caller::Erase(const Keys& keys, Outcomes* outcomes) const {
  const Mirror<Key> there(memory_, keys);
  return WithReport(memory_, keys.size(), outcomes, [&](const Report& report) {
    return table_->Erase(memory_->context(), {there.span()}, report);
  });
}

Status Caller::InsertRows(const TableContent& rows, TableContent* displaced,
                          Outcomes* outcomes) const {
  PartBuffers in(memory_, table_->schema(), static_cast<int64_t>(rows.size()));
  PartBuffers out(memory_, table_->schema(), static_cast<int64_t>(rows.size()));
  int64_t at = 0;
  for (const auto& [key, row] : rows) in.Set(at++, key, row);
  in.Push();
  const RowParts given = in.parts();
  Outcomes found;
  const Status status = WithReport(memory_, rows.size(), &found, [&](const Report& report) {
    return table_->InsertRows(memory_->context(), {given.keys},
                              {{}, given.values, given.slots, given.meta},
                              displaced == nullptr ? RowParts() : out.parts(), report);
  });
  if (displaced != nullptr) {
    displaced->clear();
    out.Pull();
    for (int64_t i = 0; status.ok() && i < at; ++i) {
      if (found[i] == Outcome::kFound) (*displaced)[out.key(i)] = out.row(i);
    }
  }
  if (outcomes != nullptr) *outcomes = std::move(found);
  return status;
}

Status Caller::Reserve(int64_t rows) const { return table_->Reserve(memory_->context(), rows); }

Status Caller::Clear() const { return table_->Clear(memory_->context()); }

Status Caller::EraseBelow(MetaField field, const RowOrder& bound, int64_t* erased) const {
  return table_->EraseBelow(memory_->context(), field, bound, erased);
}

TableContent Caller::Export(int64_t chunk) const { return ExportAll(*table_, memory_, chunk); }

Status Caller::BeginEpoch(int64_t epoch) const {
  return table_->BeginEpoch(memory_->context(), epoch);
}

Status Caller::ChangedKeys(int64_t since, Keys* keys, const TablePart& part) const {
  return table_->ChangedKeys(memory_->context(), since, part, keys);
}

Status Tested::Move(const TableSchema& schema) {
  std::unique_ptr<RowMove> move;
  DYNEMB_RETURN_IF_ERROR(table->PrepareMove(call.memory()->context(), schema, &move));
  table = move->Run(call.memory()->context());
  call = Caller(table.get(), call.memory());
  return Status();
}

Status Tested::SetOptimizer(const OptimizerSpec& optimizer) {
  TableSchema schema = table->schema();
  DYNEMB_RETURN_IF_ERROR(dynemb::SetOptimizer(optimizer, &schema));
  return Move(schema);
}

}  // namespace dynemb

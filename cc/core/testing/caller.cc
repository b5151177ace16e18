#include "cc/core/testing/caller.h"

#include <algorithm>
#include <memory>

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

}  // namespace

Caller::Caller(Table* table, TestMemory* memory)
    : table_(table), memory_(memory), dim_(table->schema().dim) {}

Status Caller::Find(const Keys& keys, Floats* values, Outcomes* outcomes,
                    IfMissing if_missing) const {
  const Mirror<Key> there(memory_, keys);
  values->resize(keys.size() * dim_);
  Mirror<float> out(memory_, *values);
  const Status status = WithReport(memory_, keys.size(), outcomes, [&](const Report& report) {
    return table_->Find(memory_->context(), {there.span()}, if_missing,
                        out.rows(there.size(), dim_), report);
  });
  out.Pull();
  values->assign(out.host(), out.host() + out.size());
  return status;
}

Status Caller::Apply(const Keys& keys, const Floats& gradients, const RuleSpec& rule,
                     const std::vector<double>& hyper, const Stamp& stamp,
                     Outcomes* outcomes) const {
  const Mirror<Key> there(memory_, keys);
  const Mirror<float> in(memory_, gradients);
  return WithReport(memory_, keys.size(), outcomes, [&](const Report& report) {
    return table_->Apply(memory_->context(), {there.span()}, in.rows(there.size(), dim_),
                         {&rule, hyper, {}}, stamp, report);
  });
}

Status Caller::Upsert(const Keys& keys, const Floats& values, const Stamp& stamp,
                      Outcomes* outcomes) const {
  const Mirror<Key> there(memory_, keys);
  const Mirror<float> in(memory_, values);
  return WithReport(memory_, keys.size(), outcomes, [&](const Report& report) {
    return table_->Upsert(memory_->context(), {there.span()}, in.rows(there.size(), dim_), stamp,
                          report);
  });
}

Status Caller::Accumulate(const Keys& keys, const Floats& deltas, const std::vector<bool>& exists,
                          const Stamp& stamp, Outcomes* outcomes) const {
  const Mirror<Key> there(memory_, keys);
  const Mirror<float> in(memory_, deltas);
  const Mirror<bool> flags(memory_, exists);
  return WithReport(memory_, keys.size(), outcomes, [&](const Report& report) {
    return table_->Accumulate(memory_->context(), {there.span()}, in.rows(there.size(), dim_),
                              flags.span(), stamp, report);
  });
}

Status Caller::Erase(const Keys& keys, Outcomes* outcomes) const {
  const Mirror<Key> there(memory_, keys);
  return WithReport(memory_, keys.size(), outcomes, [&](const Report& report) {
    return table_->Erase(memory_->context(), {there.span()}, report);
  });
}

Status Caller::Import(const TableContent& rows) const {
  const RowLayout layout(table_->schema());
  Keys keys;
  std::vector<char> values, slots, meta;
  for (const auto& [key, row] : rows) {
    keys.push_back(key);
    values.insert(values.end(), row.value.begin(), row.value.end());
    slots.insert(slots.end(), row.slots.begin(), row.slots.end());
    meta.insert(meta.end(), row.meta.begin(), row.meta.end());
  }
  const int64_t n = static_cast<int64_t>(keys.size());
  const Mirror<Key> keys_there(memory_, keys);
  const Mirror<char> values_there(memory_, values), slots_there(memory_, slots),
      meta_there(memory_, meta);
  return table_->Import(
      memory_->context(),
      {keys_there.span(), values_there.rows(n, layout.value_bytes),
       slots_there.rows(n, layout.slots_bytes), meta_there.rows(n, layout.meta_bytes)});
}

Status Caller::Attach(const RuleSpec& rule) const {
  return table_->Attach(memory_->context(), rule);
}

Status Caller::Reserve(int64_t rows) const { return table_->Reserve(memory_->context(), rows); }

Status Caller::Clear() const { return table_->Clear(memory_->context()); }

Status Caller::EraseBelow(MetaField field, const RowOrder& bound, int64_t* erased) const {
  return table_->EraseBelow(memory_->context(), field, bound, erased);
}

TableContent Caller::Export(int64_t chunk) const { return ExportAll(*table_, memory_, chunk); }

}  // namespace dynemb

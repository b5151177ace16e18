#include "cc/core/table/shard_set.h"

#include <algorithm>
#include <cstddef>
#include <functional>
#include <utility>

#include "cc/core/table/schema_change.h"

namespace dynemb {

ShardSet::Lease ShardSet::Acquire(CallLength length) const {
  Lease lease;
  if (length == CallLength::kLong) {
    lease.long_lock_ = std::shared_lock<FairSharedMutex>(long_calls_mutex_);
  }
  lease.lock_ = std::shared_lock<FairSharedMutex>(schema_mutex_);
  lease.contents_ = copy();
  return lease;
}

std::vector<ShardSet::Lease> ShardSet::Acquire(const std::vector<const ShardSet*>& sets,
                                               CallLength length) {
  std::vector<size_t> order(sets.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::sort(order.begin(), order.end(),
            [&](size_t a, size_t b) { return std::less<const ShardSet*>()(sets[a], sets[b]); });
  std::vector<Lease> leases(sets.size());
  for (size_t k = 0; k < order.size(); ++k) {
    const ShardSet* const set = sets[order[k]];
    if (k > 0 && sets[order[k - 1]] == set) {
      leases[order[k]].contents_ = leases[order[k - 1]].contents_;  // which holds the lock
    } else {
      leases[order[k]] = set->Acquire(length);
    }
  }
  return leases;
}

Status ShardSet::ChangeSchema(const Context& context,
                              const std::function<Status(TableSchema* schema)>& change) {
  // While this one is waited for, short calls go on.
  std::unique_lock<FairSharedMutex> no_long_calls(long_calls_mutex_);
  std::unique_lock<FairSharedMutex> alone(schema_mutex_);
  Contents contents = copy();
  TableSchema schema = contents.schema();
  DYNEMB_RETURN_IF_ERROR(change(&schema));
  DYNEMB_RETURN_IF_ERROR(MoveRows(context, schema, &contents.shards));
  // Nobody replaces contents meanwhile: who does holds a lease.
  std::lock_guard<std::mutex> lock(mutex_);
  contents_ = std::move(contents);
  return Status();
}

Status ShardSet::SetOptimizer(const Context& context, const OptimizerSpec& optimizer) {
  return ChangeSchema(context,
                      [&](TableSchema* schema) { return dynemb::SetOptimizer(optimizer, schema); });
}

Status ShardSet::ResetOptimizer(const Context& context) {
  return ChangeSchema(context, [](TableSchema* schema) {
    schema->rule = OptimizerSpec();
    return Status();
  });
}

void ShardSet::Replace(Contents contents) {
  std::lock_guard<std::mutex> lock(mutex_);
  std::swap(contents_, contents);  // the old ones go when the lock has been given back
}

void ShardSet::Swap(ShardSet* one, ShardSet* other) {
  if (one == other) return;
  std::scoped_lock lock(one->mutex_, other->mutex_);
  std::swap(one->contents_, other->contents_);
}

}  // namespace dynemb

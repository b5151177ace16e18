// TableOptions: how a table behaves in this process. No part of its schema, of its rows or of what
// is saved: each restore may choose others.
#ifndef TF_DYNEMB_CC_CORE_TABLE_TABLE_OPTIONS_H_
#define TF_DYNEMB_CC_CORE_TABLE_TABLE_OPTIONS_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "cc/core/base/status.h"
#include "cc/core/policy/eviction.h"
#include "cc/core/table/row_budget.h"

namespace dynemb {

// What a full table does with the keys that it has no room for, and no eviction makes room.
enum class OnFull : uint8_t {
  kError,    // the call is kResourceExhausted, and has changed nothing
  kDecline,  // the first keys of the batch are inserted, and the outcome of the others is kDeclined
};

class EvictedRows;
class PolicyClock;

struct TableOptions {
  // Whether changes are tracked from the start, in epoch 1; see ChangeTracker.
  bool track_changes = false;
  // How many rows the table may have; negative: any number.
  int64_t max_rows = -1;
  // How many bytes its rows and index may take, which is less than it may take for all: the log of
  // tracked changes and what a call needs come on top. With storage: that its files may take.
  // Negative: any number.
  int64_t max_bytes = -1;
  OnFull on_full = OnFull::kError;
  EvictionPolicy eviction;
  // Which rows the table removes by the policy, which says in any case how calls stamp rows, and
  // which have expired. Others than all: the table is a tier of another one, which removes those.
  enum class Removes : uint8_t {
    kAll,      // that leave to make room, or have expired
    kExpired,  // that have expired
    kNone,     // those that have expired stay until a call names them
  } removes = Removes::kAll;
  // Whether rows that calls write are marked as dirty (CacheTable). Changes are not tracked then.
  bool marks_dirty = false;
  // The clock of the policy; null: the table has one of its own.
  std::shared_ptr<PolicyClock> clock;
  // How many rows that have left by the policy are kept, with their values, until they are taken.
  int64_t keep_evicted = 0;
  // Where they go; null: nowhere. Of all shards of a table: OptionsOfShards sets it.
  std::shared_ptr<EvictedRows> evicted;
  // What Find gives for each number of a key without a row; none: its initial value.
  std::optional<double> missing_value;
  // That max_rows is a share of; null: the table has one of its own. OptionsOfShards sets it.
  std::shared_ptr<RowBudget> budget;

  // Whether each shard of a bounded table has a share of its own, as those with storage have.
  bool have_shares = false;

  bool is_bounded() const { return max_rows >= 0 || max_bytes >= 0; }
  // Whether the shards of a bounded table are full together.
  bool have_one_budget() const { return max_bytes < 0 && !eviction.evicts() && !have_shares; }

  Status Validate() const {
    if (!is_bounded() && eviction.evicts() && !eviction.expires()) {
      return InvalidArgument(
          "eviction: got a policy without max_rows or max_bytes, so that no row would leave");
    }
    if (keep_evicted > 0 && !eviction.evicts() && !eviction.expires()) {
      return InvalidArgument("keep_evicted: got ", keep_evicted,
                             " without an eviction policy, so that no row would leave");
    }
    return Status();
  }
};

// The options of the shards of a table that has these together. Shards that evict, are bounded by
// max_bytes or have_shares, have equal shares each; others have one budget, so that the table is
// full when all of them together have max_rows, however these are distributed.
std::vector<TableOptions> OptionsOfShards(const TableOptions& options, int shards);

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_CORE_TABLE_TABLE_OPTIONS_H_

// ShardSet: the shards of one table, as the calls of a process share them.
//
// A call works on what it acquires: the shards do not change their schema while it holds its lease.
// A change of schema (an optimizer's slots, a further meta field) waits for the calls under way,
// keeps new ones out, moves the rows, and publishes all shards at once, or none. It first waits for
// the long calls, such as a save, while short ones, such as lookups, still come and go. That is the
// only time that calls wait here; a restore puts other shards in place, and calls under way finish
// on those that they acquired.
#ifndef TF_DYNEMB_CC_CORE_TABLE_SHARD_SET_H_
#define TF_DYNEMB_CC_CORE_TABLE_SHARD_SET_H_

#include <functional>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <vector>

#include "cc/core/base/context.h"
#include "cc/core/base/fair_shared_mutex.h"
#include "cc/core/base/status.h"
#include "cc/core/table/key_strings.h"
#include "cc/core/table/table.h"

namespace dynemb {

using Shards = std::vector<std::shared_ptr<Table>>;

// kLong: a call that goes through a table, or reads or writes files.
enum class CallLength { kShort, kLong };

class ShardSet {
 public:
  struct Contents {
    Shards shards;                        // all of one schema
    std::shared_ptr<KeyStrings> strings;  // null if the table keeps none
    const TableSchema& schema() const { return shards[0]->schema(); }
  };

  // What a call works on. Movable; the default has nothing.
  class Lease {
   public:
    Lease() = default;
    const Contents& contents() const { return contents_; }
    const Contents* operator->() const { return &contents_; }

   private:
    friend class ShardSet;
    std::shared_lock<FairSharedMutex> long_lock_;  // of a long call
    std::shared_lock<FairSharedMutex> lock_;
    Contents contents_;
  };

  explicit ShardSet(Contents contents) : contents_(std::move(contents)) {}

  // A thread must not acquire the same set twice: a change of schema might come between and wait
  // for the first lease. For the same reason a call that needs several sets acquires them by
  // Acquire of all, which does it in an order of their own; a set may be named more than once
  // there.
  Lease Acquire(CallLength length = CallLength::kShort) const;
  static std::vector<Lease> Acquire(const std::vector<const ShardSet*>& sets,
                                    CallLength length = CallLength::kShort);

  // Makes `change` of the schema and moves the rows, if it is a change. Errors: those of `change`;
  // no memory; the set is as it was then. The caller must have no lease of it.
  Status ChangeSchema(const Context& context,
                      const std::function<Status(TableSchema* schema)>& change);
  // The schema with this optimizer. kFailedPrecondition: it has another one.
  Status SetOptimizer(const Context& context, const OptimizerSpec& optimizer);
  // The schema without an optimizer: its slots are gone, and another one may come.
  Status ResetOptimizer(const Context& context);

  // Its shards now, which a change of schema may replace at any moment.
  Shards shards() const { return copy().shards; }

  // Whether these are its shards now.
  bool Has(const Shards& shards) const {
    std::lock_guard<std::mutex> lock(mutex_);
    return contents_.shards == shards;
  }

  // Puts other contents in place. The caller may hold a lease.
  void Replace(Contents contents);
  // Exchanges the contents of two sets.
  static void Swap(ShardSet* one, ShardSet* other);

 private:
  Contents copy() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return contents_;
  }

  // Shared by leases, the first by those of long calls alone; taken alone by a change of schema, in
  // this order.
  mutable FairSharedMutex long_calls_mutex_, schema_mutex_;
  mutable std::mutex mutex_;  // of contents_; after schema_mutex_
  Contents contents_;
};

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_CORE_TABLE_SHARD_SET_H_

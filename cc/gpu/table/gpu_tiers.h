// GpuTiers: the rows of a table that are in a GPU's memory and in the host's, and how they move
// between the two. See gpu_tiered_table.h for what is where. gpu_tiers_evict.cu has rows leave by
// the eviction policy.
#ifndef TF_DYNEMB_CC_GPU_TABLE_GPU_TIERS_H_
#define TF_DYNEMB_CC_GPU_TABLE_GPU_TIERS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "cc/core/base/context.h"
#include "cc/core/base/span.h"
#include "cc/core/base/status.h"
#include "cc/core/table/evicted_rows.h"
#include "cc/core/table/eviction_candidates.h"
#include "cc/core/table/row_layout.h"
#include "cc/core/table/table.h"
#include "cc/core/table/table_options.h"
#include "cc/gpu/table/gpu_table.h"
#include "cc/gpu/table/gpu_tiered_table.h"
#include "cc/gpu/table/host_access.h"
#include "cc/gpu/table/row_mover.h"
#include "cc/gpu/table/scratch.h"

namespace dynemb {

// Not thread-safe: the table makes one call at a time, on the table's device.
class GpuTiers {
 public:
  // `options`: of the table above, but for its bound, which is the budget.
  static Status Make(const TableSchema& schema, const TableOptions& options,
                     const GpuBudget& budget, DeviceMemory* memory, std::unique_ptr<Table> below,
                     std::unique_ptr<GpuTiers>* tiers);

  GpuTable* above() const { return above_.get(); }
  Table* below() const { return below_.get(); }
  const RowLayout& layout() const { return layout_; }

  // The batch's rows are above, and if it `inserts` there is room for its other keys; they are the
  // ones that have been used last. *fits: false, if there is not so much room above.
  // *within_limit, if it is asked for: false, and no row has moved, if so many other keys may be
  // more than there is room for in both.
  Status MakeResident(const Context& context, const Batch& batch, bool inserts, bool* fits,
                      bool* within_limit = nullptr);
  // Calls read(batch, report), of the table above. *found: whether that was all, for no key was
  // missing there, or nothing is below; otherwise the rows are yet to be made resident, and read.
  Status ReadAbove(const Context& context, const Batch& batch, const Report& report,
                   const std::function<Status(const Batch&, const Report&)>& read, bool* found);
  // The same of distinct keys, where no row is above.
  Status BringUp(Span<const Key> keys);
  // Has all rows below.
  Status AllDown();
  // The keys of the positions that take part, and these positions, to the host's memory. Positions
  // that lie outside of the batch are left out. Waits for the stream.
  static Status ToHost(const Context& context, const Batch& batch, std::vector<Key>* keys,
                       std::vector<int64_t>* positions);
  // The outcomes of a report, likewise.
  static Status OutcomesToHost(const Context& context, const Report& report,
                               std::vector<Outcome>* outcomes);

  // Keys of all rows with hashes in the 64th of them that `part` is, in no order.
  Status KeysOf(int64_t part, std::vector<Key>* keys) const;
  // Whole rows of distinct keys, of those that have one, without moving any: `keys` become those of
  // the rows.
  struct HostRows {
    std::vector<char> values, slots, meta;
  };
  Status ReadRows(std::vector<Key>* keys, HostRows* rows);
  // Removes all rows below an order, and adds their keys to `gone` if that is not null.
  Status EraseBelow(MetaField field, const RowOrder& bound, std::vector<Key>* gone,
                    int64_t* erased);
  Status Clear(const Context& context);

  // Limits, of both tiers together.
  const TableOptions& options() const { return options_; }
  bool evicts() const { return options_.eviction.evicts(); }
  bool expires() const { return options_.eviction.expires(); }
  int64_t max_rows() const { return options_.max_rows < 0 ? INT64_MAX : options_.max_rows; }
  // How many more rows there may be; a large number if any number may.
  int64_t room() const { return options_.max_rows < 0 ? INT64_MAX : max_rows() - size(); }
  // Which of these distinct keys have a row. Those that have expired leave.
  Status FindRows(Span<const Key> keys, std::vector<bool>* found);
  // Removes so many rows, or all: the lowest of some, as Evictor has them leave. Up to
  // Evictor::kUnitRows rows these are the lowest of all; otherwise of so many of those above and
  // below, where a hand each comes by, as the tiers have of the table.
  Status Evict(int64_t wanted);
  // Removes all rows that have expired.
  Status RemoveExpired();
  // After a call that has written so many keys: the table above has removed some of its own, which
  // are done likewise below.
  Status SweepExpiredBelow(int64_t written, bool inserts);
  void CountDeclined(int64_t keys) { own_.declined -= keys; }
  // Keys whose rows have left by the policy, since the last time. False: these are not all of them.
  // std::bad_alloc.
  bool TakeGone(std::vector<Key>* gone);

  // The tiers with another schema, as far as they can be made before; all rows must be below.
  struct Next {
    std::unique_ptr<GpuTiers> tiers;  // without a table below
    std::unique_ptr<RowMove> below;
  };
  Status PrepareSchema(const TableSchema& schema, Next* next);
  // Cannot fail. These have no rows any more.
  std::unique_ptr<GpuTiers> TakeNext(Next next);

  int64_t size() const { return above_->size() + below_->size(); }
  int64_t memory_bytes() const {
    return above_->memory_bytes() + below_->memory_bytes() + last_use_.bytes();
  }
  // What calls of the table have counted, without those of the tiers.
  TableCounters counters() const;
  int64_t misses() const { return misses_; }
  int64_t rows_left() const { return rows_left_; }

  // The context of calls of `below`.
  static Context Below();

 private:
  GpuTiers(const TableSchema& schema, const TableOptions& options, const GpuBudget& budget,
           DeviceMemory* memory)
      : schema_(schema),
        layout_(schema),
        options_(options),
        budget_(budget),
        memory_(memory),
        scratch_(memory) {}
  Status Init();
  void SetBelow(std::unique_ptr<Table> below);
  Context OwnContext() const;

  // Notes that the keys of a batch are used now.
  Status Use(const Context& context, const Batch& batch);
  // How many of the batch's keys there are, and how many of them `misses` has; waits for the
  // stream. They are left out of what calls count.
  Status ReadMisses(const Context& context, const Batch& batch, const Positions& misses,
                    int64_t* missing);
  // The keys that have no row above, each once. Waits for the stream.
  Status MissingAbove(const Context& context, const Batch& batch, std::vector<Key>* keys);
  Status KeysBelow(const std::vector<Key>& keys, std::vector<Key>* below) const;
  // Room above for so many rows, for which others leave, but for those that are used now.
  Status MakeRoom(int64_t rows, bool* made);
  Status Leave(int64_t least, int64_t most, int64_t* left);
  Status LongestUnused(int64_t most, std::vector<Key>* keys, int64_t* passed);
  // Removes what has expired of distinct keys of which no row is to be seen.
  Status RemoveUnseen(Span<const Key> keys);
  // Removes the rows of distinct keys, which are evicted.
  Status RemoveRows(const std::vector<Key>& keys);
  // Some of a table's rows, where a hand goes on: those that have expired, and the others.
  Status Gather(const Table& table, int64_t wanted, Cursor* hand, std::set<Key>* expired,
                std::vector<EvictionCandidate>* candidates) const;
  // Gives the rows that a tier has removed, for they had expired, to who keeps them.
  void KeepExpired(EvictedRows* of_tier);
  // Calls move(), and leaves what it counts above out of counters(), but for rows that expired.
  Status Uncounted(const std::function<Status()>& move);
  RowParts PartsOf(HostRows* rows, int64_t count) const;
  // Calls visit(keys of some rows, their meta).
  template <typename Visit>
  static Status ForEachRow(const Table& table, const RowLayout& layout, const Visit& visit);

  const TableSchema schema_;
  const RowLayout layout_;
  const TableOptions options_;
  const GpuBudget budget_;
  // Rows that have expired above, which the table above removes; those below go to its evicted().
  std::shared_ptr<EvictedRows> expired_above_;
  DeviceMemory* const memory_;
  std::shared_ptr<GpuTable> above_;
  std::unique_ptr<HostAccess> above_of_host_;  // the same table, for the tiers' own calls
  std::unique_ptr<Table> below_;
  std::optional<RowMover> mover_;
  Scratch scratch_;
  // The number of the last call that has named a key of these hashes: one number for each top part
  // of them, of which there are more than rows above.
  DeviceBuffer last_use_;
  int use_shift_ = 0;
  uint32_t now_ = 0;
  Cursor hand_;                             // where Leave goes on
  Cursor evicting_above_, evicting_below_;  // where Evict does
  int64_t looks_below_ = 0;                 // that SweepExpiredBelow owes
  std::vector<Key> gone_;
  bool knows_gone_ = true;
  TableCounters own_;
  TableCounters counted_below_;  // when `below_` came here
  int64_t misses_ = 0, rows_left_ = 0;
};

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_GPU_TABLE_GPU_TIERS_H_

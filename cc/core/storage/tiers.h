// Tiers: the rows of a tiered table above and below, and how they move between the two. See
// tiered_table.h for what is where. tiers_evict.cc has rows leave by the eviction policy.
#ifndef TF_DYNEMB_CC_CORE_STORAGE_TIERS_H_
#define TF_DYNEMB_CC_CORE_STORAGE_TIERS_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "cc/core/base/fair_shared_mutex.h"
#include "cc/core/base/status.h"
#include "cc/core/storage/disk_rows.h"
#include "cc/core/storage/tiered_table.h"
#include "cc/core/table/batch_order.h"
#include "cc/core/table/distinct_keys.h"
#include "cc/core/table/evicted_rows.h"
#include "cc/core/table/eviction_candidates.h"
#include "cc/core/table/host_table.h"
#include "cc/core/table/row_scores.h"
#include "cc/core/table/table.h"
#include "cc/core/table/use_marks.h"

namespace dynemb {

// Not thread-safe but for what is said of a call: the table holds its lock alone, or shared where
// "shared" is said.
class Tiers {
 public:
  // The table's lock, also of the table that a change of schema makes.
  mutable FairSharedMutex mutex;

  // Rows are so many bytes; all parts of row i begin at rows + i * row_bytes.
  static Status Make(const TableSchema& schema, const TableOptions& options,
                     const StorageOptions& storage, std::unique_ptr<Tiers>* tiers);

  Table* above() const { return above_.get(); }
  DiskRows* below() const { return below_.get(); }
  const RowLayout& layout() const { return layout_; }
  // How many rows may be above.
  int64_t max_rows_above() const { return above_->max_rows(); }
  // How many rows there may be, and how many more: large numbers where any number may.
  int64_t max_rows() const {
    const int64_t most = options_.max_rows < 0 ? INT64_MAX : options_.max_rows;
    return std::min(most, RowsWithinDisk(layout_));
  }
  int64_t room() const {
    const int64_t most = max_rows();
    return most == INT64_MAX ? most : most - (rows_above() + below_->size() - copies_);
  }
  // How many rows of a layout there may be for TableOptions::max_bytes, which is of all files.
  // These have up to 1.6 times the bytes of all rows, and again so much of the last flush, and two
  // indexes, of 14 bytes a row.
  int64_t RowsWithinDisk(const RowLayout& layout) const {
    if (options_.max_bytes < 0) return INT64_MAX;
    return options_.max_bytes / (4 * (RowLog::kRecordHeaderBytes + layout.row_bytes + 8));
  }
  // What max_rows() is of, for an error.
  const char* limit() const {
    return max_rows() == options_.max_rows ? "max_rows" : "Disk(max_bytes)";
  }
  // Rows that are above and have a copy below.
  int64_t copies() const { return copies_; }
  void AddCopies(int64_t copies) { copies_ += copies; }
  int64_t size() const { return above_->size() + below_->size() - copies_; }

  // What whole rows that lie one after the other are for calls of a table.
  RowParts PartsOf(char* rows, int64_t count) const;

  // Shared: the keys of a batch that have a row below, each once. Notes that all are used, as far
  // as there are rows below.
  Status KeysBelow(const Context& context, const Batch& batch, std::vector<Key>* keys);

  // Room for one more call of so many keys, which will insert no more, above and in all; shared.
  // False: there may be none. `Give` when the call has returned.
  bool TakeRoom(int64_t keys);
  void GiveRoom(int64_t keys) { calls_.fetch_sub(keys, std::memory_order_acq_rel); }

  // Makes room above for `need` rows at least and, if some must leave, for the next calls of so
  // many keys. Rows of keys of which `stays` is true do not leave.
  using Stays = std::function<bool(Key)>;
  Status MakeRoom(int64_t need, int64_t next, const Stays& stays);
  // What is done between calls. Whether there is any of it; shared.
  bool HasUpkeep() const;
  // Has some rows leave, for the next calls. False: they have room.
  bool MakeRoomAhead();

  // Brings rows that were read at these locations, of files of these numbers, up as copies, if they
  // are still there and not above. Moves those that are together.
  Status BringUp(const std::vector<Location>& locations, const std::vector<uint64_t>& numbers,
                 std::vector<Key>* keys, std::vector<char>* rows);
  // Has the rows of these distinct keys, as far as there are any, above and not below; and room for
  // the others. `next`: as of MakeRoom.
  Status MakeResident(Span<const Key> keys, int64_t next, const Stays& stays);
  // Has all rows below.
  Status AllDown();

  // What leaves by the eviction policy.
  //
  // Removes so many rows, or all: the lowest of some, as Evictor has them leave. Up to
  // Evictor::kUnitRows rows these are the lowest of all; otherwise of so many of those above and
  // below, where a hand each comes by, as the tiers have of the table.
  Status Evict(int64_t wanted);
  // Removes the rows of these distinct keys that have expired, wherever they are. `above`: as of
  // FindAbove.
  Status RemoveExpired(Span<const Key> keys, std::vector<Outcome>* above);
  // Looks at about so many rows and removes those that have expired.
  Status SweepExpired(int64_t rows);
  // Rows that calls have inserted, for ever.
  int64_t inserted() const { return above_->counters().inserted - own_writes_.inserted; }
  // Keys whose rows have left by the policy, since the last time, by calls of this.
  std::vector<Key> TakeGone() { return std::exchange(gone_, {}); }
  // Gives those that the table above has removed, when a call named them, to who keeps them; and
  // adds their keys, if they are wanted. Shared.
  Status KeepExpiredAbove(std::set<Key>* keys = nullptr);
  void CountDeclined(int64_t positions) { own_writes_.declined -= positions; }

  // Of a flush; see TieredTable.
  Status BeginFlush();
  Status FlushPart(int part, IndexEntries* entries, FlushedShard* flushed);
  void EndFlush(const std::set<uint64_t>& unsynced);
  Status Clear(const Context& context);

  // Calls keys(some of them) for the keys of the rows that are above, of a part of the table. They
  // may go meanwhile, and none may come.
  using KeysFunction = std::function<Status(const std::vector<Key>& keys)>;
  Status ForEachAbove(const TablePart& part, bool with_expired, const KeysFunction& keys) const;
  // Whether these keys have rows above.
  Status FindAbove(Span<const Key> keys, std::vector<Outcome>* outcomes) const;

  // Makes what takes the place of `above`, empty, with another schema; and puts it there, when
  // AllDown has been called. The latter cannot fail.
  struct Next {
    std::unique_ptr<CacheTable> above;
    DiskRows::NextSchema schema;
  };
  Status PrepareSchema(const TableSchema& schema, Next* next);
  void SetSchema(Next next);

  // What this has counted in `above` by its own calls, to be subtracted.
  TableCounters own_calls() const;
  // Calls of the table, or of this: what was found above or missing there and should not be
  // counted, from any thread; what was erased below, by a call that named the key so often, or by
  // another.
  void CountRead(int64_t found, int64_t missing) const;
  void CountErased(int64_t positions);
  void CountRemoved(int64_t rows) { own_writes_.erased -= rows; }

  EvictedRows* evicted() const { return options_.evicted.get(); }
  // Of the layout of now; null: there is no policy.
  const RowScores* scores() const { return scores_ ? &*scores_ : nullptr; }

  int64_t memory_bytes() const {
    return above_->memory_bytes() + below_->memory_bytes() + use_marks_->memory_bytes();
  }
  TierStats stats() const;
  void AddMisses(int64_t keys) const { misses_.fetch_add(keys, std::memory_order_relaxed); }

  // The context of calls of `above` while the table's lock is held, on behalf of `context`; and of
  // calls that look keys up and note that these are used.
  static Context Inner(const Context& context);
  Context Using(const Context& context) {
    Context inner = Inner(context);
    inner.use_marks = &*use_marks_;
    return inner;
  }

 private:
  static constexpr int64_t kHands = BatchOrder::kSegments;           // of a clock
  static constexpr int64_t kSparedLaps = UseMarks::kSparedLaps + 1;  // in which a row may stay
  static constexpr int64_t kScanKeys = 2048;                         // that a scan asks for at once
  static constexpr int64_t kReadBytes = int64_t{4} << 20;  // of rows that are read at once

  // The context of calls of `above` on threads of the tiers' own.
  static Context Threads();
  // One at the beginning of its lap.
  static Cursor Hand(int64_t part);

  Tiers(const TableSchema& schema, const TableOptions& options, const StorageOptions& storage)
      : schema_(schema), layout_(schema), options_(options), storage_(storage) {
    SetScores();
  }
  void SetScores();

  Status MakeAbove(const TableSchema& schema, std::unique_ptr<CacheTable>* table) const;
  // With what calls under way may insert.
  int64_t rows_above() const { return above_->max_rows() - above_->room(); }
  Status InsertAbove(Span<const Key> keys, char* rows);
  // Whether MakeRoomAhead has something to do. Not where all rows are used all the time: calls make
  // room themselves then.
  bool WantsRoomAhead() const {
    return !below_->empty() && above_->room() < room_ahead() &&
           ahead_looks_ <= kSparedLaps * max_rows_above();
  }
  // How much room there should be between calls.
  int64_t room_ahead() const { return std::min(2 * most_keys_, max_rows_above() / 8); }
  // Has rows leave until there is room for `wanted`, or `most` have left, or no other may. Rows
  // that have been used lately are spared as long as others can leave; and if `most_looks` is not
  // without end. *looks: at how many rows; not at more than `most_looks` by far.
  Status Leave(int64_t wanted, int64_t most, int64_t most_looks, const Stays& stays,
               int64_t* looks);
  // Gives rows that are above, of distinct keys, copies below; and has them there alone.
  Status CopyDown(const std::vector<Key>& keys);
  Status Down(const std::vector<Key>& keys);
  // Removes the rows of distinct keys, above and below, for another reason than the table above
  // counts: as `reason`. `removed`: of how many keys there was one, also after an error.
  Status RemoveRows(Span<const Key> keys, int64_t TableCounters::* reason, int64_t* removed);
  // All of the keys, or none of them, have rows below that have expired. `keeps`: whether values
  // are given to who keeps them.
  Status RemoveAlike(const std::vector<Key>& keys, bool expired_below, bool keeps,
                     int64_t TableCounters::* reason, int64_t* removed);
  // Values of the rows that are seen above or are below, as far as they can be read.
  KeptRows ReadToKeep(const std::vector<Key>& keys);
  // Looks at some of the rows above and below, as many of each as the tiers have of the table, and
  // gathers those of no higher score than one.
  Status Gather(int64_t wanted, int64_t most_score, std::vector<Cursor>* hands, uint64_t* hand,
                std::vector<EvictionCandidate>* candidates);
  Status GatherAbove(int64_t wanted, int64_t most_score, std::vector<Cursor>* hands,
                     std::vector<EvictionCandidate>* candidates);
  void GatherBelow(int64_t wanted, int64_t most_score, uint64_t* hand,
                   std::vector<EvictionCandidate>* candidates);

  // Has the hands begin a lap.
  void ResetHands();
  void CountWritten(int64_t keys, int64_t TableCounters::* what);

  TableSchema schema_;
  RowLayout layout_;
  TableOptions options_;
  const StorageOptions storage_;
  std::optional<RowScores> scores_;
  // Rows above that had expired when a call named them, where somebody keeps what leaves.
  std::shared_ptr<EvictedRows> expired_above_;
  // A row there that is dirty has no copy below.
  std::unique_ptr<CacheTable> above_;
  std::unique_ptr<DiskRows> below_;
  int64_t copies_ = 0;
  std::atomic<int64_t> calls_{0};  // keys of calls that have taken room
  std::optional<UseMarks> use_marks_;
  // The clock's hands, one for each segment of the table above. They take turns, so that all
  // segments give up rows alike: the memory of one that had more rows than others stays with it.
  std::vector<Cursor> hands_;
  size_t turn_ = 0;
  int64_t most_keys_ = 0;    // of a call, lately
  int64_t ahead_looks_ = 0;  // of MakeRoomAhead since the last row that has left for it
  // Where Evict and SweepExpired go on: above, in each segment, and below, in each part.
  std::vector<Cursor> evicting_, sweeping_;
  std::vector<Key> gone_;
  uint64_t evicting_below_ = 0, sweeping_below_ = 0;
  TableCounters own_writes_;
  mutable std::atomic<int64_t> own_found_{0}, own_missing_{0}, misses_{0};
  int64_t rows_left_ = 0;
};

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_CORE_STORAGE_TIERS_H_

// Tiered, the tiered table, as its own files see it. tiered_table.cc makes it, flushes it and has
// its upkeep; the others have the calls of one kind: tiered_table_read.cc, tiered_table_write.cc,
// tiered_table_scan.cc.
#ifndef TF_DYNEMB_CC_CORE_STORAGE_TIERED_TABLE_IMPL_H_
#define TF_DYNEMB_CC_CORE_STORAGE_TIERED_TABLE_IMPL_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "cc/core/base/copy_bytes.h"
#include "cc/core/base/fair_shared_mutex.h"
#include "cc/core/base/no_memory.h"
#include "cc/core/storage/background_work.h"
#include "cc/core/storage/tier_changes.h"
#include "cc/core/storage/tiered_table.h"
#include "cc/core/storage/tiers.h"
#include "cc/core/table/distinct_keys.h"

namespace dynemb {

class Tiered final : public TieredTable {
 public:
  Tiered(std::shared_ptr<Tiers> tiers, std::shared_ptr<TierChanges> changes,
         const TableSchema& schema, const TableOptions& options, bool in_background)
      : tiers_(std::move(tiers)),
        changes_(std::move(changes)),
        schema_(schema),
        layout_(schema),
        options_(options) {
    if (in_background) upkeep_.emplace([this] { return UpkeepSlice(); });
  }

  MemorySpace space() const override { return MemorySpace::kHost; }
  const TableSchema& schema() const override { return schema_; }
  int64_t size() const override;
  int64_t room() const override;
  int64_t max_rows() const override;
  EvictedRows* evicted() const override { return tiers_->evicted(); }
  TableCounters counters() const override;
  int64_t memory_bytes() const override;
  TierStats tier_stats() const override;

  Status Find(const Context& context, const Batch& batch, Rows values,
              const Report& report) const override;
  Status ReadRows(const Context& context, const Batch& batch, const RowParts& rows,
                  const Report& report) const override;

  Status Apply(const Context& context, const Batch& batch, ConstRows gradients,
               const Update& update, const Stamp& stamp, const Report& report) override;
  Status Upsert(const Context& context, const Batch& batch, ConstRows values, const Stamp& stamp,
                const Report& report) override;
  Status Accumulate(const Context& context, const Batch& batch, ConstRows values_or_deltas,
                    Span<const bool> exists, const Stamp& stamp, const Report& report) override;
  Status InsertRows(const Context& context, const Batch& batch, const ConstRowParts& rows,
                    const RowParts& displaced, const Report& report) override;
  Status Erase(const Context& context, const Batch& batch, const Report& report) override;

  Status RemoveExpired(const Context& context) override { return SweepExpired(context, INT64_MAX); }
  Status SweepExpired(const Context& context, int64_t rows) override;
  Status Clear(const Context& context) override;
  Status Reserve(const Context& context, int64_t rows) override;

  Status Export(const Context& context, Cursor* cursor, const RowParts& out,
                int64_t* rows) const override;
  Status Histogram(const Context& context, MetaField field, const RowOrder& prefix, int prefix_bits,
                   Span<int64_t> counts) const override;
  Status EraseBelow(const Context& context, MetaField field, const RowOrder& bound,
                    int64_t* erased) override;

  Status BeginEpoch(const Context& context, int64_t epoch) override;
  int64_t epoch() const override { return changes_->epoch(); }
  Status ChangedKeys(const Context& context, int64_t since, const TablePart& part,
                     std::vector<Key>* keys) const override;
  void TrimChanges(const std::vector<int64_t>& positions) override;

  Status PrepareMove(const Context& context, const TableSchema& schema,
                     std::unique_ptr<RowMove>* move) override;

  Status BeginFlush() override;
  Status FlushPart(int part, IndexEntries* entries, FlushedShard* flushed) override;
  void EndFlush(const std::set<uint64_t>& unsynced) override;
  Status ShareFile(const RowLog::File& file, int64_t* slot) override;
  Status PlaceRows(Span<const Key> keys, Span<const Location> locations, int64_t room) override;
  Status EndReopening() override;
  void WaitForUpkeep() override {
    if (upkeep_) upkeep_->Finish();
  }
  Status RemoveDeadRecords() override;

 private:
  // --- tiered_table.cc ---
  struct Move;

  // Holds the lock alone. Rows that have left by the policy meanwhile are changes, and the disk has
  // space for those that have been removed there, or will have.
  class Alone {
   public:
    explicit Alone(const Tiered& table) : table_(table), lock_(table.mutex_) {}
    ~Alone() {
      table_.NoteGone(table_.tiers_->TakeGone());
      static_cast<void>(table_.tiers_->KeepExpiredAbove());
      static_cast<void>(OrNoMemory([&] { return table_.tiers_->below()->Compact(); }));
      table_.WakeUpkeep();
    }

   private:
    const Tiered& table_;
    const std::unique_lock<FairSharedMutex> lock_;
  };

  // With the lock held, alone or shared: when a call may have left something to be done.
  void WakeUpkeep() const {
    if (upkeep_ && tiers_->HasUpkeep()) upkeep_->Wake();
  }
  // What is done in the background, a part of it. Files are read without the lock. An error, as of
  // a full disk, is met again by the calls that cannot do without.
  bool UpkeepSlice();
  void NoteGone(const std::vector<Key>& keys) const;
  bool expires() const { return options_.eviction.expires(); }
  void CopyRow(const char* row, const RowParts& out, int64_t i) const {
    if (out.values.data) CopyBytes(out.values[i], row, layout_.value_bytes);
    if (out.slots.data) CopyBytes(out.slots[i], row + layout_.slots_offset, layout_.slots_bytes);
    if (out.meta.data) CopyBytes(out.meta[i], row + layout_.meta_offset, layout_.meta_bytes);
  }

  // --- tiered_table_read.cc ---
  // Rows that a call has read from below.
  struct FromBelow {
    std::vector<Key> keys;
    std::vector<Location> locations;
    std::vector<uint64_t> numbers;  // of their files
    std::vector<char> rows;
  };
  // The frame of both calls that read by key: above(context, report) looks there; rows of keys that
  // are below are read, if `rows` says so, and given to copy(position, row), and as far as there is
  // room for them above to `kept`. They are those of the moment at which the call had the lock.
  template <typename Above, typename Copy>
  Status Read(const Context& context, const Batch& batch, const Report& report, bool rows,
              const Above& above, const Copy& copy, FromBelow* kept) const;

  // Rows below that are to be read, as many at once as kReadBytes.
  struct ReadOfBelow {
    std::vector<Location> locations;
    std::vector<uint64_t> numbers;                     // of their files
    std::vector<std::pair<Location, int64_t>> wanted;  // and the positions that want them
    RowLog::Reads reads;
  };
  std::vector<ReadOfBelow> PrepareReads(std::vector<std::pair<Location, int64_t>> wanted) const;
  // Gives the rows to copy(position, row), and some to `kept`. Needs no lock.
  using CopyTo = std::function<void(int64_t position, const char* row)>;
  Status ReadBelow(const Batch& batch, const std::vector<ReadOfBelow>& reads, const CopyTo& copy,
                   FromBelow* kept) const;

  // --- tiered_table_write.cc ---
  // The frame of all calls that write by key, but Erase: write(context, batch, report) does it
  // above. changed(position, outcome): whether that is a change. inserts(position): whether a
  // missing key there is inserted. `whole_rows`: those that InsertRows was given.
  template <typename WriteRows, typename Changed, typename Inserts>
  Status Write(const Context& context, const Batch& batch, const Report& report,
               const WriteRows& write, const Changed& changed, const Inserts& inserts,
               const ConstRowParts* whole_rows = nullptr);
  // What is wrong with the arguments is known before any row leaves.
  template <typename WriteRows>
  static Status CheckArguments(const Context& context, const Batch& batch, const WriteRows& write);
  // With the lock held alone. Has all rows of a batch above, of which these are below, and room for
  // those that it may insert. *done: false, if there is not room enough, above or in the table, to
  // know that without looking all keys up.
  Status BringAllUp(const Batch& batch, const std::vector<Key>& keys_below, bool* done);
  // Has some of the rows that have expired leave, when calls have asked for enough of them
  // (NoteLooks) to take the lock alone for it. If that cannot be, the call is done nevertheless.
  void SweepNow();
  // That a call with these outcomes is done, for which so many rows are to be looked at.
  void NoteLooks(const Batch& batch, Span<const Outcome> outcomes);
  // All rows are above, or nowhere.
  template <typename WriteRows, typename Changed>
  Status WriteAbove(const Context& context, const Batch& batch, const Report& report,
                    const WriteRows& write, const Changed& changed);
  // With the lock held alone. Keys that have rows are written first; then room is made for the
  // others, as in a host table.
  template <typename WriteRows, typename Changed, typename Inserts>
  Status WriteAlone(const Context& inner, const Batch& batch, const Report& report,
                    const WriteRows& write, const Changed& changed, const Inserts& inserts,
                    const ConstRowParts* whole_rows);
  // The numbers of the keys that have no row and are to be inserted, in the order of the batch, and
  // of the others. None, if there is room for all. Rows of these keys that have expired are gone.
  template <typename Inserts>
  Status FindMissing(const Batch& batch, const DistinctKeys& distinct, const Inserts& inserts,
                     std::vector<int64_t>* others, std::vector<int64_t>* missing);
  // The lowest first, since they leave again.
  void SortByScore(const Batch& batch, const DistinctKeys& distinct, const ConstRowParts& rows,
                   std::vector<int64_t>* numbers) const;
  void Decline(const Batch& batch, const DistinctKeys& distinct,
               const std::vector<int64_t>& numbers, std::vector<Outcome>* outcomes);
  // Writes the keys of these numbers, as many at a time as there is room for above. `has_begun` is
  // set when something may have changed.
  template <typename WriteRows, typename Changed>
  Status WriteInSlices(const Context& inner, const Batch& batch, const DistinctKeys& distinct,
                       const std::vector<int64_t>& numbers, const WriteRows& write,
                       const Changed& changed, std::vector<Outcome>* outcomes, bool* has_begun);
  // Notes what a call has changed, as its outcomes say.
  template <typename Changed>
  void NoteChanges(const Batch& batch, Span<const Outcome> outcomes, const Changed& changed);

  // --- tiered_table_scan.cc ---
  // The first `most` hashes from `from` on of the rows of a part, ascending.
  Status HashesOf(int part, uint64_t from, int64_t most, std::vector<uint64_t>* hashes) const;
  // Exports the rows of these hashes, as far as they are still there, from row *n of `out` on.
  Status ExportThese(const std::vector<uint64_t>& hashes, const RowParts& out, int64_t* n) const;
  RowOrder OrderOf(Key key, const char* meta, MetaField field) const;
  // Calls visit(key, order) for the rows that are above.
  template <typename Visit>
  Status ForEachAbove(MetaField field, const Visit& visit) const;
  // The same for the rows that are below and not above.
  template <typename Visit>
  Status ForEachOnlyBelow(MetaField field, const Visit& visit) const;

  // Shared with the table that a move makes: the one that it was made from is not used any more.
  const std::shared_ptr<Tiers> tiers_;
  const std::shared_ptr<TierChanges> changes_;
  const TableSchema schema_;
  const RowLayout layout_;
  const TableOptions options_;
  std::atomic<int64_t> looks_{0};  // at rows, for those that have expired, to be made
  FairSharedMutex& mutex_ = tiers_->mutex;
  mutable std::optional<BackgroundWork> upkeep_;  // ends before all else
};

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_CORE_STORAGE_TIERED_TABLE_IMPL_H_

#include "cc/core/storage/tiered_table.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <mutex>
#include <new>
#include <numeric>
#include <optional>
#include <shared_mutex>
#include <utility>
#include <vector>

#include "cc/core/base/copy_bytes.h"
#include "cc/core/base/fair_shared_mutex.h"
#include "cc/core/storage/background_work.h"
#include "cc/core/storage/distinct_keys.h"
#include "cc/core/storage/tier_changes.h"
#include "cc/core/storage/tiers.h"
#include "cc/core/table/call_checks.h"
#include "cc/core/table/evictor.h"

namespace dynemb {
namespace {

constexpr int64_t kReadBytes = int64_t{4} << 20;  // of rows that are read at once
constexpr int64_t kScanRows = 2048;               // whose places above are asked for at once

bool IsDone(Outcome outcome) { return outcome == Outcome::kFound || outcome == Outcome::kInserted; }

// Fills a report from the outcomes of all positions.
void FillReport(const Batch& batch, const std::vector<Outcome>& outcomes, const Report& report) {
  int64_t misses = 0;
  for (int64_t j = 0; j < PositionsOf(batch); ++j) {
    const int64_t position = PositionOf(batch, j);
    const Outcome outcome = outcomes[static_cast<size_t>(position)];
    if (!report.outcomes.empty()) report.outcomes[position] = outcome;
    if (report.misses != nullptr && !IsDone(outcome)) report.misses->at[misses++] = position;
  }
  if (report.misses != nullptr) *report.misses->count = misses;
}

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

  Status Find(const Context& context, const Batch& batch, Rows values,
              const Report& report) const override {
    return OrNoMemory([&] {
      FromBelow from_below;
      DYNEMB_RETURN_IF_ERROR(Read(
          context, batch, report, true,
          [&](const Context& inner, const Report& of_above) {
            return tiers_->above()->Find(inner, batch, values, of_above);
          },
          [&](int64_t position, const char* row) {
            CopyBytes(values[position], row, layout_.value_bytes);
          },
          &from_below));
      if (from_below.keys.empty()) return Status();
      const Alone alone(*this);
      // What was asked for has been read; that it stays below is no error.
      static_cast<void>(OrNoMemory([&] {
        return tiers_->BringUp(from_below.keys, from_below.locations, from_below.numbers,
                               from_below.rows);
      }));
      return Status();
    });
  }

  Status ReadRows(const Context& context, const Batch& batch, const RowParts& rows,
                  const Report& report) const override {
    return OrNoMemory([&] {
      const bool any = rows.values.data || rows.slots.data || rows.meta.data;
      return Read(
          context, batch, report, any,
          [&](const Context& inner, const Report& of_above) {
            return tiers_->above()->ReadRows(inner, batch, rows, of_above);
          },
          [&](int64_t position, const char* row) { CopyRow(row, rows, position); }, nullptr);
    });
  }

  Status Apply(const Context& context, const Batch& batch, ConstRows gradients,
               const Update& update, const Stamp& stamp, const Report& report) override {
    return Write(
        context, batch, report,
        [&](const Context& inner, const Batch& part, const Report& of_part) {
          return tiers_->above()->Apply(inner, part, gradients, update, stamp, of_part);
        },
        [](int64_t, Outcome outcome) { return IsDone(outcome); },
        [&](int64_t) { return update.if_missing == IfMissing::kInsert; });
  }

  Status Upsert(const Context& context, const Batch& batch, ConstRows values, const Stamp& stamp,
                const Report& report) override {
    return Write(
        context, batch, report,
        [&](const Context& inner, const Batch& part, const Report& of_part) {
          return tiers_->above()->Upsert(inner, part, values, stamp, of_part);
        },
        [](int64_t, Outcome outcome) { return IsDone(outcome); }, [](int64_t) { return true; });
  }

  Status Accumulate(const Context& context, const Batch& batch, ConstRows values_or_deltas,
                    Span<const bool> exists, const Stamp& stamp, const Report& report) override {
    return Write(
        context, batch, report,
        [&](const Context& inner, const Batch& part, const Report& of_part) {
          return tiers_->above()->Accumulate(inner, part, values_or_deltas, exists, stamp, of_part);
        },
        [&](int64_t position, Outcome outcome) {
          return outcome == Outcome::kInserted || (outcome == Outcome::kFound && exists[position]);
        },
        [&](int64_t position) { return !exists[position]; });
  }

  Status InsertRows(const Context& context, const Batch& batch, const ConstRowParts& rows,
                    const RowParts& displaced, const Report& report) override {
    return Write(
        context, batch, report,
        [&](const Context& inner, const Batch& part, const Report& of_part) {
          return tiers_->above()->InsertRows(inner, part, rows, displaced, of_part);
        },
        [](int64_t, Outcome outcome) { return IsDone(outcome); }, [](int64_t) { return true; },
        &rows);
  }

  Status Erase(const Context& context, const Batch& batch, const Report& report) override {
    DYNEMB_RETURN_IF_ERROR(CheckBatch(context, batch, report));
    const Status status = OrNoMemory([&] {
      const auto erase = [&](const Context& inner, const Batch& part, const Report& of_part) {
        return tiers_->above()->Erase(inner, part, of_part);
      };
      const auto changed = [](int64_t, Outcome outcome) { return outcome == Outcome::kFound; };
      {
        const std::shared_lock<FairSharedMutex> lock(mutex_);
        std::vector<Key> keys_below;
        DYNEMB_RETURN_IF_ERROR(tiers_->KeysBelow(batch, &keys_below));
        if (keys_below.empty()) return WriteAbove(context, batch, report, erase, changed);
      }
      const Alone alone(*this);
      const DistinctKeys distinct(batch);
      std::vector<Outcome> found;
      if (expires()) DYNEMB_RETURN_IF_ERROR(tiers_->RemoveExpired(distinct.keys(), &found));
      const int64_t n = PositionsOf(batch);
      std::vector<Outcome> outcomes(static_cast<size_t>(batch.keys.size), Outcome::kFull);
      std::vector<int64_t> erased(static_cast<size_t>(distinct.size()));  // below, of each key
      const Status above = erase(Tiers::Inner(context), batch, {outcomes, nullptr});
      DiskRows* const below = tiers_->below();
      for (int64_t j = 0; j < n; ++j) {
        const int64_t position = PositionOf(batch, j);
        Outcome& outcome = outcomes[static_cast<size_t>(position)];
        int64_t& only_below = erased[static_cast<size_t>(distinct.number(j))];
        const uint64_t hash = DiskHash(batch.keys[position]);
        if (outcome == Outcome::kFound && below->Remove(hash)) tiers_->AddCopies(-1);
        if (outcome != Outcome::kMissing) continue;
        if (only_below == 0 && !below->Remove(hash)) continue;
        ++only_below;
        outcome = Outcome::kFound;
      }
      for (const int64_t positions : erased) tiers_->CountErased(positions);
      NoteChanges(batch, outcomes, changed);
      FillReport(batch, outcomes, report);
      return above;
    });
    if (status.ok()) SweepNow();
    return status;
  }

  Status RemoveExpired(const Context& context) override {
    DYNEMB_RETURN_IF_ERROR(CheckContext(context));
    if (!expires()) return Status();
    return OrNoMemory([&] {
      const Alone alone(*this);
      return tiers_->SweepExpired(tiers_->size());
    });
  }

  Status Clear(const Context& context) override {
    DYNEMB_RETURN_IF_ERROR(CheckContext(context));
    const Alone alone(*this);
    changes_->Forget();
    return tiers_->Clear(context);
  }

  Status Reserve(const Context& context, int64_t rows) override {
    DYNEMB_RETURN_IF_ERROR(CheckContext(context));
    const std::shared_lock<FairSharedMutex> lock(mutex_);
    return tiers_->above()->Reserve(Tiers::Inner(context),
                                    std::min(rows, tiers_->max_rows_above()));
  }

  Status Export(const Context& context, Cursor* cursor, const RowParts& out,
                int64_t* rows) const override {
    DYNEMB_RETURN_IF_ERROR(CheckContext(context));
    DYNEMB_RETURN_IF_ERROR(CheckExport(layout_, out));
    DYNEMB_RETURN_IF_ERROR(CheckTablePart(*cursor));
    if (cursor->position[1] > 1) {
      return InvalidArgument("cursor: got a position that no export has given");
    }
    return OrNoMemory([&] {
      // The rows in the order of their hashes, which no move between the tiers changes.
      const std::shared_lock<FairSharedMutex> lock(mutex_);
      const int first = TierChanges::FirstPart(*cursor), end = TierChanges::EndPart(*cursor);
      uint64_t from = cursor->position[0];
      if (cursor->position[1] == 0) {
        from = static_cast<uint64_t>(first) << (64 - DiskIndex::kPartBits);
        cursor->done = cursor->done || first == end;
      }
      bool done = cursor->done;
      int64_t n = 0;
      while (!done && n < out.keys.size) {
        const int part = DiskIndex::PartOf(from);
        std::vector<uint64_t> hashes;
        DYNEMB_RETURN_IF_ERROR(HashesOf(part, from, out.keys.size - n, &hashes));
        const bool is_whole = static_cast<int64_t>(hashes.size()) < out.keys.size - n;
        DYNEMB_RETURN_IF_ERROR(ExportThese(hashes, out, &n));
        if (is_whole) {
          done = part + 1 >= end;
          from = static_cast<uint64_t>(part + 1) << (64 - DiskIndex::kPartBits);
        } else {
          from = hashes.back() + 1;
          done = from == 0 || DiskIndex::PartOf(from) >= end;
        }
      }
      cursor->position[0] = from;
      cursor->position[1] = 1;
      cursor->done = done;
      *rows = n;
      return Status();
    });
  }

  Status Histogram(const Context& context, MetaField field, const RowOrder& prefix, int prefix_bits,
                   Span<int64_t> counts) const override {
    DYNEMB_RETURN_IF_ERROR(CheckContext(context));
    return OrNoMemory([&] {
      const std::shared_lock<FairSharedMutex> lock(mutex_);
      DYNEMB_RETURN_IF_ERROR(
          tiers_->above()->Histogram(Tiers::Inner(context), field, prefix, prefix_bits, counts));
      int bits;
      DYNEMB_RETURN_IF_ERROR(CheckCounts(counts, prefix_bits, &bits));
      return ForEachOnlyBelow(field, [&](Key, const RowOrder& order) {
        const int64_t digit = DigitOf(order, prefix, prefix_bits, bits);
        if (digit >= 0) ++counts[digit];
      });
    });
  }

  Status EraseBelow(const Context& context, MetaField field, const RowOrder& bound,
                    int64_t* erased) override {
    DYNEMB_RETURN_IF_ERROR(CheckContext(context));
    DYNEMB_RETURN_IF_ERROR(CheckMetaField(layout_, field));
    return OrNoMemory([&] {
      const Alone alone(*this);
      if (expires()) DYNEMB_RETURN_IF_ERROR(tiers_->SweepExpired(tiers_->size()));
      std::vector<Key> below, above;
      DYNEMB_RETURN_IF_ERROR(ForEachOnlyBelow(field, [&](Key key, const RowOrder& order) {
        if (order < bound) below.push_back(key);
      }));
      DYNEMB_RETURN_IF_ERROR(ForEachAbove(field, [&](Key key, const RowOrder& order) {
        if (order < bound) above.push_back(key);
      }));
      NoteGone(above);
      NoteGone(below);
      // First the copies: what an error leaves above has none, and is a row.
      for (const Key key : above) {
        if (tiers_->below()->Remove(DiskHash(key))) tiers_->AddCopies(-1);
      }
      int64_t from_above;
      DYNEMB_RETURN_IF_ERROR(
          tiers_->above()->EraseBelow(Tiers::Inner(context), field, bound, &from_above));
      for (const Key key : below) tiers_->below()->Remove(DiskHash(key));
      tiers_->CountRemoved(static_cast<int64_t>(below.size()));
      *erased = from_above + static_cast<int64_t>(below.size());
      return Status();
    });
  }

  Status BeginEpoch(const Context& context, int64_t epoch) override {
    DYNEMB_RETURN_IF_ERROR(CheckContext(context));
    const Alone alone(*this);
    if (epoch <= changes_->epoch()) return EpochNotLater(epoch, changes_->epoch());
    changes_->BeginEpoch(epoch, tiers_->size());
    return Status();
  }
  int64_t epoch() const override { return changes_->epoch(); }

  Status ChangedKeys(const Context& context, int64_t since, const TablePart& part,
                     std::vector<Key>* keys) const override {
    DYNEMB_RETURN_IF_ERROR(CheckContext(context));
    DYNEMB_RETURN_IF_ERROR(CheckTablePart(part));
    return OrNoMemory([&] {
      const std::shared_lock<FairSharedMutex> lock(mutex_);
      keys->clear();
      if (changes_->Since(since, part, keys)) return Status();
      keys->clear();
      return ChangesNotKnown(since);
    });
  }

  void TrimChanges(int64_t through) override {
    const std::shared_lock<FairSharedMutex> lock(mutex_);
    changes_->Trim(through);
  }

  Status PrepareMove(const Context& context, const TableSchema& schema,
                     std::unique_ptr<RowMove>* move) override {
    DYNEMB_RETURN_IF_ERROR(CheckContext(context));
    DYNEMB_RETURN_IF_ERROR(CheckMove(schema_, schema));
    return OrNoMemory([&] {
      const Alone alone(*this);
      const RowLayout layout(schema);
      const int64_t more = tiers_->size() - tiers_->RowsWithinDisk(layout);
      if (more > 0 && !options_.eviction.evicts()) {
        return ResourceExhausted("Disk(max_bytes): got ", tiers_->size(), " rows that are to have ",
                                 layout.row_bytes, " bytes, of which there may be ",
                                 tiers_->RowsWithinDisk(layout),
                                 "; want a larger Disk(max_bytes), or an eviction policy");
      }
      if (more > 0) DYNEMB_RETURN_IF_ERROR(tiers_->Evict(more));
      DYNEMB_RETURN_IF_ERROR(tiers_->AllDown());
      auto made = std::make_unique<Move>();
      DYNEMB_RETURN_IF_ERROR(tiers_->PrepareSchema(schema, &made->next));
      made->tiers = tiers_.get();
      made->to = std::make_unique<Tiered>(tiers_, changes_, schema, options_, upkeep_.has_value());
      *move = std::move(made);
      return Status();
    });
  }

  Status BeginFlush() override {
    return OrNoMemory([&] {
      const Alone alone(*this);
      return tiers_->BeginFlush();
    });
  }
  Status FlushPart(int part, IndexEntries* entries, FlushedShard* flushed) override {
    return OrNoMemory([&] {
      const Alone alone(*this);
      return tiers_->FlushPart(part, entries, flushed);
    });
  }
  void EndFlush(const std::set<uint64_t>& unsynced) override {
    const Alone alone(*this);
    tiers_->EndFlush(unsynced);
  }
  Status ShareFile(const RowLog::File& file, int64_t* slot) override {
    return OrNoMemory([&] {
      const std::unique_lock<FairSharedMutex> lock(mutex_);
      return tiers_->below()->ShareFile(file, slot);
    });
  }
  Status PlaceRows(Span<const Key> keys, Span<const Location> locations, int64_t room) override {
    return OrNoMemory([&] {
      const std::unique_lock<FairSharedMutex> lock(mutex_);
      return tiers_->below()->PlaceRows(keys, locations, room);
    });
  }
  Status EndReopening() override {
    return OrNoMemory([&] {
      const Alone alone(*this);
      DYNEMB_RETURN_IF_ERROR(tiers_->below()->ReadNumbers());
      if (tiers_->room() >= 0) return Status();
      if (expires()) DYNEMB_RETURN_IF_ERROR(tiers_->SweepExpired(tiers_->size()));
      return options_.eviction.evicts() ? tiers_->Evict(-tiers_->room()) : Status();
    });
  }
  void WaitForUpkeep() override {
    if (upkeep_) upkeep_->Finish();
  }
  Status RemoveDeadRecords() override {
    return OrNoMemory([&] {
      const Alone alone(*this);
      return tiers_->below()->RewriteDead();
    });
  }

  int64_t size() const override {
    const std::shared_lock<FairSharedMutex> lock(mutex_);
    return tiers_->size();
  }
  int64_t room() const override {
    const std::shared_lock<FairSharedMutex> lock(mutex_);
    return tiers_->room();
  }
  int64_t max_rows() const override {
    const std::shared_lock<FairSharedMutex> lock(mutex_);
    return tiers_->max_rows();
  }
  EvictedRows* evicted() const override { return tiers_->evicted(); }
  TableCounters counters() const override {
    const std::shared_lock<FairSharedMutex> lock(mutex_);
    TableCounters counters = tiers_->above()->counters();
    counters.Add(tiers_->own_calls(), -1);
    return counters;
  }
  int64_t memory_bytes() const override {
    const std::shared_lock<FairSharedMutex> lock(mutex_);
    return tiers_->memory_bytes() + changes_->memory_bytes();
  }
  TierStats tier_stats() const override {
    const std::shared_lock<FairSharedMutex> lock(mutex_);
    TierStats stats = tiers_->stats();
    TableCounters counters = tiers_->above()->counters();
    counters.Add(tiers_->own_calls(), -1);
    stats.hits = counters.found + counters.missing + counters.written - stats.misses;
    return stats;
  }

 private:
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
  bool UpkeepSlice() {
    bool more = false, has_block = false;
    RowLog::Block block;
    static_cast<void>(OrNoMemory([&] {
      const std::unique_lock<FairSharedMutex> lock(mutex_);
      more = tiers_->MakeRoomAhead();
      NoteGone(tiers_->TakeGone());
      static_cast<void>(tiers_->KeepExpiredAbove());
      has_block = tiers_->below()->NextToMove(&block);
      return Status();
    }));
    if (!has_block) return more;
    Status read = block.Read();
    const std::unique_lock<FairSharedMutex> lock(mutex_);
    return tiers_->below()->Move(block, std::move(read)).ok();
  }

  // Rows that a call has read from below.
  struct FromBelow {
    std::vector<Key> keys;
    std::vector<Location> locations;
    std::vector<uint64_t> numbers;  // of their files
    std::vector<char> rows;
  };

  struct Move final : public RowMove {
    std::unique_ptr<Table> Run(const Context&) override {
      const std::unique_lock<FairSharedMutex> lock(tiers->mutex);
      tiers->SetSchema(std::move(next));
      return std::move(to);
    }
    Tiers* tiers;
    Tiers::Next next;
    std::unique_ptr<Tiered> to;
  };

  void CopyRow(const char* row, const RowParts& out, int64_t i) const {
    if (out.values.data) CopyBytes(out.values[i], row, layout_.value_bytes);
    if (out.slots.data) CopyBytes(out.slots[i], row + layout_.slots_offset, layout_.slots_bytes);
    if (out.meta.data) CopyBytes(out.meta[i], row + layout_.meta_offset, layout_.meta_bytes);
  }

  // The frame of both calls that read by key: above(context, report) looks there; rows of keys that
  // are below are read, if `rows` says so, and given to copy(position, row), and as far as there is
  // room for them above to `kept`. They are those of the moment at which the call had the lock.
  template <typename Above, typename Copy>
  Status Read(const Context& context, const Batch& batch, const Report& report, bool rows,
              const Above& above, const Copy& copy, FromBelow* kept) const {
    DYNEMB_RETURN_IF_ERROR(CheckBatch(context, batch, report));
    std::shared_lock<FairSharedMutex> lock(mutex_);
    const Context inner = Tiers::Inner(context);
    DiskRows* const below = tiers_->below();
    if (below->empty()) return above(inner, report);
    std::vector<int64_t> own;
    int64_t count = 0;
    Positions misses = {{}, &count};
    if (report.misses != nullptr) {
      misses.at = report.misses->at;
    } else {
      own.resize(
          static_cast<size_t>(batch.select == nullptr ? batch.keys.size : batch.select->at.size));
      misses.at = own;
    }
    DYNEMB_RETURN_IF_ERROR(above(inner, {report.outcomes, &misses}));
    tiers_->Touch(batch);
    // Which of those that are not above are below.
    std::vector<std::pair<Location, int64_t>> wanted;
    int64_t missing = 0;
    const auto hash_of = [&](int64_t m) { return DiskHash(batch.keys[misses.at[m]]); };
    constexpr int64_t kAhead = 8;
    for (int64_t m = 0; m < count; ++m) {
      if (m + kAhead < count) below->PrefetchEntry(hash_of(m + kAhead));
      const int64_t position = misses.at[m];
      const Location location = below->Find(hash_of(m));
      if (location == kNowhere) {
        misses.at[missing++] = position;
      } else {
        wanted.emplace_back(location, position);
        if (!report.outcomes.empty()) report.outcomes[position] = Outcome::kFound;
      }
    }
    if (report.misses != nullptr) *report.misses->count = missing;
    const int64_t found = static_cast<int64_t>(wanted.size());
    tiers_->CountRead(-found, found);  // they were counted as missing
    if (found == 0 || !rows) return Status();
    tiers_->AddMisses(found);
    const std::vector<ReadOfBelow> reads = PrepareReads(std::move(wanted));
    lock.unlock();  // the disk is slow
    return ReadBelow(batch, reads, copy, kept);
  }

  // Rows below that are to be read, as many at once as kReadBytes.
  struct ReadOfBelow {
    std::vector<Location> locations;
    std::vector<uint64_t> numbers;                     // of their files
    std::vector<std::pair<Location, int64_t>> wanted;  // and the positions that want them
    RowLog::Reads reads;
  };
  std::vector<ReadOfBelow> PrepareReads(std::vector<std::pair<Location, int64_t>> wanted) const {
    const size_t at_once =
        static_cast<size_t>(std::max<int64_t>(1, kReadBytes / layout_.row_bytes));
    std::sort(wanted.begin(), wanted.end());
    std::vector<ReadOfBelow> reads;
    for (const auto& [location, position] : wanted) {
      const bool is_same = !reads.empty() && reads.back().locations.back() == location;
      if (reads.empty() || (!is_same && reads.back().locations.size() == at_once)) {
        reads.emplace_back();
      }
      if (!is_same) {
        reads.back().locations.push_back(location);
        reads.back().numbers.push_back(tiers_->below()->NumberOf(location));
      }
      reads.back().wanted.emplace_back(location, position);
    }
    for (ReadOfBelow& read : reads) read.reads = tiers_->below()->PrepareReads(read.locations);
    return reads;
  }

  // Gives the rows to copy(position, row), and some to `kept`. Needs no lock.
  template <typename Copy>
  Status ReadBelow(const Batch& batch, const std::vector<ReadOfBelow>& reads, const Copy& copy,
                   FromBelow* kept) const {
    const size_t row_bytes = static_cast<size_t>(layout_.row_bytes);
    const size_t most_kept =
        kept == nullptr ? 0
                        : static_cast<size_t>(std::max<int64_t>(1, tiers_->max_rows_above() / 2));
    std::vector<char> rows;
    for (const ReadOfBelow& read : reads) {
      rows.resize(read.locations.size() * row_bytes);
      DYNEMB_RETURN_IF_ERROR(tiers_->below()->Read(read.reads, rows.data()));
      size_t w = 0;
      for (size_t i = 0; i < read.locations.size(); ++i) {
        const char* const row = &rows[i * row_bytes];
        const Key key = batch.keys[read.wanted[w].second];
        for (; w < read.wanted.size() && read.wanted[w].first == read.locations[i]; ++w) {
          copy(read.wanted[w].second, row);
        }
        if (kept == nullptr || kept->keys.size() == most_kept) continue;
        kept->keys.push_back(key);
        kept->locations.push_back(read.locations[i]);
        kept->numbers.push_back(read.numbers[i]);
        kept->rows.insert(kept->rows.end(), row, row + row_bytes);
      }
    }
    return Status();
  }

  // The frame of all calls that write by key, but Erase: write(context, batch, report) does it
  // above. changed(position, outcome): whether that is a change. inserts(position): whether a
  // missing key there is inserted. `whole_rows`: those that InsertRows was given.
  template <typename WriteRows, typename Changed, typename Inserts>
  Status Write(const Context& context, const Batch& batch, const Report& report,
               const WriteRows& write, const Changed& changed, const Inserts& inserts,
               const ConstRowParts* whole_rows = nullptr) {
    DYNEMB_RETURN_IF_ERROR(CheckBatch(context, batch, report));
    return OrNoMemory([&] {
      if (report.misses != nullptr) *report.misses->count = 0;
      const int64_t n = PositionsOf(batch);
      std::vector<Key> keys_below;
      int64_t rows_written;
      bool is_written = false;
      Status written;
      {
        const std::shared_lock<FairSharedMutex> lock(mutex_);
        DYNEMB_RETURN_IF_ERROR(tiers_->KeysBelow(batch, &keys_below));
        rows_written = tiers_->below()->rows_written();
        if (keys_below.empty() && tiers_->TakeRoom(n)) {
          is_written = true;
          written = OrNoMemory([&] { return WriteAbove(context, batch, report, write, changed); });
          tiers_->GiveRoom(n);
          WakeUpkeep();
        }
      }
      if (!is_written) {
        const Alone alone(*this);
        if (tiers_->below()->rows_written() != rows_written) {
          DYNEMB_RETURN_IF_ERROR(tiers_->KeysBelow(batch, &keys_below));
        }
        DYNEMB_RETURN_IF_ERROR(CheckArguments(context, batch, write));
        DYNEMB_RETURN_IF_ERROR(BringAllUp(batch, keys_below, &is_written));
        written = is_written ? WriteAbove(context, batch, report, write, changed)
                             : WriteAlone(Tiers::Inner(context), batch, report, write, changed,
                                          inserts, whole_rows);
      }
      if (written.ok()) SweepNow();
      return written;
    });
  }

  // What is wrong with the arguments is known before any row leaves.
  template <typename WriteRows>
  static Status CheckArguments(const Context& context, const Batch& batch, const WriteRows& write) {
    int64_t none = 0;
    const Positions no_positions = {{}, &none};
    Batch no_keys = batch;
    no_keys.select = &no_positions;
    return write(Tiers::Inner(context), no_keys, {});
  }

  // With the lock held alone. Has all rows of a batch above, of which these are below, and room for
  // those that it may insert. *done: false, if there is not room enough, above or in the table, to
  // know that without looking all keys up.
  Status BringAllUp(const Batch& batch, const std::vector<Key>& keys_below, bool* done) {
    const int64_t n = PositionsOf(batch);
    *done = n <= std::min(tiers_->max_rows_above() / 4, tiers_->room());
    if (!*done) return Status();
    std::optional<DistinctKeys> distinct;  // made if a row is to leave
    DYNEMB_RETURN_IF_ERROR(tiers_->MakeResident(keys_below, n, [&](Key key) {
      if (!distinct) distinct.emplace(batch);
      return distinct->NumberOf(key) >= 0;
    }));
    *done = tiers_->above()->room() >= n;
    return Status();
  }

  // Has some of the rows that have expired leave, when calls have asked for enough of them
  // (NoteLooks) to take the lock alone for it. If that cannot be, the call is done nevertheless.
  void SweepNow() {
    constexpr int64_t kLeast = 4096;
    if (!expires()) return;
    const int64_t looks = looks_.load(std::memory_order_relaxed);
    if (looks < kLeast && looks < size()) return;
    const Alone alone(*this);
    static_cast<void>(OrNoMemory([&] { return tiers_->SweepExpired(looks_.exchange(0)); }));
  }
  // That a call with these outcomes is done, for which so many rows are to be looked at.
  void NoteLooks(const Batch& batch, Span<const Outcome> outcomes) {
    if (!expires()) return;
    const int64_t n = PositionsOf(batch);
    int64_t inserted = 0;
    for (int64_t j = 0; j < n; ++j)
      inserted += outcomes[PositionOf(batch, j)] == Outcome::kInserted;
    looks_.fetch_add(Evictor::RowsToLookAt(n, inserted), std::memory_order_relaxed);
  }

  // All rows are above, or nowhere.
  template <typename WriteRows, typename Changed>
  Status WriteAbove(const Context& context, const Batch& batch, const Report& report,
                    const WriteRows& write, const Changed& changed) {
    const Context inner = Tiers::Inner(context);
    std::vector<Outcome> own;
    Report tracked = report;
    if ((changes_->tracking() || expires()) && report.outcomes.empty()) {
      own.resize(static_cast<size_t>(batch.keys.size));
      tracked.outcomes = own;
    }
    const Status written = write(inner, batch, tracked);
    if (written.ok() || written.code() == Code::kResourceExhausted) {
      NoteChanges(batch, tracked.outcomes, changed);
    }
    static_cast<void>(tiers_->KeepExpiredAbove());
    return written;
  }

  // With the lock held alone. Keys that have rows are written first; then room is made for the
  // others, as in a host table.
  template <typename WriteRows, typename Changed, typename Inserts>
  Status WriteAlone(const Context& inner, const Batch& batch, const Report& report,
                    const WriteRows& write, const Changed& changed, const Inserts& inserts,
                    const ConstRowParts* whole_rows) {
    const DistinctKeys distinct(batch);
    std::vector<int64_t> numbers, missing;  // of the keys
    DYNEMB_RETURN_IF_ERROR(FindMissing(batch, distinct, inserts, &numbers, &missing));
    const bool evicts = options_.eviction.evicts();
    // A table that was opened with a lower limit may have more rows than that.
    const auto has_room = [&] {
      return static_cast<int64_t>(missing.size()) <= std::max<int64_t>(tiers_->room(), 0);
    };
    if (!has_room()) {
      // Rows that are put back, as by a restore, are not dropped.
      const bool refuses = !evicts && (options_.on_full == OnFull::kError || whole_rows != nullptr);
      if (refuses && expires()) DYNEMB_RETURN_IF_ERROR(tiers_->SweepExpired(tiers_->size()));
      if (refuses && !has_room()) {
        return ResourceExhausted(tiers_->limit(), ": got ", missing.size(),
                                 " keys without a row, for ", tiers_->size(), " rows of at most ",
                                 tiers_->max_rows(), "; want a larger ", tiers_->limit(),
                                 ", or an eviction policy");
      }
      if (whole_rows != nullptr) SortByScore(batch, distinct, *whole_rows, &missing);
    } else {
      numbers.resize(static_cast<size_t>(distinct.size()));
      std::iota(numbers.begin(), numbers.end(), 0);
      missing.clear();
    }
    std::vector<Outcome> outcomes(static_cast<size_t>(batch.keys.size), Outcome::kFull);
    bool has_begun = false;
    const auto write_these = [&](const std::vector<int64_t>& these) {
      return WriteInSlices(inner, batch, distinct, these, write, changed, &outcomes, &has_begun);
    };
    Status written = OrNoMemory([&] { return write_these(numbers); });
    // Whole rows come with scores, and may evict each other: a part of the table at a time.
    const size_t step = evicts && whole_rows != nullptr
                            ? static_cast<size_t>(tiers_->max_rows() / 16 + 1)
                            : missing.size();
    for (size_t at = 0; written.ok() && at < missing.size(); at += step) {
      const size_t end = std::min(missing.size(), at + step);
      const int64_t wanted = static_cast<int64_t>(end - at);
      has_begun = true;
      written = OrNoMemory([&] {
        if (evicts && wanted > tiers_->room()) {
          DYNEMB_RETURN_IF_ERROR(tiers_->Evict(wanted - tiers_->room()));
        }
        const auto first = missing.begin() + static_cast<std::ptrdiff_t>(at);
        const auto declined = first + std::clamp<int64_t>(tiers_->room(), 0, wanted);
        DYNEMB_RETURN_IF_ERROR(write_these({first, declined}));
        Decline(batch, distinct, {declined, missing.begin() + static_cast<std::ptrdiff_t>(end)},
                &outcomes);
        return Status();
      });
    }
    if (!written.ok() && !has_begun) return written;  // nothing has changed
    FillReport(batch, outcomes, report);
    return written;
  }

  // The numbers of the keys that have no row and are to be inserted, in the order of the batch, and
  // of the others. None, if there is room for all. Rows of these keys that have expired are gone.
  template <typename Inserts>
  Status FindMissing(const Batch& batch, const DistinctKeys& distinct, const Inserts& inserts,
                     std::vector<int64_t>* others, std::vector<int64_t>* missing) {
    if (distinct.size() <= tiers_->room()) return Status();
    std::vector<Outcome> found;
    DYNEMB_RETURN_IF_ERROR(tiers_->RemoveExpired(distinct.keys(), &found));
    std::vector<bool> is_new(static_cast<size_t>(distinct.size()));
    tiers_->below()->ForEachHash(distinct.keys(), [&](int64_t number, uint64_t hash) {
      Outcome& outcome = found[static_cast<size_t>(number)];
      if (outcome == Outcome::kMissing && tiers_->below()->Find(hash) != kNowhere) {
        outcome = Outcome::kFound;
      }
    });
    for (int64_t j = 0; j < PositionsOf(batch); ++j) {
      const size_t number = static_cast<size_t>(distinct.number(j));
      if (found[number] == Outcome::kFound || is_new[number]) continue;
      is_new[number] = inserts(PositionOf(batch, j));
    }
    for (int64_t number = 0; number < distinct.size(); ++number) {
      (is_new[static_cast<size_t>(number)] ? missing : others)->push_back(number);
    }
    return Status();
  }

  // The lowest first, since they leave again.
  void SortByScore(const Batch& batch, const DistinctKeys& distinct, const ConstRowParts& rows,
                   std::vector<int64_t>* numbers) const {
    if (tiers_->scores() == nullptr) return;
    std::vector<int64_t> scores(static_cast<size_t>(distinct.size()));
    for (int64_t j = 0; j < PositionsOf(batch); ++j) {  // the last position counts
      const int64_t position = PositionOf(batch, j);
      scores[static_cast<size_t>(distinct.number(j))] =
          tiers_->scores()->Score(rows.values[position], rows.meta[position]);
    }
    std::stable_sort(numbers->begin(), numbers->end(), [&](int64_t a, int64_t b) {
      return scores[static_cast<size_t>(a)] < scores[static_cast<size_t>(b)];
    });
  }

  void Decline(const Batch& batch, const DistinctKeys& distinct,
               const std::vector<int64_t>& numbers, std::vector<Outcome>* outcomes) {
    if (numbers.empty()) return;
    std::vector<bool> is_declined(static_cast<size_t>(distinct.size()));
    for (const int64_t number : numbers) is_declined[static_cast<size_t>(number)] = true;
    for (int64_t j = 0; j < PositionsOf(batch); ++j) {
      if (!is_declined[static_cast<size_t>(distinct.number(j))]) continue;
      (*outcomes)[static_cast<size_t>(PositionOf(batch, j))] = Outcome::kDeclined;
    }
    tiers_->CountDeclined(static_cast<int64_t>(numbers.size()));
  }

  // Writes the keys of these numbers, as many at a time as there is room for above. `has_begun` is
  // set when something may have changed.
  template <typename WriteRows, typename Changed>
  Status WriteInSlices(const Context& inner, const Batch& batch, const DistinctKeys& distinct,
                       const std::vector<int64_t>& numbers, const WriteRows& write,
                       const Changed& changed, std::vector<Outcome>* outcomes, bool* has_begun) {
    const int64_t n = PositionsOf(batch), most = tiers_->max_rows_above();
    const int64_t keys = static_cast<int64_t>(numbers.size());
    const int64_t slices = (keys + most - 1) / most;
    const bool whole = slices == 1 && keys == distinct.size();
    std::vector<int64_t> slice_of(static_cast<size_t>(distinct.size()), -1);
    for (int64_t i = 0; i < keys; ++i) slice_of[static_cast<size_t>(numbers[i])] = i / most;
    const auto slice_at = [&](int64_t j) {
      return slice_of[static_cast<size_t>(distinct.number(j))];
    };
    // The positions of each slice, in the order of the batch.
    std::vector<int64_t> positions, ends(static_cast<size_t>(slices));
    if (!whole) {
      std::vector<int64_t> next(static_cast<size_t>(slices) + 1);
      for (int64_t j = 0; j < n; ++j) ++next[static_cast<size_t>(slice_at(j) + 1)];
      next[0] = 0;  // of those that are left out
      for (size_t s = 0; s < ends.size(); ++s) ends[s] = next[s + 1] += next[s];
      positions.resize(static_cast<size_t>(next.back()));
      for (int64_t j = 0; j < n; ++j) {
        if (slice_at(j) < 0) continue;
        int64_t& at = next[static_cast<size_t>(slice_at(j))];
        positions[static_cast<size_t>(at++)] = PositionOf(batch, j);
      }
    }
    std::vector<Key> of_slice;
    for (int64_t s = 0; s < slices; ++s) {
      of_slice.clear();
      for (int64_t i = s * most; i < std::min(keys, (s + 1) * most); ++i) {
        of_slice.push_back(distinct.keys()[static_cast<size_t>(numbers[i])]);
      }
      Status written = OrNoMemory([&] {
        return tiers_->MakeResident(of_slice, n, [&](Key key) {
          const int64_t number = distinct.NumberOf(key);
          return number >= 0 && slice_of[static_cast<size_t>(number)] == s;
        });
      });
      if (!written.ok()) return written;
      int64_t count = 0;
      Positions select;
      Batch part = batch;
      if (!whole) {
        const int64_t first = s == 0 ? 0 : ends[static_cast<size_t>(s - 1)];
        count = ends[static_cast<size_t>(s)] - first;
        select = {{positions.data() + first, count}, &count};
        part.select = &select;
      }
      written = write(inner, part, {*outcomes, nullptr});
      if (!written.ok() && written.code() != Code::kResourceExhausted) return written;
      *has_begun = true;
      NoteChanges(part, *outcomes, changed);
      if (!written.ok()) return written;
    }
    return Status();
  }

  // Notes what a call has changed, as its outcomes say.
  template <typename Changed>
  void NoteChanges(const Batch& batch, Span<const Outcome> outcomes, const Changed& changed) {
    NoteLooks(batch, outcomes);
    // A row that had expired may have gone without any outcome saying so.
    changes_->Note(batch, tiers_->size(), [&](int64_t position) {
      return expires() || changed(position, outcomes[position]);
    });
  }
  void NoteGone(const std::vector<Key>& keys) const {
    if (keys.empty()) return;
    Batch batch;
    batch.keys = keys;
    changes_->Note(batch, tiers_->size(), [](int64_t) { return true; });
  }

  bool expires() const { return options_.eviction.expires(); }

  // The first `most` hashes from `from` on of the rows of a part, ascending.
  Status HashesOf(int part, uint64_t from, int64_t most, std::vector<uint64_t>* hashes) const {
    DYNEMB_RETURN_IF_ERROR(
        tiers_->ForEachAbove({part, DiskIndex::kParts}, false, [&](const std::vector<Key>& keys) {
          for (const Key key : keys) {
            if (DiskHash(key) >= from) hashes->push_back(DiskHash(key));
          }
          return Status();
        }));
    // Of those above the first `most` are enough, and as many of those below.
    if (static_cast<int64_t>(hashes->size()) > most) {
      std::nth_element(hashes->begin(), hashes->begin() + most, hashes->end());
      hashes->resize(static_cast<size_t>(most));
    }
    int64_t more = most;
    tiers_->below()->index().ForEach(part, from, [&](const DiskIndex::Entry& entry) {
      if (tiers_->below()->HasExpired(entry)) return true;
      hashes->push_back(entry.hash);
      return --more > 0;
    });
    std::sort(hashes->begin(), hashes->end());
    hashes->erase(std::unique(hashes->begin(), hashes->end()), hashes->end());
    if (static_cast<int64_t>(hashes->size()) > most) hashes->resize(static_cast<size_t>(most));
    return Status();
  }

  // Exports the rows of these hashes, as far as they are still there, from row *n of `out` on.
  Status ExportThese(const std::vector<uint64_t>& hashes, const RowParts& out, int64_t* n) const {
    const int64_t count = static_cast<int64_t>(hashes.size());
    if (count == 0) return Status();
    const bool any = out.values.data || out.slots.data || out.meta.data;
    std::vector<Key> keys(hashes.size());
    for (size_t i = 0; i < hashes.size(); ++i) keys[i] = KeyOfDiskHash(hashes[i]);
    if (!any) {
      if (out.keys.data) std::copy(keys.begin(), keys.end(), out.keys.data + *n);
      *n += count;
      return Status();
    }
    const auto from = [&](const Rows& rows) {
      return rows.data == nullptr ? Rows() : Rows(rows[*n], count, rows.stride_bytes);
    };
    const RowParts these = {{}, from(out.values), from(out.slots), from(out.meta)};
    std::vector<Outcome> outcomes(hashes.size(), Outcome::kMissing);
    Batch batch;
    batch.keys = keys;
    DYNEMB_RETURN_IF_ERROR(
        tiers_->above()->ReadRows(OneThread(), batch, these, {outcomes, nullptr}));
    const int64_t found = std::count(outcomes.begin(), outcomes.end(), Outcome::kFound);
    tiers_->CountRead(found, count - found);
    std::vector<std::pair<Location, int64_t>> wanted;
    for (int64_t i = 0; found < count && i < count; ++i) {
      if (outcomes[static_cast<size_t>(i)] == Outcome::kFound) continue;
      const Location location = tiers_->below()->Find(hashes[static_cast<size_t>(i)]);
      if (location == kNowhere) continue;  // it has just been erased
      wanted.emplace_back(location, i);
      outcomes[static_cast<size_t>(i)] = Outcome::kFound;
    }
    DYNEMB_RETURN_IF_ERROR(ReadBelow(
        batch, PrepareReads(std::move(wanted)),
        [&](int64_t i, const char* row) { CopyRow(row, these, i); }, nullptr));
    // Those that are there move together.
    int64_t next = 0;
    for (int64_t i = 0; i < count; ++i) {
      if (outcomes[static_cast<size_t>(i)] != Outcome::kFound) continue;
      if (out.keys.data) out.keys[*n + next] = keys[static_cast<size_t>(i)];
      const auto move = [&](const Rows& rows, int64_t bytes) {
        if (rows.data != nullptr && next < i && bytes > 0) {
          std::memmove(rows[next], rows[i], static_cast<size_t>(bytes));
        }
      };
      move(these.values, layout_.value_bytes);
      move(these.slots, layout_.slots_bytes);
      move(these.meta, layout_.meta_bytes);
      ++next;
    }
    *n += next;
    return Status();
  }

  RowOrder OrderOf(Key key, const char* meta, MetaField field) const {
    return {ReadInt64(meta + layout_.meta_field[static_cast<int>(field)]),
            Mix64(static_cast<uint64_t>(key))};
  }

  // Calls visit(key, order) for the rows that are above.
  template <typename Visit>
  Status ForEachAbove(MetaField field, const Visit& visit) const {
    std::vector<Key> keys(static_cast<size_t>(kScanRows));
    std::vector<int64_t> meta(static_cast<size_t>(kScanRows * layout_.meta_bytes / 8));
    char* const bytes = reinterpret_cast<char*>(meta.data());
    Cursor cursor;
    while (!cursor.done) {
      RowParts out;
      out.keys = keys;
      out.meta = Rows(bytes, kScanRows, layout_.meta_bytes);
      int64_t count = 0;
      DYNEMB_RETURN_IF_ERROR(tiers_->above()->Export(OneThread(), &cursor, out, &count));
      for (int64_t i = 0; i < count; ++i) {
        const Key key = keys[static_cast<size_t>(i)];
        visit(key, OrderOf(key, out.meta[i], field));
      }
    }
    return Status();
  }

  // The same for the rows that are below and not above.
  template <typename Visit>
  Status ForEachOnlyBelow(MetaField field, const Visit& visit) const {
    if (tiers_->below()->empty()) return Status();
    std::vector<Key> keys;
    std::vector<RowOrder> orders;
    std::vector<Outcome> outcomes;
    const auto flush = [&] {
      DYNEMB_RETURN_IF_ERROR(tiers_->FindAbove(keys, &outcomes));
      for (size_t i = 0; i < keys.size(); ++i) {
        if (outcomes[i] == Outcome::kMissing) visit(keys[i], orders[i]);
      }
      keys.clear();
      orders.clear();
      return Status();
    };
    DYNEMB_RETURN_IF_ERROR(tiers_->below()->ForEachRow([&](Key key, const char* row) {
      keys.push_back(key);
      orders.push_back(OrderOf(key, row + layout_.meta_offset, field));
      return static_cast<int64_t>(keys.size()) < kScanRows ? Status() : flush();
    }));
    return flush();
  }

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

}  // namespace

Status MakeTieredTable(const TableSchema& schema, const TableOptions& options,
                       const StorageOptions& storage, std::unique_ptr<Table>* table) {
  DYNEMB_RETURN_IF_ERROR(schema.Validate());
  DYNEMB_RETURN_IF_ERROR(options.Validate());
  if (storage.max_bytes < 0 && storage.max_rows < 0) {
    return InvalidArgument("storage: got no limit of host memory, want one");
  }
  if (storage.disk == nullptr) return InvalidArgument("storage: got no disk, want one");
  return OrNoMemory([&] {
    std::unique_ptr<Tiers> tiers;
    DYNEMB_RETURN_IF_ERROR(Tiers::Make(schema, options, storage, &tiers));
    auto made = std::make_unique<Tiered>(std::move(tiers), std::make_shared<TierChanges>(), schema,
                                         options, storage.in_background);
    if (options.track_changes) DYNEMB_RETURN_IF_ERROR(made->BeginEpoch(OneThread(), 1));
    *table = std::move(made);
    return Status();
  });
}

}  // namespace dynemb

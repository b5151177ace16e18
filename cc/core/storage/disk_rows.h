// DiskRows: the rows of a table on disk: a RowLog and the DiskIndex that says which of its records
// are the rows.
//
// Rows are given and read in the layout of RowLayout, row_bytes each. When the table gets another
// schema the rows on disk stay as they are; each is read as the schema of now has it, by what is
// known of the schemas between: slots that another optimizer, or none, had meanwhile are initial
// ones, as Table::PrepareMove says of a move.
//
// What an eviction policy asks of a row is in the index, so that the lowest rows are found, and
// expired ones told from others, without reading any. An expired row is there until it is removed.
#ifndef TF_DYNEMB_CC_CORE_STORAGE_DISK_ROWS_H_
#define TF_DYNEMB_CC_CORE_STORAGE_DISK_ROWS_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "cc/core/base/hash.h"
#include "cc/core/base/status.h"
#include "cc/core/storage/disk_index.h"
#include "cc/core/storage/index_file.h"
#include "cc/core/storage/row_log.h"
#include "cc/core/table/row_layout.h"
#include "cc/core/table/row_scores.h"

namespace dynemb {

// Reads (Find, Read, ForEachRow, numbers) from any number of threads; changes alone.
class DiskRows {
 public:
  // There is no schema yet.
  DiskRows(std::shared_ptr<DiskFolder> folder, int64_t least_file_bytes,
           const EvictionPolicy& policy, std::shared_ptr<PolicyClock> clock);
  // Of rows that are opened again (reopening.h): a file that has some of them; where they are, with
  // room for so many at once; and at the end ReadNumbers, which reads what the policy asks, if
  // there is one, from all rows, and sets the clock to the latest. kDataLoss: a key is there twice.
  Status ShareFile(const RowLog::File& file, int64_t* slot) { return log_.ShareFile(file, slot); }
  Status PlaceRows(Span<const Key> keys, Span<const Location> locations, int64_t room);
  Status ReadNumbers();

  bool empty() const { return index_.size() == 0; }
  int64_t size() const { return index_.size(); }
  // Of a row that has not expired; kNowhere: there is none.
  Location Find(uint64_t hash) const {
    const DiskIndex::Entry entry = index_.FindEntry(hash);
    return entry.location == kNowhere || HasExpired(entry) ? kNowhere : entry.location;
  }
  // Of any.
  Location FindAny(uint64_t hash) const { return index_.Find(hash); }
  bool HasExpired(const DiskIndex::Entry& entry) const {
    return expires_ && scores_->HasExpired(entry.numbers);
  }
  int64_t Score(const DiskIndex::Entry& entry) const { return scores_->Score(entry.numbers); }
  void PrefetchEntry(uint64_t hash) const { index_.PrefetchEntry(hash); }
  const DiskIndex& index() const { return index_; }
  // Calls visit(i, hash) for each of some keys, whose entries are fetched ahead.
  template <typename Visit>
  void ForEachHash(Span<const Key> keys, const Visit& visit) const {
    constexpr int64_t kAhead = 8;
    uint64_t ahead[kAhead];
    const auto fetch = [&](int64_t i) {
      if (i >= keys.size) return;
      ahead[i % kAhead] = DiskHash(keys[i]);
      index_.PrefetchEntry(ahead[i % kAhead]);
    };
    for (int64_t i = 0; i < kAhead; ++i) fetch(i);
    for (int64_t i = 0; i < keys.size; ++i) {
      const uint64_t hash = ahead[i % kAhead];
      fetch(i + kAhead);
      visit(i, hash);
    }
  }
  // As of RowLog.
  uint64_t NumberOf(Location location) const { return log_.NumberOf(location); }

  // Reads the rows at locations that ascend, each once, to rows + i * row_bytes. Once this is
  // prepared others may change all but the schema.
  RowLog::Reads PrepareReads(Span<const Location> locations) const {
    return log_.PrepareReads(locations);
  }
  Status Read(const RowLog::Reads& reads, char* rows) const;
  Status Read(Span<const Location> locations, char* rows) const {
    return Read(PrepareReads(locations), rows);
  }
  // Calls row(key, bytes) for each row, in no order. kDataLoss: not all could be read.
  using RowFunction = std::function<Status(Key key, const char* row)>;
  Status ForEachRow(const RowFunction& row) const;

  // Inserts or overwrites. After an error some of the rows may have been: each is as it was, or as
  // it was given.
  Status Put(Span<const Key> keys, const char* rows);
  // False: there was none.
  bool Remove(uint64_t hash);
  void Clear();
  // Where the rows of a part are that have not expired, and what of their files; after the entries
  // and files that are there already.
  void ForFlush(int part, IndexEntries* entries, FlushedShard* flushed) const;
  // What RowLog says; and writes rows whose files could not be synced to others.
  void HoldSlots(bool held) { log_.HoldSlots(held); }
  bool IsUnsynced(Location location) const { return log_.IsUnsynced(RowLog::SlotOf(location)); }
  void SetUnsynced(uint64_t number) { log_.SetUnsynced(number); }
  Status MoveUnsynced();
  // Compaction: the rows of a file of which little is live are written to another, a block at a
  // time, so that there may be calls between two.
  //
  // All files are to have at most kMostBytes times the live bytes, and two of the least files; they
  // are compacted before that, from kCompactedBytes on.
  static constexpr double kCompactedBytes = 1.375, kMostBytes = 1.5;
  bool HasMoreBytesThan(double share) const {
    return static_cast<double>(log_.file_bytes() - 2 * least_file_bytes_) >
           share * static_cast<double>(log_.live_bytes());
  }
  // The block that is to be moved next; false: there is none. It is to be read, and may be without
  // any lock.
  bool NextToMove(RowLog::Block* block);
  // Moves those of its rows that are still where they were; `read`: what came of reading it.
  // Errors: not all could be moved; all are there, and it is tried again later. What the disk does
  // not give is left (kDataLoss), which is no error here. Does not throw.
  Status Move(const RowLog::Block& block, Status read);
  // What a call does of it, for the rows that it has put and removed, if files have more than
  // kMostBytes.
  Status Compact();
  // Rewrites all files that have dead records, but for the one that is written. Errors: not all
  // could be rewritten, as of kDataLoss: a row is damaged; all rows are there.
  Status RewriteDead();

  // Another schema, from here on. Prepared before, Set needs no memory.
  class NextSchema {
   private:
    friend class DiskRows;
    std::unique_ptr<TableSchema> schema;  // null: it is that of now
    std::string text;
    std::vector<char> initial_slots;
  };
  Status PrepareSchema(const TableSchema& schema, NextSchema* next);
  void SetSchema(NextSchema next);

  int64_t memory_bytes() const { return index_.memory_bytes(); }
  int64_t live_bytes() const { return log_.live_bytes(); }
  int64_t file_bytes() const { return log_.file_bytes(); }
  int64_t rows_read() const { return rows_read_; }
  int64_t rows_written() const { return rows_written_; }

 private:
  Status MoveRows(const RowLog::Block& block);
  // Of a row of now.
  int64_t record_bytes() const {
    return layouts_.back().layout.row_bytes + RowLog::kRecordHeaderBytes;
  }

  // What remains of rows of a layout: their values, and these parts.
  struct Layout {
    explicit Layout(const TableSchema& schema) : layout(schema) {
      for (bool& field : keeps_meta) field = true;
    }
    RowLayout layout;
    bool is_current = true;
    bool keeps_slots = true;
    bool keeps_meta[kMetaFields];
  };

  // Writes the rows of all files of which moves(slot) to others. kDataLoss: a row of them is
  // damaged.
  template <typename Moves>
  Status MoveFiles(const Moves& moves);
  // A row of an earlier layout as one of now.
  void Convert(SchemaNumber schema_number, const char* row, char* to) const;
  // What the policy asks of a row in the layout of now.
  void NumbersOf(const char* row, int64_t* numbers) const;

  const EvictionPolicy policy_;
  const bool expires_;
  const std::shared_ptr<PolicyClock> clock_;
  std::optional<RowScores> scores_;  // by the layout of now; none without a policy
  const std::shared_ptr<DiskFolder> folder_;
  DiskIndex index_;
  RowLog log_;
  const int64_t least_file_bytes_;
  int64_t removed_rows_ = 0;  // for which Compact has not worked yet
  int64_t put_rows_ = 0;      // by calls, since then
  // The file that is compacted, and how far NextToMove has come in it.
  struct {
    int64_t slot = 0;
    uint64_t number = 0;  // 0: there is none
    int64_t end = 0;
  } moving_;
  std::vector<std::unique_ptr<TableSchema>> schemas_;  // by schema_number, as the layouts
  std::vector<Layout> layouts_;
  std::vector<char> initial_slots_;
  mutable std::atomic<int64_t> rows_read_{0};
  int64_t rows_written_ = 0;
};

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_CORE_STORAGE_DISK_ROWS_H_

// TieredTable: a table whose rows are in host memory as far as a budget of bytes allows, and on
// disk otherwise. What it says and holds is what one table in memory would, to the last bit.
//
// Where a row is. Above: in a host table. Below: in DiskRows. A row that is both above and below is
// the same in both: a copy below, which saves writing the row when it leaves again, goes before the
// row changes. So the row above, if there is one, is the row. One that is dirty (CacheTable) has no
// copy: a call may simply write it, as it may any key that is not in the index of the disk.
//
// Calls. Reads look above and then below. Find brings what it read from below up, as a copy, since
// training writes what it has looked up; ReadRows and the scans leave rows where they are. A call
// that writes has all of its rows above: it brings up those that are below, for which others leave.
// A batch of more keys than there is room for above is done in slices, each with all positions of
// its keys. Erase reads nothing. Rows leave for below in the order of a clock: those that no call
// has named for two laps of its hand.
//
// Limits. max_rows and the eviction policy are of both tiers together, and hold as those of a host
// table do (TableOptions, Evictor); a bound of the bytes on disk is one of rows as well, so that
// rows that are dead and files of the last flush have their room. A table of up to
// Evictor::kUnitRows rows evicts the same rows, a larger one the lowest of a sample of its own. No
// row is read for that: what the policy asks is in the index of the disk. A call that may need more
// room than there is has the lock alone. The table above does not remove rows by itself
// (TableOptions::removes); one that has expired is missing there as well as below from the
// same moment on, by one clock.
//
// Locks. One lock for all of it, shared by calls that move no rows between the tiers (reads, which
// have the disk read without it, and writes of keys that are not below while there is room above),
// and taken alone by those that do, by EraseBelow, Clear, BeginEpoch, each part of a flush and of
// the upkeep. The host table's own locks come after it. Because calls hold it while their tasks
// run, these run on threads that never wait for it (cc/core/base/worker_threads.h).
//
// Between calls, a thread makes room above for the next ones and compacts files (upkeep): a part at
// a time, with the lock held alone for that; files are read without it. A call that finds no room
// makes it, and one that has removed rows compacts, where the thread has not come to it.
//
// Errors. That the disk is full, fails, or has damaged a row is the status of the call that needed
// it, and names the file. No row that is above is lost by it, and rows that are above can be read
// and written on. If a batch of several slices meets such an error, the keys whose outcome is not
// kFull have been done, as when memory runs out; and rows that had to leave for them may have left.
#ifndef TF_DYNEMB_CC_CORE_STORAGE_TIERED_TABLE_H_
#define TF_DYNEMB_CC_CORE_STORAGE_TIERED_TABLE_H_

#include <cstdint>
#include <memory>
#include <set>

#include "cc/core/base/status.h"
#include "cc/core/storage/flush_manifest.h"
#include "cc/core/storage/index_file.h"
#include "cc/core/storage/row_log.h"
#include "cc/core/storage/storage_options.h"
#include "cc/core/table/table.h"
#include "cc/core/table/table_options.h"

namespace dynemb {

// Numbers of the tiers of one table; those without "now" only grow.
struct TierStats {
  int64_t rows_above = 0;    // now
  int64_t bytes_above = 0;   // now: of the host table
  int64_t rows_below = 0;    // now: that are only there
  int64_t bytes_below = 0;   // now: of the files
  int64_t index_bytes = 0;   // now: of the index of the rows below, in memory
  int64_t hits = 0;          // keys of calls that needed nothing from below
  int64_t misses = 0;        // keys of calls whose rows came from below
  int64_t rows_read = 0;     // from disk
  int64_t rows_written = 0;  // to disk, also by compaction
  int64_t rows_left = 0;     // rows that left the host table to make room

  template <typename Visit>
  static void ForEach(const Visit& visit) {
    visit("rows_above", &TierStats::rows_above);
    visit("bytes_above", &TierStats::bytes_above);
    visit("rows_below", &TierStats::rows_below);
    visit("bytes_below", &TierStats::bytes_below);
    visit("index_bytes", &TierStats::index_bytes);
    visit("hits", &TierStats::hits);
    visit("misses", &TierStats::misses);
    visit("rows_read", &TierStats::rows_read);
    visit("rows_written", &TierStats::rows_written);
    visit("rows_left", &TierStats::rows_left);
  }
};

class TieredTable : public Table {
 public:
  virtual TierStats tier_stats() const = 0;

  // Of a flush (flush.h), which is one at a time and during which the schema does not change. After
  // Begin, End must be called, with the files that could not be synced.
  virtual Status BeginFlush() = 0;
  // Has the rows of a 64th of the hashes on disk, too, and adds where they are.
  virtual Status FlushPart(int part, IndexEntries* entries, FlushedShard* flushed) = 0;
  virtual void EndFlush(const std::set<uint64_t>& unsynced) = 0;

  // Of a Reopening (reopening.h), in the life of which nothing else is called; as of DiskRows. At
  // the end as many rows leave as are more than there may be, if the table evicts.
  virtual Status ShareFile(const RowLog::File& file, int64_t* slot) = 0;
  virtual Status PlaceRows(Span<const Key> keys, Span<const Location> locations, int64_t room) = 0;
  virtual Status EndReopening() = 0;

  // Waits until nothing is to be done between calls (StorageOptions::in_background).
  virtual void WaitForUpkeep() = 0;

  // Rewrites the files below that have dead records, but for the one that is written; see
  // compact.h.
  virtual Status RemoveDeadRecords() = 0;
};

// An empty table; or one that is to get its rows of StorageOptions::flushed, of which `schema` is
// StorageOptions::SchemaFor, from a Reopening. max_rows is its own, no share of a RowBudget.
// TableOptions::max_bytes is of the files below (Tiers::RowsWithinDisk), and what DiskFolder has of
// it is of those of all shards. Errors: a schema or options that are not valid; no room for a row.
Status MakeTieredTable(const TableSchema& schema, const TableOptions& options,
                       const StorageOptions& storage, std::unique_ptr<Table>* table);

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_CORE_STORAGE_TIERED_TABLE_H_

// Reopening: gives the shards of a table the rows of the last flush of its folder.
//
// Each row goes to the shard that owns it now, whatever shards there were. No row is read or
// written for that: a file that has rows of several shards is in the log of each of them, which
// finds its own by its index. Their compaction parts them later, since to each of them the rows of
// the others are dead, and the file goes with the last one's. On disk nothing changes before the
// next flush, whose manifest names a file in each shard that has rows of it.
#ifndef TF_DYNEMB_CC_CORE_STORAGE_REOPENING_H_
#define TF_DYNEMB_CC_CORE_STORAGE_REOPENING_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "cc/core/base/span.h"
#include "cc/core/base/status.h"
#include "cc/core/storage/disk_folder.h"
#include "cc/core/storage/index_file.h"
#include "cc/core/storage/row_log.h"
#include "cc/core/storage/tiered_table.h"
#include "cc/core/table/key_strings.h"

namespace dynemb {

// One thread at a time. After an error the shards are of no use.
class Reopening {
 public:
  // `shards`: without rows, of StorageOptions with this flush; they must outlive this. `strings`:
  // gets those of the keys; null if the table keeps none.
  Reopening(std::shared_ptr<const FlushManifest> flushed, std::shared_ptr<DiskFolder> folder,
            std::vector<TieredTable*> shards, KeyStrings* strings);
  // The keys of the next rows, which Place must give to shards before the call after; none: all
  // have their rows. Errors: of files that are missing or damaged. kFailedPrecondition: there are
  // more rows than the shards may have together, and they do not evict.
  Status Next(Span<const Key>* keys);
  // The shard that had these rows.
  int64_t had_shard() const { return static_cast<int64_t>(shard_); }
  // Gives these rows to shards. Errors: not one for each key; one that is none of the table.
  Status Place(Span<const int32_t> shard_ids);

 private:
  struct OpenedFile {
    std::shared_ptr<const RowLog::File> file;
    std::vector<int64_t> slots;  // in the log of each shard; -1: it is not there
  };
  struct Placed {
    std::vector<Key> keys;
    std::vector<Location> locations;
  };
  // The files of a shard of the flush.
  Status OpenFiles();
  Status CheckLimits() const;

  const std::shared_ptr<const FlushManifest> flushed_;
  const std::shared_ptr<DiskFolder> folder_;
  const std::vector<TieredTable*> shards_;
  KeyStrings* const strings_;
  size_t shard_ = 0;        // of the flush
  bool has_shard_ = false;  // its files and its index are open
  bool begins_ = false;     // the next rows are the first of its index
  IndexFileReader index_;
  const IndexEntries* entries_ = nullptr;  // of Next
  std::map<uint64_t, OpenedFile> files_;   // by number
  std::vector<OpenedFile*> at_;            // by slot of the shard of the flush; null: there is none
};

// Gives all rows to the shards shard_ids(keys, reopening).
using ShardIdsFunction =
    std::function<std::vector<int32_t>(Span<const Key> keys, const Reopening& reopening)>;
Status Reopen(Reopening* reopening, const ShardIdsFunction& shard_ids);

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_CORE_STORAGE_REOPENING_H_

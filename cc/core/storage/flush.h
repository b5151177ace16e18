// A flush: all rows of a table on disk, so that the folder can be opened again as of now
// (reopening.h).
//
// Calls of the table go on meanwhile, and wait for a 64th of the rows at most: those of it that are
// only in memory are written, as copies, and where all of them are is noted. Then files are synced
// and the manifest is put in place, in no lock. So the rows of a flush are those that the table had
// while it ran, each whole; a call that ran beside it may be in some of its rows. A process or a
// machine that ends at any moment leaves the rows of the last flush that had returned, or of the
// one after.
#ifndef TF_DYNEMB_CC_CORE_STORAGE_FLUSH_H_
#define TF_DYNEMB_CC_CORE_STORAGE_FLUSH_H_

#include <cstdint>
#include <functional>
#include <vector>

#include "cc/core/base/status.h"
#include "cc/core/storage/disk_folder.h"
#include "cc/core/storage/tiered_table.h"
#include "cc/core/table/key_strings.h"

namespace dynemb {

// Flushes the shards of a table, all of this folder. `strings`: null if the table keeps none.
// `step`: what it is called, from 0. `hold`: calls its argument, the flush, with whatever else it
// holds meanwhile, after the strings are pinned; null: nothing. Errors: of the disk; rows that are
// damaged. The last flush stands then, or this one if it could not be said to have ended.
Status Flush(const std::vector<TieredTable*>& shards, KeyStrings* strings, DiskFolder* folder,
             int64_t step,
             const std::function<Status(const std::function<Status()>&)>& hold = nullptr);

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_CORE_STORAGE_FLUSH_H_

// The compaction of folders that no table has.
#ifndef TF_DYNEMB_CC_CORE_STORAGE_COMPACT_H_
#define TF_DYNEMB_CC_CORE_STORAGE_COMPACT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "cc/core/base/file_system.h"
#include "cc/core/base/status.h"
#include "cc/core/storage/storage_options.h"

namespace dynemb {

// Opens the table of the last flush, rewrites the files that have dead records, and flushes it, as
// the step that it was. So a process or a machine that ends at any moment leaves the files of
// before or those of after, which have the same rows; and until the end there is room for both.
// Errors: there is no flush; another table has a folder; of the disk; a row that is damaged. The
// last flush stands then, or this one if it could not be said to have ended.
Status CompactFolders(FileSystem* files, const std::vector<std::string>& paths,
                      int64_t least_file_bytes = StorageOptions().least_file_bytes);

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_CORE_STORAGE_COMPACT_H_

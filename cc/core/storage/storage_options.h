// StorageOptions: how the rows of a table are stored in this process.
#ifndef TF_DYNEMB_CC_CORE_STORAGE_STORAGE_OPTIONS_H_
#define TF_DYNEMB_CC_CORE_STORAGE_STORAGE_OPTIONS_H_

#include <cstdint>
#include <memory>
#include <string>

#include "cc/core/base/status.h"
#include "cc/core/storage/disk_folder.h"

namespace dynemb {

// No more part of a table's schema than TableOptions.
struct StorageOptions {
  // What rows above and their index may take. On top come about 16 bytes for each row on disk, 2
  // for each row above, and what a call needs.
  int64_t max_bytes = -1;
  // How many rows may be above, besides; negative: any number.
  int64_t max_rows = -1;
  // Where the others are.
  std::shared_ptr<DiskFolder> disk;
  // A file is ended when it has so many bytes, and a sixteenth of all.
  int64_t least_file_bytes = int64_t{4} << 20;

  // Reads the text that the op DynembTable is given, "host BYTES owner WORD disk PATH", and opens
  // the folder: see DiskFolder::OpenFor.
  static Status Parse(const std::string& text, FileSystem* files, StorageOptions* options);
  // Those of one of several shards, which have equal shares of the memory.
  StorageOptions OfShard(int64_t shards) const;
};

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_CORE_STORAGE_STORAGE_OPTIONS_H_

// StorageOptions: how the rows of a table are stored in this process.
#ifndef TF_DYNEMB_CC_CORE_STORAGE_STORAGE_OPTIONS_H_
#define TF_DYNEMB_CC_CORE_STORAGE_STORAGE_OPTIONS_H_

#include <cstdint>
#include <memory>
#include <string>

#include "cc/core/base/status.h"
#include "cc/core/storage/disk_folder.h"
#include "cc/core/table/row_layout.h"

namespace dynemb {

// No more part of a table's schema than TableOptions.
struct StorageOptions {
  // What rows above and their index may take. On top come about 16 bytes for each row on disk, 2
  // for each row above, and what a call needs.
  int64_t max_bytes = -1;
  // How many rows may be above, besides; negative: any number.
  int64_t max_rows = -1;
  // Where the others are; null: there are no others, and no bound (of a table on a GPU).
  std::shared_ptr<DiskFolder> disk;
  // Of a table on a GPU: what rows and their index may take there; the others are here.
  int64_t max_device_bytes = -1;
  // A file is ended when it has so many bytes, and a sixteenth of all.
  int64_t least_file_bytes = int64_t{4} << 20;
  // Whether a thread makes room and compacts files between calls; else calls do it.
  bool in_background = false;
  // The rows to begin with, of DiskFolder::TakeFlushed, when a Reopening has given them to their
  // shards; null: none.
  std::shared_ptr<const FlushManifest> flushed;
  // Whether missing keys then read the initial values that they read there.
  bool keep_seed = false;
  // Whether another table of the same owner has the folder already.
  bool is_shared = false;
  // Whether the shard of a key is KeyMod; else who makes the table says it.
  bool key_mod = true;

  // Reads the text that the op DynembTable is given for a table of a name, whose files may take so
  // many bytes, and opens the folders: see DiskFolder::OpenFor. A line of words and one for each
  // folder:
  //   host BYTES owner WORD reopen 0|1 keep_seed 0|1 direct 0|1 key_mod 0|1 part -|NAME
  //   PATH
  // and before them, of a table on a GPU, 'device BYTES', which may be all. direct: past the page
  // cache (DirectFileSystem). part: see folder_of_part.h.
  static Status Parse(const std::string& text, const std::string& name, int64_t max_bytes,
                      StorageOptions* options);

  // The schema of a table that is to have this one and begins with the rows of a flush: with their
  // optimizer and meta. kFailedPrecondition: they are none that such a table can have.
  Status SchemaFor(const TableSchema& schema, TableSchema* of_table) const;
  // Those of each of several shards, which have equal shares of the memory.
  StorageOptions OfShard(int64_t shards) const;
};

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_CORE_STORAGE_STORAGE_OPTIONS_H_

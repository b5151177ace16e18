// FlushedFolders: what the last flush has left in the folders of a table, to look at and to verify.
//
// Nothing is written, locked or removed. A table may have the folders meanwhile: all files are
// opened by Open, and can be read when later flushes have removed them.
#ifndef TF_DYNEMB_CC_CORE_STORAGE_FLUSHED_FOLDERS_H_
#define TF_DYNEMB_CC_CORE_STORAGE_FLUSHED_FOLDERS_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "cc/core/base/file_system.h"
#include "cc/core/base/status.h"
#include "cc/core/storage/disk_folder.h"
#include "cc/core/storage/flush_manifest.h"
#include "cc/core/storage/row_log.h"

namespace dynemb {

class FlushedFolders {
 public:
  struct File {
    std::string path;
    DiskFolder::Kind kind;
    size_t shard;
    int64_t bytes;    // as of the flush
    int64_t rows;     // live ones; -1: unknown, for a file is damaged
    int64_t records;  // with the dead ones; -1: unknown
    int64_t record_bytes;
  };
  static constexpr int64_t kMostDamages = 1000;
  struct Damage {
    std::string path;
    int64_t offset;  // -1: of no place in the file
    std::string what;
  };

  // Reads the indexes. Takes 16 bytes of memory for each row. Errors: those of
  // DiskFolder::OpenToRead; the system does not open files, as it has too many; a table flushes
  // again and again. What is damaged of other files is in damages().
  static Status Open(FileSystem* files, const std::vector<std::string>& paths,
                     std::unique_ptr<FlushedFolders>* folders);

  const FlushManifest& manifest() const { return *manifest_; }
  // Of each shard the index, and then its rows.
  const std::vector<File>& files() const { return files_; }
  // What has been found until now, of each file the first kMostDamages.
  const std::vector<Damage>& damages() const { return damages_; }
  // Reads all records of a file, and compares them with the index.
  void Verify(size_t file);

 private:
  struct Entry {
    Key key;
    Location location;
  };
  struct Shard {
    explicit Shard(const std::shared_ptr<DiskFolder>& disk) : log(disk, 0) {}
    RowLog log;
    std::map<int64_t, size_t> files;  // by slot, in files_
    std::vector<Entry> entries;       // of the index, by location
  };

  FlushedFolders() = default;
  void CheckParts();
  void OpenShard(const FlushedShard& flushed);
  void ReadIndex(const FlushedShard& flushed, Shard* shard, File* index);
  void CheckTwice(const File& index, Shard* shard);
  void Found(const std::string& path, int64_t offset, const std::string& what);
  void Found(const std::string& path, int64_t offset, const Status& status);

  std::shared_ptr<DiskFolder> disk_;
  std::shared_ptr<const FlushManifest> manifest_;
  std::vector<std::unique_ptr<Shard>> shards_;
  std::vector<File> files_;
  std::vector<Damage> damages_;
  std::map<std::string, int64_t> damages_of_;  // by path, with those that are not told
  Status failed_;                              // the first error that is no damage
};

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_CORE_STORAGE_FLUSHED_FOLDERS_H_

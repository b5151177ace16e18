// DiskFolder: the folder of a table's files on disk, which belongs to one table of one process.
//
// A lock file keeps others out. Files that a process left behind that has ended are removed when
// the folder is opened: rows of a tier live as long as their table, and what shall live longer is
// saved in checkpoints and snapshots. Other files are left alone.
#ifndef TF_DYNEMB_CC_CORE_STORAGE_DISK_FOLDER_H_
#define TF_DYNEMB_CC_CORE_STORAGE_DISK_FOLDER_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "cc/core/base/file_system.h"
#include "cc/core/base/status.h"

namespace dynemb {

// Thread-safe. All shards of a table share one, and those that take their place, too.
class DiskFolder {
 public:
  // Makes the folder if need be. kFailedPrecondition: another table has it.
  static Status Open(FileSystem* files, const std::string& path,
                     std::shared_ptr<DiskFolder>* folder);
  // The same for all tables of one owner, which are one to the user (a restore makes another one
  // beside it and puts that in its place): they share the folder that is open.
  static Status OpenFor(FileSystem* files, const std::string& path, const std::string& owner,
                        std::shared_ptr<DiskFolder>* folder);
  DiskFolder(const DiskFolder&) = delete;
  DiskFolder& operator=(const DiskFolder&) = delete;

  FileSystem* files() const { return files_; }
  const std::string& path() const { return path_; }
  // The number of a new file, and its path.
  uint64_t NewFile(std::string* path);

 private:
  DiskFolder(FileSystem* files, std::string path, std::unique_ptr<FileLock> lock)
      : files_(files), path_(std::move(path)), lock_(std::move(lock)) {}

  FileSystem* const files_;
  const std::string path_;
  const std::unique_ptr<FileLock> lock_;
  std::atomic<uint64_t> next_file_{1};
};

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_CORE_STORAGE_DISK_FOLDER_H_

// The file of a shard's index as of a flush: where its rows are, and their strings if the table
// keeps these. FORMAT.md describes it.
#ifndef TF_DYNEMB_CC_CORE_STORAGE_INDEX_FILE_H_
#define TF_DYNEMB_CC_CORE_STORAGE_INDEX_FILE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "cc/core/base/file_system.h"
#include "cc/core/base/status.h"
#include "cc/core/storage/disk_folder.h"
#include "cc/core/storage/disk_index.h"

namespace dynemb {

struct IndexEntries {
  std::vector<Key> keys;
  std::vector<Location> locations;
  std::vector<std::string_view> strings;  // of each entry, or none
};

class IndexFileWriter {
 public:
  // `folder`: whose space it takes, if it is not null.
  Status Open(FileSystem* files, const std::string& path, uint64_t number,
              DiskFolder* folder = nullptr);
  Status Append(const IndexEntries& entries);
  // Syncs and closes it.
  Status Finish();
  int64_t entries() const { return entries_; }
  int64_t bytes() const { return bytes_; }

 private:
  std::unique_ptr<WritableFile> file_;
  Status Write(std::string_view bytes);
  DiskFolder* folder_ = nullptr;
  uint64_t number_ = 0;
  int64_t entries_ = 0, bytes_ = 0;
  std::string block_;
};

// Reads a file of so many entries, in the order in which they were written. kDataLoss: it is
// damaged, cut off, or another one.
class IndexFileReader {
 public:
  Status Open(FileSystem* files, const std::string& path, uint64_t number, int64_t entries);
  // The next ones, which stay until the next call; none: there are no more.
  Status Next(const IndexEntries** entries);
  // How far it has been read, in bytes.
  int64_t position() const { return at_; }
  const std::string& path() const { return path_; }

 private:
  Status Damaged() const;
  std::string path_;
  std::unique_ptr<ReadableFile> file_;
  uint64_t number_ = 0;
  int64_t size_ = 0, at_ = 0, left_ = 0;  // bytes; entries
  std::string bytes_;
  IndexEntries some_;
};

// Calls block(entries) for all of a file. *position: where the block begins, or what is damaged,
// and at the end how far it was read.
using EntriesFunction = std::function<Status(const IndexEntries& entries)>;
Status ReadIndexFile(FileSystem* files, const std::string& path, uint64_t number, int64_t entries,
                     const EntriesFunction& block, int64_t* position = nullptr);

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_CORE_STORAGE_INDEX_FILE_H_

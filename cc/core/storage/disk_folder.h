// DiskFolder: the folders of a table's files on disk, which belong to one table of one process.
//
// Mostly one folder; the files of several are spread over them, one after the other. A lock file in
// each keeps others out.
//
// What lasts. A flush (flush.h) names the files that have the rows as of then, in the file FLUSHED
// of the first folder, which it puts in place in one step. A file that the last flush names is
// removed when a later one does not. Other files last as long as the table: those that a process
// left behind are removed when the folder is opened. Files of other names are left alone. The other
// folders of a flush say in a file PART which they are, so that none is opened without the first.
#ifndef TF_DYNEMB_CC_CORE_STORAGE_DISK_FOLDER_H_
#define TF_DYNEMB_CC_CORE_STORAGE_DISK_FOLDER_H_

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "cc/core/base/file_system.h"
#include "cc/core/base/status.h"
#include "cc/core/storage/flush_manifest.h"

namespace dynemb {

// Thread-safe. All shards of a table share one, and those that take their place, too.
class DiskFolder {
 public:
  struct Options {
    std::vector<std::string> paths;  // no two of them the same
    bool reopen = true;              // else what a flush has left there is removed
    std::string name = "";           // of the table; "": any
    int64_t max_bytes = -1;          // of the files of rows and indexes; negative: any number
  };
  // Makes the folders if need be. kFailedPrecondition: another table has one of them, or the last
  // flush was of other folders or of a table of another name, or has more bytes than there may be.
  // kDataLoss: what it has left is damaged or not all there. After an error no file has been
  // removed.
  static Status Open(FileSystem* files, const Options& options,
                     std::shared_ptr<DiskFolder>* folder);
  // To read what the last flush has left, also while a table has the folders: nothing in them is
  // locked, made or removed. TakeFlushed says what there is; files may be missing. If these are not
  // all folders of the flush, the others have a name that says so. kNotFound: there is no flush;
  // kDataLoss: FLUSHED is damaged.
  static Status OpenToRead(FileSystem* files, const std::vector<std::string>& paths,
                           std::shared_ptr<DiskFolder>* folder);
  // Whether a flush has left rows in the first folder of a table.
  static Status HasFlush(FileSystem* files, const std::string& path, bool* has_flush);
  // The same for all tables of one owner, which are one to the user (a restore makes another one
  // beside it and puts that in its place): they share the folder that is open. *was_open: it is.
  static Status OpenFor(FileSystem* files, const Options& options, const std::string& owner,
                        std::shared_ptr<DiskFolder>* folder, bool* was_open);
  DiskFolder(const DiskFolder&) = delete;
  DiskFolder& operator=(const DiskFolder&) = delete;

  FileSystem* files() const { return files_; }
  // The first one, for messages.
  const std::string& path() const { return paths_[0]; }

  // What the last flush of an earlier table has left, for the table that goes on from there: once.
  std::shared_ptr<const FlushManifest> TakeFlushed();
  // What the last flush, of this or an earlier table, was called with; -1: there is none.
  int64_t flushed_step() const;

  // The file of a folder, but for the first, that says which one it is; and what it has.
  std::string PathOfPart(size_t folder) const;
  std::string PartText(size_t folder) const;
  const std::vector<std::string>& paths() const { return paths_; }

  enum class Kind { kRows, kIndex };
  // The number of a new file.
  uint64_t NewFile();
  std::string PathOf(uint64_t number, Kind kind) const;
  // That one more shard has rows in a file of the last flush, of so many bytes; each must Remove
  // it.
  void Share(uint64_t number, int64_t bytes);
  // Bytes of files of several shards, counted once less than by these.
  int64_t bytes_shared() const;
  // Before so many bytes are written to a file; they are given back when it is removed.
  // kResourceExhausted: there may not be so many more.
  Status TakeSpace(int64_t bytes);
  void GiveSpace(int64_t bytes);
  int64_t max_bytes() const { return max_bytes_; }
  // Removes a file of so many bytes, as soon as no shard has it and no flush can name it.
  void Remove(uint64_t number, Kind kind, int64_t bytes);
  // Of the files that are only there for the last flush.
  int64_t bytes_kept() const;

  // While it lives, which is alone, no file is removed. All of it is done by one thread.
  class FlushScope {
   public:
    explicit FlushScope(DiskFolder* folder);
    ~FlushScope();
    // The rows are those of this manifest, all of whose files have been synced. After an error,
    // those of the last flush or these.
    Status Commit(FlushManifest manifest);

   private:
    DiskFolder* const folder_;
    const std::lock_guard<std::mutex> alone_;
  };

 private:
  struct Kept {
    Kind kind;
    int64_t bytes;
  };
  struct Shared {
    int64_t shards = 0;
    int64_t bytes = 0;
  };

  DiskFolder(FileSystem* files, std::vector<std::string> paths)
      : files_(files), paths_(std::move(paths)) {}
  Status LockAll();
  // Removes what a flush has left.
  Status ForgetFlush();
  // Reads it, and makes sure that all of its files are there.
  Status ReadFlushed();
  Status CheckPart(size_t folder, const FlushManifest* flushed);
  Status FindFiles(const FlushManifest& flushed);
  Status RemoveOthers();
  Status CountBytes();
  Status WriteParts();
  // Puts a file in place in one step.
  Status WriteWhole(const std::string& folder, const char* name, const std::string& text);
  // Removes those kept that no flush names, if none is under way and the folders are locked.
  // Nothing is done about one that cannot be removed: it is removed when the folder is opened
  // again.
  void RemoveKept();

  FileSystem* const files_;
  const std::vector<std::string> paths_;
  std::vector<std::unique_ptr<FileLock>> locks_;
  std::mutex flush_mutex_;    // of a FlushScope; before mutex_
  mutable std::mutex mutex_;  // of what follows
  uint64_t next_file_ = 1;
  int64_t id_ = 0;  // of the folders
  bool parts_written_ = false;
  bool flushing_ = false;
  int64_t flushed_step_ = -1;
  std::shared_ptr<const FlushManifest> flushed_;  // until it is taken
  std::set<uint64_t> named_;                      // the files of the last flush
  std::map<uint64_t, Kept> kept_;                 // to be removed later
  std::map<uint64_t, Shared> shared_;             // files that were there, and who has them
  int64_t bytes_ = 0;                             // of all files, if there is a bound
  std::string name_;                              // of the table
  int64_t max_bytes_ = -1;
};

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_CORE_STORAGE_DISK_FOLDER_H_

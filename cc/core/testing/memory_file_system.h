// MemoryFileSystem: files in memory that fail, forget and are damaged when a test says so.
//
// After an idea of leveldb's FaultInjectionTestEnv: the file system knows what has been synced and
// can lose the rest. What it models:
//   an operation  every call of a file system or of one of its files is one, numbered from 0, so
//                 that a test can put a fault at each in turn;
//   a fault       the operation fails before it has had any effect, after it has had all, or, if it
//                 is an Append, after half of the data; and the process may be dead from then on;
//   a kill        all that was appended and all names stay; locks and open files are gone;
//   a power cut   of a file's data since its last Sync: all, none, a part, or as many zeros, by the
//                 seed; of the names made, moved and removed since the last SyncFolder of their
//                 folder: any of them, by the seed, but for a rename, which is one step.
// What it does not: folders are durable once made (CreateFolder promises it), and synced bytes
// change only by Put. Safe to call from any number of threads.
#ifndef TF_DYNEMB_CC_CORE_TESTING_MEMORY_FILE_SYSTEM_H_
#define TF_DYNEMB_CC_CORE_TESTING_MEMORY_FILE_SYSTEM_H_

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "cc/core/base/file_system.h"

namespace dynemb {

struct Fault {
  enum When { kBefore, kHalfWay, kAfter };
  When when = kBefore;
  Code code = Code::kInternal;
  bool dies = false;  // all later operations fail as well, without effect
};

class MemoryFileSystem : public FileSystem {
 public:
  MemoryFileSystem();
  ~MemoryFileSystem() override;

  Status NewWritableFile(const std::string& path, std::unique_ptr<WritableFile>* file) override;
  Status NewReadableFile(const std::string& path, std::unique_ptr<ReadableFile>* file) override;
  Status CreateFolder(const std::string& path) override;
  Status List(const std::string& folder, std::vector<std::string>* names) override;
  Status Remove(const std::string& path) override;
  Status Rename(const std::string& from, const std::string& to) override;
  Status SyncFolder(const std::string& folder) override;
  Status SyncFile(const std::string& path) override;
  Status Lock(const std::string& path, std::unique_ptr<FileLock>* lock) override;

  // How many operations there were.
  int64_t operations() const;
  // The `nth` operation from now on, from 0, meets the fault. One at a time.
  void Inject(int64_t nth, const Fault& fault);
  // No fault any more, and not dead.
  void Heal();

  // The process or the machine ends and starts again: open files and locks of before are dead, and
  // no fault is left.
  void Kill();
  void CutPower(uint64_t seed);

  // Around all this: a file's bytes, "" if there is none, and new ones, at once and durable.
  std::string Get(const std::string& path) const;
  void Put(const std::string& path, const std::string& data);
  // Names in a folder, sorted.
  std::vector<std::string> Names(const std::string& folder) const;

 private:
  struct Inode;
  struct Folder;
  class Writable;
  class Readable;
  class Held;
  using InodePtr = std::shared_ptr<Inode>;

  // Counts an operation and runs `effect(half)` under the mutex, unless a fault is in its way.
  template <typename F>
  Status Operation(const char* name, const std::string& path, uint64_t life, const F& effect);
  template <typename F>
  Status Operation(const char* name, const std::string& path, const F& effect);
  // The folder of a path, which must be there, and the name in it.
  Status Find(const std::string& path, Folder** folder, std::string* name);

  mutable std::mutex mutex_;
  std::map<std::string, Folder> folders_;
  std::map<std::string, const Held*> locks_;
  int64_t operations_ = 0;
  uint64_t life_ = 0;  // raised by Kill and CutPower
  int64_t fault_at_ = -1;
  Fault fault_;
  bool dead_ = false;
};

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_CORE_TESTING_MEMORY_FILE_SYSTEM_H_

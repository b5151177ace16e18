// FileSystem: the files that the engine reads and writes.
//
// An interface, so that tests can put one below that fails, forgets and damages
// (testing/memory_file_system.h), and so that kernels can offer what TensorFlow can reach. Paths
// are the file system's own; "/" separates a folder from a name. Every call says in its Status
// what it did to which path. Safe to call from any number of threads; a single open file belongs to
// one thread at a time, but for ReadableFile::Read.
//
// What survives. Bytes of a file survive a crash of the machine once Sync has returned; a name that
// was created, renamed or removed survives once SyncFolder of its folder has. A crash of the
// process alone loses nothing that was appended.
#ifndef TF_DYNEMB_CC_CORE_BASE_FILE_SYSTEM_H_
#define TF_DYNEMB_CC_CORE_BASE_FILE_SYSTEM_H_

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "cc/core/base/status.h"

namespace dynemb {

// A new file, written from its beginning. Destroying it closes it and ignores what goes wrong.
class WritableFile {
 public:
  virtual ~WritableFile() = default;
  // After an error the file holds an unknown part of the data.
  virtual Status Append(std::string_view data) = 0;
  virtual Status Sync() = 0;
  virtual Status Close() = 0;
};

class ReadableFile {
 public:
  virtual ~ReadableFile() = default;
  virtual Status Size(int64_t* bytes) const = 0;
  // Fills `out` with all of its `bytes` from `offset` on; kDataLoss if the file ends before.
  virtual Status Read(int64_t offset, int64_t bytes, char* out) const = 0;
  // What the system calls the file, to read it by other means; -1: it is none of the system's.
  virtual int descriptor() const { return -1; }
  // Of what other means must read: where it begins, how long it is, and where it goes in memory.
  virtual int64_t alignment() const { return 1; }
};

// Held until it is destroyed or the process ends, however it ends.
class FileLock {
 public:
  virtual ~FileLock() = default;
};

class FileSystem {
 public:
  virtual ~FileSystem() = default;

  // Creates the file or empties the one that is there.
  virtual Status NewWritableFile(const std::string& path, std::unique_ptr<WritableFile>* file) = 0;
  // kNotFound if there is none, kFailedPrecondition if it is a folder or a pipe.
  virtual Status NewReadableFile(const std::string& path, std::unique_ptr<ReadableFile>* file) = 0;
  // Makes the folder and those above it; one that is there already is fine. What it has made
  // survives a crash of the machine.
  virtual Status CreateFolder(const std::string& path) = 0;
  // Names in a folder, in no order. kNotFound if there is no such folder.
  virtual Status List(const std::string& folder, std::vector<std::string>* names) = 0;
  // Removes a file. kNotFound if there is none.
  virtual Status Remove(const std::string& path) = 0;
  // Gives a file another name in the same folder; a file of that name is replaced in one step.
  virtual Status Rename(const std::string& from, const std::string& to) = 0;
  virtual Status SyncFolder(const std::string& folder) = 0;
  // Syncs a file that has been written, whether it is still open or not.
  virtual Status SyncFile(const std::string& path) = 0;
  // Whether its files can be read as this one reads them, by one that is there.
  virtual Status CheckReads(const std::string&) { return Status(); }
  // kFailedPrecondition if somebody else holds it. The file stays; its bytes do not matter.
  virtual Status Lock(const std::string& path, std::unique_ptr<FileLock>* lock) = 0;
};

// Files of this machine.
FileSystem* PosixFileSystem();
// The same ones, of which nothing is synced: what is written survives a kill of the process, but
// not a crash of the machine. For what can be made again.
FileSystem* UnsyncedFileSystem();

// Files of this machine that are read past the system's page cache (O_DIRECT), for who has a cache
// of its own; what is written goes to the disk soon. kFailedPrecondition to read a file where its
// file system has no such reads.
FileSystem* DirectFileSystem();

// "folder/name".
inline std::string JoinPath(const std::string& folder, const std::string& name) {
  return folder.empty() || folder.back() == '/' ? folder + name : folder + "/" + name;
}

// Reads a whole file of at most `limit_bytes`; a longer one is kDataLoss.
Status ReadFile(FileSystem* files, const std::string& path, int64_t limit_bytes, std::string* data);

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_CORE_BASE_FILE_SYSTEM_H_

// SnapshotSave: a save into a folder from its beginning to the step that commits it atomically.
//
// Any number of writers, in this process or in others that have the same folder, write files of
// their own in between (writer.h), and say what they have written by a manifest of their files: a
// part. Nothing of it counts before Commit puts the manifest of all parts in place. So a writer
// that is missing, fails or dies means that the folder has what it had before.
#ifndef TF_DYNEMB_CC_CORE_SNAPSHOT_SAVE_H_
#define TF_DYNEMB_CC_CORE_SNAPSHOT_SAVE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cc/core/base/file_system.h"
#include "cc/core/base/status.h"
#include "cc/core/snapshot/manifest.h"

namespace dynemb {

// A writer's place among all that write a snapshot: its file k has the number k * of + index in the
// manifest, so that nobody need ask the others how many files they write.
struct WriterPlace {
  uint64_t snapshot = 0;
  int64_t index = 0;
  int64_t of = 1;
  int64_t number(int64_t k) const { return k * of + index; }
};

// The name of a file of rows.
std::string RowsFileName(uint64_t snapshot, int64_t number);

class SnapshotSave {
 public:
  // Begins a snapshot in a folder, which is made if need be. What is there stays as it is until
  // Commit. kFailedPrecondition if another snapshot is being saved there.
  static Status Begin(FileSystem* files, const std::string& folder,
                      std::unique_ptr<SnapshotSave>* save);
  // Without a Commit, removes what has been written.
  ~SnapshotSave();
  SnapshotSave(const SnapshotSave&) = delete;
  SnapshotSave& operator=(const SnapshotSave&) = delete;

  uint64_t id() const { return id_; }
  int64_t created_seconds() const { return created_seconds_; }

  // Atomically commits the snapshot, of the parts of all writers in their order. After an error the
  // earlier snapshot, if any, is still there, unless the error says that the new one is in place
  // but may not survive a crash of the machine, or that it may be. kInvalidArgument: they are not
  // the parts of this snapshot. kFailedPrecondition: they are of other tables or bases than the
  // first one, or this folder does not have their files.
  Status Commit(const std::vector<Manifest>& parts, Manifest* manifest);

 private:
  SnapshotSave(FileSystem* files, std::string folder, std::unique_ptr<FileLock> lock);
  std::string Path(const std::string& name) const { return JoinPath(folder_, name); }
  // The files of all parts by their numbers.
  Status Gather(const std::vector<Manifest>& parts, Manifest* manifest);
  // Is this file of a part in the folder?
  Status Find(const SnapshotFile& file, size_t part) const;
  // A file that has no blocks but the end.
  Status WriteEmpty(int64_t number, SnapshotFile* file);
  // Gives the manifest its name.
  Status PutInPlace(const std::string& draft, const std::string& text);
  // Removes the drafts and the files of rows that `remove` says.
  template <typename F>
  void RemoveObsoleteFiles(const F& remove);

  FileSystem* const files_;
  const std::string folder_;
  const std::unique_ptr<FileLock> lock_;
  const uint64_t id_;
  const int64_t created_seconds_;
  bool committed_ = false;
};

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_CORE_SNAPSHOT_SAVE_H_

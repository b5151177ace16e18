#include "cc/core/testing/memory_file_system.h"

#include <algorithm>
#include <random>
#include <utility>

namespace dynemb {

struct MemoryFileSystem::Inode {
  std::string data;
  std::string durable;  // data at the last Sync
};

struct MemoryFileSystem::Folder {
  using Names = std::map<std::string, InodePtr>;
  // Since the last SyncFolder: `removed` ("" for none) goes, and `added` is `inode` (null for
  // none).
  struct Change {
    std::string removed;
    std::string added;
    InodePtr inode;
  };
  static void Make(const Change& change, Names* names) {
    if (!change.removed.empty()) names->erase(change.removed);
    if (change.inode != nullptr) (*names)[change.added] = change.inode;
  }
  void Make(Change change) {
    Make(change, &names);
    changes.push_back(std::move(change));
  }

  Names names;
  Names durable;
  std::vector<Change> changes;
};

namespace {

Status NoSuch(const std::string& path) {
  return Status(Code::kNotFound, StrCat(path, ": there is no such file or folder"));
}

// What is left of a file's data after a power cut.
std::string Survivor(const std::string& data, const std::string& durable, std::mt19937_64* random) {
  // A file that was emptied and written anew has no byte that is sure.
  const bool grew = data.size() >= durable.size() && data.compare(0, durable.size(), durable) == 0;
  const size_t sure = grew ? durable.size() : 0;
  const size_t cut = sure + (*random)() % (data.size() - sure + 1);
  switch ((*random)() % 4) {
    case 0:
      return data;
    case 1:
      return durable;
    case 2:
      return data.substr(0, cut);
    default:
      return data.substr(0, cut) + std::string(data.size() - cut, '\0');
  }
}

}  // namespace

class MemoryFileSystem::Writable final : public WritableFile {
 public:
  Writable(MemoryFileSystem* files, std::string path, InodePtr inode)
      : files_(files), path_(std::move(path)), life_(files->life_), inode_(std::move(inode)) {}

  Status Append(std::string_view data) override {
    return files_->Operation("Append", path_, life_, [&](bool half) {
      if (closed_) return FailedPrecondition(path_, ": closed");
      inode_->data += data.substr(0, half ? data.size() / 2 : data.size());
      return Status();
    });
  }
  Status Sync() override {
    return files_->Operation("Sync", path_, life_, [&](bool) {
      if (closed_) return FailedPrecondition(path_, ": closed");
      inode_->durable = inode_->data;
      return Status();
    });
  }
  Status Close() override {
    return files_->Operation("Close", path_, life_, [&](bool) {
      if (closed_) return FailedPrecondition(path_, ": closed");
      closed_ = true;
      return Status();
    });
  }

 private:
  MemoryFileSystem* const files_;
  const std::string path_;
  const uint64_t life_;
  const InodePtr inode_;
  bool closed_ = false;
};

class MemoryFileSystem::Readable final : public ReadableFile {
 public:
  Readable(MemoryFileSystem* files, std::string path, InodePtr inode)
      : files_(files), path_(std::move(path)), life_(files->life_), inode_(std::move(inode)) {}

  Status Size(int64_t* bytes) const override {
    return files_->Operation("Size", path_, life_, [&](bool) {
      *bytes = static_cast<int64_t>(inode_->data.size());
      return Status();
    });
  }
  Status Read(int64_t offset, int64_t bytes, char* out) const override {
    return files_->Operation("Read", path_, life_, [&](bool) {
      const std::string& data = inode_->data;
      const int64_t size = static_cast<int64_t>(data.size());
      if (offset < 0 || bytes < 0) return InvalidArgument(path_, ": got offset ", offset);
      if (offset > size || bytes > size - offset) {
        return Status(Code::kDataLoss, StrCat(path_, ": got ", size, " bytes in all"));
      }
      data.copy(out, static_cast<size_t>(bytes), static_cast<size_t>(offset));
      return Status();
    });
  }

 private:
  MemoryFileSystem* const files_;
  const std::string path_;
  const uint64_t life_;
  const InodePtr inode_;
};

// A lock is held by whom `locks_` names; a kill forgets them all.
class MemoryFileSystem::Held final : public FileLock {
 public:
  Held(MemoryFileSystem* files, std::string path) : files_(files), path_(std::move(path)) {}
  ~Held() override {
    std::lock_guard<std::mutex> lock(files_->mutex_);
    const auto at = files_->locks_.find(path_);
    if (at != files_->locks_.end() && at->second == this) files_->locks_.erase(at);
  }

 private:
  MemoryFileSystem* const files_;
  const std::string path_;
};

MemoryFileSystem::MemoryFileSystem() = default;
MemoryFileSystem::~MemoryFileSystem() = default;

template <typename F>
Status MemoryFileSystem::Operation(const char* name, const std::string& path, uint64_t life,
                                   const F& effect) {
  std::lock_guard<std::mutex> lock(mutex_);
  const int64_t number = operations_++;
  if (dead_ || life != life_) return Status(Code::kInternal, StrCat(name, " ", path, ": dead"));
  if (number != fault_at_) return effect(false);
  dead_ = fault_.dies;
  const bool half = fault_.when == Fault::kHalfWay && std::string_view(name) == "Append";
  if (half || fault_.when == Fault::kAfter) (void)effect(half);
  return Status(fault_.code, StrCat(name, " ", path, ": injected fault"));
}

template <typename F>
Status MemoryFileSystem::Operation(const char* name, const std::string& path, const F& effect) {
  uint64_t life;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    life = life_;
  }
  return Operation(name, path, life, effect);
}

Status MemoryFileSystem::Find(const std::string& path, Folder** folder, std::string* name) {
  const size_t slash = path.find_last_of('/');
  const auto at = folders_.find(slash == std::string::npos ? "" : path.substr(0, slash));
  if (at == folders_.end()) return NoSuch(path);
  *folder = &at->second;
  *name = path.substr(slash + 1);
  return Status();
}

Status MemoryFileSystem::NewWritableFile(const std::string& path,
                                         std::unique_ptr<WritableFile>* file) {
  std::unique_ptr<WritableFile> made;
  const Status status = Operation("NewWritableFile", path, [&](bool) {
    Folder* folder;
    std::string name;
    DYNEMB_RETURN_IF_ERROR(Find(path, &folder, &name));
    InodePtr inode = folder->names[name];
    if (inode == nullptr) {
      inode = std::make_shared<Inode>();
      folder->Make({"", name, inode});
    }
    inode->data.clear();
    made = std::make_unique<Writable>(this, path, std::move(inode));
    return Status();
  });
  if (status.ok()) *file = std::move(made);
  return status;
}

Status MemoryFileSystem::NewReadableFile(const std::string& path,
                                         std::unique_ptr<ReadableFile>* file) {
  std::unique_ptr<ReadableFile> made;
  const Status status = Operation("NewReadableFile", path, [&](bool) {
    Folder* folder;
    std::string name;
    DYNEMB_RETURN_IF_ERROR(Find(path, &folder, &name));
    const auto at = folder->names.find(name);
    if (at == folder->names.end()) return NoSuch(path);
    made = std::make_unique<Readable>(this, path, at->second);
    return Status();
  });
  if (status.ok()) *file = std::move(made);
  return status;
}

Status MemoryFileSystem::CreateFolder(const std::string& path) {
  return Operation("CreateFolder", path, [&](bool) {
    for (size_t end = path.find('/', 1); end != std::string::npos; end = path.find('/', end + 1)) {
      folders_[path.substr(0, end)];
    }
    folders_[path];
    return Status();
  });
}

Status MemoryFileSystem::List(const std::string& folder, std::vector<std::string>* names) {
  return Operation("List", folder, [&](bool) {
    const auto at = folders_.find(folder);
    if (at == folders_.end()) return NoSuch(folder);
    names->clear();
    for (const auto& [name, inode] : at->second.names) names->push_back(name);
    return Status();
  });
}

Status MemoryFileSystem::Remove(const std::string& path) {
  return Operation("Remove", path, [&](bool) {
    Folder* folder;
    std::string name;
    DYNEMB_RETURN_IF_ERROR(Find(path, &folder, &name));
    if (folder->names.count(name) == 0) return NoSuch(path);
    folder->Make({name, "", nullptr});
    return Status();
  });
}

Status MemoryFileSystem::Rename(const std::string& from, const std::string& to) {
  return Operation("Rename", from, [&](bool) {
    Folder *folder, *to_folder;
    std::string name, to_name;
    DYNEMB_RETURN_IF_ERROR(Find(from, &folder, &name));
    DYNEMB_RETURN_IF_ERROR(Find(to, &to_folder, &to_name));
    if (folder != to_folder) return InvalidArgument(to, ": another folder than that of ", from);
    const auto at = folder->names.find(name);
    if (at == folder->names.end()) return NoSuch(from);
    folder->Make({name, to_name, at->second});
    return Status();
  });
}

Status MemoryFileSystem::SyncFolder(const std::string& folder) {
  return Operation("SyncFolder", folder, [&](bool) {
    const auto at = folders_.find(folder);
    if (at == folders_.end()) return NoSuch(folder);
    at->second.durable = at->second.names;
    at->second.changes.clear();
    return Status();
  });
}

Status MemoryFileSystem::SyncFile(const std::string& path) {
  return Operation("SyncFile", path, [&](bool) {
    Folder* folder;
    std::string name;
    DYNEMB_RETURN_IF_ERROR(Find(path, &folder, &name));
    const auto at = folder->names.find(name);
    if (at == folder->names.end()) return NoSuch(path);
    at->second->durable = at->second->data;
    return Status();
  });
}

Status MemoryFileSystem::Lock(const std::string& path, std::unique_ptr<FileLock>* lock) {
  auto made = std::make_unique<Held>(this, path);
  const Status status = Operation("Lock", path, [&](bool) {
    Folder* folder;
    std::string name;
    DYNEMB_RETURN_IF_ERROR(Find(path, &folder, &name));
    if (locks_.count(path) != 0) return FailedPrecondition(path, ": somebody else holds it");
    if (folder->names.count(name) == 0) folder->Make({"", name, std::make_shared<Inode>()});
    locks_[path] = made.get();
    return Status();
  });
  if (status.ok()) *lock = std::move(made);
  return status;
}

int64_t MemoryFileSystem::operations() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return operations_;
}

void MemoryFileSystem::Inject(int64_t nth, const Fault& fault) {
  std::lock_guard<std::mutex> lock(mutex_);
  fault_at_ = operations_ + nth;
  fault_ = fault;
}

void MemoryFileSystem::Heal() {
  std::lock_guard<std::mutex> lock(mutex_);
  fault_at_ = -1;
  dead_ = false;
}

void MemoryFileSystem::Kill() {
  Heal();
  std::lock_guard<std::mutex> lock(mutex_);
  ++life_;
  locks_.clear();
}

void MemoryFileSystem::CutPower(uint64_t seed) {
  Kill();
  std::lock_guard<std::mutex> lock(mutex_);
  std::mt19937_64 random(seed);
  for (auto& [path, folder] : folders_) {
    // All, none, or each by chance.
    const uint64_t of_four = (random() % 3) * 2;
    Folder::Names names = folder.durable;
    for (const Folder::Change& change : folder.changes) {
      if (random() % 4 < of_four) Folder::Make(change, &names);
    }
    folder.names = folder.durable = names;
    folder.changes.clear();
    // An inode has one name at most times, and two never see a different end of it.
    for (auto& [name, inode] : names) {
      inode->data = inode->durable = Survivor(inode->data, inode->durable, &random);
    }
  }
}

std::string MemoryFileSystem::Get(const std::string& path) const {
  std::lock_guard<std::mutex> lock(mutex_);
  const size_t slash = path.find_last_of('/');
  const auto folder = folders_.find(path.substr(0, slash));
  if (folder == folders_.end()) return "";
  const auto file = folder->second.names.find(path.substr(slash + 1));
  return file == folder->second.names.end() ? "" : file->second->data;
}

void MemoryFileSystem::Put(const std::string& path, const std::string& data) {
  std::lock_guard<std::mutex> lock(mutex_);
  const size_t slash = path.find_last_of('/');
  Folder& folder = folders_[path.substr(0, slash)];
  auto inode = std::make_shared<Inode>();
  inode->data = inode->durable = data;
  folder.names[path.substr(slash + 1)] = folder.durable[path.substr(slash + 1)] = inode;
}

std::vector<std::string> MemoryFileSystem::Names(const std::string& folder) const {
  std::lock_guard<std::mutex> lock(mutex_);
  std::vector<std::string> names;
  const auto at = folders_.find(folder);
  if (at == folders_.end()) return names;
  for (const auto& [name, inode] : at->second.names) names.push_back(name);
  return names;
}

}  // namespace dynemb

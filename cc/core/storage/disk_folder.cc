#include "cc/core/storage/disk_folder.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "cc/core/base/line_text.h"
#include "cc/core/base/no_memory.h"

namespace dynemb {
namespace {

constexpr char kFlushed[] = "FLUSHED";
constexpr char kDraft[] = "FLUSHED.new";
constexpr std::string_view kPrefix = "tier-";
constexpr std::string_view kSuffixes[] = {".rows", ".index"};  // by kind
constexpr int64_t kMostBytes = int64_t{256} << 20;

// Whether it is a name of a file of rows or of an index.
bool ParseName(std::string_view name, uint64_t* number) {
  for (const std::string_view suffix : kSuffixes) {
    if (name.size() <= kPrefix.size() + suffix.size()) continue;
    const std::string_view digits =
        name.substr(kPrefix.size(), name.size() - kPrefix.size() - suffix.size());
    int64_t parsed;
    if (name.substr(0, kPrefix.size()) == kPrefix &&
        name.substr(name.size() - suffix.size()) == suffix &&
        ParseWhole(digits, INT64_MAX - 1, &parsed)) {
      *number = static_cast<uint64_t>(parsed);
      return true;
    }
  }
  return false;
}

}  // namespace

Status DiskFolder::Open(FileSystem* files, const Options& options,
                        std::shared_ptr<DiskFolder>* folder) {
  if (options.paths.empty()) return InvalidArgument("storage: got no folder, want one");
  std::shared_ptr<DiskFolder> opened(new DiskFolder(files, options.paths));
  DYNEMB_RETURN_IF_ERROR(opened->LockAll());
  DYNEMB_RETURN_IF_ERROR(opened->ReadFlushed(options.reopen));
  DYNEMB_RETURN_IF_ERROR(opened->RemoveOthers());
  *folder = std::move(opened);
  return Status();
}

Status DiskFolder::LockAll() {
  for (const std::string& path : paths_) {
    DYNEMB_RETURN_IF_ERROR(files_->CreateFolder(path));
    locks_.emplace_back();
    if (Status locked = files_->Lock(JoinPath(path, "LOCK"), &locks_.back()); !locked.ok()) {
      return Status(locked.code(),
                    StrCat(locked.message(), "; another table has its rows in ", path,
                           ", and every table wants a folder of its own; delete the "
                           "other one first, if it is not used any more"));
    }
  }
  return Status();
}

Status DiskFolder::ReadFlushed(bool reopen) {
  for (const std::string& folder : paths_) {
    const std::string path = JoinPath(folder, kFlushed);
    std::string text;
    const Status read = ReadFile(files_, path, kMostBytes, &text);
    if (read.code() == Code::kNotFound) continue;
    DYNEMB_RETURN_IF_ERROR(read);
    if (!reopen) {
      DYNEMB_RETURN_IF_ERROR(files_->Remove(path));
      DYNEMB_RETURN_IF_ERROR(files_->SyncFolder(folder));
      continue;
    }
    auto flushed = std::make_shared<FlushManifest>();
    if (Status parsed = FlushManifest::Parse(text, flushed.get()); !parsed.ok()) {
      return Status(parsed.code(), StrCat(path, ": ", parsed.message()));
    }
    if (folder != paths_[0] || flushed->folders != static_cast<int64_t>(paths_.size())) {
      return FailedPrecondition("storage: got ", paths_.size(), " folders, of which ", folder,
                                " has the rows of a table of ", flushed->folders,
                                "; want these, in the same order, or folders that are empty");
    }
    named_ = flushed->files();
    flushed_step_ = flushed->step;
    flushed_ = std::move(flushed);
  }
  return Status();
}

Status DiskFolder::RemoveOthers() {
  for (const std::string& folder : paths_) {
    std::vector<std::string> names;
    DYNEMB_RETURN_IF_ERROR(files_->List(folder, &names));
    for (const std::string& name : names) {
      uint64_t number = 0;
      const bool is_file = ParseName(name, &number);
      next_file_ = std::max(next_file_, number + 1);
      if (name == kDraft || (is_file && named_.count(number) == 0)) {
        DYNEMB_RETURN_IF_ERROR(files_->Remove(JoinPath(folder, name)));
      }
    }
  }
  return Status();
}

Status DiskFolder::OpenFor(FileSystem* files, const Options& options, const std::string& owner,
                           std::shared_ptr<DiskFolder>* folder) {
  static std::mutex* const mutex = new std::mutex;
  static auto* const open = new std::map<std::string, std::weak_ptr<DiskFolder>>;  // by owner
  const std::lock_guard<std::mutex> lock(*mutex);
  std::string name = owner;
  for (const std::string& path : options.paths) name += "\n" + path;
  if ((*folder = (*open)[name].lock()) != nullptr) return Status();
  const Status opened = Open(files, options, folder);
  if (opened.ok()) {
    (*open)[name] = *folder;
  } else {
    open->erase(name);
  }
  return opened;
}

std::shared_ptr<const FlushManifest> DiskFolder::TakeFlushed() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return std::exchange(flushed_, nullptr);
}

int64_t DiskFolder::flushed_step() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return flushed_step_;
}

uint64_t DiskFolder::NewFile() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return next_file_++;
}

std::string DiskFolder::PathOf(uint64_t number, Kind kind) const {
  return JoinPath(paths_[number % paths_.size()],
                  StrCat(kPrefix, number, kSuffixes[static_cast<int>(kind)]));
}

void DiskFolder::Remove(uint64_t number, Kind kind, int64_t bytes) {
  const std::lock_guard<std::mutex> lock(mutex_);
  // Without memory for that the file stays until the folder is opened again.
  static_cast<void>(OrNoMemory([&] {
    kept_[number] = {kind, bytes};
    if (!flushing_) RemoveKept();
  }));
}

int64_t DiskFolder::bytes_kept() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  int64_t bytes = 0;
  for (const auto& [number, kept] : kept_) bytes += kept.bytes;
  return bytes;
}

void DiskFolder::RemoveKept() {
  for (auto kept = kept_.begin(); kept != kept_.end();) {
    if (named_.count(kept->first) != 0) {
      ++kept;
      continue;
    }
    static_cast<void>(files_->Remove(PathOf(kept->first, kept->second.kind)));
    kept = kept_.erase(kept);
  }
}

DiskFolder::FlushScope::FlushScope(DiskFolder* folder)
    : folder_(folder), alone_(folder->flush_mutex_) {
  const std::lock_guard<std::mutex> lock(folder_->mutex_);
  folder_->flushing_ = true;
}

DiskFolder::FlushScope::~FlushScope() {
  const std::lock_guard<std::mutex> lock(folder_->mutex_);
  folder_->flushing_ = false;
  folder_->RemoveKept();
}

Status DiskFolder::FlushScope::Commit(FlushManifest manifest) {
  FileSystem* const files = folder_->files_;
  manifest.folders = static_cast<int64_t>(folder_->paths_.size());
  for (const std::string& path : folder_->paths_) DYNEMB_RETURN_IF_ERROR(files->SyncFolder(path));
  const std::string draft = JoinPath(folder_->path(), kDraft);
  std::unique_ptr<WritableFile> file;
  DYNEMB_RETURN_IF_ERROR(files->NewWritableFile(draft, &file));
  DYNEMB_RETURN_IF_ERROR(file->Append(manifest.ToText()));
  DYNEMB_RETURN_IF_ERROR(file->Sync());
  DYNEMB_RETURN_IF_ERROR(file->Close());
  const std::set<uint64_t> named = manifest.files();
  {
    // From here on until it is known which of the two is in place, the files of both stay.
    const std::lock_guard<std::mutex> lock(folder_->mutex_);
    folder_->named_.insert(named.begin(), named.end());
  }
  DYNEMB_RETURN_IF_ERROR(files->Rename(draft, JoinPath(folder_->path(), kFlushed)));
  DYNEMB_RETURN_IF_ERROR(files->SyncFolder(folder_->path()));
  const std::lock_guard<std::mutex> lock(folder_->mutex_);
  folder_->named_ = named;
  folder_->flushed_step_ = manifest.step;
  return Status();
}

}  // namespace dynemb

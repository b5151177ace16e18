#include "cc/core/storage/disk_folder.h"

#include <algorithm>
#include <random>
#include <string_view>
#include <utility>

#include "cc/core/base/line_text.h"
#include "cc/core/base/no_memory.h"

namespace dynemb {
namespace {

constexpr char kFlushed[] = "FLUSHED";
constexpr char kPart[] = "PART";
constexpr char kLock[] = "LOCK";
constexpr char kDraftSuffix[] = ".new";
constexpr int64_t kMostNumber = int64_t{1} << 62;
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
        ParseWhole(digits, kMostNumber, &parsed)) {
      *number = static_cast<uint64_t>(parsed);
      return true;
    }
  }
  return false;
}

// What the last flush of a first folder has. kNotFound: there was none.
Status ReadManifest(FileSystem* files, const std::string& folder,
                    std::shared_ptr<FlushManifest>* flushed) {
  const std::string path = JoinPath(folder, kFlushed);
  std::string text;
  DYNEMB_RETURN_IF_ERROR(ReadFile(files, path, kMostBytes, &text));
  auto parsed = std::make_shared<FlushManifest>();
  if (const Status status = FlushManifest::Parse(text, parsed.get()); !status.ok()) {
    return Status(status.code(), StrCat(path, ": ", status.message()));
  }
  *flushed = std::move(parsed);
  return Status();
}

}  // namespace

Status DiskFolder::Open(FileSystem* files, const Options& options,
                        std::shared_ptr<DiskFolder>* folder) {
  if (options.paths.empty()) return InvalidArgument("storage: got no folder, want one");
  std::shared_ptr<DiskFolder> opened(new DiskFolder(files, options.paths));
  opened->name_ = FlushManifest::OneLine(options.name);
  opened->max_bytes_ = options.max_bytes;
  DYNEMB_RETURN_IF_ERROR(opened->LockAll());
  for (const std::string& path : options.paths) {
    DYNEMB_RETURN_IF_ERROR(files->CheckReads(JoinPath(path, kLock)));
  }
  DYNEMB_RETURN_IF_ERROR(options.reopen ? opened->ReadFlushed() : opened->ForgetFlush());
  if (options.max_bytes >= 0) DYNEMB_RETURN_IF_ERROR(opened->CountBytes());
  DYNEMB_RETURN_IF_ERROR(opened->RemoveOthers());
  *folder = std::move(opened);
  return Status();
}

Status DiskFolder::OpenToRead(FileSystem* files, const std::vector<std::string>& paths,
                              std::shared_ptr<DiskFolder>* folder) {
  if (paths.empty()) return InvalidArgument("storage: got no folder, want one");
  std::shared_ptr<FlushManifest> flushed;
  if (const Status read = ReadManifest(files, paths[0], &flushed); read.code() == Code::kNotFound) {
    std::string text;
    const bool is_part = ReadFile(files, JoinPath(paths[0], kPart), kMostBytes, &text).ok();
    return Status(
        Code::kNotFound,
        StrCat(paths[0], is_part
                             ? ": it is not the first folder of its table; give all of them, in "
                               "the order in which Disk has them"
                             : ": there is no flush in it; want a folder of Disk after "
                               "Variable.flush(step)"));
  } else if (!read.ok()) {
    return read;
  }
  const size_t folders = static_cast<size_t>(flushed->folders);
  if (paths.size() > folders) {
    return InvalidArgument("storage: got ", paths.size(), " folders, and ", paths[0],
                           " is the first of ", folders, "; give those");
  }
  std::vector<std::string> all = paths;
  while (all.size() < folders) {
    all.push_back(StrCat("<folder ", all.size() + 1, " of ", folders, ", not given>"));
  }
  folder->reset(new DiskFolder(files, std::move(all)));
  (*folder)->id_ = flushed->id;
  (*folder)->flushed_step_ = flushed->step;
  (*folder)->flushed_ = std::move(flushed);
  return Status();
}

Status DiskFolder::HasFlush(FileSystem* files, const std::string& path, bool* has_flush) {
  std::unique_ptr<ReadableFile> file;
  const Status opened = files->NewReadableFile(JoinPath(path, kFlushed), &file);
  *has_flush = opened.ok();
  return opened.code() == Code::kNotFound ? Status() : opened;
}

Status DiskFolder::LockAll() {
  for (const std::string& path : paths_) {
    DYNEMB_RETURN_IF_ERROR(files_->CreateFolder(path));
    locks_.emplace_back();
    if (Status locked = files_->Lock(JoinPath(path, kLock), &locks_.back()); !locked.ok()) {
      return Status(locked.code(),
                    StrCat(locked.message(), "; another table has its rows in ", path,
                           ", and every table wants a folder of its own; let the process of "
                           "the other one end, or delete the other Variable"));
    }
  }
  return Status();
}

Status DiskFolder::ForgetFlush() {
  // The first folder last: with FLUSHED, what is left of the others is still a flush.
  for (size_t i = paths_.size(); i-- > 0;) {
    for (const char* const name : {kPart, kFlushed}) {
      const Status removed = files_->Remove(JoinPath(paths_[i], name));
      if (!removed.ok() && removed.code() != Code::kNotFound) return removed;
    }
    DYNEMB_RETURN_IF_ERROR(files_->SyncFolder(paths_[i]));
  }
  return Status();
}

Status DiskFolder::ReadFlushed() {
  std::shared_ptr<FlushManifest> flushed;
  const Status read = ReadManifest(files_, paths_[0], &flushed);
  if (!read.ok() && read.code() != Code::kNotFound) return read;
  for (size_t i = 0; i < paths_.size(); ++i) DYNEMB_RETURN_IF_ERROR(CheckPart(i, flushed.get()));
  if (flushed == nullptr) return Status();
  if (name_.empty()) name_ = flushed->name;
  if (!flushed->name.empty() && flushed->name != name_) {
    return FailedPrecondition(path(), ": it has the rows of the table '", flushed->name, "', got '",
                              name_,
                              "'; give the name that it had, another folder, or reopen=False, "
                              "which removes them");
  }
  DYNEMB_RETURN_IF_ERROR(FindFiles(*flushed));
  // It may have been put in place by a process that ended before it could sync that; the files of
  // the flush before must not be gone for good before it.
  DYNEMB_RETURN_IF_ERROR(files_->SyncFolder(paths_[0]));
  named_ = flushed->files();
  id_ = flushed->id;
  flushed_step_ = flushed->step;
  flushed_ = std::move(flushed);
  return Status();
}

Status DiskFolder::CheckPart(size_t folder, const FlushManifest* flushed) {
  const int64_t folders = static_cast<int64_t>(paths_.size());
  const auto other = [&](const char* what) {
    return FailedPrecondition("storage: got ", folders, " folders, of which ", paths_[folder], " ",
                              what,
                              "; want those of that flush, in the same order, folders that "
                              "are empty, or reopen=False, which removes what is there");
  };
  if (flushed != nullptr && flushed->folders != folders)
    return other("has a flush of another number");
  std::string text;
  if (folder > 0) {
    const Status read = ReadFile(files_, JoinPath(paths_[folder], kFlushed), kMostBytes, &text);
    if (read.code() != Code::kNotFound)
      return read.ok() ? other("is the first one of a flush") : read;
  }
  const std::string path = PathOfPart(folder);
  const Status read = ReadFile(files_, path, kMostBytes, &text);
  if (read.code() == Code::kNotFound) return Status();
  DYNEMB_RETURN_IF_ERROR(read);
  std::string_view lines = text;
  if (!TakeChecksumLine(&lines)) {
    return Status(Code::kDataLoss, StrCat(path, ": it is damaged or cut off"));
  }
  if (flushed != nullptr) id_ = flushed->id;
  return flushed != nullptr && text == PartText(folder) ? Status() : other("has a part of a flush");
}

Status DiskFolder::FindFiles(const FlushManifest& flushed) {
  std::set<std::string> there;
  for (const std::string& folder : paths_) {
    std::vector<std::string> names;
    DYNEMB_RETURN_IF_ERROR(files_->List(folder, &names));
    for (const std::string& name : names) there.insert(JoinPath(folder, name));
  }
  const auto find = [&](uint64_t number, Kind kind) {
    const std::string path = PathOf(number, kind);
    return there.count(path) != 0
               ? Status()
               : Status(Code::kDataLoss,
                        StrCat(path, ": it is missing, and the last flush has it"));
  };
  for (const FlushedShard& shard : flushed.shards) {
    DYNEMB_RETURN_IF_ERROR(find(shard.index, Kind::kIndex));
    // It is the flush's alone, so that the next flush removes it.
    std::unique_ptr<ReadableFile> index;
    int64_t bytes;
    DYNEMB_RETURN_IF_ERROR(files_->NewReadableFile(PathOf(shard.index, Kind::kIndex), &index));
    DYNEMB_RETURN_IF_ERROR(index->Size(&bytes));
    kept_[shard.index] = {Kind::kIndex, bytes};
    for (const auto& [slot, file] : shard.files) {
      DYNEMB_RETURN_IF_ERROR(find(file.number, Kind::kRows));
    }
  }
  return Status();
}

Status DiskFolder::CountBytes() {
  for (const uint64_t number : named_) {
    const auto index = kept_.find(number);  // FindFiles has left the indexes there
    std::unique_ptr<ReadableFile> file;
    int64_t bytes;
    DYNEMB_RETURN_IF_ERROR(files_->NewReadableFile(
        PathOf(number, index == kept_.end() ? Kind::kRows : Kind::kIndex), &file));
    DYNEMB_RETURN_IF_ERROR(file->Size(&bytes));
    bytes_ += bytes;
  }
  if (bytes_ <= max_bytes_) return Status();
  return FailedPrecondition(path(), ": the last flush has ", bytes_,
                            " bytes, got Disk(max_bytes=", max_bytes_,
                            "); give more, or first run `tf-dynemb storage compact`, which removes "
                            "dead rows");
}

Status DiskFolder::RemoveOthers() {
  for (const std::string& folder : paths_) {
    std::vector<std::string> names;
    DYNEMB_RETURN_IF_ERROR(files_->List(folder, &names));
    for (const std::string& name : names) {
      uint64_t number = 0;
      const bool is_file = ParseName(name, &number);
      next_file_ = std::max(next_file_, number + 1);
      const bool is_draft =
          name == StrCat(kFlushed, kDraftSuffix) || name == StrCat(kPart, kDraftSuffix);
      if (is_draft || (is_file && named_.count(number) == 0)) {
        DYNEMB_RETURN_IF_ERROR(files_->Remove(JoinPath(folder, name)));
      }
    }
  }
  return Status();
}

Status DiskFolder::OpenFor(FileSystem* files, const Options& options, const std::string& owner,
                           std::shared_ptr<DiskFolder>* folder, bool* was_open) {
  static std::mutex* const mutex = new std::mutex;
  static auto* const open = new std::map<std::string, std::weak_ptr<DiskFolder>>;  // by owner
  const std::lock_guard<std::mutex> lock(*mutex);
  std::string name = owner;
  for (const std::string& path : options.paths) name += "\n" + path;
  *folder = (*open)[name].lock();
  *was_open = *folder != nullptr;
  if (*was_open) return Status();
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
  // Not by StrCat, which is for messages: without memory it cuts them off.
  std::string name(kPrefix);
  name += std::to_string(number);
  name += kSuffixes[static_cast<int>(kind)];
  return JoinPath(paths_[number % paths_.size()], name);
}

Status DiskFolder::TakeSpace(int64_t bytes) {
  if (max_bytes_ < 0) return Status();
  const std::lock_guard<std::mutex> lock(mutex_);
  if (bytes > max_bytes_ - bytes_) {
    return ResourceExhausted(path(), ": got ", bytes, " bytes to write, for ", bytes_,
                             " in files of at most Disk(max_bytes=", max_bytes_,
                             "); a flush lets the files of the last one go. Where a flush has no "
                             "room for its index, of keys and their strings, want a larger one");
  }
  bytes_ += bytes;
  return Status();
}

void DiskFolder::GiveSpace(int64_t bytes) {
  const std::lock_guard<std::mutex> lock(mutex_);
  bytes_ -= bytes;
}

void DiskFolder::Share(uint64_t number, int64_t bytes) {
  const std::lock_guard<std::mutex> lock(mutex_);
  Shared& shared = shared_[number];
  ++shared.shards;
  shared.bytes = bytes;
}

int64_t DiskFolder::bytes_shared() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  int64_t bytes = 0;
  for (const auto& [number, shared] : shared_) bytes += (shared.shards - 1) * shared.bytes;
  return bytes;
}

void DiskFolder::Remove(uint64_t number, Kind kind, int64_t bytes) {
  // Without memory for that the file stays until the folder is opened again.
  static_cast<void>(OrNoMemory([&] {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (const auto shared = shared_.find(number); shared != shared_.end()) {
      if (--shared->second.shards > 0) return;
      shared_.erase(shared);
    }
    kept_[number] = {kind, bytes};
  }));
  RemoveKept();
}

int64_t DiskFolder::bytes_kept() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  int64_t bytes = 0;
  for (const auto& [number, kept] : kept_) bytes += kept.bytes;
  return bytes;
}

void DiskFolder::RemoveKept() {
  static_cast<void>(OrNoMemory([&] {
    std::vector<std::pair<std::string, int64_t>> unused;  // with their bytes
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (flushing_ || locks_.empty()) return;
      for (auto kept = kept_.begin(); kept != kept_.end();) {
        if (named_.count(kept->first) != 0) {
          ++kept;
          continue;
        }
        unused.emplace_back(PathOf(kept->first, kept->second.kind), kept->second.bytes);
        kept = kept_.erase(kept);
      }
    }
    for (const auto& [path, bytes] : unused) {
      if (files_->Remove(path).ok()) GiveSpace(bytes);  // else they are still there
    }
  }));
}

Status DiskFolder::WriteWhole(const std::string& folder, const char* name,
                              const std::string& text) {
  const std::string path = JoinPath(folder, name), draft = path + kDraftSuffix;
  std::unique_ptr<WritableFile> file;
  DYNEMB_RETURN_IF_ERROR(files_->NewWritableFile(draft, &file));
  DYNEMB_RETURN_IF_ERROR(file->Append(text));
  DYNEMB_RETURN_IF_ERROR(file->Sync());
  DYNEMB_RETURN_IF_ERROR(file->Close());
  DYNEMB_RETURN_IF_ERROR(files_->Rename(draft, path));
  return files_->SyncFolder(folder);
}

std::string DiskFolder::PathOfPart(size_t folder) const { return JoinPath(paths_[folder], kPart); }

std::string DiskFolder::PartText(size_t folder) const {
  const std::string text = "dynemb-tier-part 1\nid " + std::to_string(id_) + "\nfolder " +
                           std::to_string(folder) + " of " + std::to_string(paths_.size()) + "\n";
  return text + ChecksumLine(text);
}

Status DiskFolder::WriteParts() {
  for (size_t i = 1; !parts_written_ && i < paths_.size(); ++i) {
    DYNEMB_RETURN_IF_ERROR(WriteWhole(paths_[i], kPart, PartText(i)));
  }
  parts_written_ = true;
  return Status();
}

DiskFolder::FlushScope::FlushScope(DiskFolder* folder)
    : folder_(folder), alone_(folder->flush_mutex_) {
  const std::lock_guard<std::mutex> lock(folder_->mutex_);
  folder_->flushing_ = true;
}

DiskFolder::FlushScope::~FlushScope() {
  {
    const std::lock_guard<std::mutex> lock(folder_->mutex_);
    folder_->flushing_ = false;
  }
  folder_->RemoveKept();
}

Status DiskFolder::FlushScope::Commit(FlushManifest manifest) {
  FileSystem* const files = folder_->files_;
  while (folder_->id_ == 0) {
    std::random_device random;
    folder_->id_ = static_cast<int64_t>((uint64_t{random()} << 32 | random()) >> 2);
  }
  manifest.id = folder_->id_;
  manifest.folders = static_cast<int64_t>(folder_->paths_.size());
  manifest.name = folder_->name_;
  for (const std::string& path : folder_->paths_) DYNEMB_RETURN_IF_ERROR(files->SyncFolder(path));
  const std::string text = manifest.ToText();
  // That it can be read says that there was memory for all of it.
  FlushManifest read;
  if (!FlushManifest::Parse(text, &read).ok() || read.files() != manifest.files())
    return NoMemory();
  std::set<uint64_t> named = manifest.files();
  {
    // From here on until it is known which of the two is in place, the files of both stay.
    const std::lock_guard<std::mutex> lock(folder_->mutex_);
    folder_->named_.insert(named.begin(), named.end());
  }
  DYNEMB_RETURN_IF_ERROR(folder_->WriteWhole(folder_->path(), kFlushed, text));
  {
    const std::lock_guard<std::mutex> lock(folder_->mutex_);
    folder_->named_.swap(named);
    folder_->flushed_step_ = manifest.step;
  }
  // After it, so that there is no part without its first folder.
  return folder_->WriteParts();
}

}  // namespace dynemb

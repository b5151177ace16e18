#include "cc/core/snapshot/save.h"

#include <algorithm>
#include <chrono>
#include <random>
#include <set>
#include <string_view>
#include <utility>

#include "cc/core/base/crc32c.h"
#include "cc/core/base/hash.h"
#include "cc/core/snapshot/block.h"

namespace dynemb {
namespace {

constexpr std::string_view kRowsPrefix = "rows-";
constexpr std::string_view kRowsSuffix = ".dynemb";

uint64_t NewId() {
  // The clock as well, for a random device that repeats itself after a start.
  std::random_device random;
  const uint64_t clock =
      static_cast<uint64_t>(std::chrono::system_clock::now().time_since_epoch().count());
  const uint64_t id = (static_cast<uint64_t>(random()) << 32 | random()) ^ Mix64(clock);
  return id != 0 ? id : 1;
}

bool IsRowsFile(std::string_view name) {
  return name.size() > kRowsPrefix.size() + kRowsSuffix.size() &&
         name.substr(0, kRowsPrefix.size()) == kRowsPrefix &&
         name.substr(name.size() - kRowsSuffix.size()) == kRowsSuffix;
}

bool SameTables(const std::vector<SnapshotTable>& a, const std::vector<SnapshotTable>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const SnapshotTable& one, const SnapshotTable& other) {
                      return one.name == other.name && one.quantized == other.quantized &&
                             one.schema.ToText() == other.schema.ToText();
                    });
}

}  // namespace

std::string RowsFileName(uint64_t snapshot, int64_t number) {
  return StrCat(kRowsPrefix, IdText(snapshot), "-", number, kRowsSuffix);
}

SnapshotSave::SnapshotSave(FileSystem* files, std::string folder, std::unique_ptr<FileLock> lock)
    : files_(files),
      folder_(std::move(folder)),
      lock_(std::move(lock)),
      id_(NewId()),
      created_seconds_(std::chrono::duration_cast<std::chrono::seconds>(
                           std::chrono::system_clock::now().time_since_epoch())
                           .count()) {}

Status SnapshotSave::Begin(FileSystem* files, const std::string& folder,
                           std::unique_ptr<SnapshotSave>* save) {
  DYNEMB_RETURN_IF_ERROR(files->CreateFolder(folder));
  std::unique_ptr<FileLock> lock;
  if (Status locked = files->Lock(JoinPath(folder, "LOCK"), &lock); !locked.ok()) {
    return Status(locked.code(),
                  StrCat(locked.message(), "; is another snapshot being saved into ", folder, "?"));
  }
  save->reset(new SnapshotSave(files, folder, std::move(lock)));
  return Status();
}

SnapshotSave::~SnapshotSave() {
  if (committed_) return;
  // What could not be made a snapshot of; best effort, for a later save removes it too.
  const std::string ours = StrCat(kRowsPrefix, IdText(id_), "-");
  RemoveObsoleteFiles([&](const std::string& name) { return name.rfind(ours, 0) == 0; });
}

template <typename F>
void SnapshotSave::RemoveObsoleteFiles(const F& remove) {
  std::vector<std::string> names;
  if (!files_->List(folder_, &names).ok()) return;
  for (const std::string& name : names) {
    const bool draft = name.rfind(StrCat(kManifestName, "-"), 0) == 0;
    if (draft || (IsRowsFile(name) && remove(name))) (void)files_->Remove(Path(name));
  }
}

Status SnapshotSave::Find(const SnapshotFile& file, size_t part) const {
  std::unique_ptr<ReadableFile> there;
  int64_t bytes = 0;
  Status found = files_->NewReadableFile(Path(file.name), &there);
  if (found.ok()) found = there->Size(&bytes);
  if (found.ok() && bytes != file.bytes) {
    found = FailedPrecondition(Path(file.name), ": got ", bytes, " bytes, want ", file.bytes);
  }
  if (found.ok()) return found;
  const Code code = found.code() == Code::kNotFound ? Code::kFailedPrecondition : found.code();
  return Status(code, StrCat(found.message(), "; writer ", part,
                             " has written it: do all writers save into one folder?"));
}

Status SnapshotSave::WriteEmpty(int64_t number, SnapshotFile* file) {
  char block[BlockHeader::kBytes];
  BlockHeader end;
  end.snapshot = id_;
  end.file = static_cast<uint32_t>(number);
  end.payload_crc = Crc32c({});
  end.Write(block);
  file->name = RowsFileName(id_, number);
  file->bytes = BlockHeader::kBytes;
  std::unique_ptr<WritableFile> made;
  DYNEMB_RETURN_IF_ERROR(files_->NewWritableFile(Path(file->name), &made));
  DYNEMB_RETURN_IF_ERROR(made->Append({block, sizeof(block)}));
  DYNEMB_RETURN_IF_ERROR(made->Sync());
  return made->Close();
}

Status SnapshotSave::Gather(const std::vector<Manifest>& parts, Manifest* manifest) {
  if (parts.empty()) return InvalidArgument("parts: got none, want one of each writer");
  *manifest = Manifest();
  manifest->id = id_;
  manifest->created_seconds = created_seconds_;
  manifest->base = parts[0].base;
  manifest->tables = parts[0].tables;
  const int64_t writers = static_cast<int64_t>(parts.size());
  int64_t files = 0;
  for (size_t w = 0; w < parts.size(); ++w) {
    const Manifest& part = parts[w];
    const WriterPlace place = {id_, static_cast<int64_t>(w), writers};
    if (part.id != id_) {
      return InvalidArgument("part ", w, ": got one of snapshot ", IdText(part.id), ", want ",
                             IdText(id_));
    }
    if (part.base != manifest->base || !SameTables(part.tables, manifest->tables)) {
      return FailedPrecondition(
          "writer ", w, " saves other tables, or a delta of another base, than writer 0; all must ",
          "save the same tables in the same order, after the same optimizer was attached");
    }
    for (size_t k = 0; k < part.files.size(); ++k) {
      const int64_t number = place.number(static_cast<int64_t>(k));
      if (part.files[k].name != RowsFileName(id_, number)) {
        return InvalidArgument("part ", w, " of ", writers, ": got file ", part.files[k].name,
                               ", want ", RowsFileName(id_, number), "; parts come in their order");
      }
      DYNEMB_RETURN_IF_ERROR(Find(part.files[k], w));
      files = std::max(files, number + 1);
    }
  }
  // A writer that has fewer files than another leaves numbers that no block has.
  for (int64_t number = 0; number < files; ++number) {
    const auto& of_writer = parts[static_cast<size_t>(number % writers)].files;
    const size_t k = static_cast<size_t>(number / writers);
    SnapshotFile file;
    if (k < of_writer.size()) {
      file = of_writer[k];
    } else {
      DYNEMB_RETURN_IF_ERROR(WriteEmpty(number, &file));
    }
    manifest->files.push_back(std::move(file));
  }
  return Status();
}

Status SnapshotSave::PutInPlace(const std::string& draft, const std::string& text) {
  const Status renamed = files_->Rename(draft, Path(kManifestName));
  if (renamed.ok()) return renamed;
  // A file system over a network may have done it all the same. What counts is what is there.
  std::string there;
  const Status read = ReadFile(files_, Path(kManifestName), kMaxManifestBytes, &there);
  if (read.ok() && there == text) return Status();
  if (read.ok() || read.code() == Code::kNotFound) return renamed;
  committed_ = true;  // perhaps, so that no file of it may be removed
  return Status(renamed.code(),
                StrCat(renamed.message(), "; the snapshot in ", folder_,
                       " may be in place or not, for it cannot be read: ", read.message()));
}

Status SnapshotSave::Commit(const std::vector<Manifest>& parts, Manifest* manifest) {
  DYNEMB_RETURN_IF_ERROR(Gather(parts, manifest));
  DYNEMB_RETURN_IF_ERROR(files_->SyncFolder(folder_));
  const std::string draft = Path(StrCat(kManifestName, "-", IdText(id_)));
  const std::string text = manifest->ToText();
  const auto write = [&] {
    std::unique_ptr<WritableFile> file;
    DYNEMB_RETURN_IF_ERROR(files_->NewWritableFile(draft, &file));
    DYNEMB_RETURN_IF_ERROR(file->Append(text));
    DYNEMB_RETURN_IF_ERROR(file->Sync());
    DYNEMB_RETURN_IF_ERROR(file->Close());
    return PutInPlace(draft, text);
  };
  if (Status written = write(); !written.ok()) {
    (void)files_->Remove(draft);
    return written;
  }
  committed_ = true;
  if (Status synced = files_->SyncFolder(folder_); !synced.ok()) {
    return Status(synced.code(), StrCat(synced.message(), "; the snapshot in ", folder_,
                                        " is in place but may not survive a crash of the machine"));
  }
  std::set<std::string> named;
  for (const SnapshotFile& file : manifest->files) named.insert(file.name);
  RemoveObsoleteFiles([&](const std::string& name) { return named.count(name) == 0; });
  return Status();
}

}  // namespace dynemb

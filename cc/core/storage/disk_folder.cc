#include "cc/core/storage/disk_folder.h"

#include <map>
#include <mutex>
#include <string_view>
#include <utility>
#include <vector>

namespace dynemb {
namespace {

constexpr std::string_view kPrefix = "tier-";
constexpr std::string_view kSuffix = ".rows";

bool IsOurs(std::string_view name) {
  if (name.size() <= kPrefix.size() + kSuffix.size()) return false;
  const std::string_view number =
      name.substr(kPrefix.size(), name.size() - kPrefix.size() - kSuffix.size());
  return name.substr(0, kPrefix.size()) == kPrefix &&
         name.substr(name.size() - kSuffix.size()) == kSuffix &&
         number.find_first_not_of("0123456789") == std::string_view::npos;
}

}  // namespace

Status DiskFolder::Open(FileSystem* files, const std::string& path,
                        std::shared_ptr<DiskFolder>* folder) {
  DYNEMB_RETURN_IF_ERROR(files->CreateFolder(path));
  std::unique_ptr<FileLock> lock;
  if (Status locked = files->Lock(JoinPath(path, "LOCK"), &lock); !locked.ok()) {
    return Status(locked.code(), StrCat(locked.message(), "; another table has its rows in ", path,
                                        ", and every table wants a folder of its own"));
  }
  std::vector<std::string> names;
  DYNEMB_RETURN_IF_ERROR(files->List(path, &names));
  for (const std::string& name : names) {
    if (IsOurs(name)) DYNEMB_RETURN_IF_ERROR(files->Remove(JoinPath(path, name)));
  }
  folder->reset(new DiskFolder(files, path, std::move(lock)));
  return Status();
}

Status DiskFolder::OpenFor(FileSystem* files, const std::string& path, const std::string& owner,
                           std::shared_ptr<DiskFolder>* folder) {
  static std::mutex* const mutex = new std::mutex;
  static auto* const open = new std::map<std::string, std::weak_ptr<DiskFolder>>;  // by owner
  const std::lock_guard<std::mutex> lock(*mutex);
  const std::string name = owner + " " + path;
  if ((*folder = (*open)[name].lock()) != nullptr) return Status();
  const Status opened = Open(files, path, folder);
  if (opened.ok()) {
    (*open)[name] = *folder;
  } else {
    open->erase(name);
  }
  return opened;
}

uint64_t DiskFolder::NewFile(std::string* path) {
  const uint64_t number = next_file_.fetch_add(1);
  *path = JoinPath(path_, StrCat(kPrefix, number, kSuffix));
  return number;
}

}  // namespace dynemb

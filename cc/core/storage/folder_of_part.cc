#include "cc/core/storage/folder_of_part.h"

#include <cstdint>
#include <string_view>

#include "cc/core/base/line_text.h"
#include "cc/core/storage/disk_folder.h"

namespace dynemb {
namespace {

// The parts that a folder is one of, by the folder's name, in words: "2 processes by hash". "": it
// has another kind of name.
std::string PartsOf(std::string_view name) {
  if (name == kWholeTable) return "1 process";
  constexpr int64_t kMost = int64_t{1} << 31;
  const std::string_view kind = Take(&name, '-'), index = Take(&name, '-'), of = Take(&name, '-'),
                         parts = Take(&name, '-');
  int64_t number;
  if ((kind != "process" && kind != "server") || of != "of" || !ParseWhole(index, kMost, &number) ||
      !ParseWhole(parts, kMost, &number)) {
    return "";
  }
  std::string words = StrCat(parts, " ", kind, kind == "process" ? "es" : "s");
  while (!name.empty()) words += StrCat(" ", Take(&name, '-'));
  return words;
}

}  // namespace

Status UseFoldersOfPart(FileSystem* files, const std::string& part,
                        std::vector<std::string>* folders, bool* others_flushed) {
  *others_flushed = false;
  const std::string wanted = PartsOf(part);
  if (wanted.empty() || folders->empty()) {
    return InvalidArgument("storage: got the part '", Printable(part), "' of ", folders->size(),
                           " folders, want '-' or a name such as 'process-0-of-2'");
  }
  const std::string& first = (*folders)[0];
  std::vector<std::string> names;
  const Status listed = files->List(first, &names);
  if (!listed.ok() && listed.code() != Code::kNotFound) return listed;
  names.emplace_back(kWholeTable);
  for (const std::string& name : names) {
    const std::string parts = PartsOf(name);
    if (parts.empty() || name == part) continue;
    bool has_flush;
    DYNEMB_RETURN_IF_ERROR(DiskFolder::HasFlush(
        files, name == kWholeTable ? first : JoinPath(first, name), &has_flush));
    if (!has_flush) continue;
    if (parts != wanted) {
      return FailedPrecondition(first, ": it has the rows of a table that was sharded across ",
                                parts, ", got ", wanted,
                                "; open it in the same way and save a snapshot, which any table "
                                "can load, or remove the folder");
    }
    *others_flushed = true;
  }
  if (part == kWholeTable) return Status();
  for (std::string& folder : *folders) folder = JoinPath(folder, part);
  return Status();
}

}  // namespace dynemb

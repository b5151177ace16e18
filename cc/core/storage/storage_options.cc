#include "cc/core/storage/storage_options.h"

#include <sstream>
#include <string>

#include "cc/core/storage/folder_of_part.h"

namespace dynemb {

Status StorageOptions::Parse(const std::string& text, const std::string& name, int64_t max_bytes,
                             StorageOptions* options) {
  constexpr char kDevice[] = "device ";
  std::istringstream in(text);
  if (text.compare(0, sizeof(kDevice) - 1, kDevice) == 0) {
    std::string word;
    in >> word >> options->max_device_bytes >> std::ws;
    if (in.eof() && options->max_device_bytes > 0) return Status();
    if (options->max_device_bytes <= 0) in.setstate(std::ios::failbit);
  }
  std::string host, owner_word, owner, reopen_word, seed_word, direct_word, mod_word, part_word,
      part, path;
  bool direct;
  DiskFolder::Options folders;
  folders.name = name;
  folders.max_bytes = max_bytes;
  in >> host >> options->max_bytes >> owner_word >> owner >> reopen_word >> folders.reopen >>
      seed_word >> options->keep_seed >> direct_word >> direct >> mod_word >> options->key_mod >>
      part_word >> part >> std::ws;
  const bool words = !in.fail() && host == "host" && owner_word == "owner" &&
                     reopen_word == "reopen" && seed_word == "keep_seed" &&
                     direct_word == "direct" && mod_word == "key_mod" && part_word == "part" &&
                     options->max_bytes > 0;
  while (std::getline(in, path)) folders.paths.push_back(path);
  if (!words || folders.paths.empty()) {
    return InvalidArgument(
        "storage: got '", Printable(text),
        "', want 'host BYTES owner WORD reopen 0|1 keep_seed 0|1 direct 0|1 "
        "key_mod 0|1 part -|NAME' and lines of paths, or 'device BYTES' before or "
        "instead of them");
  }
  FileSystem* const files = direct ? DirectFileSystem() : PosixFileSystem();
  const std::string first = folders.paths[0];
  bool others_flushed;
  DYNEMB_RETURN_IF_ERROR(UseFoldersOfPart(files, part, &folders.paths, &others_flushed));
  DYNEMB_RETURN_IF_ERROR(
      DiskFolder::OpenFor(files, folders, owner, &options->disk, &options->is_shared));
  options->flushed = options->disk->TakeFlushed();
  const bool is_new = options->flushed == nullptr && !options->is_shared;
  if (is_new && others_flushed && folders.reopen) {
    return FailedPrecondition(first, ": it has rows of other parts of the table, and none of ",
                              part,
                              "; name processes and servers in the order that they had, or remove "
                              "the folders of all and restore a snapshot");
  }
  options->in_background = true;
  return Status();
}

Status StorageOptions::SchemaFor(const TableSchema& schema, TableSchema* of_table) const {
  *of_table = schema;
  if (flushed == nullptr) return Status();
  const TableSchema& before = flushed->schema();
  if (Status fits = CheckCompatible(before, schema); !fits.ok()) {
    return FailedPrecondition(disk->path(),
                              ": it has rows of another kind of table: ", fits.message(),
                              "; give another folder, or reopen=False, which "
                              "removes them");
  }
  if (of_table->rule.name.empty()) of_table->rule = before.rule;
  if (keep_seed) of_table->initializer.seed = before.initializer.seed;
  for (int field = 0; field < kMetaFields; ++field) {
    if (before.meta.has(MetaField(field))) of_table->meta.add(MetaField(field));
  }
  return Status();
}

StorageOptions StorageOptions::OfShard(int64_t shards) const {
  StorageOptions of_shard = *this;
  if (max_bytes >= 0) of_shard.max_bytes = max_bytes / shards;
  if (max_rows >= 0) of_shard.max_rows = max_rows / shards;
  if (max_device_bytes >= 0) of_shard.max_device_bytes = max_device_bytes / shards;
  return of_shard;
}

}  // namespace dynemb

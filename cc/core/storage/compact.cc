#include "cc/core/storage/compact.h"

#include <memory>

#include "cc/core/storage/flush.h"
#include "cc/core/storage/reopening.h"
#include "cc/core/storage/tiered_table.h"
#include "cc/core/table/key_strings.h"

namespace dynemb {

Status CompactFolders(FileSystem* files, const std::vector<std::string>& paths,
                      int64_t least_file_bytes) {
  StorageOptions storage;
  // So that no folder is made, or locked, where there is no flush.
  DYNEMB_RETURN_IF_ERROR(DiskFolder::OpenToRead(files, paths, &storage.disk));
  for (const std::string& path : paths) {
    std::vector<std::string> names;
    DYNEMB_RETURN_IF_ERROR(files->List(path, &names));
  }
  DYNEMB_RETURN_IF_ERROR(DiskFolder::Open(files, {paths}, &storage.disk));
  storage.flushed = storage.disk->TakeFlushed();
  if (storage.flushed == nullptr) {
    return Status(Code::kNotFound, StrCat(paths[0], ": its flush was removed meanwhile"));
  }
  storage.max_rows = 1;  // in memory
  storage.least_file_bytes = least_file_bytes;
  const TableSchema& schema = storage.flushed->schema();
  KeyStrings kept;
  KeyStrings* const strings = schema.strings ? &kept : nullptr;
  std::vector<std::unique_ptr<Table>> tables;
  std::vector<TieredTable*> shards;
  for (size_t s = 0; s < storage.flushed->shards.size(); ++s) {
    tables.emplace_back();
    DYNEMB_RETURN_IF_ERROR(MakeTieredTable(schema, TableOptions(), storage, &tables.back()));
    shards.push_back(static_cast<TieredTable*>(tables.back().get()));
  }
  Reopening reopening(storage.flushed, storage.disk, shards, strings);
  DYNEMB_RETURN_IF_ERROR(Reopen(&reopening, [](Span<const Key> keys, const Reopening& of) {
    return std::vector<int32_t>(static_cast<size_t>(keys.size),
                                static_cast<int32_t>(of.had_shard()));
  }));
  for (TieredTable* const shard : shards) DYNEMB_RETURN_IF_ERROR(shard->RemoveDeadRecords());
  return Flush(shards, strings, storage.disk.get(), storage.flushed->step);
}

}  // namespace dynemb

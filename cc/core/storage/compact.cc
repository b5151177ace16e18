#include "cc/core/storage/compact.h"

#include <memory>

#include "cc/core/storage/flush.h"
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
  KeyStrings strings;
  if (schema.strings) {
    DYNEMB_RETURN_IF_ERROR(ReadFlushedStrings(*storage.flushed, storage.disk.get(), &strings));
  }
  std::vector<std::unique_ptr<Table>> tables;
  std::vector<TieredTable*> shards;
  for (size_t s = 0; s < storage.flushed->shards.size(); ++s) {
    storage.shard = static_cast<int64_t>(s);
    tables.emplace_back();
    DYNEMB_RETURN_IF_ERROR(MakeTieredTable(schema, TableOptions(), storage, &tables.back()));
    shards.push_back(static_cast<TieredTable*>(tables.back().get()));
    DYNEMB_RETURN_IF_ERROR(shards.back()->RemoveDeadRecords());
  }
  return Flush(shards, schema.strings ? &strings : nullptr, storage.disk.get(),
               storage.flushed->step);
}

}  // namespace dynemb

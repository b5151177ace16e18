// Opened: a table of shards on folders in memory, as a kernel makes it, for tests.
#ifndef TF_DYNEMB_CC_CORE_STORAGE_TESTING_OPENED_H_
#define TF_DYNEMB_CC_CORE_STORAGE_TESTING_OPENED_H_

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "cc/core/shard/routing.h"
#include "cc/core/storage/flush.h"
#include "cc/core/storage/reopening.h"
#include "cc/core/storage/storage_options.h"
#include "cc/core/storage/tiered_table.h"
#include "cc/core/testing/harness.h"
#include "cc/core/testing/memory_file_system.h"

namespace dynemb {

struct Opened {
  StorageOptions storage;
  TableSchema schema;
  std::vector<std::unique_ptr<Table>> shards;
  bool was_flushed = false;

  TieredTable* tiered(size_t shard = 0) const {
    return static_cast<TieredTable*>(shards[shard].get());
  }
  Status Flush(int64_t step, KeyStrings* strings = nullptr) const {
    return dynemb::Flush(all(), strings, storage.disk.get(), step);
  }
  std::vector<TieredTable*> all() const {
    std::vector<TieredTable*> tables;
    for (size_t s = 0; s < shards.size(); ++s) tables.push_back(tiered(s));
    return tables;
  }
};

// `shard_ids`: the shard of each key; KeyMod, as in a kernel, if it is null.
using ShardIdsOf = std::function<std::vector<int32_t>(Span<const Key> keys)>;

inline Status Open(MemoryFileSystem* files, const TableSchema& schema, int64_t max_rows,
                   Opened* opened, int64_t shards = 1,
                   const DiskFolder::Options& folders = {{"/tiers"}},
                   const TableOptions& options = TableOptions(),
                   const ShardIdsOf& shard_ids = nullptr, KeyStrings* strings = nullptr) {
  *opened = Opened();
  opened->storage.max_rows = max_rows;
  opened->storage.least_file_bytes = 4'000;
  DYNEMB_RETURN_IF_ERROR(DiskFolder::Open(files, folders, &opened->storage.disk));
  opened->storage.flushed = opened->storage.disk->TakeFlushed();
  opened->was_flushed = opened->storage.flushed != nullptr;
  DYNEMB_RETURN_IF_ERROR(opened->storage.SchemaFor(schema, &opened->schema));
  for (int64_t s = 0; s < shards; ++s) {
    opened->shards.emplace_back();
    DYNEMB_RETURN_IF_ERROR(MakeTieredTable(opened->schema, options, opened->storage.OfShard(shards),
                                           &opened->shards.back()));
  }
  const auto flushed = std::exchange(opened->storage.flushed, nullptr);
  if (flushed == nullptr) return Status();
  Reopening reopening(flushed, opened->storage.disk, opened->all(), strings);
  return Reopen(&reopening, [&](Span<const Key> keys, const Reopening&) {
    return shard_ids ? shard_ids(keys) : KeyMod(keys, shards);
  });
}

inline TableContent ContentOf(const Opened& opened, size_t shard = 0) {
  return ExportAll(*opened.shards[shard], HostTestMemory(), 100);
}

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_CORE_STORAGE_TESTING_OPENED_H_

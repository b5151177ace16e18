#include "cc/core/storage/flush.h"

#include <set>
#include <utility>

#include "cc/core/base/hash.h"
#include "cc/core/base/no_memory.h"
#include "cc/core/storage/index_file.h"

namespace dynemb {
namespace {

// Writes the index file of a shard, and syncs it and the files of its rows.
Status FlushShard(TieredTable* table, KeyStrings* strings, DiskFolder* folder,
                  FlushedShard* flushed, std::set<uint64_t>* unsynced) {
  flushed->index = folder->NewFile();
  IndexFileWriter index;
  const auto write = [&] {
    DYNEMB_RETURN_IF_ERROR(index.Open(folder->files(),
                                      folder->PathOf(flushed->index, DiskFolder::Kind::kIndex),
                                      flushed->index, folder));
    IndexEntries entries;
    for (int part = 0; part < DiskIndex::kParts; ++part) {
      entries = IndexEntries();
      DYNEMB_RETURN_IF_ERROR(table->FlushPart(part, &entries, flushed));
      if (strings != nullptr) {
        entries.strings.resize(entries.keys.size());
        DYNEMB_RETURN_IF_ERROR(strings->Get(entries.keys, [&](int64_t i, std::string_view string) {
          entries.strings[static_cast<size_t>(i)] = string;
        }));
      }
      DYNEMB_RETURN_IF_ERROR(index.Append(entries));
    }
    flushed->rows = index.entries();
    for (const auto& [slot, file] : flushed->files) {
      unsynced->insert(file.number);  // whatever happens
      DYNEMB_RETURN_IF_ERROR(
          folder->files()->SyncFile(folder->PathOf(file.number, DiskFolder::Kind::kRows)));
      unsynced->clear();
    }
    return index.Finish();
  };
  const Status written = OrNoMemory(write);
  // It goes when a later flush does not name it, or now if this one comes to nothing.
  folder->Remove(flushed->index, DiskFolder::Kind::kIndex, index.bytes());
  return written;
}

}  // namespace

Status Flush(const std::vector<TieredTable*>& shards, KeyStrings* strings, DiskFolder* folder,
             int64_t step, const std::function<Status(const std::function<Status()>&)>& hold) {
  return OrNoMemory([&] {
    DiskFolder::FlushScope scope(folder);
    KeyStrings::PinGuard pin;  // since before it is known which keys have rows
    DYNEMB_RETURN_IF_ERROR(KeyStrings::PinGuard::Begin(strings, {}, &pin));
    const auto flush = [&]() -> Status {
      FlushManifest manifest;
      manifest.step = step;
      for (TieredTable* const table : shards) {
        manifest.shards.emplace_back();
        std::set<uint64_t> unsynced;
        DYNEMB_RETURN_IF_ERROR(table->BeginFlush());
        const Status flushed =
            FlushShard(table, strings, folder, &manifest.shards.back(), &unsynced);
        table->EndFlush(unsynced);
        DYNEMB_RETURN_IF_ERROR(flushed);
      }
      return scope.Commit(std::move(manifest));
    };
    return hold ? hold(flush) : flush();
  });
}

}  // namespace dynemb

#include "cc/core/storage/reopening.h"

#include <utility>

#include "cc/core/base/no_memory.h"

namespace dynemb {

Reopening::Reopening(std::shared_ptr<const FlushManifest> flushed,
                     std::shared_ptr<DiskFolder> folder, std::vector<TieredTable*> shards,
                     KeyStrings* strings)
    : flushed_(std::move(flushed)),
      folder_(std::move(folder)),
      shards_(std::move(shards)),
      strings_(strings) {}

Status Reopening::OpenFiles() {
  const FlushedShard& shard = flushed_->shards[shard_];
  at_.clear();
  for (const auto& [slot, of_flush] : shard.files) {
    OpenedFile& opened = files_[of_flush.number];
    if (opened.file == nullptr) {
      DYNEMB_RETURN_IF_ERROR(RowLog::OpenFile(folder_.get(), of_flush,
                                              shard.schemas[of_flush.schema_number], &opened.file));
      opened.slots.assign(shards_.size(), -1);
    } else if (opened.file->bytes != of_flush.bytes ||
               opened.file->schema_number != of_flush.schema_number) {
      return Status(Code::kDataLoss,
                    StrCat(opened.file->path, ": two shards say different things of it"));
    }
    at_.resize(static_cast<size_t>(slot) + 1);
    at_.back() = &opened;
  }
  return index_.Open(folder_->files(), folder_->PathOf(shard.index, DiskFolder::Kind::kIndex),
                     shard.index, shard.rows);
}

Status Reopening::Next(Span<const Key>* keys) {
  return OrNoMemory([&] {
    *keys = {};
    while (shard_ < flushed_->shards.size()) {
      begins_ = !has_shard_;
      if (begins_) DYNEMB_RETURN_IF_ERROR(OpenFiles());
      has_shard_ = true;
      DYNEMB_RETURN_IF_ERROR(index_.Next(&entries_));
      if (!entries_->keys.empty()) {
        *keys = entries_->keys;
        return Status();
      }
      has_shard_ = false;
      ++shard_;
    }
    for (TieredTable* const shard : shards_) DYNEMB_RETURN_IF_ERROR(shard->EndReopening());
    return CheckLimits();
  });
}

Status Reopening::CheckLimits() const {
  int64_t rows = 0, most = 0;
  for (const TieredTable* const shard : shards_) {
    const int64_t max_rows = shard->max_rows();
    if (max_rows == INT64_MAX) return Status();
    rows += shard->size();
    most += max_rows;
  }
  if (rows <= most) return Status();
  return FailedPrecondition(folder_->path(), ": the last flush has ", rows,
                            " rows, got a table of at most ", most,
                            "; want max_rows, or Disk(max_bytes), for as many, or an eviction "
                            "policy, by which the others leave");
}

Status Reopening::Place(Span<const int32_t> shard_ids) {
  return OrNoMemory([&] {
    const std::vector<Key>& keys = entries_->keys;
    const int64_t size = static_cast<int64_t>(keys.size());
    if (shard_ids.size != size) {
      return InvalidArgument("shard_ids: got ", shard_ids.size, ", want one for each of ", size,
                             " keys");
    }
    if (strings_ != nullptr) {
      if (entries_->strings.size() != keys.size()) {
        return Status(Code::kDataLoss, StrCat(index_.path(), ": it has no strings"));
      }
      DYNEMB_RETURN_IF_ERROR(strings_->Record(keys, entries_->strings));
    }
    std::vector<Placed> placed(shards_.size());
    for (int64_t i = 0; i < size; ++i) {
      const size_t s = static_cast<size_t>(shard_ids[i]);
      if (shard_ids[i] < 0 || s >= shards_.size()) {
        return InvalidArgument("shard_ids: got ", shard_ids[i], " for key ", keys[i],
                               ", want shards from 0 to ", shards_.size() - 1);
      }
      const Location location = entries_->locations[i];
      const size_t had_slot = static_cast<size_t>(RowLog::SlotOf(location));
      const int64_t offset = RowLog::OffsetOf(location);
      OpenedFile* const of = had_slot < at_.size() ? at_[had_slot] : nullptr;
      if (of == nullptr || !RowLog::HasRecordAt(*of->file, offset)) {
        return Status(Code::kDataLoss,
                      StrCat(index_.path(), ": it does not fit the files of rows"));
      }
      int64_t& slot = of->slots[s];
      if (slot < 0) {
        int64_t shared;
        DYNEMB_RETURN_IF_ERROR(shards_[s]->ShareFile(*of->file, &shared));
        slot = shared;
      }
      placed[s].keys.push_back(keys[i]);
      placed[s].locations.push_back(RowLog::LocationOf(slot, offset));
    }
    // A shard gets as many of all rows of an index as of its first.
    const double times =
        begins_ ? static_cast<double>(flushed_->shards[shard_].rows) / static_cast<double>(size)
                : 0;
    for (size_t s = 0; s < placed.size(); ++s) {
      const int64_t room = static_cast<int64_t>(times * static_cast<double>(placed[s].keys.size()));
      const Status status = shards_[s]->PlaceRows(placed[s].keys, placed[s].locations, room);
      if (status.code() == Code::kDataLoss) {
        return Status(Code::kDataLoss, StrCat(index_.path(), ": ", status.message()));
      }
      DYNEMB_RETURN_IF_ERROR(status);
    }
    return Status();
  });
}

Status Reopen(Reopening* reopening, const ShardIdsFunction& shard_ids) {
  Span<const Key> keys;
  DYNEMB_RETURN_IF_ERROR(reopening->Next(&keys));
  while (keys.size > 0) {
    DYNEMB_RETURN_IF_ERROR(reopening->Place(shard_ids(keys, *reopening)));
    DYNEMB_RETURN_IF_ERROR(reopening->Next(&keys));
  }
  return Status();
}

}  // namespace dynemb

#include "cc/core/storage/tiered_table.h"

#include <algorithm>
#include <mutex>
#include <shared_mutex>
#include <utility>
#include <vector>

#include "cc/core/storage/tiered_table_impl.h"
#include "cc/core/table/call_checks.h"

namespace dynemb {

struct Tiered::Move final : public RowMove {
  std::unique_ptr<Table> Run(const Context&) override {
    const std::unique_lock<FairSharedMutex> lock(tiers->mutex);
    tiers->SetSchema(std::move(next));
    return std::move(to);
  }
  Tiers* tiers;
  Tiers::Next next;
  std::unique_ptr<Tiered> to;
};

Status Tiered::SweepExpired(const Context& context, int64_t rows) {
  DYNEMB_RETURN_IF_ERROR(CheckContext(context));
  if (!expires()) return Status();
  return OrNoMemory([&] {
    const Alone alone(*this);
    return tiers_->SweepExpired(std::min(rows, tiers_->size()));
  });
}

Status Tiered::Clear(const Context& context) {
  DYNEMB_RETURN_IF_ERROR(CheckContext(context));
  const Alone alone(*this);
  changes_->Forget();
  return tiers_->Clear(context);
}

Status Tiered::Reserve(const Context& context, int64_t rows) {
  DYNEMB_RETURN_IF_ERROR(CheckContext(context));
  const std::shared_lock<FairSharedMutex> lock(mutex_);
  return tiers_->above()->Reserve(Tiers::Inner(context), std::min(rows, tiers_->max_rows_above()));
}

Status Tiered::BeginEpoch(const Context& context, int64_t epoch) {
  DYNEMB_RETURN_IF_ERROR(CheckContext(context));
  const Alone alone(*this);
  if (epoch <= changes_->epoch()) return EpochNotLater(epoch, changes_->epoch());
  changes_->BeginEpoch(epoch, tiers_->size());
  return Status();
}

Status Tiered::ChangedKeys(const Context& context, int64_t since, const TablePart& part,
                           std::vector<Key>* keys) const {
  DYNEMB_RETURN_IF_ERROR(CheckContext(context));
  DYNEMB_RETURN_IF_ERROR(CheckTablePart(part));
  return OrNoMemory([&] {
    const std::shared_lock<FairSharedMutex> lock(mutex_);
    keys->clear();
    if (changes_->Since(since, part, keys)) return Status();
    keys->clear();
    return ChangesNotKnown(since);
  });
}

void Tiered::TrimChanges(const std::vector<int64_t>& positions) {
  const std::shared_lock<FairSharedMutex> lock(mutex_);
  changes_->Trim(positions);
}

Status Tiered::PrepareMove(const Context& context, const TableSchema& schema,
                           std::unique_ptr<RowMove>* move) {
  DYNEMB_RETURN_IF_ERROR(CheckContext(context));
  DYNEMB_RETURN_IF_ERROR(CheckMove(schema_, schema));
  return OrNoMemory([&] {
    const Alone alone(*this);
    const RowLayout layout(schema);
    const int64_t more = tiers_->size() - tiers_->RowsWithinDisk(layout);
    if (more > 0 && !options_.eviction.evicts()) {
      return ResourceExhausted("Disk(max_bytes): got ", tiers_->size(), " rows that are to have ",
                               layout.row_bytes, " bytes, of which there may be ",
                               tiers_->RowsWithinDisk(layout),
                               "; want a larger Disk(max_bytes), or an eviction policy");
    }
    if (more > 0) DYNEMB_RETURN_IF_ERROR(tiers_->Evict(more));
    DYNEMB_RETURN_IF_ERROR(tiers_->AllDown());
    auto made = std::make_unique<Move>();
    DYNEMB_RETURN_IF_ERROR(tiers_->PrepareSchema(schema, &made->next));
    made->tiers = tiers_.get();
    made->to = std::make_unique<Tiered>(tiers_, changes_, schema, options_, upkeep_.has_value());
    *move = std::move(made);
    return Status();
  });
}

Status Tiered::BeginFlush() {
  return OrNoMemory([&] {
    const Alone alone(*this);
    return tiers_->BeginFlush();
  });
}

Status Tiered::FlushPart(int part, IndexEntries* entries, FlushedShard* flushed) {
  return OrNoMemory([&] {
    const Alone alone(*this);
    return tiers_->FlushPart(part, entries, flushed);
  });
}

void Tiered::EndFlush(const std::set<uint64_t>& unsynced) {
  const Alone alone(*this);
  tiers_->EndFlush(unsynced);
}

Status Tiered::ShareFile(const RowLog::File& file, int64_t* slot) {
  return OrNoMemory([&] {
    const std::unique_lock<FairSharedMutex> lock(mutex_);
    return tiers_->below()->ShareFile(file, slot);
  });
}

Status Tiered::PlaceRows(Span<const Key> keys, Span<const Location> locations, int64_t room) {
  return OrNoMemory([&] {
    const std::unique_lock<FairSharedMutex> lock(mutex_);
    return tiers_->below()->PlaceRows(keys, locations, room);
  });
}

Status Tiered::EndReopening() {
  return OrNoMemory([&] {
    const Alone alone(*this);
    DYNEMB_RETURN_IF_ERROR(tiers_->below()->ReadNumbers());
    if (tiers_->room() >= 0) return Status();
    if (expires()) DYNEMB_RETURN_IF_ERROR(tiers_->SweepExpired(tiers_->size()));
    return options_.eviction.evicts() ? tiers_->Evict(-tiers_->room()) : Status();
  });
}

Status Tiered::RemoveDeadRecords() {
  return OrNoMemory([&] {
    const Alone alone(*this);
    return tiers_->below()->RewriteDead();
  });
}

int64_t Tiered::size() const {
  const std::shared_lock<FairSharedMutex> lock(mutex_);
  return tiers_->size();
}

int64_t Tiered::room() const {
  const std::shared_lock<FairSharedMutex> lock(mutex_);
  return tiers_->room();
}

int64_t Tiered::max_rows() const {
  const std::shared_lock<FairSharedMutex> lock(mutex_);
  return tiers_->max_rows();
}

TableCounters Tiered::counters() const {
  const std::shared_lock<FairSharedMutex> lock(mutex_);
  TableCounters counters = tiers_->above()->counters();
  counters.Add(tiers_->own_calls(), -1);
  return counters;
}

int64_t Tiered::memory_bytes() const {
  const std::shared_lock<FairSharedMutex> lock(mutex_);
  return tiers_->memory_bytes() + changes_->memory_bytes();
}

TierStats Tiered::tier_stats() const {
  const std::shared_lock<FairSharedMutex> lock(mutex_);
  TierStats stats = tiers_->stats();
  TableCounters counters = tiers_->above()->counters();
  counters.Add(tiers_->own_calls(), -1);
  stats.hits = counters.found + counters.missing + counters.written - stats.misses;
  return stats;
}

bool Tiered::UpkeepSlice() {
  bool more = false, has_block = false;
  RowLog::Block block;
  static_cast<void>(OrNoMemory([&] {
    const std::unique_lock<FairSharedMutex> lock(mutex_);
    more = tiers_->MakeRoomAhead();
    NoteGone(tiers_->TakeGone());
    static_cast<void>(tiers_->KeepExpiredAbove());
    has_block = tiers_->below()->NextToMove(&block);
    return Status();
  }));
  if (!has_block) return more;
  Status read = block.Read();
  const std::unique_lock<FairSharedMutex> lock(mutex_);
  return tiers_->below()->Move(block, std::move(read)).ok();
}

void Tiered::NoteGone(const std::vector<Key>& keys) const {
  if (keys.empty()) return;
  Batch batch;
  batch.keys = keys;
  changes_->Note(batch, tiers_->size(), [](int64_t) { return true; });
}

Status MakeTieredTable(const TableSchema& schema, const TableOptions& options,
                       const StorageOptions& storage, std::unique_ptr<Table>* table) {
  DYNEMB_RETURN_IF_ERROR(schema.Validate());
  DYNEMB_RETURN_IF_ERROR(options.Validate());
  if (storage.max_bytes < 0 && storage.max_rows < 0) {
    return InvalidArgument("storage: got no limit of host memory, want one");
  }
  if (storage.disk == nullptr) return InvalidArgument("storage: got no disk, want one");
  return OrNoMemory([&] {
    std::unique_ptr<Tiers> tiers;
    DYNEMB_RETURN_IF_ERROR(Tiers::Make(schema, options, storage, &tiers));
    auto made = std::make_unique<Tiered>(std::move(tiers), std::make_shared<TierChanges>(), schema,
                                         options, storage.in_background);
    if (options.track_changes) DYNEMB_RETURN_IF_ERROR(made->BeginEpoch(OneThread(), 1));
    *table = std::move(made);
    return Status();
  });
}

}  // namespace dynemb

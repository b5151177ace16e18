#include "cc/core/storage/disk_rows.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "cc/core/base/copy_bytes.h"
#include "cc/core/base/no_memory.h"

namespace dynemb {

DiskRows::DiskRows(std::shared_ptr<DiskFolder> folder, int64_t least_file_bytes,
                   const EvictionPolicy& policy, std::shared_ptr<PolicyClock> clock)
    : policy_(policy),
      expires_(policy.expires()),
      clock_(std::move(clock)),
      folder_(folder),
      index_(RowScores::NumbersOf(policy)),
      log_(std::move(folder), least_file_bytes),
      least_file_bytes_(least_file_bytes) {}

Status DiskRows::PlaceRows(Span<const Key> keys, Span<const Location> locations, int64_t room) {
  if (room > 0 && !index_.Reserve(index_.size() + room)) return NoMemory();
  for (int64_t i = 0; i < keys.size; ++i) {
    const uint64_t hash = DiskHash(keys[i]);
    if (index_.Find(hash) != kNowhere) {
      return Status(Code::kDataLoss, StrCat("key ", keys[i], " is there twice"));
    }
    constexpr int64_t kUnknown[DiskIndex::kMostNumbers] = {};
    if (!index_.Put(hash, locations[i], kUnknown)) return NoMemory();
    log_.Live(locations[i]);
  }
  return Status();
}

Status DiskRows::ReadNumbers() {
  if (!scores_ || empty()) return Status();
  const int64_t at = layouts_.back().layout.meta_field[static_cast<int>(MetaField::kLastWriteTime)];
  int64_t latest = INT64_MIN;
  DYNEMB_RETURN_IF_ERROR(ForEachRow([&](Key key, const char* row) {
    const uint64_t hash = DiskHash(key);
    int64_t numbers[DiskIndex::kMostNumbers];
    NumbersOf(row, numbers);
    index_.Put(hash, index_.Find(hash), numbers);
    if (at >= 0) {
      const int64_t time = ReadInt64(row + layouts_.back().layout.meta_offset + at);
      if (policy_.has_unit_of(time)) latest = std::max(latest, time);
    }
    return Status();
  }));
  if (policy_.uses_time()) clock_->Advance(latest);
  return Status();
}

void DiskRows::NumbersOf(const char* row, int64_t* numbers) const {
  if (scores_) scores_->Numbers(row, row + layouts_.back().layout.meta_offset, numbers);
}

void DiskRows::ForFlush(int part, IndexEntries* entries, FlushedShard* flushed) const {
  flushed->schemas.clear();
  for (const auto& schema : schemas_) flushed->schemas.push_back(*schema);
  int64_t last_slot = -1;
  index_.ForEach(part, 0, [&](const DiskIndex::Entry& entry) {
    if (HasExpired(entry)) return true;
    entries->keys.push_back(KeyOfDiskHash(entry.hash));
    entries->locations.push_back(entry.location);
    const int64_t slot = RowLog::SlotOf(entry.location);
    if (slot != last_slot) flushed->files[slot] = log_.FileAt(slot);
    last_slot = slot;
    return true;
  });
}

Status DiskRows::PrepareSchema(const TableSchema& schema, NextSchema* next) {
  next->text = schema.ToText();
  if (!schemas_.empty() && next->text == schemas_.back()->ToText()) return Status();
  layouts_.reserve(layouts_.size() + 1);
  schemas_.reserve(schemas_.size() + 1);
  next->schema = std::make_unique<TableSchema>(schema);
  next->initial_slots.resize(
      static_cast<size_t>(std::max<int64_t>(1, RowLayout(schema).slots_bytes)));
  FillInitialSlots(schema, next->initial_slots.data());
  return Status();
}

void DiskRows::SetSchema(NextSchema next) {
  if (next.schema == nullptr) return;
  for (Layout& earlier : layouts_) {
    earlier.is_current = false;
    earlier.keeps_slots &= schemas_.back()->rule == next.schema->rule;
    for (int field = 0; field < kMetaFields; ++field) {
      earlier.keeps_meta[field] &=
          schemas_.back()->meta.has(MetaField(field)) && next.schema->meta.has(MetaField(field));
    }
  }
  schemas_.push_back(std::move(next.schema));
  initial_slots_ = std::move(next.initial_slots);
  layouts_.emplace_back(*schemas_.back());
  if (policy_.evicts() || policy_.expires()) {
    scores_.emplace(policy_, layouts_.back().layout, schemas_.back()->value_dtype, clock_);
  }
  log_.SetLayout(static_cast<SchemaNumber>(layouts_.size() - 1), layouts_.back().layout.row_bytes,
                 std::move(next.text));
}

void DiskRows::Convert(SchemaNumber schema_number, const char* row, char* to) const {
  const Layout& from = layouts_[schema_number];
  const RowLayout &old = from.layout, &now = layouts_.back().layout;
  if (from.is_current) {
    CopyBytes(to, row, now.row_bytes);
    return;
  }
  std::memset(to, 0, static_cast<size_t>(now.row_bytes));
  CopyBytes(to, row, now.value_bytes);
  CopyBytes(to + now.slots_offset,
            from.keeps_slots ? row + old.slots_offset : initial_slots_.data(), now.slots_bytes);
  for (int field = 0; field < kMetaFields; ++field) {
    if (now.meta_field[field] < 0 || old.meta_field[field] < 0 || !from.keeps_meta[field]) continue;
    WriteInt64(ReadInt64(row + old.meta_offset + old.meta_field[field]),
               to + now.meta_offset + now.meta_field[field]);
  }
}

Status DiskRows::Read(const RowLog::Reads& reads, char* rows) const {
  const int64_t row_bytes = layouts_.back().layout.row_bytes;
  rows_read_.fetch_add(reads.rows(), std::memory_order_relaxed);
  return reads.Run([&](int64_t i, SchemaNumber schema_number, const char* row) {
    Convert(schema_number, row, rows + i * row_bytes);
  });
}

Status DiskRows::ForEachRow(const RowFunction& row) const {
  std::vector<char> converted(static_cast<size_t>(layouts_.back().layout.row_bytes));
  int64_t found = 0;
  DYNEMB_RETURN_IF_ERROR(
      log_.Scan([&](Key key, Location location, SchemaNumber schema_number, const char* bytes) {
        if (index_.Find(DiskHash(key)) != location) return Status();
        ++found;
        if (layouts_[schema_number].is_current) return row(key, bytes);
        Convert(schema_number, bytes, converted.data());
        return row(key, converted.data());
      }));
  rows_read_.fetch_add(found, std::memory_order_relaxed);
  if (found == index_.size()) return Status();
  // Which file it is says the one that has fewer than it should.
  for (int64_t slot = 0; slot < log_.slots(); ++slot) {
    if (!log_.Has(slot)) continue;
    int64_t live = 0;
    DYNEMB_RETURN_IF_ERROR(
        log_.ScanFile(slot, [&](Key key, Location location, SchemaNumber, const char*) {
          live += index_.Find(DiskHash(key)) == location;
          return Status();
        }));
    DYNEMB_RETURN_IF_ERROR(log_.CheckLive(slot, live));
  }
  return Status(Code::kDataLoss, "rows on disk: their number is not that of the index");
}

Status DiskRows::Put(Span<const Key> keys, const char* rows) {
  std::vector<Location> locations(static_cast<size_t>(keys.size));
  DYNEMB_RETURN_IF_ERROR(log_.Append(keys, rows, locations.data()));
  rows_written_ += keys.size;
  put_rows_ += keys.size;
  bool has_memory = true;
  ForEachHash(keys, [&](int64_t i, uint64_t hash) {
    if (!has_memory) return;
    Location before;
    int64_t numbers[DiskIndex::kMostNumbers];
    NumbersOf(rows + i * layouts_.back().layout.row_bytes, numbers);
    has_memory = index_.Put(hash, locations[i], numbers, &before);
    if (!has_memory) return;
    log_.Live(locations[i]);
    if (before != kNowhere) log_.Dead(before);
  });
  if (has_memory) return Status();
  return ResourceExhausted("no memory for the index of ", index_.size(), " rows on disk");
}

bool DiskRows::Remove(uint64_t hash) {
  const Location location = index_.Remove(hash);
  if (location == kNowhere) return false;
  log_.Dead(location);
  ++removed_rows_;
  return true;
}

void DiskRows::Clear() {
  index_.Clear();
  log_.Clear();
  removed_rows_ = 0;
}

Status DiskRows::MoveRows(const RowLog::Block& block) {
  const size_t row_bytes = static_cast<size_t>(layouts_.back().layout.row_bytes);
  std::vector<Key> keys;
  std::vector<char> rows;
  std::vector<Location> locations;
  DYNEMB_RETURN_IF_ERROR(block.ForEachRecord(
      [&](Key key, Location location, SchemaNumber schema_number, const char* row) {
        keys.push_back(key);
        locations.push_back(location);
        rows.resize(rows.size() + row_bytes);
        Convert(schema_number, row, &rows[rows.size() - row_bytes]);
        return Status();
      }));
  size_t there = 0;  // at their locations
  ForEachHash(keys, [&](int64_t i, uint64_t hash) {
    const size_t from = static_cast<size_t>(i);
    if (index_.Find(hash) != locations[from]) return;
    if (there < from) std::memcpy(&rows[there * row_bytes], &rows[from * row_bytes], row_bytes);
    keys[there++] = keys[from];
  });
  keys.resize(there);
  const int64_t put = put_rows_;
  const Status moved = keys.empty() ? Status() : Put(keys, rows.data());
  put_rows_ = put;
  return moved;
}

// A file that is compacted at kMostBytes has a third of dead bytes at least, so that so many bytes
// moved make room for one.
constexpr int64_t kMovedBytes = 4;

Status DiskRows::Move(const RowLog::Block& block, Status read) {
  const int64_t rows = (block.end() - block.begin()) / (kMovedBytes * record_bytes());
  removed_rows_ = std::max<int64_t>(0, removed_rows_ - std::max<int64_t>(1, rows));
  if (!log_.HasFile(block.slot(), block.number())) return Status();
  // What cannot be read is left. Everything else may go well another time, from the beginning.
  if (read.code() == Code::kDataLoss) return Status();
  Status moved = read.ok() ? OrNoMemory([&] { return MoveRows(block); }) : std::move(read);
  if (!moved.ok() && log_.HasFile(block.slot(), block.number())) {
    log_.SetDamaged(block.slot(), false);
    moving_ = {};
  }
  return moved;
}

bool DiskRows::NextToMove(RowLog::Block* block) {
  if (!HasMoreBytesThan(kCompactedBytes)) return false;
  while (!log_.HasFile(moving_.slot, moving_.number) ||
         !log_.BlockAt(moving_.slot, moving_.end, block)) {
    // What is left of a file when it has been read, but for blocks that are under way, could not
    // be.
    if (log_.HasFile(moving_.slot, moving_.number)) log_.RemoveIfDead(moving_.slot);
    if (log_.HasFile(moving_.slot, moving_.number)) log_.SetDamaged(moving_.slot, true);
    const int64_t slot = log_.WorstFile();
    if (slot < 0) return false;
    moving_ = {slot, log_.FileAt(slot).number, 0};
  }
  moving_.end = block->end();
  return true;
}

Status DiskRows::Compact() {
  // A call works for what it has put, and somewhat more, so that the removal of many rows is paid
  // for by many calls.
  constexpr int64_t kMoreBytes = 16 * RowLog::kBlockBytes;
  int64_t bytes = kMovedBytes * record_bytes() * std::exchange(put_rows_, 0) + kMoreBytes;
  RowLog::Block block;
  Status moved;
  while (moved.ok() && bytes > 0 && removed_rows_ > 0 && HasMoreBytesThan(kMostBytes) &&
         NextToMove(&block)) {
    moved = Move(block, block.Read());
    bytes -= block.end() - block.begin();
  }
  if (!HasMoreBytesThan(kMostBytes)) removed_rows_ = 0;
  return moved;
}

template <typename Moves>
Status DiskRows::MoveFiles(const Moves& moves) {
  RowLog::Block block;
  for (int64_t slot = 0; slot < log_.slots(); ++slot) {
    if (!log_.Has(slot) || !moves(slot)) continue;
    bool more = log_.BlockAt(slot, 0, &block);
    while (more) {
      DYNEMB_RETURN_IF_ERROR(block.Read());
      DYNEMB_RETURN_IF_ERROR(MoveRows(block));
      more = log_.HasFile(slot, block.number()) && log_.BlockAt(slot, block.end(), &block);
    }
    if (log_.HasFile(slot, block.number())) {
      log_.RemoveIfDead(slot);
      if (log_.Has(slot)) DYNEMB_RETURN_IF_ERROR(log_.CheckLive(slot, 0));
    }
  }
  return Status();
}

Status DiskRows::MoveUnsynced() {
  return MoveFiles([&](int64_t slot) { return log_.IsUnsynced(slot); });
}

Status DiskRows::RewriteDead() {
  return MoveFiles([&](int64_t slot) { return log_.HasDead(slot); });
}

}  // namespace dynemb

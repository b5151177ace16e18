// The calls that go through all rows, or all changes, of a table on a GPU.
#include <algorithm>
#include <mutex>
#include <vector>

#include "cc/core/table/call_checks.h"
#include "cc/gpu/table/gpu_table_impl.h"
#include "cc/gpu/table/sort_pairs.h"

namespace dynemb {
namespace {

constexpr int64_t kKeysAtOnce = 1 << 20;  // of those that have changed, to the host

}  // namespace

Status GpuTableOfMemory::Export(const Context& context, Cursor* cursor, const RowParts& out,
                                int64_t* rows) const {
  DYNEMB_RETURN_IF_ERROR(CheckContext(context, space()));
  DYNEMB_RETURN_IF_ERROR(CheckExport(layout_, out, space()));
  DYNEMB_RETURN_IF_ERROR(CheckTablePart(*cursor));
  return InTurn(context, true, [&] { return ExportNext(context, cursor, out, rows); });
}

Status GpuTableOfMemory::BeginEpoch(const Context& context, int64_t epoch) {
  DYNEMB_RETURN_IF_ERROR(CheckContext(context, space()));
  return InTurn(context, true, [&] { return StartEpoch(context, epoch); });
}

Status GpuTableOfMemory::StartEpoch(const Context& context, int64_t epoch) {
  if (epoch <= epoch_) return EpochNotLater(epoch, epoch_);
  if (epoch_ == 0) {
    DYNEMB_RETURN_IF_ERROR(rows_.BeginMarks(context));
    erased_.Begin(epoch);
  }
  epoch_ = epoch;
  return {};
}

int64_t GpuTableOfMemory::epoch() const {
  std::lock_guard<FairSharedMutex> lock(mutex_);
  return epoch_;
}

Status GpuTableOfMemory::ChangedKeys(const Context& context, int64_t since, const TablePart& part,
                                     std::vector<Key>* keys) const {
  DYNEMB_RETURN_IF_ERROR(CheckContext(context, space()));
  DYNEMB_RETURN_IF_ERROR(CheckTablePart(part));
  keys->clear();
  return InTurn(context, true, [&]() -> Status {
    const Status collected = OrNoMemory([&] { return CollectChanges(context, since, part, keys); });
    if (collected.code() == Code::kResourceExhausted) *keys = {};
    return collected;
  });
}

void GpuTableOfMemory::TrimChanges(const std::vector<int64_t>& positions) {
  if (positions.empty()) return;
  std::lock_guard<FairSharedMutex> lock(mutex_);
  erased_.Forget(std::min(positions.front(), epoch_ - 1));
}

Status GpuTableOfMemory::Histogram(const Context& context, MetaField field, const RowOrder& prefix,
                                   int prefix_bits, Span<int64_t> counts) const {
  DYNEMB_RETURN_IF_ERROR(CheckContext(context, space()));
  return InTurn(context, false, [&]() -> Status {
    DYNEMB_RETURN_IF_ERROR(CheckMetaField(layout_, field));
    int bits;
    DYNEMB_RETURN_IF_ERROR(CheckCounts(counts, prefix_bits, &bits, space()));
    return ForEach(context, ChunkCount(index_.view()),
                   CountDigits{index_.view(), rows_.view(), FieldOffset(field), prefix, prefix_bits,
                               bits, counts.data});
  });
}

uint64_t GpuTableOfMemory::SliceWidth(int64_t chunks) const {
  constexpr int64_t kMostChunks = int64_t{1} << 31;
  return (static_cast<uint64_t>(std::min(chunks, kMostChunks)) << 32) /
         static_cast<uint64_t>(index_.cells() / IndexChunk::kCells);
}

// ChangedKeys, which may throw for want of host memory.
Status GpuTableOfMemory::CollectChanges(const Context& context, int64_t since,
                                        const TablePart& part, std::vector<Key>* keys) const {
  if (epoch_ == 0) return ChangesNotKnown(since);
  DYNEMB_RETURN_IF_ERROR(DrainErased(context));
  if (!erased_.Knows(since)) return ChangesNotKnown(since);
  const uint64_t first = FirstHash(part, part.part), last = FirstHash(part, part.part + 1) - 1;
  DYNEMB_RETURN_IF_ERROR(CollectWritten(context, since, first, last, keys));
  const std::vector<Key> erased = erased_.Since(since, first, last);
  std::vector<bool> is_back(erased.size());
  for (const Key key : *keys) {
    const auto found = std::lower_bound(erased.begin(), erased.end(), key);
    if (found != erased.end() && *found == key) is_back[found - erased.begin()] = true;
  }
  for (size_t i = 0; i < erased.size(); ++i) {
    if (!is_back[i]) keys->push_back(erased[i]);
  }
  return {};
}
// Keys with hashes in [first, last] whose rows were written after the epoch `since`.
Status GpuTableOfMemory::CollectWritten(const Context& context, int64_t since, uint64_t first,
                                        uint64_t last, std::vector<Key>* keys) const {
  constexpr int64_t kLeastKeys = 1 << 10;  // for a table that leaves no memory
  int64_t room = kKeysAtOnce;
  Status begun;
  do {
    begun = scratch_.Begin(context, Scratch::Bytes<Key>(room) + Scratch::Bytes<int64_t>(1));
    if (begun.ok()) break;
    room /= 2;
  } while (begun.code() == Code::kResourceExhausted && room >= kLeastKeys);
  DYNEMB_RETURN_IF_ERROR(begun);
  int64_t* const count = scratch_.Take<int64_t>(1);
  return CollectWritten(context, {marks(), since, room, scratch_.Take<Key>(room), count}, first,
                        last, keys);
}
// Through a buffer, piece by piece if need be.
Status GpuTableOfMemory::CollectWritten(const Context& context, const CollectChanged& collect,
                                        uint64_t first, uint64_t last,
                                        std::vector<Key>* keys) const {
  int64_t count = 0;
  DYNEMB_RETURN_IF_ERROR(FillBytes(context, collect.count, 0, sizeof(count)));
  DYNEMB_RETURN_IF_ERROR(ForEachInRange(context, index_.view(), first, last, collect));
  DYNEMB_RETURN_IF_ERROR(CopyAny(context, &count, collect.count, sizeof(count)));
  DYNEMB_RETURN_IF_ERROR(Wait(context));
  if (count <= collect.room) {
    const auto before = keys->size();
    keys->resize(before + static_cast<size_t>(count));
    DYNEMB_RETURN_IF_ERROR(CopyAny(context, keys->data() + before, collect.keys,
                                   count * static_cast<int64_t>(sizeof(Key))));
    return Wait(context);
  }
  const uint64_t width = (last - first) / static_cast<uint64_t>(2 * count / collect.room);
  for (uint64_t begin = first;;) {
    const uint64_t end = last - begin <= width ? last : begin + width;
    DYNEMB_RETURN_IF_ERROR(CollectWritten(context, collect, begin, end, keys));
    if (end == last) return {};
    begin = end + 1;
  }
}

// The next rows of an export, by their hashes.
Status GpuTableOfMemory::ExportNext(const Context& context, Cursor* cursor, const RowParts& out,
                                    int64_t* rows) const {
  const uint64_t last = FirstHash(*cursor, cursor->part + 1) - 1;
  if (cursor->position[1] == 0) cursor->position[0] = FirstHash(*cursor, cursor->part);
  const int64_t capacity = out.keys.size;
  uint64_t width = SliceWidth(capacity / IndexChunk::kCells + 1);
  *rows = 0;
  for (; !cursor->done && *rows == 0; width *= 2) {
    const uint64_t first = cursor->position[0];
    const uint64_t until = EndOfSlice(first, last, width);
    int64_t found;
    const Expiry hidden = cursor->with_expired ? Expiry() : expiry();
    DYNEMB_RETURN_IF_ERROR(ExportRange(context, first, until, hidden, out, &found));
    *rows = std::min(found, capacity);
    cursor->position[1] = 1;
    cursor->position[0] = until + 1;
    cursor->done = until == last;
    if (found <= capacity) continue;
    uint64_t hash;
    DYNEMB_RETURN_IF_ERROR(CopyAny(context, &hash, range_.hashes + capacity, sizeof(hash)));
    DYNEMB_RETURN_IF_ERROR(Wait(context));
    cursor->position[0] = hash;
    cursor->done = false;
  }
  return {};
}

// Exports the first rows with hashes in [first, last] that are not hidden, of `found` in all.
Status GpuTableOfMemory::ExportRange(const Context& context, uint64_t first, uint64_t last,
                                     const Expiry& hidden, const RowParts& out,
                                     int64_t* found) const {
  const int64_t capacity = out.keys.size;
  *found = 2 * capacity + 64;
  int64_t room = 0;
  int64_t temp_bytes;
  uint64_t* hashes;
  RowRef* refs;
  while (*found > room) {
    room = *found;
    DYNEMB_RETURN_IF_ERROR(SortTempBytes(context, room, &temp_bytes));
    DYNEMB_RETURN_IF_ERROR(scratch_.Begin(
        context, 2 * (Scratch::Bytes<uint64_t>(room) + Scratch::Bytes<RowRef>(room)) +
                     Scratch::Bytes<int64_t>(1) + Scratch::Bytes<char>(temp_bytes)));
    hashes = scratch_.Take<uint64_t>(room);
    refs = scratch_.Take<RowRef>(room);
    int64_t* const count = scratch_.Take<int64_t>(1);
    DYNEMB_RETURN_IF_ERROR(FillBytes(context, count, 0, sizeof(*count)));
    DYNEMB_RETURN_IF_ERROR(
        ForEachInRange(context, index_.view(), first, last,
                       CollectRows{rows_.view(), hidden, room, hashes, refs, count}));
    DYNEMB_RETURN_IF_ERROR(CopyAny(context, found, count, sizeof(*found)));
    DYNEMB_RETURN_IF_ERROR(Wait(context));
  }
  if (*found == 0) return {};
  range_ = {scratch_.Take<uint64_t>(room), scratch_.Take<RowRef>(room)};
  DYNEMB_RETURN_IF_ERROR(SortPairs(context, *found, 64,
                                   Pairs64{hashes, refs, range_.hashes, range_.rows},
                                   scratch_.Take<char>(temp_bytes), temp_bytes));
  return ForEachRow(context, std::min(*found, capacity),
                    ExportRows{range_.hashes, range_.rows, rows_.view(), layout_, out});
}
}  // namespace dynemb

// How rows leave a table on a GPU: those of the lowest scores, those that have expired, those below
// a bound.
#include <algorithm>
#include <mutex>
#include <new>

#include "cc/core/table/call_checks.h"
#include "cc/core/table/evictor.h"
#include "cc/gpu/table/gpu_table_impl.h"

namespace dynemb {
namespace {

constexpr int64_t kMoreErased = 1 << 18;  // see gpu_table.h
// Chunks of the index that a scan goes through before other calls get a turn; where keys are noted
// or rows kept, as many as have keys that there is room for.
constexpr int64_t kChunksAtOnce = 1 << 20, kNotedChunksAtOnce = 1 << 15;
// How much of the index is looked at for a row, where few rows are in it.
constexpr int64_t kMostCellsOfRow = 8, kLeastCells = 4096;
constexpr uint64_t kUpperHalves = uint64_t{1} << 32;  // of hashes

// Moves a hand, an upper half of a hash, over about `wanted` of so many rows. The hashes are those
// in [first, 2^64) and [0, last] where last < first.
HashRange PassOver(int64_t wanted, int64_t rows, uint64_t* hand) {
  if (wanted >= rows) return {0, ~uint64_t{0}};
  const double share = static_cast<double>(wanted) / static_cast<double>(rows);
  const auto size = static_cast<uint64_t>(share * static_cast<double>(kUpperHalves));
  const uint64_t first = *hand;
  *hand = (first + std::max<uint64_t>(size, 1)) % kUpperHalves;
  return {first << 32, (*hand << 32) - 1};
}

}  // namespace

Status GpuTableOfMemory::BeginErasing(const Context& context, int64_t most, FreedRows* freed) {
  *freed = FreedRows();
  freed->counts = counts_.there();
  DYNEMB_RETURN_IF_ERROR(rows_.FreeRows(context, &freed->free_rows));
  if (epoch_ == 0) return {};
  if (!erased_.HasRoom(most)) DYNEMB_RETURN_IF_ERROR(DrainErased(context));
  DYNEMB_RETURN_IF_ERROR(erased_.MakeRoom(context, most));
  freed->erased = erased_.there(epoch_);
  return {};
}

Status GpuTableOfMemory::BeginLeaving(const Context& context, int64_t most, bool all,
                                      FreedRows* freed) {
  most = std::min(most, rows_.capacity());
  DYNEMB_RETURN_IF_ERROR(BeginErasing(context, most, freed));
  if (options_.evicted == nullptr) return {};
  return left_.Begin(context, most, all, layout_.value_bytes, &freed->leaving);
}

Status GpuTableOfMemory::EndLeaving(const Context& context, const FreedRows& freed,
                                    bool* overflow) {
  *overflow = false;
  DYNEMB_RETURN_IF_ERROR(counts_.EndCall(context, rows_.capacity(), 0));
  if (options_.evicted == nullptr) return {};
  return left_.End(context, freed.leaving, options_.evicted.get(), overflow);
}

Status GpuTableOfMemory::DrainErased(const Context& context, bool* overflow) const {
  try {
    DYNEMB_RETURN_IF_ERROR(erased_.Drain(context, overflow));
  } catch (const std::bad_alloc&) {
    return erased_.ForgetAll(context, epoch_);
  }
  RowCounts counts;
  DYNEMB_RETURN_IF_ERROR(counts_.Read(context, &counts));
  erased_.Limit(2 * int64_t{counts.fresh} + kMoreErased);
  return {};
}

// As the Evictor of cc/core/table/evictor.h: a hand goes over the hashes, and of kCandidates times
// as many rows as have to leave, or kUnitRows, those leave that have the lowest scores.
Status GpuTableOfMemory::EvictDownTo(const Context& context, int64_t rows) {
  const RowScore score(options_.eviction, schema_, layout_, expiry());
  RowCounts counts;
  DYNEMB_RETURN_IF_ERROR(counts_.Read(context, &counts));
  for (int64_t passed = 0, left; (left = counts.rows() - rows) > 0;) {
    const int64_t there = counts.rows();
    if (passed > 2 * there) return Status(Code::kInternal, "evicting: rows were not found");
    const int64_t wanted = std::max(Evictor::kUnitRows, left * Evictor::kCandidates);
    passed += wanted;
    const HashRange range = PassOver(wanted, there, &hand_);
    int64_t found;
    DYNEMB_RETURN_IF_ERROR(candidates_.Collect(context, index_.view(), rows_.view(), score,
                                               range.first, range.last, std::min(wanted, there),
                                               &found));
    const int64_t leaving = std::min(left, found);
    if (leaving == 0) continue;
    FreedRows freed;
    bool overflow;
    DYNEMB_RETURN_IF_ERROR(BeginLeaving(context, leaving, true, &freed));
    DYNEMB_RETURN_IF_ERROR(candidates_.Erase(context, index_.view(), rows_.view(), leaving, freed));
    DYNEMB_RETURN_IF_ERROR(EndLeaving(context, freed, &overflow));
    counters_.evicted += leaving;
    DYNEMB_RETURN_IF_ERROR(counts_.Read(context, &counts));
  }
  return {};
}

Status GpuTableOfMemory::EraseExpired(const Context& context, const GroupedBatch& grouped) {
  FreedRows freed;
  bool overflow;
  DYNEMB_RETURN_IF_ERROR(BeginLeaving(context, grouped.size, true, &freed));
  DYNEMB_RETURN_IF_ERROR(ForEach(context, grouped.size,
                                 EraseExpiredHeads{grouped, index_.view(), rows_.view(), freed}));
  return EndLeaving(context, freed, &overflow);
}

Status GpuTableOfMemory::RemoveSomeExpired(const Context& context, const Expiry& expiry,
                                           const GroupedBatch& grouped, bool inserts) {
  int64_t there = counts_.most_rows();
  int64_t rows = Evictor::RowsToLookAt(grouped.size, inserts ? grouped.size : 0);
  if (max_rows_ >= 0) {
    // So many rows as are there decide how many leave a full table, which must not depend on when
    // the host hears of them, nor on how often the batch has each key.
    RowCounts counts;
    DYNEMB_RETURN_IF_ERROR(ForEachTile<kWarp>(context, WarpsFor(context, grouped.size),
                                              CountHeads{grouped, counts_.there()}));
    DYNEMB_RETURN_IF_ERROR(counts_.Read(context, &counts));
    there = counts.rows();
    rows = Evictor::RowsToLookAt(static_cast<int64_t>(counts.heads - heads_),
                                 static_cast<int64_t>(counts.inserted - inserted_));
    heads_ = counts.heads;
    inserted_ = counts.inserted;
  }
  // An index may be far larger than the rows that are in it.
  const int64_t cells_of_rows = kMostCellsOfRow * rows + kLeastCells;
  const int64_t places = std::max(there, index_.cells() / cells_of_rows * rows);
  const HashRange range = PassOver(rows, places, &expired_hand_);
  FreedRows freed;
  bool overflow;  // those rows are left for the next time
  DYNEMB_RETURN_IF_ERROR(BeginLeaving(context, rows, false, &freed));
  const EraseIf<IsExpired> erase = {rows_.view(), {expiry}, freed};
  const bool wraps = range.last < range.first;
  DYNEMB_RETURN_IF_ERROR(ForEachInRange(context, index_.view(), range.first,
                                        wraps ? ~uint64_t{0} : range.last, erase));
  if (wraps) DYNEMB_RETURN_IF_ERROR(ForEachInRange(context, index_.view(), 0, range.last, erase));
  DYNEMB_RETURN_IF_ERROR(EndLeaving(context, freed, &overflow));
  return epoch_ > 0 ? DrainErased(context) : Status();
}

Status GpuTableOfMemory::RemoveAllExpired(const Context& context, const Expiry& expiry) {
  const IsExpired expired = {expiry};
  uint64_t first = 0;
  for (bool done = false; !done;) {
    int64_t erased;
    DYNEMB_RETURN_IF_ERROR(EraseSlice(context, expired, &first, &done, &erased));
  }
  return {};
}

Status GpuTableOfMemory::RemoveExpired(const Context& context) {
  DYNEMB_RETURN_IF_ERROR(CheckContext(context, space()));
  if (!expires()) return {};
  return InTurn(context, true, [&] { return RemoveAllExpired(context, expiry()); });
}

Status GpuTableOfMemory::EraseBelow(const Context& context, MetaField field, const RowOrder& bound,
                                    int64_t* erased) {
  DYNEMB_RETURN_IF_ERROR(CheckContext(context, space()));
  DYNEMB_RETURN_IF_ERROR(CheckMetaField(layout_, field));
  *erased = 0;
  const IsBelow below = {FieldOffset(field), bound};
  uint64_t first = 0;  // hash that has not been looked at
  for (bool done = false; !done;) {
    int64_t of_slice;
    DYNEMB_RETURN_IF_ERROR(InTurn(
        context, true, [&] { return EraseSlice(context, below, &first, &done, &of_slice); }));
    *erased += of_slice;
  }
  return {};
}

// Erases these rows, of those whose hashes are *first or somewhat larger. Waits for the stream.
template <typename Which>
Status GpuTableOfMemory::EraseSlice(const Context& context, const Which& which, uint64_t* first,
                                    bool* done, int64_t* erased) {
  *erased = 0;
  const bool keeps = Which::kByPolicy && options_.evicted != nullptr;
  const int64_t chunks = epoch_ > 0 || keeps ? kNotedChunksAtOnce : kChunksAtOnce;
  FreedRows freed;
  DYNEMB_RETURN_IF_ERROR(BeginErasing(context, 1, &freed));
  if (keeps) {
    const int64_t most = std::min(chunks * IndexChunk::kCells, rows_.capacity());
    DYNEMB_RETURN_IF_ERROR(left_.Begin(context, most, false, layout_.value_bytes, &freed.leaving));
  }
  const uint64_t last = EndOfSlice(*first, ~uint64_t{0}, SliceWidth(chunks));
  DYNEMB_RETURN_IF_ERROR(ForEachInRange(context, index_.view(), *first, last,
                                        EraseIf<Which>{rows_.view(), which, freed}));
  RowCounts counts;
  DYNEMB_RETURN_IF_ERROR(counts_.Read(context, &counts));
  *erased = counts.freed;
  DYNEMB_RETURN_IF_ERROR(counts_.EndCall(context, rows_.capacity(), 0));
  bool too_many_kept = false, too_many_noted = false;
  if (keeps) {
    DYNEMB_RETURN_IF_ERROR(
        left_.End(context, freed.leaving, options_.evicted.get(), &too_many_kept));
  }
  if (epoch_ > 0) DYNEMB_RETURN_IF_ERROR(DrainErased(context, &too_many_noted));
  if (too_many_kept || too_many_noted) return {};  // some are left: once more
  *done = last == ~uint64_t{0};
  *first = last + 1;
  return {};
}

}  // namespace dynemb

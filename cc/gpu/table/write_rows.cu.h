// Kernels that change what a table has, but for the optimizer's (apply_rows.cu).
#ifndef TF_DYNEMB_CC_GPU_TABLE_WRITE_ROWS_CU_H_
#define TF_DYNEMB_CC_GPU_TABLE_WRITE_ROWS_CU_H_

#include <cstdint>
#include <type_traits>

#include "cc/core/table/table.h"
#include "cc/gpu/table/erase_log.h"
#include "cc/gpu/table/find_rows.cu.h"
#include "cc/gpu/table/grouped_batch.cu.h"
#include "cc/gpu/table/index.cu.h"
#include "cc/gpu/table/left_rows.h"
#include "cc/gpu/table/rows.cu.h"
#include "cc/gpu/table/tile.cu.h"

namespace dynemb {

// Which rows there are: in the table's memory. Rows [0, fresh) have been used; those of them that
// are free now are in a list. What a call takes and frees counts when it ends.
struct RowCounts {
  uint32_t fresh = 0, free = 0;
  uint32_t taken = 0, freed = 0;
  uint32_t full = 0;  // whether a key found no room
  // In all; of those that were removed, how many because they had expired.
  uint64_t inserted = 0, removed = 0, expired = 0;
  uint64_t heads = 0;                  // of batches, where somebody counts them
  uint64_t written = 0, distinct = 0;  // TableCounters
  int64_t latest = INT64_MIN;          // of the times of rows that a call has put in

  DYNEMB_HOST_DEVICE int64_t rows() const { return int64_t{fresh} - free; }
};

// The end of a call, on a thread: what it took and freed.
struct CountRows {
  RowCounts* counts;
  int64_t limit;
  RowCounts* sent;  // pinned memory of the host, for which they are copied; or null

  DYNEMB_HOST_DEVICE void operator()(int64_t) const {
    const int64_t room = limit > counts->rows() ? limit - counts->rows() : 0;
    const auto taken = static_cast<uint32_t>(counts->taken < room ? counts->taken : room);
    const uint32_t again = taken < counts->free ? taken : counts->free;
    counts->free += counts->freed - again;
    counts->fresh += taken - again;
    counts->inserted += taken;
    counts->removed += counts->freed;
    counts->taken = counts->freed = 0;
    if (sent != nullptr) *sent = *counts;
  }
};

// Which of the missing keys a call inserts.
struct NoHead {};
struct AnyHead {
  DYNEMB_HOST_DEVICE bool operator()(const GroupedBatch&, int64_t) const { return true; }
};
// Accumulate inserts a key if some entry of it has not seen it.
struct UnseenHead {
  const bool* exists;
  DYNEMB_HOST_DEVICE bool operator()(const GroupedBatch& batch, int64_t head) const {
    int64_t place = head;
    do {
      if (!exists[batch.position(place)]) return true;
      ++place;
    } while (batch.IsSameGroup(head, place));
    return false;
  }
};

// Finds the rows of the heads of a batch. A head that is missing and has one: it has expired.
struct FindHeads {
  GroupedBatch batch;
  LiveRows rows;

  DYNEMB_HOST_DEVICE void operator()(int64_t place) const {
    if (!batch.IsHead(place)) return;
    const RowRef row = FindRow(rows.index, batch.key(place));
    const bool found = row != kNoRow && !rows.expiry.HasExpired(rows.rows[row]);
    batch.row[place] = row;
    batch.outcome[place] = found ? Outcome::kFound : Outcome::kMissing;
    if (batch.in_order()) batch.head[batch.GroupOf(place)] = static_cast<uint32_t>(place);
  }
};

// Gives rows to those of the missing keys that are `wanted`, as long as there are less than `limit`
// rows. What is in the rows is others' business. By warps, which take rows for all their lanes at
// once.
template <typename Wanted>
struct InsertHeads {
  GroupedBatch batch;
  Index index;
  RowCounts* counts;
  const RowRef* free_rows;
  int64_t limit;
  Wanted wanted;

  DYNEMB_HOST_DEVICE void operator()(const Tile& warp, int64_t i) const {
    const int64_t place = i * warp.width + warp.lane;
    const bool inserts = batch.IsMissing(place, wanted);
    const uint32_t taken = Take(warp, inserts);
    if (!inserts) return;
    if (counts->rows() + taken >= limit) {
      batch.outcome[place] = Outcome::kFull;
      counts->full = 1;
      return;
    }
    const RowRef row = taken < counts->free ? free_rows[counts->free - 1 - taken]
                                            : counts->fresh + (taken - counts->free);
    const Key key = batch.key(place);
    const uint64_t hash = Mix64(static_cast<uint64_t>(key));
    InsertKey(index.PartOf(hash), key, hash, row);
    batch.row[place] = row;
    batch.outcome[place] = Outcome::kInserted;
  }

  // The number of the lane's row among those that the call takes, if it takes one.
  DYNEMB_HOST_DEVICE uint32_t Take(const Tile& warp, bool takes) const {
    const unsigned all = warp.Vote(takes);
    if (all == 0) return 0;
    const unsigned before = all & ((1u << warp.lane) - 1);
    const uint32_t first = warp.lane == 0 ? AtomicAdd(&counts->taken, CountBits(all)) : 0;
    return warp.Broadcast(first, 0) + CountBits(before);
  }
};

// How many of the 32 places of a warp have missing keys that are `wanted`, by the warp's number.
template <typename Wanted>
struct CountMissing {
  GroupedBatch batch;
  Wanted wanted;
  uint32_t* counts;

  DYNEMB_HOST_DEVICE void operator()(const Tile& warp, int64_t i) const {
    const int64_t place = i * warp.width + warp.lane;
    const bool missing = batch.IsMissing(place, wanted);
    const unsigned all = warp.Vote(missing);
    if (warp.lane == 0) counts[i] = CountBits(all);
  }
};

// Those for which there is no room get an outcome: all of the warps after `first_warp`, and of that
// one those after the first `rest`.
template <typename Wanted>
struct LeaveOut {
  GroupedBatch batch;
  Wanted wanted;
  int64_t first_warp;
  uint32_t rest;
  Outcome outcome;

  DYNEMB_HOST_DEVICE void operator()(const Tile& warp, int64_t after) const {
    const int64_t i = first_warp + after;
    const int64_t place = i * warp.width + warp.lane;
    const bool missing = batch.IsMissing(place, wanted);
    const unsigned before = warp.Vote(missing) & ((1u << warp.lane) - 1);
    if (missing && (after > 0 || CountBits(before) >= rest)) batch.outcome[place] = outcome;
  }
};

// How many keys were declined.
struct CountDeclined {
  GroupedBatch batch;
  uint32_t* count;

  DYNEMB_HOST_DEVICE void operator()(const Tile& warp, int64_t i) const {
    const int64_t place = i * warp.width + warp.lane;
    const bool declined =
        place < batch.size && batch.IsHead(place) && batch.outcome[place] == Outcome::kDeclined;
    const unsigned all = warp.Vote(declined);
    if (warp.lane == 0 && all != 0) AtomicAdd(count, CountBits(all));
  }
};

// Takes out again what InsertHeads has inserted, where nothing has been written to the rows: there
// is no room for it.
struct RemoveInserted {
  GroupedBatch batch;
  Index index;

  DYNEMB_HOST_DEVICE void operator()(int64_t place) const {
    if (place >= batch.size || !batch.IsHead(place)) return;
    if (batch.outcome[place] != Outcome::kInserted) return;
    const Key key = batch.key(place);
    const uint64_t hash = Mix64(static_cast<uint64_t>(key));
    EraseKey(index.PartOf(hash), key, hash);
    batch.outcome[place] = Outcome::kFull;
  }
};

// Where the rows go that are erased, and their keys.
struct FreedRows {
  RowCounts* counts = nullptr;
  RowRef* free_rows = nullptr;
  ErasedKeys erased;
  LeavingRows leaving;  // those that leave by the policy

  DYNEMB_HOST_DEVICE void Free(RowRef row) const {
    free_rows[counts->free + AtomicAdd(&counts->freed, 1u)] = row;
  }
  DYNEMB_HOST_DEVICE void CountExpired() const { AtomicAdd(&counts->expired, uint64_t{1}); }
};

// There is room for all keys in freed.erased.
struct EraseHeads {
  GroupedBatch batch;
  Index index;
  FreedRows freed;

  DYNEMB_HOST_DEVICE void operator()(int64_t place) const {
    if (!batch.IsHead(place) || batch.outcome[place] != Outcome::kFound) return;
    const Key key = batch.key(place);
    const uint64_t hash = Mix64(static_cast<uint64_t>(key));
    freed.erased.Add(key);
    freed.Free(EraseKey(index.PartOf(hash), key, hash));
  }
};

// Counts the heads of a batch.
struct CountHeads {
  GroupedBatch batch;
  RowCounts* counts;

  DYNEMB_HOST_DEVICE void operator()(const Tile& warp, int64_t i) const {
    const int64_t place = i * warp.width + warp.lane;
    const unsigned all = warp.Vote(place < batch.size && batch.IsHead(place));
    if (warp.lane == 0 && all != 0) AtomicAdd(&counts->heads, uint64_t{CountBits(all)});
  }
};

// Erases the rows of heads that have expired. There is room for all.
struct EraseExpiredHeads {
  GroupedBatch batch;
  Index index;
  RowSlabs rows;
  FreedRows freed;

  DYNEMB_HOST_DEVICE void operator()(int64_t place) const {
    if (!batch.IsHead(place) || batch.outcome[place] != Outcome::kMissing) return;
    if (batch.row[place] == kNoRow) return;
    const Key key = batch.key(place);
    const uint64_t hash = Mix64(static_cast<uint64_t>(key));
    freed.erased.Add(key);
    freed.leaving.Add(key, rows[batch.row[place]]);
    freed.CountExpired();
    freed.Free(EraseKey(index.PartOf(hash), key, hash));
    batch.row[place] = kNoRow;
  }
};

// A new row but for its value and meta.
struct InitialSlots {
  const char* initial_slots;
  int64_t slots_offset, slots_bytes;
  DYNEMB_HOST_DEVICE void operator()(const Tile& tile, char* row) const {
    CopyByTile(tile, row + slots_offset, initial_slots, slots_bytes);
  }
};

struct UpsertHead {
  InitialSlots initial_slots;
  RowStamp stamp;
  int64_t value_bytes;
  ConstRows values;

  DYNEMB_HOST_DEVICE void operator()(const Tile& tile, const Head& head) const {
    CopyByTile(tile, head.row, values[head.position], value_bytes);
    if (head.is_new) initial_slots(tile, head.row);
    if (tile.lane == 0) stamp.Write(head.row, head.is_new, 1, head.position);
  }
};

// Table::InsertRows: before the rows are written, those that keys have had go to `displaced`, at
// all positions of the key.
struct DisplaceRows {
  GroupedBatch batch;
  RowSlabs rows;
  RowLayout layout;
  RowParts displaced;

  DYNEMB_HOST_DEVICE void operator()(const Tile& tile, int64_t place) const {
    if (!batch.IsEntry(place) || batch.kind == HeadKind::kNotFound) return;
    const int64_t head = batch.HeadOf(place);
    if (batch.outcome[head] != Outcome::kFound) return;
    const int64_t position = batch.position(place);
    CopyRowOut(tile, layout, rows[batch.row[head]], displaced, position);
    if (displaced.keys.data != nullptr && tile.lane == 0) {
      displaced.keys[position] = batch.key(place);
    }
  }
};

struct InsertRow {
  RowLayout layout;
  ConstRowParts from;
  int64_t time_at;  // in the meta, of the time of a row; -1: nobody asks for it
  EvictionPolicy policy;
  int64_t* latest;

  DYNEMB_HOST_DEVICE void operator()(const Tile& tile, const Head& head) const {
    CopyRowIn(tile, layout, from, head.position, head.row);
    if (time_at < 0) return;
    const int64_t time = ReadInt64(from.meta[head.position] + time_at);
    const bool is_time = policy.has_unit_of(time);
    tile.Sync();  // the row has been written
    if (tile.lane != 0) return;
    if (is_time) AtomicMax(latest, time);
    if (!is_time) WriteInt64(kNoTime, head.row + layout.meta_offset + time_at);
  }
};

// value += delta. Integers wrap around.
template <typename V>
DYNEMB_HOST_DEVICE V Plus(V value, V delta) {
  if constexpr (std::is_integral_v<V>) {
    return static_cast<V>(static_cast<uint64_t>(value) + static_cast<uint64_t>(delta));
  } else {
    using T = ComputeType<V>;
    return static_cast<V>(static_cast<T>(value) + static_cast<T>(delta));
  }
}

// Entries one after the other; each has an outcome of its own.
template <typename V>
struct AccumulateHeads {
  GroupedBatch batch;
  RowSlabs rows;
  RowMarks marks;
  InitialSlots initial_slots;
  RowStamp stamp;
  int64_t dim;
  ConstRows values;
  const bool* exists;

  DYNEMB_HOST_DEVICE void operator()(const Tile& tile, int64_t head) const {
    if (!batch.IsHead(head)) return;
    const Outcome outcome = batch.outcome[head];
    tile.Sync();  // all have read it before lane 0 writes
    if (!batch.IsOfKind(outcome)) return;
    if (outcome == Outcome::kDeclined) return Decline(tile, head);
    const bool has_row = outcome == Outcome::kFound || outcome == Outcome::kInserted;
    char* const row = has_row ? rows[batch.row[head]] : nullptr;
    V* const value = reinterpret_cast<V*>(row);
    for (int64_t block = tile.lane; has_row && block * kBlock < dim; block += tile.width) {
      Block<V> sum;
      if (outcome == Outcome::kFound) LoadBlock(value, block, dim, false, &sum);
      Walk(
          head, outcome,
          [&](int64_t place, bool present) {
            Block<V> numbers;
            LoadBlock(reinterpret_cast<const V*>(values[batch.position(place)]), block, dim, false,
                      &numbers);
            for (int i = 0; i < kBlock; ++i) {
              sum.number[i] = present ? Plus(sum.number[i], numbers.number[i]) : numbers.number[i];
            }
          },
          [](int64_t, Outcome) {});
      StoreBlock(sum, block, dim, false, value);
    }
    if (outcome == Outcome::kInserted) initial_slots(tile, row);
    if (tile.lane != 0) return;
    int64_t writes = 0;
    Walk(
        head, outcome, [&](int64_t, bool) { ++writes; },
        [&](int64_t place, Outcome of) { batch.outcome[place] = of; });
    if (!has_row) return;
    stamp.Write(row, outcome == Outcome::kInserted, writes, batch.position(head));
    if (writes > 0) marks.Set(batch.row[head]);
  }

  // All entries of a key are declined together.
  DYNEMB_HOST_DEVICE void Decline(const Tile& tile, int64_t head) const {
    int64_t place = head;
    do {
      if (tile.lane == 0) batch.outcome[place] = Outcome::kDeclined;
      ++place;
    } while (batch.IsSameGroup(head, place));
  }

  // Calls change(place, whether there is a row) for each entry that changes the row, and
  // report(place, its outcome) for all.
  template <typename Change, typename Report>
  DYNEMB_HOST_DEVICE void Walk(int64_t head, Outcome outcome, const Change& change,
                               const Report& report) const {
    bool present = outcome == Outcome::kFound;
    int64_t place = head;
    do {
      Outcome of = present ? Outcome::kFound : Outcome::kMissing;
      if (present == exists[batch.position(place)]) {
        if (present || outcome == Outcome::kInserted) {
          change(place, present);
          if (!present) of = Outcome::kInserted;
          present = true;
        } else {
          of = Outcome::kFull;
        }
      }
      report(place, of);
      ++place;
    } while (batch.IsSameGroup(head, place));
  }
};

// What a call reports, by place.
struct ReportEntries {
  GroupedBatch batch;
  bool each_reports;  // for itself; otherwise its head does
  Reports reports;

  DYNEMB_HOST_DEVICE void operator()(int64_t place) const {
    if (!batch.IsEntry(place)) return;
    const int64_t of = each_reports ? place : batch.HeadOf(place);
    reports.Set(batch.position(place), batch.outcome[of]);
  }
};

// Counts the entries of a batch that were written, and their keys.
struct CountWritten {
  GroupedBatch batch;
  bool each_reports;  // as ReportEntries
  RowCounts* counts;

  DYNEMB_HOST_DEVICE void operator()(const Tile& warp, int64_t i) const {
    const int64_t place = i * warp.width + warp.lane;
    const bool entry = place < batch.size && batch.IsEntry(place);
    const unsigned written = warp.Vote(entry && Has(each_reports ? place : batch.HeadOf(place)));
    const unsigned distinct = warp.Vote(entry && batch.IsHead(place) && HasSome(place));
    if (warp.lane != 0) return;
    if (written != 0) AtomicAdd(&counts->written, uint64_t{CountBits(written)});
    if (distinct != 0) AtomicAdd(&counts->distinct, uint64_t{CountBits(distinct)});
  }

  DYNEMB_HOST_DEVICE bool Has(int64_t place) const {
    return batch.outcome[place] == Outcome::kFound || batch.outcome[place] == Outcome::kInserted;
  }
  // Of a head: whether an entry of its key was written.
  DYNEMB_HOST_DEVICE bool HasSome(int64_t place) const {
    const int64_t head = place;
    do {
      if (Has(place)) return true;
      ++place;
    } while (each_reports && batch.IsSameGroup(head, place));
    return false;
  }
};

// The outcomes of a call that finds no memory to work in.
struct ReportFull {
  Entries entries;
  Reports reports;

  DYNEMB_HOST_DEVICE void operator()(int64_t entry) const {
    const int64_t position = entries.position(entry);
    if (position >= 0) reports.Set(position, Outcome::kFull);
  }
};

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_GPU_TABLE_WRITE_ROWS_CU_H_

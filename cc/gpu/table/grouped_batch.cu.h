// GroupedBatch: a batch whose equal keys have been brought together, and what is known of each key.
//
// A batch's entries are the positions that take part, in their order. All entries of one key are a
// group; one of them, its head, does the group's work. In a batch that was grouped in order the
// entries of a group follow each other, as they did in the batch; the first is the head, and groups
// are in the order of their heads. Otherwise the last entry of the group is the head, and the
// others are not looked at.
#ifndef TF_DYNEMB_CC_GPU_TABLE_GROUPED_BATCH_CU_H_
#define TF_DYNEMB_CC_GPU_TABLE_GROUPED_BATCH_CU_H_

#include <cstdint>

#include "cc/core/base/macros.h"
#include "cc/core/table/table.h"
#include "cc/gpu/table/index.cu.h"
#include "cc/gpu/table/rows.cu.h"
#include "cc/gpu/table/tile.cu.h"

namespace dynemb {

// The entries of a batch. How many there are is read on the device.
struct Entries {
  const Key* keys = nullptr;
  int64_t key_count = 0;
  const int64_t* at = nullptr;     // positions, or null: all
  const int64_t* count = nullptr;  // how many of them
  int64_t most = 0;                // how many there may be

  Entries() = default;
  explicit Entries(const Batch& batch)
      : keys(batch.keys.data),
        key_count(batch.keys.size),
        at(batch.select == nullptr ? nullptr : batch.select->at.data),
        count(batch.select == nullptr ? nullptr : batch.select->count),
        most(batch.select == nullptr ? batch.keys.size : batch.select->at.size) {}

  // The position of an entry, or -1 if there is no such entry, or no such position.
  DYNEMB_HOST_DEVICE int64_t position(int64_t entry) const {
    if (at == nullptr) return entry;
    if (entry >= *count) return -1;
    const int64_t position = at[entry];
    return position >= 0 && position < key_count ? position : -1;
  }
};

// Which heads a kernel works on: those that had rows before the call are done first where room has
// to be made for the others.
enum class HeadKind : uint8_t { kAll, kFound, kNotFound };

struct GroupedBatch {
  Entries entries;
  int64_t size = 0;  // entries.most; also the group of what is no entry
  // By place: the entry of the group that is its first, or, where they are not in order, its last;
  // plus `first_group`, by which the groups of several batches that were sorted together are apart.
  const uint32_t* group = nullptr;
  uint32_t first_group = 0;
  // By place, where they are in order; null: place and entry are one.
  const uint32_t* entry = nullptr;
  uint32_t* head = nullptr;    // by group, where they are in order: the place of its head
  RowRef* row = nullptr;       // by place, of heads
  Outcome* outcome = nullptr;  // by place, of heads; of all where `each_reports`
  HeadKind kind = HeadKind::kAll;
  bool last_counts = false;  // of the entries of a group in order, not the first
  // The places whose heads are worked on, a piece of all where there is room for so many.
  int64_t first = 0, end = 0;

  DYNEMB_HOST_DEVICE bool in_order() const { return entry != nullptr; }
  DYNEMB_HOST_DEVICE uint32_t GroupOf(int64_t place) const { return group[place] - first_group; }
  DYNEMB_HOST_DEVICE bool IsEntry(int64_t place) const { return GroupOf(place) != size; }
  DYNEMB_HOST_DEVICE bool IsHead(int64_t place) const {
    if (place < first || place >= end) return false;
    const uint32_t of = GroupOf(place);
    if (of == size) return false;
    return of == (in_order() ? entry[place] : place);
  }
  DYNEMB_HOST_DEVICE int64_t HeadOf(int64_t place) const {
    return in_order() ? head[GroupOf(place)] : GroupOf(place);
  }
  DYNEMB_HOST_DEVICE bool IsSameGroup(int64_t place, int64_t other) const {
    return other < size && group[other] == group[place];
  }
  // Whether at the place there is the head of a missing key that is `wanted`.
  template <typename Wanted>
  DYNEMB_HOST_DEVICE bool IsMissing(int64_t place, const Wanted& wanted) const {
    return place < size && IsHead(place) && outcome[place] == Outcome::kMissing &&
           wanted(*this, place);
  }
  DYNEMB_HOST_DEVICE bool IsOfKind(Outcome of_head) const {
    return kind == HeadKind::kAll || (kind == HeadKind::kFound) == (of_head == Outcome::kFound);
  }
  DYNEMB_HOST_DEVICE int64_t position(int64_t place) const {
    return entries.position(in_order() ? entry[place] : place);
  }
  // The last place of the group of a head, where they are in order.
  DYNEMB_HOST_DEVICE int64_t LastOf(int64_t head_place) const {
    int64_t last = head_place, after = size;
    while (after - last > 1) {
      const int64_t middle = last + (after - last) / 2;
      (group[middle] == group[head_place] ? last : after) = middle;
    }
    return last;
  }
  // The position of the entry whose input is the group's, where that is one entry.
  DYNEMB_HOST_DEVICE int64_t InputOf(int64_t head_place) const {
    return position(last_counts ? LastOf(head_place) : head_place);
  }
  DYNEMB_HOST_DEVICE Key key(int64_t place) const { return entries.keys[position(place)]; }
};

// A head whose row is there.
struct Head {
  char* row;
  int64_t place, position;
  bool is_new;
  bool alone;  // its group has no other entry after it
};

// Runs work(tile, head) for the heads that have rows, by warps: each lane looks up what a head is
// about, so that the warp waits once for 32 of them; then tiles of `width` lanes do the work. It
// writes the rows, which are marked.
template <typename Work>
struct WorkOnHeads {
  GroupedBatch batch;
  RowSlabs rows;
  RowMarks marks;
  int width;
  Work work;

  DYNEMB_HOST_DEVICE void operator()(const Tile& warp, int64_t i) const {
    const int64_t place = i * warp.width + warp.lane;
    Head head = {nullptr, place, 0, false, false};
    if (place < batch.size && batch.IsHead(place)) {
      const Outcome outcome = batch.outcome[place];
      if ((outcome == Outcome::kFound || outcome == Outcome::kInserted) &&
          batch.IsOfKind(outcome)) {
        head.row = rows[batch.row[place]];
        marks.Set(batch.row[place]);
        head.position = batch.InputOf(place);
        head.is_new = outcome == Outcome::kInserted;
        head.alone = !batch.IsSameGroup(place, place + 1);
      }
    }
    const int of_tile = width < warp.width ? width : warp.width;
    const Tile tile = {warp.lane & (of_tile - 1), of_tile};
    for (int lane = 0; lane < of_tile; ++lane) {
      Head next;
      next.row = tile.Broadcast(head.row, lane);
      next.place = head.place - tile.lane + lane;
      next.position = tile.Broadcast(head.position, lane);
      const int flags = tile.Broadcast(head.is_new | head.alone << 1, lane);
      next.is_new = (flags & 1) != 0;
      next.alone = (flags & 2) != 0;
      if (next.row != nullptr) work(tile, next);
    }
  }
};

template <typename Work>
Status ForEachHead(const Context& context, const GroupedBatch& batch, const RowSlabs& rows,
                   const RowMarks& marks, int width, const Work& work) {
  return ForEachTile<kWarp>(context, WarpsFor(context, batch.size),
                            WorkOnHeads<Work>{batch, rows, marks, width, work});
}

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_GPU_TABLE_GROUPED_BATCH_CU_H_

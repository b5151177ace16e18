// LockedSegment: a segment of a host table with its lock and its change log.
#ifndef TF_DYNEMB_CC_CORE_TABLE_LOCKED_SEGMENT_H_
#define TF_DYNEMB_CC_CORE_TABLE_LOCKED_SEGMENT_H_

#include <array>
#include <optional>

#include "cc/core/base/fair_shared_mutex.h"
#include "cc/core/table/batch_order.h"
#include "cc/core/table/change_log.h"
#include "cc/core/table/segment.h"

namespace dynemb {

// The mutex guards the others.
struct alignas(64) LockedSegment {
  LockedSegment(SlabArena* row_arena, SlabArena* index_arena, const RowLayout& layout, double phase)
      : segment(row_arena, index_arena, layout, phase) {}

  // Erases a row that is there.
  void EraseRow(Key key, uint64_t hash) {
    const int64_t rows = segment.size();
    const bool listed = segment.Erase(key, hash);
    if (changes.tracking() && !listed) changes.Add(key, rows);
  }

  mutable FairSharedMutex mutex;
  Segment segment;
  ChangeLog changes;
};

// Of a table, in the order of the hashes of their keys.
using LockedSegments = std::array<std::optional<LockedSegment>, BatchOrder::kSegments>;

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_CORE_TABLE_LOCKED_SEGMENT_H_

// Kernels that go through all rows of a table, or those of a range of hashes.
#ifndef TF_DYNEMB_CC_GPU_TABLE_SCAN_ROWS_CU_H_
#define TF_DYNEMB_CC_GPU_TABLE_SCAN_ROWS_CU_H_

#include <cstdint>

#include "cc/core/table/table.h"
#include "cc/gpu/table/index.cu.h"
#include "cc/gpu/table/rows.cu.h"
#include "cc/gpu/table/tile.cu.h"
#include "cc/gpu/table/write_rows.cu.h"

namespace dynemb {

// All chunks of an index, those of `next` after those of `current`. An entry counts where its key
// has not left for the other part.
DYNEMB_HOST_DEVICE inline int64_t ChunkCount(const Index& index) {
  return int64_t{index.current.count} + index.next.count;
}

// Calls visit(chunk, cell, hash) for the keys in chunk number `at`.
template <typename Visit>
DYNEMB_HOST_DEVICE void ForEachInChunk(const Index& index, int64_t at, const Visit& visit) {
  const bool in_next = at >= index.current.count;
  const IndexPart& part = in_next ? index.next : index.current;
  const auto of_part = static_cast<uint32_t>(in_next ? at - index.current.count : at);
  IndexChunk& chunk = part.chunks[of_part];
  const uint32_t used = AtomicLoad(&chunk.state) & IndexChunk::kLastWriteTime;
  for (int cell = 0; cell < IndexChunk::kCells; ++cell) {
    if ((used >> cell & 1) == 0) continue;
    const uint64_t hash = Mix64(static_cast<uint64_t>(chunk.keys[cell]));
    if (index.HasMoved(hash) == in_next) visit(part, of_part, cell, hash);
  }
}

// Calls visit(key, hash, row, part, chunk, cell) for the keys with hashes in [first, last], by the
// chunks of a part of the index that are their homes.
template <typename Visit>
struct VisitRange {
  Index index;
  bool in_next;  // which part
  uint32_t first_home;
  uint64_t first, last;
  Visit visit;

  DYNEMB_HOST_DEVICE void operator()(int64_t i) const {
    const IndexPart& part = in_next ? index.next : index.current;
    ForEachOfHome(part, first_home + static_cast<uint32_t>(i),
                  [&](Key key, uint64_t hash, RowRef row, uint32_t at, int cell) {
                    if (hash < first || hash > last || index.HasMoved(hash) != in_next) return;
                    visit(key, hash, row, part, at, cell);
                  });
  }
};

template <typename Visit>
Status ForEachInRange(const Context& context, const Index& index, uint64_t first, uint64_t last,
                      const Visit& visit) {
  for (const bool in_next : {false, true}) {
    const IndexPart& part = in_next ? index.next : index.current;
    if (part.count == 0) continue;
    const uint32_t home = part.Home(first);
    DYNEMB_RETURN_IF_ERROR(ForEach(context, int64_t{part.Home(last)} - home + 1,
                                   VisitRange<Visit>{index, in_next, home, first, last, visit}));
  }
  return {};
}

// Hashes and rows of keys in any order, as many as there is room for, and their number.
struct CollectRows {
  RowSlabs rows;
  Expiry expiry;
  int64_t room;
  uint64_t* hashes;
  RowRef* found;
  int64_t* count;

  DYNEMB_HOST_DEVICE void operator()(Key, uint64_t hash, RowRef row, const IndexPart&, uint32_t,
                                     int) const {
    if (expiry.HasExpired(rows[row])) return;
    const int64_t at = AtomicAdd(count, int64_t{1});
    if (at >= room) return;
    hashes[at] = hash;
    found[at] = row;
  }
};

// The same of the keys whose rows were written after the epoch `since`.
struct CollectChanged {
  RowMarks marks;
  int64_t since;
  int64_t room;
  Key* keys;
  int64_t* count;

  DYNEMB_HOST_DEVICE void operator()(Key key, uint64_t, RowRef row, const IndexPart&, uint32_t,
                                     int) const {
    if (*marks.At(row) <= since) return;
    const int64_t at = AtomicAdd(count, int64_t{1});
    if (at < room) keys[at] = key;
  }
};

// Whole rows to the buffers of an export.
struct ExportRows {
  const uint64_t* hashes;
  const RowRef* found;
  RowSlabs rows;
  RowLayout layout;
  RowParts out;

  DYNEMB_HOST_DEVICE void operator()(const Tile& tile, int64_t i) const {
    if (out.keys.data != nullptr && tile.lane == 0) {
      out.keys[i] = static_cast<Key>(Unmix64(hashes[i]));
    }
    CopyRowOut(tile, layout, rows[found[i]], out, i);
  }
};

// A row's order by the field of its meta at an offset.
DYNEMB_HOST_DEVICE inline RowOrder OrderOf(const char* row, int64_t offset, uint64_t hash) {
  return {ReadInt64(row + offset), hash};
}

struct CountDigits {
  Index index;
  RowSlabs rows;
  int64_t field_offset;
  RowOrder prefix;
  int prefix_bits, bits;
  int64_t* counts;

  DYNEMB_HOST_DEVICE void operator()(int64_t chunk) const {
    ForEachInChunk(index, chunk,
                   [this](const IndexPart& part, uint32_t at, int cell, uint64_t hash) {
                     const char* const row = rows[part.chunks[at].refs[cell]];
                     const int64_t digit =
                         DigitOf(OrderOf(row, field_offset, hash), prefix, prefix_bits, bits);
                     if (digit >= 0) AtomicAdd(&counts[digit], int64_t{1});
                   });
  }
};

// Which rows a scan erases: those whose order is less than `bound`; those that have expired.
struct IsBelow {
  static constexpr bool kByPolicy = false;
  int64_t field_offset;
  RowOrder bound;
  DYNEMB_HOST_DEVICE bool operator()(const char* row, uint64_t hash) const {
    return OrderOf(row, field_offset, hash) < bound;
  }
};
struct IsExpired {
  static constexpr bool kByPolicy = true;
  Expiry expiry;
  DYNEMB_HOST_DEVICE bool operator()(const char* row, uint64_t) const {
    return expiry.HasExpired(row);
  }
};

// Erases these rows, but for those that find no room in freed.erased and freed.leaving.
template <typename Which>
struct EraseIf {
  RowSlabs rows;
  Which which;
  FreedRows freed;

  DYNEMB_HOST_DEVICE void operator()(Key key, uint64_t hash, RowRef row, const IndexPart& part,
                                     uint32_t at, int cell) const {
    if (!which(rows[row], hash)) return;
    if (!freed.erased.Add(key) || !freed.leaving.Add(key, rows[row])) return;
    EraseCell(part, at, cell, hash);
    if (Which::kByPolicy) freed.CountExpired();
    freed.Free(row);
  }
};

// Rows of one layout, from number `first` on, as rows of another one. What they do not have yet
// they get as new rows have it.
struct ConvertRows {
  RowSlabs from, to;
  RowLayout old_layout, layout;
  const char* initial_slots;  // null: the rows have them already
  int64_t first;

  DYNEMB_HOST_DEVICE void operator()(const Tile& tile, int64_t i) const {
    const auto row = static_cast<RowRef>(first + i);
    const char* const source = from[row];
    char* const target = to[row];
    CopyByTile(tile, target, source, layout.value_bytes);
    CopyByTile(tile, target + layout.slots_offset,
               initial_slots != nullptr ? initial_slots : source + old_layout.slots_offset,
               layout.slots_bytes);
    for (int field = tile.lane; field < kMetaFields; field += tile.width) {
      const int64_t in_old = old_layout.meta_field[field], in_new = layout.meta_field[field];
      if (in_new < 0) continue;
      *RowStamp::Number(target + layout.meta_offset + in_new) =
          in_old < 0 ? 0 : ReadInt64(source + old_layout.meta_offset + in_old);
    }
  }
};

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_GPU_TABLE_SCAN_ROWS_CU_H_

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
  const uint32_t used = AtomicLoad(&chunk.state) & IndexChunk::kUsed;
  for (int cell = 0; cell < IndexChunk::kCells; ++cell) {
    if ((used >> cell & 1) == 0) continue;
    const uint64_t hash = Mix64(static_cast<uint64_t>(chunk.keys[cell]));
    if (index.HasMoved(hash) == in_next) visit(part, of_part, cell, hash);
  }
}

// The keys with hashes in [first, last] whose rows were written after version `since`, if it is not
// negative: to hashes and rows in any order, as many as there is room for, and their number.
struct CollectRange {
  Index index;
  bool from_next;  // which part
  uint32_t first_home;
  uint64_t first, last;
  RowSlabs rows;
  int64_t version_offset, since;
  int64_t room;
  uint64_t* hashes;
  RowRef* found;
  int64_t* count;

  DYNEMB_HOST_DEVICE void operator()(int64_t i) const {
    const IndexPart& part = from_next ? index.next : index.current;
    ForEachOfHome(part, first_home + static_cast<uint32_t>(i),
                  [this](Key, uint64_t hash, RowRef row) {
                    if (hash < first || hash > last || index.HasMoved(hash) != from_next) return;
                    if (since >= 0 && *RowStamp::Number(rows[row] + version_offset) <= since)
                      return;
                    const int64_t at = AtomicAdd(count, int64_t{1});
                    if (at >= room) return;
                    hashes[at] = hash;
                    found[at] = row;
                  });
  }
};

// Whole rows to the buffers of an export.
struct ExportRows {
  const uint64_t* hashes;
  const RowRef* found;
  RowSlabs rows;
  int64_t value_bytes, slots_offset, slots_bytes, meta_offset, meta_bytes;
  RowParts out;

  DYNEMB_HOST_DEVICE void operator()(const Tile& tile, int64_t i) const {
    const char* const row = rows[found[i]];
    if (out.keys.data != nullptr && tile.lane == 0) {
      out.keys[i] = static_cast<Key>(Unmix64(hashes[i]));
    }
    if (out.values.data != nullptr) CopyByTile(tile, out.values[i], row, value_bytes);
    if (out.slots.data != nullptr) CopyByTile(tile, out.slots[i], row + slots_offset, slots_bytes);
    if (out.meta.data != nullptr) CopyByTile(tile, out.meta[i], row + meta_offset, meta_bytes);
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

struct EraseRowsBelow {
  Index index;
  RowSlabs rows;
  int64_t field_offset;
  RowOrder bound;
  FreedRows freed;

  DYNEMB_HOST_DEVICE void operator()(int64_t chunk) const {
    ForEachInChunk(index, chunk,
                   [this](const IndexPart& part, uint32_t at, int cell, uint64_t hash) {
                     const IndexChunk& in = part.chunks[at];
                     if (!(OrderOf(rows[in.refs[cell]], field_offset, hash) < bound)) return;
                     EraseCell(part, at, cell, hash);
                     freed.Add(in.keys[cell], in.refs[cell]);
                   });
  }
};

// A row of one layout as one of another, which has more parts. New slots get their initial values,
// a new version is 0.
struct ConvertRows {
  RowSlabs from, to;
  RowLayout old_layout, layout;
  const char* initial_slots;  // null: the rows have them already

  DYNEMB_HOST_DEVICE void operator()(const Tile& tile, int64_t row) const {
    const char* const source = from[static_cast<RowRef>(row)];
    char* const target = to[static_cast<RowRef>(row)];
    CopyByTile(tile, target, source, layout.value_bytes);
    CopyByTile(tile, target + layout.slots_offset,
               initial_slots != nullptr ? initial_slots : source + old_layout.slots_offset,
               layout.slots_bytes);
    CopyByTile(tile, target + layout.meta_offset, source + old_layout.meta_offset,
               layout.meta_bytes);
    if (layout.version_offset < 0 || tile.lane != 0) return;
    *RowStamp::Number(target + layout.version_offset) =
        old_layout.version_offset < 0
            ? 0
            : *reinterpret_cast<const int64_t*>(source + old_layout.version_offset);
  }
};

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_GPU_TABLE_SCAN_ROWS_CU_H_

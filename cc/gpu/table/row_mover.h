// RowMover: moves whole rows between a table in a GPU's memory and one in the host's.
#ifndef TF_DYNEMB_CC_GPU_TABLE_ROW_MOVER_H_
#define TF_DYNEMB_CC_GPU_TABLE_ROW_MOVER_H_

#include <cstdint>
#include <vector>

#include "cc/core/base/context.h"
#include "cc/core/base/span.h"
#include "cc/core/base/status.h"
#include "cc/core/table/row_layout.h"
#include "cc/core/table/table.h"
#include "cc/gpu/table/device_memory.h"
#include "cc/gpu/table/gpu_table.h"
#include "cc/gpu/table/staging.h"

namespace dynemb {

// Rows are laid out in pinned memory, by the threads of the table below, and go between the two
// memories in one copy for some megabytes of them. Calls have finished when they return. Not
// thread-safe; on the device of the table above.
class RowMover {
 public:
  // `there`: the stream of what is done above; `here`: the threads of what is done below. The
  // tables outlive it.
  RowMover(GpuTable* above, Table* below, const RowLayout& layout, DeviceMemory* memory,
           const Context& there, const Context& here)
      : above_(above),
        below_(below),
        layout_(layout),
        there_(there),
        here_(here),
        staging_(memory, there) {}

  // Moves the rows of distinct keys (of the host's memory), of those that are in the one table, and
  // adds how many keys there were to *moved. Each row is in one of the two also after an error; in
  // both if there is no memory to put that right, and the one above is it.
  Status Up(Span<const Key> keys, int64_t* moved) { return Move(true, keys, moved); }
  Status Down(Span<const Key> keys, int64_t* moved) { return Move(false, keys, moved); }

 private:
  // Some rows in both memories.
  struct Piece {
    Staged<Key> keys;
    Staged<Outcome> outcomes;
    Staged<char> values, slots, meta;
  };

  Status Move(bool up, Span<const Key> keys, int64_t* moved);
  Status MoveSome(bool up, Span<const Key> keys, bool* of_below);
  // The keys that have a row in the table that has been read.
  static void Found(const Piece& piece, std::vector<Key>* keys);
  Status Begin(Span<const Key> keys, Piece* piece);
  void TakeRows(Piece* piece);

  Status ReadBelow(Piece* piece);
  Status InsertBelow(const Piece& piece);
  Status EraseBelow(const Piece& piece);
  Status ReadAbove(Piece* piece);
  Status InsertAbove(const Piece& piece);
  Status EraseAbove(const Piece& piece);

  Batch KeysHere(const Piece& piece) const { return {{piece.keys.host, piece.keys.size}}; }
  Batch KeysThere(const Piece& piece) const {
    return {{piece.keys.there, piece.keys.size, there_.space}};
  }
  RowParts RowsHere(const Piece& piece) const {
    return RowsOf(piece, &Staged<char>::host, MemorySpace::kHost);
  }
  RowParts RowsThere(const Piece& piece) const {
    return RowsOf(piece, &Staged<char>::there, there_.space);
  }
  RowParts RowsOf(const Piece& piece, char* Staged<char>::* memory, MemorySpace space) const;
  // Of a row.
  int64_t PartBytes() const {
    return layout_.value_bytes + layout_.slots_bytes + layout_.meta_bytes;
  }

  GpuTable* const above_;
  Table* const below_;
  const RowLayout layout_;
  const Context there_, here_;
  Staging staging_;
};

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_GPU_TABLE_ROW_MOVER_H_

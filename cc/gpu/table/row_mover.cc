#include "cc/gpu/table/row_mover.h"

#include <algorithm>
#include <vector>

#include "cc/core/base/no_memory.h"

namespace dynemb {
namespace {

constexpr int64_t kMostBytes = int64_t{16} << 20, kLeastBytes = int64_t{1} << 14;  // at once

}  // namespace

Status RowMover::Move(bool up, Span<const Key> keys, int64_t* moved) {
  int64_t bytes = kMostBytes;
  for (int64_t first = 0; first < keys.size;) {
    const int64_t most = std::max<int64_t>(1, bytes / std::max<int64_t>(1, PartBytes()));
    const int64_t n = std::min(most, keys.size - first);
    bool of_below = false;
    const Status status =
        OrNoMemory([&] { return MoveSome(up, {keys.data + first, n}, &of_below); });
    if (status.code() == Code::kResourceExhausted && !of_below && bytes > kLeastBytes) {
      bytes /= 2;  // the GPU may have memory for fewer
      continue;
    }
    DYNEMB_RETURN_IF_ERROR(status);
    first += n;
    *moved += n;
  }
  return {};
}

// *of_below: an error is of the table below.
Status RowMover::MoveSome(bool up, Span<const Key> keys, bool* of_below) {
  std::vector<Key> there;
  there.reserve(static_cast<size_t>(keys.size));  // no memory is wanted after an error
  const auto below = [&](const Status& status) {
    *of_below = !status.ok();
    return status;
  };
  Piece piece;
  DYNEMB_RETURN_IF_ERROR(Begin(keys, &piece));
  DYNEMB_RETURN_IF_ERROR(up ? below(ReadBelow(&piece)) : ReadAbove(&piece));
  Found(piece, &there);
  // Others have moved in a call that has failed.
  if (static_cast<int64_t>(there.size()) < keys.size) return MoveSome(up, there, of_below);
  const Status moved = OrNoMemory([&]() -> Status {
    DYNEMB_RETURN_IF_ERROR(up ? InsertAbove(piece) : below(InsertBelow(piece)));
    return up ? below(EraseBelow(piece)) : EraseAbove(piece);
  });
  if (moved.ok()) return moved;
  // What is still where it was has not moved.
  static_cast<void>(OrNoMemory([&]() -> Status {
    DYNEMB_RETURN_IF_ERROR(Begin(keys, &piece));
    DYNEMB_RETURN_IF_ERROR(up ? ReadBelow(&piece) : ReadAbove(&piece));
    there.clear();
    Found(piece, &there);
    DYNEMB_RETURN_IF_ERROR(Begin(there, &piece));
    if (!up) return EraseBelow(piece);
    DYNEMB_RETURN_IF_ERROR(staging_.Send());
    return EraseAbove(piece);
  }));
  return moved;
}

void RowMover::Found(const Piece& piece, std::vector<Key>* keys) {
  for (int64_t i = 0; i < piece.keys.size; ++i) {
    if (piece.outcomes.host[i] == Outcome::kFound) keys->push_back(piece.keys.host[i]);
  }
}

// Room for the rows of so many keys, which are laid out.
Status RowMover::Begin(Span<const Key> keys, Piece* piece) {
  constexpr int kPieces = 5;
  const int64_t bytes = static_cast<int64_t>(sizeof(Key) + sizeof(Outcome)) + PartBytes();
  DYNEMB_RETURN_IF_ERROR(staging_.Begin(keys.size * bytes, kPieces));
  piece->keys = staging_.Take<Key>(keys.size);
  std::copy_n(keys.data, keys.size, piece->keys.host);
  return {};
}

void RowMover::TakeRows(Piece* piece) {
  const int64_t n = piece->keys.size;
  piece->outcomes = staging_.Take<Outcome>(n);
  std::fill_n(piece->outcomes.host, n, Outcome::kMissing);
  piece->values = staging_.Take<char>(n * layout_.value_bytes);
  piece->slots = staging_.Take<char>(n * layout_.slots_bytes);
  piece->meta = staging_.Take<char>(n * layout_.meta_bytes);
}

Status RowMover::ReadBelow(Piece* piece) {
  TakeRows(piece);
  const Report report = {{piece->outcomes.host, piece->outcomes.size}, nullptr};
  return below_->ReadRows(here_, KeysHere(*piece), RowsHere(*piece), report);
}

Status RowMover::InsertBelow(const Piece& piece) {
  const RowParts rows = RowsHere(piece);
  return below_->InsertRows(here_, KeysHere(piece), {{}, rows.values, rows.slots, rows.meta},
                            RowParts(), Report());
}

Status RowMover::EraseBelow(const Piece& piece) {
  return below_->Erase(here_, KeysHere(piece), Report());
}

Status RowMover::ReadAbove(Piece* piece) {
  DYNEMB_RETURN_IF_ERROR(staging_.Send());  // keys
  TakeRows(piece);
  const Report report = {{piece->outcomes.there, piece->outcomes.size, there_.space}, nullptr};
  DYNEMB_RETURN_IF_ERROR(above_->ReadRows(there_, KeysThere(*piece), RowsThere(*piece), report));
  return staging_.Fetch(piece->outcomes, piece->values, piece->slots, piece->meta);
}

Status RowMover::InsertAbove(const Piece& piece) {
  DYNEMB_RETURN_IF_ERROR(staging_.Send());  // rows, too
  const RowParts rows = RowsThere(piece);
  DYNEMB_RETURN_IF_ERROR(above_->InsertRows(
      there_, KeysThere(piece), {{}, rows.values, rows.slots, rows.meta}, RowParts(), Report()));
  return Wait(there_);
}

Status RowMover::EraseAbove(const Piece& piece) {
  DYNEMB_RETURN_IF_ERROR(above_->Erase(there_, KeysThere(piece), Report()));
  return Wait(there_);
}

RowParts RowMover::RowsOf(const Piece& piece, char* Staged<char>::* memory,
                          MemorySpace space) const {
  const auto part = [&](const Staged<char>& staged, int64_t bytes) -> Rows {
    if (bytes == 0) return {};
    return {staged.*memory, piece.keys.size, bytes, space};
  };
  return {{},
          part(piece.values, layout_.value_bytes),
          part(piece.slots, layout_.slots_bytes),
          part(piece.meta, layout_.meta_bytes)};
}

}  // namespace dynemb

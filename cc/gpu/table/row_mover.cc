#include "cc/gpu/table/row_mover.h"

#include <algorithm>
#include <vector>

#include "cc/core/base/no_memory.h"

namespace dynemb {
namespace {

constexpr int64_t kMostBytes = int64_t{16} << 20, kLeastBytes = int64_t{1} << 14;  // at once

}  // namespace

Status RowMover::Move(bool up, Span<const Key> keys, int64_t* moved) {
  // Fewer at once where there is no memory for as many.
  int64_t bytes = kMostBytes;
  for (int64_t first = 0; first < keys.size;) {
    const int64_t most = std::max<int64_t>(1, bytes / std::max<int64_t>(1, PartBytes()));
    const int64_t n = std::min(most, keys.size - first);
    const Status status = OrNoMemory([&] { return MoveSome(up, {keys.data + first, n}); });
    if (status.code() == Code::kResourceExhausted && bytes > kLeastBytes) {
      bytes /= 2;
      continue;
    }
    DYNEMB_RETURN_IF_ERROR(status);
    first += n;
    *moved += n;
  }
  return {};
}

Status RowMover::MoveSome(bool up, Span<const Key> keys) {
  std::vector<Key> twice;
  twice.reserve(static_cast<size_t>(keys.size));  // no memory is wanted after an error
  Piece piece;
  DYNEMB_RETURN_IF_ERROR(Begin(keys, &piece));
  DYNEMB_RETURN_IF_ERROR(up ? ReadBelow(&piece) : ReadAbove(&piece));
  Status moved = OrNoMemory([&] { return up ? InsertAbove(piece) : InsertBelow(piece); });
  const bool is_inserted = moved.ok();
  if (is_inserted) {
    std::fill_n(piece.outcomes.host, keys.size, Outcome::kFull);
    moved = OrNoMemory([&] { return up ? EraseBelow(piece) : EraseAbove(piece); });
    if (moved.ok()) return {};
  }
  // What has been inserted, or has not been erased, is where it was.
  for (int64_t i = 0; i < keys.size; ++i) {
    if ((piece.outcomes.host[i] == Outcome::kFull) == is_inserted) twice.push_back(keys[i]);
  }
  static_cast<void>(OrNoMemory([&]() -> Status {
    DYNEMB_RETURN_IF_ERROR(Begin(twice, &piece));
    return up ? EraseAbove(piece) : EraseBelow(piece);
  }));
  return moved;
}

// Room for the rows of so many keys, which are laid out.
Status RowMover::Begin(Span<const Key> keys, Piece* piece) {
  constexpr int kPieces = 5;
  const int64_t bytes = static_cast<int64_t>(sizeof(Key) + sizeof(Outcome)) + PartBytes();
  DYNEMB_RETURN_IF_ERROR(staging_.Begin(keys.size * bytes, kPieces));
  piece->keys = staging_.Take<Key>(keys.size);
  std::copy_n(keys.data, keys.size, piece->keys.host);
  piece->outcomes = staging_.Take<Outcome>(keys.size);
  std::fill_n(piece->outcomes.host, keys.size, Outcome::kFull);
  return {};
}

void RowMover::TakeRows(Piece* piece) {
  const int64_t n = piece->keys.size;
  piece->values = staging_.Take<char>(n * layout_.value_bytes);
  piece->slots = staging_.Take<char>(n * layout_.slots_bytes);
  piece->meta = staging_.Take<char>(n * layout_.meta_bytes);
}

Status RowMover::ReadBelow(Piece* piece) {
  TakeRows(piece);
  return below_->ReadRows(here_, KeysHere(*piece), RowsHere(*piece), Report());
}

Status RowMover::InsertBelow(const Piece& piece) {
  const RowParts rows = RowsHere(piece);
  return below_->InsertRows(here_, KeysHere(piece), {{}, rows.values, rows.slots, rows.meta},
                            RowParts(), ReportHere(piece));
}

Status RowMover::EraseBelow(const Piece& piece) {
  return below_->Erase(here_, KeysHere(piece), ReportHere(piece));
}

Status RowMover::ReadAbove(Piece* piece) {
  DYNEMB_RETURN_IF_ERROR(staging_.Send());  // keys
  TakeRows(piece);
  DYNEMB_RETURN_IF_ERROR(above_->ReadRows(there_, KeysThere(*piece), RowsThere(*piece), Report()));
  return staging_.Fetch(piece->values, piece->slots, piece->meta);
}

Status RowMover::InsertAbove(const Piece& piece) {
  DYNEMB_RETURN_IF_ERROR(staging_.Send());  // rows, too
  const RowParts rows = RowsThere(piece);
  return Outcomes(
      piece, above_->InsertRows(there_, KeysThere(piece), {{}, rows.values, rows.slots, rows.meta},
                                RowParts(), ReportThere(piece)));
}

Status RowMover::EraseAbove(const Piece& piece) {
  DYNEMB_RETURN_IF_ERROR(CopyAny(there_, piece.keys.there, piece.keys.host,
                                 piece.keys.size * static_cast<int64_t>(sizeof(Key))));
  DYNEMB_RETURN_IF_ERROR(CopyAny(there_, piece.outcomes.there, piece.outcomes.host,
                                 piece.outcomes.size * static_cast<int64_t>(sizeof(Outcome))));
  return Outcomes(piece, above_->Erase(there_, KeysThere(piece), ReportThere(piece)));
}

// Those of a call above, if it has any.
Status RowMover::Outcomes(const Piece& piece, const Status& called) {
  if (!called.ok() && called.code() != Code::kResourceExhausted) return called;
  const Status fetched = staging_.Fetch(piece.outcomes);
  return called.ok() ? fetched : called;
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

#include "cc/core/table/key_index.h"

namespace dynemb {

bool KeyIndex::Allocate(SlabArena* arena, double chunks) {
  if (chunks > 4e9) return false;
  const uint32_t count = static_cast<uint32_t>(chunks);
  chunks_ = static_cast<Chunk*>(arena->Allocate(int64_t{count} * sizeof(Chunk)));
  if (chunks_ == nullptr) return false;
  chunk_count_ = count;
  return true;
}

void KeyIndex::Free(SlabArena* arena) {
  if (!empty()) arena->Free(chunks_, int64_t{chunk_count_} * sizeof(Chunk));
  *this = KeyIndex();
}

KeyIndex::Ref KeyIndex::FindBeyond(int64_t key, uint64_t hash, bool* marked) const {
  *marked = false;
  uint32_t at = Home(hash);
  for (uint32_t probes = 1; probes < chunk_count_; ++probes) {
    at = Next(at);
    if (const uint32_t mask = Match(chunks_[at], key)) {
      *marked = AreMarked(chunks_[at], mask);
      return chunks_[at].refs[__builtin_ctz(mask)];
    }
    if (!overflows(at)) break;
  }
  return kNone;
}

bool KeyIndex::Insert(int64_t key, uint64_t hash, Ref ref, bool marked, uint32_t end) {
  constexpr uint32_t kFull = (1u << kCells) - 1;
  const uint32_t home = Home(hash);
  uint32_t at = home;
  while (chunks_[at].used == kFull) {
    if (at + 1 == end) return false;
    at = Next(at);
  }
  for (uint32_t passed = home; passed != at; passed = Next(passed)) {
    if (chunks_[passed].overflow != 255) ++chunks_[passed].overflow;
  }
  Chunk& chunk = chunks_[at];
  const int cell = __builtin_ctz(~uint32_t{chunk.used});
  chunk.keys[cell] = key;
  chunk.refs[cell] = ref;
  chunk.used |= static_cast<uint8_t>(1u << cell);
  if (marked) MarkCells(&chunk, 1u << cell);
  return true;
}

KeyIndex::Ref KeyIndex::Erase(int64_t key, uint64_t hash, bool* marked) {
  const uint32_t home = Home(hash);
  uint32_t at = home;
  uint32_t cell;
  while ((cell = Match(chunks_[at], key)) == 0) at = Next(at);
  Chunk& chunk = chunks_[at];
  const Ref ref = chunk.refs[__builtin_ctz(cell)];
  *marked = AreMarked(chunk, cell);
  chunk.used &= static_cast<uint8_t>(~cell);
  chunk.marks &= static_cast<uint16_t>(~cell);
  for (uint32_t passed = home; passed != at; passed = Next(passed)) {
    if (chunks_[passed].overflow != 255) --chunks_[passed].overflow;
  }
  FillCell(at, __builtin_ctz(cell));
  return ref;
}

void KeyIndex::FillCell(uint32_t at, int cell) {
  while (overflows(at)) {
    Chunk& to = chunks_[at];
    const uint32_t next = Next(at);
    Chunk& from = chunks_[next];
    uint32_t others = from.used;  // of which the lowest, if any, is not in the chunk it wants
    while (others != 0 &&
           Home(Mix64(static_cast<uint64_t>(from.keys[__builtin_ctz(others)]))) == next) {
      others &= others - 1;
    }
    if (others == 0) return;
    const int moved = __builtin_ctz(others);
    const uint32_t bit = 1u << moved;
    to.keys[cell] = from.keys[moved];
    to.refs[cell] = from.refs[moved];
    to.used |= static_cast<uint8_t>(1u << cell);
    if (AreMarked(from, bit)) MarkCells(&to, 1u << cell);
    if (to.overflow != 255) --to.overflow;
    from.used &= static_cast<uint8_t>(~bit);
    from.marks &= static_cast<uint16_t>(~bit);
    at = next;
    cell = moved;
  }
}

void KeyIndex::ClearMarks() {
  marks_since_ = static_cast<uint16_t>(marks_since_ + (1u << kCells));
  if (marks_since_ != 0) return;
  // The number has wrapped around, as every 2,048th time: marks of the last 0 would count again.
  for (uint32_t at = 0; at < chunk_count_; ++at) chunks_[at].marks = 0;
}

}  // namespace dynemb

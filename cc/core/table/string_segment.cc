#include "cc/core/table/string_segment.h"

#include <algorithm>

namespace dynemb {

StringSegment::~StringSegment() {
  Unstage();
  for (const Slab& slab : slabs_) slab_arena_->Free(slab.data, slab.bytes);
  FreeLines(lines_, line_count_);
}

void StringSegment::Swap(StringSegment* other) {
  std::swap(lines_, other->lines_);
  std::swap(line_count_, other->line_count_);
  std::swap(size_, other->size_);
  slabs_.swap(other->slabs_);
  std::swap(tail_, other->tail_);
  std::swap(slab_bytes_, other->slab_bytes_);
  std::swap(staged_, other->staged_);
}

bool StringSegment::Stage(Key key, uint64_t hash, std::string_view string, uint32_t stamp,
                          int64_t coming_bytes) {
  Staged& staged = staged_;
  if (staged.entries.empty()) {
    staged.tail = tail_;
    staged.slab_bytes = slab_bytes_;
  }
  char length[10];
  int64_t length_bytes = 0;
  for (uint64_t left = string.size();; left >>= 7) {
    length[length_bytes++] = static_cast<char>(left > 127 ? (left & 127) | 128 : left);
    if (left <= 127) break;
  }
  const int64_t size = static_cast<int64_t>(string.size());
  const int64_t bytes = (length_bytes + size + kUnit - 1) / kUnit * kUnit;
  staged.entries.push_back({key, hash, 0, stamp});
  Tail own;
  Tail* tail = &staged.tail;
  if (tail->bytes - tail->used < bytes) {
    // A long string gets a slab of its own, not to leave the rest of the last one unused.
    const int64_t most = std::max({kMinSlab, staged.slab_bytes / 8, coming_bytes});
    const int64_t usual = std::min(kMaxSlab, (most + kUnit - 1) / kUnit * kUnit);
    const bool is_long = bytes > usual / 4;
    if (is_long) tail = &own;
    if (staged.slabs.empty()) staged.slabs = slabs_;
    if (static_cast<int64_t>(staged.slabs.size()) == kMaxSlabs) return false;
    staged.slabs.reserve(staged.slabs.size() + 1);
    *tail = {static_cast<uint32_t>(staged.slabs.size() + 1), 0, is_long ? bytes : usual};
    void* const data = slab_arena_->Allocate(tail->bytes);
    if (data == nullptr) return false;
    staged.slabs.push_back({static_cast<char*>(data), tail->bytes});
    staged.slab_bytes += tail->bytes;
  }
  const std::vector<Slab>& slabs = staged.slabs.empty() ? slabs_ : staged.slabs;
  char* const to = slabs[tail->slab - 1].data + tail->used;
  std::memcpy(to, length, static_cast<size_t>(length_bytes));
  if (size > 0) std::memcpy(to + length_bytes, string.data(), string.size());
  staged.entries.back().ref = tail->slab << kOffsetBits | static_cast<uint32_t>(tail->used / kUnit);
  tail->used += bytes;
  return true;
}

bool StringSegment::StageIndex() {
  const int64_t size = size_ + static_cast<int64_t>(staged_.entries.size());
  // At most three of the four cells of a line are full on average.
  if (size <= int64_t{line_count_} * (kCells - 1)) return true;
  const int64_t room = size / (kCells - 1) * (128 + number_) / 128 + 8 + number_ / 16;
  const int64_t lines = std::max(room, int64_t{line_count_} + line_count_ / 2);
  if (lines > int64_t{UINT32_MAX}) return false;
  void* const block = index_arena_->Allocate(lines * static_cast<int64_t>(sizeof(Line)));
  if (block == nullptr) return false;
  staged_.lines = static_cast<Line*>(block);
  staged_.line_count = static_cast<uint32_t>(lines);
  return true;
}

void StringSegment::Commit() {
  if (staged_.lines != nullptr) {
    ForEachCell([&](const Cell* cell) {
      const uint64_t hash = Mix64(static_cast<uint64_t>(cell->key));
      const uint32_t stamp = cell->stamp.load(std::memory_order_relaxed);
      Put(staged_.lines, staged_.line_count, {cell->key, hash, cell->ref, stamp});
    });
    std::swap(staged_.lines, lines_);
    std::swap(staged_.line_count, line_count_);
  }
  // Unstage frees the slabs that staged_ has more than slabs_: now none.
  if (!staged_.slabs.empty()) slabs_.swap(staged_.slabs);
  for (const Entry& entry : staged_.entries) Put(lines_, line_count_, entry);
  if (staged_.entries.empty()) return;
  size_ += static_cast<int64_t>(staged_.entries.size());
  tail_ = staged_.tail;
  slab_bytes_ = staged_.slab_bytes;
}

void StringSegment::Unstage() {
  for (size_t i = slabs_.size(); i < staged_.slabs.size(); ++i) {
    slab_arena_->Free(staged_.slabs[i].data, staged_.slabs[i].bytes);
  }
  FreeLines(staged_.lines, staged_.line_count);
  staged_ = Staged();
}

void StringSegment::Put(Line* lines, uint32_t line_count, const Entry& entry) {
  for (uint32_t at = Home(entry.hash, line_count);; at = Next(at, line_count)) {
    for (Cell& cell : lines[at].cells) {
      if (cell.ref != 0) continue;
      cell.key = entry.key;
      cell.ref = entry.ref;
      cell.stamp.store(entry.stamp, std::memory_order_relaxed);
      return;
    }
  }
}

void StringSegment::FreeLines(Line* lines, uint32_t count) {
  if (lines != nullptr) index_arena_->Free(lines, int64_t{count} * int64_t{sizeof(Line)});
}

}  // namespace dynemb

// StringSegment: one part of KeyStrings, an index over strings in slabs. Not thread-safe;
// KeyStrings holds a lock for it.
//
// The index is an array of 64-byte lines of 4 cells, with open addressing:
//
//   byte  0     8           12      16
//        | key | reference | stamp | ...
//
// A key goes into the first empty cell from the beginning of the line that its hash names. Keys are
// never erased one by one, so that a search ends at the first empty cell; a sweep builds the
// segment again from what is left. Lines are in the order of hashes, so that the index grows by
// reading and writing memory from front to back.
//
// A string lies in a slab as `length | bytes`, the length in base 128 (7 bits per byte, the lowest
// first, the top bit says that another follows). Its reference is (slab, offset in the slab) and
// never 0. Strings never move, and slabs are only appended to.
//
// Strings are added in two steps: they are staged, for which readers need not wait and which may
// run out of memory, and committed, which needs no memory and is what readers wait for.
//
// Costs: a find touches 1 line of index, rarely 2, and the string; memory per key is 21 to 32 bytes
// of index, 1 byte and more for the length and 1.5 on average to align it, and up to 1/8 of the
// strings ahead of need.
#ifndef TF_DYNEMB_CC_CORE_TABLE_STRING_SEGMENT_H_
#define TF_DYNEMB_CC_CORE_TABLE_STRING_SEGMENT_H_

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <utility>
#include <vector>

#include "cc/core/base/hash.h"
#include "cc/core/table/slab_arena.h"
#include "cc/core/table/table.h"

namespace dynemb {

// Bit positions of Mix64(key): the segment is in bits 58-63 (BatchOrder), the line comes from bits
// 26-57.
class StringSegment {
 public:
  struct Cell {
    Key key;
    uint32_t ref;                 // 0: the cell is empty
    std::atomic<uint32_t> stamp;  // the caller's
  };

  // `number` below 64 shifts the sizes at which the index grows, so that the segments of one table
  // do not all grow in the same batch. The arenas must outlive the segment.
  StringSegment(SlabArena* slab_arena, SlabArena* index_arena, int number)
      : slab_arena_(slab_arena), index_arena_(index_arena), number_(number) {}
  ~StringSegment();
  StringSegment(const StringSegment&) = delete;
  StringSegment& operator=(const StringSegment&) = delete;
  void Swap(StringSegment* other);

  int64_t size() const { return size_; }

  // The cell of a key, or nullptr. The stamp may be changed.
  Cell* Find(Key key, uint64_t hash) const {
    if (line_count_ == 0) return nullptr;
    for (uint32_t at = Home(hash, line_count_);; at = Next(at, line_count_)) {
      for (Cell& cell : lines_[at].cells) {
        if (cell.ref == 0) return nullptr;
        if (cell.key == key) return &cell;
      }
    }
  }
  std::string_view string(const Cell& cell) const {
    const auto* at = reinterpret_cast<const unsigned char*>(Address(cell.ref));
    uint64_t length = *at & 127;
    for (int shift = 7; *at++ > 127; shift += 7) length |= uint64_t{*at & 127u} << shift;
    return {reinterpret_cast<const char*>(at), length};
  }

  void PrefetchLine(uint64_t hash) const {
    if (line_count_ != 0) __builtin_prefetch(&lines_[Home(hash, line_count_)]);
  }
  void PrefetchString(const Cell& cell) const {
    const char* const string = Address(cell.ref);
    __builtin_prefetch(string);
    __builtin_prefetch(string + 24);  // most are this short
  }
  template <typename Visit>
  void ForEachCell(const Visit& visit) const {
    for (uint32_t at = 0; at < line_count_; ++at) {
      for (Cell& cell : lines_[at].cells) {
        if (cell.ref != 0) visit(&cell);
      }
    }
  }

  // Stages a string for a key that is neither there nor staged. `coming_bytes`: how many bytes of
  // strings are staged from here on, this one included, as far as that is known. Nothing that
  // readers use is written. False or std::bad_alloc: no memory.
  bool Stage(Key key, uint64_t hash, std::string_view string, uint32_t stamp, int64_t coming_bytes);
  // Takes memory for an index with room for what is staged. False: there is none.
  bool StageIndex();
  // Adds what is staged, after StageIndex. Nobody may read meanwhile.
  void Commit();
  // Forgets what is staged and was not committed, and gives memory back that is not used any more.
  void Unstage();

 private:
  static constexpr int kCells = 4;
  static constexpr int kOffsetBits = 21;  // in units of kUnit: slabs of up to 8 MiB, 2047 of them
  static constexpr int64_t kUnit = 4;
  static constexpr int64_t kMinSlab = 512, kMaxSlab = kUnit << kOffsetBits;
  static constexpr int64_t kMaxSlabs = (int64_t{1} << (32 - kOffsetBits)) - 1;

  struct alignas(64) Line {
    Cell cells[kCells];
  };
  static_assert(sizeof(Line) == 64, "a line of the cache");
  struct Slab {
    char* data;
    int64_t bytes;
  };
  struct Entry {
    Key key;
    uint64_t hash;
    uint32_t ref, stamp;
  };
  // Where the next string goes, if it fits.
  struct Tail {
    uint32_t slab;  // its number, from 1 on
    int64_t used, bytes;
  };

  static uint32_t Home(uint64_t hash, uint32_t lines) {
    return ReduceRange(static_cast<uint32_t>(hash >> 26), lines);
  }
  static uint32_t Next(uint32_t line, uint32_t lines) { return line + 1 == lines ? 0 : line + 1; }
  const char* Address(uint32_t ref) const {
    const Slab& slab = slabs_[(ref >> kOffsetBits) - 1];
    return slab.data + (ref & ((1u << kOffsetBits) - 1)) * kUnit;
  }
  static void Put(Line* lines, uint32_t line_count, const Entry& entry);
  void FreeLines(Line* lines, uint32_t count);

  SlabArena* const slab_arena_;
  SlabArena* const index_arena_;
  const int number_;
  Line* lines_ = nullptr;
  uint32_t line_count_ = 0;
  int64_t size_ = 0;
  std::vector<Slab> slabs_;  // slab 1 is the first
  Tail tail_ = {};
  int64_t slab_bytes_ = 0;

  // What is staged. `slabs` has the slabs that are there and those for the staged strings, or is
  // empty if no more are needed; `lines` is a larger index, still empty, or nullptr.
  struct Staged {
    std::vector<Entry> entries;
    std::vector<Slab> slabs;
    Tail tail = {};
    int64_t slab_bytes = 0;
    Line* lines = nullptr;
    uint32_t line_count = 0;
  };
  Staged staged_;
};

// Calls visit(i, segment, cell or nullptr) for the keys key(i), i in [begin, end), in order, each
// in segment_of(hash). What they need is fetched ahead for a group of keys: the lines two groups
// ahead, and with_string says whether the strings one group ahead, too. prefetch(i) and then
// prefetch_more(i) are called at these times.
template <bool with_string, typename KeyAt, typename SegmentOf, typename Prefetch, typename More,
          typename Visit>
void ForEachString(int64_t begin, int64_t end, const KeyAt& key, const SegmentOf& segment_of,
                   const Prefetch& prefetch, const More& prefetch_more, const Visit& visit) {
  constexpr int64_t kGroup = 8;  // of three groups the lines and strings stay in the first cache
  struct Located {
    uint64_t hash;
    StringSegment::Cell* cell;
  };
  Located ahead[3][kGroup];  // the keys of three groups, one in each stage
  const auto in_group = [&](int64_t group) { return std::clamp<int64_t>(end - group, 0, kGroup); };
  const auto fetch = [&](int64_t group, Located* to) {
    for (int64_t i = 0; i < in_group(group); ++i) {
      to[i].hash = Mix64(static_cast<uint64_t>(key(group + i)));
      segment_of(to[i].hash).PrefetchLine(to[i].hash);
      prefetch(group + i);
    }
  };
  const auto find = [&](int64_t group, Located* of) {
    for (int64_t i = 0; i < in_group(group); ++i) {
      const StringSegment& segment = segment_of(of[i].hash);
      of[i].cell = segment.Find(key(group + i), of[i].hash);
      if (with_string && of[i].cell != nullptr) segment.PrefetchString(*of[i].cell);
      prefetch_more(group + i);
    }
  };
  Located *now = ahead[0], *next = ahead[1], *after = ahead[2];
  fetch(begin, now);
  fetch(begin + kGroup, next);
  find(begin, now);
  for (int64_t group = begin; group < end; group += kGroup) {
    fetch(group + 2 * kGroup, after);
    find(group + kGroup, next);
    for (int64_t i = 0; i < in_group(group); ++i) {
      visit(group + i, segment_of(now[i].hash), now[i].cell);
    }
    Located* const done = now;
    now = next, next = after, after = done;
  }
}

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_CORE_TABLE_STRING_SEGMENT_H_

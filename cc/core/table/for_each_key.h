// ForEachKey: a loop over keys of segments that waits for memory once per group of keys, not twice
// per key.
#ifndef TF_DYNEMB_CC_CORE_TABLE_FOR_EACH_KEY_H_
#define TF_DYNEMB_CC_CORE_TABLE_FOR_EACH_KEY_H_

#include <algorithm>
#include <cstdint>

#include "cc/core/base/hash.h"
#include "cc/core/base/macros.h"
#include "cc/core/table/segment.h"
#include "cc/core/table/table.h"

namespace dynemb {

// How many keys ForEachKey takes at a time.
inline constexpr int64_t kKeysPerGroup = 32;
static_assert(kKeysPerGroup <= 32, "a bit for each");

// Fetches the first `bytes` of a row ahead.
DYNEMB_ALWAYS_INLINE void PrefetchRow(const char* row, int64_t bytes) {
  constexpr int64_t kMost = 512;  // the hardware follows a longer row by itself
  for (int64_t at = 0; at < std::min(bytes, kMost); at += 64) __builtin_prefetch(row + at);
}

// A key and its row.
struct LocatedKey {
  Key key;
  uint64_t hash;
  Segment::Ref ref;  // kNone: it has no row
  char* row;         // or nullptr
  bool marked;       // Segment::Mark
};

// Calls visit(i, located) for i in [begin, end), in order, with the chunk and then the row of each
// key(i) in segment_of(hash), and what fetch(i, hash) asks for, fetched ahead for a group of keys;
// and end_group() after each group. While a group is visited the rows of the next one and the
// chunks of the one after that are on their way. If keys are distinct `visit` may change the row of
// its key, insert and erase it.
template <typename KeyAt, typename SegmentOf, typename Fetch, typename Visit, typename EndGroup>
void ForEachKey(int64_t begin, int64_t end, int64_t row_bytes, const KeyAt& key,
                const SegmentOf& segment_of, const Fetch& fetch, const Visit& visit,
                const EndGroup& end_group) {
  constexpr int64_t kGroup = kKeysPerGroup;
  LocatedKey ahead[3][kGroup];  // the keys of three groups, one in each stage
  const auto in_group = [&](int64_t group) { return std::clamp<int64_t>(end - group, 0, kGroup); };
  const auto fetch_chunks = [&](int64_t group, LocatedKey* to) {
    const int64_t n = in_group(group);
    for (int64_t i = 0; i < n; ++i) {
      to[i].key = key(group + i);
      to[i].hash = Mix64(static_cast<uint64_t>(to[i].key));
      segment_of(to[i].hash).PrefetchChunk(to[i].hash);
    }
  };
  const auto found = [&](const Segment& segment, LocatedKey* one) {
    one->row = one->ref == Segment::kNone ? nullptr : segment.row(one->ref);
    if (one->row != nullptr) PrefetchRow(one->row, row_bytes);
  };
  const auto find = [&](int64_t group, LocatedKey* of) {
    const int64_t n = in_group(group);
    uint32_t later = 0;  // bit i: key i may be beyond its chunk, in one that is on its way too
    for (int64_t i = 0; i < n; ++i) {
      bool beyond;
      const Segment& segment = segment_of(of[i].hash);
      of[i].ref = segment.FindAtHome(of[i].key, of[i].hash, &beyond, &of[i].marked);
      later |= static_cast<uint32_t>(beyond) << i;
      found(segment, &of[i]);
      fetch(group + i, of[i].hash);
    }
    for (; later != 0; later &= later - 1) {
      LocatedKey& one = of[__builtin_ctz(later)];
      const Segment& segment = segment_of(one.hash);
      one.ref = segment.FindBeyond(one.key, one.hash, &one.marked);
      found(segment, &one);
    }
  };
  fetch_chunks(begin, ahead[0]);
  fetch_chunks(begin + kGroup, ahead[1]);
  find(begin, ahead[0]);
  LocatedKey *now = ahead[0], *next = ahead[1], *after = ahead[2];
  for (int64_t group = begin; group < end; group += kGroup) {
    fetch_chunks(group + 2 * kGroup, after);
    find(group + kGroup, next);
    const int64_t n = in_group(group);
    for (int64_t i = 0; i < n; ++i) visit(group + i, now[i]);
    end_group();
    LocatedKey* const done = now;
    now = next, next = after, after = done;
  }
}

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_CORE_TABLE_FOR_EACH_KEY_H_

// ForEachKey: a loop over keys of segments that waits for memory once per group of keys, not twice
// per key.
#ifndef TF_DYNEMB_CC_CORE_TABLE_FOR_EACH_KEY_H_
#define TF_DYNEMB_CC_CORE_TABLE_FOR_EACH_KEY_H_

#include <algorithm>
#include <cstdint>

#include "cc/core/base/hash.h"
#include "cc/core/table/segment.h"
#include "cc/core/table/table.h"

namespace dynemb {

// Fetches the first `bytes` of a row ahead.
inline void PrefetchRow(const char* row, int64_t bytes) {
  constexpr int64_t kMost = 512;  // the hardware follows a longer row by itself
  for (int64_t at = 0; at < std::min(bytes, kMost); at += 64) __builtin_prefetch(row + at);
}

// Calls visit(i, key, hash, row or nullptr) for i in [begin, end), in order, with the chunk and
// then the row of each key(i) in segment_of(hash), and what fetch(i) asks for, fetched ahead for a
// group of keys; and end_group() after each group. `visit` may change the row of its key, insert
// and erase it.
template <typename KeyAt, typename SegmentOf, typename Fetch, typename Visit, typename EndGroup>
void ForEachKey(int64_t begin, int64_t end, int64_t row_bytes, const KeyAt& key,
                const SegmentOf& segment_of, const Fetch& fetch, const Visit& visit,
                const EndGroup& end_group) {
  constexpr int64_t kGroup = 16;
  struct Ahead {
    Key key;
    uint64_t hash;
    char* row;
  } ahead[2][kGroup];
  const auto prefetch_chunks = [&](int64_t group, Ahead* to) {
    for (int64_t i = group; i < std::min(end, group + kGroup); ++i, ++to) {
      to->key = key(i);
      to->hash = Mix64(static_cast<uint64_t>(to->key));
      segment_of(to->hash).PrefetchChunk(to->hash);
    }
  };
  prefetch_chunks(begin, ahead[0]);
  for (int64_t group = begin, turn = 0; group < end; group += kGroup, turn ^= 1) {
    const int64_t count = std::min(kGroup, end - group);
    Ahead* const now = ahead[turn];
    for (int64_t i = 0; i < count; ++i) {
      now[i].row = segment_of(now[i].hash).Find(now[i].key, now[i].hash);
      if (now[i].row != nullptr) PrefetchRow(now[i].row, row_bytes);
      fetch(group + i);
    }
    prefetch_chunks(group + count, ahead[turn ^ 1]);
    for (int64_t i = 0; i < count; ++i) visit(group + i, now[i].key, now[i].hash, now[i].row);
    end_group();
  }
}

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_CORE_TABLE_FOR_EACH_KEY_H_

// ReadLocks: the segments that some keys are in, held for reading.
#ifndef TF_DYNEMB_CC_CORE_TABLE_READ_LOCKS_H_
#define TF_DYNEMB_CC_CORE_TABLE_READ_LOCKS_H_

#include <cstdint>
#include <shared_mutex>

#include "cc/core/base/fair_shared_mutex.h"

namespace dynemb {

// Of the segments segment(i) for i in [begin, end), or of all where keys are many, it holds
// *mutex(segment), in ascending order, as long as it lives.
template <int kSegments>
class ReadLocks {
 public:
  template <typename SegmentAt, typename MutexOf>
  ReadLocks(int64_t begin, int64_t end, const SegmentAt& segment, const MutexOf& mutex) {
    uint64_t wanted = ~uint64_t{0};
    if (end - begin < 4 * kSegments) {
      wanted = 0;
      for (int64_t i = begin; i < end; ++i) wanted |= uint64_t{1} << segment(i);
    }
    for (int s = 0; s < kSegments; ++s) {
      if (wanted >> s & 1) held_[count_++] = std::shared_lock<FairSharedMutex>(*mutex(s));
    }
  }
  ReadLocks(const ReadLocks&) = delete;
  ReadLocks& operator=(const ReadLocks&) = delete;

 private:
  static_assert(kSegments <= 64, "a bit for each segment");
  std::shared_lock<FairSharedMutex> held_[kSegments];
  int count_ = 0;
};

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_CORE_TABLE_READ_LOCKS_H_

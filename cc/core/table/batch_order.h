// BatchOrder: the keys of a batch sorted by segment, stably, and in each segment's share the equal
// ones together, so that each share can be worked off at once and each key in it once.
#ifndef TF_DYNEMB_CC_CORE_TABLE_BATCH_ORDER_H_
#define TF_DYNEMB_CC_CORE_TABLE_BATCH_ORDER_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "cc/core/base/context.h"
#include "cc/core/base/hash.h"
#include "cc/core/table/key_numbers.h"
#include "cc/core/table/table.h"

namespace dynemb {

class BatchOrder {
 public:
  static constexpr int kSegmentBits = 6;
  static constexpr int kSegments = 1 << kSegmentBits;
  static int SegmentOf(uint64_t hash) { return static_cast<int>(hash >> (64 - kSegmentBits)); }

  // Memory that Group works in: of several calls in turn, not of two at once.
  struct Scratch {
    KeyNumbers<int64_t> numbers;
    std::vector<int64_t> number, positions;
  };

  // Sorts by segment: a counting sort on all threads. Keys and positions are copied. Throws
  // std::bad_alloc.
  BatchOrder(const Context& context, const Batch& batch);

  // Brings the equal keys of a segment's share together, unless that has been done, and returns how
  // many distinct ones there are: key(segment, 0), ... in the order of their first appearance.
  // Different segments at the same time.
  int64_t Group(int64_t segment, Scratch* scratch);

  int64_t size() const { return size_; }
  // Distinct keys of the shares that have been grouped.
  int64_t distinct() const {
    int64_t distinct = 0;
    for (const int64_t of_segment : distinct_) distinct += of_segment < 0 ? 0 : of_segment;
    return distinct;
  }
  // Number of entries of a segment's share.
  int64_t size(int64_t segment) const { return begin_[segment + 1] - begin_[segment]; }
  // Where all of these stand in the batch.
  Span<const int64_t> positions(int64_t segment) const {
    return {positions_.get() + begin_[segment], size(segment)};
  }
  // Before Group: the key of entry i. After Group: a distinct key and where it stands in the batch,
  // in the order of the batch.
  Key key(int64_t segment, int64_t i) const { return keys_[begin_[segment] + i]; }
  Span<const int64_t> positions(int64_t segment, int64_t i) const {
    const int64_t at = begin_[segment] + i;
    const int64_t begin = i == 0 ? begin_[segment] : ends_[at - 1];
    return {&positions_[begin], ends_[at] - begin};
  }

 private:
  const int64_t size_;
  std::unique_ptr<Key[]> keys_;
  std::unique_ptr<int64_t[]> positions_;
  std::unique_ptr<int64_t[]> ends_;  // of the positions of the distinct key with this number
  int64_t begin_[kSegments + 1];
  int64_t distinct_[kSegments];  // keys of a segment's share; -1: it is not grouped yet
};

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_CORE_TABLE_BATCH_ORDER_H_

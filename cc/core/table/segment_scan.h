// ScanSegment: a walk through the rows of a segment in the order of stripes.h, which can be broken
// off and go on later, whatever has changed in the meantime.
#ifndef TF_DYNEMB_CC_CORE_TABLE_SEGMENT_SCAN_H_
#define TF_DYNEMB_CC_CORE_TABLE_SEGMENT_SCAN_H_

#include <algorithm>
#include <cstdint>
#include <vector>

#include "cc/core/table/for_each_key.h"
#include "cc/core/table/segment.h"
#include "cc/core/table/stripes.h"

namespace dynemb {

// Where a walk is: the hash from which to go on, and the number of bits of the stripes plus 1,
// which is 0 where the segment begins.
struct ScanPlace {
  explicit ScanPlace(int segment) : hash(uint64_t(segment) << (64 - BatchOrder::kSegmentBits)) {}
  ScanPlace(uint64_t hash, uint64_t bits) : hash(hash), bits(bits) {}
  uint64_t hash;
  uint64_t bits = 0;
};

// Calls visit(entry) for the rows from `place` on, with `bytes` bytes at `offset` of each row
// fetched ahead, until there are no more, and returns true; or until `visit` returns false: then
// `place` is that of the row that it did not want. `visit` may erase its row. May throw
// std::bad_alloc, before it has called `visit`.
template <typename Visit>
bool ScanSegment(const Segment& segment, int64_t offset, int64_t bytes, ScanPlace* place,
                 const Visit& visit) {
  constexpr int64_t kGroup = 4;  // stripes whose rows are fetched together
  if (place->bits == 0) place->bits = 1 + static_cast<uint64_t>(segment.StripeBits());
  const Stripes stripes(BatchOrder::SegmentOf(place->hash), static_cast<int>(place->bits) - 1);
  std::vector<Segment::Entry> entries;
  const int64_t from = stripes.NumberOf(place->hash);
  for (int64_t t = from; t < stripes.count(); t += kGroup) {
    entries.clear();
    for (int64_t i = t; i < std::min(t + kGroup, stripes.count()); ++i) {
      HashRange stripe = stripes[i];
      if (i == from) stripe.first = place->hash;
      const size_t begin = entries.size();
      segment.AppendRange(stripe, &entries);
      for (size_t e = begin; bytes > 0 && e < entries.size(); ++e) {
        PrefetchRow(segment.row(entries[e].ref) + offset, bytes);
      }
      if (i + 2 * kGroup < stripes.count()) segment.PrefetchRange(stripes[i + 2 * kGroup]);
    }
    for (const Segment::Entry& entry : entries) {
      if (visit(entry)) continue;
      place->hash = entry.hash;
      return false;
    }
  }
  return true;
}

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_CORE_TABLE_SEGMENT_SCAN_H_

// Stripes: the order in which an export goes through a segment.
//
// Every key has its place in it for ever, by its hash, wherever its row lies: one that is erased
// and comes again while an export goes on is not met twice. The hashes of the segment are divided
// into 2^bits equal stripes, ascending in each, and the stripes are taken in the order 0, 1/2, 1/4,
// 3/4, 1/8 and so on (their numbers' bits reversed). All ascending would do as well, but not for a
// table into which the export is put in the order that it came: it would fill its index from one
// end, while that grows, and each key would have to go past all that came before it.
#ifndef TF_DYNEMB_CC_CORE_TABLE_STRIPES_H_
#define TF_DYNEMB_CC_CORE_TABLE_STRIPES_H_

#include <cstdint>

#include "cc/core/table/batch_order.h"

namespace dynemb {

struct HashRange {
  uint64_t first, last;
};

class Stripes {
 public:
  static constexpr int kMaxBits = 26;  // going through so many takes no second

  Stripes(int segment, int bits) : segment_(static_cast<uint64_t>(segment)), bits_(bits) {}

  int64_t count() const { return int64_t{1} << bits_; }
  // Number t of the order.
  HashRange operator[](int64_t t) const {
    const uint64_t stripe = Reverse(static_cast<uint64_t>(t));
    const uint64_t first = segment_ << kHashBits | stripe << (kHashBits - bits_);
    return {first, first + (uint64_t{1} << (kHashBits - bits_)) - 1};
  }
  // The number of the stripe that a hash of this segment is in.
  int64_t NumberOf(uint64_t hash) const {
    return static_cast<int64_t>(Reverse(hash >> (kHashBits - bits_)));
  }

 private:
  static constexpr int kHashBits = 64 - BatchOrder::kSegmentBits;

  // The last `bits_` bits, the other way round.
  uint64_t Reverse(uint64_t number) const {
    uint64_t reversed = 0;
    for (int b = 0; b < bits_; ++b) reversed = reversed << 1 | (number >> b & 1);
    return reversed;
  }

  const uint64_t segment_;
  const int bits_;
};

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_CORE_TABLE_STRIPES_H_

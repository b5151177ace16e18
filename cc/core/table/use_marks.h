// UseMarks: which rows of a cache have been used lately: the reference bits of the CLOCK algorithm
// (second chance). The hand, which clears them, is the evicting cache's.
#ifndef TF_DYNEMB_CC_CORE_TABLE_USE_MARKS_H_
#define TF_DYNEMB_CC_CORE_TABLE_USE_MARKS_H_

#include <atomic>
#include <cstdint>
#include <memory>

#include "cc/core/base/macros.h"

namespace dynemb {

// A byte for each row that there may be, by the low bits of Mix64 of its key: rows that share one
// use it up together: one that was used may leave in place of another one. The order in which the
// hand comes by is that of the upper bits: it would meet rows that share one by these side by side,
// and 53 % of the ids of Zipf(1.05) were not found in a cache of 10 % of the rows where 50.6 % are
// now. Use from any number of threads; Spare alone.
class UseMarks {
 public:
  // How many times Spare spares a row that has been used. With one lap of the hand, all rows would
  // be alike at its end, and those that were brought up last could leave first.
  static constexpr uint8_t kSparedLaps = 2;

  explicit UseMarks(int64_t rows) {
    constexpr int kLeastBits = 10, kMostBits = 30;
    int bits = kLeastBits;
    while (bits < kMostBits && int64_t{1} << bits < rows) ++bits;
    mask_ = (uint64_t{1} << bits) - 1;
    laps_.reset(new std::atomic<uint8_t>[mask_ + 1]());
  }

  // Always inline, as KeyIndex::Prefetch.
  DYNEMB_ALWAYS_INLINE void Prefetch(uint64_t hash) const {
    __builtin_prefetch(&laps_[hash & mask_]);
  }
  // What is written by several threads at once is all the same.
  void Use(uint64_t hash) {
    std::atomic<uint8_t>& laps = laps_[hash & mask_];
    if (laps.load(std::memory_order_relaxed) != kSparedLaps) {
      laps.store(kSparedLaps, std::memory_order_relaxed);
    }
  }
  // The hand comes by a row. False: it has not been used lately.
  bool Spare(uint64_t hash) {
    std::atomic<uint8_t>& laps = laps_[hash & mask_];
    const uint8_t left = laps.load(std::memory_order_relaxed);
    if (left == 0) return false;
    laps.store(static_cast<uint8_t>(left - 1), std::memory_order_relaxed);
    return true;
  }

  int64_t memory_bytes() const { return static_cast<int64_t>(mask_ + 1); }

 private:
  std::unique_ptr<std::atomic<uint8_t>[]> laps_;
  uint64_t mask_;
};

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_CORE_TABLE_USE_MARKS_H_

// EvictionPolicy: which rows leave a table that is full, and when a row expires.
//
// Every policy is an order of the rows by one number, the score: the rows with the lowest scores
// leave first, and of equal ones which is decided by the hash of the key. All scores but the norm
// lie in the row's meta and are written by the pass that writes the row.
#ifndef TF_DYNEMB_CC_CORE_POLICY_EVICTION_H_
#define TF_DYNEMB_CC_CORE_POLICY_EVICTION_H_

#include <cfloat>
#include <cstdint>
#include <cstring>
#include <string_view>

#include "cc/core/base/macros.h"
#include "cc/core/base/status.h"
#include "cc/core/policy/meta_field.h"

namespace dynemb {

struct EvictionPolicy {
  enum class Order : uint8_t {
    kNone,           // no row leaves
    kLastWriteTime,  // least recently written first (LRU)
    kCount,          // least often written first (LFU)
    kDecayedCount,   // the same, where a write counts half after each half-life
    kEpochCount,     // last written in an earlier epoch first, and of one epoch least often
    kCountThenTime,  // least often written first, and of those least recently
    kNorm,           // smallest L2 norm of the value first, see NormScore
    kGiven,          // lowest score first, of those that callers give (Stamp::scores)
    kGivenSum,       // lowest sum first of the scores that callers give, see AddDecayedWrite
  };

  Order order = Order::kNone;
  int64_t half_life = 0;  // of kDecayedCount, in units of `now`; 1 or more
  int64_t epoch = 0;      // of kEpochCount, how long one is; 1 or more
  // A row that was not written for longer than this, in units of `now`, counts as missing. 0: rows
  // do not expire.
  int64_t ttl = 0;
  // What `now` counts. Times in another unit are none: they are of rows from a table with another
  // policy.
  enum class Unit : uint8_t { kAny, kSteps, kMicroseconds } unit = Unit::kAny;
  // The first time that is one of the clock, in microseconds since 1970: no table has been trained
  // for so many steps.
  static constexpr int64_t kFirstMicrosecond = 100'000'000'000'000;
  DYNEMB_HOST_DEVICE bool has_unit_of(int64_t time) const {
    return unit == Unit::kAny || (unit == Unit::kMicroseconds) == (time >= kFirstMicrosecond);
  }

  bool evicts() const { return order != Order::kNone; }
  bool expires() const { return ttl > 0; }
  // Whether it depends on `now`, which must then never fall.
  bool uses_time() const { return expires() || order == Order::kLastWriteTime || adds_writes(); }
  // Whether a score is made of all writes of a row, each of which adds WriteAt to it by AddWrite.
  bool adds_writes() const {
    return order == Order::kDecayedCount || order == Order::kEpochCount ||
           order == Order::kCountThenTime;
  }
  // Whether calls give scores; and whether these add up, by AddDecayedWrite.
  bool takes_scores() const { return order == Order::kGiven || adds_scores(); }
  bool adds_scores() const { return order == Order::kGivenSum; }
  // The score of a row that nobody has written.
  int64_t first_score() const;
  int64_t WriteAt(int64_t now) const;
  // The meta fields that the rows must have; and the one with the score, unless that is the norm.
  MetaFields meta() const;
  MetaField score_field() const;

  // The text form: "", "lru", "lfu", "lfu half_life 1000", "lfu epoch 1000", "lfu lru", "norm",
  // "score" or "score sum"; after it may come " ttl 500", and last " steps" or " microseconds".
  static Status Parse(std::string_view text, EvictionPolicy* policy);
};

inline constexpr int64_t kNeverWritten = INT64_MIN;
inline int64_t EvictionPolicy::first_score() const {
  return adds_writes() || adds_scores() ? kNeverWritten : 0;
}

// The score of kEpochCount: the number of the epoch of the last write, and below it, in 32 bits
// that do not overflow, how many writes there were in all; as HierarchicalKV's kEpochLfu.
int64_t EpochWrite(int64_t now, int64_t epoch);
DYNEMB_HOST_DEVICE inline int64_t AddEpochWrite(int64_t score, int64_t write) {
  constexpr int64_t kMost = 0xffffffff;
  const int64_t count = score & kMost;  // kNeverWritten has none
  return write | (count < kMost ? count + 1 : kMost);
}

// The score of kCountThenTime: how many writes there were, in 23 bits that do not overflow, and
// below it the time of the last in 40, in steps or in 2^14 microseconds.
int64_t CountedWrite(int64_t now);
DYNEMB_HOST_DEVICE inline int64_t AddCountedWrite(int64_t score, int64_t write) {
  constexpr int kTimeBits = 40;
  constexpr int64_t kMost = (int64_t{1} << 23) - 1;
  const int64_t count = score < 0 ? 0 : score >> kTimeBits;  // kNeverWritten has none
  return (count < kMost ? count + 1 : kMost) << kTimeBits | write;
}

// The score of kNorm, of the square of a row's norm. A row of which a number is not finite leaves
// before all others: it is of no more use.
DYNEMB_HOST_DEVICE inline int64_t NormScore(double square) {
  if (!(square <= DBL_MAX)) return -1;
  int64_t bits;  // in the order of the numbers, which are not negative
  std::memcpy(&bits, &square, sizeof(bits));
  return bits;
}

// What a write `now` adds to the score of kDecayedCount, in the form that AddDecayedWrite takes.
int64_t DecayedWrite(int64_t now, int64_t half_life);
// The score of a row that has this score, or kNeverWritten, after such a write. It is
//
//   2^24 log2(sum over the writes, at times t, of 2^(t / half_life)),
//
// which orders rows as their decayed counts do at any later moment, without changing while time
// passes (forward decay: Cormode, Shkapenyuk, Srivastava, Xu, "Forward Decay: A Practical Time
// Decay Model for Streaming Systems", 2009). The same to the bit on every machine. Of kGivenSum
// callers give the writes: a write of 2^24 log2(w) adds w, and kNeverWritten adds nothing.
int64_t AddDecayedWrite(int64_t score, int64_t write);

// log2(1 + 2^-x) in fixed point, between places that are computed once: it is above the function,
// by less than 2e-5 of its value. Also in a GPU's memory.
struct DecayLogs {
  static constexpr int64_t kOne = 1 << 24;  // log2 of 2, in fixed point
  static constexpr int64_t kRange = 25;     // beyond it is less than 1 in fixed point
  static constexpr int64_t kPlaces = 64;    // from one whole number to the next
  double at[kRange * kPlaces + 1];

  DecayLogs();
  DYNEMB_HOST_DEVICE int64_t At(int64_t x) const {
    constexpr int64_t kStep = kOne / kPlaces;
    const int64_t i = x / kStep;
    const double part = static_cast<double>(x % kStep) / kStep;
    return static_cast<int64_t>(at[i] + part * (at[i + 1] - at[i]));
  }
  // AddDecayedWrite.
  DYNEMB_HOST_DEVICE int64_t Add(int64_t score, int64_t write) const {
    if (score == kNeverWritten) return write;
    const int64_t high = score > write ? score : write, low = score > write ? write : score;
    // The scores of a file may be anything.
    const uint64_t apart = static_cast<uint64_t>(high) - static_cast<uint64_t>(low);
    if (apart >= static_cast<uint64_t>(kRange * kOne) || high > INT64_MAX - kOne) return high;
    return high + At(static_cast<int64_t>(apart));
  }
};

// The score after a write, of a policy that adds them.
inline int64_t AddWrite(const EvictionPolicy& policy, int64_t score, int64_t write) {
  if (policy.order == EvictionPolicy::Order::kCountThenTime) return AddCountedWrite(score, write);
  return policy.epoch > 0 ? AddEpochWrite(score, write) : AddDecayedWrite(score, write);
}

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_CORE_POLICY_EVICTION_H_

// RowScores: what an eviction policy says of a row: its score, and whether it has expired; and the
// clock that it goes by. A row that was last written at kNoTime, as one that comes from a table or
// file without times, does not expire before it is written.
#ifndef TF_DYNEMB_CC_CORE_TABLE_ROW_SCORES_H_
#define TF_DYNEMB_CC_CORE_TABLE_ROW_SCORES_H_

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>

#include "cc/core/policy/eviction.h"
#include "cc/core/table/row_layout.h"
#include "cc/core/table/value_functions.h"

namespace dynemb {

// The latest `now` of a write or of an inserted row, which never falls. Thread-safe.
class PolicyClock {
 public:
  int64_t now() const { return now_.load(std::memory_order_relaxed); }
  // Sets it, if it has not come so far, and returns it.
  int64_t Advance(int64_t to);
  // The same as the time of a write `now`, which is never kNoTime.
  int64_t Stamp(int64_t now) { return std::max<int64_t>(Advance(now), 1); }

 private:
  std::atomic<int64_t> now_{INT64_MIN};
};

class RowScores {
 public:
  static constexpr int64_t kNoTime = 0;
  // The numbers of a row that the policy reads, for who keeps them apart from it.
  static constexpr int kMostNumbers = 2;
  static int NumbersOf(const EvictionPolicy& policy) {
    const bool time_is_score = policy.order == EvictionPolicy::Order::kLastWriteTime;
    return policy.evicts() + (policy.expires() && !time_is_score);
  }

  RowScores(const EvictionPolicy& policy, const RowLayout& layout, DType value_dtype,
            std::shared_ptr<PolicyClock> clock);

  const EvictionPolicy& policy() const { return policy_; }
  PolicyClock* clock() const { return clock_.get(); }

  // The score of a row with this value and meta: the lowest leave first. That of an expired row is
  // INT64_MIN.
  int64_t Score(const char* value, const char* meta) const {
    return HasExpired(meta) ? INT64_MIN : Order(value, meta);
  }
  bool HasExpired(const char* meta) const { return policy_.expires() && IsOver(LastWrite(meta)); }

  // When the row was last written, of a policy by which rows expire; and the last moment at which a
  // row written at that time is there.
  int64_t LastWrite(const char* meta) const { return TimeOf(ReadInt64(meta + last_write_)); }
  int64_t LastMoment(int64_t written) const {
    return written == kNoTime || written > INT64_MAX - policy_.ttl ? INT64_MAX
                                                                   : written + policy_.ttl;
  }

  // The same of what Numbers has written.
  void Numbers(const char* value, const char* meta, int64_t* numbers) const;
  int64_t Score(const int64_t* numbers) const { return HasExpired(numbers) ? INT64_MIN : *numbers; }
  bool HasExpired(const int64_t* numbers) const {
    return policy_.expires() && IsOver(numbers[count_ - 1]);
  }

  // Of a row, where the bytes begin that its order is made of, how many they are, and where its
  // time is, of a policy by which rows expire.
  int64_t first_byte() const { return first_byte_; }
  int64_t bytes() const { return bytes_; }
  int64_t time_byte() const { return time_byte_; }
  // Whether it reads values.
  bool reads_values() const { return policy_.order == EvictionPolicy::Order::kNorm; }

 private:
  bool IsOver(int64_t written) const {
    // A time that a file says may be anything.
    const int64_t now = clock_->now();
    return written != kNoTime &&
           written<now&& static_cast<uint64_t>(now) -
                   static_cast<uint64_t>(written)> static_cast<uint64_t>(policy_.ttl);
  }
  // A time of a row, or none.
  int64_t TimeOf(int64_t time) const { return policy_.has_unit_of(time) ? time : kNoTime; }
  int64_t Order(const char* value, const char* meta) const;

  EvictionPolicy policy_;
  int64_t dim_;
  NormFunction squared_norm_;
  int64_t last_write_, score_;  // offsets in the meta of a row, of fields that the policy reads
  int64_t first_byte_, bytes_, time_byte_;
  int count_;
  std::shared_ptr<PolicyClock> clock_;
};

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_CORE_TABLE_ROW_SCORES_H_

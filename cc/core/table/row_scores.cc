#include "cc/core/table/row_scores.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace dynemb {

int64_t PolicyClock::Advance(int64_t to) {
  int64_t now = now_.load(std::memory_order_relaxed);
  while (now < to && !now_.compare_exchange_weak(now, to, std::memory_order_relaxed)) {
  }
  return std::max(now, to);
}

RowScores::RowScores(const EvictionPolicy& policy, const RowLayout& layout, DType value_dtype,
                     std::shared_ptr<PolicyClock> clock)
    : policy_(policy),
      dim_(layout.dim),
      squared_norm_(NormFor(value_dtype)),
      count_(NumbersOf(policy)),
      clock_(std::move(clock)) {
  const auto offset = [&](MetaField field) { return layout.meta_field[static_cast<int>(field)]; };
  last_write_ = offset(MetaField::kLastWriteTime);
  score_ = offset(policy.score_field());
  first_byte_ = reads_values() ? 0 : layout.meta_offset + score_;
  time_byte_ = layout.meta_offset + last_write_;
  bytes_ = reads_values() ? layout.value_bytes : static_cast<int64_t>(sizeof(int64_t));
}

int64_t RowScores::Order(const char* value, const char* meta) const {
  // Of a row that has not expired, whatever a caller has given.
  constexpr int64_t kLowest = INT64_MIN + 1;
  if (!reads_values()) {
    const int64_t score = ReadInt64(meta + score_);
    const bool is_time = policy_.order == EvictionPolicy::Order::kLastWriteTime;
    return std::max(is_time ? TimeOf(score) : score, kLowest);
  }
  return NormScore(squared_norm_(dim_, value));
}

void RowScores::Numbers(const char* value, const char* meta, int64_t* numbers) const {
  if (policy_.evicts()) *numbers++ = Order(value, meta);
  if (policy_.expires()) {
    const bool time_is_score = policy_.order == EvictionPolicy::Order::kLastWriteTime;
    *(time_is_score ? numbers - 1 : numbers) = TimeOf(ReadInt64(meta + last_write_));
  }
}

}  // namespace dynemb

// What the tasks of one call to a table in host memory report, put together.
#ifndef TF_DYNEMB_CC_CORE_TABLE_CALL_REPORT_H_
#define TF_DYNEMB_CC_CORE_TABLE_CALL_REPORT_H_

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <vector>

#include "cc/core/table/table.h"

namespace dynemb {

// Outcomes of one task. It counts those without a row, of which there are few: the others are the
// rest.
class TaskReport {
 public:
  explicit TaskReport(const Report& report)
      : outcomes_(report.outcomes.data_or_null()), wants_misses_(report.misses != nullptr) {}

  // Makes room for the misses among so many positions, so that Set needs no memory.
  void Reserve(int64_t positions) {
    if (wants_misses_) misses_.reserve(static_cast<size_t>(positions));
  }

  void Set(int64_t position, Outcome outcome) {
    if (outcomes_ != nullptr) outcomes_[position] = outcome;
    if (!HasRow(outcome)) LeftOut({&position, 1}, outcome);
  }
  // All positions of a key. Without a loop where nobody asks.
  void SetAll(Span<const int64_t> positions, Outcome outcome) {
    if (outcomes_ != nullptr) {
      for (const int64_t position : positions) outcomes_[position] = outcome;
    }
    if (HasRow(outcome)) return;
    LeftOut(positions, outcome);
    ++keys_left_out_;
  }
  // A key without a row at any of its positions, which Set has been told of.
  void AddKeyLeftOut() { ++keys_left_out_; }

  static bool HasRow(Outcome outcome) {
    return outcome == Outcome::kFound || outcome == Outcome::kInserted;
  }
  bool full() const { return full_; }
  // How many positions have no row, and in calls that write how many keys.
  int64_t left_out() const { return left_out_; }
  int64_t keys_left_out() const { return keys_left_out_; }
  const std::vector<int64_t>& misses() const { return misses_; }

 private:
  void LeftOut(Span<const int64_t> positions, Outcome outcome) {
    left_out_ += positions.size;
    full_ |= outcome == Outcome::kFull;
    if (wants_misses_) misses_.insert(misses_.end(), positions.begin(), positions.end());
  }

  Outcome* const outcomes_;
  const bool wants_misses_;
  std::vector<int64_t> misses_;
  int64_t left_out_ = 0, keys_left_out_ = 0;
  bool full_ = false;
};

// The whole call's: its end completes the report.
class CallReport {
 public:
  explicit CallReport(const Report& report) : report_(report) {}
  ~CallReport() {
    if (report_.misses != nullptr) *report_.misses->count = misses_;
  }
  CallReport(const CallReport&) = delete;
  CallReport& operator=(const CallReport&) = delete;

  // From any thread.
  void Add(const TaskReport& task) {
    if (task.full()) full_ = true;
    if (task.misses().empty()) return;
    const int64_t n = static_cast<int64_t>(task.misses().size());
    std::copy(task.misses().begin(), task.misses().end(),
              report_.misses->at.data + misses_.fetch_add(n));
  }

  // Positions whose keys have not been done, for want of memory. Takes none.
  void AddFull(Span<const int64_t> positions) {
    full_ = true;
    if (!report_.outcomes.empty()) {
      for (const int64_t position : positions) report_.outcomes[position] = Outcome::kFull;
    }
    if (report_.misses == nullptr) return;
    std::copy(positions.begin(), positions.end(),
              report_.misses->at.data + misses_.fetch_add(positions.size));
  }

  bool full() const { return full_; }

  // Rows that a task has inserted.
  void AddInserted(int64_t rows) { inserted_ += rows; }
  int64_t inserted() const { return inserted_; }

 private:
  const Report& report_;
  std::atomic<int64_t> inserted_{0};
  std::atomic<int64_t> misses_{0};
  std::atomic<bool> full_{false};
};

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_CORE_TABLE_CALL_REPORT_H_

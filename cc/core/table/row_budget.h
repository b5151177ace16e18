// RowBudget: how many rows one or several tables may have together, at every moment.
//
// A row may be inserted only by somebody who has taken it from the budget before. A call that does
// not know how many of its keys are missing takes as many as it has keys, and gives back what it
// did not need when it ends: TakeForCall. Meanwhile others could believe that the tables are full,
// which they are not. So a call that does not get enough asks again in Settle, which waits for
// the calls under way, and so decides by what the tables really have.
#ifndef TF_DYNEMB_CC_CORE_TABLE_ROW_BUDGET_H_
#define TF_DYNEMB_CC_CORE_TABLE_ROW_BUDGET_H_

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <shared_mutex>

#include "cc/core/base/fair_shared_mutex.h"
#include "cc/core/base/status.h"

namespace dynemb {

// Thread-safe. Its calls may wait for other calls of the table, so a task of an executor, which a
// call waits for, must not call it.
class RowBudget {
 public:
  explicit RowBudget(int64_t max_rows) : max_rows_(max_rows) {}

  int64_t max_rows() const { return max_rows_; }
  int64_t room() const { return max_rows_ - taken_.load(std::memory_order_relaxed); }

  // Rows that a call has taken, and gives back when it ends, but for those that it has inserted.
  class Taken {
   public:
    explicit Taken(RowBudget* budget) : budget_(budget) {}
    ~Taken() {
      if (budget_ != nullptr) budget_->Give(rows_);
    }
    Taken(const Taken&) = delete;
    Taken& operator=(const Taken&) = delete;

    // For a call of so many keys, whatever they are. False: there may be no room for all of them.
    bool TakeForCall(int64_t keys) {
      if (budget_ == nullptr) return true;
      call_ = std::shared_lock<FairSharedMutex>(budget_->calls_);
      if (budget_->TakeUpTo(keys, keys) == keys) {
        rows_ = keys;
        return true;
      }
      call_.unlock();
      return false;
    }
    // Takes what there is of as many rows as count(&rows) says, and at least `least`, or nothing.
    // It is asked when no other call has taken more than it needs. Errors: those of `count`.
    template <typename Count>
    Status Settle(int64_t least, const Count& count) {
      const std::unique_lock<FairSharedMutex> alone(budget_->calls_);
      int64_t rows;
      DYNEMB_RETURN_IF_ERROR(count(&rows));
      rows_ += budget_->TakeUpTo(rows, std::min(least, rows));
      return Status();
    }

    int64_t rows() const { return rows_; }
    // So many rows have left the tables for this call to insert others.
    void Add(int64_t rows) { rows_ += rows; }
    // So many of them are in the tables now; negative: so many have left the tables.
    void Inserted(int64_t rows) { rows_ -= rows; }

   private:
    RowBudget* const budget_;  // null: any number of rows
    int64_t rows_ = 0;
    std::shared_lock<FairSharedMutex> call_;
  };

  // So many rows are in a table that had no budget.
  void Take(int64_t rows) { taken_.fetch_add(rows, std::memory_order_relaxed); }
  void Give(int64_t rows) { taken_.fetch_sub(rows, std::memory_order_relaxed); }

 private:
  // As many as there are of `rows`, or none if these are fewer than `least`.
  int64_t TakeUpTo(int64_t rows, int64_t least) {
    int64_t taken = taken_.load(std::memory_order_relaxed);
    for (;;) {
      const int64_t some = std::min(rows, max_rows_ - taken);
      if (some < least || some <= 0) return 0;
      if (taken_.compare_exchange_weak(taken, taken + some, std::memory_order_relaxed)) return some;
    }
  }

  const int64_t max_rows_;
  std::atomic<int64_t> taken_{0};
  FairSharedMutex calls_;  // shared by calls that may have taken more than they need
};

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_CORE_TABLE_ROW_BUDGET_H_

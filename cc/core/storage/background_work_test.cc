// BackgroundWork: turns, what wakes it when, and how it ends.
#include "cc/core/storage/background_work.h"

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace dynemb {
namespace {

// A slice that waits where the test wants it to.
class Gate {
 public:
  void Pass() {
    std::unique_lock<std::mutex> lock(mutex_);
    is_there_ = true;
    changed_.notify_all();
    changed_.wait(lock, [this] { return is_open_; });
  }
  void WaitForSlice() {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [this] { return is_there_; });
  }
  void Open() {
    const std::lock_guard<std::mutex> lock(mutex_);
    is_open_ = true;
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_there_ = false, is_open_ = false;
};

TEST(BackgroundWorkTest, RunsSlicesUntilThereAreNoMore) {
  std::atomic<int> slices{0};
  BackgroundWork work([&] { return ++slices % 10 != 0; });
  work.Finish();
  EXPECT_EQ(slices, 0);
  work.Wake();
  work.Finish();
  EXPECT_EQ(slices, 10);
  work.Wake();
  work.Finish();
  EXPECT_EQ(slices, 20);
}

TEST(BackgroundWorkTest, OwnersTakeTurns) {
  Gate gate;
  BackgroundWork first([&] {
    gate.Pass();
    return false;
  });
  first.Wake();
  gate.WaitForSlice();
  std::vector<int> order;  // of one thread
  int left[2] = {3, 3};
  BackgroundWork a([&] { return order.push_back(0), --left[0] > 0; });
  BackgroundWork b([&] { return order.push_back(1), --left[1] > 0; });
  a.Wake();
  b.Wake();
  a.Wake();  // it has a turn already
  gate.Open();
  a.Finish();
  b.Finish();
  EXPECT_EQ(order, (std::vector<int>{0, 1, 0, 1, 0, 1}));
}

TEST(BackgroundWorkTest, WhatComesUpDuringASliceIsDoneAfterIt) {
  Gate gate;
  std::atomic<int> slices{0};
  BackgroundWork work([&] {
    if (++slices == 1) gate.Pass();
    return false;
  });
  work.Wake();
  gate.WaitForSlice();
  work.Wake();
  gate.Open();
  work.Finish();
  EXPECT_EQ(slices, 2);
}

TEST(BackgroundWorkTest, EndsAfterTheSliceThatIsUnderWay) {
  Gate gate;
  std::atomic<bool> is_over{false};
  auto work = std::make_unique<BackgroundWork>([&] {
    gate.Pass();
    is_over = true;
    return true;  // there would be more
  });
  work->Wake();
  gate.WaitForSlice();
  std::thread ends([&] {
    work.reset();
    EXPECT_TRUE(is_over);
  });
  gate.Open();
  ends.join();
}

}  // namespace
}  // namespace dynemb

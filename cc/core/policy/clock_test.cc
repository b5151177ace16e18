// The clock of policies: about the time of day, and never the same twice.
#include "cc/core/policy/clock.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <thread>
#include <vector>

namespace dynemb {
namespace {

int64_t SystemMicroseconds() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::microseconds>(now).count();
}

TEST(Clock, TellsTheTimeInMicroseconds) {
  const int64_t before = SystemMicroseconds();
  EXPECT_GE(NextMicrosecond(), before);
}

TEST(Clock, IsAheadOfEveryCallBefore) {
  constexpr int kThreads = 4, kCalls = 5000;
  std::vector<std::vector<int64_t>> times(kThreads);
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&times, t] {
      for (int i = 0; i < kCalls; ++i) times[t].push_back(NextMicrosecond());
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::vector<int64_t> all;
  for (const auto& own : times) {
    EXPECT_TRUE(std::is_sorted(own.begin(), own.end()));
    all.insert(all.end(), own.begin(), own.end());
  }
  std::sort(all.begin(), all.end());
  EXPECT_EQ(std::adjacent_find(all.begin(), all.end()), all.end());
  EXPECT_GT(NextMicrosecond(), all.back());
}

}  // namespace
}  // namespace dynemb

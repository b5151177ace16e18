// IoThreads: every task once, calls beside each other, calls within tasks.
#include "cc/core/base/io_threads.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <new>
#include <set>
#include <thread>
#include <vector>

namespace dynemb {
namespace {

TEST(IoThreads, RunEachTaskOnceOnOtherThreads) {
  const std::thread::id caller = std::this_thread::get_id();
  for (const int64_t tasks : {0, 1, 7, 1000}) {
    std::vector<std::atomic<int>> runs(static_cast<size_t>(tasks));
    std::atomic<bool> on_caller{false};
    const Status status = IoThreads()->Run(tasks, 1, [&](int64_t i) {
      ++runs[static_cast<size_t>(i)];
      if (std::this_thread::get_id() == caller) on_caller = true;
    });
    EXPECT_TRUE(status.ok());
    for (const auto& run : runs) EXPECT_EQ(run, 1);
    EXPECT_FALSE(on_caller);
  }
  EXPECT_GE(IoThreads()->concurrency(), 1);
  EXPECT_LE(IoThreads()->concurrency(), 16);
}

TEST(IoThreads, CallsOfManyThreadsAndWithinTasks) {
  std::atomic<int64_t> sum{0};
  std::vector<std::thread> callers;
  for (int c = 0; c < 8; ++c) {
    callers.emplace_back([&] {
      for (int round = 0; round < 20; ++round) {
        const Status status = IoThreads()->Run(10, 1, [&](int64_t) {
          // Waits for no other thread.
          EXPECT_TRUE(IoThreads()->Run(3, 1, [&](int64_t i) { sum += i; }).ok());
        });
        EXPECT_TRUE(status.ok());
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(sum, 8 * 20 * 10 * (0 + 1 + 2));
}

// The threads live on, and only the call whose tasks ran out of memory says so.
TEST(IoThreads, TasksThatRunOutOfMemory) {
  std::atomic<int64_t> ran{0};
  std::vector<std::thread> callers;
  for (int c = 0; c < 4; ++c) {
    callers.emplace_back([&, fails = c % 2 == 0] {
      for (int round = 0; round < 20; ++round) {
        const Status status = IoThreads()->Run(50, 1, [&](int64_t i) {
          ++ran;
          if (fails && i % 3 == 0) throw std::bad_alloc();
        });
        EXPECT_EQ(status.code(), fails ? Code::kResourceExhausted : Code::kOk);
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(ran, 4 * 20 * 50);
  // Also of a task within a task.
  const Status within = IoThreads()->Run(2, 1, [&](int64_t) {
    const Status inner = IoThreads()->Run(1, 1, [](int64_t) { throw std::bad_alloc(); });
    EXPECT_EQ(inner.code(), Code::kResourceExhausted);
  });
  EXPECT_TRUE(within.ok());
}

}  // namespace
}  // namespace dynemb

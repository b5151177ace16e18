#include "cc/core/base/shared_tasks.h"

#include <gtest/gtest.h>

#include <memory>
#include <thread>
#include <vector>

namespace dynemb {
namespace {

TEST(SharedTasks, EachRunsOnceWhoeverWorks) {
  for (const int64_t tasks : {0, 1, 7, 1000}) {
    for (const int64_t at_once : {1, 3, 2000}) {
      for (const int helpers : {0, 1, 5}) {
        std::vector<std::atomic<int>> runs(static_cast<size_t>(tasks));
        std::vector<std::thread> threads;
        {
          const std::function<void(int64_t)> task = [&](int64_t i) {
            ++runs[static_cast<size_t>(i)];
          };
          const auto shared = std::make_shared<SharedTasks>(tasks, at_once, &task);
          for (int t = 0; t < helpers; ++t) threads.emplace_back([shared] { shared->Work(); });
          shared->Work();
          shared->Wait();
          for (const auto& ran : runs) EXPECT_EQ(ran, 1);
        }  // threads may still be coming
        for (std::thread& thread : threads) thread.join();
        for (const auto& ran : runs) EXPECT_EQ(ran, 1);
      }
    }
  }
}

TEST(SharedTasks, WaitsForWhatAnotherThreadHasTaken) {
  std::atomic<bool> taken{false}, go{false}, ended{false};
  const std::function<void(int64_t)> task = [&](int64_t i) {
    if (i != 0) return;
    taken = true;
    while (!go) std::this_thread::yield();
    ended = true;
  };
  const auto shared = std::make_shared<SharedTasks>(2, 1, &task);
  std::thread helper([shared] { shared->Work(); });
  while (!taken) std::this_thread::yield();
  std::thread releasing([&] { go = true; });
  shared->Work();
  shared->Wait();
  EXPECT_TRUE(ended);
  helper.join();
  releasing.join();
}

}  // namespace
}  // namespace dynemb

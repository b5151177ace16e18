#include "cc/core/base/run_calls.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <new>
#include <utility>
#include <vector>

#include "cc/core/testing/executors.h"

namespace dynemb {
namespace {

TEST(RunCalls, CallsEachOnceLargeOnesWithAllThreads) {
  BackwardExecutor executor;
  Context context;
  context.executor = &executor;
  // Sizes, and how many threads each table has.
  const std::pair<std::vector<int64_t>, std::vector<int>> cases[] = {
      {{}, {}},
      {{5}, {4}},
      {{0, 0}, {1, 1}},
      {{1000, 1, 2, 1}, {4, 1, 1, 1}},
      {std::vector<int64_t>(40, 7), std::vector<int>(40, 1)}};
  for (const auto& [sizes, want] : cases) {
    std::vector<int> threads(sizes.size());
    const Status called =
        RunCalls(context, sizes, [&, &threads = threads](int64_t i, const Context& given) {
          threads[i] += given.executor->concurrency();
          return Status();
        });
    EXPECT_TRUE(called.ok());
    EXPECT_EQ(threads, want);
  }
}

TEST(RunCalls, AnErrorOrNoMemoryStopsNoOthers) {
  BackwardExecutor executor;
  Context context;
  context.executor = &executor;
  for (const std::vector<int64_t>& sizes :
       {std::vector<int64_t>{1000, 1, 2, 1}, std::vector<int64_t>(40, 7)}) {
    for (size_t bad = 0; bad < sizes.size(); ++bad) {
      for (const bool throws : {false, true}) {
        std::vector<int> calls(sizes.size());
        const Status called = RunCalls(context, sizes, [&](int64_t i, const Context&) {
          ++calls[i];
          if (i != static_cast<int64_t>(bad)) return Status();
          if (throws) throw std::bad_alloc();
          return InvalidArgument("why");
        });
        EXPECT_EQ(called.code(), throws ? Code::kResourceExhausted : Code::kInvalidArgument);
        EXPECT_EQ(calls, std::vector<int>(sizes.size(), 1));
      }
    }
  }
}

}  // namespace
}  // namespace dynemb

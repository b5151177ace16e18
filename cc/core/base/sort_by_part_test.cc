// SortByPart against std::stable_sort, by one thread and by several; FirstOutside against a loop.
#include "cc/core/base/sort_by_part.h"

#include <gtest/gtest.h>

#include <limits>
#include <random>
#include <vector>

#include "cc/core/testing/executors.h"

namespace dynemb {
namespace {

TEST(SortByPart, IsStableAndLeavesOutWhatIsOfNoPartForAnyNumberOfThreads) {
  ThreadPerTask threads;
  InlineExecutor inline_executor;
  std::mt19937 random(1);
  for (const int64_t n : {0, 1, 5000, 20000}) {
    for (const int64_t parts : {1, 3, 64, 9000}) {
      std::vector<int64_t> part_of;
      for (int64_t i = 0; i < n; ++i) {
        part_of.push_back(static_cast<int64_t>(random() % (parts + 1)) - 1);
      }
      std::vector<int64_t> want, counts(parts + 1, 0);
      for (int64_t i = 0; i < n; ++i) {
        if (part_of[i] >= 0) want.push_back(i);
        if (part_of[i] >= 0) ++counts[part_of[i] + 1];
      }
      std::stable_sort(want.begin(), want.end(),
                       [&](int64_t a, int64_t b) { return part_of[a] < part_of[b]; });
      for (int64_t p = 0; p < parts; ++p) counts[p + 1] += counts[p];
      for (Executor* executor :
           {static_cast<Executor*>(&inline_executor), static_cast<Executor*>(&threads)}) {
        Context context;
        context.executor = executor;
        std::vector<int64_t> sorted(want.size(), -1), begins(parts + 1, -1);
        ASSERT_TRUE(SortByPart(
                        context, n, parts, [&](int64_t i) { return part_of[i]; },
                        [&](int64_t i, int64_t part, int64_t place) {
                          EXPECT_EQ(part, part_of[i]);
                          sorted[place] = i;
                        },
                        begins.data())
                        .ok());
        EXPECT_EQ(sorted, want);
        EXPECT_EQ(begins, counts);
      }
    }
  }
}

template <typename T>
void ExpectFirstOutside() {
  const std::vector<T> numbers = {
      0, 1, 2, std::numeric_limits<T>::max(), -1, std::numeric_limits<T>::min()};
  const int64_t size = static_cast<int64_t>(numbers.size());
  for (const int64_t limit : {int64_t{0}, int64_t{1}, int64_t{3}, int64_t{1} << 40,
                              std::numeric_limits<int64_t>::max()}) {
    for (int64_t begin = 0; begin <= size; ++begin) {
      for (int64_t end = begin; end <= size; ++end) {
        int64_t want = begin;
        while (want < end && numbers[want] >= 0 && numbers[want] < limit) ++want;
        const Span<const T> these(numbers.data() + begin, end - begin);
        EXPECT_EQ(FirstOutside(these, limit), want - begin)
            << limit << ", " << begin << ", " << end;
      }
    }
  }
}

TEST(FirstOutside, IsThatOfALoop) {
  ExpectFirstOutside<int32_t>();
  ExpectFirstOutside<int64_t>();
}

}  // namespace
}  // namespace dynemb

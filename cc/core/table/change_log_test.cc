// ChangeLog against sets of keys: what is listed since when, what is forgotten, how long it gets.
#include "cc/core/table/change_log.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>
#include <vector>

namespace dynemb {
namespace {

std::set<Key> Since(const ChangeLog& log, int64_t since) {
  std::vector<Key> keys = {-7};  // which stays
  EXPECT_TRUE(log.AppendSince(since, &keys)) << since;
  ChangeLog::RemoveRepetitions(1, &keys);
  EXPECT_EQ(keys[0], -7);
  const std::set<Key> distinct(keys.begin() + 1, keys.end());
  EXPECT_EQ(distinct.size() + 1, keys.size()) << "each once";
  return distinct;
}
bool Known(const ChangeLog& log, int64_t since) {
  std::vector<Key> keys;
  return log.AppendSince(since, &keys);
}

TEST(ChangeLog, ListsWhatWasAddedInLaterEpochs) {
  std::mt19937_64 random(1);
  ChangeLog log;
  EXPECT_FALSE(log.tracking());
  EXPECT_FALSE(Known(log, 0));
  std::map<int64_t, std::set<Key>> added;  // of each epoch
  const std::vector<int64_t> epochs = {3, 4, 5, 90, 91};
  for (const int64_t epoch : epochs) {
    log.BeginEpoch(epoch, 1000);
    EXPECT_TRUE(log.tracking());
    for (uint64_t n = random() % 300; n > 0; --n) {
      const Key key = static_cast<Key>(random() % 400);
      log.Add(key, 1000);
      added[epoch].insert(key);
    }
    EXPECT_FALSE(Known(log, 1)) << "from before the first";
    for (const int64_t since : {2, 3, 4, 89, 90, 91, 100}) {
      std::set<Key> want;
      for (const auto& [of, keys] : added) {
        if (of > since) want.insert(keys.begin(), keys.end());
      }
      EXPECT_EQ(Since(log, since), want) << since;
    }
  }
  log.Trim(4);
  EXPECT_FALSE(Known(log, 3));
  EXPECT_EQ(Since(log, 90), added[91]);
  log.Trim(1000);  // of the current epoch nothing is forgotten
  EXPECT_EQ(Since(log, 90), added[91]);
  log.Forget();
  EXPECT_FALSE(Known(log, 90));
  EXPECT_TRUE(Since(log, 91).empty());
  log.Add(5, 1000);
  EXPECT_FALSE(Known(log, 90));
  log.BeginEpoch(92, 1000);
  log.Add(6, 1000);
  EXPECT_EQ(Since(log, 91), std::set<Key>{6});
}

TEST(ChangeLog, IsNoLongerThanTwiceTheRows) {
  constexpr int64_t kRows = 10'000, kMostKeys = ChangeLog::kLeastKeys + 2 * kRows;
  constexpr int64_t kMostBytes = 2 * kMostKeys * int64_t{sizeof(Key)};
  ChangeLog log;
  // As many as the rows in each epoch: the oldest are forgotten.
  for (int64_t epoch = 1; epoch <= 20; ++epoch) {
    log.BeginEpoch(epoch, kRows);
    for (Key key = 0; key < kRows; ++key) log.Add(key, kRows);
    EXPECT_LE(log.memory_bytes(), kMostBytes);
    EXPECT_EQ(Since(log, epoch - 1).size(), size_t{kRows});
  }
  EXPECT_FALSE(Known(log, 10));
  // One key that is erased and comes again: no epoch is lost for it.
  for (int64_t n = 0; n < 20 * kMostKeys; ++n) log.Add(n % 2, kRows);
  EXPECT_LE(log.memory_bytes(), kMostBytes);
  EXPECT_EQ(Since(log, 19).size(), size_t{kRows});
  // Ever other keys: a full copy is less.
  for (Key key = 0; key < 2 * kMostKeys; ++key) log.Add(key, kRows);
  EXPECT_FALSE(Known(log, 19));
  EXPECT_LE(log.memory_bytes(), kMostBytes);
  // All rows go, as by a restrict: the number of rows is that of before.
  log.BeginEpoch(21, kRows);
  for (Key key = 0; key < kRows; ++key) log.Add(key, kRows - key);
  EXPECT_EQ(Since(log, 20).size(), size_t{kRows});
}

}  // namespace
}  // namespace dynemb

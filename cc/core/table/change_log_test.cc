// ChangeLog against sets of keys: what is listed since when, what is forgotten, how long it gets.
#include "cc/core/table/change_log.h"

#include <gtest/gtest.h>

#include <algorithm>
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
  log.Trim({4});
  EXPECT_FALSE(Known(log, 3));
  EXPECT_EQ(Since(log, 90), added[91]);
  log.Trim({1000});  // of the current epoch nothing is forgotten
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

// Consumers that ask each at a time of its own: a quick one does not cost the slow ones their
// chain, and each is told what has changed since it asked and no more.
TEST(ChangeLog, KeepsASlowConsumersChainBesideAQuickOne) {
  constexpr int64_t kRows = 1000, kEpochs = 20'000;
  std::mt19937_64 random(2);
  ChangeLog log;
  log.BeginEpoch(1, kRows);
  const std::vector<int64_t> periods = {1, 7, 300, 5000};
  std::vector<int64_t> positions(periods.size(), 0);
  std::vector<std::set<Key>> want(periods.size());  // of each consumer
  int64_t most_bytes = 0;
  for (int64_t epoch = 1; epoch < kEpochs; ++epoch) {
    for (int n = 0; n < 20; ++n) {
      const Key key = static_cast<Key>(random() % (n < 10 ? 30 : kRows));
      log.Add(key, kRows);
      for (auto& keys : want) keys.insert(key);
    }
    log.BeginEpoch(epoch + 1, kRows);
    for (size_t c = 0; c < periods.size(); ++c) {
      if (epoch % periods[c] != 0) continue;
      ASSERT_EQ(Since(log, positions[c]), want[c]) << "epoch " << epoch << ", consumer " << c;
      positions[c] = epoch;
      want[c].clear();
    }
    std::vector<int64_t> sorted = positions;
    std::sort(sorted.begin(), sorted.end());
    log.Trim(sorted);
    most_bytes = std::max(most_bytes, log.memory_bytes());
  }
  EXPECT_LE(most_bytes, 2 * (ChangeLog::kLeastKeys + 2 * kRows) * int64_t{sizeof(Key)});
  log.Trim({positions[0] - 100, positions[0]});
  EXPECT_FALSE(Known(log, positions[0] - 5000)) << "nobody would ask";
}

// Without marks a key is listed each time that it is written: epochs that have ended are not lost.
TEST(ChangeLog, RepetitionsInPastEpochsCostNoChain) {
  ChangeLog log;
  for (int64_t epoch = 1; epoch <= 3; ++epoch) {
    log.BeginEpoch(epoch, 100);
    for (int64_t n = 0; n < 20 * ChangeLog::kLeastKeys; ++n) log.Add(100 * epoch + n % 50, 100);
    EXPECT_LE(log.memory_bytes(), 2 * (ChangeLog::kLeastKeys + 200) * int64_t{sizeof(Key)});
  }
  EXPECT_EQ(Since(log, 0).size(), 150u);
}

// Epochs that nobody has asked for, as when saves fail for a time, are merged at once.
TEST(ChangeLog, ManyEpochsAreMergedInLittleTime) {
  constexpr int64_t kEpochs = 20'000;
  ChangeLog log;
  for (int64_t epoch = 1; epoch <= kEpochs; ++epoch) {
    log.BeginEpoch(epoch, 1'000'000);
    for (Key key = 0; key < 50; ++key) log.Add(50 * epoch + key, 1'000'000);
  }
  log.BeginEpoch(kEpochs + 1, 1'000'000);
  log.Trim({0, kEpochs});  // one after the other it would be 10^10 moves
  EXPECT_EQ(Since(log, 0).size(), size_t{50 * kEpochs});
  EXPECT_FALSE(Known(log, kEpochs / 2));
}

}  // namespace
}  // namespace dynemb

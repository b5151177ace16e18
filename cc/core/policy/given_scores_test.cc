// Scores that lookups give, against a map; from several threads.
#include "cc/core/policy/given_scores.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "cc/core/testing/harness.h"

namespace dynemb {
namespace {

using Scores = std::map<Key, int64_t>;
constexpr auto kHighest = GivenScores::Several::kHighest, kSum = GivenScores::Several::kSum;

Scores AllOf(GivenScores* given) {
  std::vector<Key> keys;
  std::vector<int64_t> scores;
  given->TakeAll(&keys, &scores);
  Scores all;
  for (size_t i = 0; i < keys.size(); ++i) all[keys[i]] = scores[i];
  EXPECT_EQ(all.size(), keys.size());
  return all;
}

TEST(GivenScores, TheHighestScoreCountsUntilItIsTaken) {
  GivenScores given;
  Scores model;
  std::mt19937_64 random(3);
  const auto draw = [&](int64_t limit) {
    return static_cast<int64_t>(random() % limit) - limit / 2;
  };
  for (int turn = 0; turn < 2000; ++turn) {
    std::vector<Key> keys(random() % 9);
    for (Key& key : keys) key = draw(20);
    if (random() % 3 > 0) {
      std::vector<int64_t> scores(keys.size());
      for (int64_t& score : scores) score = draw(7);
      given.Add(keys, scores);
      for (size_t i = 0; i < keys.size(); ++i) {
        const auto [at, is_new] = model.emplace(keys[i], scores[i]);
        at->second = std::max(at->second, scores[i]);
      }
      continue;
    }
    std::vector<int64_t> scores(keys.size(), 100), without;
    const bool any = given.Take(keys, scores.data(), &without);
    EXPECT_EQ(any, !model.empty());
    size_t lack = 0;
    for (size_t i = 0; any && i < keys.size(); ++i) {
      const auto at = model.find(keys[i]);
      EXPECT_EQ(scores[i], at == model.end() ? 100 : at->second);
      if (at != model.end()) continue;
      ASSERT_LT(lack, without.size());
      EXPECT_EQ(without[lack++], static_cast<int64_t>(i));
    }
    EXPECT_EQ(lack, without.size());
    for (const Key key : keys) model.erase(key);
  }
  EXPECT_EQ(AllOf(&given), model);
  EXPECT_EQ(AllOf(&given), Scores());
}

TEST(GivenScores, ManyKeysInTheOrderInWhichTheyCameAndInAnother) {
  GivenScores given;
  std::mt19937_64 random(4);
  Scores model;
  for (int turn = 0; turn < 30; ++turn) {
    std::vector<Key> keys(turn % 3 == 0 ? 20'000 : 10);
    std::vector<int64_t> scores(keys.size());
    for (size_t i = 0; i < keys.size(); ++i) {
      keys[i] = static_cast<Key>(random() % 30'000);
      scores[i] = static_cast<int64_t>(random() % 5);
    }
    given.Add(keys, scores);
    for (size_t i = 0; i < keys.size(); ++i) {
      const auto [at, is_new] = model.emplace(keys[i], scores[i]);
      at->second = std::max(at->second, scores[i]);
    }
    if (turn % 2 == 1) std::shuffle(keys.begin(), keys.end(), random);
    if (turn % 5 == 4) keys.resize(keys.size() / 2);  // the others are left
    std::vector<int64_t> taken(keys.size(), -1), without;
    ASSERT_TRUE(given.Take(keys, taken.data(), &without));
    ASSERT_TRUE(without.empty());
    for (size_t i = 0; i < keys.size(); ++i) ASSERT_EQ(taken[i], model.at(keys[i]));
    for (const Key key : keys) model.erase(key);
  }
  EXPECT_EQ(AllOf(&given), model);
}

TEST(GivenScores, KeysThatNobodyWritesAreNotKeptWithoutEnd) {
  GivenScores given;
  given.Add(std::vector<Key>{1, 2, 2, 1}, std::vector<int64_t>{5, 6, 7, 4}, kHighest, 2);
  given.Add(std::vector<Key>{2, 3, 2}, std::vector<int64_t>{8, 9, 1}, kHighest, 2);
  EXPECT_EQ(AllOf(&given), (Scores{{2, 1}, {3, 9}}));
  given.Add(std::vector<Key>{4}, std::vector<int64_t>{1});
  given.Clear();
  EXPECT_EQ(AllOf(&given), Scores());
}

TEST(GivenScores, ScoresAddUp) {
  GivenScores given;
  given.Add(std::vector<Key>{1, 2, 1}, std::vector<int64_t>{5, 6, 7}, kSum);
  given.Add(std::vector<Key>{2, 3}, std::vector<int64_t>{1, INT64_MAX - 1}, kSum);
  given.Add(std::vector<Key>{3}, std::vector<int64_t>{9}, kSum);  // not beyond the largest number
  EXPECT_EQ(AllOf(&given), (Scores{{1, 12}, {2, 7}, {3, INT64_MAX}}));
}

TEST(GivenScores, OfThreadsTheHighestCounts) {
  GivenScores given;
  std::vector<std::thread> threads;
  for (int64_t t = 0; t < 4; ++t) {
    threads.emplace_back([&given, t] {
      for (Key key = 0; key < 1000; ++key) {
        given.Add(std::vector<Key>{key}, std::vector<int64_t>{(key + t) % 4});
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  Scores want;
  for (Key key = 0; key < 1000; ++key) want[key] = 3;
  EXPECT_EQ(AllOf(&given), want);
}

}  // namespace
}  // namespace dynemb

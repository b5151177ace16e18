// What every table with a limit of rows inserts, declines and evicts, against a model that is a map
// with a list of scores. A program that links this defines MakeBoundedTable.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "cc/core/base/hash.h"
#include "cc/core/table/evicted_rows.h"
#include "cc/core/testing/bounded.h"
#include "cc/core/testing/executors.h"
#include "gtest/gtest.h"

namespace dynemb {
namespace {

TEST(BoundedTableTest, AFullTableRefusesTheCallAndIsAsItWas) {
  const Bounded bounded(Options(4), "sgd");
  ASSERT_OK(bounded.Upsert({1, 2, 3, 3, 2}));
  EXPECT_EQ(bounded.table->room(), 1);
  const TableContent before = bounded.call->Export();
  const Status full = bounded.Upsert({1, 5, 6, 5});
  EXPECT_EQ(full.code(), Code::kResourceExhausted);
  EXPECT_EQ(
      full.message(),
      "max_rows: got 2 keys without a row, for 3 rows of at most 4; want a larger max_rows, or "
      "an eviction policy");
  EXPECT_EQ(Difference(before, bounded.call->Export()), "");
  const std::vector<double> hyper = PlainSgd();
  EXPECT_EQ(bounded.call->Apply({5, 1, 6}, Floats(6, 1), UsualRule("sgd"), hyper).code(),
            Code::kResourceExhausted);
  EXPECT_EQ(bounded.call->Accumulate({5, 6}, Floats(4, 1), {false, false}).code(),
            Code::kResourceExhausted);
  EXPECT_EQ(bounded.call->InsertRows({{5, before.at(1)}, {6, before.at(1)}}).code(),
            Code::kResourceExhausted);
  EXPECT_EQ(Difference(before, bounded.call->Export()), "");
  // What needs no row goes on: a key that would only be added to, those that are there, and others
  // as far as there is room.
  ASSERT_OK(bounded.call->Accumulate({1, 9, 8}, Floats(6, 1), {true, true, true}));
  ASSERT_OK(bounded.Upsert({1, 2, 3, 1, 2, 3, 7, 7}));
  EXPECT_EQ(bounded.keys(), Set({1, 2, 3, 7}));
  EXPECT_EQ(bounded.table->room(), 0);
  ASSERT_OK(bounded.call->Erase({2, 2, 100}));
  EXPECT_EQ(bounded.table->room(), 1);
  ASSERT_OK(bounded.Upsert({8}));
  ASSERT_OK(bounded.call->Clear());
  EXPECT_EQ(bounded.table->room(), 4);
  ASSERT_OK(bounded.Upsert({11, 12, 13, 14}));
}

TEST(BoundedTableTest, AFullTableDeclinesTheLastKeysOfTheBatch) {
  const Bounded bounded(Options(3, "", OnFull::kDecline), "sgd");
  Outcomes outcomes;
  ASSERT_OK(bounded.Upsert({10, 11}, 0, &outcomes));
  ASSERT_OK(bounded.Upsert({7, 10, 9, 7, 9, 8}, 0, &outcomes));
  EXPECT_EQ(outcomes, Outcomes({kInserted, kFound, kDeclined, kInserted, kDeclined, kDeclined}));
  EXPECT_EQ(bounded.keys(), Set({7, 10, 11}));
  // The gradient of a declined key is dropped; the others are trained as ever.
  Floats before, after;
  ASSERT_OK(bounded.call->Find({7, 9}, &before));
  const std::vector<double> hyper = PlainSgd();
  ASSERT_OK(bounded.call->Apply({9, 7, 7}, Floats(6, 1), UsualRule("sgd"), hyper, {}, &outcomes));
  EXPECT_EQ(outcomes, Outcomes({kDeclined, kFound, kFound}));
  ASSERT_OK(bounded.call->Find({7, 9}, &after));
  EXPECT_EQ(after[0], before[0] - static_cast<float>(2 * hyper[0]));
  EXPECT_EQ(after[2], before[2]);
  const TableCounters counters = bounded.table->counters();
  EXPECT_EQ(counters.inserted, 3);
  EXPECT_EQ(counters.declined, 3);
  EXPECT_EQ(counters.evicted, 0);
}

TEST(BoundedTableTest, ABatchThatIsLargerThanTheTable) {
  const Bounded bounded(Options(3, "lru"));
  Outcomes outcomes;
  ASSERT_OK(bounded.Upsert({1, 2, 3}, 1));
  ASSERT_OK(bounded.Upsert({4, 5, 6, 7, 4, 8}, 2, &outcomes));
  EXPECT_EQ(outcomes, Outcomes({kInserted, kInserted, kInserted, kDeclined, kInserted, kDeclined}));
  EXPECT_EQ(bounded.keys(), Set({4, 5, 6}));
  const Bounded none(Options(0, "lru"));
  ASSERT_OK(none.Upsert({1, 2}, 1, &outcomes));
  EXPECT_EQ(outcomes, Outcomes({kDeclined, kDeclined}));
  EXPECT_EQ(none.table->size(), 0);
}

// What ties are broken by.
uint64_t TieOf(Key key) {
  const uint64_t hash = Mix64(static_cast<uint64_t>(key));
  return hash << 32 | hash >> 32;
}

// Says which keys a table may have, by its definition: keys with rows are written, then those of
// lowest score leave, ties by the hash of the key, and the first missing ones of the batch come.
class Model {
 public:
  Model(int64_t max_rows, std::string policy) : max_rows_(max_rows), policy_(std::move(policy)) {}

  void Write(const Keys& keys, int64_t now) {
    Keys missing;
    Set seen;
    for (const Key key : keys) {
      if (!seen.insert(key).second) continue;
      if (rows_.count(key) > 0) {
        Touch(key, now);
      } else {
        missing.push_back(key);
      }
    }
    const int64_t room = max_rows_ - static_cast<int64_t>(rows_.size());
    int64_t evict =
        std::min(static_cast<int64_t>(missing.size()) - room, static_cast<int64_t>(rows_.size()));
    for (; evict > 0; --evict) {
      rows_.erase(std::min_element(rows_.begin(), rows_.end(), [&](const auto& a, const auto& b) {
        return std::make_pair(Score(a.first), TieOf(a.first)) <
               std::make_pair(Score(b.first), TieOf(b.first));
      }));
    }
    for (const Key key : missing) {
      if (static_cast<int64_t>(rows_.size()) < max_rows_) Touch(key, now);
    }
  }
  void Erase(Key key) { rows_.erase(key); }
  Set keys() const {
    Set keys;
    for (const auto& row : rows_) keys.insert(row.first);
    return keys;
  }

 private:
  struct Row {
    std::vector<int64_t> writes;
  };
  void Touch(Key key, int64_t now) { rows_[key].writes.push_back(now); }
  double Score(Key key) const {
    const std::vector<int64_t>& writes = rows_.at(key).writes;
    if (policy_ == "lru") return static_cast<double>(writes.back());
    if (policy_ == "lfu") return static_cast<double>(writes.size());
    if (policy_ == "lfu lru") {
      return 1e6 * static_cast<double>(writes.size()) + static_cast<double>(writes.back());
    }
    if (policy_ == "score") return static_cast<double>(ScoreOf(key, writes.back()));
    if (policy_ == "norm") return 2.0 * static_cast<double>(key) * static_cast<double>(key);
    if (policy_ == "lfu epoch 10") {
      return 1e6 * static_cast<double>(writes.back() / 10) + static_cast<double>(writes.size());
    }
    double count = 0;  // lfu half_life 10
    for (const int64_t at : writes)
      count += std::exp2(static_cast<double>(at - writes.back()) / 10);
    return std::log2(count) + static_cast<double>(writes.back()) / 10;
  }

  const int64_t max_rows_;
  const std::string policy_;
  std::map<Key, Row> rows_;
};

class EvictionTest : public ::testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Policies, EvictionTest,
                         ::testing::Values("lru", "lfu", "norm", "lfu half_life 10", "lfu epoch 10",
                                           "lfu lru", "score"));

TEST_P(EvictionTest, SmallTablesKeepExactlyTheRowsOfTheHighestScores) {
  for (const int64_t max_rows : {1, 2, 7, 100, 1000}) {
    const Bounded bounded(Options(max_rows, GetParam()), "adam");
    Model model(max_rows, GetParam());
    std::mt19937_64 random(static_cast<uint64_t>(max_rows));
    const std::vector<double> hyper = UsualHyper("adam", 1);
    for (int64_t now = 1; now < 150; ++now) {
      Keys keys(1 + random() % (1 + static_cast<uint64_t>(max_rows) / 3));
      for (Key& key : keys) {
        const double skewed = std::pow(static_cast<double>(random() % 100000) / 100000, 3);
        key = static_cast<Key>(skewed * 4 * static_cast<double>(max_rows)) + 1;
      }
      if (now % 11 == 0) {
        ASSERT_OK(bounded.call->Erase({keys[0]}));
        model.Erase(keys[0]);
      }
      if (now % 3 == 0 && GetParam() != "norm") {
        const std::vector<int64_t> scores = ScoresOf(keys, now);
        ASSERT_OK(bounded.call->Apply(keys, Floats(2 * keys.size(), 0), UsualRule("adam"), hyper,
                                      {now, scores}));
      } else {
        ASSERT_OK(bounded.Upsert(keys, now));
      }
      model.Write(keys, now);
      ASSERT_EQ(bounded.keys(), model.keys()) << max_rows << " rows, at " << now;
      ASSERT_EQ(bounded.table->room(), max_rows - bounded.table->size());
    }
    const TableCounters counters = bounded.table->counters();
    EXPECT_EQ(counters.inserted - counters.erased - counters.evicted, bounded.table->size());
    EXPECT_GT(counters.evicted, 0);
  }
}

// They are of no more use, and would otherwise stay for ever.
TEST(EvictionTest, ByTheNormRowsThatAreNotFiniteLeaveFirst) {
  const Bounded bounded(Options(4, "norm"));
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float infinite = std::numeric_limits<float>::infinity();
  ASSERT_OK(bounded.call->Upsert({1, 2, 3, 4}, {0, 0, nan, 1, 1, -infinite, 1e30f, 1}));
  for (const Key key : {5, 6}) ASSERT_OK(bounded.call->Upsert({key}, {1, 1}));
  EXPECT_EQ(bounded.keys(), Set({1, 4, 5, 6}));
  ASSERT_OK(bounded.call->Upsert({7}, {1, 1}));
  EXPECT_EQ(bounded.keys(), Set({4, 5, 6, 7}));
}

// Scores that are given stay until others are; those of accumulated rows, too. Tables of another
// policy, and rows without that field, take no notice.
TEST(EvictionTest, GivenScores) {
  const Bounded bounded(Options(3, "score"), "sgd");
  const Bounded lru(Options(3, "lru")), none(Options(3, ""));
  const std::vector<int64_t> scores = {30, 10, 20}, lower = {15}, two = {1, 2};
  const Floats values(6, 1);
  for (const Bounded* each : {&bounded, &lru, &none}) {
    ASSERT_OK(each->call->Upsert({1, 2, 3}, values, {7, scores}));
  }
  const auto field_of = [](const Bounded& table, Key key) {
    return Numbers<int64_t>(table.call->Export().at(key).meta);
  };
  EXPECT_EQ(field_of(bounded, 3), std::vector<int64_t>({20}));
  EXPECT_EQ(field_of(lru, 3), std::vector<int64_t>({7}));
  ASSERT_OK(bounded.call->Upsert({3}, {1, 1}));  // says nothing
  EXPECT_EQ(field_of(bounded, 3), std::vector<int64_t>({20}));
  ASSERT_OK(bounded.call->Accumulate({1}, {1, 1}, {true}, {0, lower}));
  EXPECT_EQ(field_of(bounded, 1), std::vector<int64_t>({15}));
  ASSERT_OK(bounded.call->Upsert({4}, {1, 1}));  // 2 leaves; a new row has 0
  EXPECT_EQ(bounded.keys(), Set({1, 3, 4}));
  ASSERT_OK(bounded.call->Apply({5}, {1, 1}, UsualRule("sgd"), PlainSgd(), {0, lower}));
  EXPECT_EQ(bounded.keys(), Set({1, 3, 5}));
  for (const auto& call :
       {bounded.call->Upsert({7}, {1, 1}, {0, two}),
        bounded.call->Accumulate({7}, {1, 1}, {false}, {0, two}),
        bounded.call->Apply({7}, {1, 1}, UsualRule("sgd"), PlainSgd(), {0, two})}) {
    EXPECT_EQ(call.code(), Code::kInvalidArgument);
    EXPECT_EQ(call.message(), "scores: got 2, want one per key, 1, or none");
  }
  EXPECT_EQ(bounded.keys(), Set({1, 3, 5}));
}

// Scores that add up, against the sums in double; a call adds one for each key, however often its
// batch has it, and a row without any is the lowest.
TEST(EvictionTest, GivenScoresThatAddUp) {
  constexpr double kOne = 1 << 24;
  const Bounded bounded(Options(40, "score sum"), "sgd");
  std::map<Key, double> sums;
  std::mt19937_64 random(7);
  for (int turn = 0; turn < 100; ++turn) {
    Keys keys(20);
    for (Key& key : keys) key = static_cast<Key>(random() % 40);
    std::map<Key, int64_t> given;
    for (const Key key : keys) {
      given[key] = random() % 5 == 0 ? kNeverWritten : static_cast<int64_t>(random() % (1 << 27));
    }
    std::vector<int64_t> scores;
    for (const Key key : keys) scores.push_back(given[key]);
    const Floats values(2 * keys.size(), 1);
    if (turn % 3 == 0) {
      ASSERT_OK(bounded.call->Upsert(keys, values, {0, scores}));
    } else if (turn % 3 == 1) {
      ASSERT_OK(bounded.call->Apply(keys, values, UsualRule("sgd"), PlainSgd(), {0, scores}));
    } else {
      Outcomes outcomes;
      Floats found;
      ASSERT_OK(bounded.call->Find(keys, &found, &outcomes));
      std::vector<bool> exists;
      for (const Outcome outcome : outcomes) exists.push_back(outcome == kFound);
      ASSERT_OK(bounded.call->Accumulate(keys, values, exists, {0, scores}));
    }
    for (const auto& [key, score] : given) {
      sums[key] += score == kNeverWritten ? 0 : std::exp2(static_cast<double>(score) / kOne);
    }
  }
  const auto sum_of = [&](Key key) {
    const int64_t score = Numbers<int64_t>(bounded.call->Export().at(key).meta)[0];
    return std::exp2(static_cast<double>(score) / kOne);
  };
  ASSERT_EQ(bounded.table->size(), 40);
  // Each addition is above by less than 2e-5 of the part that it adds.
  for (const auto& [key, sum] : sums) EXPECT_NEAR(sum_of(key) / sum, 1, 2e-5 * 50) << key;
  ASSERT_OK(bounded.call->Upsert({100}, {1, 1}));  // says nothing
  EXPECT_EQ(Numbers<int64_t>(bounded.call->Export().at(100).meta)[0], kNeverWritten);
  ASSERT_OK(bounded.call->Upsert({101}, {1, 1}));
  EXPECT_EQ(bounded.keys().count(100), 0);
  sums.erase(std::min_element(sums.begin(), sums.end(),
                              [](const auto& a, const auto& b) { return a.second < b.second; }));
  for (const auto& [key, sum] : sums) EXPECT_EQ(bounded.keys().count(key), 1) << key;
}

// An evicted key that comes back begins anew, with its optimizer state.
TEST(EvictionTest, AnEvictedKeyComesBackAsANewOne) {
  const Bounded bounded(Options(2, "lru"), "adagrad");
  const Bounded fresh(Options(2, "lru"), "adagrad");
  const std::vector<double> hyper = UsualHyper("adagrad", 1);
  const auto train = [&](const Bounded& table, Key key, int64_t now) {
    Stamp stamp;
    stamp.now = now;
    ASSERT_OK(table.call->Apply({key}, {1, 2}, UsualRule("adagrad"), hyper, stamp));
  };
  for (int64_t now = 1; now < 5; ++now) train(bounded, 1, now);
  train(bounded, 2, 5);
  train(bounded, 3, 6);
  Floats value, initial;
  Outcomes outcomes;
  ASSERT_OK(bounded.call->Find({1}, &value, &outcomes));
  ASSERT_OK(fresh.call->Find({1}, &initial));
  EXPECT_EQ(outcomes, Outcomes({kMissing}));
  EXPECT_EQ(value, initial);
  train(bounded, 1, 7);
  train(fresh, 1, 7);
  EXPECT_TRUE(bounded.call->Export().at(1) == fresh.call->Export().at(1));
}

// What leaves is kept with its values until it is taken, of all shards, through a move of rows.
TEST_P(EvictionTest, RowsThatLeaveCanBeTaken) {
  constexpr int64_t kMost = 500;
  TableOptions options = Options(300, GetParam());
  options.keep_evicted = kMost;
  std::vector<Bounded> shards;
  for (const TableOptions& of_shard : OptionsOfShards(options, 2)) shards.emplace_back(of_shard);
  const auto evicted = [&] { return shards[1].table->evicted(); };
  EXPECT_EQ(shards[0].table->evicted(), evicted());
  std::mt19937_64 random(3);
  Set last[2];
  int64_t taken = 0, lost = 0;
  for (int64_t now = 1; now < 60; ++now) {
    std::map<Key, float> gone;
    for (int s = 0; s < 2; ++s) {
      Keys keys(1 + random() % 60);
      for (Key& key : keys) key = static_cast<Key>(random() % 2000) * 2 + s;
      ASSERT_OK(shards[s].Upsert(keys, now));
      const Set before = std::exchange(last[s], shards[s].keys());
      for (const Key key : before) {
        if (last[s].count(key) == 0) gone[key] = static_cast<float>(key);
      }
    }
    if (now == 30) {
      std::unique_ptr<RowMove> move;
      TableSchema schema = shards[0].table->schema();
      schema.rule = UsualRule("adam");
      const OneThread one_thread;
      ASSERT_OK(shards[0].table->PrepareMove(one_thread, schema, &move));
      shards[0].table = move->Run(one_thread);
      shards[0].call = std::make_unique<Caller>(shards[0].table.get(), HostTestMemory());
    }
    int64_t dropped;
    const KeptRows rows = evicted()->Take(&dropped);
    ASSERT_EQ(dropped, 0);
    std::map<Key, float> got;
    for (int64_t i = 0; i < rows.size(); ++i) {
      float value[2];
      std::memcpy(value, &rows.values[static_cast<size_t>(8 * i)], 8);
      EXPECT_EQ(value[0], value[1]);
      got[rows.keys[static_cast<size_t>(i)]] = value[0];
    }
    ASSERT_EQ(got, gone) << "at " << now;
    taken += rows.size();
  }
  EXPECT_GT(taken, 1000);
  // Of more than are kept the oldest are lost.
  for (Key first = 10'000; first < 12'000; first += 100) {
    Keys keys;
    for (Key key = first; key < first + 100; ++key) keys.push_back(key);
    ASSERT_OK(shards[0].Upsert(keys, first));
    lost += 100;
  }
  int64_t dropped;
  const KeptRows rows = evicted()->Take(&dropped);
  EXPECT_EQ(rows.size(), kMost);
  EXPECT_GT(dropped, lost - kMost - 400);
  EXPECT_EQ(evicted()->Take(&dropped).size(), 0);
  EXPECT_EQ(dropped, 0);
}

// Which rows leave a large table does not depend on the threads.
TEST_P(EvictionTest, IsTheSameForAnyExecutor) {
  BackwardExecutor backward;
  ThreadPerTask several;
  OneThread one_thread;
  Context contexts[3];
  contexts[0].executor = one_thread.executor;
  contexts[1].executor = &backward;
  contexts[2].executor = &several;
  const TableOptions options = Options(20000, GetParam(), OnFull::kDecline);
  const Bounded tables[3] = {Bounded(options), Bounded(options), Bounded(options)};
  for (int b = 0; b < 3; ++b) {
    std::mt19937_64 random(1);
    for (int64_t now = 1; now < 40; ++now) {
      Keys keys(now % 10 == 0 ? 30000 : 4000);
      for (Key& key : keys) key = static_cast<Key>(random() % 60000);
      Floats values;
      for (const Key key : keys) values.insert(values.end(), 2, static_cast<float>(key % 1000));
      const std::vector<int64_t> scores = ScoresOf(keys, now);
      ASSERT_OK(tables[b].table->Upsert(contexts[b], {keys},
                                        ConstRows(reinterpret_cast<const char*>(values.data()),
                                                  static_cast<int64_t>(keys.size()), 8),
                                        {now, scores}, {}));
    }
  }
  EXPECT_EQ(tables[0].table->size(), 20000);
  for (int b = 1; b < 3; ++b) {
    EXPECT_EQ(Difference(tables[0].call->Export(), tables[b].call->Export()), "");
  }
}

// The limit holds whatever threads do, and what is taken from it is given back.
TEST(EvictionTest, ManyThreadsNeverExceedTheLimit) {
  for (const char* policy : {"", "lru", "lfu"}) {
    constexpr int64_t kRows = 3000;
    const Bounded bounded(Options(kRows, policy, OnFull::kDecline), "sgd");
    std::atomic<bool> stop{false};
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&, t] {
        std::mt19937_64 random(static_cast<uint64_t>(t));
        const std::vector<double> hyper = PlainSgd();
        for (int64_t now = 1; now < 60; ++now) {
          Keys keys(500);
          for (Key& key : keys) key = static_cast<Key>(random() % 8000);
          Stamp stamp;
          stamp.now = now;
          const bool trains = t % 2 == 0;
          EXPECT_TRUE(
              (trains ? bounded.call->Apply(keys, Floats(1000, 1), UsualRule("sgd"), hyper, stamp)
                      : bounded.Upsert(keys, now))
                  .ok());
          if (now % 7 == 0) {
            EXPECT_TRUE(bounded.call->Erase(keys).ok());
          }
        }
      });
    }
    // Inserted minus removed rows, of which each is counted at once, when the call ends.
    std::thread watch([&] {
      while (!stop) EXPECT_GE(bounded.table->room(), 0);
    });
    for (std::thread& thread : threads) thread.join();
    stop = true;
    watch.join();
    EXPECT_LE(bounded.table->size(), kRows);
    EXPECT_EQ(bounded.table->room(), kRows - bounded.table->size());
    EXPECT_EQ(static_cast<int64_t>(bounded.keys().size()), bounded.table->size());
    const TableCounters counters = bounded.table->counters();
    EXPECT_EQ(counters.inserted - counters.erased - counters.evicted, bounded.table->size());
  }
}

// A call that takes room for keys that turn out to have rows makes no other call believe that the
// table is full.
TEST(BoundedTableTest, CallsThatOnlyMightInsertDoNotFillTheTable) {
  const Bounded bounded(Options(1100), "sgd");
  Keys there(1000);
  for (size_t i = 0; i < there.size(); ++i) there[i] = static_cast<Key>(i);
  ASSERT_OK(bounded.Upsert(there));
  std::vector<std::thread> threads;
  std::atomic<int> failed{0};
  for (int t = 0; t < 2; ++t) {
    threads.emplace_back([&, t] {
      const Keys some(there.begin(), there.begin() + 100);
      const Keys another = {1000 + t};
      for (int i = 0; i < 300; ++i) {
        failed += !(t == 0 ? bounded.Upsert(some) : bounded.Upsert(another)).ok();
        if (t == 1) failed += !bounded.call->Erase(another).ok();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(failed, 0);
}

// Rows that are put back come in any order; those of the highest scores stay.
TEST(EvictionTest, RowsThatAreInsertedIntoASmallerTable) {
  const Bounded from(Options(1000, "lru")), to(Options(100, "lru"));
  Set newest;
  for (Key key = 0; key < 1000; ++key) {
    ASSERT_OK(from.Upsert({key * 7919 % 1000}, 1 + key));
    if (key >= 900) newest.insert(key * 7919 % 1000);
  }
  ASSERT_OK(to.call->InsertRows(from.call->Export()));
  EXPECT_EQ(to.keys(), newest);
  const Bounded refuses(Options(100, "", OnFull::kDecline));
  EXPECT_EQ(refuses.call->InsertRows(Bounded(Options(1000)).call->Export()).code(), Code::kOk);
  const Bounded many(Options(1000));
  Keys keys(101);
  for (size_t i = 0; i < keys.size(); ++i) keys[i] = static_cast<Key>(i);
  ASSERT_OK(many.Upsert(keys));
  EXPECT_EQ(refuses.call->InsertRows(many.call->Export()).code(), Code::kResourceExhausted);
  EXPECT_EQ(refuses.table->size(), 0);
}

TEST(EvictionTest, EvictedKeysAreChanges) {
  const Bounded bounded(Options(3, "lru"));
  ASSERT_OK(bounded.Upsert({1, 2, 3}, 1));
  ASSERT_OK(bounded.call->BeginEpoch(1));
  ASSERT_OK(bounded.Upsert({2, 3}, 2));
  ASSERT_OK(bounded.call->BeginEpoch(2));
  ASSERT_OK(bounded.Upsert({4}, 3));
  Keys changed;
  ASSERT_OK(bounded.call->ChangedKeys(1, &changed));
  EXPECT_EQ(Set(changed.begin(), changed.end()), Set({1, 4}));
}

TEST(EvictionTest, MovesOfRowsKeepTheLimitAndTheOrder) {
  Bounded bounded(Options(3, "lru"));
  ASSERT_OK(bounded.Upsert({1}, 1));
  ASSERT_OK(bounded.Upsert({2}, 2));
  ASSERT_OK(bounded.Upsert({3}, 3));
  TableSchema schema = bounded.table->schema();
  schema.rule = UsualRule("adam");
  OneThread context;
  std::unique_ptr<RowMove> move;
  ASSERT_OK(bounded.table->PrepareMove(context, schema, &move));
  std::unique_ptr<Table> moved = move->Run(context);
  bounded.table = std::move(moved);
  bounded.call = std::make_unique<Caller>(bounded.table.get(), HostTestMemory());
  EXPECT_EQ(bounded.table->room(), 0);
  EXPECT_EQ(bounded.table->counters().inserted, 3);
  ASSERT_OK(bounded.Upsert({4}, 4));
  EXPECT_EQ(bounded.keys(), Set({2, 3, 4}));
}

TEST(BoundedTableTest, CountersCountWhatHappens) {
  const Bounded bounded(Options(3, "lru"));
  ASSERT_OK(bounded.Upsert({1, 2, 2}, 1));
  Floats values;
  ASSERT_OK(bounded.call->Find({1, 1, 9, 2}, &values));
  ASSERT_OK(bounded.Upsert({3, 4}, 2));
  ASSERT_OK(bounded.call->Erase({4, 5}));
  const TableCounters counters = bounded.table->counters();
  EXPECT_EQ(counters.found, 3);
  EXPECT_EQ(counters.missing, 1);
  EXPECT_EQ(counters.inserted, 4);
  EXPECT_EQ(counters.evicted, 1);
  EXPECT_EQ(counters.erased, 1);
  EXPECT_EQ(counters.expired, 0);
  EXPECT_EQ(counters.declined, 0);
  ASSERT_OK(bounded.call->Clear());
  EXPECT_EQ(bounded.table->counters().erased, 3);
}

}  // namespace
}  // namespace dynemb

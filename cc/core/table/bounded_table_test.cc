// Host tables with limits: what is so of these alone; bounded_suite.cc has the rest.
#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "cc/core/base/hash.h"
#include "cc/core/table/evicted_rows.h"
#include "cc/core/table/evictor.h"
#include "cc/core/table/host_table.h"
#include "cc/core/testing/bounded.h"
#include "gtest/gtest.h"

namespace dynemb {

Status MakeBoundedTable(const TableSchema& schema, const TableOptions& options,
                        std::unique_ptr<Table>* table) {
  return MakeHostTable(schema, options, table);
}

namespace {

TEST(BoundedTableTest, ShardsThatDoNotEvictAreFullTogether) {
  std::vector<std::unique_ptr<Bounded>> shards;
  for (const TableOptions& options : OptionsOfShards(Options(5), 2)) {
    shards.push_back(std::make_unique<Bounded>(options));
  }
  ASSERT_OK(shards[0]->Upsert({1, 2, 3, 4}));
  EXPECT_EQ(shards[1]->table->room(), 1);
  EXPECT_EQ(shards[1]->Upsert({5, 6}).code(), Code::kResourceExhausted);
  ASSERT_OK(shards[1]->Upsert({5}));
  EXPECT_EQ(shards[0]->Upsert({6}).code(), Code::kResourceExhausted);
  shards[1].reset();
  EXPECT_EQ(shards[0]->table->room(), 1);
  const std::vector<TableOptions> evict = OptionsOfShards(Options(5, "lru"), 2);
  EXPECT_EQ(evict[0].max_rows, 3);
  EXPECT_EQ(evict[1].max_rows, 2);
}

TEST(BoundedTableTest, WhatCannotBeIsRefused) {
  std::unique_ptr<Table> table;
  TableOptions kept = Options(5);
  kept.keep_evicted = 1;
  EXPECT_EQ(MakeHostTable(Schema(kept), kept, &table).code(), Code::kInvalidArgument);
  EXPECT_EQ(MakeHostTable(TableSchema(), Options(5, "lru"), &table).code(), Code::kInvalidArgument);
  TableOptions unbounded = Options(-1, "lfu");
  EXPECT_EQ(MakeHostTable(Schema(unbounded), unbounded, &table).code(), Code::kInvalidArgument);
  unbounded = Options(-1, "lru ttl 5");
  EXPECT_TRUE(MakeHostTable(Schema(unbounded), unbounded, &table).ok());
  EvictionPolicy policy;
  for (const char* bad : {"fifo",
                          "lru lru",
                          "lfu half_life",
                          "lfu half_life 0",
                          "lru half_life 5",
                          "score 5",
                          "ttl",
                          "ttl -1",
                          "ttl 1x",
                          "lru ttl 5 6",
                          " lru",
                          "lru  ttl 5",
                          "lfu epoch",
                          "lfu epoch 0",
                          "lfu half_life 5 epoch 5",
                          "lru epoch 5",
                          "lfu half_life 5 lru",
                          "lfu epoch 5 lru",
                          "lfu lru lru",
                          "steps lru",
                          "lru ttl steps",
                          "lru ttl 5 steps steps"}) {
    EXPECT_EQ(EvictionPolicy::Parse(bad, &policy).code(), Code::kInvalidArgument) << bad;
  }
}

TEST(EvictionTest, TiesLeaveTheIndexEven) {
  constexpr int64_t kRows = 20'000, kBatch = 5'000;
  const Bounded bounded(Options(kRows, "lfu"));
  for (Key first = 0; first < 20 * kRows; first += kBatch) {
    Keys keys;
    for (Key key = first; key < first + kBatch; ++key) keys.push_back(key);
    ASSERT_OK(bounded.Upsert(keys));
  }
  // Of each segment, which the first 6 bits of a hash say, by the 3 bits after them: an eighth
  // each.
  std::vector<int64_t> counts(8);
  for (const Key key : bounded.keys()) ++counts[Mix64(static_cast<uint64_t>(key)) << 6 >> 61];
  for (const int64_t count : counts) {
    EXPECT_NEAR(static_cast<double>(count), kRows / 8.0, 6 * std::sqrt(kRows / 8.0));
  }
}

// Of the rows that leave in one call the same ones are kept, however the table came to be as it is.
TEST(EvictionTest, WhichRowsAreKeptDoesNotDependOnTheOrderOfInsertions) {
  constexpr int64_t kRows = 3000;
  for (const char* policy : {"lru", "lfu", "norm", "lfu lru"}) {
    TableOptions options = Options(kRows, policy);
    options.keep_evicted = 100;
    Keys kept[2];
    for (const bool backward : {false, true}) {
      const Bounded bounded(OptionsOfShards(options, 1)[0]);
      for (Key i = 0; i < kRows; ++i) ASSERT_OK(bounded.Upsert({backward ? kRows - 1 - i : i}, 1));
      // The second eviction begins where the first ended.
      for (const Key first : {10'000, 20'000}) {
        Keys keys(400);
        std::iota(keys.begin(), keys.end(), first);
        ASSERT_OK(bounded.Upsert(keys, 2));
        int64_t dropped;
        const KeptRows rows = bounded.table->evicted()->Take(&dropped);
        EXPECT_EQ(rows.size(), 100);
        kept[backward].insert(kept[backward].end(), rows.keys.begin(), rows.keys.end());
      }
    }
    EXPECT_EQ(kept[0], kept[1]) << policy;
  }
}

// What was taken and could not be used is there again, before what has come since.
TEST(EvictedRowsTest, RowsArePutBack) {
  EvictedRows evicted(5);
  const auto add = [&](Key first, Key end) {
    KeptRows rows;
    for (Key key = first; key < end; ++key) {
      rows.Add(key, reinterpret_cast<const char*>(&key), sizeof key);
    }
    evicted.Add(std::move(rows));
  };
  add(0, 4);
  add(4, 7);
  int64_t dropped;
  KeptRows rows = evicted.Take(&dropped);
  EXPECT_EQ(rows.keys, Keys({2, 3, 4, 5, 6}));
  EXPECT_EQ(dropped, 2);
  evicted.PutBack(std::move(rows), dropped);
  add(7, 9);  // 2 and 3 go
  rows = evicted.Take(&dropped);
  EXPECT_EQ(rows.keys, Keys({4, 5, 6, 7, 8}));
  EXPECT_EQ(Numbers<Key>(std::string(rows.values.begin(), rows.values.end())), rows.keys);
  EXPECT_EQ(dropped, 4);
  for (Key key = 0; key < 7; ++key) add(key, key + 1);
  add(7, 10);
  evicted.PutBack(std::move(rows), 0);  // all of which are older than the five that are kept
  EXPECT_EQ(evicted.Take(&dropped).keys, Keys({5, 6, 7, 8, 9}));
  EXPECT_EQ(dropped, 10);
}

// Churn at the limit takes no more memory than filling it did.
TEST(EvictionTest, MemoryStaysFlat) {
  for (const char* policy : {"lru", "lfu"}) {
    const Bounded bounded(Options(50'000, policy), "adam");
    Key next = 0;
    const auto churn = [&](int64_t batches) {
      for (int64_t i = 0; i < batches; ++i) {
        Keys keys(1000);
        for (Key& key : keys) key = next++;
        EXPECT_TRUE(bounded.Upsert(keys, next).ok());
      }
    };
    churn(200);
    const int64_t bytes = bounded.table->memory_bytes();
    churn(1000);
    EXPECT_EQ(bounded.table->size(), 50'000);
    EXPECT_LE(bounded.table->memory_bytes(), bytes + bytes / 20) << policy;
  }
}

TEST(DecayedCountTest, IsTheLogarithmOfTheSum) {
  std::mt19937_64 random(3);
  for (const int64_t half_life : {int64_t{1}, int64_t{7}, int64_t{1000}}) {
    int64_t score = kNeverWritten, now = 0;
    double sum = 0, from = 0;  // of 2^((t - from) / half_life)
    for (int i = 0; i < 2000; ++i) {
      now += static_cast<int64_t>(random() % (1 + static_cast<uint64_t>(half_life) / 5));
      const double at = static_cast<double>(now) / static_cast<double>(half_life);
      sum = sum * std::exp2(from - at) + 1;
      from = at;
      score = AddDecayedWrite(score, DecayedWrite(now, half_life));
      // Each write drops less than one unit of 2^-24, and so does the division; what it adds is too
      // large by up to 2e-5 of itself, and all that has been added is less than log2(i + 1) + at.
      const double bound = 2.0 * (i + 1) / (1 << 24) + 2e-5 * (std::log2(i + 1.0) + at);
      EXPECT_NEAR(static_cast<double>(score) / (1 << 24), std::log2(sum) + at, bound);
    }
  }
  // The ends of what a file may say.
  for (const int64_t score : {INT64_MAX, INT64_MIN + 1, int64_t{0}}) {
    for (const int64_t now : {INT64_MAX, INT64_MIN, int64_t{0}}) {
      EXPECT_GE(AddDecayedWrite(score, DecayedWrite(now, 1)), std::max<int64_t>(score, 0));
    }
  }
}

TEST(EpochCountTest, HasTheEpochAboveTheCount) {
  int64_t score = kNeverWritten;
  for (const int64_t now : {1, 9, 10, 11, 35}) score = AddEpochWrite(score, EpochWrite(now, 10));
  EXPECT_EQ(score, int64_t{3} << 32 | 5);
  EXPECT_EQ(AddEpochWrite(INT64_MAX, EpochWrite(0, 1)), 0xffffffff);  // does not overflow
  EXPECT_EQ(AddEpochWrite(0, EpochWrite(INT64_MAX, 1)), int64_t{INT32_MAX} << 32 | 1);
  EXPECT_EQ(AddEpochWrite(-1, EpochWrite(INT64_MIN, 1)), 0xffffffff);
}

TEST(CountThenTimeTest, HasTheCountAboveTheTime) {
  int64_t score = kNeverWritten;
  for (const int64_t now : {1, 9, 35}) score = AddCountedWrite(score, CountedWrite(now));
  EXPECT_EQ(score, int64_t{3} << 40 | 35);
  constexpr int64_t kMicrosecond = EvictionPolicy::kFirstMicrosecond;
  EXPECT_LT(CountedWrite(1'000'000'000), CountedWrite(kMicrosecond));
  EXPECT_LT(CountedWrite(kMicrosecond), CountedWrite(kMicrosecond + 20'000));
  // The ends of what a file may say.
  constexpr int64_t kMostTime = (int64_t{1} << 40) - 1;
  EXPECT_EQ(AddCountedWrite(INT64_MAX, CountedWrite(INT64_MAX)), INT64_MAX);
  EXPECT_EQ(AddCountedWrite(-1, CountedWrite(INT64_MIN)), kMostTime + 1);
}

TEST(MaxBytesTest, KeysOfOneSegmentMakeTheTableFullEarlier) {
  const Bounded bounded(WithinBytes(1 << 19));
  Status status;
  uint64_t hash = 0;
  while (status.ok() && hash < 1 << 20) {
    status = bounded.Upsert({static_cast<Key>(Unmix64(hash++))});
    ASSERT_LE(bounded.table->memory_bytes(), 1 << 19);
  }
  EXPECT_EQ(status.code(), Code::kResourceExhausted);
  EXPECT_EQ(bounded.table->size(), static_cast<int64_t>(hash) - 1);
}

}  // namespace
}  // namespace dynemb

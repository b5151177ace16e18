// What every table does that is bounded by max_bytes. A program that links this defines
// MakeBoundedTable.
#include <atomic>
#include <cstdio>
#include <memory>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "cc/core/testing/bounded.h"
#include "cc/core/testing/harness.h"
#include "gtest/gtest.h"

namespace dynemb {
namespace {

TEST(MaxBytesTest, RowsAndIndexStayWithinAndUseMostOfIt) {
  for (const auto& [bytes, least] :
       {std::pair<int64_t, double>{1 << 18, 0.3}, {1 << 20, 0.5}, {1 << 22, 0.6}, {1 << 24, 0.6}}) {
    const Bounded bounded(WithinBytes(bytes, "lru"), "adam");
    const RowLayout layout(bounded.table->schema());
    const int64_t most = bounded.table->max_rows();
    const double used = static_cast<double>(most * (layout.row_bytes + 8));
    EXPECT_GT(used / static_cast<double>(bytes), least) << bytes;
    std::mt19937_64 random(3);
    for (int64_t done = 0, step = 0; done < 2 * most; ++step) {
      Keys keys(1 + random() % 3000);
      for (Key& key : keys) key = static_cast<Key>(random());
      ASSERT_OK(bounded.Upsert(keys, step));
      ASSERT_LE(bounded.table->memory_bytes(), bytes);
      ASSERT_LE(bounded.table->size(), most);
      done += static_cast<int64_t>(keys.size());
    }
    EXPECT_EQ(bounded.table->size(), most);
  }
}

TEST(MaxBytesTest, TooFewBytesForARow) {
  std::unique_ptr<Table> table;
  const TableOptions options = WithinBytes(1000);
  const Status made = MakeBoundedTable(Schema(options), options, &table);
  EXPECT_EQ(made.code(), Code::kInvalidArgument);
  int64_t least = 0;
  ASSERT_EQ(std::sscanf(made.message().c_str(),
                        "max_bytes: got 1000 for each shard, want at least %ld", &least),
            1)
      << made.message();
  EXPECT_FALSE(MakeBoundedTable(Schema(options), WithinBytes(least - 1), &table).ok());
  ASSERT_OK(MakeBoundedTable(Schema(options), WithinBytes(least), &table));
  EXPECT_GE(table->max_rows(), 1);
}

TEST(MaxBytesTest, AFullTableRefusesOrDeclines) {
  for (const OnFull on_full : {OnFull::kError, OnFull::kDecline}) {
    const Bounded bounded(WithinBytes(1 << 19, "", on_full));
    const int64_t most = bounded.table->max_rows();
    Keys keys;
    for (Key key = 0; key < most; ++key) keys.push_back(key);
    ASSERT_OK(bounded.Upsert(keys));
    EXPECT_EQ(bounded.table->room(), 0);
    Outcomes outcomes;
    const Status full = bounded.Upsert({1, -1}, 0, &outcomes);
    if (on_full == OnFull::kError) {
      EXPECT_EQ(full.code(), Code::kResourceExhausted);
      EXPECT_NE(full.message().find("want a larger max_bytes"), std::string::npos);
    } else {
      ASSERT_OK(full);
      EXPECT_EQ(outcomes, (Outcomes{kFound, kDeclined}));
    }
    EXPECT_EQ(bounded.table->size(), most);
  }
}

TEST(MaxBytesTest, SlotsTakeTheirShare) {
  constexpr int64_t kBytes = 1 << 20;
  TableOptions options = WithinBytes(kBytes);
  const TableHarness harness = {"",
                                [&](const TableSchema& schema, std::unique_ptr<Table>* table) {
                                  return MakeBoundedTable(schema, options, table);
                                },
                                HostTestMemory()};
  Tested tested(harness, Schema(options));
  const int64_t plain = tested.table->max_rows();
  ASSERT_OK(tested.SetOptimizer(UsualRule("adam")));  // of an empty table
  const int64_t trained = tested.table->max_rows();
  EXPECT_LT(trained, plain);
  Keys keys;
  for (Key key = 0; key < trained; ++key) keys.push_back(key);
  ASSERT_OK(tested.call.Upsert(keys, Floats(2 * keys.size(), 1)));
  EXPECT_LE(tested.table->memory_bytes(), kBytes);
  EXPECT_EQ(tested.call.Upsert({-1}, {1, 1}).code(), Code::kResourceExhausted);

  // A table that has rows: those that will fit.
  Tested full(harness, Schema(options));
  ASSERT_OK(full.call.Upsert(keys, Floats(2 * keys.size(), 1)));
  ASSERT_OK(full.call.Upsert({-1, -2, -3}, Floats(6, 1)));
  const TableContent before = full.call.Export();
  const Status refused = full.SetOptimizer(UsualRule("adam"));
  EXPECT_EQ(refused.code(), Code::kResourceExhausted);
  EXPECT_NE(refused.message().find("give a larger max_bytes"), std::string::npos);
  EXPECT_EQ(Difference(before, full.call.Export()), "");
  // Memory of rows that were erased stays with their segments.
  ASSERT_OK(full.call.Erase(Keys(keys.begin(), keys.begin() + trained * 3 / 4)));
  EXPECT_EQ(full.SetOptimizer(UsualRule("adam")).code(), Code::kResourceExhausted);
  ASSERT_OK(full.call.Clear());
  ASSERT_OK(full.call.Upsert(Keys(keys.begin(), keys.begin() + 1000), Floats(2000, 1)));
  ASSERT_OK(full.SetOptimizer(UsualRule("adam")));
  EXPECT_EQ(full.table->room(), full.table->max_rows() - full.table->size());
  EXPECT_LE(full.table->memory_bytes(), kBytes);
  for (Key key = 0; full.table->room() > 0; ++key) ASSERT_OK(full.call.Upsert({key}, {1, 1}));
  EXPECT_LE(full.table->memory_bytes(), kBytes);
}

TEST(MaxBytesTest, ManyThreadsNeverExceedTheBytes) {
  constexpr int64_t kBytes = 1 << 19;
  for (const char* policy : {"", "lru"}) {
    const Bounded bounded(WithinBytes(kBytes, policy, OnFull::kDecline), "sgd");
    std::atomic<bool> stop{false};
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&, t] {
        std::mt19937_64 random(static_cast<uint64_t>(t));
        for (int64_t now = 1; now < 60; ++now) {
          Keys keys(500);
          for (Key& key : keys) key = static_cast<Key>(random() % 50'000);
          const Floats gradients(2 * keys.size(), 1);
          EXPECT_OK(t % 2 == 0 ? bounded.call->Apply(keys, gradients, UsualRule("sgd"), PlainSgd(),
                                                     {now, ScoresOf(keys, now)})
                               : bounded.Upsert(keys, now));
          if (now % 7 == 0) EXPECT_OK(bounded.call->Erase(keys));
        }
      });
    }
    std::thread watch([&] {
      while (!stop) {
        EXPECT_LE(bounded.table->memory_bytes(), kBytes);
        EXPECT_GE(bounded.table->room(), 0);
      }
    });
    for (std::thread& thread : threads) thread.join();
    stop = true;
    watch.join();
    EXPECT_GT(bounded.table->size(), bounded.table->max_rows() / 2);
    EXPECT_LE(bounded.table->size(), bounded.table->max_rows());
  }
}

TEST(MaxBytesTest, SharesOfShards) {
  TableOptions options = WithinBytes(1'000'001);
  options.max_rows = 101;
  const std::vector<TableOptions> shards = OptionsOfShards(options, 2);
  EXPECT_EQ(shards[0].max_bytes, 500'001);
  EXPECT_EQ(shards[1].max_bytes, 500'000);
  EXPECT_EQ(shards[0].max_rows, 51);
  std::unique_ptr<Table> table;
  ASSERT_OK(MakeBoundedTable(Schema(options), shards[1], &table));
  EXPECT_EQ(table->max_rows(), 50);
}

}  // namespace
}  // namespace dynemb

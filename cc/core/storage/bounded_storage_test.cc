// TieredTable with limits: bounded_suite.cc with a fifth of the rows in memory, and what is so of
// tiers alone.
#include <algorithm>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "cc/core/storage/testing/limited.h"
#include "cc/core/storage/testing/opened.h"
#include "cc/core/storage/testing/tiered_harness.h"
#include "cc/core/storage/testing/twins.h"
#include "cc/core/table/evicted_rows.h"
#include "cc/core/testing/bounded.h"
#include "gtest/gtest.h"

namespace dynemb {

Status MakeBoundedTable(const TableSchema& schema, const TableOptions& options,
                        std::unique_ptr<Table>* table) {
  return MakeTieredTableOn(std::make_shared<MemoryFileSystem>(), schema,
                           std::max<int64_t>(3, options.max_rows / 5), table, options);
}

namespace {

TableOptions KeepingOptions(int64_t max_rows, const std::string& policy, OnFull on_full) {
  TableOptions options = Options(max_rows, policy, on_full);
  if (!policy.empty()) options.evicted = std::make_shared<EvictedRows>(1'000'000);
  return options;
}

class LimitsOfTiersTest : public ::testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Policies, LimitsOfTiersTest,
                         ::testing::Values("", "lru", "lfu", "lfu half_life 10", "lfu epoch 10",
                                           "lfu lru", "norm", "score", "score sum"));

// Which rows a small table has, what each call says, what leaves, what is counted and what has
// changed: as in memory, however few rows are there, and after the folder was opened again.
TEST_P(LimitsOfTiersTest, AreThoseOfATableInMemory) {
  for (const OnFull on_full : {OnFull::kError, OnFull::kDecline}) {
    for (const int64_t above : {1, 20, 400}) {
      SCOPED_TRACE(StrCat(GetParam(), ", ", above, " rows above"));
      const TableOptions options = KeepingOptions(150, GetParam(), on_full);
      TableOptions of_host = options;
      if (options.evicted) of_host.evicted = std::make_shared<EvictedRows>(1'000'000);
      MemoryFileSystem files;
      int64_t step = 0;
      for (const char* rule : {"", "adam"}) {
        Opened opened;
        ASSERT_OK(
            Open(&files, TwinSchema(3, rule, options), above, &opened, 1, {{"/tiers"}}, options));
        DiskFolder* const disk = opened.storage.disk.get();
        Twins twins(std::move(opened.shards[0]), static_cast<uint64_t>(above), of_host, step);
        for (Table* table : {static_cast<Table*>(twins.tiered()), twins.host()}) {
          ASSERT_OK(Caller(table, HostTestMemory()).BeginEpoch(1));
        }
        for (int i = 0; i < 300; ++i) ASSERT_OK(twins.Call(500, 60));
        twins.Compare();
        Keys changed[2];
        ASSERT_OK(Caller(twins.tiered(), HostTestMemory()).ChangedKeys(0, &changed[0]));
        ASSERT_OK(Caller(twins.host(), HostTestMemory()).ChangedKeys(0, &changed[1]));
        EXPECT_EQ(Set(changed[0].begin(), changed[0].end()),
                  Set(changed[1].begin(), changed[1].end()));
        EXPECT_LE(twins.tiered()->size(), 150);
        EXPECT_GT(twins.tiered()->size(), 100);
        EXPECT_EQ(twins.tiered()->room(), 150 - twins.tiered()->size());
        if (options.evicted) {
          EXPECT_TRUE(TakeFrom(*twins.tiered()) == TakeFrom(*twins.host()));
        }
        step = twins.step();
        ASSERT_OK(Flush({twins.tiered()}, nullptr, disk, step));
      }
    }
  }
}

TEST_P(LimitsOfTiersTest, AreCountedAsInMemory) {
  const TableOptions options = Options(150, GetParam(), OnFull::kDecline);
  std::unique_ptr<Table> table;
  ASSERT_OK(MakeTieredTableOn(std::make_shared<MemoryFileSystem>(), TwinSchema(3, "adam", options),
                              20, &table, options));
  Twins twins(std::move(table), 9, options);
  for (int i = 0; i < 500; ++i) ASSERT_OK(twins.Call(500, 60));
  twins.CompareCounters();
}

// An expired row is missing wherever it is, from the same moment on; and all of them leave by and
// by. Through flushes, another optimizer, and the folder that is opened again.
class ExpiryOfTiersTest : public ::testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Policies, ExpiryOfTiersTest,
                         ::testing::Values("ttl 12", "lru ttl 12", "lfu ttl 12", "norm ttl 12"));

TEST_P(ExpiryOfTiersTest, IsThatOfATableInMemory) {
  for (const int64_t above : {1, 20, 400}) {
    SCOPED_TRACE(StrCat(GetParam(), ", ", above, " rows above"));
    const int64_t max_rows = GetParam() == "ttl 12" ? -1 : 150;
    const TableOptions options = KeepingOptions(max_rows, GetParam(), OnFull::kError);
    TableOptions of_host = options;
    of_host.evicted = std::make_shared<EvictedRows>(1'000'000);
    MemoryFileSystem files;
    int64_t step = 0;
    for (int round = 0; round < 3; ++round) {
      Opened opened;
      ASSERT_OK(Open(&files, TwinSchema(3, "", options), above, &opened, 1, {{"/tiers"}}, options));
      DiskFolder* const disk = opened.storage.disk.get();
      Twins twins(std::move(opened.shards[0]), static_cast<uint64_t>(above + round), of_host, step);
      for (int i = 0; i < 300; ++i) {
        ASSERT_OK(twins.Call(500, 60));
        const TierStats stats = twins.tiered()->tier_stats();
        ASSERT_GE(stats.rows_below, 0);
        ASSERT_LE(stats.rows_above, above);
        if (i % 60 != 20) continue;
        ASSERT_OK(Flush({twins.tiered()}, nullptr, disk, step));
        EXPECT_EQ(Difference(ExportAll(*twins.host(), HostTestMemory(), 1000), twins.Content()),
                  "");
        if (i != 140 || round > 0) continue;
        TableSchema schema = twins.host()->schema();
        schema.rule = UsualRule("adam");
        twins.MoveTo(schema);
      }
      if (max_rows > 0) {
        EXPECT_LE(twins.tiered()->size(), max_rows);
      }
      // Until only one row has not expired, and has seen all others off.
      for (Table* table : {static_cast<Table*>(twins.tiered()), twins.host()}) {
        const Caller call(table, HostTestMemory());
        for (int i = 0; i < 50; ++i) {
          ASSERT_OK(call.Upsert({7}, Floats(3, 1), {twins.step() + 20 + i % 2}));
        }
        EXPECT_EQ(table->size(), 1);
      }
      twins.Compare();
      EXPECT_TRUE(TakeFrom(*twins.tiered()) == TakeFrom(*twins.host()));
      const TableCounters counters = twins.tiered()->counters();
      if (round == 0) {
        EXPECT_EQ(counters.inserted - counters.erased - counters.evicted - counters.expired, 1);
        EXPECT_GT(counters.expired, 0);
      }
      step = twins.step() + 30;
      ASSERT_OK(Flush({twins.tiered()}, nullptr, disk, step));
    }
  }
}

// Keys without end: the files and the memory end.
TEST(BoundedStorageTest, TheDiskHasAnEnd) {
  for (const std::string policy : {"lru", "lfu ttl 30", "ttl 30"}) {
    const int64_t max_rows = policy == "ttl 30" ? -1 : 20'000;
    const TableOptions options = Options(max_rows, policy);
    MemoryFileSystem files;
    Opened opened;
    const TableSchema schema = TwinSchema(4, "adam", options);
    ASSERT_OK(Open(&files, schema, 1000, &opened, 1, {{"/tiers"}}, options));
    const Caller call(opened.tiered(), HostTestMemory());
    const int64_t record = 16 + RowLayout(schema).row_bytes;
    int64_t memory = 0;
    for (Key batch = 0; batch < 250; ++batch) {
      Keys keys;
      for (Key key = 0; key < 1000; ++key) keys.push_back(1000 * batch + key);
      ASSERT_OK(call.Upsert(keys, Floats(4000, 1), {batch}));
      // Of rows that expire, those of 31 batches stay, and about as many that nobody has looked at.
      ASSERT_LE(opened.tiered()->size(), max_rows > 0 ? max_rows : 80'000) << policy << batch;
      const TierStats stats = opened.tiered()->tier_stats();
      ASSERT_LE(stats.bytes_below, (stats.rows_below + stats.rows_above) * record * 3 / 2 + 50'000);
      if (batch == 125) memory = opened.tiered()->memory_bytes();
      if (batch > 125) {
        ASSERT_LE(opened.tiered()->memory_bytes(), memory * 5 / 4) << policy;
      }
    }
    EXPECT_GT(opened.tiered()->tier_stats().rows_below, 15'000) << policy;
  }
}

// A folder that is opened again with a lower limit: as many rows leave as are too many, or it is
// refused, and is as it was.
TEST(BoundedStorageTest, MoreRowsThanALowerLimit) {
  for (const std::string policy : {"", "ttl 1000", "lru", "lru ttl 1000"}) {
    SCOPED_TRACE(policy);
    MemoryFileSystem files;
    const auto open = [&](int64_t max_rows, int64_t keep_evicted, Opened* opened) {
      TableOptions options = Options(max_rows, policy);
      options.keep_evicted = keep_evicted;
      options.have_shares = true;
      options = OptionsOfShards(options, 1)[0];
      return Open(&files, TwinSchema(2, "", options), 50, opened, 1, {{"/tiers"}}, options);
    };
    Opened opened;
    ASSERT_OK(open(500, 0, &opened));
    for (Key key = 0; key < 500; ++key) {
      ASSERT_OK(Caller(opened.tiered(), HostTestMemory()).Upsert({key}, {1, 1}, {key}));
    }
    ASSERT_OK(opened.Flush(1));
    const TableContent flushed = ContentOf(opened);
    if (EvictionPolicy named; EvictionPolicy::Parse(policy, &named).ok() && named.evicts()) {
      ASSERT_OK(open(300, 500, &opened));
      TableContent want = flushed;
      for (Key key = 0; key < 200; ++key) want.erase(key);
      EXPECT_EQ(Difference(want, ContentOf(opened)), "");
      EXPECT_EQ(opened.tiered()->size(), 300);
      EXPECT_EQ(opened.tiered()->counters().evicted, 200);
      int64_t dropped;
      EXPECT_EQ(opened.tiered()->evicted()->Take(&dropped).size(), 200);
      continue;
    }
    const Status status = open(300, 0, &opened);
    EXPECT_EQ(status.code(), Code::kFailedPrecondition);
    EXPECT_EQ(status.message(),
              "/tiers: the last flush has 500 rows, got a table of at most 300; want max_rows, or "
              "Disk(max_bytes), for as many, or an eviction policy, by which the others leave");
    ASSERT_OK(open(500, 0, &opened));
    EXPECT_EQ(Difference(flushed, ContentOf(opened)), "");
  }
}

// Shards of which one has more than its share, where all have no more than they may together.
TEST(BoundedStorageTest, RowsOfALimitOnOtherShards) {
  MemoryFileSystem files;
  const TableOptions all = Options(300, ""), shared = Options(100, "");
  Opened opened;
  ASSERT_OK(Open(&files, TwinSchema(2, "", all), 50, &opened, 1, {{"/tiers"}}, all));
  Keys keys(300);
  for (size_t i = 0; i < keys.size(); ++i) keys[i] = static_cast<Key>(3 * i);
  ASSERT_OK(Caller(opened.tiered(), HostTestMemory()).Upsert(keys, Floats(600, 1), {1}));
  ASSERT_OK(opened.Flush(1));
  ASSERT_OK(Open(&files, TwinSchema(2, "", all), 50, &opened, 3, {{"/tiers"}}, shared));
  EXPECT_EQ(opened.tiered()->size(), 300);
  const Caller call(opened.tiered(), HostTestMemory());
  ASSERT_OK(call.Upsert(keys, Floats(600, 2), {2}));
  EXPECT_EQ(call.Upsert({9, 900}, Floats(4, 3), {3}).code(), Code::kResourceExhausted);
  ASSERT_OK(Caller(opened.tiered(1), HostTestMemory()).Upsert({1}, {1, 1}, {3}));
}

// A row that had expired when its table was flushed does not come back, though the folder knows no
// later time than that of its rows.
TEST(BoundedStorageTest, ExpiredRowsAreNotFlushed) {
  for (const int64_t above : {10, 1000}) {
    const TableOptions options = Options(-1, "ttl 50");
    MemoryFileSystem files;
    Opened opened;
    const auto open = [&] {
      return Open(&files, TwinSchema(1, "", options), above, &opened, 1, {{"/tiers"}}, options);
    };
    ASSERT_OK(open());
    {
      const Caller call(opened.tiered(), HostTestMemory());
      for (Key first = 0; first < 20'000; first += 1000) {
        Keys keys;
        for (Key key = first; key < first + 1000; ++key) keys.push_back(key);
        ASSERT_OK(call.Upsert(keys, Floats(1000, 1), {1}));
      }
      ASSERT_OK(call.Upsert({-1}, {1}, {100}));
      ASSERT_OK(call.Erase({-1}));
      ASSERT_GT(opened.tiered()->size(), 100) << "rows that nobody has looked at";
      EXPECT_TRUE(call.Export().empty());
      ASSERT_OK(opened.Flush(1));
    }
    ASSERT_OK(open());
    EXPECT_TRUE(ContentOf(opened).empty());
  }
}

// To `restrict` an expired row is none, wherever it is.
TEST(BoundedStorageTest, RestrictsRowsThatHaveNotExpired) {
  const TableOptions options = Options(-1, "ttl 50");
  std::unique_ptr<Table> table;
  ASSERT_OK(MakeTieredTableOn(std::make_shared<MemoryFileSystem>(), TwinSchema(1, "", options), 20,
                              &table, options));
  const Caller call(table.get(), HostTestMemory());
  for (Key key = 0; key < 500; ++key) ASSERT_OK(call.Upsert({key}, {1}, {key < 400 ? 1 : 60}));
  Keys twice;
  for (Key key = 400; key < 430; ++key) twice.push_back(key);
  ASSERT_OK(call.Upsert(twice, Floats(30, 1), {60}));  // of which TwinSchema counts the writes
  int64_t erased;
  ASSERT_OK(call.EraseBelow(MetaField::kCount, {2, 0}, &erased));
  EXPECT_EQ(erased, 70);
  EXPECT_EQ(table->size(), 30);
  const TableCounters counters = table->counters();
  EXPECT_EQ(counters.expired, 400);
  EXPECT_EQ(counters.erased, 70);
}

TEST(BoundedStorageTest, GoesOnAfterFaults) {
  for (const std::string policy : {"lru", "lfu ttl 12"}) {
    for (int64_t nth = 0; nth < 20; ++nth) {
      SCOPED_TRACE(StrCat(policy, ", operation ", nth));
      const TableOptions options = KeepingOptions(150, policy, OnFull::kError);
      const auto files = std::make_shared<MemoryFileSystem>();
      std::unique_ptr<Table> table;
      ASSERT_OK(MakeTieredTableOn(files, TwinSchema(2, "", options), 30, &table, options));
      WriteWhileFilesFail(table.get(), 150, HostTestMemory(), files.get(), nth);
    }
  }
}

}  // namespace
}  // namespace dynemb

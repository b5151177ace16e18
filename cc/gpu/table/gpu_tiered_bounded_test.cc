// GpuTieredTable with limits: the suites of bounded tables with a fifth of the rows above, and what
// is so of these tiers alone.
#include <algorithm>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "cc/core/storage/testing/limited.h"
#include "cc/core/storage/testing/tiered_harness.h"
#include "cc/core/storage/testing/twins.h"
#include "cc/core/table/evicted_rows.h"
#include "cc/core/testing/bounded.h"
#include "cc/gpu/table/gpu_tiered_table.h"
#include "cc/gpu/table/host_access.h"
#include "cc/gpu/table/testing/gpu_harness.h"
#include "cc/gpu/table/testing/gpu_table_fixture.h"
#include "gtest/gtest.h"

namespace dynemb {
namespace {

// With so many rows above, and if there is to be a disk, so many in host memory.
Status MakeTiered(const TableSchema& schema, TableOptions options, int64_t rows_above,
                  std::unique_ptr<GpuTieredTable>* table, int64_t rows_in_memory = -1,
                  std::shared_ptr<MemoryFileSystem> files = std::make_shared<MemoryFileSystem>()) {
  std::unique_ptr<Table> below;
  const TableOptions of_below = OptionsBelow(&options);
  DYNEMB_RETURN_IF_ERROR(rows_in_memory < 0 ? MakeHostTable(schema, of_below, &below)
                                            : MakeTieredTableOn(std::move(files), schema,
                                                                rows_in_memory, &below, of_below));
  GpuBudget budget;
  budget.max_rows = rows_above;
  return MakeGpuTieredTable(schema, options, budget, DeviceMemoryForTests(), std::move(below),
                            table);
}

}  // namespace

Status MakeBoundedTable(const TableSchema& schema, const TableOptions& options,
                        std::unique_ptr<Table>* table) {
  std::unique_ptr<GpuTieredTable> made;
  const int64_t above = std::max<int64_t>(3, options.max_rows / 5);
  DYNEMB_RETURN_IF_ERROR(MakeTiered(schema, options, above, &made));
  *table = MakeHostAccess(std::move(made), DeviceMemoryForTests());
  return Status();
}

namespace {

// With so many rows above, and its twin of host memory, which both keep what leaves.
Twins MakeTwins(const TableSchema& schema, TableOptions options, int64_t above,
                int64_t rows_in_memory = -1) {
  const auto evicted = [&]() -> std::shared_ptr<EvictedRows> {
    if (!options.eviction.evicts() && !options.eviction.expires()) return nullptr;
    return std::make_shared<EvictedRows>(1'000'000);
  };
  options.evicted = evicted();
  std::unique_ptr<GpuTieredTable> table;
  const Status made = MakeTiered(schema, options, above, &table, rows_in_memory);
  EXPECT_TRUE(made.ok()) << made.message();
  options.evicted = evicted();
  return Twins(std::move(table), static_cast<uint64_t>(above), options, 0, TestMemoryForTests());
}

class LimitsOfGpuTiersTest : public ::testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Policies, LimitsOfGpuTiersTest,
                         ::testing::Values("", "lru", "lfu", "lfu half_life 10", "lfu epoch 10",
                                           "lfu lru", "norm", "score", "score sum"));

// Which rows a small table has, what each call says, what leaves, what is counted and what has
// changed: as of a table in host memory, however few rows are above.
TEST_P(LimitsOfGpuTiersTest, AreThoseOfATableInMemory) {
  for (const OnFull on_full : {OnFull::kError, OnFull::kDecline}) {
    for (const int64_t above : {1, 20, 400}) {
      SCOPED_TRACE(StrCat(GetParam(), ", ", above, " rows above"));
      const TableOptions options = Options(150, GetParam(), on_full);
      Twins twins = MakeTwins(TwinSchema(3, "", options), options, above);
      ASSERT_OK(Caller(twins.table(), TestMemoryForTests()).BeginEpoch(1));
      ASSERT_OK(Caller(twins.host(), HostTestMemory()).BeginEpoch(1));
      for (int i = 0; i < 200; ++i) ASSERT_OK(twins.Call(500, 60));
      twins.MoveTo(TwinSchema(3, "adam", options));
      for (int i = 0; i < 200; ++i) ASSERT_OK(twins.Call(500, 60));
      twins.Compare();
      twins.CompareCounters();
      Keys changed[2];
      ASSERT_OK(Caller(twins.table(), TestMemoryForTests()).ChangedKeys(0, &changed[0]));
      ASSERT_OK(Caller(twins.host(), HostTestMemory()).ChangedKeys(0, &changed[1]));
      EXPECT_EQ(Set(changed[0].begin(), changed[0].end()),
                Set(changed[1].begin(), changed[1].end()));
      EXPECT_LE(twins.table()->size(), 150);
      EXPECT_GT(twins.table()->size(), 100);
      EXPECT_EQ(twins.table()->room(), 150 - twins.table()->size());
      if (options.eviction.evicts()) {
        EXPECT_TRUE(TakeFrom(*twins.table()) == TakeFrom(*twins.host()));
      }
    }
  }
}

// An expired row is missing wherever it is, from the same moment on; and all of them leave by and
// by, are counted, handed out and noted.
class ExpiryOfGpuTiersTest : public ::testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Policies, ExpiryOfGpuTiersTest,
                         ::testing::Values("ttl 12", "lru ttl 12", "lfu ttl 12", "norm ttl 12"));

TEST_P(ExpiryOfGpuTiersTest, IsThatOfATableInMemory) {
  for (const auto& [above, in_memory] :
       {std::pair<int64_t, int64_t>{1, -1}, {20, -1}, {400, -1}, {1, 20}, {20, 50}, {100, 20}}) {
    SCOPED_TRACE(StrCat(GetParam(), ", ", above, " rows above, ", in_memory, " in memory"));
    const int64_t max_rows = GetParam() == "ttl 12" ? -1 : 150;
    const TableOptions options = Options(max_rows, GetParam());
    Twins twins = MakeTwins(TwinSchema(3, "", options), options, above, in_memory);
    ASSERT_OK(Caller(twins.table(), TestMemoryForTests()).BeginEpoch(1));
    for (int i = 0; i < 300; ++i) {
      ASSERT_OK(twins.Call(500, 60));
      if (max_rows > 0) {
        ASSERT_LE(twins.table()->size(), max_rows);
      }
      if (i % 60 != 20) continue;
      EXPECT_EQ(Difference(ExportAll(*twins.host(), HostTestMemory(), 1000), twins.Content()), "");
      if (i == 140) twins.MoveTo(TwinSchema(3, "adam", options));
    }
    // Until only one row has not expired, and has seen all others off.
    for (Table* table : {twins.table(), twins.host()}) {
      TestMemory* const memory = table == twins.host() ? HostTestMemory() : TestMemoryForTests();
      const Caller call(table, memory);
      for (int i = 0; i < 50; ++i) {
        ASSERT_OK(call.Upsert({7}, Floats(3, 1), {twins.step() + 20 + i % 2}));
      }
      ASSERT_OK(table->RemoveExpired(memory->context()));
      EXPECT_EQ(table->size(), 1);
    }
    twins.Compare();
    const Gone gone = TakeFrom(*twins.table());
    EXPECT_TRUE(gone == TakeFrom(*twins.host()));
    const TableCounters counters = twins.table()->counters();
    EXPECT_EQ(counters.inserted - counters.erased - counters.evicted - counters.expired, 1);
    EXPECT_GT(counters.expired, 0);
    Keys changed;
    ASSERT_OK(Caller(twins.table(), TestMemoryForTests()).ChangedKeys(0, &changed));
    const Set known(changed.begin(), changed.end());
    for (const auto& [key, value] : gone) EXPECT_EQ(known.count(key), 1u) << key;
  }
}

// Keys without end: memory ends, above and below.
TEST(BoundedGpuTieredTable, MemoryHasAnEnd) {
  for (const std::string policy : {"lru", "lfu ttl 30"}) {
    const TableOptions options = Options(20'000, policy);
    Twins twins = MakeTwins(TwinSchema(4, "adam", options), options, 3000);
    const Caller call(twins.table(), TestMemoryForTests());
    int64_t memory = 0;
    for (Key batch = 0; batch < 100; ++batch) {
      Keys keys = Numbers(1000 * batch, 1000);
      ASSERT_OK(call.Upsert(keys, Floats(4000, 1), {batch}));
      ASSERT_LE(twins.table()->size(), 20'000) << policy << batch;
      if (batch == 50) memory = twins.table()->memory_bytes();
    }
    EXPECT_LE(twins.table()->memory_bytes(), memory * 5 / 4) << policy;
    EXPECT_GT(twins.table()->size(), 15'000) << policy;
    const TableCounters counters = twins.table()->counters();
    EXPECT_EQ(counters.evicted + counters.expired, 100'000 - twins.table()->size()) << policy;
  }
}

TEST(BoundedGpuTieredTable, GoesOnAfterFaultsOfTheDisk) {
  for (const std::string policy : {"lru", "lfu ttl 12"}) {
    for (int64_t nth = 0; nth < 20; ++nth) {
      SCOPED_TRACE(StrCat(policy, ", operation ", nth));
      TableOptions options = Options(150, policy);
      options.evicted = std::make_shared<EvictedRows>(1'000'000);
      const auto files = std::make_shared<MemoryFileSystem>();
      std::unique_ptr<GpuTieredTable> table;
      ASSERT_OK(MakeTiered(TwinSchema(2, "", options), options, 40, &table, 30, files));
      WriteWhileFilesFail(table.get(), 150, TestMemoryForTests(), files.get(), nth);
    }
  }
}

}  // namespace
}  // namespace dynemb

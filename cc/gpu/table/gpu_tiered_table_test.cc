// GpuTieredTable against the contract, with so little room above that nearly every call moves rows,
// and under many threads.
#include "cc/gpu/table/gpu_tiered_table.h"

#include <memory>
#include <random>
#include <utility>

#include "cc/core/storage/testing/tiered_harness.h"
#include "cc/core/storage/testing/twins.h"
#include "cc/core/testing/concurrency.h"
#include "cc/core/testing/conformance.h"
#include "cc/gpu/kernel_starts.h"
#include "cc/gpu/table/testing/gpu_harness.h"
#include "cc/gpu/table/testing/gpu_table_fixture.h"

namespace dynemb {
namespace {

// Over a table that has rows on disk itself: three tiers.
TableHarness ThreeTiers(const std::string& name, int64_t rows_above, int64_t rows_in_memory) {
  return GpuTieredHarness(name, rows_above, TieredHarness(name, rows_in_memory, false).make);
}

TableHarness OneRowAbove() {
  TableHarness harness = GpuTieredHarness("OneRowAbove", 1);
  harness.batches_of_many_rows = 1;
  return harness;
}

INSTANTIATE_TEST_SUITE_P(OneRowAbove, TableConformance, ::testing::Values(OneRowAbove()));
DYNEMB_INSTANTIATE_CONFORMANCE(FewRowsAbove, GpuTieredHarness("FewRowsAbove", 40));
INSTANTIATE_TEST_SUITE_P(ManyRowsAbove, TableConformance,
                         ::testing::Values(GpuTieredHarness("ManyRowsAbove", 1000)));
INSTANTIATE_TEST_SUITE_P(ThroughHost, TableConformance,
                         ::testing::Values(GpuTieredThroughHostHarness("ThroughHost", 40)));
INSTANTIATE_TEST_SUITE_P(ThreeTiers, TableConformance,
                         ::testing::Values(ThreeTiers("ThreeTiers", 40, 60)));
INSTANTIATE_TEST_SUITE_P(GpuTiered, TableConcurrency,
                         ::testing::Values(GpuTieredHarness("FewRowsAbove", 16),
                                           GpuTieredHarness("ManyRowsAbove", 2000),
                                           ThreeTiers("ThreeTiers", 100, 300)),
                         [](const auto& info) { return info.param.name; });

// Over a host table, or another, which the test may see.
std::unique_ptr<GpuTieredTable> Make(const TableSchema& schema, int64_t max_rows,
                                     std::unique_ptr<Table> below = nullptr) {
  if (below == nullptr) {
    EXPECT_TRUE(MakeHostTable(schema, TableOptions(), &below).ok());
  }
  GpuBudget budget;
  budget.max_rows = max_rows;
  std::unique_ptr<GpuTieredTable> table;
  const Status made = MakeGpuTieredTable(schema, TableOptions(), budget, DeviceMemoryForTests(),
                                         std::move(below), &table);
  EXPECT_TRUE(made.ok()) << made.message();
  return table;
}

TEST(GpuTieredTable, CountsWhatCallsDoAndNoMoves) {
  for (const int64_t max_rows : {1, 30, 400}) {
    Twins twins(Make(TwinSchema(4, "adam"), max_rows), static_cast<uint64_t>(max_rows),
                TableOptions(), 0, TestMemoryForTests());
    for (int call = 0; call < 400; ++call) ASSERT_OK(twins.Call(500, 60));
    twins.Compare();
    twins.CompareCounters();
  }
}

TEST(GpuTieredTable, ChangesItsSchemaWithRowsInBothTiers) {
  Twins twins(Make(TwinSchema(4, ""), 50), 3, TableOptions(), 0, TestMemoryForTests());
  for (int call = 0; call < 100; ++call) ASSERT_OK(twins.Call(300, 30));
  twins.MoveTo(TwinSchema(4, "adam"));
  for (int call = 0; call < 200; ++call) ASSERT_OK(twins.Call(300, 30));
  twins.Compare();
  twins.CompareCounters();
}

TEST(GpuTieredTable, NeverHasMoreRowsAboveThanThereIsRoomFor) {
  const auto table = Make(TwinSchema(2, "sgd"), 64);
  const Caller call(table.get(), TestMemoryForTests());
  for (int64_t first = 0; first < 2000; first += 50) {
    ASSERT_OK(call.Upsert(Numbers(first, 50), Floats(100, 1.0f), Stamp(), nullptr));
    EXPECT_LE(table->gpu_tier_stats().rows_on_device, 64);
    EXPECT_EQ(table->size(), first + 50);
    EXPECT_EQ(table->below()->size(), table->size() - table->gpu_tier_stats().rows_on_device);
  }
}

TEST(GpuTieredTable, RowsThatAreUsedStayAbove) {
  const auto table = Make(TwinSchema(2, "sgd"), 1000);
  const Caller call(table.get(), TestMemoryForTests());
  const Keys hot = Numbers(0, 100);
  Floats found;
  ASSERT_OK(call.Upsert(hot, Floats(200, 1.0f), Stamp(), nullptr));
  for (int64_t first = 100; first < 20'000; first += 100) {
    ASSERT_OK(call.Upsert(Numbers(first, 100), Floats(200, 1.0f), Stamp(), nullptr));
    ASSERT_OK(call.Find(hot, &found, nullptr));
  }
  // Were it a matter of chance, some ten of them would leave in each of 199 steps, and come up
  // again.
  EXPECT_LT(table->gpu_tier_stats().device_misses, 500);
}

// Some steps of a table without tiers and of one with room for so many of 40 rows.
void CompareSteps(int64_t max_rows, int positions) {
  const TableSchema schema = TwinSchema(3, "adam");
  std::unique_ptr<GpuTable> plain;
  ASSERT_OK(MakeGpuTable(schema, DeviceMemoryForTests(), &plain));
  const auto tiered = Make(schema, max_rows);
  std::mt19937_64 random(1);
  for (int step = 1; step < 6; ++step) {
    Keys keys;
    Floats gradients;
    for (int i = 0; i < positions; ++i) {
      keys.push_back(static_cast<Key>(random() % 40));
      for (int d = 0; d < 3; ++d) gradients.push_back(static_cast<float>(random() % 1000) / 997);
    }
    for (Table* table : {static_cast<Table*>(plain.get()), static_cast<Table*>(tiered.get())}) {
      ASSERT_OK(Caller(table, TestMemoryForTests())
                    .Apply(keys, gradients, schema.rule, UsualHyper("adam", step)));
    }
  }
  EXPECT_EQ(Difference(ExportAll(*plain, TestMemoryForTests(), 100),
                       ExportAll(*tiered, TestMemoryForTests(), 100)),
            "");
}

// Gradients of a key that is more than 32 times in a batch are added up in pieces, which begin
// where the batch as a whole says. So only of a batch that is not divided these are the same.
TEST(GpuTieredTable, AddsUpManyGradientsOfAKeyAsWithoutTiers) {
  CompareSteps(40, 3000);
  CompareSteps(5, 400);
}

// Whichever of the starts of a call fails, of which the GPU has no memory for a kernel.
TEST(GpuTieredTable, LosesNoRowWhenAKernelCannotBeStarted) {
  const auto table = Make(TwinSchema(4, "adam"), 100);
  const Caller call(table.get(), TestMemoryForTests());
  const Keys all = Numbers(0, 300);
  Floats values;
  for (int i = 0; i < 4 * 300; ++i) values.push_back(static_cast<float>(i));
  ASSERT_OK(call.Upsert(all, values, Stamp(), nullptr));
  const TableContent rows = ExportAll(*table, TestMemoryForTests(), 50);
  int64_t first = 0, failing = 0, failed = 0;
  for (bool ended = false; !ended && failing < 1000; first = (first + 60) % 300) {
    const int64_t begin = kernel_starts, misses = table->gpu_tier_stats().device_misses;
    failing_kernel_start = begin + failing;
    Floats found;
    failed += !call.Find(Numbers(first, 60), &found, nullptr).ok();
    failing_kernel_start = -1;
    const bool all_started = kernel_starts - begin <= failing;
    ASSERT_EQ(Difference(ExportAll(*table, TestMemoryForTests(), 50), rows), "") << failing;
    ASSERT_EQ(table->size(), 300) << failing;
    // Of a call that moves rows in both directions all have been tried; others start fewer.
    ended = all_started && table->gpu_tier_stats().device_misses == misses + 60;
    failing += !all_started;
  }
  EXPECT_GT(failing, 20);
  EXPECT_GT(failed, 0);  // the others are made up for by moves of fewer rows
}

// A disk that fails, and works again.
TEST(GpuTieredTable, LosesNoRowWhenTheDiskBelowFails) {
  const auto files = std::make_shared<MemoryFileSystem>();
  const TableSchema schema = TwinSchema(8, "adam");
  std::unique_ptr<Table> below;
  ASSERT_OK(MakeTieredTableOn(files, schema, 100, &below));
  Twins twins(Make(schema, 150, std::move(below)), 9, TableOptions(), 0, TestMemoryForTests());
  Fault fault;
  fault.dies = true;
  int failed = 0;
  for (int round = 0; round < 8; ++round) {
    if (round % 2 == 1) files->Inject(20, fault);
    for (int call = 0; call < 60; ++call) failed += !twins.Call(2000, 60).ok();
    files->Heal();
    twins.Compare();
  }
  EXPECT_GT(failed, 10);
}

}  // namespace
}  // namespace dynemb

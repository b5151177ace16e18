// GpuTieredTable against the contract, with so little room above that nearly every call moves rows,
// and under many threads.
#include "cc/core/storage/testing/tiered_harness.h"
#include "cc/core/testing/concurrency.h"
#include "cc/core/testing/conformance.h"
#include "cc/gpu/table/testing/gpu_harness.h"

namespace dynemb {
namespace {

// Over a table that has rows on disk itself: three tiers.
TableHarness ThreeTiers(const std::string& name, int64_t rows_above, int64_t rows_in_memory) {
  return GpuTieredOnHostHarness(
      name, rows_above, TieredHarness(name, rows_in_memory, false).make);
}

INSTANTIATE_TEST_SUITE_P(OneRowAbove, TableConformance,
                         ::testing::Values(GpuTieredOnHostHarness("OneRowAbove", 1)));
DYNEMB_INSTANTIATE_CONFORMANCE(FewRowsAbove, GpuTieredOnHostHarness("FewRowsAbove", 40));
INSTANTIATE_TEST_SUITE_P(ManyRowsAbove, TableConformance,
                         ::testing::Values(GpuTieredOnHostHarness("ManyRowsAbove", 1000)));
INSTANTIATE_TEST_SUITE_P(ThroughHost, TableConformance,
                         ::testing::Values(GpuTieredThroughHostHarness("ThroughHost", 40)));
INSTANTIATE_TEST_SUITE_P(ThreeTiers, TableConformance,
                         ::testing::Values(ThreeTiers("ThreeTiers", 40, 60)));
INSTANTIATE_TEST_SUITE_P(GpuTiered, TableConcurrency,
                         ::testing::Values(GpuTieredOnHostHarness("FewRowsAbove", 16),
                                           GpuTieredOnHostHarness("ManyRowsAbove", 2000),
                                           ThreeTiers("ThreeTiers", 100, 300)),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace dynemb

// TieredTable against the contract, with so little room above that nearly every call moves rows.
#include "cc/core/storage/tiered_table.h"

#include "cc/core/storage/testing/tiered_harness.h"
#include "cc/core/testing/conformance.h"

namespace dynemb {
namespace {

INSTANTIATE_TEST_SUITE_P(OneRowAbove, TableConformance,
                         ::testing::Values(TieredHarness("OneRowAbove", 1)));
DYNEMB_INSTANTIATE_CONFORMANCE(FewRowsAbove, TieredHarness("FewRowsAbove", 40));
INSTANTIATE_TEST_SUITE_P(InBackground, TableConformance,
                         ::testing::Values(TieredHarness("InBackground", 40, true)));

}  // namespace
}  // namespace dynemb

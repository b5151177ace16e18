// The reference table against the examples of the contract, which do not depend on it, and the
// simulated device over it.
#include "cc/core/testing/reference_table.h"

#include "cc/core/testing/conformance.h"

namespace dynemb {
namespace {

// The random operations would compare the reference with itself.
INSTANTIATE_TEST_SUITE_P(Reference, TableConformance,
                         ::testing::Values(HostHarness("Reference", MakeReferenceTable)));
DYNEMB_INSTANTIATE_CONFORMANCE(ReferenceOnSimulatedDevice,
                               SimulatedDeviceHarness("ReferenceOnSimulatedDevice",
                                                      MakeReferenceTable));

}  // namespace
}  // namespace dynemb

// The reference table, which has one lock, under many threads and behind the simulated device: a
// suite that fails here is wrong itself.
#include "cc/core/testing/concurrency.h"
#include "cc/core/testing/reference_table.h"

namespace dynemb {
namespace {

DYNEMB_INSTANTIATE_CONCURRENCY(ReferenceOnSimulatedDevice,
                               SimulatedDeviceHarness("ReferenceOnSimulatedDevice",
                                                      MakeReferenceTable));

}  // namespace
}  // namespace dynemb

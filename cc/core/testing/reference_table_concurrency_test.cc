// The reference table, which has one lock, under many threads and behind the fake device: a suite
// that fails here is wrong itself.
#include "cc/core/testing/concurrency.h"
#include "cc/core/testing/reference_table.h"

namespace dynemb {
namespace {

DYNEMB_INSTANTIATE_CONCURRENCY(ReferenceOnFakeDevice,
                               FakeDeviceHarness("ReferenceOnFakeDevice", MakeReferenceTable));

}  // namespace
}  // namespace dynemb

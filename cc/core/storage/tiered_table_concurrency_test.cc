// TieredTable under many threads. Run it under ThreadSanitizer too: bazel test --config=tsan.
#include "cc/core/storage/testing/tiered_harness.h"
#include "cc/core/testing/concurrency.h"

namespace dynemb {
namespace {

DYNEMB_INSTANTIATE_CONCURRENCY(FewRowsAbove, TieredHarness("FewRowsAbove", 16));
DYNEMB_INSTANTIATE_CONCURRENCY(ManyRowsAbove, TieredHarness("ManyRowsAbove", 2000));
DYNEMB_INSTANTIATE_CONCURRENCY(InBackground, TieredHarness("InBackground", 200, true));

}  // namespace
}  // namespace dynemb

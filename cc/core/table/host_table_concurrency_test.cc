// HostTable under many threads. Run it under ThreadSanitizer too: bazel test --config=tsan.
#include "cc/core/testing/concurrency.h"

namespace dynemb {
namespace {

DYNEMB_INSTANTIATE_CONCURRENCY(HostTable, HostTableHarness());

}  // namespace
}  // namespace dynemb

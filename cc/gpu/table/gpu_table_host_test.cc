// The GPU table's kernels on the host, in the suites that every table passes.
#include "cc/core/testing/concurrency.h"
#include "cc/core/testing/conformance.h"
#include "cc/gpu/table/testing/gpu_harness.h"

namespace dynemb {
namespace {

DYNEMB_INSTANTIATE_CONFORMANCE(GpuTableOnHost, GpuOnHostHarness());
INSTANTIATE_TEST_SUITE_P(ThroughHost, TableConformance,
                         ::testing::Values(GpuOnHostThroughHostHarness()));
INSTANTIATE_TEST_SUITE_P(ThroughHost, TableModel,
                         ::testing::Combine(::testing::Values(GpuOnHostThroughHostHarness()),
                                            ::testing::Values(ModelCases()[0], ModelCases()[11],
                                                              ModelCases()[20])),
                         TableModel::CaseName);
// The threads' calls run one at a time; a call of many slices lets others through.
INSTANTIATE_TEST_SUITE_P(GpuTableOnHost, TableConcurrency,
                         ::testing::Values(GpuOnHostHarness(), GpuOnHostThroughHostHarness()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace dynemb

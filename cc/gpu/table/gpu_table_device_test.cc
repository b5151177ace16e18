// The GPU table on a GPU, in the suites that every table passes. Without a GPU there is one test,
// which says why it is skipped.
#include <string>
#include <tuple>
#include <vector>

#include "cc/core/testing/concurrency.h"
#include "cc/core/testing/conformance.h"
#include "cc/gpu/table/testing/gpu_harness.h"

namespace dynemb {
namespace {

std::vector<TableHarness> Harnesses() {
  if (!GpuForTests().ok()) return {};
  return {GpuHarness(), GpuThroughHostHarness()};
}

std::string HarnessName(const ::testing::TestParamInfo<TableHarness>& info) {
  return info.param.name;
}
std::string CaseName(const ::testing::TestParamInfo<std::tuple<TableHarness, ModelCase>>& info) {
  return std::get<0>(info.param).name + "_" + std::get<1>(info.param).Name();
}

TEST(GpuTableDevice, IsThere) {
  // For want of a GPU; the message says why there is none. The host runs the same suites.
  if (const Status status = GpuForTests(); !status.ok()) GTEST_SKIP() << status.message();
}

INSTANTIATE_TEST_SUITE_P(GpuTable, TableConformance, ::testing::ValuesIn(Harnesses()), HarnessName);
INSTANTIATE_TEST_SUITE_P(GpuTable, TableModel,
                         ::testing::Combine(::testing::ValuesIn(Harnesses()),
                                            ::testing::ValuesIn(ModelCases())),
                         CaseName);
INSTANTIATE_TEST_SUITE_P(GpuTable, TableConcurrency, ::testing::ValuesIn(Harnesses()), HarnessName);

}  // namespace
}  // namespace dynemb

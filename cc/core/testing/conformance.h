// THE test suite of tables: everything that implements table.h passes it. A new table needs one
// line in a test of its own:
//
//   DYNEMB_INSTANTIATE_CONFORMANCE(MyTable, HostHarness("MyTable", MakeMyTable));
//
// It runs the contract's examples, wrong arguments, and at least 10,000 random operations for each
// of some twenty schemas and seeds against the reference table, compared to the last bit. With
// TF_DYNEMB_SOAK set, many seeds for each schema (harness.h). The other suite is concurrency.h.
#ifndef TF_DYNEMB_CC_CORE_TESTING_CONFORMANCE_H_
#define TF_DYNEMB_CC_CORE_TESTING_CONFORMANCE_H_

#include <string>
#include <tuple>

#include "cc/core/testing/harness.h"
#include "cc/core/testing/model_run.h"
#include "gtest/gtest.h"

namespace dynemb {

class TableConformance : public ::testing::TestWithParam<TableHarness> {
 public:
  TableConformance();
};

class TableModel : public ::testing::TestWithParam<std::tuple<TableHarness, ModelCase>> {
 public:
  TableModel();
  static std::string CaseName(const ::testing::TestParamInfo<ParamType>& info);
};

}  // namespace dynemb

#define DYNEMB_INSTANTIATE_CONFORMANCE(name, harness)                                    \
  INSTANTIATE_TEST_SUITE_P(name, TableConformance, ::testing::Values(harness));          \
  INSTANTIATE_TEST_SUITE_P(                                                              \
      name, TableModel,                                                                  \
      ::testing::Combine(::testing::Values(harness), ::testing::ValuesIn(ModelCases())), \
      TableModel::CaseName)

#endif  // TF_DYNEMB_CC_CORE_TESTING_CONFORMANCE_H_

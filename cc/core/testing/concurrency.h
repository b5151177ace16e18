// The second suite that every Table passes: many threads at once. What they saw is recorded and
// judged (histories.h), sums are exact, rows are whole, exports miss nothing, and whoever follows
// the changes has the table in the end. To be run under ThreadSanitizer as well; all counts are
// bounded and nothing sleeps.
//
//   DYNEMB_INSTANTIATE_CONCURRENCY(MyTable, HostHarness("MyTable", MakeMyTable));
#ifndef TF_DYNEMB_CC_CORE_TESTING_CONCURRENCY_H_
#define TF_DYNEMB_CC_CORE_TESTING_CONCURRENCY_H_

#include "cc/core/testing/harness.h"
#include "gtest/gtest.h"

namespace dynemb {

class TableConcurrency : public ::testing::TestWithParam<TableHarness> {
 public:
  TableConcurrency();
};

}  // namespace dynemb

#define DYNEMB_INSTANTIATE_CONCURRENCY(name, harness) \
  INSTANTIATE_TEST_SUITE_P(name, TableConcurrency, ::testing::Values(harness))

#endif  // TF_DYNEMB_CC_CORE_TESTING_CONCURRENCY_H_

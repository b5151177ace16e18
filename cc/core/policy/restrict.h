// Restrict: removes the rows of lowest order, over all shards, until so many are left.
//
// The order is RowOrder of table.h: by a meta field, ties by Mix64(key). The bound between the rows
// that stay and those that go is found by a radix selection: one histogram after the other over all
// shards together, each of the next digit of the bound. So the extra memory does not depend on the
// number of rows, and shards need not be balanced.
#ifndef TF_DYNEMB_CC_CORE_POLICY_RESTRICT_H_
#define TF_DYNEMB_CC_CORE_POLICY_RESTRICT_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "cc/core/base/context.h"
#include "cc/core/base/status.h"
#include "cc/core/table/table.h"

namespace dynemb {

// Removes the lowest rows of the shards until `rows` are left in all; `erased` says how many went.
// Nothing happens where there are no more than `rows`.
//
// Exact when nobody writes meanwhile. If others do, and their writes only raise the order of a row,
// as times and counts are raised, then no fewer than `rows` rows are left over, and every row that
// was written after the bound was found stays if that has put it above. With rows == 0 the shards
// are cleared (Table::Clear), with whatever is written meanwhile.
//
// Errors: rows < 0; kFailedPrecondition if the schema lacks `field`; tables that are not in host
// memory, where the histograms are. Nothing has changed then.
//
// Cost: reads the meta of all rows up to 9 times, of times and counts mostly 4 or 5 times, then
// writes those that go; on all threads of the context, in slices of segments that let other calls
// through.
Status RestrictTo(const Context& context, const std::vector<std::shared_ptr<Table>>& shards,
                  MetaField field, int64_t rows, int64_t* erased);

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_CORE_POLICY_RESTRICT_H_

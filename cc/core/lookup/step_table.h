// StepTable: rows that a step has fetched from elsewhere, as a table that can be read.
//
// Rows of a table that is spread over processes, or on servers, come to where a step needs them.
// Whatever looks up a table then reads them as it reads any other: by key, of host memory. Nothing
// is copied: there is only an index over the keys.
#ifndef TF_DYNEMB_CC_CORE_LOOKUP_STEP_TABLE_H_
#define TF_DYNEMB_CC_CORE_LOOKUP_STEP_TABLE_H_

#include <cstdint>
#include <memory>

#include "cc/core/base/dtype.h"
#include "cc/core/base/span.h"
#include "cc/core/base/status.h"
#include "cc/core/table/table.h"

namespace dynemb {

// A table of the keys, of which a repeated one has the first of its rows; a key that is not among
// them reads as zeros. What would change it, or export it, is kFailedPrecondition. Keys and values,
// `dim` numbers of `dtype` each, are in host memory, which `memory` keeps.
Status MakeStepTable(Span<const Key> keys, ConstRows values, DType dtype, int64_t dim,
                     std::shared_ptr<const void> memory, std::unique_ptr<Table>* table);

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_CORE_LOOKUP_STEP_TABLE_H_

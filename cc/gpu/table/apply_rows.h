// Runs an optimizer rule over the rows of a grouped batch, in one pass: gradients are added up, the
// row is begun if it is new, updated and written back.
#ifndef TF_DYNEMB_CC_GPU_TABLE_APPLY_ROWS_H_
#define TF_DYNEMB_CC_GPU_TABLE_APPLY_ROWS_H_

#include <cstdint>
#include <vector>

#include "cc/core/base/context.h"
#include "cc/core/base/status.h"
#include "cc/core/table/row_layout.h"
#include "cc/core/table/table.h"
#include "cc/gpu/table/grouped_batch.cu.h"
#include "cc/gpu/table/launches.cu.h"
#include "cc/gpu/table/rows.cu.h"
#include "cc/gpu/table/scratch.h"

namespace dynemb {

struct ApplyCall {
  GroupedBatch batch;  // in order; its rows found or inserted
  ConstRows gradients;
  Update update;  // of the table's rule, checked by MakeRowUpdater
  RowSlabs rows;
  RowMarks marks;
  RowLayout layout;
  RowStamp stamp;
  InitialValues initial;
};

// What ApplyRows takes from the scratch memory, for a batch of n entries.
int64_t ApplyScratchBytes(const TableSchema& schema, int64_t n);

// `calls`: of tables whose rows have the same value dtype, dim and rule, which are the schema's; as
// many as `launches` is for.
Status ApplyRows(const TableSchema& schema, const std::vector<ApplyCall>& calls, Launches* launches,
                 Scratch* scratch);

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_GPU_TABLE_APPLY_ROWS_H_

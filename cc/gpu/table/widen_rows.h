// Widen (cc/core/lookup/widen.h) in the memory of a GPU.
#ifndef TF_DYNEMB_CC_GPU_TABLE_WIDEN_ROWS_H_
#define TF_DYNEMB_CC_GPU_TABLE_WIDEN_ROWS_H_

#include <cstdint>

#include "cc/core/base/context.h"
#include "cc/core/base/dtype.h"
#include "cc/core/base/span.h"
#include "cc/core/base/status.h"

namespace dynemb {

// In place, in the order of the context's stream; a thread to a row.
Status WidenOnGpu(const Context& context, const Rows& rows, DType from, DType to, int64_t dim);

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_GPU_TABLE_WIDEN_ROWS_H_

// Initial values drawn on the device, by the core's own functions.
#ifndef TF_DYNEMB_CC_GPU_RANDOM_ROWS_H_
#define TF_DYNEMB_CC_GPU_RANDOM_ROWS_H_

#include <cstdint>

#include "cc/core/base/context.h"
#include "cc/core/base/dtype.h"
#include "cc/core/base/span.h"
#include "cc/core/base/status.h"
#include "cc/core/initializer/initializer.h"

namespace dynemb {

// Writes the initial value of keys[i] to row i of `values`, dim numbers of `dtype`: the same bits
// as FillRandom's. Keys and values are in the context's memory space. kInvalidArgument: another
// space, fewer rows than keys, a constant distribution, which draws nothing.
Status FillRandomRows(const Context& context, const Distribution& distribution, uint64_t seed,
                      const Span<const int64_t>& keys, DType dtype, int64_t dim,
                      const Rows& values);

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_GPU_RANDOM_ROWS_H_

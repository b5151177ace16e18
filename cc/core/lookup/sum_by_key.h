// SumByKey: sums of the rows of equal keys, which the gradient of a row is. Deterministic and
// independent of the number of threads.
#ifndef TF_DYNEMB_CC_CORE_LOOKUP_SUM_BY_KEY_H_
#define TF_DYNEMB_CC_CORE_LOOKUP_SUM_BY_KEY_H_

#include <cstdint>

#include "cc/core/base/context.h"
#include "cc/core/base/dtype.h"
#include "cc/core/base/span.h"
#include "cc/core/base/status.h"
#include "cc/core/table/distinct_keys.h"

namespace dynemb {

// sums row u = the sum of the rows i with keys.numbers()[i] == u, each times scales[i] unless
// `scales` is empty, for all u in [0, keys.size()). Rows are `dim` numbers of `dtype`; sums of
// 16-bit floats are kept in float32 and rounded once. 0 for dim is fine.
Status SumByKey(const Context& context, const DistinctKeys& keys, DType dtype, int64_t dim,
                ConstRows rows, Span<const double> scales, Rows sums);

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_CORE_LOOKUP_SUM_BY_KEY_H_

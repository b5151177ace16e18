// Dedup: the distinct keys of a batch, and the sums of the rows of equal keys, which a gradient is.
// Deterministic and independent of the number of threads.
#ifndef TF_DYNEMB_CC_CORE_LOOKUP_DEDUP_H_
#define TF_DYNEMB_CC_CORE_LOOKUP_DEDUP_H_

#include <cstdint>
#include <vector>

#include "cc/core/base/context.h"
#include "cc/core/base/dtype.h"
#include "cc/core/base/span.h"
#include "cc/core/base/status.h"
#include "cc/core/table/table.h"

namespace dynemb {

// The distinct keys of `keys`, in the order of their first appearance.
class Dedup {
 public:
  explicit Dedup(Span<const Key> keys);

  int64_t size() const { return static_cast<int64_t>(unique_.size()); }
  const std::vector<Key>& unique() const { return unique_; }
  // inverse()[i] is the place in unique() of keys[i].
  const std::vector<int64_t>& inverse() const { return inverse_; }

 private:
  std::vector<Key> unique_;
  std::vector<int64_t> inverse_;
};

// sums row u = the sum of the rows i with inverse[i] == u, each times scales[i] unless `scales` is
// empty, for all u in [0, dedup.size()). Rows are `dim` numbers of `dtype`; sums of 16-bit floats
// are kept in float32 and rounded once. 0 for dim is fine.
Status SumByKey(const Context& context, const Dedup& dedup, DType dtype, int64_t dim,
                ConstRows rows, Span<const double> scales, Rows sums);

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_CORE_LOOKUP_DEDUP_H_

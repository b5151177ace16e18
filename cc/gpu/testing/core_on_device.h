// The core's functions that a GPU table is made of, called for many keys or rows by a kernel: so
// that a test sees that the device computes what the host does.
#ifndef TF_DYNEMB_CC_GPU_TESTING_CORE_ON_DEVICE_H_
#define TF_DYNEMB_CC_GPU_TESTING_CORE_ON_DEVICE_H_

#include <cstdint>
#include <string_view>

#include "cc/core/base/context.h"
#include "cc/core/base/dtype.h"
#include "cc/core/base/span.h"
#include "cc/core/base/status.h"

namespace dynemb {

// hashes[i] = Mix64(keys[i]).
Status HashKeys(const Context& context, const Span<const int64_t>& keys,
                const Span<uint64_t>& hashes);

// One step of a rule on all rows: values, slots and gradients as RowUpdater takes them, dim
// columns. `hyper` lies on the host.
Status UpdateRows(const Context& context, std::string_view rule, DType value_dtype,
                  const double* hyper, int64_t dim, const Rows& values, const Rows& slots,
                  const ConstRows& gradients);

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_GPU_TESTING_CORE_ON_DEVICE_H_

// What can be checked about a call to a table in host memory without looking at its rows.
#ifndef TF_DYNEMB_CC_CORE_TABLE_CALL_CHECKS_H_
#define TF_DYNEMB_CC_CORE_TABLE_CALL_CHECKS_H_

#include "cc/core/base/context.h"
#include "cc/core/base/span.h"
#include "cc/core/base/status.h"
#include "cc/core/table/table.h"

namespace dynemb {

inline Status WrongSpace(const char* what) {
  return InvalidArgument(what, ": the memory is not in host memory, where the table is");
}

template <typename T>
Status CheckSpan(const char* what, const Span<T>& span) {
  if (span.space != MemorySpace::kHost) return WrongSpace(what);
  if (span.size < 0) return InvalidArgument(what, ": got size ", span.size);
  if (span.size > 0 && span.data == nullptr) return InvalidArgument(what, ": got null");
  return Status();
}

Status CheckContext(const Context& context);

// Context, keys, selection and report.
Status CheckBatch(const Context& context, const Batch& batch, const Report& report);

// Rows of `dim` numbers of `dtype`, one per key of the batch. Where they have offsets, what these
// say is the caller's word.
Status CheckValues(const char* what, const Batch& batch, ConstRows rows, DType dtype, int64_t dim);

// One scale per key of the batch, or none.
Status CheckScales(const Batch& batch, const Update& update);

// n packed parts of rows of `bytes` each; data == nullptr says that the part is left out.
Status CheckPart(const char* what, int64_t n, int64_t bytes, ConstRows rows);

// The counts of a histogram, one for each value of the `bits` bits after prefix_bits.
Status CheckCounts(const Span<int64_t>& counts, int prefix_bits, int* bits);

// A cursor's part and parts.
Status CheckParts(const Cursor& cursor);

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_CORE_TABLE_CALL_CHECKS_H_

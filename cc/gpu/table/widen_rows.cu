#include "cc/core/lookup/widen.h"
#include "cc/gpu/for_each.cu.h"
#include "cc/gpu/table/widen_rows.h"

namespace dynemb {

Status WidenOnGpu(const Context& context, const Rows& rows, DType from, DType to, int64_t dim) {
  return VisitWidening(rows, from, to, dim, [&](const auto& widen_row) {
    return ForEach(context, rows.count, widen_row);
  });
}

}  // namespace dynemb

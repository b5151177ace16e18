// Widen: values that a table holds in few bits, read as wider floats. What a table of 16-bit values
// needs that serves a model of float32.
#ifndef TF_DYNEMB_CC_CORE_LOOKUP_WIDEN_H_
#define TF_DYNEMB_CC_CORE_LOOKUP_WIDEN_H_

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "cc/core/base/context.h"
#include "cc/core/base/dtype.h"
#include "cc/core/base/macros.h"
#include "cc/core/base/span.h"
#include "cc/core/base/status.h"

namespace dynemb {

// Is every number of `from` one of `to`, both floating? Then widening rounds nothing.
inline bool CanWiden(DType from, DType to) {
  return IsFloating(from) && IsFloating(to) && (from == to || SizeOf(from) < SizeOf(to));
}

// Where a table writes values of `from` that Widen then turns to `to`: at the end of each row of
// `rows`, whose rows are `dim` numbers of `to`.
inline Rows NarrowRows(const Rows& rows, DType from, DType to, int64_t dim) {
  return Rows(rows.data + dim * (SizeOf(to) - SizeOf(from)), rows.count, rows.stride_bytes,
              rows.space);
}

// Calls f(TypeTag<V>(), TypeTag<O>()) for the floating types of values and of what they are read
// as, float32 or float64.
template <typename F>
void VisitFloats(DType value, DType out, const F& f) {
  VisitDType(value, [&](auto value_tag) {
    using V = typename decltype(value_tag)::type;
    if constexpr (!std::is_integral_v<V>) {
      if (out == DType::kFloat64) {
        f(value_tag, TypeTag<double>());
      } else if constexpr (sizeof(V) <= sizeof(float)) {
        f(value_tag, TypeTag<float>());
      }
    }
  });
}

// Turns the numbers at the end of a row into wider ones that fill it, in place: the i-th is read
// before anything is written where it or one behind it lies.
template <typename From, typename To>
struct WidenRow {
  Rows rows;
  Rows narrow;
  int64_t dim;

  DYNEMB_HOST_DEVICE void operator()(int64_t row) const {
    for (int64_t i = 0; i < dim; ++i) {
      From number;
      std::memcpy(&number, narrow[row] + i * static_cast<int64_t>(sizeof(From)), sizeof(From));
      const To wide = static_cast<To>(static_cast<ComputeType<From>>(number));
      std::memcpy(rows[row] + i * static_cast<int64_t>(sizeof(To)), &wide, sizeof(To));
    }
  }
};

// The status of call(WidenRow of the dtypes); that of nothing to do if they are one.
// CanWiden(from, to).
template <typename F>
Status VisitWidening(const Rows& rows, DType from, DType to, int64_t dim, const F& call) {
  Status status;
  if (from == to) return status;
  VisitFloats(from, to, [&](auto from_tag, auto to_tag) {
    using From = typename decltype(from_tag)::type;
    using To = typename decltype(to_tag)::type;
    if constexpr (sizeof(From) < sizeof(To)) {
      status = call(WidenRow<From, To>{rows, NarrowRows(rows, from, to, dim), dim});
    }
  });
  return status;
}

// Of rows in the host's memory.
inline Status Widen(const Context& context, const Rows& rows, DType from, DType to, int64_t dim) {
  return VisitWidening(rows, from, to, dim, [&](const auto& widen_row) {
    return context.executor->Run(rows.count, dim, widen_row);
  });
}

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_CORE_LOOKUP_WIDEN_H_

// Widen: values that a table holds in few bits, read as wider floats. What a table of 16-bit values
// needs that serves a model of float32.
#ifndef TF_DYNEMB_CC_CORE_LOOKUP_WIDEN_H_
#define TF_DYNEMB_CC_CORE_LOOKUP_WIDEN_H_

#include <cstdint>
#include <cstring>

#include "cc/core/base/context.h"
#include "cc/core/base/dtype.h"
#include "cc/core/base/span.h"

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

// Turns the numbers of `from` at the end of each row into numbers of `to` that fill it, in place:
// the i-th is read before anything is written where it or one behind it lies. CanWiden(from, to).
inline void Widen(const Context& context, const Rows& rows, DType from, DType to, int64_t dim) {
  if (from == to) return;
  const Rows narrow = NarrowRows(rows, from, to, dim);
  VisitDType(from, [&](auto from_tag) {
    VisitDType(to, [&](auto to_tag) {
      using From = typename decltype(from_tag)::type;
      using To = typename decltype(to_tag)::type;
      if constexpr (sizeof(From) < sizeof(To)) {
        context.executor->Run(rows.count, dim, [&](int64_t row) {
          for (int64_t i = 0; i < dim; ++i) {
            From number;
            std::memcpy(&number, narrow[row] + i * sizeof(From), sizeof(From));
            const To wide = static_cast<To>(static_cast<ComputeType<From>>(number));
            std::memcpy(rows[row] + i * sizeof(To), &wide, sizeof(To));
          }
        });
      }
    });
  });
}

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_CORE_LOOKUP_WIDEN_H_

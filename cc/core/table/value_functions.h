// What a table does with the numbers of a value, by dtype.
#ifndef TF_DYNEMB_CC_CORE_TABLE_VALUE_FUNCTIONS_H_
#define TF_DYNEMB_CC_CORE_TABLE_VALUE_FUNCTIONS_H_

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "cc/core/base/dtype.h"
#include "cc/core/base/vector_variants.h"
#include "cc/core/initializer/initializer.h"
#include "cc/core/table/table.h"

namespace dynemb {

// Writes the initial value of a key as the value dtype has it.
using FillFunction = void (*)(const Initializer&, Key, int64_t dim, char* value);
inline FillFunction FillFor(DType dtype) {
  return VisitDType(dtype, [](auto tag) -> FillFunction {
    using V = typename decltype(tag)::type;
    return [](const Initializer& initializer, Key key, int64_t dim, char* value) {
      FillInitialValue(initializer, key, dim, reinterpret_cast<V*>(value));
    };
  });
}

// value += delta. Integers wrap around.
using AddFunction = void (*)(int64_t dim, char* value, const char* delta);
inline AddFunction AddFor(DType dtype) {
  return VisitDType(dtype, [](auto tag) -> AddFunction {
    using V = typename decltype(tag)::type;
    return [](int64_t dim, char* value, const char* delta) {
      V* to = reinterpret_cast<V*>(value);
      const V* from = reinterpret_cast<const V*>(delta);
      for (int64_t c = 0; c < dim; ++c) {
        if constexpr (std::is_integral_v<V>) {
          to[c] = static_cast<V>(static_cast<uint64_t>(to[c]) + static_cast<uint64_t>(from[c]));
        } else {
          using T = ComputeType<V>;
          to[c] = static_cast<V>(static_cast<T>(to[c]) + static_cast<T>(from[c]));
        }
      }
    };
  });
}

// The L2 norm of a value, squared, summed from the first column to the last.
template <typename V>
DYNEMB_HOST_DEVICE double SquaredNorm(int64_t dim, const char* value) {
  const V* const from = reinterpret_cast<const V*>(value);
  double sum = 0;
  for (int64_t c = 0; c < dim; ++c) {
    double number;
    if constexpr (std::is_integral_v<V>) {
      number = static_cast<double>(from[c]);
    } else {
      number = static_cast<double>(static_cast<ComputeType<V>>(from[c]));
    }
    sum += number * number;
  }
  return sum;
}
using NormFunction = double (*)(int64_t dim, const char* value);
inline NormFunction NormFor(DType dtype) {
  return VisitDType(dtype, [](auto tag) -> NormFunction {
    return [](int64_t dim, const char* value) {
      return SquaredNorm<typename decltype(tag)::type>(dim, value);
    };
  });
}

// Makes the sum of the rows at `positions`, in their order, each times the scale of its position
// unless `scales` is null. Sums of 16-bit floats are made in float32 and rounded once.
using SumFunction = void (*)(int64_t dim, const ConstRows& rows, Span<const int64_t> positions,
                             const double* scales, char* sum);
template <typename V>
struct SumRows {
  static DYNEMB_ALWAYS_INLINE void Run(int64_t dim, const ConstRows& rows,
                                       Span<const int64_t> positions, const double* scales,
                                       char* sum) {
    using T = ComputeType<V>;
    constexpr int64_t kAhead = 8;  // rows
    ForColumnBlocks(dim, [&](int64_t first, auto columns) DYNEMB_INLINE_LAMBDA {
      T total[kColumnsOfBlock];
      for (int64_t c = 0; c < columns; ++c) total[c] = 0;
      for (int64_t i = 0; i < positions.size; ++i) {
        if (i + kAhead < positions.size) {
          const V* next = reinterpret_cast<const V*>(rows[positions[i + kAhead]]) + first;
          for (int64_t c = 0; c < columns; c += 64 / sizeof(V)) __builtin_prefetch(next + c);
        }
        const V* row = reinterpret_cast<const V*>(rows[positions[i]]) + first;
        const T scale = scales == nullptr ? T(1) : static_cast<T>(scales[positions[i]]);
        for (int64_t c = 0; c < columns; ++c) {
          total[c] = static_cast<T>(total[c] + scale * static_cast<T>(row[c]));
        }
      }
      V* to = reinterpret_cast<V*>(sum) + first;
      for (int64_t c = 0; c < columns; ++c) to[c] = static_cast<V>(total[c]);
    });
  }
};
inline SumFunction SumFor(DType dtype) {
  return VisitDType(dtype, [](auto tag) -> SumFunction {
    return FastestVariant<SumRows<typename decltype(tag)::type>>();
  });
}

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_CORE_TABLE_VALUE_FUNCTIONS_H_

// What a table does with the numbers of a value, by dtype.
#ifndef TF_DYNEMB_CC_CORE_TABLE_VALUE_FUNCTIONS_H_
#define TF_DYNEMB_CC_CORE_TABLE_VALUE_FUNCTIONS_H_

#include <cstdint>
#include <type_traits>

#include "cc/core/base/dtype.h"
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

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_CORE_TABLE_VALUE_FUNCTIONS_H_

// The number types of a row, and the one switch from a run-time dtype to a C++ type.
#ifndef TF_DYNEMB_CC_CORE_BASE_DTYPE_H_
#define TF_DYNEMB_CC_CORE_BASE_DTYPE_H_

#include <cstdint>
#include <cstring>
#include <string_view>
#include <type_traits>

#include "cc/core/base/macros.h"

namespace dynemb {

enum class DType : uint8_t {
  kFloat32,
  kFloat64,
  kFloat16,
  kBFloat16,
  kInt8,
  kInt32,
  kInt64,
};

namespace dtype_internal {

DYNEMB_HOST_DEVICE inline uint32_t FloatBits(float f) {
  uint32_t u;
  std::memcpy(&u, &f, sizeof(u));
  return u;
}
DYNEMB_HOST_DEVICE inline float BitsFloat(uint32_t u) {
  float f;
  std::memcpy(&f, &u, sizeof(f));
  return f;
}

}  // namespace dtype_internal

// bfloat16 in memory; arithmetic happens in float. Conversion rounds to nearest, ties to even; NaN
// stays NaN.
struct BFloat16 {
  uint16_t bits = 0;

  BFloat16() = default;
  DYNEMB_HOST_DEVICE explicit BFloat16(float f) {
    uint32_t u = dtype_internal::FloatBits(f);
    if ((u & 0x7fffffffu) > 0x7f800000u) {
      bits = static_cast<uint16_t>((u >> 16) | 0x40u);
    } else {
      bits = static_cast<uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
    }
  }
  DYNEMB_HOST_DEVICE explicit operator float() const {
    return dtype_internal::BitsFloat(static_cast<uint32_t>(bits) << 16);
  }
};

// IEEE 754 binary16 in memory; arithmetic happens in float. Conversion rounds to nearest, ties to
// even, with subnormals and infinities. The magic-number method is Fabian Giesen's ("float->half
// variants", 2012).
struct Float16 {
  uint16_t bits = 0;

  Float16() = default;
  DYNEMB_HOST_DEVICE explicit Float16(float f) {
    uint32_t u = dtype_internal::FloatBits(f);
    const uint32_t sign = u & 0x80000000u;
    u ^= sign;
    uint32_t half;
    if (u >= 0x47800000u) {  // 65536 and above, infinities, NaN
      half = u > 0x7f800000u ? 0x7e00u : 0x7c00u;
    } else if (u <
               0x38800000u) {  // below 2^-14: adding 0.5 leaves the subnormal's bits at the bottom
      half = dtype_internal::FloatBits(dtype_internal::BitsFloat(u) + 0.5f) - 0x3f000000u;
    } else {
      const uint32_t odd = (u >> 13) & 1u;
      half = (u + 0xc8000fffu + odd) >> 13;  // rebias the exponent by -112, round
    }
    bits = static_cast<uint16_t>(half | (sign >> 16));
  }
  DYNEMB_HOST_DEVICE explicit operator float() const {
    const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16;
    const uint32_t rest = static_cast<uint32_t>(bits & 0x7fffu) << 13;
    const uint32_t exponent = rest & 0x0f800000u;
    float f;
    if (exponent == 0x0f800000u) {  // infinity, NaN
      f = dtype_internal::BitsFloat(rest + 0x70000000u);
    } else if (exponent == 0) {  // zero, subnormal
      f = dtype_internal::BitsFloat(rest + 0x38800000u) - dtype_internal::BitsFloat(0x38800000u);
    } else {
      f = dtype_internal::BitsFloat(rest + 0x38000000u);
    }
    return dtype_internal::BitsFloat(dtype_internal::FloatBits(f) | sign);
  }
};

template <typename T>
struct TypeTag {
  using type = T;
};

// Calls f(TypeTag<T>()) with the C++ type of `dtype`. The only switch over dtypes in the engine.
template <typename F>
decltype(auto) VisitDType(DType dtype, F&& f) {
  switch (dtype) {
    case DType::kFloat64:
      return f(TypeTag<double>());
    case DType::kFloat16:
      return f(TypeTag<Float16>());
    case DType::kBFloat16:
      return f(TypeTag<BFloat16>());
    case DType::kInt8:
      return f(TypeTag<int8_t>());
    case DType::kInt32:
      return f(TypeTag<int32_t>());
    case DType::kInt64:
      return f(TypeTag<int64_t>());
    case DType::kFloat32:
      break;
  }
  return f(TypeTag<float>());
}

// The type in which values of type V are computed with: double for double, int for ints, else
// float.
template <typename V>
using ComputeType = std::conditional_t<std::is_arithmetic_v<V>, V, float>;

inline int64_t SizeOf(DType dtype) {
  return VisitDType(
      dtype, [](auto tag) { return static_cast<int64_t>(sizeof(typename decltype(tag)::type)); });
}

inline bool IsFloating(DType dtype) {
  return dtype != DType::kInt8 && dtype != DType::kInt32 && dtype != DType::kInt64;
}

// The dtype of slot variables: float32 beside 16-bit values, else the value's own. Floating dtypes
// only.
inline DType SlotDType(DType value) {
  return value == DType::kFloat64 ? DType::kFloat64 : DType::kFloat32;
}

// The dtype of gradients, in which they are also added up: that of the slots.
inline DType GradientDType(DType value) { return SlotDType(value); }

// "float32", ... as NumPy and TensorFlow spell them.
inline const char* Name(DType dtype) {
  constexpr const char* kNames[] = {"float32", "float64", "float16", "bfloat16",
                                    "int8",    "int32",   "int64"};
  return kNames[static_cast<int>(dtype)];
}

// The inverse of Name(); false where there is no such dtype.
inline bool ParseDType(std::string_view name, DType* dtype) {
  for (int i = 0; i <= static_cast<int>(DType::kInt64); ++i) {
    if (name == Name(static_cast<DType>(i))) {
      *dtype = static_cast<DType>(i);
      return true;
    }
  }
  return false;
}

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_CORE_BASE_DTYPE_H_

#include "cc/core/snapshot/quantize.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

namespace dynemb {
namespace {

constexpr double kMost = 127;
// The last 7 of the 24 binary digits of a float32 are left to the product with a number.
constexpr uint32_t kScaleDigits = ~uint32_t{127};

// Calls f with the C++ type of a floating dtype.
template <typename F>
void VisitFloat(DType dtype, const F& f) {
  VisitDType(dtype, [&](auto tag) {
    if constexpr (!std::is_integral_v<typename decltype(tag)::type>) f(tag);
  });
}

// Of a row whose largest number is `largest`, in absolute value; infinite if beyond float32.
float ScaleOf(double largest) {
  const double exact = largest / kMost;
  if (std::isnan(largest) || std::isinf(largest)) return std::numeric_limits<float>::quiet_NaN();
  if (exact > std::numeric_limits<float>::max()) return std::numeric_limits<float>::infinity();
  if (exact < std::numeric_limits<float>::min()) return 0;
  float scale = static_cast<float>(exact);
  if (static_cast<double>(scale) > exact) scale = std::nextafter(scale, 0.0f);
  return dtype_internal::BitsFloat(dtype_internal::FloatBits(scale) & kScaleDigits);
}

}  // namespace

bool Quantize(const ConstRows& rows, DType dtype, int64_t dim, float* scales, int8_t* numbers) {
  bool fits = true;
  VisitFloat(dtype, [&](auto tag) {
    using V = typename decltype(tag)::type;
    const auto at = [&](int64_t row, int64_t i) {
      V number;
      std::memcpy(&number, rows[row] + i * static_cast<int64_t>(sizeof(V)), sizeof(V));
      return static_cast<double>(static_cast<ComputeType<V>>(number));
    };
    for (int64_t row = 0; row < rows.count; ++row, numbers += dim) {
      double largest = 0;
      bool finite = true;
      for (int64_t i = 0; i < dim; ++i) {
        finite = finite && std::isfinite(at(row, i));
        largest = std::max(largest, std::abs(at(row, i)));
      }
      const float scale = ScaleOf(finite ? largest : std::numeric_limits<double>::quiet_NaN());
      scales[row] = scale;
      fits = fits && !std::isinf(scale);
      const bool has_numbers = scale > 0 && !std::isinf(scale);
      for (int64_t i = 0; i < dim; ++i) {
        const double number = has_numbers ? std::nearbyint(at(row, i) / scale) : 0;
        numbers[i] = static_cast<int8_t>(std::clamp(number, -kMost, kMost));
      }
    }
  });
  return fits;
}

bool Dequantize(const float* scales, const int8_t* numbers, int64_t rows, int64_t dim, DType dtype,
                char* values) {
  for (int64_t row = 0; row < rows; ++row) {
    if (scales[row] < 0 || std::isinf(scales[row])) return false;
  }
  VisitFloat(dtype, [&](auto tag) {
    using V = typename decltype(tag)::type;
    using Compute = ComputeType<V>;
    for (int64_t row = 0; row < rows; ++row) {
      const auto scale = static_cast<Compute>(scales[row]);
      for (int64_t i = 0; i < dim; ++i, ++numbers, values += sizeof(V)) {
        const V value = static_cast<V>(scale * static_cast<Compute>(*numbers));
        std::memcpy(values, &value, sizeof(V));
      }
    }
  });
  return true;
}

}  // namespace dynemb

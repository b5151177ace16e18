#include "cc/core/snapshot/quantize.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

namespace dynemb {
namespace {

constexpr double kMost = 127;
// Numbers of this size have no digits behind the point, so that adding it rounds to nearest.
constexpr double kToWhole = 6755399441055744;  // 1.5 * 2^52
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
      double largest = 0, zero = 0;
      for (int64_t i = 0; i < dim; ++i) {
        const double number = at(row, i);
        largest = std::max(largest, std::abs(number));
        zero += number * 0;  // NaN where it is not finite
      }
      const float scale = ScaleOf(largest + zero);
      scales[row] = scale;
      fits = fits && !std::isinf(scale);
      if (!(scale > 0) || std::isinf(scale)) {
        std::fill_n(numbers, dim, int8_t{0});
        continue;
      }
      for (int64_t i = 0; i < dim; ++i) {
        const double number = (at(row, i) / scale + kToWhole) - kToWhole;
        numbers[i] = static_cast<int8_t>(static_cast<int>(std::clamp(number, -kMost, kMost)));
      }
    }
  });
  return fits;
}

Status Dequantize(const float* scales, const int8_t* numbers, int64_t rows, int64_t dim,
                  DType dtype, char* values) {
  for (int64_t row = 0; row < rows; ++row) {
    if (scales[row] < 0 || std::isinf(scales[row])) {
      return Status(Code::kDataLoss, "got a scale that is negative or infinite");
    }
  }
  bool fits = true;
  VisitFloat(dtype, [&](auto tag) {
    using V = typename decltype(tag)::type;
    using Compute = ComputeType<V>;
    for (int64_t row = 0; row < rows; ++row) {
      const auto scale = static_cast<Compute>(scales[row]);
      const auto is_infinite = [&](int number) {
        const V value = static_cast<V>(scale * static_cast<Compute>(number));
        return std::isinf(static_cast<Compute>(value));
      };
      const bool may_be = is_infinite(-128);  // the largest of all int8
      if (may_be && std::any_of(numbers, numbers + dim, is_infinite)) fits = false;
      for (int64_t i = 0; i < dim; ++i, ++numbers, values += sizeof(V)) {
        const V value = static_cast<V>(scale * static_cast<Compute>(*numbers));
        std::memcpy(values, &value, sizeof(V));
      }
    }
  });
  if (fits) return Status();
  return InvalidArgument("value_dtype: got values beyond those of ", Name(dtype),
                         "; want a table of a wider one, bfloat16 or float32");
}

}  // namespace dynemb

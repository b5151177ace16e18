// Views of memory that know where the memory is.
//
// A Span is a pointer, a size and a memory space; a Rows is the same for fixed-width records that
// lie `stride_bytes` apart. Neither owns anything. Code that runs on the host may only follow the
// pointer when `space` is kHost; a table refuses spans of a space that is not its own.
#ifndef TF_DYNEMB_CC_CORE_BASE_SPAN_H_
#define TF_DYNEMB_CC_CORE_BASE_SPAN_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>
#include <vector>

#include "cc/core/base/macros.h"

namespace dynemb {

// Where memory lies. kSimulatedDevice belongs to the tests: host memory that only the simulated
// device may touch.
enum class MemorySpace : uint8_t { kHost, kDevice, kSimulatedDevice };

// Whether what works on memory runs on the host: there, and on a simulated device.
inline bool RunsOnHost(MemorySpace space) { return space != MemorySpace::kDevice; }

template <typename T>
struct Span {
  T* data = nullptr;
  int64_t size = 0;
  MemorySpace space = MemorySpace::kHost;

  Span() = default;
  Span(T* data, int64_t size, MemorySpace space = MemorySpace::kHost)
      : data(data), size(size), space(space) {}
  // From a vector on the host, and from a span of non-const.
  template <typename U, typename = std::enable_if_t<std::is_convertible_v<U (*)[], T (*)[]>>>
  Span(std::vector<U>& v) : data(v.data()), size(static_cast<int64_t>(v.size())) {}  // NOLINT
  template <typename U, typename = std::enable_if_t<std::is_convertible_v<const U (*)[], T (*)[]>>>
  Span(const std::vector<U>& v)  // NOLINT
      : data(v.data()), size(static_cast<int64_t>(v.size())) {}
  template <typename U, typename = std::enable_if_t<std::is_convertible_v<U (*)[], T (*)[]>>>
  Span(const Span<U>& other) : data(other.data), size(other.size), space(other.space) {}  // NOLINT

  bool empty() const { return size == 0; }
  // null if it is empty, wherever it lies.
  T* data_or_null() const { return empty() ? nullptr : data; }
  DYNEMB_HOST_DEVICE T& operator[](int64_t i) const { return data[i]; }
  T* begin() const { return data; }
  T* end() const { return data + size; }
};

// The place of the first number that is not in [0, limit), or how many there are. Of signed
// integers on the host. If all are in it, that costs no more than reading them: no branch for each.
template <typename T>
int64_t FirstOutside(const Span<const T>& numbers, int64_t limit) {
  using Unsigned = std::make_unsigned_t<T>;
  const auto last =
      static_cast<Unsigned>(std::min<int64_t>(limit - 1, std::numeric_limits<T>::max()));
  Unsigned outside = 0;  // its highest bit
  for (const T x : numbers) {
    outside |= static_cast<Unsigned>(x) | static_cast<Unsigned>(last - static_cast<Unsigned>(x));
  }
  if (static_cast<T>(outside) >= 0) return numbers.size;
  return std::find_if(numbers.begin(), numbers.end(), [&](T x) { return x < 0 || x >= limit; }) -
         numbers.begin();
}

// `count` records; record i starts at data + i * stride_bytes, or, with offsets, which lie in the
// same memory space, at data + offsets[i]: so rows of a call may repeat, or be columns of several
// features of one matrix. A column offset is folded into `data`, so that N tables can fill one
// (batch, sum of dims) tensor. `Byte` is char or const char.
template <typename Byte>
struct BasicRows {
  Byte* data = nullptr;
  int64_t count = 0;
  int64_t stride_bytes = 0;
  MemorySpace space = MemorySpace::kHost;
  const int64_t* offsets = nullptr;

  BasicRows() = default;
  BasicRows(Byte* data, int64_t count, int64_t stride_bytes, MemorySpace space = MemorySpace::kHost)
      : data(data), count(count), stride_bytes(stride_bytes), space(space) {}
  // As many records as offsets, which are multiples of the numbers' size.
  BasicRows(Byte* data, const Span<const int64_t>& offsets)
      : data(data), count(offsets.size), space(offsets.space), offsets(offsets.data) {}
  template <typename U, typename = std::enable_if_t<std::is_convertible_v<U (*)[], Byte (*)[]>>>
  BasicRows(const BasicRows<U>& o)  // NOLINT
      : data(o.data),
        count(o.count),
        stride_bytes(o.stride_bytes),
        space(o.space),
        offsets(o.offsets) {}

  DYNEMB_HOST_DEVICE Byte* operator[](int64_t i) const {
    return data + (offsets == nullptr ? i * stride_bytes : offsets[i]);
  }
};

using Rows = BasicRows<char>;
using ConstRows = BasicRows<const char>;

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_CORE_BASE_SPAN_H_

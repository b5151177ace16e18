#include <algorithm>
#include <cub/device/device_radix_sort.cuh>
#include <utility>
#include <vector>

#include "cc/gpu/kernel_starts.h"
#include "cc/gpu/table/device_buffer.h"
#include "cc/gpu/table/sort_pairs.h"

namespace dynemb {
namespace {

template <typename Pairs>
Status SortOnHost(int64_t n, int bits, const Pairs& pairs) {
  const auto masked = [&](auto by) {
    return bits < 64 ? static_cast<uint64_t>(by) & ((uint64_t{1} << bits) - 1)
                     : static_cast<uint64_t>(by);
  };
  std::vector<int64_t> order(static_cast<size_t>(n));
  for (int64_t i = 0; i < n; ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(),
                   [&](int64_t a, int64_t b) { return masked(pairs.by[a]) < masked(pairs.by[b]); });
  for (int64_t i = 0; i < n; ++i) {
    pairs.by_out[i] = pairs.by[order[i]];
    pairs.with_out[i] = pairs.with[order[i]];
  }
  return {};
}

template <typename Pairs>
Status Sort(const Context& context, int64_t n, int bits, const Pairs& pairs, void* temp,
            int64_t temp_bytes) {
  DYNEMB_RETURN_IF_ERROR(CountKernelStart());
  if (RunsOnHost(context.space)) return SortOnHost(n, bits, pairs);
  auto bytes = static_cast<size_t>(temp_bytes);
  return FromCuda(cub::DeviceRadixSort::SortPairs(temp, bytes, pairs.by, pairs.by_out, pairs.with,
                                                  pairs.with_out, n, 0, bits, StreamOf(context)),
                  "sorting");
}

}  // namespace

Status SortPairs(const Context& context, int64_t n, int bits, const Pairs32& pairs, void* temp,
                 int64_t temp_bytes) {
  return Sort(context, n, bits, pairs, temp, temp_bytes);
}

Status SortPairs(const Context& context, int64_t n, int bits, const Pairs64& pairs, void* temp,
                 int64_t temp_bytes) {
  return Sort(context, n, bits, pairs, temp, temp_bytes);
}

Status SortTempBytes(const Context& context, int64_t n, int64_t* bytes) {
  *bytes = 0;
  if (RunsOnHost(context.space)) return {};
  size_t narrow = 0, wide = 0;
  const Pairs32 pairs32 = {};
  const Pairs64 pairs64 = {};
  DYNEMB_RETURN_IF_ERROR(FromCuda(
      cub::DeviceRadixSort::SortPairs(nullptr, narrow, pairs32.by, pairs32.by_out, pairs32.with,
                                      pairs32.with_out, n, 0, 32, StreamOf(context)),
      "asking what sorting needs"));
  DYNEMB_RETURN_IF_ERROR(FromCuda(
      cub::DeviceRadixSort::SortPairs(nullptr, wide, pairs64.by, pairs64.by_out, pairs64.with,
                                      pairs64.with_out, n, 0, 64, StreamOf(context)),
      "asking what sorting needs"));
  *bytes = static_cast<int64_t>(std::max(narrow, wide));
  return {};
}

}  // namespace dynemb

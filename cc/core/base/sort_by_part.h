// SortByPart: the items of a batch sorted by the part that each belongs to, stably: a counting sort
// on all threads.
#ifndef TF_DYNEMB_CC_CORE_BASE_SORT_BY_PART_H_
#define TF_DYNEMB_CC_CORE_BASE_SORT_BY_PART_H_

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "cc/core/base/context.h"
#include "cc/core/base/macros.h"

namespace dynemb {

// part_of(i): the part of item i of [0, n), from 0 to parts - 1, or less than 0 to leave it out;
// asked twice. Calls put(i, part, place) for each other item, from any thread: `place` counts those
// of lower parts and, within a part, those before it. begins[p] is the first place of part p, and
// begins[parts] the number of all. Does not depend on the number of threads. Throws std::bad_alloc.
template <typename PartOf, typename Put>
DYNEMB_ALWAYS_INLINE Status SortByPart(const Context& context, int64_t n, int64_t parts,
                                       const PartOf& part_of, const Put& put, int64_t* begins) {
  constexpr int64_t kSliceItems = 4096;  // fewer are not worth another thread
  const int64_t slices = std::max<int64_t>(
      1, std::min<int64_t>(context.executor->concurrency(), n / std::max(kSliceItems, parts)));
  std::vector<int64_t> next(static_cast<size_t>(slices * parts));
  const auto slice_begin = [&](int64_t slice) { return n * slice / slices; };
  DYNEMB_RETURN_IF_ERROR(context.executor->Run(slices, 2 * n / slices, [&](int64_t slice) {
    int64_t* const count = next.data() + slice * parts;
    for (int64_t i = slice_begin(slice), end = slice_begin(slice + 1); i < end; ++i) {
      const int64_t part = part_of(i);
      if (part >= 0) ++count[part];
    }
  }));
  int64_t place = 0;
  for (int64_t part = 0; part < parts; ++part) {
    begins[part] = place;
    for (int64_t slice = 0; slice < slices; ++slice) {
      int64_t& of_slice = next[static_cast<size_t>(slice * parts + part)];
      place += std::exchange(of_slice, place);
    }
  }
  begins[parts] = place;
  return context.executor->Run(slices, 3 * n / slices, [&](int64_t slice) {
    int64_t* const to = next.data() + slice * parts;
    for (int64_t i = slice_begin(slice), end = slice_begin(slice + 1); i < end; ++i) {
      const int64_t part = part_of(i);
      if (part >= 0) put(i, part, to[part]++);
    }
  });
}

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_CORE_BASE_SORT_BY_PART_H_

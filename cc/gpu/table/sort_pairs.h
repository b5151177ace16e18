// A stable sort of pairs by their first number: CUB's radix sort.
#ifndef TF_DYNEMB_CC_GPU_TABLE_SORT_PAIRS_H_
#define TF_DYNEMB_CC_GPU_TABLE_SORT_PAIRS_H_

#include <cstdint>

#include "cc/core/base/context.h"
#include "cc/core/base/status.h"

namespace dynemb {

// n pairs (by[i], with[i]) in the context's memory, to by_out and with_out, which are apart from
// them. Only the lowest `bits` bits count. `temp`: SortTempBytes(n) of memory to work in.
struct Pairs32 {
  const uint32_t *by, *with;
  uint32_t *by_out, *with_out;
};
struct Pairs64 {
  const uint64_t* by;
  const uint32_t* with;
  uint64_t* by_out;
  uint32_t* with_out;
};
Status SortPairs(const Context& context, int64_t n, int bits, const Pairs32& pairs, void* temp,
                 int64_t temp_bytes);
Status SortPairs(const Context& context, int64_t n, int bits, const Pairs64& pairs, void* temp,
                 int64_t temp_bytes);

// For either, in that memory space.
Status SortTempBytes(const Context& context, int64_t n, int64_t* bytes);

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_GPU_TABLE_SORT_PAIRS_H_

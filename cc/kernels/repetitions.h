// Repetitions: keys that a summed gradient names more than once, for a table whose admission counts
// occurrences. After the distinct keys and their sums follow repeated ones, with rows of zeros.
#ifndef TF_DYNEMB_CC_KERNELS_REPETITIONS_H_
#define TF_DYNEMB_CC_KERNELS_REPETITIONS_H_

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "cc/core/table/distinct_keys.h"
#include "tensorflow/core/framework/tensor.h"

namespace dynemb {

// Of each distinct key as many copies as it occurs beyond the first, up to `most` occurrences.
inline std::vector<Key> Repetitions(const DistinctKeys& distinct, int64_t most) {
  std::vector<Key> repeated;
  if (most <= 1) return repeated;
  std::vector<int64_t> seen(static_cast<size_t>(distinct.size()));
  for (const int64_t u : distinct.numbers()) {
    const int64_t before = seen[static_cast<size_t>(u)]++;
    if (before > 0 && before < most) repeated.push_back(distinct.keys()[static_cast<size_t>(u)]);
  }
  return repeated;
}

inline void CopyKeys(const DistinctKeys& distinct, const std::vector<Key>& repeated,
                     int64_t* keys) {
  std::copy(repeated.begin(), repeated.end(),
            std::copy(distinct.keys().begin(), distinct.keys().end(), keys));
}

// Writes zeros to the rows of a tensor after the first ones.
inline void ClearRows(int64_t rows, int64_t row_bytes, tensorflow::Tensor* tensor) {
  const auto bytes = tensor->tensor_data();
  const size_t begin = static_cast<size_t>(rows * row_bytes);
  std::memset(const_cast<char*>(bytes.data()) + begin, 0, bytes.size() - begin);
}

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_KERNELS_REPETITIONS_H_

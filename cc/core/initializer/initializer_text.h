// Initializers as text, a line of a table's schema (row_layout.h), and which of them make sense:
//
//   initializer constant 0.5                       one number, or one for each column of the row
//   initializer uniform -0.05 0.05                 low, high
//   initializer normal 0 0.01                      mean, standard deviation
//   initializer truncated_normal 0 0.01            the same, cut at two standard deviations
//   initializer bounded_normal 0 1 -1 3            mean, standard deviation, bounds
//   initializer columns 10 normal 0 0.01 | 1 constant 0
//                                                  parts of the row: each its width and one of the
//                                                  above
//
// The seed has a line of its own.
#ifndef TF_DYNEMB_CC_CORE_INITIALIZER_INITIALIZER_TEXT_H_
#define TF_DYNEMB_CC_CORE_INITIALIZER_INITIALIZER_TEXT_H_

#include <string>
#include <vector>

#include "cc/core/base/dtype.h"
#include "cc/core/base/status.h"
#include "cc/core/initializer/initializer.h"

namespace dynemb {

// The words after "initializer".
std::string InitializerText(const Initializer& initializer);

// The inverse, of the words after "initializer"; leaves the seed as it is. The error shows the
// words and what is wanted instead.
Status ParseInitializer(const std::vector<std::string>& words, Initializer* initializer);

// Constants that the dtype holds and as many as columns; finite numbers in their order; parts that
// make up the row; random numbers for floating dtypes only.
Status ValidateInitializer(const Initializer& initializer, DType dtype, int64_t dim);

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_CORE_INITIALIZER_INITIALIZER_TEXT_H_

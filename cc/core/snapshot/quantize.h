// Quantize: rows of floats as 8-bit numbers with a scale for each row, and back.
//
// A row x becomes a scale s and whole numbers q from -127 to 127, and is read as s q. s is
// max|x| / 127, rounded down to 17 binary digits, so that s q is exact in float32; q is x / s
// rounded to nearest. So |x - s q| <= s / 2 <= max|x| / 254 where |x| <= 127 s, and max|x| - 127 s
// <= 2^-16 max|x| beyond. A row of zeros has scale 0, as one whose scale would be below 2^-126, the
// smallest normal float32. A row with a number that is not finite has scale NaN, and is read as
// NaN.
#ifndef TF_DYNEMB_CC_CORE_SNAPSHOT_QUANTIZE_H_
#define TF_DYNEMB_CC_CORE_SNAPSHOT_QUANTIZE_H_

#include <cstdint>

#include "cc/core/base/dtype.h"
#include "cc/core/base/span.h"
#include "cc/core/base/status.h"

namespace dynemb {

// Writes the scale of each row to `scales` and its `dim` numbers to `numbers`, packed. `dtype`: of
// the rows, floating. False: a scale is beyond float32.
bool Quantize(const ConstRows& rows, DType dtype, int64_t dim, float* scales, int8_t* numbers);

// Writes `rows` rows of `dim` numbers of `dtype`, floating, to `values`, packed; rounded to nearest
// where they are narrower than float32. kDataLoss: a scale is negative or infinite, which none is
// that Quantize gives. kInvalidArgument: a number is beyond those of `dtype`.
Status Dequantize(const float* scales, const int8_t* numbers, int64_t rows, int64_t dim,
                  DType dtype, char* values);

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_CORE_SNAPSHOT_QUANTIZE_H_

// Initial values: what a row holds before it is first trained.
//
// An initial value is a pure function of (seed, key, column). It depends on nothing else: not on
// the batch, the shard, the thread, the device or the order of calls, and it is the same to the
// last bit everywhere. Reading a missing key and inserting it therefore give the same numbers. To
// keep that promise this file uses only +, -, *, / and square root of IEEE float32, its own
// logarithm, and must be compiled without contraction to fused multiply-adds. Values are drawn in
// float32 and then converted to the table's dtype.
#ifndef TF_DYNEMB_CC_CORE_INITIALIZER_INITIALIZER_H_
#define TF_DYNEMB_CC_CORE_INITIALIZER_INITIALIZER_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

#include "cc/core/base/dtype.h"
#include "cc/core/base/macros.h"
#include "cc/core/base/rng.h"
#include "cc/core/base/vector_variants.h"
#include "cc/core/initializer/philox_blocks.h"

namespace dynemb {

// The normal distribution between two bounds: of 2^32 words the first `left_words` draw numbers
// left of the mean, from the outermost inwards, and the others those right of it. Made by
// BoundedNormal.
struct NormalBounds {
  struct Side {
    float tail = 0;   // the normal distribution's mass outside of the side
    float mass = 0;   // and in it
    float scale = 0;  // 1 / number of its words
  };
  float low = 0;
  float high = 0;
  Side left, right;
  uint64_t left_words = 0;
};

// The distribution of one random number. a and b are low and high (uniform), or mean and standard
// deviation (normal; truncated normal, cut at two standard deviations, as Keras' TruncatedNormal;
// bounded normal, cut at any bounds).
struct Distribution {
  enum class Kind : uint8_t { kConstant, kUniform, kNormal, kTruncatedNormal, kBoundedNormal };
  Kind kind = Kind::kConstant;
  float a = 0;
  float b = 0;
  NormalBounds bounds = {};
};

// The normal distribution between `low` and `high`. It makes sense if both are finite, b > 0 and
// the masses of its sides add up to kLeastMass. Numbers beyond 6.6 standard deviations, 4e-11 of
// the normal distribution, are not drawn.
Distribution BoundedNormal(float mean, float stddev, float low, float high);
constexpr double kLeastMass = 1e-6;

// The initial value of some columns of a row.
struct InitialColumns {
  int64_t width = 1;
  Distribution distribution = {};
  double constant = 0;
};

struct Initializer {
  Distribution distribution;
  // kConstant: one number, repeated, or one per column. Doubles hold every float and int32 exactly.
  std::vector<double> constant = {0.0};
  uint64_t seed = 0;
  // If there are any, they make up the row, and distribution and constant are not looked at.
  std::vector<InitialColumns> columns = {};
};

// log(x) for normal x > 0, within 1 ulp or so. Coefficients of Cephes' logf (Moshier, 1989).
DYNEMB_HOST_DEVICE inline float PortableLog(float x) {
  uint32_t bits = dtype_internal::FloatBits(x);
  // x = m * 2^e with m in [sqrt(1/2), sqrt(2)).
  const uint32_t offset = bits - 0x3f3504f3u;
  const int e = static_cast<int>(offset) >> 23;
  const float m = dtype_internal::BitsFloat((offset & 0x007fffffu) + 0x3f3504f3u);
  const float t = m - 1.0f;
  const float t2 = t * t;
  float p = 7.0376836292e-2f;
  p = p * t - 1.1514610310e-1f;
  p = p * t + 1.1676998740e-1f;
  p = p * t - 1.2420140846e-1f;
  p = p * t + 1.4249322787e-1f;
  p = p * t - 1.6668057665e-1f;
  p = p * t + 2.0000714765e-1f;
  p = p * t - 2.4999993993e-1f;
  p = p * t + 3.3333331174e-1f;
  float y = p * t * t2;
  const float fe = static_cast<float>(e);
  y = y + fe * -2.12194440e-4f;
  y = y - 0.5f * t2;
  return t + y + fe * 0.693359375f;
}

// |x| such that the standard normal distribution has mass p in (0, 1/2] below -|x|, to about 1e-7:
// Wichura, "Algorithm AS 241: The Percentage Points of the Normal Distribution" (1988), PPND7. Its
// outermost branch is for p < 1.4e-11, which 32 random bits never reach.
DYNEMB_HOST_DEVICE inline float NormalQuantile(float p) {
  const float q = 0.5f - p;
  if (q <= 0.425f) {
    const float r = 0.180625f - q * q;
    const float numerator =
        ((5.9109374720e+01f * r + 1.5929113202e+02f) * r + 5.0434271938e+01f) * r +
        3.3871327179e+00f;
    const float denominator =
        ((6.7187563600e+01f * r + 7.8757757664e+01f) * r + 1.7895169469e+01f) * r + 1.0f;
    return q * numerator / denominator;
  }
  const float r = sqrtf(-PortableLog(p)) - 1.6f;
  const float numerator =
      ((1.7023821103e-01f * r + 1.3067284816e+00f) * r + 2.7568153900e+00f) * r + 1.4234372777e+00f;
  const float denominator = (1.2021132975e-01f * r + 7.3700164250e-01f) * r + 1.0f;
  return numerator / denominator;
}

// One number of the distribution from 32 random bits.
//   uniform: a + (b - a) * u, u in [0, 1) on a grid of 2^-24.
//   normal, truncated normal: by inversion; the top bit is the sign, the others the magnitude.
//   bounded normal: by inversion, see NormalBounds.
DYNEMB_HOST_DEVICE DYNEMB_ALWAYS_INLINE float DrawUniform(const Distribution& distribution,
                                                          uint32_t bits) {
  // Signed, which vector units convert at once. 2^-24.
  const float u = static_cast<float>(static_cast<int32_t>(bits >> 8)) * 5.9604644775390625e-8f;
  return distribution.a + (distribution.b - distribution.a) * u;
}
DYNEMB_HOST_DEVICE inline float DrawBounded(const Distribution& distribution, uint32_t bits) {
  const NormalBounds& bounds = distribution.bounds;
  const bool is_left = bits < bounds.left_words;
  const NormalBounds::Side& side = is_left ? bounds.left : bounds.right;
  const uint32_t rank = is_left ? bits : ~bits;  // 0 is the outermost
  const float p = side.tail + side.mass * ((static_cast<float>(rank) + 0.5f) * side.scale);
  const float z = NormalQuantile(p < 0.5f ? p : 0.5f);
  const float x = distribution.a + distribution.b * (is_left ? -z : z);
  const float above = x < bounds.low ? bounds.low : x;
  return above > bounds.high ? bounds.high : above;
}
DYNEMB_HOST_DEVICE DYNEMB_ALWAYS_INLINE float DrawNormal(const Distribution& distribution,
                                                         uint32_t bits) {
  // Both constants are powers of two or exact products of them with a float: no rounding surprises.
  const float magnitude = (static_cast<float>(bits & 0x7fffffffu) + 0.5f) * 4.656612873077393e-10f;
  float p = 0.5f * magnitude;
  if (distribution.kind == Distribution::Kind::kTruncatedNormal) {
    constexpr float kBelow = 0.022750131948179207f;  // the normal distribution's mass below -2
    p = kBelow + (0.5f - kBelow) * magnitude;
  }
  const float z = NormalQuantile(p < 0.5f ? p : 0.5f);
  return distribution.a + distribution.b * ((bits >> 31) ? z : -z);
}
DYNEMB_HOST_DEVICE inline float Draw(const Distribution& distribution, uint32_t bits) {
  using Kind = Distribution::Kind;
  if (distribution.kind == Kind::kUniform) return DrawUniform(distribution, bits);
  if (distribution.kind == Kind::kBoundedNormal) return DrawBounded(distribution, bits);
  return DrawNormal(distribution, bits);
}

// Writes the initial value of columns [block * 4, block * 4 + 4) of the row `value` of `key`, those
// of them that are less than dim: column c takes word c mod 4 of the Philox block whose key is the
// seed and whose counter is (key, c / 4).
template <typename V>
DYNEMB_HOST_DEVICE void FillRandomBlock(const Distribution& distribution, uint64_t seed,
                                        int64_t key, int64_t block, int64_t dim, V* value) {
  const Random128 random =
      Philox4x32(seed, static_cast<uint64_t>(key), static_cast<uint64_t>(block));
  for (int64_t c = block * 4; c < dim && c < block * 4 + 4; ++c) {
    value[c] = static_cast<V>(Draw(distribution, random.word[c & 3]));
  }
}

// Writes the initial value of columns [0, dim) of `key`.
template <typename V>
DYNEMB_HOST_DEVICE void FillRandom(const Distribution& distribution, uint64_t seed, int64_t key,
                                   int64_t dim, V* value) {
  for (int64_t block = 0; block * 4 < dim; ++block) {
    FillRandomBlock(distribution, seed, key, block, dim, value);
  }
}

// The same bits as FillRandom, in columns [begin, end) of the row `value`; 32 columns at a time,
// for the vector units of the host.
template <typename V>
struct FillRandomColumns {
  static DYNEMB_ALWAYS_INLINE void Run(const Distribution& distribution, uint64_t seed, int64_t key,
                                       int64_t begin, int64_t end, V* value) {
    static const PhiloxBlocksFunction random = FastestPhiloxBlocks();
    constexpr int64_t kColumns = 4 * kPhiloxBlocks;
    const Distribution drawn = distribution;  // a copy that no store to `value` can change
    for (int64_t first = begin / 4 * 4; first < end; first += kColumns) {
      uint32_t bits[kColumns];
      random(seed, static_cast<uint64_t>(key), static_cast<uint64_t>(first / 4), bits);
      const int64_t from = std::max(begin - first, int64_t{0});
      const int64_t columns = std::min(kColumns, end - first);
      V* const to = value + first;
      // A loop for each, that it can be run by vector units.
      if (drawn.kind == Distribution::Kind::kUniform) {
        for (int64_t c = from; c < columns; ++c) {
          to[c] = static_cast<V>(DrawUniform(drawn, bits[c]));
        }
      } else if (drawn.kind == Distribution::Kind::kBoundedNormal) {
        for (int64_t c = from; c < columns; ++c) {
          to[c] = static_cast<V>(DrawBounded(drawn, bits[c]));
        }
      } else {
        for (int64_t c = from; c < columns; ++c) {
          to[c] = static_cast<V>(DrawNormal(drawn, bits[c]));
        }
      }
    }
  }
};

template <typename V>
DYNEMB_HOST_DEVICE V FromConstant(double constant) {
  return static_cast<V>(
      static_cast<std::conditional_t<std::is_arithmetic_v<V>, double, float>>(constant));
}

// The initial value of `key` for any initializer; host only.
template <typename V>
void FillInitialValue(const Initializer& initializer, int64_t key, int64_t dim, V* value) {
  static const auto fill = FastestVariant<FillRandomColumns<V>>();
  int64_t begin = 0;
  for (const InitialColumns& part : initializer.columns) {
    const int64_t end = begin + part.width;
    if (part.distribution.kind == Distribution::Kind::kConstant) {
      std::fill(value + begin, value + end, FromConstant<V>(part.constant));
    } else {
      fill(part.distribution, initializer.seed, key, begin, end, value);
    }
    begin = end;
  }
  if (begin != 0) return;
  if (initializer.distribution.kind != Distribution::Kind::kConstant) {
    fill(initializer.distribution, initializer.seed, key, 0, dim, value);
    return;
  }
  const bool repeat = initializer.constant.size() == 1;
  for (int64_t c = 0; c < dim; ++c) {
    value[c] = FromConstant<V>(initializer.constant[repeat ? 0 : static_cast<size_t>(c)]);
  }
}

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_CORE_INITIALIZER_INITIALIZER_H_

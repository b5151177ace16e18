// Initial values: their distributions against the exact ones, their errors against double
// precision, and their bits, which are a promise.
#include "cc/core/initializer/initializer.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <random>
#include <vector>

#include "cc/core/base/status.h"
#include "gtest/gtest.h"

namespace dynemb {
namespace {

using Kind = Distribution::Kind;

// The normal distribution's mass below z.
double Phi(double z) { return 0.5 * std::erfc(-z / std::sqrt(2.0)); }

uint32_t Bits(float f) { return dtype_internal::FloatBits(f); }

std::vector<float> Draws(const Distribution& distribution, uint64_t seed, int64_t keys,
                         int64_t dim) {
  std::vector<float> draws(keys * dim);
  for (int64_t k = 0; k < keys; ++k) {
    FillRandom(distribution, seed, k * 7919 - 1000, dim, &draws[k * dim]);
  }
  return draws;
}

// Kolmogorov and Smirnov's statistic times sqrt(n): above 1.358 with a probability of 0.05,
// above 2.7 with one of 1e-6.
double KolmogorovSmirnov(std::vector<float> draws, const std::function<double(double)>& cdf) {
  std::sort(draws.begin(), draws.end());
  const double n = static_cast<double>(draws.size());
  double distance = 0;
  for (size_t i = 0; i < draws.size(); ++i) {
    const double f = cdf(draws[i]);
    distance =
        std::max({distance, f - static_cast<double>(i) / n, static_cast<double>(i + 1) / n - f});
  }
  return distance * std::sqrt(n);
}

struct Moments {
  double mean = 0, variance = 0, skewness = 0, kurtosis = 0;
};
Moments MomentsOf(const std::vector<float>& draws) {
  Moments m;
  const double n = static_cast<double>(draws.size());
  for (const float x : draws) m.mean += x / n;
  for (const float x : draws) m.variance += (x - m.mean) * (x - m.mean) / n;
  for (const float x : draws) {
    const double z = (x - m.mean) / std::sqrt(m.variance);
    m.skewness += z * z * z / n;
    m.kurtosis += z * z * z * z / n;
  }
  return m;
}

// Draws of one seed by the large number, and of many seeds by how many of them look unlikely.
void ExpectDistribution(const Distribution& distribution,
                        const std::function<double(double)>& cdf) {
  for (const int64_t dim : {1, 3, 8, 64}) {
    EXPECT_LT(KolmogorovSmirnov(Draws(distribution, 11, 200'000 / dim, dim), cdf), 2.7) << dim;
    int unlikely = 0;
    for (uint64_t seed = 0; seed < 200; ++seed) {
      unlikely += KolmogorovSmirnov(Draws(distribution, seed, 1000 / dim, dim), cdf) > 1.358;
    }
    EXPECT_NEAR(unlikely, 10, 9) << dim;  // three standard deviations
  }
}

constexpr int64_t kDims[] = {1, 3, 8, 64};
constexpr int64_t kDraws = 200'000;

TEST(Initializer, UniformIsUniform) {
  ExpectDistribution({Kind::kUniform, -2, 6}, [](double x) { return (x + 2) / 8; });
  for (const int64_t dim : kDims) {
    const std::vector<float> draws = Draws({Kind::kUniform, -2, 6}, 1, kDraws / dim, dim);
    const Moments m = MomentsOf(draws);
    EXPECT_NEAR(m.mean, 2, 0.03);
    EXPECT_NEAR(m.variance, 64.0 / 12, 0.05);
    EXPECT_NEAR(m.kurtosis, 1.8, 0.02);
    EXPECT_GE(*std::min_element(draws.begin(), draws.end()), -2.0f);
    EXPECT_LT(*std::max_element(draws.begin(), draws.end()), 6.0f);
  }
}

TEST(Initializer, NormalIsNormal) {
  ExpectDistribution({Kind::kNormal, 1, 3}, [](double x) { return Phi((x - 1) / 3); });
  for (const int64_t dim : kDims) {
    const std::vector<float> draws = Draws({Kind::kNormal, 1, 3}, 2, kDraws / dim, dim);
    const Moments m = MomentsOf(draws);
    EXPECT_NEAR(m.mean, 1, 0.03);
    EXPECT_NEAR(m.variance, 9, 0.15);
    EXPECT_NEAR(m.skewness, 0, 0.03);
    EXPECT_NEAR(m.kurtosis, 3, 0.06);
  }
}

TEST(Initializer, TruncatedNormalIsCutAtTwoDeviations) {
  const double mass = Phi(2) - Phi(-2);
  const double density_at_2 = std::exp(-2.0) / std::sqrt(2 * std::acos(-1.0));
  ExpectDistribution({Kind::kTruncatedNormal, -1, 0.5f},
                     [&](double x) { return (Phi((x + 1) / 0.5) - Phi(-2)) / mass; });
  for (const int64_t dim : kDims) {
    const std::vector<float> draws =
        Draws({Kind::kTruncatedNormal, -1, 0.5f}, 3, kDraws / dim, dim);
    const Moments m = MomentsOf(draws);
    EXPECT_NEAR(m.mean, -1, 0.005);
    EXPECT_NEAR(m.variance, 0.25 * (1 - 4 * density_at_2 / mass), 0.003);
    EXPECT_GE(*std::min_element(draws.begin(), draws.end()), -2.000001f);
    EXPECT_LE(*std::max_element(draws.begin(), draws.end()), 0.000001f);
  }
}

TEST(Initializer, BoundedNormalIsCutAtItsBounds) {
  struct Line {
    float mean, stddev, low, high;
  };
  // Around the mean, on one side of it, in a tail, without a bound on a side, and very narrow.
  for (const auto& [mean, stddev, low, high] :
       {Line{0, 1, -2, 2}, Line{1, 0.5f, 0.9f, 3}, Line{0, 2, 1, 3}, Line{-1, 1, -9, -2},
        Line{0, 1, 4, 5}, Line{0, 1, -5, -4.5f}, Line{5, 3, -1e30f, 1e30f}, Line{0, 10, 0, 1},
        Line{0, 1, -0.01f, 0.02f}}) {
    SCOPED_TRACE(StrCat(mean, " ", stddev, " ", low, " ", high));
    // From the side where it is small: in the tails the mass below 4 is a 1 that has lost its
    // digits.
    const auto between = [&, mean = mean, stddev = stddev](double x, double y) {
      const double a = (x - mean) / stddev, b = (y - mean) / stddev;
      return a > 0 ? Phi(-a) - Phi(-b) : Phi(b) - Phi(a);
    };
    const Distribution distribution = BoundedNormal(mean, stddev, low, high);
    const double mass = between(low, high);
    const NormalBounds& bounds = distribution.bounds;
    EXPECT_NEAR((bounds.left.mass + bounds.right.mass) / mass, 1, 1e-6);
    const std::vector<float> draws = Draws(distribution, 5, 50'000, 4);
    EXPECT_LT(KolmogorovSmirnov(draws, [&, low = low](double x) { return between(low, x) / mass; }),
              2.7);
    EXPECT_GE(*std::min_element(draws.begin(), draws.end()), low);
    EXPECT_LE(*std::max_element(draws.begin(), draws.end()), high);
  }
  // Numbers rise with the word, to the left of the mean and from the other end to the right of it.
  const Distribution distribution = BoundedNormal(0, 1, -1, 2);
  const uint32_t middle = static_cast<uint32_t>(distribution.bounds.left_words);
  EXPECT_NEAR(Draw(distribution, 0), -1, 1e-6);
  EXPECT_NEAR(Draw(distribution, middle - 1), 0, 1e-6);
  EXPECT_NEAR(Draw(distribution, middle), 0, 1e-6);
  EXPECT_NEAR(Draw(distribution, ~0u), 2, 1e-6);
}

TEST(Initializer, BoundsThatNothingLiesBetweenHaveNoMass) {
  const float nan = std::nanf(""), infinity = std::numeric_limits<float>::infinity();
  const auto mass = [](float mean, float stddev, float low, float high) {
    const NormalBounds bounds = BoundedNormal(mean, stddev, low, high).bounds;
    return bounds.left.mass + bounds.right.mass;
  };
  EXPECT_EQ(mass(0, 1, 1, 1), 0);
  EXPECT_EQ(mass(0, 1, 2, 1), 0);
  EXPECT_EQ(mass(0, 1, 7, 8), 0);
  EXPECT_LT(mass(0, 1, 5.5f, 8), kLeastMass);
  EXPECT_EQ(mass(0, -1, -1, 1), 0);
  EXPECT_NEAR(mass(0, 1, -infinity, infinity), 1, 1e-6);
  mass(nan, nan, nan, nan);  // no more than that it comes to an end
}

// Neighbouring keys, columns and seeds have nothing to do with each other.
TEST(Initializer, DrawsAreIndependent) {
  const Distribution normal = {Kind::kNormal, 0, 1};
  constexpr int64_t kKeys = 50'000, kDim = 5;
  const auto correlation = [&](const std::function<double(int64_t)>& x,
                               const std::function<double(int64_t)>& y) {
    double sum = 0;
    for (int64_t k = 0; k < kKeys; ++k) sum += x(k) * y(k);
    return sum / kKeys;
  };
  std::vector<float> here(kKeys * kDim), other_seed(kKeys * kDim);
  for (int64_t k = 0; k < kKeys; ++k) {
    FillRandom(normal, 8, k, kDim, &here[k * kDim]);
    FillRandom(normal, 9, k, kDim, &other_seed[k * kDim]);
  }
  const double bound = 4.5 / std::sqrt(static_cast<double>(kKeys));
  const auto first = [&](int64_t k) { return here[k * kDim]; };
  for (int64_t c = 1; c < kDim; ++c) {
    EXPECT_NEAR(correlation(first, [&](int64_t k) { return here[k * kDim + c]; }), 0, bound);
  }
  EXPECT_NEAR(correlation(first, [&](int64_t k) { return here[(k + 1) % kKeys * kDim]; }), 0,
              bound);
  EXPECT_NEAR(correlation(first, [&](int64_t k) { return other_seed[k * kDim]; }), 0, bound);
  EXPECT_NEAR(correlation(first, first), 1, 5 * bound);
}

TEST(Initializer, QuantileIsExactToFloat) {
  const auto exact = [](double p) {  // |x| with mass p below -|x|
    double low = 0, high = 10;
    for (int i = 0; i < 200; ++i) {
      const double middle = (low + high) / 2;
      (Phi(-middle) > p ? low : high) = middle;
    }
    return low;
  };
  double worst = 0;
  for (double p = std::ldexp(1.0, -33); p < 0.5; p *= 1.0007) {
    const float q = static_cast<float>(p);
    const double want = exact(q);
    worst = std::max(worst, std::fabs(NormalQuantile(q) - want) / std::max(want, 0.01));
  }
  EXPECT_LT(worst, 1e-6);
  EXPECT_EQ(NormalQuantile(0.5f), 0.0f);
}

TEST(Initializer, LogarithmIsExactToFloat) {
  double worst = 0;
  std::mt19937 random(4);
  for (int i = 0; i < 1'000'000; ++i) {
    const uint32_t exponent = 1 + static_cast<uint32_t>(random()) % 254;
    const float x =
        dtype_internal::BitsFloat(exponent << 23 | (static_cast<uint32_t>(random()) & 0x7fffff));
    const double want = std::log(static_cast<double>(x));
    const double ulp =
        std::fabs(std::nextafter(static_cast<float>(want), INFINITY) - static_cast<float>(want));
    worst = std::max(worst, std::fabs(PortableLog(x) - want) / std::max(ulp, 1e-9));
  }
  EXPECT_LT(worst, 1.5);
  EXPECT_EQ(PortableLog(1.0f), 0.0f);
}

// All 32 bits at their ends.
TEST(Initializer, ExtremeBitsGiveSaneNumbers) {
  for (const uint32_t magnitude : {0u, 1u, 0x7ffffffeu, 0x7fffffffu, 0x40000000u}) {
    for (const Kind kind : {Kind::kNormal, Kind::kTruncatedNormal}) {
      const Distribution d = {kind, 0, 1};
      const float below = Draw(d, magnitude), above = Draw(d, magnitude | 0x80000000u);
      EXPECT_TRUE(std::isfinite(below));
      EXPECT_EQ(below, -above) << "symmetric";
      EXPECT_LE(below, 0);
      EXPECT_GE(below, kind == Kind::kNormal ? -6.5f : -2.000001f);
    }
  }
  EXPECT_EQ(Draw({Kind::kUniform, 3, 5}, 0), 3.0f);
  EXPECT_LT(Draw({Kind::kUniform, 0, 1}, 0xffffffffu), 1.0f);
  EXPECT_LE(Draw({Kind::kUniform, -0.05f, 0.05f}, 0xffffffffu), 0.05f);
  EXPECT_EQ(Draw({Kind::kUniform, 2, 2}, 0x12345678u), 2.0f);
  EXPECT_EQ(Draw({Kind::kNormal, 2, 0}, 0x12345678u), 2.0f);
}

// A column's number depends on nothing but seed, key and column.
TEST(Initializer, DependsOnSeedKeyAndColumnAlone) {
  const Initializer initializer = {{Kind::kNormal, 0, 1}, {0.0}, 42};
  std::vector<float> wide(1024);
  FillInitialValue(initializer, -17, 1024, wide.data());
  for (const int64_t dim : {1, 2, 3, 4, 5, 63, 64, 200, 1023}) {
    std::vector<float> narrow(dim + 1, 7.0f);
    FillInitialValue(initializer, -17, dim, narrow.data());
    EXPECT_TRUE(std::equal(narrow.begin(), narrow.end() - 1, wide.begin())) << dim;
    EXPECT_EQ(narrow[dim], 7.0f) << "wrote too far";
  }
}

// The host's own way gives the bits of the way that host and device share.
TEST(Initializer, ColumnsTogetherAreColumnsOneByOne) {
  for (const Distribution::Kind kind : {Distribution::Kind::kUniform, Distribution::Kind::kNormal,
                                        Distribution::Kind::kTruncatedNormal}) {
    Initializer initializer;
    initializer.distribution = {kind, -0.5f, 2.0f};
    initializer.seed = 0xfedcba9876543210;
    for (const int64_t dim : {1, 3, 4, 5, 31, 32, 33, 200}) {
      for (const int64_t key : {int64_t{0}, int64_t{-1}, int64_t{1} << 62}) {
        std::vector<float> want(dim), got(dim);
        FillRandom(initializer.distribution, initializer.seed, key, dim, want.data());
        FillInitialValue(initializer, key, dim, got.data());
        EXPECT_EQ(got, want) << dim;
      }
    }
  }
}

// Of the processor that runs the tests, and of any.
TEST(Initializer, BlocksTogetherAreBlocksOneByOne) {
  std::mt19937_64 random(5);
  for (int i = 0; i < 2000; ++i) {
    const uint64_t seed = random(), key = random();
    const uint64_t first = i % 2 == 0 ? 8 * static_cast<uint64_t>(i) : (random() >> 32) / 2;
    for (const PhiloxBlocksFunction blocks : {FastestPhiloxBlocks(), &PhiloxBlocksAnywhere}) {
      uint32_t words[4 * kPhiloxBlocks];
      blocks(seed, key, first, words);
      for (uint64_t b = 0; b < kPhiloxBlocks; ++b) {
        const Random128 want = Philox4x32(seed, key, first + b);
        EXPECT_TRUE(std::equal(want.word, want.word + 4, words + 4 * b)) << seed << " " << key;
      }
    }
  }
}

// A part of a row has the numbers that its columns have in a row of its distribution alone.
TEST(Initializer, PartsHaveTheNumbersOfTheirColumns) {
  const Distribution distributions[] = {{Kind::kUniform, -1, 1},
                                        {Kind::kConstant},
                                        {Kind::kNormal, 5, 1},
                                        BoundedNormal(0, 1, -0.5f, 3)};
  std::mt19937 random(7);
  for (int i = 0; i < 200; ++i) {
    Initializer parts;
    parts.seed = 0xfedcba9876543210 + static_cast<uint64_t>(i);
    std::vector<float> want;
    const int64_t key = static_cast<int64_t>(random()) - (int64_t{1} << 31);
    for (size_t part = 1 + random() % 5; part-- > 0;) {
      const Distribution& distribution = distributions[random() % 4];
      const int64_t width = 1 + random() % (i % 2 == 0 ? 3 : 90);
      parts.columns.push_back({width, distribution, 0.25 * static_cast<double>(part)});
      const size_t begin = want.size();
      std::vector<float> row(begin + static_cast<size_t>(width), parts.columns.back().constant);
      if (distribution.kind != Kind::kConstant) {
        FillRandom(distribution, parts.seed, key, static_cast<int64_t>(row.size()), row.data());
      }
      want.insert(want.end(), row.begin() + static_cast<int64_t>(begin), row.end());
    }
    std::vector<float> got(want.size() + 1, 77.0f);
    FillInitialValue(parts, key, static_cast<int64_t>(want.size()), got.data());
    want.push_back(77.0f);
    ASSERT_EQ(got, want) << i;
  }
}

TEST(Initializer, IsDrawnInFloatAndConverted) {
  const Initializer initializer = {{Kind::kTruncatedNormal, 0.3f, 2}, {0.0}, 5};
  constexpr int64_t kDim = 101;
  float f[kDim];
  double d[kDim];
  Float16 h[kDim];
  BFloat16 b[kDim];
  FillInitialValue(initializer, 99, kDim, f);
  FillInitialValue(initializer, 99, kDim, d);
  FillInitialValue(initializer, 99, kDim, h);
  FillInitialValue(initializer, 99, kDim, b);
  for (int64_t c = 0; c < kDim; ++c) {
    EXPECT_EQ(d[c], static_cast<double>(f[c]));
    EXPECT_EQ(h[c].bits, Float16(f[c]).bits);
    EXPECT_EQ(b[c].bits, BFloat16(f[c]).bits);
  }
}

TEST(Initializer, Constants) {
  Initializer initializer;
  initializer.constant = {-3.0};
  int8_t i8[3];
  FillInitialValue(initializer, 1, 3, i8);
  EXPECT_EQ(std::vector<int8_t>(i8, i8 + 3), (std::vector<int8_t>{-3, -3, -3}));
  initializer.constant = {0.1, 2147483647.0, -4.5};
  double d[3];
  float f[3];
  Float16 h[3];
  FillInitialValue(initializer, 1, 3, d);
  FillInitialValue(initializer, 1, 3, f);
  FillInitialValue(initializer, 1, 3, h);
  for (int c = 0; c < 3; ++c) {
    EXPECT_EQ(d[c], initializer.constant[c]);
    EXPECT_EQ(f[c], static_cast<float>(initializer.constant[c]));
    EXPECT_EQ(h[c].bits, Float16(static_cast<float>(initializer.constant[c])).bits);
  }
}

// Whoever changes these numbers breaks the promise that a seed makes: models that are trained on,
// served or resharded would see other rows than before.
TEST(Initializer, GoldenBits) {
  struct Line {
    Kind kind;
    float a, b;
    int64_t key;
    uint32_t bits[6];
  };
  const Line lines[] = {
      {Kind::kUniform,
       -0.05f,
       0.05f,
       0,
       {0x3cb433a2, 0x3cde8f02, 0xbd2bc09a, 0xbb0c4ce0, 0x3d442fff, 0xbbff2c98}},
      {Kind::kUniform,
       -0.05f,
       0.05f,
       -1,
       {0xbbe3ea68, 0xbceaaed0, 0x3c3a7840, 0xbd283466, 0x3cdd4e1a, 0xbcbf5c07}},
      {Kind::kUniform,
       -0.05f,
       0.05f,
       INT64_MIN,
       {0x3cc600fa, 0x3cf6dc4a, 0xbd371668, 0x3c57934c, 0x3cb0f156, 0x3be87750}},
      {Kind::kUniform,
       -0.05f,
       0.05f,
       123456789012345,
       {0xbd097715, 0xbd0210c0, 0x3cb0f286, 0xbcce47da, 0xbc483d98, 0x3c7f423c}},
      {Kind::kNormal,
       0,
       1,
       0,
       {0x3f45b47e, 0x3f1b953c, 0xbfb34362, 0xbd5be7d3, 0x3d57fbd5, 0xbe492b7d}},
      {Kind::kNormal,
       0,
       1,
       -1,
       {0xbe337205, 0xbf4b54a3, 0x3f9a6ea4, 0xbfac2294, 0x3f1cc406, 0xbf1fabdf}},
      {Kind::kNormal,
       0,
       1,
       INT64_MIN,
       {0x3f3369be, 0x3f054227, 0xbfcee4a6, 0x3f8f3a5c, 0x3f4929ae, 0x3fbc01c3}},
      {Kind::kNormal,
       0,
       1,
       123456789012345,
       {0xbf7a0052, 0xbf67f233, 0x3f49286c, 0xbf2e20d2, 0xbe9f63e5, 0x3f81854d}},
      {Kind::kTruncatedNormal,
       1,
       0.5f,
       0,
       {0x3faeb74e, 0x3fa4e8dd, 0x3eb79338, 0x3f7970df, 0x3f833897, 0x3f680302}},
      {Kind::kTruncatedNormal,
       1,
       0.5f,
       -1,
       {0x3f6a9988, 0x3f1ff852, 0x3fc7ac04, 0x3ec34ed8, 0x3fa52fca, 0x3f344421}},
      {Kind::kTruncatedNormal,
       1,
       0.5f,
       INT64_MIN,
       {0x3faa7948, 0x3f9faa43, 0x3e8c7726, 0x3fc2c9fe, 0x3faf83c9, 0x3fd5a016}},
      {Kind::kTruncatedNormal,
       1,
       0.5f,
       123456789012345,
       {0x3f0aab15, 0x3f12d9e4, 0x3faf837e, 0x3f2d837b, 0x3f5a0564, 0x3fbcb2d8}},
  };
  for (const Line& line : lines) {
    float got[6];
    FillRandom({line.kind, line.a, line.b}, 0x0123456789abcdef, line.key, 6, got);
    for (int c = 0; c < 6; ++c) {
      EXPECT_EQ(Bits(got[c]), line.bits[c])
          << "kind " << static_cast<int>(line.kind) << ", key " << line.key << ", column " << c;
    }
  }
}

TEST(Initializer, GoldenBitsBetweenBounds) {
  struct Line {
    float mean, stddev, low, high;
    int64_t key;
    uint32_t bits[6];
  };
  const Line lines[] = {
      {0, 1, -1, 3, 0, {0x3f37a5e2, 0x3f5dcb7a, 0xbf402b52, 0x3e1c5507, 0x4004c620, 0x3d07f599}},
      {0, 1, -1, 3, -1, {0x3d4fc450, 0xbed5f61c, 0x3ee7440e, 0xbf3a093d, 0x3f5c98c9, 0xbe99224e}},
      {1,
       0.5f,
       1.5f,
       2.5f,
       0,
       {0x3fec3c8e, 0x3ff2221a, 0x3fc3732a, 0x3fd87f0a, 0x4013356c, 0x3fd4edc2}},
      {1,
       0.5f,
       1.5f,
       2.5f,
       -1,
       {0x3fd57012, 0x3fc999fc, 0x3fe2648b, 0x3fc3d4fa, 0x3ff1f1bf, 0x3fcc3fec}},
  };
  for (const Line& line : lines) {
    float got[6];
    FillRandom(BoundedNormal(line.mean, line.stddev, line.low, line.high), 0x0123456789abcdef,
               line.key, 6, got);
    for (int c = 0; c < 6; ++c) EXPECT_EQ(Bits(got[c]), line.bits[c]) << line.key << ", " << c;
  }
}

}  // namespace
}  // namespace dynemb

// Number formats against slow arithmetic in double, random numbers and hashes against published
// values, and the small types.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <new>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "cc/core/base/context.h"
#include "cc/core/base/copy_bytes.h"
#include "cc/core/base/dtype.h"
#include "cc/core/base/hash.h"
#include "cc/core/base/no_memory.h"
#include "cc/core/base/rng.h"
#include "cc/core/base/span.h"
#include "cc/core/base/status.h"
#include "cc/core/testing/executors.h"
#include "gtest/gtest.h"

namespace dynemb {
namespace {

float FromBits(uint32_t bits) {
  float f;
  std::memcpy(&f, &bits, sizeof(f));
  return f;
}
uint32_t ToBits(float f) {
  uint32_t bits;
  std::memcpy(&bits, &f, sizeof(bits));
  return bits;
}

// A 16-bit binary format: sign, exponent, `mantissa_bits` bits of mantissa.
struct Format {
  int mantissa_bits;
  int min_exponent;  // of normal numbers
  int bias;
  int max_exponent;
};
constexpr Format kHalf = {10, -14, 15, 15};
constexpr Format kBrain = {7, -126, 127, 127};

// What the bits mean, by the definition of IEEE 754.
double Decode(const Format& f, uint16_t bits) {
  const int mantissa = bits & ((1 << f.mantissa_bits) - 1);
  const int exponent = (bits & 0x7fff) >> f.mantissa_bits;
  const double sign = (bits & 0x8000) != 0 ? -1 : 1;
  if (exponent == f.max_exponent + f.bias + 1) {
    return mantissa == 0 ? sign * std::numeric_limits<double>::infinity()
                         : std::numeric_limits<double>::quiet_NaN();
  }
  if (exponent == 0) return sign * std::ldexp(mantissa, f.min_exponent - f.mantissa_bits);
  return sign * std::ldexp(1 + std::ldexp(mantissa, -f.mantissa_bits), exponent - f.bias);
}

// The nearest number of the format, ties to the even one, in exact double arithmetic.
uint16_t Encode(const Format& f, double x) {
  const uint16_t sign = std::signbit(x) ? 0x8000 : 0;
  const double magnitude = std::fabs(x);
  const uint16_t infinity = static_cast<uint16_t>((f.max_exponent + f.bias + 1) << f.mantissa_bits);
  if (magnitude == 0) return sign;
  if (std::isinf(x)) return sign | infinity;
  const int exponent = std::max(std::ilogb(magnitude), f.min_exponent);
  const double unit = std::ldexp(1.0, exponent - f.mantissa_bits);
  const double rounded = std::nearbyint(magnitude / unit) * unit;
  if (rounded >= std::ldexp(1.0, f.max_exponent + 1)) return sign | infinity;
  if (rounded < std::ldexp(1.0, f.min_exponent)) {
    return sign | static_cast<uint16_t>(std::ldexp(rounded, f.mantissa_bits - f.min_exponent));
  }
  const int e = std::ilogb(rounded);
  const int mantissa =
      static_cast<int>(std::ldexp(rounded, f.mantissa_bits - e)) - (1 << f.mantissa_bits);
  return sign | static_cast<uint16_t>((e + f.bias) << f.mantissa_bits | mantissa);
}

template <typename V>
void TestFormat(const Format& format) {
  const auto expect_rounded = [&](float x) {
    const uint16_t got = V(x).bits;
    if (std::isnan(x)) {
      EXPECT_TRUE(std::isnan(Decode(format, got))) << std::hex << ToBits(x);
    } else {
      ASSERT_EQ(got, Encode(format, x)) << "of float bits " << std::hex << ToBits(x);
    }
  };
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    V v;
    v.bits = static_cast<uint16_t>(bits);
    const double want = Decode(format, v.bits);
    const float got = static_cast<float>(v);
    if (std::isnan(want)) {
      ASSERT_TRUE(std::isnan(got)) << bits;
      ASSERT_TRUE(std::isnan(Decode(format, V(got).bits))) << bits;
      continue;
    }
    ASSERT_EQ(static_cast<double>(got), want) << bits;
    ASSERT_EQ(std::signbit(got), (bits & 0x8000) != 0) << bits;
    ASSERT_EQ(V(got).bits, bits) << "there and back";
    // The numbers around it and around the middle between it and the next.
    V next;
    next.bits = static_cast<uint16_t>(bits + 1);
    const float middle = static_cast<float>((want + Decode(format, next.bits)) / 2);
    for (const float at : {got, middle}) {
      if (!std::isfinite(at)) continue;
      expect_rounded(at);
      expect_rounded(std::nextafter(at, -INFINITY));
      expect_rounded(std::nextafter(at, INFINITY));
    }
  }
  std::mt19937 random(1);
  for (int i = 0; i < 1'000'000; ++i) expect_rounded(FromBits(static_cast<uint32_t>(random())));
  for (const uint32_t bits : {0x7f800000u, 0xff800000u, 0x7f800001u, 0x7fffffffu, 0xffc00000u,
                              0x477fefffu, 0x477ff000u, 0x477fffffu, 0x7f7fffffu, 1u}) {
    expect_rounded(FromBits(bits));
  }
}

TEST(DType, Float16IsIeee) { TestFormat<Float16>(kHalf); }
TEST(DType, BFloat16IsRoundedFloat) { TestFormat<BFloat16>(kBrain); }

TEST(DType, NamesSizesAndKinds) {
  struct Line {
    DType dtype;
    const char* name;
    int64_t size;
    bool floating;
  };
  const Line lines[] = {
      {DType::kFloat32, "float32", 4, true}, {DType::kFloat64, "float64", 8, true},
      {DType::kFloat16, "float16", 2, true}, {DType::kBFloat16, "bfloat16", 2, true},
      {DType::kInt8, "int8", 1, false},      {DType::kInt32, "int32", 4, false},
      {DType::kInt64, "int64", 8, false},
  };
  for (const Line& line : lines) {
    EXPECT_STREQ(Name(line.dtype), line.name);
    DType parsed = DType::kInt64;
    EXPECT_TRUE(ParseDType(line.name, &parsed));
    EXPECT_EQ(parsed, line.dtype);
    EXPECT_EQ(SizeOf(line.dtype), line.size) << line.name;
    EXPECT_EQ(IsFloating(line.dtype), line.floating) << line.name;
    const bool right_type = VisitDType(line.dtype, [&](auto tag) {
      using V = typename decltype(tag)::type;
      return sizeof(V) == static_cast<size_t>(line.size) && std::is_integral_v<V> == !line.floating;
    });
    EXPECT_TRUE(right_type) << line.name;
  }
  DType unused;
  for (const char* name : {"", "float", "Float32", "float32 ", "uint8", "float8"}) {
    EXPECT_FALSE(ParseDType(name, &unused)) << name;
  }
  EXPECT_EQ(SlotDType(DType::kFloat64), DType::kFloat64);
  for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
    EXPECT_EQ(SlotDType(dtype), DType::kFloat32);
  }
  static_assert(std::is_same_v<ComputeType<Float16>, float>);
  static_assert(std::is_same_v<ComputeType<BFloat16>, float>);
  static_assert(std::is_same_v<ComputeType<double>, double>);
  static_assert(std::is_same_v<ComputeType<int8_t>, int8_t>);
}

// The known answers of Random123 (kat_vectors) for philox4x32 with 10 rounds.
TEST(Rng, PhiloxKnownAnswers) {
  const auto expect = [](uint64_t key, uint64_t low, uint64_t high,
                         const std::vector<uint32_t>& want) {
    const Random128 got = Philox4x32(key, low, high);
    EXPECT_EQ(std::vector<uint32_t>(got.word, got.word + 4), want);
  };
  expect(0, 0, 0, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
  expect(~0ull, ~0ull, ~0ull, {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
  expect(0x299f31d0a4093822, 0x85a308d3243f6a88, 0x0370734413198a2e,
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
}

// The first numbers of SplitMix64 with seed 0 (its reference program by Vigna).
TEST(Hash, Mix64KnownAnswers) {
  constexpr uint64_t kGamma = 0x9e3779b97f4a7c15;
  EXPECT_EQ(Mix64(0), 0xe220a8397b1dcdaf);
  EXPECT_EQ(Mix64(kGamma), 0x6e789e6aa1b965f4);
  EXPECT_EQ(Mix64(2 * kGamma), 0x06c45d188009454f);
}

TEST(Hash, Mix64SpreadsEveryBit) {
  std::mt19937_64 random(2);
  for (int bit = 0; bit < 64; ++bit) {
    double flipped[64] = {};
    constexpr int kTrials = 4000;
    for (int i = 0; i < kTrials; ++i) {
      const uint64_t x = random() >> (i % 60);
      const uint64_t difference = Mix64(x) ^ Mix64(x ^ uint64_t{1} << bit);
      for (int b = 0; b < 64; ++b) flipped[b] += static_cast<double>(difference >> b & 1);
    }
    for (int b = 0; b < 64; ++b) EXPECT_NEAR(flipped[b] / kTrials, 0.5, 0.06) << bit << " " << b;
  }
}

TEST(Hash, ReduceRangeIsEven) {
  for (const uint32_t n : {1u, 2u, 3u, 7u, 1000u, 0xffffffffu}) {
    EXPECT_EQ(ReduceRange(0, n), 0u);
    EXPECT_EQ(ReduceRange(0xffffffffu, n), n - 1);
  }
  std::vector<int> count(7);
  for (uint64_t hash = 0; hash < (1ull << 32); hash += 1 << 12) {
    ++count[ReduceRange(static_cast<uint32_t>(hash), 7)];
  }
  for (const int c : count) EXPECT_NEAR(c, (1 << 20) / 7.0, 1.0);
}

Status Twice(const Status& first, bool* reached) {
  DYNEMB_RETURN_IF_ERROR(first);
  *reached = true;
  return Status();
}

TEST(Status, CodesAreThoseOfTensorFlow) {
  EXPECT_EQ(static_cast<int>(Code::kOk), 0);
  EXPECT_EQ(static_cast<int>(Code::kInvalidArgument), 3);
  EXPECT_EQ(static_cast<int>(Code::kNotFound), 5);
  EXPECT_EQ(static_cast<int>(Code::kResourceExhausted), 8);
  EXPECT_EQ(static_cast<int>(Code::kFailedPrecondition), 9);
  EXPECT_EQ(static_cast<int>(Code::kOutOfRange), 11);
  EXPECT_EQ(static_cast<int>(Code::kUnimplemented), 12);
  EXPECT_EQ(static_cast<int>(Code::kInternal), 13);
  EXPECT_EQ(static_cast<int>(Code::kDataLoss), 15);
}

TEST(Status, CarriesCodeAndMessage) {
  EXPECT_TRUE(Status().ok());
  const Status error = InvalidArgument("dim: got ", -3, ", want ", 1.5, " or '", 'x', "'");
  EXPECT_FALSE(error.ok());
  EXPECT_EQ(error.code(), Code::kInvalidArgument);
  EXPECT_EQ(error.message(), "dim: got -3, want 1.5 or 'x'");
  EXPECT_EQ(FailedPrecondition("").code(), Code::kFailedPrecondition);
  EXPECT_EQ(ResourceExhausted("").code(), Code::kResourceExhausted);
  bool reached = false;
  EXPECT_EQ(Twice(error, &reached).message(), error.message());
  EXPECT_FALSE(reached);
  EXPECT_TRUE(Twice(Status(), &reached).ok());
  EXPECT_TRUE(reached);
}

TEST(Span, KnowsItsSpaceThroughConversions) {
  int numbers[3] = {1, 2, 3};
  const Span<int> span(numbers, 3, MemorySpace::kSimulatedDevice);
  const Span<const int> view = span;
  EXPECT_EQ(view.data, numbers);
  EXPECT_EQ(view.size, 3);
  EXPECT_EQ(view.space, MemorySpace::kSimulatedDevice);
  static_assert(!std::is_convertible_v<Span<const int>, Span<int>>);
  static_assert(!std::is_convertible_v<Span<int>, Span<const int64_t>>);
  static_assert(!std::is_convertible_v<const std::vector<int>&, Span<int>>);
  const std::vector<int> vector = {4, 5};
  const Span<const int> of_vector = vector;
  EXPECT_EQ(of_vector[1], 5);
  EXPECT_EQ(of_vector.space, MemorySpace::kHost);
  int sum = 0;
  for (const int i : Span<const int>(numbers, 3)) sum += i;
  EXPECT_EQ(sum, 6);
  EXPECT_TRUE(Span<int>().empty());
}

TEST(Rows, AreAStrideApart) {
  char bytes[40];
  const Rows rows(bytes + 3, 4, 9, MemorySpace::kDevice);
  const ConstRows view = rows;
  EXPECT_EQ(view.count, 4);
  EXPECT_EQ(view.space, MemorySpace::kDevice);
  for (int64_t i = 0; i < 4; ++i) EXPECT_EQ(view[i], bytes + 3 + 9 * i);
  static_assert(!std::is_convertible_v<ConstRows, Rows>);
}

TEST(CopyRows, CopiesAllBytesAndNoOthers) {
  constexpr int64_t kMost = 300, kCopies = 3;
  const CopyRowsFunction copy_rows = FastestCopyRows();
  for (int64_t bytes = 0; bytes <= kMost; ++bytes) {
    std::vector<char> from(kCopies * kMost), to(kCopies * (kMost + 2), 'x'), want = to;
    for (size_t i = 0; i < from.size(); ++i) from[i] = static_cast<char>(i * 37);
    RowCopy copies[kCopies];
    for (int64_t c = 0; c < kCopies; ++c) {
      copies[c] = {to.data() + c * (kMost + 2) + 1, from.data() + c * kMost};
      std::copy_n(copies[c].from, bytes, want.begin() + c * (kMost + 2) + 1);
    }
    copy_rows(bytes, copies, kCopies);
    ASSERT_EQ(to, want) << bytes;
  }
}

TEST(Context, InlineExecutorRunsEachTaskOnce) {
  InlineExecutor executor;
  EXPECT_EQ(executor.concurrency(), 1);
  std::multiset<int64_t> ran;
  EXPECT_TRUE(executor.Run(5, 1, [&](int64_t i) { ran.insert(i); }).ok());
  EXPECT_EQ(ran, (std::multiset<int64_t>{0, 1, 2, 3, 4}));
  EXPECT_TRUE(executor.Run(0, 1, [&](int64_t) { FAIL(); }).ok());
}

TEST(Context, TasksThatRunOutOfMemoryStopNoOthers) {
  InlineExecutor executor;
  std::multiset<int64_t> ran;
  const Status status = executor.Run(5, 1, [&](int64_t i) {
    ran.insert(i);
    if (i == 1) throw std::bad_alloc();
  });
  EXPECT_EQ(status.code(), Code::kResourceExhausted);
  EXPECT_EQ(status.message(), "out of memory");
  EXPECT_EQ(ran, (std::multiset<int64_t>{0, 1, 2, 3, 4}));
}

// Without memory to begin with.
TEST(Context, AnExecutorThatHasNoMemorySaysSo) {
  NoMemoryExecutor executor;
  EXPECT_EQ(executor.Run(5, 1, [&](int64_t) { FAIL(); }).code(), Code::kResourceExhausted);
}

TEST(OrNoMemory, IsWhatIsReturnedOrThatThereIsNoMemory) {
  EXPECT_TRUE(OrNoMemory([] {}).ok());
  EXPECT_EQ(OrNoMemory([] { return InvalidArgument("why"); }).message(), "why");
  EXPECT_EQ(OrNoMemory([] { throw std::bad_alloc(); }).code(), Code::kResourceExhausted);
  EXPECT_EQ(OrNoMemory([] { std::string().reserve(SIZE_MAX); }).code(), Code::kResourceExhausted);
  EXPECT_EQ(OrNoMemory([]() -> Status { throw std::bad_alloc(); }).code(),
            Code::kResourceExhausted);
}

}  // namespace
}  // namespace dynemb

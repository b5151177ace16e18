// Quantize: its errors against what its header derives, and rows that are special.
#include "cc/core/snapshot/quantize.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

namespace dynemb {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

template <typename V>
double Number(V value) {
  return static_cast<double>(static_cast<ComputeType<V>>(value));
}

// What a row is read as in `to`, given with gaps before and behind it; `fits` as Quantize.
template <typename V, typename To = V>
std::vector<double> ThereAndBack(const std::vector<V>& row, DType from, DType to,
                                 bool* fits = nullptr, std::vector<int8_t>* numbers = nullptr) {
  const auto dim = static_cast<int64_t>(row.size());
  std::vector<V> rows(3 * row.size() + 3, V(1.0f));
  for (size_t r = 0; r < 3; ++r) {
    std::copy(row.begin(), row.end(),
              rows.begin() + static_cast<std::ptrdiff_t>(r * (row.size() + 1)));
  }
  std::vector<float> scales(3);
  std::vector<int8_t> held(3 * row.size());
  const int64_t stride = (dim + 1) * static_cast<int64_t>(sizeof(V));
  const bool good = Quantize({reinterpret_cast<const char*>(rows.data()), 3, stride}, from, dim,
                             scales.data(), held.data());
  if (fits != nullptr) *fits = good;
  if (!good) return {};
  std::vector<To> back(held.size());
  EXPECT_TRUE(
      Dequantize(scales.data(), held.data(), 3, dim, to, reinterpret_cast<char*>(back.data()))
          .ok());
  std::vector<double> read;
  for (size_t i = 0; i < row.size(); ++i) {
    read.push_back(Number(back[i]));
    EXPECT_EQ(std::memcmp(&back[i], &back[i + 2 * row.size()], sizeof(To)), 0) << "each row alike";
  }
  if (numbers != nullptr) numbers->assign(held.begin(), held.begin() + dim);
  return read;
}

// |error| <= max|x| / 254, and half a unit of the dtype's last digit where that is not float32.
template <typename V>
void CheckBound(DType dtype, double digits, double smallest, double largest) {
  std::mt19937_64 random(7);
  std::uniform_real_distribution<double> exponent(std::log2(smallest), std::log2(largest));
  std::uniform_real_distribution<double> share(-1, 1);
  double worst = 0;
  for (int run = 0; run < 20'000; ++run) {
    const double size = std::exp2(exponent(random));
    std::vector<V> row(1 + random() % 9);
    double most = 0;
    for (V& value : row) {
      value = static_cast<V>(static_cast<ComputeType<V>>(size * share(random)));
      most = std::max(most, std::abs(Number(value)));
    }
    const std::vector<double> read = ThereAndBack(row, dtype, dtype);
    for (size_t i = 0; i < row.size(); ++i) {
      const double error = std::abs(read[i] - Number(row[i]));
      const double rounding = std::abs(read[i]) * digits;
      ASSERT_LE(error, most / 254 + rounding)
          << Name(dtype) << " " << Number(row[i]) << " " << most;
      worst = std::max(worst, error / most);
    }
  }
  EXPECT_GT(worst, 0.99 / 254) << "the bound is no larger than it must be";
}

TEST(QuantizeTest, ErrorsAreWithinTheBound) {
  CheckBound<float>(DType::kFloat32, 0, 1e-28, 1e38);
  CheckBound<double>(DType::kFloat64, 0, 1e-28, 1e40);
  CheckBound<BFloat16>(DType::kBFloat16, std::exp2(-8), 1e-30, 1e38);
  CheckBound<Float16>(DType::kFloat16, std::exp2(-11), 1e-2, 6e4);
}

TEST(QuantizeTest, TheLargestNumberHasAllBitsAndProductsAreExact) {
  std::mt19937_64 random(3);
  for (int run = 0; run < 20'000; ++run) {
    const float most = std::ldexp(1.0f + static_cast<float>(random() % (1 << 23)) / (1 << 23),
                                  static_cast<int>(random() % 200) - 100);
    std::vector<int8_t> numbers;
    const std::vector<double> wide = ThereAndBack<float, double>(
        {most, -most, most / 3}, DType::kFloat32, DType::kFloat64, nullptr, &numbers);
    EXPECT_EQ(numbers[0], 127);
    EXPECT_EQ(numbers[1], -127);
    // Read as doubles, which have room for all digits of a product, it is the same number.
    const double scale = wide[0] / 127;
    EXPECT_EQ(wide[2], scale * numbers[2]);
    EXPECT_LE(wide[0], most);
    EXPECT_GE(wide[0], most * (1 - std::exp2(-16)));
  }
}

TEST(QuantizeTest, RowsThatAreSpecial) {
  const auto read = [](const std::vector<float>& row) {
    return ThereAndBack(row, DType::kFloat32, DType::kFloat32);
  };
  EXPECT_EQ(read({0, 0, -0.0f}), (std::vector<double>{0, 0, 0}));
  EXPECT_EQ(read({1e-37f, -1e-38f}), (std::vector<double>{0, 0})) << "no scale is so small";
  EXPECT_GT(read({1.5e-36f, 0})[0], 1.49e-36);
  EXPECT_GT(read({std::numeric_limits<float>::max(), 0})[0], 3.402e38);
  for (const float number :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
        -std::numeric_limits<float>::infinity()}) {
    for (const double value : read({1, number, 3})) EXPECT_TRUE(std::isnan(value)) << number;
  }
}

TEST(QuantizeTest, ScalesBeyondFloat32AreRefused) {
  bool fits = true;
  const auto check = [&](double number) {
    ThereAndBack(std::vector<double>{1, number}, DType::kFloat64, DType::kFloat64, &fits);
    return fits;
  };
  EXPECT_TRUE(check(4e40));
  EXPECT_FALSE(check(4.4e40));
  EXPECT_FALSE(check(-1e300));
  EXPECT_TRUE(check(kNaN) && check(kInfinity));
  const int8_t numbers[] = {1, 2};
  float value[2];
  for (const float scale : {-1.0f, std::numeric_limits<float>::infinity()}) {
    const float scales[] = {1, scale};
    EXPECT_EQ(
        Dequantize(scales, numbers, 2, 1, DType::kFloat32, reinterpret_cast<char*>(value)).code(),
        Code::kDataLoss);
  }
}

TEST(QuantizeTest, NumbersBeyondTheDTypeThatIsReadAreRefused) {
  char values[4 * sizeof(double)];
  const auto read = [&](float scale, int8_t number, DType dtype) {
    const float scales[] = {1, scale};
    const int8_t numbers[] = {1, -2, 3, number};
    return Dequantize(scales, numbers, 2, 2, dtype, values);
  };
  const float kMostFloat = std::numeric_limits<float>::max();
  EXPECT_TRUE(read(515, 127, DType::kFloat16).ok()) << 515 * 127;
  EXPECT_TRUE(read(516, 126, DType::kFloat16).ok());
  for (const int8_t number : {int8_t{127}, int8_t{-127}}) {
    const Status status = read(516, number, DType::kFloat16);
    EXPECT_EQ(status.code(), Code::kInvalidArgument);
    EXPECT_NE(status.message().find("beyond those of float16"), std::string::npos);
    EXPECT_TRUE(read(516, number, DType::kBFloat16).ok());
    EXPECT_FALSE(read(kMostFloat / 100, number, DType::kFloat32).ok());
    EXPECT_FALSE(read(kMostFloat / 127, number, DType::kBFloat16).ok()) << "rounded up";
    EXPECT_TRUE(read(kMostFloat, number, DType::kFloat64).ok());
  }
  EXPECT_TRUE(read(std::numeric_limits<float>::quiet_NaN(), 0, DType::kFloat16).ok());
}

}  // namespace
}  // namespace dynemb

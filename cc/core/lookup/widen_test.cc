// Widen, against conversions one by one: in place, any dim, rows with gaps between them.
#include "cc/core/lookup/widen.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace dynemb {
namespace {

template <typename From, typename To>
void Check(DType from, DType to) {
  InlineExecutor executor;
  Context context;
  context.executor = &executor;
  ASSERT_TRUE(CanWiden(from, to));
  for (const int64_t dim : {1, 2, 3, 7, 64}) {
    constexpr int64_t kRows = 5;
    const int64_t stride = dim * sizeof(To) + 8;
    std::vector<char> bytes(kRows * stride, 'x');
    const Rows rows(bytes.data(), kRows, stride);
    const Rows narrow = NarrowRows(rows, from, to, dim);
    const auto number = [&](int64_t row, int64_t i) {
      return static_cast<From>(1.25f * static_cast<float>(row * dim + i) - 70.0f);
    };
    for (int64_t row = 0; row < kRows; ++row) {
      for (int64_t i = 0; i < dim; ++i) {
        const From held = number(row, i);
        std::memcpy(narrow[row] + i * sizeof(From), &held, sizeof(From));
      }
    }
    EXPECT_TRUE(Widen(context, rows, from, to, dim).ok());
    for (int64_t row = 0; row < kRows; ++row) {
      for (int64_t i = 0; i < dim; ++i) {
        To got;
        std::memcpy(&got, rows[row] + i * sizeof(To), sizeof(To));
        EXPECT_EQ(got, static_cast<To>(static_cast<float>(number(row, i)))) << row << ", " << i;
      }
      EXPECT_EQ(std::string(rows[row] + dim * sizeof(To), 8), "xxxxxxxx");
    }
  }
}

TEST(Widen, EveryPair) {
  Check<Float16, float>(DType::kFloat16, DType::kFloat32);
  Check<Float16, double>(DType::kFloat16, DType::kFloat64);
  Check<BFloat16, float>(DType::kBFloat16, DType::kFloat32);
  Check<BFloat16, double>(DType::kBFloat16, DType::kFloat64);
  Check<float, double>(DType::kFloat32, DType::kFloat64);
}

TEST(Widen, NothingThatWouldRoundOrIsNoFloat) {
  EXPECT_TRUE(CanWiden(DType::kFloat32, DType::kFloat32));
  EXPECT_FALSE(CanWiden(DType::kFloat32, DType::kFloat16));
  EXPECT_FALSE(CanWiden(DType::kFloat16, DType::kBFloat16));
  EXPECT_FALSE(CanWiden(DType::kBFloat16, DType::kFloat16));
  EXPECT_FALSE(CanWiden(DType::kInt8, DType::kFloat32));
  EXPECT_FALSE(CanWiden(DType::kInt32, DType::kInt64));
}

}  // namespace
}  // namespace dynemb

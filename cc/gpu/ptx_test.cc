// What the compiler made of the initializers: instructions that round as the host's do. It is read
// off the PTX, for which no GPU is needed.
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <regex>
#include <string>

namespace {

int Count(const std::string& text, const std::string& pattern) {
  const std::regex regex(pattern);
  return static_cast<int>(
      std::distance(std::sregex_iterator(text.begin(), text.end(), regex), std::sregex_iterator()));
}

TEST(PtxTest, InitializersRoundLikeTheHost) {
  std::ifstream file("cc/gpu/random_rows_ptx/random_rows.ptx");
  ASSERT_TRUE(file) << "want to be run by Bazel, which puts the PTX there";
  const std::string ptx((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  EXPECT_EQ(Count(ptx, R"(\.entry )"), 7);  // a kernel for each dtype
  // Multiplications, divisions and roots, each rounded to nearest.
  EXPECT_GT(Count(ptx, R"(\bmul\.(rn\.)?f32\b)"), 0);
  EXPECT_GT(Count(ptx, R"(\bdiv\.rn\.f32\b)"), 0);
  EXPECT_GT(Count(ptx, R"(\bsqrt\.rn\.f32\b)"), 0);
  // None is fused with an addition, estimated, or has its subnormal results flushed to zero.
  EXPECT_EQ(Count(ptx, R"(\bfma\.)"), 0);
  EXPECT_EQ(Count(ptx, R"(\bmad\.(rn\.)?f)"), 0);
  EXPECT_EQ(Count(ptx, R"(\.approx\b)"), 0);
  EXPECT_EQ(Count(ptx, R"(\.ftz\b)"), 0);
}

}  // namespace

// Initializers as text: that they read back to the same, and what is refused.
#include "cc/core/initializer/initializer_text.h"

#include <random>
#include <sstream>

#include "gtest/gtest.h"

namespace dynemb {
namespace {

Status Parse(const std::string& text, Initializer* initializer) {
  std::istringstream stream(text);
  std::vector<std::string> words;
  for (std::string word; stream >> word;) words.push_back(word);
  return ParseInitializer(words, initializer);
}

TEST(InitializerText, ReadsBackToTheSameText) {
  for (const std::string text : {"constant 0.5", "constant 1 -2 3.25", "uniform -0.05 0.05",
                                 "normal 0 0.01", "truncated_normal 1 2", "bounded_normal 0 1 -1 3",
                                 "columns 10 normal 0 0.01 | 1 constant 0", "columns 1 uniform 0 1",
                                 "columns 2 bounded_normal 0 1 -1 3 | 3 truncated_normal 0 1"}) {
    Initializer initializer;
    initializer.seed = 5;
    initializer.columns.resize(2);  // is filled anew
    const Status status = Parse(text, &initializer);
    ASSERT_TRUE(status.ok()) << status.message();
    EXPECT_EQ(InitializerText(initializer), text);
    EXPECT_EQ(initializer.seed, 5u);
  }
}

// The numbers of a row, and not the text alone.
TEST(InitializerText, ReadsBackToTheSameNumbers) {
  std::mt19937 random(2);
  const auto number = [&] { return static_cast<float>(random()) / 3e8f - 7; };
  for (int i = 0; i < 300; ++i) {
    Initializer initializer;
    initializer.seed = random();
    int64_t dim = 0;
    for (size_t part = random() % 4; part-- > 0;) {
      const float mean = number(), stddev = 0.1f + static_cast<float>(random() % 100);
      const Distribution distributions[] = {{},
                                            {Distribution::Kind::kUniform, mean, mean + stddev},
                                            {Distribution::Kind::kNormal, mean, stddev},
                                            {Distribution::Kind::kTruncatedNormal, mean, stddev},
                                            BoundedNormal(mean, stddev, mean - stddev / 2, 99)};
      initializer.columns.push_back(
          {static_cast<int64_t>(1 + random() % 9), distributions[random() % 5], number()});
      dim += initializer.columns.back().width;
    }
    if (dim == 0) {
      dim = 3;
      initializer.distribution = BoundedNormal(number(), 5, -8, 8);
    }
    ASSERT_TRUE(ValidateInitializer(initializer, DType::kFloat32, dim).ok());
    Initializer read;
    read.seed = initializer.seed;
    ASSERT_TRUE(Parse(InitializerText(initializer), &read).ok()) << InitializerText(initializer);
    std::vector<float> want(static_cast<size_t>(dim)), got(want);
    FillInitialValue(initializer, -5, dim, want.data());
    FillInitialValue(read, -5, dim, got.data());
    ASSERT_EQ(got, want) << InitializerText(initializer);
  }
}

TEST(InitializerText, RefusesWhatItDoesNotUnderstand) {
  const auto refused = [](const std::string& text, const std::string& says) {
    Initializer initializer;
    const Status status = Parse(text, &initializer);
    EXPECT_EQ(status.code(), Code::kInvalidArgument) << text;
    EXPECT_NE(status.message().find(says), std::string::npos) << status.message();
    EXPECT_NE(status.message().find(text), std::string::npos) << status.message();
  };
  refused("", "want initializer constant, uniform");
  refused("gauss 0 1", "want initializer constant, uniform");
  refused("uniform 0", "two numbers");
  refused("normal 0 1 2", "two numbers");
  refused("bounded_normal 0 1", "four numbers");
  refused("bounded_normal 0 1 2 x", "finite numbers");
  refused("constant", "at least one number");
  refused("columns", "a number of columns before");
  refused("columns |", "a number of columns before");
  refused("columns normal 0 1", "a number of columns before");
  refused("columns 0 normal 0 1", "a number of columns before");
  refused("columns 1.5 normal 0 1", "a number of columns before");
  refused("columns 1e30 normal 0 1", "a number of columns before");
  refused("columns 2 normal 0 1 |", "a number of columns before");
  refused("columns 2", "want initializer constant, uniform");
  refused("columns 2 normal 0", "two numbers");
  refused("columns 2 constant 1 2", "one number");
  refused("columns 2 columns 1 constant 0", "want initializer constant, uniform");
}

TEST(InitializerText, ValidatesItsParts) {
  const auto expect = [](bool valid, const std::string& text, DType dtype = DType::kFloat32) {
    Initializer initializer;
    ASSERT_TRUE(Parse(text, &initializer).ok()) << text;
    const Status status = ValidateInitializer(initializer, dtype, 11);
    EXPECT_EQ(status.code(), valid ? Code::kOk : Code::kInvalidArgument) << text;
  };
  expect(true, "bounded_normal 0 1 -2 2");
  expect(true, "bounded_normal 0 1 4 8");
  expect(true, "bounded_normal 0 1 -1e30 1e30");
  expect(false, "bounded_normal 0 1 7 8");
  expect(false, "bounded_normal 0 1 2 -2");
  expect(false, "bounded_normal 0 1 2 2");
  expect(false, "bounded_normal 0 0 -1 1");
  expect(false, "bounded_normal 0 -1 -1 1");
  expect(false, "bounded_normal 0 1 -1e300 1");  // no float
  expect(true, "columns 10 normal 0 0.01 | 1 constant 0");
  expect(true, "columns 11 constant 0", DType::kInt32);
  expect(false, "columns 10 constant 0 | 1 constant 0.5", DType::kInt32);
  expect(false, "columns 10 constant 0 | 1 normal 0 1", DType::kInt32);
  expect(false, "columns 10 normal 0 0.01");
  expect(false, "columns 10 normal 0 0.01 | 2 constant 0");
  expect(false, "columns 1000000000 constant 0 | 1000000000 constant 0");
  expect(false, "columns 10 normal 0 -1 | 1 constant 0");
  expect(false, "columns 10 uniform 1 0 | 1 constant 0");
  expect(false, "columns 10 constant 0 | 1 bounded_normal 0 1 7 8");
}

}  // namespace
}  // namespace dynemb

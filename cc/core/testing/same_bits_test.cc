// Initial values, and rows that every rule has trained, have the same bits on every processor:
// their checksums are those that were seen on x86-64 (gcc 12, glibc 2.36, AVX-512).
//
// A failure prints the checksums that it got: the numbers here were obtained so, and those of a new
// rule are. Another number for an old rule changes models that are trained further or resharded.
//
// What is used is +, -, *, / and square root, which IEEE 754 defines to the bit, and of libm pow:
// its results are glibc's of 2.28 and later, with fused multiply-adds where the processor has them.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cc/core/base/crc32c.h"
#include "cc/core/initializer/initializer.h"
#include "cc/core/optimizer/rule.h"
#include "cc/core/table/table.h"
#include "cc/core/testing/caller.h"
#include "cc/core/testing/harness.h"
#include "gtest/gtest.h"

namespace dynemb {
namespace {

// The checksums of what has a name, one for each of kDTypes.
using Checksums = std::vector<uint32_t>;
using Line = std::pair<std::string, Checksums>;
constexpr DType kDTypes[] = {DType::kFloat32, DType::kFloat64, DType::kFloat16, DType::kBFloat16};
constexpr int64_t kDim = 75;  // whole vectors of every processor, and a rest

// `checksum(name, dtype)` is that of each line, and nothing else has one.
template <typename F>
void Expect(const std::vector<Line>& lines, const std::vector<std::string>& names,
            const F& checksum) {
  std::map<std::string, Checksums> want(lines.begin(), lines.end());
  EXPECT_EQ(want.size(), names.size());
  for (const std::string& name : names) {
    Checksums got;
    std::string line = "{\"" + name + "\", {";
    for (const DType dtype : kDTypes) {
      got.push_back(checksum(name, dtype));
      char text[16];
      std::snprintf(text, sizeof(text), "%s0x%08x", got.size() == 1 ? "" : ", ", got.back());
      line += text;
    }
    EXPECT_TRUE(got == want[name]) << "got " << line << "}},";
  }
}

TEST(SameBits, OfInitialValues) {
  using Kind = Distribution::Kind;
  const auto of = [](const Distribution& distribution) {
    Initializer initializer;
    initializer.distribution = distribution;
    initializer.constant = {0.1};
    return initializer;
  };
  Initializer columns;
  columns.columns = {{3, {Kind::kUniform, -1, 1}, 0},
                     {30, BoundedNormal(1, 3, -2, 7), 0},
                     {2, {}, 0.3},
                     {kDim - 35, {Kind::kNormal, 5, 1}, 0}};
  const std::map<std::string, Initializer> initializers = {
      {"constant", of({})},
      {"uniform", of({Kind::kUniform, -0.05f, 0.05f})},
      {"normal", of({Kind::kNormal, 0.5f, 2})},
      {"truncated_normal", of({Kind::kTruncatedNormal, 0, 0.1f})},
      {"bounded_normal", of(BoundedNormal(0, 1, -0.5f, 3))},
      {"columns", columns}};
  std::vector<std::string> names;
  for (const auto& name_and_initializer : initializers) names.push_back(name_and_initializer.first);
  const std::vector<Line> lines = {
      {"bounded_normal", {0xcf93073e, 0x2f972f38, 0x0546a45a, 0x7c5c5e9c}},
      {"columns", {0x040459ec, 0x3b00ddfb, 0x17924049, 0x16e38401}},
      {"constant", {0x4d749426, 0x9b095ce5, 0x4cc89a18, 0xc3f709ab}},
      {"normal", {0x2c843f99, 0x95a8e79d, 0x976d523e, 0x1314cc10}},
      {"truncated_normal", {0x1990698f, 0xaa7a6501, 0x0e2e27b0, 0xc4429ac6}},
      {"uniform", {0x30888748, 0x284520ac, 0x5b896d96, 0x912ec849}},
  };
  Expect(lines, names, [&](const std::string& name, DType dtype) {
    Initializer initializer = initializers.at(name);
    std::mt19937_64 random(1);
    uint32_t checksum = 0;
    for (int i = 0; i < 500; ++i) {
      initializer.seed = random();
      const Key key = static_cast<Key>(random());
      VisitDType(dtype, [&](auto tag) {
        using V = typename decltype(tag)::type;
        std::vector<V> row(kDim);
        FillInitialValue(initializer, key, kDim, row.data());
        checksum = Crc32c(Bytes(row), checksum);
      });
    }
    return checksum;
  });
}

// All rules, and once more those that can catch up, doing so.
std::vector<std::string> RuleNames() {
  std::vector<std::string> names = AllRuleNames();
  for (const std::string& name : AllRuleNames()) {
    OptimizerSpec spec;
    if (MakeOptimizerSpec(name + "_catch_up", 0, &spec).ok()) names.push_back(name + "_catch_up");
  }
  return names;
}

// Of a host table's rows: after steps that most keys are not in, and some are in twice.
uint32_t ChecksumOfTrainedRows(const std::string& name, DType dtype) {
  const std::string rule = name.substr(0, name.find(' '));
  TableSchema schema;
  schema.value_dtype = dtype;
  schema.dim = kDim;
  schema.rule = UsualRule(rule);
  schema.initializer.distribution = {Distribution::Kind::kNormal, 0, 0.5f};
  schema.initializer.seed = 7;
  const Tested tested(HostTableHarness(), schema);
  std::mt19937 random(3);
  for (int step = 1; step <= 40; ++step) {
    std::vector<double> hyper = UsualHyper(rule, step);
    if (rule != name) hyper[Hyper::kOwn] = -0.7;  // the exponent, which is usually a square root's
    Keys keys;
    for (int i = 0; i < 20; ++i) keys.push_back(random() % 60);
    const auto apply = [&](auto divisor) {
      using T = decltype(divisor);
      std::vector<T> gradients;
      for (size_t i = 0; i < keys.size() * kDim; ++i) {
        gradients.push_back(static_cast<T>(static_cast<int>(random() % 4001) - 2000) / divisor);
      }
      const Mirror<Key> there(HostTestMemory(), keys);
      const Mirror<T> in(HostTestMemory(), gradients);
      const Status status =
          tested.table->Apply(HostTestMemory()->context(), {there.span()},
                              in.rows(there.size(), kDim), {&schema.rule, hyper, {}}, {}, {});
      EXPECT_TRUE(status.ok()) << status.message();
    };
    dtype == DType::kFloat64 ? apply(1024.0) : apply(1024.0f);
  }
  uint32_t checksum = 0;
  for (const auto& [key, row] : tested.call.Export()) {
    checksum = Crc32c(row.value, checksum);
    checksum = Crc32c(row.slots, checksum);
  }
  return checksum;
}

TEST(SameBits, OfTrainedRows) {
  const std::vector<Line> lines = {
      {"sgd", {0x69beab5d, 0x52290df4, 0x52853834, 0xebe6d640}},
      {"sgd_momentum", {0xa2006eb9, 0x65b893ab, 0xf286ff24, 0x7359213a}},
      {"sgd_nesterov", {0x81fdf21e, 0x34db7cd4, 0x5cbd9b80, 0x28827f58}},
      {"rmsprop", {0x716be3e1, 0xd2608864, 0xdd2d8cbc, 0x95186b58}},
      {"rmsprop_momentum", {0x4c4f284d, 0xa13ccf71, 0xe0813e8c, 0x895bc845}},
      {"rmsprop_centered", {0x23e9d0f0, 0xfb73a1ac, 0xdfcf44c4, 0x1ab218d4}},
      {"rmsprop_centered_momentum", {0x20a925e0, 0xaf3016c5, 0xb214859a, 0x73d319f0}},
      {"adam", {0x4ee084bc, 0x7e73fc6c, 0x1588a667, 0x627033b7}},
      {"adam_amsgrad", {0x1ba1d93a, 0xcd917663, 0xff924193, 0x97d54307}},
      {"smart_decay_adam", {0xdd0d77e7, 0x9b563314, 0x9541dbd8, 0x187451c3}},
      {"adamax", {0xab09a24c, 0xc648052c, 0x69be204a, 0x92dfd174}},
      {"nadam", {0xbbc88587, 0x91eb6f45, 0xead60c40, 0x5feb499e}},
      {"adadelta", {0xdc1dd388, 0x52e7e922, 0x971c106c, 0x23c02064}},
      {"adagrad", {0xf700d006, 0xf369dc3c, 0x6da83f7e, 0x4a61d7dc}},
      {"rowwise_adagrad", {0xbcad34cd, 0xd6da8120, 0x2a9f372e, 0x949b64f8}},
      {"ftrl", {0xc673cc54, 0xa9226d91, 0xd61edc66, 0x5b618650}},
      {"lion", {0x4005f11b, 0x8488cf05, 0x4bfc87a3, 0x02d14e73}},
      {"sgd_momentum_catch_up", {0xc6a0fb7e, 0x25808acc, 0x31356711, 0x2f1fb7bd}},
      {"sgd_nesterov_catch_up", {0x759691a0, 0xb40c9f27, 0xb28fa3ee, 0x1363eea8}},
      {"rmsprop_catch_up", {0x6912f076, 0x2e5f090f, 0x34a7f58f, 0xe27041f6}},
      {"rmsprop_momentum_catch_up", {0x89434d70, 0xf69474a3, 0xfe748d1a, 0x57e1163d}},
      {"rmsprop_centered_catch_up", {0xb0e0a4a6, 0x0a8a779c, 0x0aacb356, 0x841d8ced}},
      {"rmsprop_centered_momentum_catch_up", {0x33a22f19, 0x6df27f99, 0xa8065a60, 0x965baecb}},
      {"adam_catch_up", {0xf4ed7ded, 0x469c3609, 0x35b0c9bf, 0xc2c96885}},
      {"adam_amsgrad_catch_up", {0x46919ff1, 0x29260769, 0x9ea13401, 0x0c8f308c}},
      {"adamax_catch_up", {0x4f4198d1, 0xf6745f76, 0xee7f3766, 0x0ebe3ecc}},
      {"adadelta_catch_up", {0xf1124e4a, 0xebd6b912, 0x6a6012f0, 0x7df7bec9}},
      {"lion_catch_up", {0xd8bdbf65, 0x84deb8ce, 0x7da0d146, 0xf1752234}},
  };
  Expect(lines, RuleNames(), ChecksumOfTrainedRows);
}

// The one rule that calls pow for each number, of doubles in a float64 table. glibc has two
// variants of pow on x86-64. The one for processors before Haswell (2013), without fused
// multiply-adds, rounds 7 of 100,000 results differently, and no code of ours can make it give the
// same bits: there is nothing to test there. docs/building.md tells users.
TEST(SameBits, OfRowsTrainedByPow) {
#if defined(__x86_64__)
  if (!__builtin_cpu_supports("fma")) {
    GTEST_SKIP()
        << "glibc's pow has another last bit on x86-64 processors without fused multiply-adds";
  }
#endif
  Expect({{"ftrl with pow", {0x36a8b421, 0xa7347696, 0xdedb8ec0, 0xc262b47a}}}, {"ftrl with pow"},
         ChecksumOfTrainedRows);
}

}  // namespace
}  // namespace dynemb

// What the device computes by the core's functions is what the host computes. Each test runs the
// bodies of the kernels on the host, where there is always one, and on the device.
#include "cc/gpu/testing/core_on_device.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "cc/core/base/hash.h"
#include "cc/core/initializer/initializer.h"
#include "cc/core/optimizer/rule.h"
#include "cc/gpu/device_memory.h"
#include "cc/gpu/devices.h"
#include "cc/gpu/random_rows.h"

namespace dynemb {
namespace {

using Kind = Distribution::Kind;

const std::vector<int64_t> kKeys = {0,
                                    1,
                                    -1,
                                    42,
                                    -7919,
                                    int64_t{1} << 40,
                                    std::numeric_limits<int64_t>::min(),
                                    std::numeric_limits<int64_t>::max()};

// A vector in the memory of a context.
template <typename T>
class Array {
 public:
  Array(const Context& context, std::vector<T> content)
      : on_host_(context.space == MemorySpace::kHost), content_(std::move(content)) {
    if (on_host_) return;
    const Status status = device_.CopyFrom(content_);
    EXPECT_TRUE(status.ok()) << status.message();
  }
  Span<T> span() { return on_host_ ? Span<T>(content_) : device_.span(); }
  // As rows of `width` numbers.
  Rows rows(int64_t width) {
    const Span<T> all = span();
    return {reinterpret_cast<char*>(all.data), all.size / width,
            width * static_cast<int64_t>(sizeof(T)), all.space};
  }
  const std::vector<T>& content() {
    if (on_host_) return content_;
    const Status status = device_.CopyTo(&content_);
    EXPECT_TRUE(status.ok()) << status.message();
    return content_;
  }

 private:
  const bool on_host_;
  std::vector<T> content_;
  DeviceArray<T> device_;
};

class CoreTest : public testing::TestWithParam<MemorySpace> {
 protected:
  void SetUp() override {
    context_.space = GetParam();
    if (GetParam() == MemorySpace::kHost) return;
    std::vector<GpuDevice> devices;
    const Status status = ListGpuDevices(&devices);
    // For want of a GPU; the message says why there is none.
    if (!status.ok()) GTEST_SKIP() << status.message();
    ASSERT_TRUE(devices[0].usable.ok()) << devices[0].usable.message();
  }
  bool on_host() const { return GetParam() == MemorySpace::kHost; }

  Context context_;
};

INSTANTIATE_TEST_SUITE_P(Spaces, CoreTest,
                         testing::Values(MemorySpace::kHost, MemorySpace::kDevice),
                         [](const auto& info) {
                           return info.param == MemorySpace::kHost ? "host" : "device";
                         });

TEST_P(CoreTest, HashesAreThoseOfTheHost) {
  Array<int64_t> keys(context_, kKeys);
  Array<uint64_t> hashes(context_, std::vector<uint64_t>(kKeys.size()));
  ASSERT_TRUE(HashKeys(context_, keys.span(), hashes.span()).ok());
  for (size_t i = 0; i < kKeys.size(); ++i) {
    EXPECT_EQ(hashes.content()[i], Mix64(static_cast<uint64_t>(kKeys[i])));
  }
}

TEST_P(CoreTest, InitialRowsAreThoseOfTheHostToTheBit) {
  constexpr uint64_t kSeed = 0x0123456789abcdef;
  Array<int64_t> keys(context_, kKeys);
  for (const Distribution& distribution :
       {Distribution{Kind::kUniform, -0.05f, 0.05f}, Distribution{Kind::kNormal, 1, 2},
        Distribution{Kind::kTruncatedNormal, 0, 0.5f}, BoundedNormal(0, 1, -0.5f, 3)}) {
    for (const DType dtype :
         {DType::kFloat32, DType::kFloat64, DType::kFloat16, DType::kBFloat16}) {
      VisitDType(dtype, [&](auto tag) {
        using V = typename decltype(tag)::type;
        for (const int64_t dim : {1, 3, 4, 5, 33, 128}) {
          const int64_t width = dim + 2;  // what is between the rows stays as it is
          const auto rows = static_cast<int64_t>(kKeys.size());
          std::vector<V> want(rows * width, V(7.0f));
          Array<V> values(context_, want);
          for (int64_t i = 0; i < rows; ++i) {
            FillRandom(distribution, kSeed, kKeys[i], dim, &want[i * width]);
          }
          const Status status = FillRandomRows(context_, distribution, kSeed, keys.span(), dtype,
                                               dim, values.rows(width));
          ASSERT_TRUE(status.ok()) << status.message();
          EXPECT_EQ(std::memcmp(values.content().data(), want.data(), want.size() * sizeof(V)), 0)
              << Name(dtype) << ", dim " << dim << ", kind " << static_cast<int>(distribution.kind);
        }
      });
    }
  }
}

TEST_P(CoreTest, RowsMayLieAnywhere) {
  const Distribution uniform{Kind::kUniform, 0, 1};
  Array<int64_t> keys(context_, {5, 6});
  Array<int64_t> offsets(context_, {3 * sizeof(float), 0});
  Array<float> values(context_, std::vector<float>(6));
  const Rows rows(reinterpret_cast<char*>(values.span().data), Span<const int64_t>(offsets.span()));
  ASSERT_TRUE(FillRandomRows(context_, uniform, 1, keys.span(), DType::kFloat32, 3, rows).ok());
  std::vector<float> want(6);
  FillRandom(uniform, 1, 5, 3, &want[3]);
  FillRandom(uniform, 1, 6, 3, &want[0]);
  EXPECT_EQ(values.content(), want);
}

TEST_P(CoreTest, NoKeysAreNoWork) {
  Array<int64_t> keys(context_, {});
  EXPECT_TRUE(FillRandomRows(context_, {Kind::kUniform, 0, 1}, 1, keys.span(), DType::kFloat32, 3,
                             Rows(nullptr, 0, 0, context_.space))
                  .ok());
}

TEST_P(CoreTest, BadCallsAreErrors) {
  Array<int64_t> keys(context_, kKeys);
  Array<float> values(context_, std::vector<float>(kKeys.size() - 1));
  Context other = context_;
  other.space = MemorySpace::kSimulatedDevice;
  const auto message = [&](const Context& context, const Distribution& distribution) {
    return FillRandomRows(context, distribution, 1, keys.span(), DType::kFloat32, 1, values.rows(1))
        .message();
  };
  EXPECT_EQ(message(other, {Kind::kUniform, 0, 1}),
            "keys, values: want both in the memory space of the context");
  EXPECT_EQ(message(context_, {Kind::kConstant, 0, 1}),
            "distribution: got a constant, want one of random numbers");
  EXPECT_EQ(message(context_, {Kind::kUniform, 0, 1}), "values: got 7 rows, want 8");
}

// For each rule: hyper-parameters that let all of its terms count.
std::vector<double> HyperOf(const std::string& rule, int step) {
  std::vector<double> hyper;
  for (const std::string& name : HyperNames(rule)) {
    hyper.push_back(name == "learning_rate"         ? 0.05
                    : name == "step"                ? step
                    : name == "weight_decay"        ? 0.01
                    : name == "learning_rate_power" ? -0.6
                    : name == "epsilon"             ? 1e-6
                                                    : 0.9);
  }
  return hyper;
}

template <typename V>
void CheckRule(const Context& context, const std::string& rule, DType dtype, double tolerance) {
  using T = ComputeType<V>;
  constexpr int64_t kRows = 5, kDim = 7, kSteps = 100;
  OptimizerSpec spec;
  ASSERT_TRUE(MakeOptimizerSpec(rule, 0.1, &spec).ok());
  std::vector<T> slots_of_row;
  for (const SlotSpec& slot : spec.slots) {
    slots_of_row.insert(slots_of_row.end(), slot.width == SlotWidth::kRow ? 1 : kDim, slot.initial);
  }
  const auto width = static_cast<int64_t>(slots_of_row.size());
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  std::vector<V> want(kRows * kDim);
  for (V& value : want) value = V(normal(random));
  std::vector<T> want_slots;
  for (int64_t i = 0; i < kRows; ++i) {
    want_slots.insert(want_slots.end(), slots_of_row.begin(), slots_of_row.end());
  }
  want_slots.resize(want_slots.size() + 1);  // so that there is an address of rows without slots
  Array<V> values(context, want);
  Array<T> slots(context, want_slots);
  for (int step = 1; step <= kSteps; ++step) {
    const std::vector<double> hyper = HyperOf(rule, step);
    std::vector<T> gradients(kRows * kDim);
    for (T& gradient : gradients) gradient = normal(random);
    std::unique_ptr<RowUpdater> updater;
    ASSERT_TRUE(MakeRowUpdater(rule, dtype, hyper, &updater).ok());
    for (int64_t i = 0; i < kRows; ++i) {
      updater->Update(kDim, {reinterpret_cast<char*>(&want[i * kDim]),
                             reinterpret_cast<char*>(&want_slots[i * width]),
                             reinterpret_cast<const char*>(&gradients[i * kDim])});
    }
    Array<T> device_gradients(context, gradients);
    const Rows slot_rows(reinterpret_cast<char*>(slots.span().data), kRows,
                         width * static_cast<int64_t>(sizeof(T)), context.space);
    const Status status = UpdateRows(context, rule, dtype, hyper.data(), kDim, values.rows(kDim),
                                     slot_rows, device_gradients.rows(kDim));
    ASSERT_TRUE(status.ok()) << status.message();
  }
  const auto check = [&](const auto& got, const auto& wanted) {
    for (size_t i = 0; i < got.size(); ++i) {
      const auto a = static_cast<double>(static_cast<T>(got[i]));
      const auto b = static_cast<double>(static_cast<T>(wanted[i]));
      EXPECT_LE(std::abs(a - b), tolerance * std::max(1.0, std::abs(b)))
          << rule << " " << Name(dtype) << " at " << i << ": got " << a << ", want " << b;
    }
  };
  check(values.content(), want);
  check(slots.content(), want_slots);
}

template <typename... Rules>
std::vector<std::string> NamesOf(RuleList<Rules...>) {
  return {Rules::kName...};
}

TEST_P(CoreTest, RulesTrainLikeTheHost) {
  for (const std::string& rule : NamesOf(AllRules())) {
    // The device's pow() may round otherwise, and what it rounds is trained on. 16-bit values show
    // that in their last bit, of 8 or 11.
    CheckRule<float>(context_, rule, DType::kFloat32, on_host() ? 0 : 1e-5);
    CheckRule<double>(context_, rule, DType::kFloat64, on_host() ? 0 : 1e-12);
    CheckRule<Float16>(context_, rule, DType::kFloat16, on_host() ? 0 : 2e-3);
    CheckRule<BFloat16>(context_, rule, DType::kBFloat16, on_host() ? 0 : 2e-2);
  }
}

TEST_P(CoreTest, AnErrorIsReportedOnce) {
  if (on_host()) return;  // without a driver CUDA forgets nothing
  void* memory = nullptr;
  EXPECT_FALSE(FromCuda(cudaMalloc(&memory, size_t{1} << 60), "taking too much").ok());
  EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess);
}

TEST(DevicesTest, TheListSaysWhyThereIsNoDevice) {
  std::vector<GpuDevice> devices;
  const Status status = ListGpuDevices(&devices);
  EXPECT_EQ(status.ok(), !devices.empty());
  for (const GpuDevice& device : devices) {
    EXPECT_NE(device.name, "");
    EXPECT_GT(device.memory_bytes, 0);
    EXPECT_GE(device.compute_capability_major, 3);
  }
  if (status.ok()) return;
  EXPECT_EQ(status.code(), Code::kFailedPrecondition);
  EXPECT_EQ(status.message().rfind("no GPU can be used: ", 0), 0u) << status.message();
  EXPECT_NE(status.message().find("tf_dynemb was built with CUDA "), std::string::npos);
}

}  // namespace
}  // namespace dynemb

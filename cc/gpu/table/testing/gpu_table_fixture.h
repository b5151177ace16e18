// GpuTableTest: tests of tables on a GPU that run on it, if there is one, and on the host.
#ifndef TF_DYNEMB_CC_GPU_TABLE_TESTING_GPU_TABLE_FIXTURE_H_
#define TF_DYNEMB_CC_GPU_TABLE_TESTING_GPU_TABLE_FIXTURE_H_

#include <map>
#include <memory>
#include <string>

#include "cc/core/testing/caller.h"
#include "cc/core/testing/harness.h"
#include "cc/gpu/table/gpu_table.h"
#include "cc/gpu/table/testing/gpu_harness.h"
#include "gtest/gtest.h"

namespace dynemb {

// Memory of another one, as long as there is some left.
class LimitedMemory final : public DeviceMemory {
 public:
  LimitedMemory(DeviceMemory* memory, int64_t bytes) : memory_(memory), left_(bytes) {}
  MemorySpace space() const override { return memory_->space(); }
  void* Allocate(int64_t bytes) override {
    if (bytes > left_) return nullptr;
    void* const block = memory_->Allocate(bytes);
    if (block == nullptr) return nullptr;
    left_ -= bytes;
    sizes_[block] = bytes;
    return block;
  }
  void Free(void* block) override {
    left_ += sizes_[block];
    sizes_.erase(block);
    memory_->Free(block);
  }
  int64_t left() const { return left_; }
  void Add(int64_t bytes) { left_ += bytes; }

 private:
  DeviceMemory* const memory_;
  int64_t left_;
  std::map<void*, int64_t> sizes_;
};

class GpuTableTest : public testing::TestWithParam<MemorySpace> {
 protected:
  void SetUp() override {
    if (on_host()) return;
    // For want of a GPU; the message says why there is none.
    if (const Status status = GpuForTests(); !status.ok()) GTEST_SKIP() << status.message();
  }
  bool on_host() const { return GetParam() == MemorySpace::kHost; }
  TestMemory* memory() const { return on_host() ? HostTestMemory() : GpuTestMemory(); }
  DeviceMemory* device_memory() const { return on_host() ? HostDeviceMemory() : CudaMemory(); }
  std::unique_ptr<GpuTable> Make(const TableSchema& schema, DeviceMemory* from = nullptr) const {
    std::unique_ptr<GpuTable> table;
    const Status status = MakeGpuTable(schema, from == nullptr ? device_memory() : from, &table);
    EXPECT_TRUE(status.ok()) << status.message();
    return table;
  }
};

// In the file of the tests.
#define DYNEMB_INSTANTIATE_GPU_TABLE_TESTS()                                           \
  INSTANTIATE_TEST_SUITE_P(                                                            \
      Spaces, GpuTableTest, testing::Values(MemorySpace::kHost, MemorySpace::kDevice), \
      [](const auto& info) { return info.param == MemorySpace::kHost ? "host" : "device"; })

inline TableOptions Bounded(int64_t max_rows, const std::string& eviction,
                            OnFull on_full = OnFull::kError) {
  TableOptions options;
  options.max_rows = max_rows;
  options.on_full = on_full;
  EXPECT_TRUE(EvictionPolicy::Parse(eviction, &options.eviction).ok());
  return options;
}

inline TableSchema Schema(int64_t dim, const std::string& rule = "",
                          DType dtype = DType::kFloat32) {
  TableSchema schema;
  schema.dim = dim;
  schema.value_dtype = dtype;
  schema.rule = UsualRule(rule);
  schema.initializer.distribution = {Distribution::Kind::kUniform, -0.05f, 0.05f};
  schema.initializer.seed = 11;
  return schema;
}

inline Keys Numbers(int64_t first, int64_t n) {
  Keys keys;
  for (int64_t i = 0; i < n; ++i) keys.push_back((first + i) * 0x9e3779b97f4a7c15);
  return keys;
}

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_GPU_TABLE_TESTING_GPU_TABLE_FIXTURE_H_

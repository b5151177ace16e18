#include "cc/gpu/table/testing/gpu_harness.h"

#include <cuda_runtime_api.h>

#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "cc/core/table/host_table.h"
#include "cc/gpu/cuda_status.h"
#include "cc/gpu/devices.h"
#include "cc/gpu/table/gpu_table.h"
#include "cc/gpu/table/gpu_tiered_table.h"
#include "cc/gpu/table/host_access.h"

namespace dynemb {
namespace {

void CheckCuda(cudaError_t error) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "GPU of the tests: %s\n", cudaGetErrorString(error));
  std::abort();
}

class CudaTestMemory final : public TestMemory {
 public:
  MemorySpace space() const override { return MemorySpace::kDevice; }
  Context context() override {
    thread_local Stream stream;
    Context context;
    context.space = MemorySpace::kDevice;
    context.stream = stream.stream;
    return context;
  }
  // Keeps what is freed: taking memory costs more than most tests' calls.
  char* Allocate(int64_t bytes) override {
    int64_t size = 256;
    while (size < bytes) size *= 2;
    std::lock_guard<std::mutex> lock(mutex_);
    std::vector<char*>& free = free_[size];
    char* data = nullptr;
    if (free.empty()) {
      CheckCuda(cudaMalloc(reinterpret_cast<void**>(&data), static_cast<size_t>(size)));
    } else {
      data = free.back();
      free.pop_back();
    }
    sizes_[data] = size;
    return data;
  }
  void Free(char* data) override {
    CheckCuda(cudaStreamSynchronize(static_cast<cudaStream_t>(context().stream)));
    std::lock_guard<std::mutex> lock(mutex_);
    free_[sizes_[data]].push_back(data);
  }
  void CopyIn(char* to, const char* from, int64_t bytes) override { Copy(to, from, bytes); }
  void CopyOut(char* to, const char* from, int64_t bytes) override { Copy(to, from, bytes); }

 private:
  struct Stream {
    Stream() { CheckCuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking)); }
    // Not destroyed: when a thread ends CUDA may have ended before.
    cudaStream_t stream = nullptr;
  };
  void Copy(char* to, const char* from, int64_t bytes) {
    const auto stream = static_cast<cudaStream_t>(context().stream);
    CheckCuda(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDefault, stream));
    CheckCuda(cudaStreamSynchronize(stream));
  }

  std::mutex mutex_;
  std::map<int64_t, std::vector<char*>> free_;  // by size
  std::map<char*, int64_t> sizes_;
};

// Twice what gpu_table.h says, for slabs double.
constexpr int64_t kBytesAhead = int64_t{8} << 20;

MakeTable Maker(DeviceMemory* memory) {
  return [memory](const TableSchema& schema, std::unique_ptr<Table>* table) {
    std::unique_ptr<GpuTable> made;
    DYNEMB_RETURN_IF_ERROR(MakeGpuTable(schema, memory, &made));
    *table = std::move(made);
    return Status();
  };
}

MakeTable MakerThroughHost(DeviceMemory* memory) {
  return [memory](const TableSchema& schema, std::unique_ptr<Table>* table) {
    std::unique_ptr<GpuTable> made;
    DYNEMB_RETURN_IF_ERROR(MakeGpuTable(schema, memory, &made));
    *table = MakeHostAccess(std::move(made), memory);
    return Status();
  };
}

Status MakeTiered(const TableSchema& schema, int64_t max_rows, const MakeTable& make_below,
                  std::unique_ptr<GpuTieredTable>* table) {
  std::unique_ptr<Table> below;
  DYNEMB_RETURN_IF_ERROR(make_below != nullptr ? make_below(schema, &below)
                                               : MakeHostTable(schema, TableOptions(), &below));
  GpuBudget budget;
  budget.max_rows = max_rows;
  return MakeGpuTieredTable(schema, TableOptions(), budget, DeviceMemoryForTests(),
                            std::move(below), table);
}

TableHarness OnGpu(TableHarness harness) {
  harness.same_nans = false;
  harness.bytes_ahead = kBytesAhead;
  return harness;
}

TableHarness Tiered(TableHarness harness) {
  harness.rows_in_memory = false;  // or in that of the other tier, of another size
  return GpuForTests().ok() ? OnGpu(std::move(harness)) : harness;
}

}  // namespace

DeviceMemory* DeviceMemoryForTests() {
  return GpuForTests().ok() ? CudaMemory() : HostDeviceMemory();
}

TestMemory* TestMemoryForTests() { return GpuForTests().ok() ? GpuTestMemory() : HostTestMemory(); }

TestMemory* GpuTestMemory() {
  static CudaTestMemory* const memory = new CudaTestMemory;
  return memory;
}

TableHarness GpuHarness() { return OnGpu({"GpuTable", Maker(CudaMemory()), GpuTestMemory()}); }

TableHarness GpuOnHostHarness() { return HostHarness("GpuTableOnHost", Maker(HostDeviceMemory())); }

TableHarness GpuThroughHostHarness() {
  return OnGpu(HostHarness("GpuTableThroughHost", MakerThroughHost(CudaMemory())));
}

TableHarness GpuOnHostThroughHostHarness() {
  return HostHarness("GpuTableOnHostThroughHost", MakerThroughHost(HostDeviceMemory()));
}

TableHarness GpuTieredHarness(const std::string& name, int64_t max_rows, MakeTable make_below) {
  const auto make = [=](const TableSchema& schema, std::unique_ptr<Table>* table) {
    std::unique_ptr<GpuTieredTable> made;
    DYNEMB_RETURN_IF_ERROR(MakeTiered(schema, max_rows, make_below, &made));
    *table = std::move(made);
    return Status();
  };
  return Tiered({name, make, TestMemoryForTests()});
}

TableHarness GpuTieredThroughHostHarness(const std::string& name, int64_t max_rows) {
  const auto make = [=](const TableSchema& schema, std::unique_ptr<Table>* table) {
    std::unique_ptr<GpuTieredTable> made;
    DYNEMB_RETURN_IF_ERROR(MakeTiered(schema, max_rows, nullptr, &made));
    *table = MakeHostAccess(std::move(made), DeviceMemoryForTests());
    return Status();
  };
  return Tiered(HostHarness(name, make));
}

Status GpuForTests() {
  static const Status status = [] {
    std::vector<GpuDevice> devices;
    DYNEMB_RETURN_IF_ERROR(ListGpuDevices(&devices));
    return devices[0].usable;
  }();
  return status;
}

}  // namespace dynemb

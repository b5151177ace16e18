// GPU tables for the suites that test every table (cc/core/testing): on the GPU, and on the host,
// where the same kernels run one after the other, so that their logic is tested without a GPU.
#ifndef TF_DYNEMB_CC_GPU_TABLE_TESTING_GPU_HARNESS_H_
#define TF_DYNEMB_CC_GPU_TABLE_TESTING_GPU_HARNESS_H_

#include <string>

#include "cc/core/base/status.h"
#include "cc/core/testing/harness.h"
#include "cc/gpu/table/device_memory.h"

namespace dynemb {

// Every thread's calls go to a stream of its own.
TableHarness GpuHarness();
TableHarness GpuOnHostHarness();

// The same behind HostAccess.
TableHarness GpuThroughHostHarness();
TableHarness GpuOnHostThroughHostHarness();

// Tables over host memory, with room for so many rows above, on the GPU where there is one and on
// the host otherwise. `make_below`: the table below; null: one in memory alone.
TableHarness GpuTieredHarness(const std::string& name, int64_t max_rows,
                              MakeTable make_below = nullptr);
// The same behind HostAccess.
TableHarness GpuTieredThroughHostHarness(const std::string& name, int64_t max_rows);

// Why GpuHarness cannot be used; ok where it can.
Status GpuForTests();

// The memory of GpuHarness.
TestMemory* GpuTestMemory();

// The GPU's where there is one, otherwise the host's.
DeviceMemory* DeviceMemoryForTests();
TestMemory* TestMemoryForTests();

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_GPU_TABLE_TESTING_GPU_HARNESS_H_

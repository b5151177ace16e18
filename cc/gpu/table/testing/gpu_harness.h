// GPU tables for the suites that test every table (cc/core/testing): on the GPU, and on the host,
// where the same kernels run one after the other, so that their logic is tested without a GPU.
#ifndef TF_DYNEMB_CC_GPU_TABLE_TESTING_GPU_HARNESS_H_
#define TF_DYNEMB_CC_GPU_TABLE_TESTING_GPU_HARNESS_H_

#include "cc/core/base/status.h"
#include "cc/core/testing/harness.h"

namespace dynemb {

// Every thread's calls go to a stream of its own.
TableHarness GpuHarness();
TableHarness GpuOnHostHarness();

// The same behind HostAccess.
TableHarness GpuThroughHostHarness();
TableHarness GpuOnHostThroughHostHarness();

// Why GpuHarness cannot be used; ok where it can.
Status GpuForTests();

// The memory of GpuHarness.
TestMemory* GpuTestMemory();

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_GPU_TABLE_TESTING_GPU_HARNESS_H_

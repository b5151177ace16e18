// The simplest kernel: a function of an index, called for every index. For .cu files.
#ifndef TF_DYNEMB_CC_GPU_FOR_EACH_CU_H_
#define TF_DYNEMB_CC_GPU_FOR_EACH_CU_H_

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>

#include "cc/core/base/context.h"
#include "cc/core/base/status.h"
#include "cc/gpu/cuda_status.h"
#include "cc/gpu/kernel_starts.h"

namespace dynemb {
namespace for_each_internal {

// The body stays where arguments are: one whose address is taken would otherwise be copied to each
// thread's memory.
template <typename Body>
__global__ void Kernel(int64_t n, const __grid_constant__ Body body) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < n; i += step) {
    body(i);
  }
}

}  // namespace for_each_internal

// Calls body(0) .. body(n - 1), in any order: on the device, in the order of the context's stream;
// or here and now for a context that runs on the host, by which tests see what a body does where
// there is no device. `body` is copied: it holds numbers and pointers, and its operator() is
// DYNEMB_HOST_DEVICE.
template <typename Body>
Status ForEach(const Context& context, int64_t n, const Body& body) {
  if (n > 0) DYNEMB_RETURN_IF_ERROR(CountKernelStart());
  if (RunsOnHost(context.space)) {
    for (int64_t i = 0; i < n; ++i) body(i);
    return {};
  }
  if (n == 0) return {};  // a grid of no blocks is an error
  constexpr int64_t kThreads = 256;
  constexpr int64_t kMostBlocks =
      1 << 16;  // threads of these take several indices where there are more
  const int64_t blocks = std::min((n + kThreads - 1) / kThreads, kMostBlocks);
  for_each_internal::Kernel<<<static_cast<unsigned>(blocks), kThreads, 0,
                              static_cast<cudaStream_t>(context.stream)>>>(n, body);
  return FromCuda(cudaGetLastError(), "starting a kernel");
}

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_GPU_FOR_EACH_CU_H_

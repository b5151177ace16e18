// How many kernels the process has started, so that tests can tell how many a call starts, and can
// let one fail.
#ifndef TF_DYNEMB_CC_GPU_KERNEL_STARTS_H_
#define TF_DYNEMB_CC_GPU_KERNEL_STARTS_H_

#include <atomic>
#include <cstdint>

#include "cc/core/base/status.h"

namespace dynemb {

// Those of ForEach and ForEachTile, also where a kernel runs on the host; and sorts, each of which
// counts once, though CUB starts up to five kernels for one of numbers below 2^24.
inline std::atomic<int64_t> kernel_starts{0};

// The start of that number fails, as where CUDA has no memory to load a kernel; -1: none.
inline std::atomic<int64_t> failing_kernel_start{-1};

inline Status CountKernelStart() {
  const int64_t number = kernel_starts.fetch_add(1, std::memory_order_relaxed);
  if (number != failing_kernel_start.load(std::memory_order_relaxed)) return {};
  return ResourceExhausted("no GPU memory for kernel ", number, ", as a test has asked for");
}

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_GPU_KERNEL_STARTS_H_

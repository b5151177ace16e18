// How many kernels the process has started, so that tests can tell how many a call starts.
#ifndef TF_DYNEMB_CC_GPU_KERNEL_STARTS_H_
#define TF_DYNEMB_CC_GPU_KERNEL_STARTS_H_

#include <atomic>
#include <cstdint>

namespace dynemb {

// Those of ForEach and ForEachTile, also where a kernel runs on the host; and sorts, each of which
// counts once, though CUB starts up to five kernels for one of numbers below 2^24.
inline std::atomic<int64_t> kernel_starts{0};

inline void CountKernelStart() { kernel_starts.fetch_add(1, std::memory_order_relaxed); }

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_GPU_KERNEL_STARTS_H_

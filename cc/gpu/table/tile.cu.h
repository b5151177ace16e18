// Tile: neighbouring lanes of a warp that work on one thing together; on the host, one.
//
// A kernel's body is a function of a tile and an index. It divides its loops among the lanes,
//
//   for (int64_t c = tile.lane; c < columns; c += tile.width) ...
//
// so that it is the same code for a tile of one lane, which is how it runs on the host.
#ifndef TF_DYNEMB_CC_GPU_TABLE_TILE_CU_H_
#define TF_DYNEMB_CC_GPU_TABLE_TILE_CU_H_

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "cc/core/base/context.h"
#include "cc/core/base/macros.h"
#include "cc/core/base/status.h"
#include "cc/gpu/cuda_status.h"
#include "cc/gpu/kernel_starts.h"

namespace dynemb {

struct Tile {
  int lane;
  int width;  // a power of two up to 32

#ifdef __CUDACC__
  // The tile's lanes in their warp. Lanes of other tiles may be elsewhere in the program.
  __device__ unsigned mask() const {
    const unsigned lanes = width == 32 ? ~0u : (1u << width) - 1;
    return lanes << ((threadIdx.x & 31) & ~(width - 1));
  }
#endif
  // What lane `from` has.
  template <typename T>
  DYNEMB_HOST_DEVICE T Broadcast(T x, int from) const {
#ifdef __CUDA_ARCH__
    if constexpr (std::is_pointer_v<T>) {
      return reinterpret_cast<T>(__shfl_sync(mask(), reinterpret_cast<uintptr_t>(x), from, width));
    } else {
      return __shfl_sync(mask(), x, from, width);
    }
#else
    return from == 0 ? x : T();
#endif
  }
  // What the lane has whose number differs in that bit.
  template <typename T>
  DYNEMB_HOST_DEVICE T FromXor(T x, int bit) const {
#ifdef __CUDA_ARCH__
    return __shfl_xor_sync(mask(), x, bit, width);
#else
    static_cast<void>(bit);  // there is no other lane
    return x;
#endif
  }
  // Bit l: whether lane l says so.
  DYNEMB_HOST_DEVICE unsigned Vote(bool yes) const {
#ifdef __CUDA_ARCH__
    return __ballot_sync(mask(), yes) >> ((threadIdx.x & 31) & ~(width - 1)) &
           (width == 32 ? ~0u : (1u << width) - 1);
#else
    return yes ? 1 : 0;
#endif
  }
  // Memory that lanes have written is seen by the others of the tile.
  DYNEMB_HOST_DEVICE void Sync() const {
#ifdef __CUDA_ARCH__
    __syncwarp(mask());
#endif
  }
};

inline constexpr int kWarp = 32;  // lanes

DYNEMB_HOST_DEVICE inline uint32_t CountBits(unsigned bits) {
#ifdef __CUDA_ARCH__
  return static_cast<uint32_t>(__popc(bits));
#else
  return static_cast<uint32_t>(__builtin_popcount(bits));
#endif
}

// How many warps have a lane for each of n things; on the host a warp is one lane.
inline int64_t WarpsFor(const Context& context, int64_t n) {
  const int lanes = RunsOnHost(context.space) ? 1 : kWarp;
  return (n + lanes - 1) / lanes;
}

// How many lanes are best for `things` of which each lane takes one at a time.
inline int TileWidth(int64_t things) {
  int width = 1;
  while (width < 32 && width < things) width *= 2;
  return width;
}

namespace tile_internal {

inline constexpr int kThreads = 256;

// kWidth 0: as wide as the argument says. The body stays where arguments are: one whose address is
// taken would otherwise be copied to each thread's memory.
template <int kWidth, typename Body>
__global__ void __launch_bounds__(kThreads)
    Kernel(int64_t n, int given_width, const __grid_constant__ Body body) {
  const int width = kWidth == 0 ? given_width : kWidth;
  const Tile tile = {static_cast<int>(threadIdx.x) & (width - 1), width};
  const int64_t tiles_per_block = kThreads / width;
  const int64_t step = gridDim.x * tiles_per_block;
  for (int64_t i = blockIdx.x * tiles_per_block + threadIdx.x / width; i < n; i += step) {
    body(tile, i);
  }
}

}  // namespace tile_internal

// Calls body(tile, 0) .. body(tile, n - 1), each by all lanes of some tile, in any order: as
// ForEach of for_each.cu.h. kWidth is the tile's width, or 0: `width` is.
template <int kWidth, typename Body>
Status ForEachTile(const Context& context, int64_t n, const Body& body, int width = kWidth) {
  if (n > 0) DYNEMB_RETURN_IF_ERROR(CountKernelStart());
  if (RunsOnHost(context.space)) {
    for (int64_t i = 0; i < n; ++i) body(Tile{0, 1}, i);
    return {};
  }
  if (n == 0) return {};
  constexpr int64_t kMostBlocks = 1 << 20;
  const int64_t tiles_per_block = tile_internal::kThreads / width;
  const int64_t blocks = std::min((n + tiles_per_block - 1) / tiles_per_block, kMostBlocks);
  tile_internal::Kernel<kWidth><<<static_cast<unsigned>(blocks), tile_internal::kThreads, 0,
                                  static_cast<cudaStream_t>(context.stream)>>>(n, width, body);
  return FromCuda(cudaGetLastError(), "starting a kernel");
}

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_GPU_TABLE_TILE_CU_H_

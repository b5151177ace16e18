// Atomic operations for functions that run on the device and, by one thread alone, on the host.
#ifndef TF_DYNEMB_CC_GPU_TABLE_ATOMICS_CU_H_
#define TF_DYNEMB_CC_GPU_TABLE_ATOMICS_CU_H_

#include <cuda_runtime.h>

#include <cstdint>

#include "cc/core/base/macros.h"

namespace dynemb {

// Each returns what was there before.
DYNEMB_HOST_DEVICE inline uint32_t AtomicAdd(uint32_t* at, uint32_t x) {
#ifdef __CUDA_ARCH__
  return atomicAdd(at, x);
#else
  const uint32_t before = *at;
  *at += x;
  return before;
#endif
}
DYNEMB_HOST_DEVICE inline uint64_t AtomicAdd(uint64_t* at, uint64_t x) {
#ifdef __CUDA_ARCH__
  return atomicAdd(reinterpret_cast<unsigned long long*>(at),  // NOLINT
                   static_cast<unsigned long long>(x));        // NOLINT
#else
  const uint64_t before = *at;
  *at += x;
  return before;
#endif
}
DYNEMB_HOST_DEVICE inline int64_t AtomicAdd(int64_t* at, int64_t x) {
  return static_cast<int64_t>(AtomicAdd(reinterpret_cast<uint64_t*>(at), static_cast<uint64_t>(x)));
}
DYNEMB_HOST_DEVICE inline int64_t AtomicMax(int64_t* at, int64_t x) {
#ifdef __CUDA_ARCH__
  return atomicMax(reinterpret_cast<long long*>(at), static_cast<long long>(x));  // NOLINT
#else
  const int64_t before = *at;
  if (x > before) *at = x;
  return before;
#endif
}
DYNEMB_HOST_DEVICE inline uint32_t AtomicOr(uint32_t* at, uint32_t bits) {
#ifdef __CUDA_ARCH__
  return atomicOr(at, bits);
#else
  const uint32_t before = *at;
  *at |= bits;
  return before;
#endif
}
DYNEMB_HOST_DEVICE inline uint32_t AtomicAnd(uint32_t* at, uint32_t bits) {
#ifdef __CUDA_ARCH__
  return atomicAnd(at, bits);
#else
  const uint32_t before = *at;
  *at &= bits;
  return before;
#endif
}
DYNEMB_HOST_DEVICE inline uint32_t AtomicMax(uint32_t* at, uint32_t x) {
#ifdef __CUDA_ARCH__
  return atomicMax(at, x);
#else
  const uint32_t before = *at;
  if (x > before) *at = x;
  return before;
#endif
}
DYNEMB_HOST_DEVICE inline uint32_t AtomicMin(uint32_t* at, uint32_t x) {
#ifdef __CUDA_ARCH__
  return atomicMin(at, x);
#else
  const uint32_t before = *at;
  if (x < before) *at = x;
  return before;
#endif
}
DYNEMB_HOST_DEVICE inline uint32_t AtomicCas(uint32_t* at, uint32_t expected, uint32_t wanted) {
#ifdef __CUDA_ARCH__
  return atomicCAS(at, expected, wanted);
#else
  const uint32_t before = *at;
  if (before == expected) *at = wanted;
  return before;
#endif
}
// What is there now, though other threads change it.
DYNEMB_HOST_DEVICE inline uint32_t AtomicLoad(const uint32_t* at) {
  return *static_cast<const volatile uint32_t*>(at);
}

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_GPU_TABLE_ATOMICS_CU_H_

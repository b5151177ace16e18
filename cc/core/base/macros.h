// Macros: functions that run on the device as well as on the host, and functions that are inlined,
// or are not, whatever the optimiser thinks of it.
#ifndef TF_DYNEMB_CC_CORE_BASE_MACROS_H_
#define TF_DYNEMB_CC_CORE_BASE_MACROS_H_

#ifdef __CUDACC__
#define DYNEMB_HOST_DEVICE __host__ __device__
#define DYNEMB_ALWAYS_INLINE __forceinline__
#define DYNEMB_NOINLINE __noinline__
#else
#define DYNEMB_HOST_DEVICE
#define DYNEMB_ALWAYS_INLINE inline __attribute__((always_inline))
#define DYNEMB_NOINLINE __attribute__((noinline))
#endif
// After the parameters of a lambda. One that only fetches ahead must be so: gcc takes it for one
// without effects otherwise, and drops calls of it.
#define DYNEMB_INLINE_LAMBDA __attribute__((always_inline))

#endif  // TF_DYNEMB_CC_CORE_BASE_MACROS_H_

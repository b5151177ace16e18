// The one macro that makes a header's functions run on the device as well as on the host.
#ifndef TF_DYNEMB_CC_CORE_BASE_MACROS_H_
#define TF_DYNEMB_CC_CORE_BASE_MACROS_H_

#ifdef __CUDACC__
#define DYNEMB_HOST_DEVICE __host__ __device__
#else
#define DYNEMB_HOST_DEVICE
#endif

#endif  // TF_DYNEMB_CC_CORE_BASE_MACROS_H_

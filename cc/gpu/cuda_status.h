// From the errors of CUDA's runtime to Status.
#ifndef TF_DYNEMB_CC_GPU_CUDA_STATUS_H_
#define TF_DYNEMB_CC_GPU_CUDA_STATUS_H_

#include <cuda_runtime_api.h>

#include "cc/core/base/status.h"

namespace dynemb {

// `what` was being done. Memory that ran out is kResourceExhausted, and all else kInternal. CUDA
// keeps the thread's last error until somebody asks for it; it is forgotten here, so that what is
// done next is not blamed for it.
inline Status FromCuda(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return {};
  cudaGetLastError();
  const Code code = error == cudaErrorMemoryAllocation ? Code::kResourceExhausted : Code::kInternal;
  return Status(code,
                StrCat(what, ": ", cudaGetErrorString(error), " (", cudaGetErrorName(error), ")"));
}

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_GPU_CUDA_STATUS_H_

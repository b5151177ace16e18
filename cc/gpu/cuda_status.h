// From the errors of CUDA's runtime to Status.
#ifndef TF_DYNEMB_CC_GPU_CUDA_STATUS_H_
#define TF_DYNEMB_CC_GPU_CUDA_STATUS_H_

#include <cuda_runtime_api.h>

#include "cc/core/base/status.h"

namespace dynemb {

// `what` was being done. Memory that ran out is kResourceExhausted, and all else kInternal.
inline Status FromCuda(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return {};
  const Code code = error == cudaErrorMemoryAllocation ? Code::kResourceExhausted : Code::kInternal;
  return Status(code,
                StrCat(what, ": ", cudaGetErrorString(error), " (", cudaGetErrorName(error), ")"));
}

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_GPU_CUDA_STATUS_H_

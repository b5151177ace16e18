// DeviceGuard: CUDA works on the device that is the calling thread's current one.
#ifndef TF_DYNEMB_CC_GPU_TABLE_DEVICE_GUARD_H_
#define TF_DYNEMB_CC_GPU_TABLE_DEVICE_GUARD_H_

#include <cuda.h>
#include <cuda_runtime_api.h>

namespace dynemb {

// Makes a device current, and what was before when it ends. -1: none.
//
// For a thread that has not used CUDA cudaGetDevice says device 0. To make that one current would
// open a context on it, of hundreds of megabytes; so such a thread is left without a context again.
class DeviceGuard {
 public:
  explicit DeviceGuard(int device) {
    int current = -1;
    if (device < 0 || cudaGetDevice(&current) != cudaSuccess || current == device) return;
    before_ = current;
    had_context_ = HasContext();
    cudaSetDevice(device);
  }
  ~DeviceGuard() {
    if (before_ < 0) return;
    if (had_context_) {
      cudaSetDevice(before_);
      return;
    }
    static const auto set_context = Driver<CUresult (*)(CUcontext)>("cuCtxSetCurrent");
    if (set_context != nullptr) set_context(nullptr);
  }
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;

 private:
  // A function of the driver's, with which this library is not linked.
  template <typename F>
  static F Driver(const char* name) {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
#if CUDART_VERSION >= 12050
    const cudaError_t error =
        cudaGetDriverEntryPointByVersion(name, &function, 12000, cudaEnableDefault, &found);
#else
    const cudaError_t error = cudaGetDriverEntryPoint(name, &function, cudaEnableDefault, &found);
#endif
    if (error == cudaSuccess && found == cudaDriverEntryPointSuccess) {
      return reinterpret_cast<F>(function);
    }
    cudaGetLastError();
    return nullptr;
  }
  static bool HasContext() {
    static const auto get_context = Driver<CUresult (*)(CUcontext*)>("cuCtxGetCurrent");
    CUcontext context = nullptr;
    return get_context == nullptr || get_context(&context) != CUDA_SUCCESS || context != nullptr;
  }

  int before_ = -1;
  bool had_context_ = true;
};

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_GPU_TABLE_DEVICE_GUARD_H_

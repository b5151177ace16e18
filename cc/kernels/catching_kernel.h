// CatchingKernel: what every kernel here is. TensorFlow knows no exceptions, and runs Compute on
// threads that one would end the process from; so none leaves a kernel. std::bad_alloc, which is
// all that containers throw, is tf.errors.ResourceExhaustedError.
#ifndef TF_DYNEMB_CC_KERNELS_CATCHING_KERNEL_H_
#define TF_DYNEMB_CC_KERNELS_CATCHING_KERNEL_H_

#include <utility>

#include "cc/core/base/no_memory.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace dynemb {

// Calls f(), which says by the context what went wrong but for memory.
template <typename F>
void CatchNoMemory(tensorflow::OpKernelContext* context, const F& f) {
  if (const Status status = OrNoMemory(f); !status.ok()) {
    context->SetStatus(absl::ResourceExhaustedError(status.message()));
  }
}

class CatchingKernel : public tensorflow::OpKernel {
 public:
  using OpKernel::OpKernel;
  void Compute(tensorflow::OpKernelContext* context) final {
    CatchNoMemory(context, [&] { TryCompute(context); });
  }

 protected:
  // Compute, which may throw std::bad_alloc. What has been done by then is what the calls that it
  // made say of kResourceExhausted.
  virtual void TryCompute(tensorflow::OpKernelContext* context) = 0;
};

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_KERNELS_CATCHING_KERNEL_H_

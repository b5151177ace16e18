// The kernel of the op that lists GPUs. It runs on the CPU, and so where there is none.
#include <vector>

#include "cc/gpu/devices.h"
#include "cc/kernels/catching_kernel.h"
#include "cc/kernels/table_resource.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"

namespace dynemb {
namespace {

using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;
using tensorflow::tstring;

class GpuDevicesOp : public CatchingKernel {
 public:
  using CatchingKernel::CatchingKernel;
  void TryCompute(OpKernelContext* context) override {
    std::vector<GpuDevice> devices;
    OP_REQUIRES_OK(context, ToTensorFlow(ListGpuDevices(&devices)));
    const auto n = static_cast<int64_t>(devices.size());
    Tensor *names, *capabilities, *memory_bytes, *problems;
    OP_REQUIRES_OK(context, context->allocate_output(0, TensorShape({n}), &names));
    OP_REQUIRES_OK(context, context->allocate_output(1, TensorShape({n, 2}), &capabilities));
    OP_REQUIRES_OK(context, context->allocate_output(2, TensorShape({n}), &memory_bytes));
    OP_REQUIRES_OK(context, context->allocate_output(3, TensorShape({n}), &problems));
    for (int64_t i = 0; i < n; ++i) {
      names->vec<tstring>()(i) = devices[i].name;
      capabilities->matrix<int64_t>()(i, 0) = devices[i].compute_capability_major;
      capabilities->matrix<int64_t>()(i, 1) = devices[i].compute_capability_minor;
      memory_bytes->vec<int64_t>()(i) = devices[i].memory_bytes;
      problems->vec<tstring>()(i) = devices[i].usable.message();
    }
  }
};

REGISTER_KERNEL_BUILDER(Name("DynembGpuDevices").Device(tensorflow::DEVICE_CPU), GpuDevicesOp);

}  // namespace
}  // namespace dynemb

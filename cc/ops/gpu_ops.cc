// The op that lists GPUs. No logic; the kernel is in cc/kernels.
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace dynemb {
namespace {

using tensorflow::shape_inference::InferenceContext;

REGISTER_OP("DynembGpuDevices")
    .Output("names: string")
    .Output("compute_capabilities: int64")
    .Output("memory_bytes: int64")
    .Output("problems: string")
    .SetIsStateful()  // it asks the machine each time
    .SetShapeFn([](InferenceContext* c) {
      const auto devices = c->UnknownDim();
      c->set_output(0, c->Vector(devices));
      c->set_output(1, c->Matrix(devices, 2));
      c->set_output(2, c->Vector(devices));
      c->set_output(3, c->Vector(devices));
      return absl::OkStatus();
    })
    .Doc(R"doc(
The GPUs that CUDA shows to this process. Without any, an error that says why.

names: shape (devices,).
compute_capabilities: shape (devices, 2), major and minor.
memory_bytes: shape (devices,).
problems: shape (devices,), why kernels of this library do not run there; empty if they do.
)doc");

}  // namespace
}  // namespace dynemb

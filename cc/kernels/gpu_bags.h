// Bags whose tables are on a GPU. Which ids there are, and in which bags, is the host's to know;
// rows and gradients stay on the GPU.
#ifndef TF_DYNEMB_CC_KERNELS_GPU_BAGS_H_
#define TF_DYNEMB_CC_KERNELS_GPU_BAGS_H_

#include <vector>

#include "cc/core/lookup/bags.h"
#include "cc/kernels/table_resource.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"

namespace dynemb {

// FindBags (cc/core/lookup/bags.h) to `out` on the GPU. `tables` are those of the bags. Where the
// ids of one feature are in several tables, the host pools.
absl::Status FindBagsOnGpu(tensorflow::OpKernelContext* context, const DeviceContext& core,
                           const std::vector<TableInput>& tables, const Bags& bags, char* out);

// What Apply is told of the bags of a table, on the GPU.
struct GpuBagGradient {
  Span<const Key> keys;
  ConstRows rows;
  Span<const double> scales;
};

// Copies those of several tables to the GPU: views of `gradient`, which is there, and of `held`.
absl::Status CopyGradients(tensorflow::OpKernelContext* context, const DeviceContext& core,
                           const std::vector<BagGradient>& from, const char* gradient,
                           tensorflow::Tensor* held, std::vector<GpuBagGradient>* to);

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_KERNELS_GPU_BAGS_H_

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

// What Apply is told of bags, copied to the GPU.
class GpuBagGradient {
 public:
  // A view of `gradient`, which is on the GPU.
  absl::Status Copy(tensorflow::OpKernelContext* context, const DeviceContext& core,
                    const BagGradient& from, const char* gradient);

  const Span<const Key>& keys() const { return keys_; }
  const ConstRows& rows() const { return rows_; }
  const Span<const double>& scales() const { return scales_; }

 private:
  tensorflow::Tensor held_;
  Span<const Key> keys_;
  ConstRows rows_;
  Span<const double> scales_;
};

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_KERNELS_GPU_BAGS_H_

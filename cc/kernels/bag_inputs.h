// BagInputs: the inputs and attrs that the ops about bags have in common.
#ifndef TF_DYNEMB_CC_KERNELS_BAG_INPUTS_H_
#define TF_DYNEMB_CC_KERNELS_BAG_INPUTS_H_

#include <vector>

#include "cc/core/lookup/bags.h"
#include "cc/kernels/table_resource.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"

// For registrations on GPUs: what all ops about bags have in common is in the host's memory.
#define DYNEMB_BAGS_IN_HOST_MEMORY \
  HostMemory("ids")                \
      .HostMemory("lengths")       \
      .HostMemory("id_weights")    \
      .HostMemory("table_ids")     \
      .HostMemory("strides")       \
      .HostMemory("inverse")

namespace dynemb {

class BagInputs {
 public:
  // Errors: attrs that do not fit each other.
  absl::Status Init(tensorflow::OpKernelConstruction* context);

  // The bags of a call, of tables of which only the dims are known (attr dims), or of the op's
  // input "tables", which `held` keeps as long as it lives. Views of the op's inputs.
  absl::Status Get(tensorflow::OpKernelContext* context, const std::vector<int64_t>& dims,
                   Bags* bags) const;
  absl::Status Get(tensorflow::OpKernelContext* context, std::vector<TableInput>* held,
                   Bags* bags) const;

 private:
  absl::Status Get(tensorflow::OpKernelContext* context, std::vector<BagTable> tables,
                   Bags* bags) const;

  tensorflow::DataType dtype_;
  int64_t inputs_;
  std::vector<int64_t> hash_sizes_;
  std::vector<BagFeature> features_;
};

// Input `name`, which must have the shape of the output of the lookup.
absl::Status GetLikeOutput(tensorflow::OpKernelContext* context, const char* name, const Bags& bags,
                           const char** numbers);

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_KERNELS_BAG_INPUTS_H_

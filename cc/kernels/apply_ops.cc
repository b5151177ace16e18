// Kernels of the ops that train: an optimizer rule over the rows of keys.
#include <vector>

#include "cc/core/base/run_calls.h"
#include "cc/core/lookup/bags.h"
#include "cc/kernels/bag_inputs.h"
#include "cc/kernels/catching_kernel.h"
#include "cc/kernels/gpu_bags.h"
#include "cc/kernels/table_resource.h"
#include "cc/kernels/table_updates.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"

namespace dynemb {
namespace {

using tensorflow::OpInputList;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;

class ApplyOp : public CatchingKernel {
 public:
  explicit ApplyOp(OpKernelConstruction* context) : CatchingKernel(context) {
    OP_REQUIRES_OK(context, updates_.Init(context));
  }

  void TryCompute(OpKernelContext* context) override {
    std::vector<TableUpdates::Update> updates;
    const DeviceContext core(context);
    OP_REQUIRES_OK(context, updates_.Get(context, &updates));
    OpInputList keys, shard_ids, gradients;
    OP_REQUIRES_OK(context, context->input_list("keys", &keys));
    OP_REQUIRES_OK(context, context->input_list("shard_ids", &shard_ids));
    OP_REQUIRES_OK(context, context->input_list("gradients", &gradients));
    OpInputList admitted, scores;
    OP_REQUIRES_OK(context, context->input_list("admitted", &admitted));
    OP_REQUIRES_OK(context, context->input_list("scores", &scores));
    for (int i = 0; i < keys.size(); ++i) {
      TableUpdates::Update& update = updates[i];
      KeyInputs inputs;
      OP_REQUIRES_OK(context,
                     RouteKeys(core, keys[i], shard_ids[i], update.table, &inputs, core.space));
      OP_REQUIRES_OK(context, RowsOfKeys("gradients", gradients[i], inputs, update.table.schema.dim,
                                         &update.gradients));
      update.keys = inputs.keys;
      OP_REQUIRES_OK(context, TableUpdates::SetAdmitted(admitted[i], &update));
      OP_REQUIRES_OK(context, ScoresOfKeys(scores[i], inputs, &update.stamp));
      update.routing = std::move(inputs.routing);
    }
    OP_REQUIRES_OK(context, updates_.Run(context, core, &updates));
  }

 private:
  TableUpdates updates_;
};

class CheckUpdatesOp : public CatchingKernel {
 public:
  explicit CheckUpdatesOp(OpKernelConstruction* context) : CatchingKernel(context) {
    OP_REQUIRES_OK(context, updates_.Init(context));
    OP_REQUIRES_OK(context, context->GetAttr("fails", &fails_));
  }

  void TryCompute(OpKernelContext* context) override {
    std::vector<TableUpdates::Update> updates;
    std::vector<KeyStrings::PinGuard> pins;
    const DeviceContext core(context);
    OpInputList keys, shard_ids, admitted;
    OP_REQUIRES_OK(context, updates_.Get(context, &updates));
    OP_REQUIRES_OK(context, context->input_list("keys", &keys));
    OP_REQUIRES_OK(context, context->input_list("shard_ids", &shard_ids));
    OP_REQUIRES_OK(context, context->input_list("admitted", &admitted));
    for (int i = 0; i < keys.size(); ++i) {
      KeyInputs inputs;
      OP_REQUIRES_OK(context,
                     RouteKeys(core, keys[i], shard_ids[i], updates[i].table, &inputs, core.space));
      updates[i].keys = inputs.keys;
      OP_REQUIRES_OK(context, TableUpdates::SetAdmitted(admitted[i], &updates[i]));
      updates[i].routing = std::move(inputs.routing);
    }
    const absl::Status prepared = updates_.Prepare(context, core, &updates, &pins);
    if (fails_) OP_REQUIRES_OK(context, prepared);
    OP_REQUIRES_OK(context, SetProblem(context, prepared));
  }

 private:
  TableUpdates updates_;
  bool fails_;
};

class ApplyBagsOp : public CatchingKernel {
 public:
  explicit ApplyBagsOp(OpKernelConstruction* context) : CatchingKernel(context) {
    int tables;
    OP_REQUIRES_OK(context, context->GetAttr("N", &tables));
    OP_REQUIRES_OK(context, context->GetAttr("trained", &trained_));
    OP_REQUIRES_OK(context, context->GetAttr("dims", &dims_));
    OP_REQUIRES_OK(context, inputs_.Init(context));
    OP_REQUIRES_OK(context, updates_.Init(context));
    const int64_t count = static_cast<int64_t>(dims_.size());
    bool exist = trained_.size() == static_cast<size_t>(tables);
    for (const int64_t t : trained_) exist = exist && t >= 0 && t < count;
    OP_REQUIRES(context, exist,
                ToTensorFlow(InvalidArgument("trained: want one number below ", count,
                                             " for each of ", tables, " tables")));
  }

  void TryCompute(OpKernelContext* context) override {
    std::vector<TableUpdates::Update> updates;
    Bags bags;
    const char* gradient;
    const DeviceContext core(context);
    OP_REQUIRES_OK(context, updates_.Get(context, &updates));
    OP_REQUIRES_OK(context, inputs_.Get(context, dims_, &bags));
    OP_REQUIRES_OK(context, GetLikeOutput(context, "gradient", bags, &gradient));
    for (size_t i = 0; i < updates.size(); ++i) {
      const int64_t dim = updates[i].table.schema.dim;
      OP_REQUIRES(context, dim == dims_[trained_[i]],
                  ToTensorFlow(InvalidArgument("dims: got ", dims_[trained_[i]], " for table ",
                                               trained_[i], ", whose rows have ", dim)));
    }
    std::vector<BagGradient> gradients(updates.size());
    std::vector<int64_t> sizes;  // in ids
    for (const int64_t table : trained_) sizes.push_back(bags.ids_of_table(table));
    const auto find = [&](int64_t i, const Context& core) {
      return GradientOfTable(core, bags, trained_[i], &gradients[i]);
    };
    const PoolContext host(context);
    OP_REQUIRES_OK(context, ToTensorFlow(RunCalls(host, sizes, find, kGradientNanoseconds)));
    std::vector<GpuBagGradient> on_gpu;
    tensorflow::Tensor held;
    if (core.space != MemorySpace::kHost) {
      OP_REQUIRES_OK(context, CopyGradients(context, core, gradients, gradient, &held, &on_gpu));
    }
    for (size_t i = 0; i < updates.size(); ++i) {
      TableUpdates::Update& update = updates[i];
      if (core.space != MemorySpace::kHost) {
        update.keys = on_gpu[i].keys;
        update.gradients = on_gpu[i].rows;
        update.scales = on_gpu[i].scales;
        continue;
      }
      update.keys = gradients[i].keys();
      update.gradients = gradients[i].rows(gradient);
      update.scales = gradients[i].scales();
      const int64_t shards = update.table.shard_count();
      if (shards == 1) continue;
      OP_REQUIRES_OK(context,
                     ToTensorFlow(Routing::Make(core, update.keys, KeyMod(update.keys, shards),
                                                static_cast<int>(shards), &update.routing)));
    }
    OP_REQUIRES_OK(context, updates_.Run(context, core, &updates));
  }

 private:
  BagInputs inputs_;
  TableUpdates updates_;
  std::vector<int64_t> trained_, dims_;
};

REGISTER_KERNEL_BUILDER(Name("DynembApply").Device(tensorflow::DEVICE_CPU), ApplyOp);
REGISTER_KERNEL_BUILDER(Name("DynembApply")
                            .Device(tensorflow::DEVICE_GPU)
                            .HostMemory("tables")
                            .HostMemory("shard_ids")
                            .HostMemory("hyper")
                            .HostMemory("now")
                            .HostMemory("candidates"),
                        ApplyOp);
REGISTER_KERNEL_BUILDER(Name("DynembCheckUpdates").Device(tensorflow::DEVICE_CPU), CheckUpdatesOp);
REGISTER_KERNEL_BUILDER(Name("DynembCheckUpdates")
                            .Device(tensorflow::DEVICE_GPU)
                            .HostMemory("tables")
                            .HostMemory("shard_ids")
                            .HostMemory("hyper")
                            .HostMemory("now")
                            .HostMemory("candidates")
                            .HostMemory("problem"),
                        CheckUpdatesOp);
REGISTER_KERNEL_BUILDER(Name("DynembApplyBags").Device(tensorflow::DEVICE_CPU), ApplyBagsOp);
REGISTER_KERNEL_BUILDER(Name("DynembApplyBags")
                            .Device(tensorflow::DEVICE_GPU)
                            .HostMemory("tables")
                            .HostMemory("hyper")
                            .HostMemory("now")
                            .HostMemory("candidates")
                            .DYNEMB_BAGS_IN_HOST_MEMORY,
                        ApplyBagsOp);

}  // namespace
}  // namespace dynemb

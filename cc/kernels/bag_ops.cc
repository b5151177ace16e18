// Kernels of lookups of bags, and of their gradients; what trains on these is in apply_ops.cc.
#include <algorithm>
#include <cstdint>
#include <set>
#include <vector>

#include "cc/core/lookup/bags.h"
#include "cc/core/lookup/dedup.h"
#include "cc/kernels/bag_inputs.h"
#include "cc/kernels/gpu_bags.h"
#include "cc/kernels/table_resource.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"

namespace dynemb {
namespace {

using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::OpOutputList;
using tensorflow::Tensor;
using tensorflow::TensorShape;

class HandlesOp : public OpKernel {
 public:
  explicit HandlesOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("dims", &dims_));
    OP_REQUIRES(context, static_cast<int>(dims_.size()) == context->num_outputs(),
                ToTensorFlow(InvalidArgument("dims: got ", dims_.size(), ", want one per handle, ",
                                             context->num_outputs())));
  }

  void Compute(OpKernelContext* context) override {
    for (size_t i = 0; i < dims_.size(); ++i) {
      TensorShape shape({0});
      Tensor* weight;
      OP_REQUIRES_OK(context, shape.AddDimWithStatus(dims_[i]));
      OP_REQUIRES_OK(context, context->allocate_output(i, shape, &weight));
    }
  }

 private:
  std::vector<int64_t> dims_;
};

class LookupBagsOp : public OpKernel {
 public:
  explicit LookupBagsOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, inputs_.Init(context));
  }

  void Compute(OpKernelContext* context) override {
    std::vector<TableInput> tables;
    Bags bags;
    Tensor* values;
    OP_REQUIRES_OK(context, inputs_.Get(context, &tables, &bags));
    OP_REQUIRES_OK(
        context, context->allocate_output(0, TensorShape({bags.rows(), bags.columns()}), &values));
    const DeviceContext core(context);
    char* const out = MutableRowsOf(values, 0, 0).data;
    OP_REQUIRES_OK(context, core.space == MemorySpace::kHost
                                ? ToTensorFlow(FindBags(core, bags, out))
                                : FindBagsOnGpu(context, core, tables, bags, out));
  }

 private:
  BagInputs inputs_;
};

class OwnersOp : public OpKernel {
 public:
  explicit OwnersOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, inputs_.Init(context));
    OP_REQUIRES_OK(context, context->GetAttr("limits", &limits_));
    OP_REQUIRES_OK(context, context->GetAttr("instead", &instead_));
    int tables;
    OP_REQUIRES_OK(context, context->GetAttr("T", &tables));
    const size_t want = static_cast<size_t>(tables);
    OP_REQUIRES(context, limits_.size() == want && instead_.size() == want,
                ToTensorFlow(InvalidArgument("limits and instead: got ", limits_.size(), " and ",
                                             instead_.size(), ", want one per table, ", tables)));
  }

  void Compute(OpKernelContext* context) override {
    std::vector<TableInput> tables;
    Bags bags;
    OP_REQUIRES_OK(context, inputs_.Get(context, &tables, &bags));
    std::vector<int32_t> owners;
    for (int64_t f = 0; f < bags.feature_count(); ++f) {
      owners.resize(owners.size() + bags.ids(f).second - bags.ids(f).first,
                    static_cast<int32_t>(bags.feature(f).table));
    }
    for (size_t t = 0; t < tables.size(); ++t) {
      if (limits_[t] < 0) continue;
      OP_REQUIRES_OK(context, ToTensorFlow(SendElsewhere(tables[t], bags, t, &owners)));
    }
    Tensor* output;
    const int64_t n = static_cast<int64_t>(owners.size());
    OP_REQUIRES_OK(context, context->allocate_output(0, TensorShape({n}), &output));
    std::copy(owners.begin(), owners.end(), output->flat<int32_t>().data());
  }

 private:
  // Gives the ids of a table for which it has no room to the one instead.
  Status SendElsewhere(const TableInput& table, const Bags& bags, size_t number,
                       std::vector<int32_t>* owners) {
    const BagGradient of_table = GradientOfTable(bags, static_cast<int64_t>(number));
    const int shards = static_cast<int>(table.shard_count());
    Routing routing;
    DYNEMB_RETURN_IF_ERROR(
        Routing::Make(of_table.keys(), KeyMod(of_table.keys(), shards), shards, &routing));
    std::vector<Key> missing;
    DYNEMB_RETURN_IF_ERROR(MissingKeys(table, of_table.keys(), routing, &missing));
    int64_t room = limits_[number];
    for (const auto& shard : table.shards) room -= shard->size();
    room = std::max<int64_t>(0, room);
    if (static_cast<int64_t>(missing.size()) <= room) return Status();
    const std::set<Key> elsewhere(missing.begin() + room, missing.end());
    int64_t at = 0;
    for (int64_t f = 0; f < bags.feature_count(); ++f) {
      const auto [begin, end] = bags.ids(f);
      for (int64_t id = begin; id < end; ++id, ++at) {
        if (bags.feature(f).table == static_cast<int64_t>(number) &&
            elsewhere.count(bags.input().ids[id]) > 0) {
          (*owners)[at] = static_cast<int32_t>(instead_[number]);
        }
      }
    }
    return Status();
  }

  BagInputs inputs_;
  std::vector<int64_t> limits_, instead_;
};

class SumBagsOp : public OpKernel {
 public:
  explicit SumBagsOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("dims", &dims_));
    OP_REQUIRES_OK(context, inputs_.Init(context));
    OP_REQUIRES(context, 2 * static_cast<int>(dims_.size()) == context->num_outputs(),
                ToTensorFlow(InvalidArgument("dims: got ", dims_.size(), ", want one per table, ",
                                             context->num_outputs() / 2)));
  }

  void Compute(OpKernelContext* context) override {
    Bags bags;
    const char* gradient;
    OpOutputList keys, sums;
    OP_REQUIRES_OK(context, inputs_.Get(context, dims_, &bags));
    OP_REQUIRES_OK(context, GetLikeOutput(context, "gradient", bags, &gradient));
    OP_REQUIRES_OK(context, context->output_list("keys", &keys));
    OP_REQUIRES_OK(context, context->output_list("sums", &sums));
    const DType dtype = bags.dtype();
    const PoolContext core(context);
    for (size_t t = 0; t < dims_.size(); ++t) {
      const BagGradient of_table = GradientOfTable(bags, static_cast<int64_t>(t));
      const Dedup dedup(of_table.keys());
      Tensor *distinct, *summed;
      OP_REQUIRES_OK(context, keys.allocate(t, TensorShape({dedup.size()}), &distinct));
      OP_REQUIRES_OK(context, sums.allocate(t, TensorShape({dedup.size(), dims_[t]}), &summed));
      std::copy(dedup.unique().begin(), dedup.unique().end(), distinct->flat<int64_t>().data());
      SumByKey(core, dedup, dtype, dims_[t], of_table.rows(gradient), of_table.scales(),
               MutableRowsOf(summed, dedup.size(), dims_[t] * SizeOf(dtype)));
    }
  }

 private:
  BagInputs inputs_;
  std::vector<int64_t> dims_;
};

class BagWeightsGradientOp : public OpKernel {
 public:
  explicit BagWeightsGradientOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, inputs_.Init(context));
  }

  void Compute(OpKernelContext* context) override {
    std::vector<TableInput> tables;
    Bags bags;
    const char *gradient, *values;
    Tensor* weights;
    OP_REQUIRES_OK(context, inputs_.Get(context, &tables, &bags));
    OP_REQUIRES_OK(context, GetLikeOutput(context, "gradient", bags, &gradient));
    OP_REQUIRES_OK(context, GetLikeOutput(context, "values", bags, &values));
    OP_REQUIRES_OK(context,
                   context->allocate_output(0, TensorShape({bags.input().ids.size}), &weights));
    OP_REQUIRES_OK(context,
                   ToTensorFlow(GradientOfWeights(PoolContext(context), bags, gradient, values,
                                                  MutableRowsOf(weights, 0, 0).data)));
  }

 private:
  BagInputs inputs_;
};

REGISTER_KERNEL_BUILDER(Name("DynembHandles").Device(tensorflow::DEVICE_CPU), HandlesOp);
REGISTER_KERNEL_BUILDER(Name("DynembHandles").Device(tensorflow::DEVICE_GPU).HostMemory("handles"),
                        HandlesOp);
REGISTER_KERNEL_BUILDER(Name("DynembOwners").Device(tensorflow::DEVICE_CPU), OwnersOp);
REGISTER_KERNEL_BUILDER(Name("DynembOwners")
                            .Device(tensorflow::DEVICE_GPU)
                            .HostMemory("tables")
                            .DYNEMB_BAGS_IN_HOST_MEMORY.HostMemory("new_owners"),
                        OwnersOp);
REGISTER_KERNEL_BUILDER(Name("DynembLookupBags").Device(tensorflow::DEVICE_CPU), LookupBagsOp);
REGISTER_KERNEL_BUILDER(Name("DynembLookupBags")
                            .Device(tensorflow::DEVICE_GPU)
                            .HostMemory("tables")
                            .DYNEMB_BAGS_IN_HOST_MEMORY,
                        LookupBagsOp);
REGISTER_KERNEL_BUILDER(Name("DynembSumBags").Device(tensorflow::DEVICE_CPU), SumBagsOp);
REGISTER_KERNEL_BUILDER(Name("DynembSumBags")
                            .Device(tensorflow::DEVICE_GPU)
                            .HostMemory("gradient")
                            .DYNEMB_BAGS_IN_HOST_MEMORY.HostMemory("keys")
                            .HostMemory("sums"),
                        SumBagsOp);
REGISTER_KERNEL_BUILDER(Name("DynembBagWeightsGradient").Device(tensorflow::DEVICE_CPU),
                        BagWeightsGradientOp);
REGISTER_KERNEL_BUILDER(Name("DynembBagWeightsGradient")
                            .Device(tensorflow::DEVICE_GPU)
                            .HostMemory("tables")
                            .DYNEMB_BAGS_IN_HOST_MEMORY.HostMemory("gradient")
                            .HostMemory("values")
                            .HostMemory("id_weights_gradient"),
                        BagWeightsGradientOp);

}  // namespace
}  // namespace dynemb

// Kernels of lookups of bags, and of their gradients; what trains on these is in apply_ops.cc.
#include <algorithm>
#include <cstdint>
#include <numeric>
#include <optional>
#include <set>
#include <vector>

#include "cc/core/base/run_calls.h"
#include "cc/core/lookup/bags.h"
#include "cc/core/lookup/sum_by_key.h"
#include "cc/kernels/bag_inputs.h"
#include "cc/kernels/catching_kernel.h"
#include "cc/kernels/gpu_bags.h"
#include "cc/kernels/repetitions.h"
#include "cc/kernels/table_resource.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"

namespace dynemb {
namespace {

using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::OpOutputList;
using tensorflow::Tensor;
using tensorflow::TensorShape;

class HandlesOp : public CatchingKernel {
 public:
  explicit HandlesOp(OpKernelConstruction* context) : CatchingKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("dims", &dims_));
    OP_REQUIRES(context, static_cast<int>(dims_.size()) == context->num_outputs(),
                ToTensorFlow(InvalidArgument("dims: got ", dims_.size(), ", want one per handle, ",
                                             context->num_outputs())));
  }

  void TryCompute(OpKernelContext* context) override {
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

class LookupBagsOp : public CatchingKernel {
 public:
  explicit LookupBagsOp(OpKernelConstruction* context) : CatchingKernel(context) {
    OP_REQUIRES_OK(context, inputs_.Init(context));
  }

  void TryCompute(OpKernelContext* context) override {
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

class RouteOverflowOp : public CatchingKernel {
 public:
  explicit RouteOverflowOp(OpKernelConstruction* context) : CatchingKernel(context) {
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

  void TryCompute(OpKernelContext* context) override {
    std::vector<TableInput> tables;
    Bags bags;
    OP_REQUIRES_OK(context, inputs_.Get(context, &tables, &bags));
    std::vector<int32_t> table_ids;
    for (int64_t f = 0; f < bags.feature_count(); ++f) {
      table_ids.resize(table_ids.size() + bags.ids(f).second - bags.ids(f).first,
                       static_cast<int32_t>(bags.feature(f).table));
    }
    for (size_t t = 0; t < tables.size(); ++t) {
      if (limits_[t] < 0) continue;
      OP_REQUIRES_OK(context, ToTensorFlow(RouteOverflow(PoolContext(context), tables[t], bags, t,
                                                         &table_ids)));
    }
    Tensor* output;
    const int64_t n = static_cast<int64_t>(table_ids.size());
    OP_REQUIRES_OK(context, context->allocate_output(0, TensorShape({n}), &output));
    std::copy(table_ids.begin(), table_ids.end(), output->flat<int32_t>().data());
  }

 private:
  // Gives the ids of a table for which it has no room to the one instead.
  Status RouteOverflow(const Context& context, const TableInput& table, const Bags& bags,
                       size_t number, std::vector<int32_t>* table_ids) {
    BagGradient of_table;
    DYNEMB_RETURN_IF_ERROR(GradientOfTable(context, bags, static_cast<int64_t>(number), &of_table));
    const int shards = static_cast<int>(table.shard_count());
    Routing routing;
    DYNEMB_RETURN_IF_ERROR(
        Routing::Make(context, of_table.keys(), KeyMod(of_table.keys(), shards), shards, &routing));
    std::vector<KeyOfShard> missing;
    DYNEMB_RETURN_IF_ERROR(MissingKeys(context, table, of_table.keys(), routing, &missing));
    int64_t room = limits_[number];
    for (const auto& shard : table.shards) room -= shard->size();
    room = std::max<int64_t>(0, room);
    if (static_cast<int64_t>(missing.size()) <= room) return Status();
    std::set<Key> overflow;
    for (auto it = missing.begin() + room; it != missing.end(); ++it) overflow.insert(it->key);
    int64_t at = 0;
    for (int64_t f = 0; f < bags.feature_count(); ++f) {
      const auto [begin, end] = bags.ids(f);
      for (int64_t id = begin; id < end; ++id, ++at) {
        if (bags.feature(f).table == static_cast<int64_t>(number) &&
            overflow.count(bags.table(bags.feature(f).table).key_of(bags.input().ids[id])) > 0) {
          (*table_ids)[at] = static_cast<int32_t>(instead_[number]);
        }
      }
    }
    return Status();
  }

  BagInputs inputs_;
  std::vector<int64_t> limits_, instead_;
};

class SumBagsOp : public CatchingKernel {
 public:
  explicit SumBagsOp(OpKernelConstruction* context) : CatchingKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("dims", &dims_));
    OP_REQUIRES_OK(context, inputs_.Init(context));
    OP_REQUIRES(context, 2 * static_cast<int>(dims_.size()) == context->num_outputs(),
                ToTensorFlow(InvalidArgument("dims: got ", dims_.size(), ", want one per table, ",
                                             context->num_outputs() / 2)));
    OP_REQUIRES_OK(context, context->GetAttr("repeats", &repeats_));
    OP_REQUIRES(context, repeats_.empty() || repeats_.size() == dims_.size(),
                ToTensorFlow(InvalidArgument("repeats: got ", repeats_.size(),
                                             ", want one per table, ", dims_.size(), ", or none")));
  }

  void TryCompute(OpKernelContext* context) override {
    Bags bags;
    const char* gradient;
    OpOutputList keys, sums;
    OP_REQUIRES_OK(context, inputs_.Get(context, dims_, &bags));
    OP_REQUIRES_OK(context, GetLikeOutput(context, "gradient", bags, &gradient));
    OP_REQUIRES_OK(context, context->output_list("keys", &keys));
    OP_REQUIRES_OK(context, context->output_list("sums", &sums));
    const DType dtype = bags.dtype();
    const PoolContext core(context);
    std::vector<int64_t> sizes(dims_.size());  // in ids
    for (size_t t = 0; t < sizes.size(); ++t) sizes[t] = bags.ids_of_table(static_cast<int64_t>(t));
    struct OfTable {
      BagGradient gradient;
      std::optional<DistinctKeys> distinct_keys;
      std::vector<Key> repeated;
      Rows sums;
    };
    std::vector<OfTable> of_tables(dims_.size());
    const auto find = [&](int64_t t, const Context& core) {
      return GradientOfTable(core, bags, t, &of_tables[t].gradient);
    };
    OP_REQUIRES_OK(context, ToTensorFlow(RunCalls(core, sizes, find, kGradientNanoseconds)));
    // Each table on one thread.
    const int64_t tables = static_cast<int64_t>(dims_.size());
    const int64_t ids = std::accumulate(sizes.begin(), sizes.end(), int64_t{0});
    constexpr int64_t kDistinctKeyNanoseconds = 10;  // of an id
    const auto group = [&](int64_t t) {
      OfTable& of_table = of_tables[t];
      of_table.distinct_keys.emplace(of_table.gradient.keys());
      of_table.repeated = Repetitions(*of_table.distinct_keys, repeats_.empty() ? 1 : repeats_[t]);
    };
    OP_REQUIRES_OK(
        context, ToTensorFlow(core.executor->Run(
                     tables, ids * kDistinctKeyNanoseconds / std::max<int64_t>(1, tables), group)));
    for (size_t t = 0; t < dims_.size(); ++t) {
      OfTable& of_table = of_tables[t];
      const DistinctKeys& distinct_keys = *of_table.distinct_keys;
      const int64_t size = distinct_keys.size() + static_cast<int64_t>(of_table.repeated.size());
      Tensor *distinct, *summed;
      OP_REQUIRES_OK(context, keys.allocate(t, TensorShape({size}), &distinct));
      OP_REQUIRES_OK(context, sums.allocate(t, TensorShape({size, dims_[t]}), &summed));
      CopyKeys(distinct_keys, of_table.repeated, distinct->flat<int64_t>().data());
      of_table.sums = MutableRowsOf(summed, distinct_keys.size(), dims_[t] * SizeOf(dtype));
      ClearRows(distinct_keys.size(), dims_[t] * SizeOf(dtype), summed);
    }
    OP_REQUIRES_OK(context, ToTensorFlow(RunCalls(core, sizes, [&](int64_t t, const Context& core) {
                     const OfTable& of_table = of_tables[t];
                     return SumByKey(core, *of_table.distinct_keys, dtype, dims_[t],
                                     of_table.gradient.rows(gradient), of_table.gradient.scales(),
                                     of_table.sums);
                   })));
  }

 private:
  BagInputs inputs_;
  std::vector<int64_t> dims_, repeats_;
};

class BagWeightsGradientOp : public CatchingKernel {
 public:
  explicit BagWeightsGradientOp(OpKernelConstruction* context) : CatchingKernel(context) {
    OP_REQUIRES_OK(context, inputs_.Init(context));
  }

  void TryCompute(OpKernelContext* context) override {
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
REGISTER_KERNEL_BUILDER(Name("DynembRouteOverflow").Device(tensorflow::DEVICE_CPU),
                        RouteOverflowOp);
REGISTER_KERNEL_BUILDER(Name("DynembRouteOverflow")
                            .Device(tensorflow::DEVICE_GPU)
                            .HostMemory("tables")
                            .DYNEMB_BAGS_IN_HOST_MEMORY.HostMemory("new_table_ids"),
                        RouteOverflowOp);
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

// Kernels of the ops that make and read what processes send each other.
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "cc/core/lookup/dedup.h"
#include "cc/core/lookup/fetched_rows_view.h"
#include "cc/core/shard/all_to_all_buffer.h"
#include "cc/kernels/catching_kernel.h"
#include "cc/kernels/monitoring.h"
#include "cc/kernels/table_resource.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"

namespace dynemb {
namespace {

using tensorflow::OpInputList;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::OpOutputList;
using tensorflow::Tensor;
using tensorflow::TensorShape;

class GroupByShardOp : public CatchingKernel {
 public:
  explicit GroupByShardOp(OpKernelConstruction* context) : CatchingKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("receivers", &receivers_));
    OP_REQUIRES_OK(context, context->GetAttr("distinct", &distinct_));
    OP_REQUIRES(context, receivers_ <= kMostReceivers,
                ToTensorFlow(InvalidArgument("receivers: got ", receivers_, ", want up to ",
                                             kMostReceivers)));
  }

  void TryCompute(OpKernelContext* context) override {
    OpInputList keys, shard_ids;
    OpOutputList grouped, places;
    OP_REQUIRES_OK(context, context->input_list("keys", &keys));
    OP_REQUIRES_OK(context, context->input_list("shard_ids", &shard_ids));
    OP_REQUIRES_OK(context, context->output_list("grouped", &grouped));
    OP_REQUIRES_OK(context, context->output_list("places", &places));
    const int tables = keys.size();
    Tensor* counts;
    OP_REQUIRES_OK(
        context, context->allocate_output(2 * tables, TensorShape({receivers_, tables}), &counts));
    auto count = counts->matrix<int64_t>();
    for (int t = 0; t < tables; ++t) {
      OP_REQUIRES(context, keys[t].dims() == 1 && shard_ids[t].dims() == 1,
                  ToTensorFlow(InvalidArgument(
                      "keys and shard_ids: got shapes ", keys[t].shape().DebugString(), " and ",
                      shard_ids[t].shape().DebugString(), ", want vectors")));
      const Span<const Key> all(keys[t].flat<int64_t>().data(), keys[t].NumElements());
      const Span<const int32_t> all_shard_ids(shard_ids[t].flat<int32_t>().data(),
                                              shard_ids[t].NumElements());
      GroupedKeys groups;
      OP_REQUIRES_OK(context, ToTensorFlow(Group(all, all_shard_ids, &groups)));
      Tensor *out, *place;
      const int64_t size = static_cast<int64_t>(groups.keys.size());
      OP_REQUIRES_OK(context, grouped.allocate(t, TensorShape({size}), &out));
      OP_REQUIRES_OK(context, places.allocate(t, keys[t].shape(), &place));
      std::copy(groups.keys.begin(), groups.keys.end(), out->flat<int64_t>().data());
      std::copy(groups.places.begin(), groups.places.end(), place->flat<int64_t>().data());
      for (int64_t r = 0; r < receivers_; ++r) count(r, t) = groups.counts[r];
    }
  }

 private:
  static constexpr int64_t kMostReceivers = 1 << 20;

  Status Group(Span<const Key> keys, Span<const int32_t> shard_ids, GroupedKeys* groups) const {
    if (!distinct_) return GroupByShard(keys, shard_ids, receivers_, groups);
    const Dedup dedup(keys);
    const std::vector<int64_t>& inverse = dedup.inverse();
    std::vector<int32_t> ids_of_distinct;
    if (shard_ids.size > 0) {
      if (shard_ids.size != keys.size)
        return GroupByShard(keys, shard_ids, receivers_, groups);  // says why
      ids_of_distinct.resize(static_cast<size_t>(dedup.size()));
      for (int64_t i = 0; i < keys.size; ++i) ids_of_distinct[inverse[i]] = shard_ids[i];
    }
    DYNEMB_RETURN_IF_ERROR(GroupByShard(dedup.unique(), ids_of_distinct, receivers_, groups));
    std::vector<int64_t> places(inverse.size());
    for (size_t i = 0; i < inverse.size(); ++i) places[i] = groups->places[inverse[i]];
    groups->places = std::move(places);
    return Status();
  }

  int64_t receivers_;
  bool distinct_;
};

// The counts of an op's input, and of buffers of `words`; item_bytes is set by the caller.
absl::Status GetCounts(OpKernelContext* context, int parts, AllToAllLayout* layout) {
  const Tensor* counts;
  TF_RETURN_IF_ERROR(context->input("counts", &counts));
  if (counts->dims() != 2 || counts->dim_size(1) != parts) {
    return ToTensorFlow(InvalidArgument("counts: got shape ", counts->shape().DebugString(),
                                        ", want (processes, ", parts, ")"));
  }
  layout->receivers = counts->dim_size(0);
  layout->counts = {counts->flat<int64_t>().data(), counts->NumElements()};
  return absl::OkStatus();
}

class PackOp : public CatchingKernel {
 public:
  using CatchingKernel::CatchingKernel;

  void TryCompute(OpKernelContext* context) override {
    OpInputList parts;
    AllToAllLayout layout;
    OP_REQUIRES_OK(context, context->input_list("parts", &parts));
    OP_REQUIRES_OK(context, GetCounts(context, parts.size(), &layout));
    OP_REQUIRES_OK(context, GetScalar(context, "words", &layout.words));
    std::vector<const char*> from;
    for (int p = 0; p < parts.size(); ++p) {
      const Tensor& part = parts[p];
      OP_REQUIRES(context, part.dims() == 1 || part.dims() == 2,
                  ToTensorFlow(InvalidArgument("parts: got shape ", part.shape().DebugString(),
                                               ", want (items,) or (items, dim)")));
      const int64_t items_dim = part.dims() == 2 ? part.dim_size(1) : 1;
      layout.item_bytes.push_back(items_dim * tensorflow::DataTypeSize(part.dtype()));
      from.push_back(part.tensor_data().data());
    }
    OP_REQUIRES_OK(context, ToTensorFlow(layout.Check()));
    for (int p = 0; p < parts.size(); ++p) {
      OP_REQUIRES(context, layout.total(p) == parts[p].dim_size(0),
                  ToTensorFlow(InvalidArgument("counts: got ", layout.total(p), " for part ", p,
                                               ", which has ", parts[p].dim_size(0), " items")));
    }
    TensorShape shape;
    OP_REQUIRES_OK(context,
                   TensorShape::BuildTensorShape({layout.receivers, layout.words}, &shape));
    Tensor* buffers;
    OP_REQUIRES_OK(context, context->allocate_output(0, shape, &buffers));
    AddAllToAllBytes(static_cast<int64_t>(buffers->TotalBytes()));
    OP_REQUIRES_OK(context, ToTensorFlow(PackAllToAll(PoolContext(context), layout, from,
                                                      buffers->flat<int64_t>().data())));
  }
};

class UnpackOp : public CatchingKernel {
 public:
  explicit UnpackOp(OpKernelConstruction* context) : CatchingKernel(context) {
    std::vector<tensorflow::DataType> dtypes;
    OP_REQUIRES_OK(context, context->GetAttr("P", &dtypes));
    OP_REQUIRES_OK(context, context->GetAttr("dims", &dims_));
    OP_REQUIRES(context, dims_.size() == dtypes.size(),
                ToTensorFlow(InvalidArgument("dims: got ", dims_.size(), ", want one for each of ",
                                             dtypes.size(), " parts")));
    for (size_t p = 0; p < dims_.size(); ++p) {
      OP_REQUIRES(context, dims_[p] == -1 || (dims_[p] >= 1 && dims_[p] <= kMostNumbers),
                  ToTensorFlow(InvalidArgument("dims: got ", dims_[p], ", want -1, or 1 to ",
                                               kMostNumbers)));
      item_bytes_.push_back((dims_[p] < 0 ? 1 : dims_[p]) * tensorflow::DataTypeSize(dtypes[p]));
    }
  }

  void TryCompute(OpKernelContext* context) override {
    const Tensor& buffers = context->input(0);
    AllToAllLayout layout;
    OP_REQUIRES_OK(context, GetCounts(context, static_cast<int>(dims_.size()), &layout));
    OP_REQUIRES(context, buffers.dims() == 2 && buffers.dim_size(0) == layout.receivers,
                ToTensorFlow(InvalidArgument("buffers: got shape ", buffers.shape().DebugString(),
                                             ", want (", layout.receivers, ", words)")));
    layout.words = buffers.dim_size(1);
    layout.item_bytes = item_bytes_;
    OP_REQUIRES_OK(context, ToTensorFlow(layout.Check()));
    std::vector<char*> to;
    for (size_t p = 0; p < dims_.size(); ++p) {
      TensorShape shape({layout.total(static_cast<int64_t>(p))});
      if (dims_[p] >= 0) OP_REQUIRES_OK(context, shape.AddDimWithStatus(dims_[p]));
      Tensor* part;
      OP_REQUIRES_OK(context, context->allocate_output(static_cast<int>(p), shape, &part));
      to.push_back(const_cast<char*>(part->tensor_data().data()));
    }
    OP_REQUIRES_OK(context, ToTensorFlow(UnpackAllToAll(PoolContext(context), layout,
                                                        buffers.flat<int64_t>().data(), to)));
  }

 private:
  static constexpr int64_t kMostNumbers = 1 << 30;
  std::vector<int64_t> dims_, item_bytes_;
};

class FetchedRowsViewOp : public CatchingKernel {
 public:
  using CatchingKernel::CatchingKernel;

  void TryCompute(OpKernelContext* context) override {
    const auto held = std::make_shared<const std::pair<Tensor, Tensor>>(Tensor(context->input(0)),
                                                                        Tensor(context->input(1)));
    const auto& [keys, values] = *held;
    OP_REQUIRES(
        context, keys.dims() == 1 && values.dims() == 2 && keys.dim_size(0) == values.dim_size(0),
        ToTensorFlow(InvalidArgument("keys and values: got shapes ", keys.shape().DebugString(),
                                     " and ", values.shape().DebugString(),
                                     ", want (n,) and (n, dim)")));
    const int64_t dim = values.dim_size(1);
    const DType dtype = ToCore(values.dtype());
    std::unique_ptr<RowReader> view;
    OP_REQUIRES_OK(context, ToTensorFlow(MakeFetchedRowsView(
                                {keys.flat<int64_t>().data(), keys.NumElements()},
                                RowsOf(values, keys.NumElements(), dim * SizeOf(dtype)), dtype, dim,
                                held, &view)));
    Tensor* output;
    OP_REQUIRES_OK(context, context->allocate_output(0, TensorShape({}), &output));
    output->scalar<tensorflow::ResourceHandle>()() =
        tensorflow::ResourceHandle::MakeRefCountingHandle(new TableResource(std::move(view)),
                                                          context->device()->name());
  }
};

REGISTER_KERNEL_BUILDER(Name("DynembFetchedRowsView").Device(tensorflow::DEVICE_CPU),
                        FetchedRowsViewOp);
REGISTER_KERNEL_BUILDER(Name("DynembGroupByShard").Device(tensorflow::DEVICE_CPU), GroupByShardOp);
REGISTER_KERNEL_BUILDER(Name("DynembPack").Device(tensorflow::DEVICE_CPU), PackOp);
REGISTER_KERNEL_BUILDER(Name("DynembUnpack").Device(tensorflow::DEVICE_CPU), UnpackOp);

}  // namespace
}  // namespace dynemb

// Kernels of the ops about a table as a whole: make, clear, size.
#include <string>

#include "cc/core/table/host_table.h"
#include "cc/kernels/table_resource.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"

namespace dynemb {
namespace {

using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::ResourceHandle;
using tensorflow::Tensor;
using tensorflow::TensorShape;

constexpr int64_t kMaxShards = 65536;

class TableOp : public OpKernel {
 public:
  explicit TableOp(OpKernelConstruction* context) : OpKernel(context) {
    std::string text;
    OP_REQUIRES_OK(context, context->GetAttr("schema", &text));
    OP_REQUIRES_OK(context, ToTensorFlow(TableSchema::Parse(text, &schema_)));
    OP_REQUIRES_OK(context, context->GetAttr("shards", &shards_));
    OP_REQUIRES(
        context, shards_ <= kMaxShards,
        ToTensorFlow(InvalidArgument("shards: got ", shards_, ", want up to ", kMaxShards)));
    OP_REQUIRES_OK(context, context->GetAttr("init_rows", &init_rows_));
    OP_REQUIRES_OK(context, context->GetAttr("container", &container_));
    OP_REQUIRES_OK(context, context->GetAttr("shared_name", &shared_name_));
  }

  void Compute(OpKernelContext* context) override {
    Tensor* output;
    OP_REQUIRES_OK(context, context->allocate_output(0, TensorShape({}), &output));
    ResourceHandle& handle = output->scalar<ResourceHandle>()();
    if (shared_name_.empty()) {
      TableResource* resource = nullptr;
      OP_REQUIRES_OK(context, Make(context, &resource));
      handle = ResourceHandle::MakeRefCountingHandle(resource, context->device()->name());
      return;
    }
    tensorflow::core::RefCountPtr<TableResource> resource;
    OP_REQUIRES_OK(context, tensorflow::LookupOrCreateResource<TableResource>(
                                context, NamedHandle(context), &resource,
                                [&](TableResource** made) { return Make(context, made); }));
    const Shards shards = resource->shards();
    OP_REQUIRES(context, static_cast<int64_t>(shards.size()) == shards_,
                ToTensorFlow(InvalidArgument("shared_name: the table ", shared_name_, " has ",
                                             shards.size(), " shards, got ", shards_)));
    OP_REQUIRES_OK(context, ToTensorFlow(CheckCompatible(schema_, shards[0]->schema())));
    handle = NamedHandle(context);
  }

 private:
  absl::Status Make(OpKernelContext* context, TableResource** resource) const {
    const PoolContext core(context);
    Shards shards(shards_);
    for (auto& shard : shards) {
      std::unique_ptr<Table> made;
      TF_RETURN_IF_ERROR(ToTensorFlow(MakeHostTable(schema_, &made)));
      TF_RETURN_IF_ERROR(ToTensorFlow(made->Reserve(core, init_rows_)));
      shard = std::move(made);
    }
    *resource = new TableResource(std::move(shards));
    return absl::OkStatus();
  }

  ResourceHandle NamedHandle(OpKernelContext* context) const {
    return tensorflow::MakeResourceHandle<TableResource>(context, container_, shared_name_);
  }

  TableSchema schema_;
  int64_t shards_;
  int64_t init_rows_;
  std::string container_;
  std::string shared_name_;
};

class ClearOp : public OpKernel {
 public:
  using OpKernel::OpKernel;
  void Compute(OpKernelContext* context) override {
    TableInput table;
    OP_REQUIRES_OK(context, GetTable(context, tensorflow::DT_INVALID, &table));
    const PoolContext core(context);
    for (const auto& shard : table.shards) {
      OP_REQUIRES_OK(context, ToTensorFlow(shard->Clear(core)));
    }
  }
};

class SizeOp : public OpKernel {
 public:
  using OpKernel::OpKernel;
  void Compute(OpKernelContext* context) override {
    TableInput table;
    OP_REQUIRES_OK(context, GetTable(context, tensorflow::DT_INVALID, &table));
    Tensor *rows, *bytes;
    OP_REQUIRES_OK(context, context->allocate_output(0, TensorShape({table.shard_count()}), &rows));
    OP_REQUIRES_OK(context,
                   context->allocate_output(1, TensorShape({table.shard_count()}), &bytes));
    for (int64_t s = 0; s < table.shard_count(); ++s) {
      rows->vec<int64_t>()(s) = table.shards[s]->size();
      bytes->vec<int64_t>()(s) = table.shards[s]->memory_bytes();
    }
  }
};

REGISTER_KERNEL_BUILDER(Name("DynembTable").Device(tensorflow::DEVICE_CPU), TableOp);
REGISTER_KERNEL_BUILDER(Name("DynembClear").Device(tensorflow::DEVICE_CPU), ClearOp);
REGISTER_KERNEL_BUILDER(Name("DynembSize").Device(tensorflow::DEVICE_CPU), SizeOp);

}  // namespace
}  // namespace dynemb

// Kernels of the ops about a table as a whole: make, clear, size.
#include <mutex>
#include <string>
#include <utility>

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
using tensorflow::core::RefCountPtr;

constexpr int64_t kMaxShards = 65536;

// A table lives as long as one of its handles. One with a name lives as long as the kernels of that
// name as well: a session runs the op again in every run and holds no handle in between. So it goes
// with the session; and with a function that was called once to make it, as tf.saved_model.load
// does, when function and handle are gone.
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
    TableResource* resource = nullptr;
    OP_REQUIRES_OK(context, shared_name_.empty() ? Make(context, &resource)
                                                 : FindOrMakeNamed(context, &resource));
    Tensor* output;
    RefCountPtr<TableResource> reference(resource);
    OP_REQUIRES_OK(context, context->allocate_output(0, TensorShape({}), &output));
    output->scalar<ResourceHandle>()() =
        ResourceHandle::MakeRefCountingHandle(reference.release(), context->device()->name());
  }

 protected:
  int64_t shards() const { return shards_; }

 private:
  absl::Status Make(OpKernelContext* context, TableResource** resource) const {
    const PoolContext core(context);
    Shards shards(shards_);
    for (auto& shard : shards) {
      TF_RETURN_IF_ERROR(MakeShard(context, schema_, &shard));
      TF_RETURN_IF_ERROR(ToTensorFlow(shard->Reserve(core, init_rows_)));
    }
    *resource = new TableResource(Contents::Of(std::move(shards)));
    return absl::OkStatus();
  }

  // The table of this name, with a reference for the caller and one for this kernel. The resource
  // manager knows it without owning it.
  absl::Status FindOrMakeNamed(OpKernelContext* context, TableResource** resource) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (named_ == nullptr) {
      tensorflow::ResourceMgr* manager = context->resource_manager();
      const std::string& container = container_.empty() ? manager->default_container() : container_;
      TableResource* found = nullptr;
      absl::Status status = manager->Lookup(container, shared_name_, &found);
      if (absl::IsNotFound(status)) {
        TF_RETURN_IF_ERROR(Make(context, &found));
        status = manager->CreateUnowned(container, shared_name_, found);
        if (absl::IsAlreadyExists(status)) {  // another kernel was faster
          found->Unref();
          status = manager->Lookup(container, shared_name_, &found);
        }
      }
      TF_RETURN_IF_ERROR(status);
      RefCountPtr<TableResource> reference(found);
      TF_RETURN_IF_ERROR(CheckNamed(*found));
      named_ = std::move(reference);
    }
    named_->Ref();
    *resource = named_.get();
    return absl::OkStatus();
  }

  // Is the table that another kernel made under this name the one that is wanted here?
  absl::Status CheckNamed(const TableResource& resource) const {
    const Shards shards = resource.shards();
    if (static_cast<int64_t>(shards.size()) != shards_) {
      return ToTensorFlow(InvalidArgument("shared_name: the table ", shared_name_, " has ",
                                          shards.size(), " shards, got ", shards_));
    }
    return ToTensorFlow(CheckCompatible(schema_, shards[0]->schema()));
  }

  TableSchema schema_;
  int64_t shards_;
  int64_t init_rows_;
  std::string container_;
  std::string shared_name_;
  std::mutex mutex_;  // guards named_
  RefCountPtr<TableResource> named_;
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

class GpuTableOp : public TableOp {
 public:
  explicit GpuTableOp(OpKernelConstruction* context) : TableOp(context) {
    OP_REQUIRES(context, shards() == 1,
                ToTensorFlow(InvalidArgument("shards: got ", shards(), " for one GPU, want 1")));
  }
};

REGISTER_KERNEL_BUILDER(Name("DynembTable").Device(tensorflow::DEVICE_CPU), TableOp);
REGISTER_KERNEL_BUILDER(Name("DynembGpuTable").Device(tensorflow::DEVICE_GPU).HostMemory("table"),
                        GpuTableOp);
REGISTER_KERNEL_BUILDER(Name("DynembClear").Device(tensorflow::DEVICE_CPU), ClearOp);
REGISTER_KERNEL_BUILDER(Name("DynembClear").Device(tensorflow::DEVICE_GPU).HostMemory("table"),
                        ClearOp);
REGISTER_KERNEL_BUILDER(Name("DynembSize").Device(tensorflow::DEVICE_CPU), SizeOp);
REGISTER_KERNEL_BUILDER(Name("DynembSize")
                            .Device(tensorflow::DEVICE_GPU)
                            .HostMemory("table")
                            .HostMemory("rows")
                            .HostMemory("memory_bytes"),
                        SizeOp);

}  // namespace
}  // namespace dynemb

// Kernels of the ops of policies: restrict, the removal of what has expired, the clock, and counts
// of admission.
#include <string>
#include <vector>

#include "cc/core/policy/admission.h"
#include "cc/core/policy/clock.h"
#include "cc/core/policy/restrict.h"
#include "cc/kernels/catching_kernel.h"
#include "cc/kernels/table_resource.h"
#include "cc/kernels/table_updates.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"

namespace dynemb {
namespace {

using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;

class RestrictOp : public CatchingKernel {
 public:
  explicit RestrictOp(OpKernelConstruction* context) : CatchingKernel(context) {
    std::string name;
    OP_REQUIRES_OK(context, context->GetAttr("field", &name));
    // The op admits no other names.
    for (int f = 0; f < kMetaFields; ++f) {
      if (name == Name(static_cast<MetaField>(f))) field_ = static_cast<MetaField>(f);
    }
  }

  void TryCompute(OpKernelContext* context) override {
    TableInput table;
    int64_t num_reserved, trigger;
    Tensor* removed;
    OP_REQUIRES_OK(context, GetTable(context, tensorflow::DT_INVALID, &table, CallLength::kLong));
    OP_REQUIRES_OK(context, GetRowCount(context, "num_reserved", &num_reserved));
    OP_REQUIRES_OK(context, GetRowCount(context, "trigger", &trigger));
    OP_REQUIRES(context, table.schema.meta.has(field_),
                ToTensorFlow(FailedPrecondition("field: got ", Name(field_),
                                                ", which the rows of the table do not have")));
    OP_REQUIRES_OK(context, context->allocate_output(0, TensorShape({}), &removed));
    int64_t& erased = removed->scalar<int64_t>()();
    erased = 0;
    int64_t rows = 0;
    for (const auto& shard : table.shards) rows += shard->size();
    if (rows <= trigger) return;
    const PoolContext core(context);
    OP_REQUIRES_OK(context,
                   ToTensorFlow(RestrictTo(core, table.shards, field_, num_reserved, &erased)));
  }

 private:
  static absl::Status GetRowCount(OpKernelContext* context, const char* name, int64_t* rows) {
    TF_RETURN_IF_ERROR(GetScalar(context, name, rows));
    if (*rows >= 0) return absl::OkStatus();
    return ToTensorFlow(InvalidArgument(name, ": got ", *rows, ", want a number of rows >= 0"));
  }

  MetaField field_ = MetaField::kLastWriteTime;
};

class RemoveExpiredOp : public CatchingKernel {
 public:
  using CatchingKernel::CatchingKernel;
  void TryCompute(OpKernelContext* context) override {
    TableInput table;
    OP_REQUIRES_OK(context, CallShards(context, &table, [](const Context& core, Table* shard) {
                     return shard->RemoveExpired(core);
                   }));
  }
};

class NowOp : public CatchingKernel {
 public:
  using CatchingKernel::CatchingKernel;
  void TryCompute(OpKernelContext* context) override {
    Tensor* now;
    OP_REQUIRES_OK(context, context->allocate_output(0, TensorShape({}), &now));
    now->scalar<int64_t>()() = NextMicrosecond();
  }
};

class SketchCountsOp : public CatchingKernel {
 public:
  explicit SketchCountsOp(OpKernelConstruction* context) : CatchingKernel(context) {
    std::string text;
    OP_REQUIRES_OK(context, context->GetAttr("admission", &text));
    OP_REQUIRES_OK(context, ToTensorFlow(AdmissionPolicy::Parse(text, &policy_)));
    OP_REQUIRES(
        context, policy_.has_sketch(),
        ToTensorFlow(InvalidArgument("admission: got '", text, "', want one with a sketch")));
  }

  void TryCompute(OpKernelContext* context) override {
    std::vector<TableInput> tables;
    OP_REQUIRES_OK(context,
                   GetTablesOf(context, {&context->input(0), &context->input(1)}, false, &tables));
    const TableInput &candidates = tables[0], &sketch = tables[1];
    OP_REQUIRES_OK(context, CheckCandidates(candidates));
    OP_REQUIRES_OK(context, CheckSketch(sketch));
    Admission admission;
    admission.policy = policy_;
    admission.candidates = candidates.shards[0].get();
    admission.sketch = sketch.shards[0].get();
    admission.calls = candidates.resource->admission_calls();
    OP_REQUIRES_OK(context, ToTensorFlow(SketchCountsThatLeft(PoolContext(context), admission)));
  }

 private:
  AdmissionPolicy policy_;
};

REGISTER_KERNEL_BUILDER(Name("DynembSketchCounts").Device(tensorflow::DEVICE_CPU), SketchCountsOp);
REGISTER_KERNEL_BUILDER(Name("DynembSketchCounts")
                            .Device(tensorflow::DEVICE_GPU)
                            .HostMemory("candidates")
                            .HostMemory("sketch"),
                        SketchCountsOp);
REGISTER_KERNEL_BUILDER(Name("DynembRestrict").Device(tensorflow::DEVICE_CPU), RestrictOp);
REGISTER_KERNEL_BUILDER(Name("DynembRestrict")
                            .Device(tensorflow::DEVICE_GPU)
                            .HostMemory("table")
                            .HostMemory("num_reserved")
                            .HostMemory("trigger")
                            .HostMemory("removed"),
                        RestrictOp);
REGISTER_KERNEL_BUILDER(Name("DynembRemoveExpired").Device(tensorflow::DEVICE_CPU),
                        RemoveExpiredOp);
REGISTER_KERNEL_BUILDER(
    Name("DynembRemoveExpired").Device(tensorflow::DEVICE_GPU).HostMemory("table"),
    RemoveExpiredOp);
REGISTER_KERNEL_BUILDER(Name("DynembNow").Device(tensorflow::DEVICE_CPU), NowOp);
REGISTER_KERNEL_BUILDER(
    Name("DynembNow").Device(tensorflow::DEVICE_GPU).HostMemory("table").HostMemory("now"), NowOp);

}  // namespace
}  // namespace dynemb

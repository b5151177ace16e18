// Kernels of the lookup and of what its gradient needs.
#include "cc/core/lookup/sum_by_key.h"
#include "cc/core/lookup/widen.h"
#include "cc/kernels/catching_kernel.h"
#include "cc/kernels/repetitions.h"
#include "cc/kernels/table_resource.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"

namespace dynemb {
namespace {

using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;

class LookupOp : public CatchingKernel {
 public:
  explicit LookupOp(OpKernelConstruction* context) : CatchingKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("dim", &dim_));
    OP_REQUIRES_OK(context, context->GetAttr("dtype", &dtype_));
  }

  void TryCompute(OpKernelContext* context) override {
    TableInput table;
    KeyInputs inputs;
    OP_REQUIRES_OK(context, GetTableToRead(context, dtype_, true, &table));
    const DeviceContext core(context);
    OP_REQUIRES_OK(context, GetKeys(context, table, &inputs, core.space));
    OP_REQUIRES(context, dim_ == table.schema.dim,
                ToTensorFlow(InvalidArgument("dim: got ", dim_, ", the table's rows have ",
                                             table.schema.dim)));
    TensorShape shape = inputs.keys_tensor->shape();
    Tensor *values, *exists;
    OP_REQUIRES_OK(context, context->allocate_output(1, shape, &exists));
    OP_REQUIRES_OK(context, shape.AddDimWithStatus(dim_));
    OP_REQUIRES_OK(context, context->allocate_output(0, shape, &values));

    const int64_t n = inputs.keys.size;
    // Find's two outcomes are bools: they are written in place.
    static_assert(sizeof(Outcome) == sizeof(bool) && static_cast<int>(Outcome::kMissing) == false &&
                  static_cast<int>(Outcome::kFound) == true);
    Report report;
    report.outcomes = {reinterpret_cast<Outcome*>(exists->flat<bool>().data()), n, core.space};
    const DType held = table.schema.value_dtype, wanted = ToCore(dtype_);
    const Rows rows = MutableRowsOf(values, n, dim_ * SizeOf(wanted), core.space);
    const Rows read = NarrowRows(rows, held, wanted, dim_);
    OP_REQUIRES_OK(context,
                   ToTensorFlow(ForEachReader(
                       core, table, inputs,
                       [&](const Context& core, const RowReader* shard, const Batch& batch) {
                         return shard->Find(core, batch, read, report);
                       })));
    OP_REQUIRES_OK(context, ToTensorFlow(WidenInPlace(core, rows, held, wanted, dim_)));
  }

 private:
  int64_t dim_;
  tensorflow::DataType dtype_;
};

class SumByKeyOp : public CatchingKernel {
 public:
  explicit SumByKeyOp(OpKernelConstruction* context) : CatchingKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("dtype", &dtype_));
    OP_REQUIRES_OK(context, context->GetAttr("repeats", &repeats_));
  }

  void TryCompute(OpKernelContext* context) override {
    const Tensor& keys = context->input(0);
    const Tensor& rows = context->input(1);
    OP_REQUIRES(
        context, keys.dims() == 1 && rows.dims() == 2 && rows.dim_size(0) == keys.dim_size(0),
        ToTensorFlow(InvalidArgument("keys and rows: got shapes ", keys.shape().DebugString(),
                                     " and ", rows.shape().DebugString(),
                                     ", want (n,) and (n, dim)")));
    const DistinctKeys distinct_keys(
        Span<const Key>(keys.flat<int64_t>().data(), keys.NumElements()));
    const int64_t dim = rows.dim_size(1);
    const std::vector<Key> repeated = Repetitions(distinct_keys, repeats_);
    const int64_t size = distinct_keys.size() + static_cast<int64_t>(repeated.size());
    Tensor *distinct, *sums, *inverse;
    OP_REQUIRES_OK(context, context->allocate_output(0, TensorShape({size}), &distinct));
    OP_REQUIRES_OK(context, context->allocate_output(1, TensorShape({size, dim}), &sums));
    OP_REQUIRES_OK(context, context->allocate_output(2, keys.shape(), &inverse));
    CopyKeys(distinct_keys, repeated, distinct->flat<int64_t>().data());
    std::copy(distinct_keys.numbers().begin(), distinct_keys.numbers().end(),
              inverse->flat<int64_t>().data());
    const DType dtype = ToCore(dtype_);
    const int64_t row_bytes = dim * SizeOf(dtype);
    const PoolContext core(context);
    OP_REQUIRES_OK(context,
                   ToTensorFlow(SumByKey(core, distinct_keys, dtype, dim,
                                         RowsOf(rows, keys.NumElements(), row_bytes), {},
                                         MutableRowsOf(sums, distinct_keys.size(), row_bytes))));
    ClearRows(distinct_keys.size(), row_bytes, sums);
  }

 private:
  tensorflow::DataType dtype_;
  int64_t repeats_;
};

REGISTER_KERNEL_BUILDER(Name("DynembLookup").Device(tensorflow::DEVICE_CPU), LookupOp);
REGISTER_KERNEL_BUILDER(
    Name("DynembLookup").Device(tensorflow::DEVICE_GPU).HostMemory("table").HostMemory("shard_ids"),
    LookupOp);
REGISTER_KERNEL_BUILDER(Name("DynembSumByKey").Device(tensorflow::DEVICE_CPU), SumByKeyOp);
// Gradients are placed with their lookups.
REGISTER_KERNEL_BUILDER(Name("DynembSumByKey")
                            .Device(tensorflow::DEVICE_GPU)
                            .HostMemory("keys")
                            .HostMemory("rows")
                            .HostMemory("distinct_keys")
                            .HostMemory("sums")
                            .HostMemory("inverse"),
                        SumByKeyOp);

}  // namespace
}  // namespace dynemb

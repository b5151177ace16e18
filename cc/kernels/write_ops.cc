// Kernels of the ops that change rows by key: upsert, accum, remove; and that keep strings. Apply
// is in apply_ops.cc.
#include <algorithm>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "cc/kernels/catching_kernel.h"
#include "cc/kernels/table_resource.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"

namespace dynemb {
namespace {

using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;

class UpsertOp : public CatchingKernel {
 public:
  explicit UpsertOp(OpKernelConstruction* context) : CatchingKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("dtype", &dtype_));
  }

  void TryCompute(OpKernelContext* context) override {
    TableInput table;
    KeyInputs inputs;
    ConstRows values;
    Stamp stamp;
    const DeviceContext core(context);
    OP_REQUIRES_OK(context, GetTable(context, dtype_, &table));
    OP_REQUIRES_OK(context, GetKeys(context, table, &inputs, core.space));
    OP_REQUIRES_OK(context, GetRows(context, "values", inputs, table.schema, &values));
    OP_REQUIRES_OK(context, GetStamp(context, inputs, &stamp));
    KeyStrings::PinGuard pin;
    OP_REQUIRES_OK(context, PinStrings(core, table, inputs.keys, &pin));
    OP_REQUIRES_OK(context, CheckRoom(core, table, inputs.keys, inputs.routing));
    OP_REQUIRES_OK(context, ToTensorFlow(ForEachShard(
                                core, table, inputs.keys, inputs.routing,
                                [&](const Context& core, Table* shard, const Batch& batch) {
                                  return shard->Upsert(core, batch, values, stamp, Report());
                                })));
  }

 private:
  tensorflow::DataType dtype_;
};

class AccumOp : public CatchingKernel {
 public:
  explicit AccumOp(OpKernelConstruction* context) : CatchingKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("dtype", &dtype_));
  }

  void TryCompute(OpKernelContext* context) override {
    TableInput table;
    KeyInputs inputs;
    ConstRows values_or_deltas;
    Stamp stamp;
    const Tensor* exists;
    const DeviceContext core(context);
    OP_REQUIRES_OK(context, GetTable(context, dtype_, &table));
    OP_REQUIRES_OK(context, GetKeys(context, table, &inputs, core.space));
    OP_REQUIRES_OK(context,
                   GetRows(context, "values_or_deltas", inputs, table.schema, &values_or_deltas));
    OP_REQUIRES_OK(context, GetStamp(context, inputs, &stamp));
    OP_REQUIRES_OK(context, context->input("exists", &exists));
    OP_REQUIRES(context, exists->shape() == inputs.keys_tensor->shape(),
                ToTensorFlow(InvalidArgument("exists: got shape ", exists->shape().DebugString(),
                                             ", want the keys' shape ",
                                             inputs.keys_tensor->shape().DebugString())));
    const Span<const bool> flags(exists->flat<bool>().data(), exists->NumElements(), core.space);
    KeyStrings::PinGuard pin;
    OP_REQUIRES_OK(context, PinStrings(core, table, inputs.keys, &pin));
    OP_REQUIRES_OK(context,
                   CheckRoom(core, table, inputs.keys, inputs.routing, flags.data_or_null()));
    OP_REQUIRES_OK(context, ToTensorFlow(ForEachShard(
                                core, table, inputs.keys, inputs.routing,
                                [&](const Context& core, Table* shard, const Batch& batch) {
                                  return shard->Accumulate(core, batch, values_or_deltas, flags,
                                                           stamp, Report());
                                })));
  }

 private:
  tensorflow::DataType dtype_;
};

class CheckRoomOp : public CatchingKernel {
 public:
  using CatchingKernel::CatchingKernel;
  void TryCompute(OpKernelContext* context) override {
    TableInput table;
    KeyInputs inputs;
    const Tensor* exists;
    OP_REQUIRES_OK(context, GetTable(context, tensorflow::DT_INVALID, &table));
    OP_REQUIRES_OK(context, GetKeys(context, table, &inputs));
    OP_REQUIRES_OK(context, context->input("exists", &exists));
    const int64_t flags = exists->NumElements();
    OP_REQUIRES(context, flags == 0 || flags == inputs.keys.size,
                ToTensorFlow(InvalidArgument("exists: got ", flags, " for ", inputs.keys.size,
                                             " keys, want one for each, or none")));
    const bool* const seen = flags == 0 ? nullptr : exists->flat<bool>().data();
    const PoolContext core(context);
    OP_REQUIRES_OK(context,
                   SetProblem(context, CheckRoom(core, table, inputs.keys, inputs.routing, seen)));
  }
};

class RoomOp : public CatchingKernel {
 public:
  using CatchingKernel::CatchingKernel;
  void TryCompute(OpKernelContext* context) override {
    TableInput table;
    Tensor* room;
    OP_REQUIRES_OK(context, GetTable(context, tensorflow::DT_INVALID, &table));
    OP_REQUIRES_OK(context, context->allocate_output(0, TensorShape({}), &room));
    int64_t least = std::numeric_limits<int64_t>::max();
    for (const auto& shard : table.shards) least = std::min(least, shard->room());
    // Slots of an optimizer will take some of the bytes.
    const bool will_grow =
        table.resource->options().max_bytes >= 0 && table.schema.rule.name.empty();
    room->scalar<int64_t>()() = will_grow ? 0 : std::max<int64_t>(least, 0);
  }
};

class RemoveOp : public CatchingKernel {
 public:
  using CatchingKernel::CatchingKernel;
  void TryCompute(OpKernelContext* context) override {
    TableInput table;
    KeyInputs inputs;
    const DeviceContext core(context);
    OP_REQUIRES_OK(context, GetTable(context, tensorflow::DT_INVALID, &table));
    OP_REQUIRES_OK(context, GetKeys(context, table, &inputs, core.space));
    OP_REQUIRES_OK(context, ToTensorFlow(ForEachShard(
                                core, table, inputs.keys, inputs.routing,
                                [&](const Context& core, Table* shard, const Batch& batch) {
                                  return shard->Erase(core, batch, Report());
                                })));
  }
};

// The table, keys and strings of the ops about strings.
struct StringInputs {
  TableInput table;
  KeyInputs keys;
  std::vector<std::string_view> strings;

  absl::Status Get(OpKernelContext* context) {
    TF_RETURN_IF_ERROR(GetTable(context, tensorflow::DT_INVALID, &table));
    TF_RETURN_IF_ERROR(context->input("keys", &keys.keys_tensor));
    keys.keys = {keys.keys_tensor->flat<int64_t>().data(), keys.keys_tensor->NumElements()};
    TF_RETURN_IF_ERROR(GetStrings(context, "strings", keys, &strings));
    if (table.strings != nullptr) return absl::OkStatus();
    return ToTensorFlow(FailedPrecondition("table: got one that keeps no strings of its keys"));
  }
};

class RecordKeyStringsOp : public CatchingKernel {
 public:
  using CatchingKernel::CatchingKernel;
  void TryCompute(OpKernelContext* context) override {
    StringInputs inputs;
    OP_REQUIRES_OK(context, inputs.Get(context));
    KeyStrings* strings = inputs.table.strings.get();
    const PoolContext core(context);
    OP_REQUIRES_OK(context, ToTensorFlow(strings->Sweep(core, inputs.table.shards)));
    OP_REQUIRES_OK(context, ToTensorFlow(strings->Record(inputs.keys.keys, inputs.strings, core)));
  }
};

class WithStringsOp : public CatchingKernel {
 public:
  using CatchingKernel::CatchingKernel;
  void TryCompute(OpKernelContext* context) override {
    StringInputs inputs;
    OP_REQUIRES_OK(context, inputs.Get(context));
    std::vector<int64_t> missing;
    OP_REQUIRES_OK(context, ToTensorFlow(inputs.table.strings->Check(
                                inputs.keys.keys, inputs.strings, &missing, PoolContext(context))));
    context->set_output(0, context->input(0));
    const TensorShape shape({static_cast<int64_t>(missing.size())});
    Tensor *keys, *strings;
    OP_REQUIRES_OK(context, context->allocate_output("missing_keys", shape, &keys));
    OP_REQUIRES_OK(context, context->allocate_output("missing_strings", shape, &strings));
    for (int64_t i = 0; i < shape.num_elements(); ++i) {
      const int64_t at = missing[static_cast<size_t>(i)];
      keys->vec<int64_t>()(i) = inputs.keys.keys[at];
      strings->vec<tensorflow::tstring>()(i) = inputs.strings[static_cast<size_t>(at)];
    }
  }
};

REGISTER_KERNEL_BUILDER(Name("DynembRecordKeyStrings").Device(tensorflow::DEVICE_CPU),
                        RecordKeyStringsOp);
REGISTER_KERNEL_BUILDER(Name("DynembRecordKeyStrings")
                            .Device(tensorflow::DEVICE_GPU)
                            .HostMemory("table")
                            .HostMemory("keys")
                            .HostMemory("strings"),
                        RecordKeyStringsOp);
REGISTER_KERNEL_BUILDER(Name("DynembWithStrings").Device(tensorflow::DEVICE_CPU), WithStringsOp);
REGISTER_KERNEL_BUILDER(Name("DynembWithStrings")
                            .Device(tensorflow::DEVICE_GPU)
                            .HostMemory("table")
                            .HostMemory("keys")
                            .HostMemory("strings")
                            .HostMemory("missing_keys")
                            .HostMemory("missing_strings"),
                        WithStringsOp);
REGISTER_KERNEL_BUILDER(Name("DynembUpsert").Device(tensorflow::DEVICE_CPU), UpsertOp);
REGISTER_KERNEL_BUILDER(Name("DynembUpsert")
                            .Device(tensorflow::DEVICE_GPU)
                            .HostMemory("table")
                            .HostMemory("shard_ids")
                            .HostMemory("now"),
                        UpsertOp);
REGISTER_KERNEL_BUILDER(Name("DynembAccum").Device(tensorflow::DEVICE_CPU), AccumOp);
REGISTER_KERNEL_BUILDER(Name("DynembAccum")
                            .Device(tensorflow::DEVICE_GPU)
                            .HostMemory("table")
                            .HostMemory("shard_ids")
                            .HostMemory("now"),
                        AccumOp);
REGISTER_KERNEL_BUILDER(Name("DynembCheckRoom").Device(tensorflow::DEVICE_CPU), CheckRoomOp);
REGISTER_KERNEL_BUILDER(Name("DynembRoom").Device(tensorflow::DEVICE_CPU), RoomOp);
REGISTER_KERNEL_BUILDER(
    Name("DynembRoom").Device(tensorflow::DEVICE_GPU).HostMemory("table").HostMemory("rows"),
    RoomOp);
REGISTER_KERNEL_BUILDER(Name("DynembRemove").Device(tensorflow::DEVICE_CPU), RemoveOp);
REGISTER_KERNEL_BUILDER(
    Name("DynembRemove").Device(tensorflow::DEVICE_GPU).HostMemory("table").HostMemory("shard_ids"),
    RemoveOp);

}  // namespace
}  // namespace dynemb

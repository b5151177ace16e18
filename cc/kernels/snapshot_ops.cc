// Kernels that save tables to snapshots and read snapshots.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cc/core/base/file_system.h"
#include "cc/core/snapshot/reader.h"
#include "cc/core/snapshot/writer.h"
#include "cc/kernels/table_resource.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"

namespace dynemb {
namespace {

using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;
using tensorflow::tstring;

// The folder of a snapshot.
absl::Status GetFolder(OpKernelContext* context, std::string* folder) {
  tstring path;
  TF_RETURN_IF_ERROR(GetScalar(context, "path", &path));
  *folder = path;
  if (folder->empty() || folder->find("://") != std::string::npos) {
    return ToTensorFlow(InvalidArgument("path: got '", *folder,
                                        "', want a folder of this machine's file systems; copy "
                                        "snapshots to and from other stores as folders"));
  }
  return absl::OkStatus();
}

absl::Status SetString(OpKernelContext* context, int output, const std::string& value) {
  Tensor* tensor;
  TF_RETURN_IF_ERROR(context->allocate_output(output, TensorShape({}), &tensor));
  tensor->scalar<tstring>()() = value;
  return absl::OkStatus();
}

class SnapshotSaveOp : public OpKernel {
 public:
  explicit SnapshotSaveOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("follow", &follow_));
  }

  void Compute(OpKernelContext* context) override {
    std::string folder;
    tstring base_text;
    const Tensor* names;
    tensorflow::OpInputList handles;
    OP_REQUIRES_OK(context, GetFolder(context, &folder));
    OP_REQUIRES_OK(context, GetScalar(context, "base", &base_text));
    OP_REQUIRES_OK(context, context->input("names", &names));
    OP_REQUIRES_OK(context, context->input_list("tables", &handles));
    OP_REQUIRES(context, names->dims() == 1 && names->NumElements() == handles.size(),
                ToTensorFlow(InvalidArgument("names: got shape ", names->shape().DebugString(),
                                             ", want one per table, (", handles.size(), ",)")));
    uint64_t base = 0;
    if (!base_text.empty()) OP_REQUIRES_OK(context, ToTensorFlow(ParseId(base_text, &base)));

    const PoolContext core(context);
    std::vector<TableInput> inputs(static_cast<size_t>(handles.size()));
    std::vector<int64_t> ended(inputs.size());
    std::vector<TableToSave> tables(inputs.size());
    for (size_t t = 0; t < inputs.size(); ++t) {
      OP_REQUIRES_OK(context, GetTableOf(context, handles[static_cast<int>(t)], &inputs[t]));
      tables[t].name = names->vec<tstring>()(static_cast<int64_t>(t));
      OP_REQUIRES(context, inputs[t].strings == nullptr,
                  ToTensorFlow(FailedPrecondition(
                      "tables: ", tables[t].name,
                      " keeps the strings of its keys, which snapshots do not hold; save it with "
                      "tf.train.Checkpoint, or in Keras' files")));
      for (const auto& shard : inputs[t].shards) tables[t].shards.push_back(shard.get());
      if (base != 0) {
        OP_REQUIRES_OK(context, ToTensorFlow(inputs[t].resource->VersionOf(
                                    base, inputs[t].shards, &tables[t].since_version)));
      }
    }
    // Before any row is read: what is written from now on is of the next version.
    for (size_t t = 0; (follow_ || base != 0) && t < inputs.size(); ++t) {
      OP_REQUIRES_OK(context, ToTensorFlow(BeginVersion(core, tables[t].shards, &ended[t])));
    }
    Manifest manifest;
    OP_REQUIRES_OK(context, ToTensorFlow(SaveTables(core, PosixFileSystem(), folder, tables, base,
                                                    &manifest)));
    for (size_t t = 0; (follow_ || base != 0) && t < inputs.size(); ++t) {
      inputs[t].resource->SetVersionOf(manifest.id, inputs[t].shards, ended[t]);
    }
    OP_REQUIRES_OK(context, SetString(context, 0, IdText(manifest.id)));
  }

 private:
  bool follow_;
};

class SnapshotReadOp : public OpKernel {
 public:
  explicit SnapshotReadOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("dtype", &dtype_));
    OP_REQUIRES_OK(context, context->GetAttr("limit_bytes", &limit_bytes_));
  }

  void Compute(OpKernelContext* context) override {
    std::string folder;
    tstring id, name;
    const Tensor* cursor;
    OP_REQUIRES_OK(context, GetFolder(context, &folder));
    OP_REQUIRES_OK(context, GetScalar(context, "snapshot", &id));
    OP_REQUIRES_OK(context, GetScalar(context, "table_name", &name));
    OP_REQUIRES_OK(context, context->input("cursor", &cursor));
    OP_REQUIRES(context, cursor->dims() == 1 && cursor->NumElements() == 3,
                ToTensorFlow(InvalidArgument("cursor: got shape ", cursor->shape().DebugString(),
                                             ", want (3,)")));
    const auto at = cursor->vec<int64_t>();
    SnapshotPlace place{at(0), at(1), at(2)};

    std::unique_ptr<SnapshotReader> reader;
    int64_t table;
    OP_REQUIRES_OK(context, ToTensorFlow(SnapshotReader::Open(PosixFileSystem(), folder, &reader)));
    const std::string there = IdText(reader->manifest().id);
    OP_REQUIRES(
        context, there == std::string(id),
        ToTensorFlow(FailedPrecondition("snapshot ", folder, ": got ", there, ", want ", id,
                                        "; it was replaced while it was being read: begin again")));
    OP_REQUIRES_OK(context, ToTensorFlow(reader->FindTable(name, &table)));
    const TableSchema& schema = reader->manifest().tables[static_cast<size_t>(table)].schema;
    OP_REQUIRES(context, ToCore(dtype_) == schema.value_dtype,
                ToTensorFlow(FailedPrecondition("rows do not fit the table: their value dtype is ",
                                                Name(schema.value_dtype), ", the table's is ",
                                                Name(ToCore(dtype_)))));
    std::vector<SnapshotBlock> blocks;
    bool done = false;
    for (int64_t bytes = 0; bytes < limit_bytes_;) {
      SnapshotBlock block;
      OP_REQUIRES_OK(context, ToTensorFlow(reader->Next(table, &place, &block, &done)));
      if (done) break;
      bytes += static_cast<int64_t>(block.payload.size());
      blocks.push_back(std::move(block));
    }
    OP_REQUIRES_OK(context, SetRows(context, schema, blocks));
    Tensor *next, *end;
    OP_REQUIRES_OK(context, SetString(context, 5, schema.ToText()));
    OP_REQUIRES_OK(context, context->allocate_output(6, TensorShape({3}), &next));
    OP_REQUIRES_OK(context, context->allocate_output(7, TensorShape({}), &end));
    next->vec<int64_t>()(0) = place.file;
    next->vec<int64_t>()(1) = place.offset;
    next->vec<int64_t>()(2) = place.sequence;
    end->scalar<bool>()() = done;
  }

 private:
  // The blocks one after the other as outputs 0 to 4: keys, values, slots, meta, erased.
  absl::Status SetRows(OpKernelContext* context, const TableSchema& schema,
                       const std::vector<SnapshotBlock>& blocks) const {
    const RowLayout layout(schema);
    int64_t rows = 0, erased = 0;
    for (const SnapshotBlock& block : blocks) {
      rows += block.rows.keys.size;
      erased += block.erased.size;
    }
    const TensorShape shapes[] = {TensorShape({rows}), TensorShape({rows, layout.dim}),
                                  TensorShape({rows, layout.slots_bytes}),
                                  TensorShape({rows, layout.meta_bytes}), TensorShape({erased})};
    char* to[5];
    for (int output = 0; output < 5; ++output) {
      Tensor* tensor;
      TF_RETURN_IF_ERROR(context->allocate_output(output, shapes[output], &tensor));
      to[output] = const_cast<char*>(tensor->tensor_data().data());
    }
    const auto append = [](const void* from, int64_t bytes, char** out) {
      if (bytes > 0) std::memcpy(*out, from, static_cast<size_t>(bytes));
      *out += bytes;
    };
    for (const SnapshotBlock& block : blocks) {
      const int64_t n = block.rows.keys.size;
      append(block.rows.keys.data, n * int64_t{sizeof(Key)}, &to[0]);
      append(block.rows.values.data, n * layout.value_bytes, &to[1]);
      append(block.rows.slots.data, n * layout.slots_bytes, &to[2]);
      append(block.rows.meta.data, n * layout.meta_bytes, &to[3]);
      append(block.erased.data, block.erased.size * int64_t{sizeof(Key)}, &to[4]);
    }
    return absl::OkStatus();
  }

  tensorflow::DataType dtype_;
  int64_t limit_bytes_;
};

class SnapshotVerifyOp : public OpKernel {
 public:
  using OpKernel::OpKernel;
  void Compute(OpKernelContext* context) override {
    std::string folder;
    OP_REQUIRES_OK(context, GetFolder(context, &folder));
    std::unique_ptr<SnapshotReader> reader;
    const PoolContext core(context);
    OP_REQUIRES_OK(context, ToTensorFlow(SnapshotReader::Open(PosixFileSystem(), folder, &reader)));
    OP_REQUIRES_OK(context, ToTensorFlow(reader->Verify(core)));
    const Manifest& manifest = reader->manifest();
    OP_REQUIRES_OK(context, SetString(context, 0, IdText(manifest.id)));
    OP_REQUIRES_OK(context, SetString(context, 1, manifest.base == 0 ? "" : IdText(manifest.base)));
  }
};

class SetSnapshotOp : public OpKernel {
 public:
  explicit SetSnapshotOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("follow", &follow_));
  }

  void Compute(OpKernelContext* context) override {
    TableInput table;
    tstring id_text;
    uint64_t id = 0;
    OP_REQUIRES_OK(context, GetTable(context, tensorflow::DT_INVALID, &table));
    OP_REQUIRES_OK(context, GetScalar(context, "snapshot", &id_text));
    OP_REQUIRES_OK(context, ToTensorFlow(ParseId(id_text, &id)));
    table.resource->set_snapshot(id);
    if (!follow_) return;
    const PoolContext core(context);
    std::vector<Table*> shards;
    for (const auto& shard : table.shards) shards.push_back(shard.get());
    int64_t ended;
    OP_REQUIRES_OK(context, ToTensorFlow(BeginVersion(core, shards, &ended)));
    table.resource->SetVersionOf(id, table.shards, ended);
  }

 private:
  bool follow_;
};

class GetSnapshotOp : public OpKernel {
 public:
  using OpKernel::OpKernel;
  void Compute(OpKernelContext* context) override {
    TableInput table;
    OP_REQUIRES_OK(context, GetTable(context, tensorflow::DT_INVALID, &table));
    const uint64_t id = table.resource->snapshot();
    OP_REQUIRES_OK(context, SetString(context, 0, id == 0 ? "" : IdText(id)));
  }
};

class SwapOp : public OpKernel {
 public:
  using OpKernel::OpKernel;
  void Compute(OpKernelContext* context) override {
    TableInput table, other;
    const Tensor* handle;
    OP_REQUIRES_OK(context, GetTable(context, tensorflow::DT_INVALID, &table));
    OP_REQUIRES_OK(context, context->input("other", &handle));
    OP_REQUIRES_OK(context, GetTableOf(context, *handle, &other));
    OP_REQUIRES(context, table.shard_count() == other.shard_count(),
                ToTensorFlow(InvalidArgument("other: got ", other.shard_count(), " shards, want ",
                                             table.shard_count())));
    OP_REQUIRES_OK(context, ToTensorFlow(CheckCompatible(other.schema, table.schema)));
    table.resource->Swap(other.resource.get());
  }
};

REGISTER_KERNEL_BUILDER(Name("DynembSnapshotSave").Device(tensorflow::DEVICE_CPU), SnapshotSaveOp);
REGISTER_KERNEL_BUILDER(Name("DynembSnapshotRead").Device(tensorflow::DEVICE_CPU), SnapshotReadOp);
REGISTER_KERNEL_BUILDER(Name("DynembSnapshotVerify").Device(tensorflow::DEVICE_CPU),
                        SnapshotVerifyOp);
REGISTER_KERNEL_BUILDER(Name("DynembSetSnapshot").Device(tensorflow::DEVICE_CPU), SetSnapshotOp);
REGISTER_KERNEL_BUILDER(Name("DynembGetSnapshot").Device(tensorflow::DEVICE_CPU), GetSnapshotOp);
REGISTER_KERNEL_BUILDER(Name("DynembSwap").Device(tensorflow::DEVICE_CPU), SwapOp);

}  // namespace
}  // namespace dynemb

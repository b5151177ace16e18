// Kernels that save tables to snapshots and load snapshots into tables.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <limits>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "cc/core/base/file_system.h"
#include "cc/core/snapshot/loader.h"
#include "cc/core/snapshot/reader.h"
#include "cc/core/snapshot/writer.h"
#include "cc/kernels/catching_kernel.h"
#include "cc/kernels/table_resource.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"

namespace dynemb {
namespace {

using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::ResourceHandle;
using tensorflow::Tensor;
using tensorflow::TensorShape;
using tensorflow::tstring;
using tensorflow::core::RefCountPtr;

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

// The inputs tables and names of an op, one name for each table; and of one that has it the input
// `remote`, which says of which names there is only a schema here.
absl::Status GetTables(OpKernelContext* context, const Tensor* remote, const Tensor** names,
                       std::vector<TableInput>* tables) {
  tensorflow::OpInputList handles;
  TF_RETURN_IF_ERROR(context->input("names", names));
  TF_RETURN_IF_ERROR(context->input_list("tables", &handles));
  if ((*names)->dims() != 1 || (remote != nullptr && remote->shape() != (*names)->shape())) {
    return ToTensorFlow(
        InvalidArgument("names: got shape ", (*names)->shape().DebugString(),
                        ", want one axis, and that shape of other inputs of tables"));
  }
  std::vector<TableInput> held;
  TF_RETURN_IF_ERROR(GetTablesOf(context, TensorsOf(handles), false, &held, CallLength::kLong));
  *tables = std::vector<TableInput>(static_cast<size_t>((*names)->NumElements()));
  int here = 0;
  for (size_t t = 0; t < tables->size(); ++t) {
    TableInput* const table = &(*tables)[t];
    const auto number = static_cast<int64_t>(t);
    if (remote != nullptr && !remote->vec<tstring>()(number).empty()) {
      const std::string schema = remote->vec<tstring>()(number);
      TF_RETURN_IF_ERROR(ToTensorFlow(TableSchema::Parse(schema, &table->schema)));
    } else if (here++ < handles.size()) {
      *table = std::move(held[static_cast<size_t>(here - 1)]);
    }
  }
  if (here == handles.size()) return absl::OkStatus();
  return ToTensorFlow(
      InvalidArgument("names: got those of ", here, " tables of this op, want ", handles.size()));
}

// A save that has begun, until it is ended or its handle goes.
class SnapshotSaveResource : public tensorflow::ResourceBase {
 public:
  explicit SnapshotSaveResource(std::unique_ptr<SnapshotSave> save) : save_(std::move(save)) {}
  std::string DebugString() const override { return "a save of a snapshot"; }

  Status Commit(const std::vector<Manifest>& parts) {
    std::lock_guard<std::mutex> lock(mutex_);
    Manifest manifest;
    if (save_ == nullptr) return FailedPrecondition("save: it has ended; begin another");
    return save_->Commit(parts, &manifest);
  }
  void End() {
    std::lock_guard<std::mutex> lock(mutex_);
    save_ = nullptr;
  }

 private:
  std::mutex mutex_;
  std::unique_ptr<SnapshotSave> save_;
};

absl::Status GetSave(OpKernelContext* context, RefCountPtr<SnapshotSaveResource>* save) {
  return tensorflow::LookupResource(context, tensorflow::HandleFromInput(context, 0), save);
}

// Of an op with the attr `durable`.
absl::Status GetFileSystem(OpKernelConstruction* context, FileSystem** files) {
  bool durable;
  TF_RETURN_IF_ERROR(context->GetAttr("durable", &durable));
  *files = durable ? PosixFileSystem() : UnsyncedFileSystem();
  return absl::OkStatus();
}

class SnapshotBeginOp : public CatchingKernel {
 public:
  explicit SnapshotBeginOp(OpKernelConstruction* context) : CatchingKernel(context) {
    OP_REQUIRES_OK(context, GetFileSystem(context, &files_));
  }

  void TryCompute(OpKernelContext* context) override {
    std::string folder;
    std::unique_ptr<SnapshotSave> save;
    Tensor* handle;
    OP_REQUIRES_OK(context, GetFolder(context, &folder));
    OP_REQUIRES_OK(context, ToTensorFlow(SnapshotSave::Begin(files_, folder, &save)));
    const std::string id = IdText(save->id());
    RefCountPtr<SnapshotSaveResource> resource(new SnapshotSaveResource(std::move(save)));
    OP_REQUIRES_OK(context, context->allocate_output(0, TensorShape({}), &handle));
    handle->scalar<ResourceHandle>()() =
        ResourceHandle::MakeRefCountingHandle(resource.release(), context->device()->name());
    OP_REQUIRES_OK(context, SetString(context, 1, id));
  }

 private:
  FileSystem* files_;
};

class SnapshotWriteOp : public CatchingKernel {
 public:
  explicit SnapshotWriteOp(OpKernelConstruction* context) : CatchingKernel(context) {
    tensorflow::DataType value_dtype;
    OP_REQUIRES_OK(context, GetFileSystem(context, &files_));
    OP_REQUIRES_OK(context, context->GetAttr("follow", &follow_));
    OP_REQUIRES_OK(context, context->GetAttr("values_alone", &values_alone_));
    OP_REQUIRES_OK(context, context->GetAttr("value_dtype", &value_dtype));
    value_dtype_ = ToCore(value_dtype);
    OP_REQUIRES_OK(context, context->GetAttr("writer", &place_.index));
    OP_REQUIRES_OK(context, context->GetAttr("writers", &place_.of));
    OP_REQUIRES(context, place_.index < place_.of,
                ToTensorFlow(InvalidArgument("writer: got ", place_.index, ", want less than the ",
                                             place_.of, " writers")));
  }

  void TryCompute(OpKernelContext* context) override {
    std::string folder;
    tstring id, base_text;
    const Tensor *names, *remote;
    std::vector<TableInput> inputs;
    OP_REQUIRES_OK(context, GetFolder(context, &folder));
    OP_REQUIRES_OK(context, GetScalar(context, "snapshot", &id));
    OP_REQUIRES_OK(context, GetScalar(context, "base", &base_text));
    OP_REQUIRES_OK(context, context->input("remote", &remote));
    OP_REQUIRES_OK(context, GetTables(context, remote, &names, &inputs));
    uint64_t base = 0;
    WriterPlace place = place_;
    OP_REQUIRES_OK(context, ToTensorFlow(ParseId(id, &place.snapshot)));
    if (!base_text.empty()) OP_REQUIRES_OK(context, ToTensorFlow(ParseId(base_text, &base)));

    const auto began = std::chrono::steady_clock::now();
    const FileContext core;
    std::vector<TableResource::EndedEpoch> since(inputs.size()), ended(inputs.size());
    std::vector<TableToSave> tables(inputs.size());
    std::vector<size_t> followed;
    for (size_t t = 0; t < inputs.size(); ++t) {
      tables[t].name = names->vec<tstring>()(static_cast<int64_t>(t));
      tables[t].strings = inputs[t].strings.get();
      if (values_alone_) tables[t].values_as = value_dtype_;
      tables[t].shards = Pointers(inputs[t].shards);
      if (inputs[t].shards.empty()) {
        tables[t].remote_schema = &inputs[t].schema;
        continue;
      }
      const bool tracks = inputs[t].resource->options().track_changes;
      if (follow_ || base != 0 || tracks) followed.push_back(t);
      if (base != 0) {
        const Status known = inputs[t].resource->EpochOf(base, inputs[t].shards, &since[t]);
        OP_REQUIRES(context, known.ok(),
                    ToTensorFlow(Status(
                        known.code(), StrCat("table '", tables[t].name, "': ", known.message()))));
        tables[t].since_epoch = *since[t];
      }
    }
    // Before any row is read: what is written from now on is of the next epoch.
    for (const size_t t : followed) {
      OP_REQUIRES_OK(
          context, ToTensorFlow(inputs[t].resource->BeginEpoch(core, inputs[t].shards, &ended[t])));
    }
    Manifest part;
    OP_REQUIRES_OK(context,
                   ToTensorFlow(WriteTables(core, files_, folder, place, tables, base, &part)));
    // If the snapshot comes to nothing after all, nobody ever asks for its id.
    for (const size_t t : followed) {
      inputs[t].resource->SetEpochOf(place.snapshot, base, inputs[t].shards, ended[t]);
    }
    const auto took = std::chrono::steady_clock::now() - began;
    const int64_t microseconds =
        std::chrono::duration_cast<std::chrono::microseconds>(took).count();
    for (const TableInput& input : inputs) {
      if (!input.shards.empty()) input.resource->AddSave(base != 0, microseconds);
    }
    OP_REQUIRES_OK(context, SetString(context, 0, part.ToText()));
  }

 private:
  FileSystem* files_;
  bool follow_;
  bool values_alone_;
  DType value_dtype_;
  WriterPlace place_;
};

class SnapshotCommitOp : public CatchingKernel {
 public:
  using CatchingKernel::CatchingKernel;
  void TryCompute(OpKernelContext* context) override {
    const Tensor* texts;
    RefCountPtr<SnapshotSaveResource> save;
    OP_REQUIRES_OK(context, GetSave(context, &save));
    OP_REQUIRES_OK(context, context->input("parts", &texts));
    std::vector<Manifest> parts(static_cast<size_t>(texts->NumElements()));
    for (size_t p = 0; p < parts.size(); ++p) {
      const std::string text = texts->flat<tstring>()(static_cast<int64_t>(p));
      OP_REQUIRES_OK(context, ToTensorFlow(Manifest::Parse(text, &parts[p])));
    }
    OP_REQUIRES_OK(context, ToTensorFlow(save->Commit(parts)));
  }
};

class SnapshotEndOp : public CatchingKernel {
 public:
  using CatchingKernel::CatchingKernel;
  void TryCompute(OpKernelContext* context) override {
    RefCountPtr<SnapshotSaveResource> save;
    OP_REQUIRES_OK(context, GetSave(context, &save));
    save->End();
  }
};

// One table of a snapshot, from inputs path, snapshot, table_name and cursor.
struct SnapshotInput {
  std::unique_ptr<SnapshotReader> reader;
  int64_t table;
  SnapshotPlace place;

  absl::Status Get(OpKernelContext* context) {
    std::string folder;
    tstring id, name;
    const Tensor* cursor;
    TF_RETURN_IF_ERROR(GetFolder(context, &folder));
    TF_RETURN_IF_ERROR(GetScalar(context, "snapshot", &id));
    TF_RETURN_IF_ERROR(GetScalar(context, "table_name", &name));
    TF_RETURN_IF_ERROR(context->input("cursor", &cursor));
    if (cursor->dims() != 1 || cursor->NumElements() != 3) {
      return ToTensorFlow(
          InvalidArgument("cursor: got shape ", cursor->shape().DebugString(), ", want (3,)"));
    }
    const auto at = cursor->vec<int64_t>();
    place = {at(0), at(1), at(2)};
    TF_RETURN_IF_ERROR(ToTensorFlow(SnapshotReader::Open(PosixFileSystem(), folder, &reader)));
    const std::string there = IdText(reader->manifest().id);
    if (there != std::string(id)) {
      return ToTensorFlow(
          FailedPrecondition("snapshot ", folder, ": got ", there, ", want ", std::string(id),
                             "; it was replaced while it was being read: begin again"));
    }
    return ToTensorFlow(reader->FindTable(name, &table));
  }
};

// How many rows the ops below take at a time where the partitioner is asked for their shards.
constexpr int64_t kPieceRows = int64_t{1} << 18;

class SnapshotKeysOp : public CatchingKernel {
 public:
  using CatchingKernel::CatchingKernel;
  void TryCompute(OpKernelContext* context) override {
    SnapshotInput input;
    std::vector<BlockEntry> blocks;
    OP_REQUIRES_OK(context, input.Get(context));
    OP_REQUIRES_OK(
        context, ToTensorFlow(input.reader->List(input.table, kPieceRows, &input.place, &blocks)));
    int64_t rows = 0;
    for (const BlockEntry& block : blocks) rows += HasRows(block.kind) ? block.records : 0;
    Tensor* keys;
    OP_REQUIRES_OK(context, context->allocate_output(0, TensorShape({rows}), &keys));
    Key* to = keys->flat<int64_t>().data();
    for (const BlockEntry& block : blocks) {
      if (!HasRows(block.kind)) continue;
      OP_REQUIRES_OK(context, ToTensorFlow(input.reader->ReadKeys(block, to)));
      to += block.records;
    }
  }
};

class SnapshotLoadOp : public CatchingKernel {
 public:
  explicit SnapshotLoadOp(OpKernelConstruction* context) : CatchingKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("key_mod", &key_mod_));
    OP_REQUIRES_OK(context, context->GetAttr("part", &part_.index));
    OP_REQUIRES_OK(context, context->GetAttr("parts", &part_.of));
    OP_REQUIRES_OK(context, context->GetAttr("by_hash", &part_.by_hash));
    OP_REQUIRES(context, part_.index < part_.of,
                ToTensorFlow(InvalidArgument("part: got ", part_.index, ", want less than the ",
                                             part_.of, " parts")));
  }

  void TryCompute(OpKernelContext* context) override {
    TableInput table;
    SnapshotInput input;
    const Tensor* shard_ids_tensor;
    OP_REQUIRES_OK(context, GetTable(context, tensorflow::DT_INVALID, &table, CallLength::kLong));
    OP_REQUIRES_OK(context, input.Get(context));
    OP_REQUIRES_OK(context, context->input("shard_ids", &shard_ids_tensor));
    OP_REQUIRES_OK(context, ToTensorFlow(input.reader->FitTo(table.schema, input.table)));
    const SnapshotReader& reader = *input.reader;
    const std::vector<Table*> shards = Pointers(table.shards);
    const Span<const int32_t> shard_ids(shard_ids_tensor->flat<int32_t>().data(),
                                        shard_ids_tensor->NumElements());
    const FileContext core;
    if (input.place.file == 0 && input.place.offset == 0) {
      OP_REQUIRES_OK(context, ToTensorFlow(LoadErased(core, reader, input.table, shards)));
      OP_REQUIRES_OK(context, ToTensorFlow(Reserve(core, input, shards)));
    }
    std::vector<BlockEntry> blocks;
    const int64_t limit = key_mod_ ? std::numeric_limits<int64_t>::max() : kPieceRows;
    OP_REQUIRES_OK(context, ToTensorFlow(reader.List(input.table, limit, &input.place, &blocks)));
    OP_REQUIRES_OK(context,
                   ToTensorFlow(LoadRows(core, reader, blocks, key_mod_ ? nullptr : &shard_ids,
                                         shards, table.strings.get(), part_)));
    Tensor *next, *done;
    OP_REQUIRES_OK(context, context->allocate_output(0, TensorShape({3}), &next));
    OP_REQUIRES_OK(context, context->allocate_output(1, TensorShape({}), &done));
    const SnapshotPlace& place = input.place;
    next->vec<int64_t>()(0) = place.file;
    next->vec<int64_t>()(1) = place.offset;
    next->vec<int64_t>()(2) = place.sequence;
    done->scalar<bool>()() = place.file >= static_cast<int64_t>(reader.manifest().files.size());
  }

 private:
  // The indexes for the rows of a full snapshot, whose keys are spread evenly over parts and
  // shards. How many rows of a delta are new is not known.
  Status Reserve(const Context& core, const SnapshotInput& input,
                 const std::vector<Table*>& shards) const {
    if (input.reader->manifest().base != 0) return Status();
    int64_t rows = 0;
    for (const SnapshotFile& file : input.reader->manifest().files) {
      if (file.table == input.table) rows += file.rows;
    }
    rows /= part_.of * static_cast<int64_t>(shards.size());
    for (Table* shard : shards) DYNEMB_RETURN_IF_ERROR(shard->Reserve(core, rows));
    return Status();
  }

  bool key_mod_;
  KeyPart part_;
};

class SnapshotVerifyOp : public CatchingKernel {
 public:
  explicit SnapshotVerifyOp(OpKernelConstruction* context) : CatchingKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("read", &read_));
  }

  void TryCompute(OpKernelContext* context) override {
    std::string folder;
    const Tensor* names;
    std::vector<TableInput> tables;
    OP_REQUIRES_OK(context, GetFolder(context, &folder));
    OP_REQUIRES_OK(context, GetTables(context, nullptr, &names, &tables));
    std::unique_ptr<SnapshotReader> reader;
    const FileContext core;
    OP_REQUIRES_OK(context, ToTensorFlow(SnapshotReader::Open(PosixFileSystem(), folder, &reader)));
    for (size_t t = 0; t < tables.size(); ++t) {
      const std::string name = names->vec<tstring>()(static_cast<int64_t>(t));
      int64_t number = 0;
      OP_REQUIRES_OK(context, ToTensorFlow(CheckFits(reader.get(), name, tables[t], &number)));
      if (read_) OP_REQUIRES_OK(context, ToTensorFlow(reader->VerifyTable(core, number)));
    }
    OP_REQUIRES_OK(context, SetString(context, 0, IdText(reader->manifest().id)));
  }

 private:
  static Status CheckFits(SnapshotReader* reader, const std::string& name, const TableInput& table,
                          int64_t* number) {
    const Manifest& manifest = reader->manifest();
    if (manifest.base == 0) {
      return InvalidArgument("path: got the full snapshot ", IdText(manifest.id),
                             ", want a delta; load it by restore");
    }
    DYNEMB_RETURN_IF_ERROR(reader->FindTable(name, number));
    const Status fits = reader->FitTo(table.schema, *number);
    if (!fits.ok()) return Status(fits.code(), StrCat("table '", name, "': ", fits.message()));
    const std::vector<uint64_t> has = table.resource->snapshots();
    const bool continues = std::any_of(has.begin(), has.end(), [&](uint64_t snapshot) {
      return snapshot == manifest.base || snapshot == manifest.id;
    });
    if (!continues) {
      return InvalidArgument("table '", name, "': got a delta of snapshot ", IdText(manifest.base),
                             has.empty() ? ", and the table has rows of no snapshot; a model for "
                                           "deltas is exported after their base was saved"
                                         : StrCat(", want one of ", IdText(has.back()),
                                                  ", which the table has rows of"));
    }
    return Status();
  }

  bool read_;  // from end to end
};

class SnapshotsOp : public CatchingKernel {
 public:
  using CatchingKernel::CatchingKernel;
  void TryCompute(OpKernelContext* context) override {
    TableInput table;
    OP_REQUIRES_OK(context, GetTable(context, tensorflow::DT_INVALID, &table));
    const std::vector<uint64_t> snapshots = table.resource->snapshots();
    const int64_t n = static_cast<int64_t>(snapshots.size());
    Tensor* ids;
    OP_REQUIRES_OK(context, context->allocate_output(0, TensorShape({n}), &ids));
    for (int64_t i = 0; i < n; ++i) ids->vec<tstring>()(i) = IdText(snapshots[i]);
  }
};

class SetSnapshotOp : public CatchingKernel {
 public:
  explicit SetSnapshotOp(OpKernelConstruction* context) : CatchingKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("follow", &follow_));
  }

  void TryCompute(OpKernelContext* context) override {
    TableInput table;
    tstring id_text;
    uint64_t id = 0;
    OP_REQUIRES_OK(context, GetTable(context, tensorflow::DT_INVALID, &table));
    OP_REQUIRES_OK(context, GetScalar(context, "snapshot", &id_text));
    OP_REQUIRES_OK(context, ToTensorFlow(ParseId(id_text, &id)));
    table.resource->set_snapshot(id);
    if (!follow_ && !table.resource->options().track_changes) return;
    const OneThread core;
    TableResource::EndedEpoch ended;
    OP_REQUIRES_OK(context, ToTensorFlow(table.resource->BeginEpoch(core, table.shards, &ended)));
    table.resource->SetEpochOf(id, 0, table.shards, ended);
  }

 private:
  bool follow_;
};

class SwapOp : public CatchingKernel {
 public:
  using CatchingKernel::CatchingKernel;
  void TryCompute(OpKernelContext* context) override {
    const Tensor *handle, *other_handle;
    std::vector<TableInput> both;
    OP_REQUIRES_OK(context, context->input("table", &handle));
    OP_REQUIRES_OK(context, context->input("other", &other_handle));
    OP_REQUIRES_OK(context, GetTablesOf(context, {handle, other_handle}, false, &both));
    const TableInput &table = both[0], &other = both[1];
    OP_REQUIRES(context, table.shard_count() == other.shard_count(),
                ToTensorFlow(InvalidArgument("other: got ", other.shard_count(), " shards, want ",
                                             table.shard_count())));
    OP_REQUIRES_OK(context, ToTensorFlow(CheckCompatible(other.schema, table.schema)));
    table.resource->Swap(other.resource.get());
  }
};

REGISTER_KERNEL_BUILDER(Name("DynembSnapshotBegin").Device(tensorflow::DEVICE_CPU),
                        SnapshotBeginOp);
REGISTER_KERNEL_BUILDER(Name("DynembSnapshotWrite").Device(tensorflow::DEVICE_CPU),
                        SnapshotWriteOp);
REGISTER_KERNEL_BUILDER(Name("DynembSnapshotWrite")
                            .Device(tensorflow::DEVICE_GPU)
                            .HostMemory("tables")
                            .HostMemory("names")
                            .HostMemory("remote")
                            .HostMemory("path")
                            .HostMemory("snapshot")
                            .HostMemory("base")
                            .HostMemory("part"),
                        SnapshotWriteOp);
REGISTER_KERNEL_BUILDER(Name("DynembSnapshotCommit").Device(tensorflow::DEVICE_CPU),
                        SnapshotCommitOp);
REGISTER_KERNEL_BUILDER(Name("DynembSnapshotEnd").Device(tensorflow::DEVICE_CPU), SnapshotEndOp);
REGISTER_KERNEL_BUILDER(Name("DynembSnapshotKeys").Device(tensorflow::DEVICE_CPU), SnapshotKeysOp);
REGISTER_KERNEL_BUILDER(Name("DynembSnapshotLoad").Device(tensorflow::DEVICE_CPU), SnapshotLoadOp);
REGISTER_KERNEL_BUILDER(Name("DynembSnapshotLoad")
                            .Device(tensorflow::DEVICE_GPU)
                            .HostMemory("table")
                            .HostMemory("path")
                            .HostMemory("snapshot")
                            .HostMemory("table_name")
                            .HostMemory("cursor")
                            .HostMemory("shard_ids")
                            .HostMemory("next")
                            .HostMemory("done"),
                        SnapshotLoadOp);
REGISTER_KERNEL_BUILDER(Name("DynembSnapshotVerify").Device(tensorflow::DEVICE_CPU),
                        SnapshotVerifyOp);
REGISTER_KERNEL_BUILDER(Name("DynembSnapshotVerify")
                            .Device(tensorflow::DEVICE_GPU)
                            .HostMemory("tables")
                            .HostMemory("names")
                            .HostMemory("path")
                            .HostMemory("id"),
                        SnapshotVerifyOp);
REGISTER_KERNEL_BUILDER(Name("DynembSnapshots").Device(tensorflow::DEVICE_CPU), SnapshotsOp);
REGISTER_KERNEL_BUILDER(Name("DynembSnapshots")
                            .Device(tensorflow::DEVICE_GPU)
                            .HostMemory("table")
                            .HostMemory("snapshots"),
                        SnapshotsOp);
REGISTER_KERNEL_BUILDER(Name("DynembSetSnapshot").Device(tensorflow::DEVICE_CPU), SetSnapshotOp);
REGISTER_KERNEL_BUILDER(Name("DynembSetSnapshot")
                            .Device(tensorflow::DEVICE_GPU)
                            .HostMemory("table")
                            .HostMemory("snapshot"),
                        SetSnapshotOp);
REGISTER_KERNEL_BUILDER(Name("DynembSwap").Device(tensorflow::DEVICE_CPU), SwapOp);
REGISTER_KERNEL_BUILDER(
    Name("DynembSwap").Device(tensorflow::DEVICE_GPU).HostMemory("table").HostMemory("other"),
    SwapOp);

}  // namespace
}  // namespace dynemb

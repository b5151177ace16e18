#include "cc/kernels/table_resource.h"

#include <algorithm>

#include "cc/core/lookup/dedup.h"
#include "cc/core/lookup/widen.h"
#include "cc/core/table/host_table.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "tensorflow/core/framework/types.h"
#include "tensorflow/core/platform/threadpool.h"
#include "tensorflow/core/util/work_sharder.h"

namespace dynemb {

using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;

std::vector<Table*> Pointers(const Shards& shards) {
  std::vector<Table*> pointers;
  for (const auto& shard : shards) pointers.push_back(shard.get());
  return pointers;
}

absl::Status MakeShard(OpKernelContext* context, const TableSchema& schema,
                       std::shared_ptr<Table>* shard) {
  if (OnGpu(context)) return ToTensorFlow(MakeGpuShard(context, schema, shard));
  std::unique_ptr<Table> made;
  TF_RETURN_IF_ERROR(ToTensorFlow(MakeHostTable(schema, &made)));
  *shard = std::move(made);
  return absl::OkStatus();
}

Contents Contents::Of(Shards shards) {
  Contents contents;
  if (shards[0]->schema().strings) contents.strings = std::make_shared<KeyStrings>();
  contents.shards = std::move(shards);
  return contents;
}

std::string TableResource::DebugString() const {
  const Shards held = shards();
  int64_t rows = 0;
  for (const auto& shard : held) rows += shard->size();
  return StrCat("tf_dynemb table of ", rows, " rows in ", held.size(), " shards\n",
                held[0]->schema().ToText());
}

int64_t TableResource::MemoryUsed() const {
  int64_t bytes = 0;
  for (const auto& shard : shards()) bytes += shard->memory_bytes();
  return bytes;
}

void TableResource::Swap(TableResource* other) {
  if (other == this) return;
  std::scoped_lock lock(mutex_, other->mutex_);
  std::swap(contents_, other->contents_);
  std::swap(versions_, other->versions_);
  std::swap(snapshots_, other->snapshots_);
}

void TableResource::SetVersionOf(uint64_t snapshot, const Shards& shards, int64_t version) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (contents_.shards != shards) return;
  versions_[snapshot] = version;
  if (snapshots_.empty() || snapshots_.back() != snapshot) snapshots_.push_back(snapshot);
}

Status TableResource::VersionOf(uint64_t snapshot, const Shards& shards, int64_t* version) const {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto found = versions_.find(snapshot);
  if (found == versions_.end() || contents_.shards != shards) {
    return FailedPrecondition(
        "base: the table does not know what has changed since this snapshot; a delta needs one "
        "that was saved of the table, or that it was restored from, with follow=True");
  }
  *version = found->second;
  return Status();
}

PoolExecutor::PoolExecutor(OpKernelContext* context)
    : pool_(context->device()->tensorflow_cpu_worker_threads()->workers) {}

int PoolExecutor::concurrency() const { return std::max(1, pool_->NumThreads()); }

void PoolExecutor::Run(int64_t tasks, int64_t nanoseconds_per_task,
                       const std::function<void(int64_t)>& task) {
  tensorflow::Shard(concurrency(), pool_, tasks, std::max<int64_t>(1, nanoseconds_per_task),
                    [&](int64_t begin, int64_t end) {
                      for (int64_t i = begin; i < end; ++i) task(i);
                    });
}

absl::Status ToTensorFlow(const Status& status) {
  if (status.ok()) return absl::OkStatus();
  return absl::Status(static_cast<absl::StatusCode>(status.code()), status.message());
}

DType ToCore(tensorflow::DataType dtype) {
  DType core = DType::kFloat32;
  // Names agree but for TensorFlow's C++ spelling of the floats; the ops' attrs admit no others.
  switch (dtype) {
    case tensorflow::DT_DOUBLE:
      return DType::kFloat64;
    case tensorflow::DT_HALF:
      return DType::kFloat16;
    case tensorflow::DT_FLOAT:
      return DType::kFloat32;
    default:
      ParseDType(tensorflow::DataTypeString(dtype), &core);
      return core;
  }
}

namespace {

absl::Status CheckDType(tensorflow::DataType dtype, const TableSchema& schema) {
  if (ToCore(dtype) == schema.value_dtype) return absl::OkStatus();
  return ToTensorFlow(InvalidArgument("value dtype: got ", Name(ToCore(dtype)),
                                      ", the table holds ", Name(schema.value_dtype)));
}

}  // namespace

absl::Status GetTableOf(OpKernelContext* context, const Tensor& handle, TableInput* table) {
  if (!tensorflow::TensorShapeUtils::IsScalar(handle.shape())) {
    return ToTensorFlow(InvalidArgument("table: got shape ", handle.shape().DebugString(),
                                        ", want the scalar that DynembTable gives"));
  }
  TF_RETURN_IF_ERROR(tensorflow::LookupResource(
      context, handle.scalar<tensorflow::ResourceHandle>()(), &table->resource));
  Contents contents = table->resource->contents();
  table->shards = std::move(contents.shards);
  for (const auto& shard : table->shards) table->in_place.push_back(InPlace(shard));
  table->strings = std::move(contents.strings);
  table->schema = table->shards[0]->schema();
  return absl::OkStatus();
}

absl::Status GetTable(OpKernelContext* context, tensorflow::DataType dtype, TableInput* table) {
  const Tensor* handle;
  TF_RETURN_IF_ERROR(context->input("table", &handle));
  TF_RETURN_IF_ERROR(GetTableOf(context, *handle, table));
  return dtype == tensorflow::DT_INVALID ? absl::OkStatus() : CheckDType(dtype, table->schema);
}

absl::Status GetTableToRead(OpKernelContext* context, tensorflow::DataType dtype,
                            TableInput* table) {
  TF_RETURN_IF_ERROR(GetTable(context, tensorflow::DT_INVALID, table));
  if (CanWiden(table->schema.value_dtype, ToCore(dtype))) return absl::OkStatus();
  return CheckDType(dtype, table->schema);
}

absl::Status GetKeys(OpKernelContext* context, const TableInput& table, KeyInputs* inputs,
                     MemorySpace space) {
  const Tensor *keys, *owners;
  TF_RETURN_IF_ERROR(context->input("keys", &keys));
  TF_RETURN_IF_ERROR(context->input("owners", &owners));
  return RouteKeys(*keys, *owners, table, inputs, space);
}

absl::Status RouteKeys(const Tensor& keys, const Tensor& owners, const TableInput& table,
                       KeyInputs* inputs, MemorySpace space) {
  inputs->keys_tensor = &keys;
  inputs->keys = {keys.flat<int64_t>().data(), keys.NumElements(), space};
  return ToTensorFlow(Routing::Make(inputs->keys,
                                    {owners.flat<int32_t>().data(), owners.NumElements()},
                                    static_cast<int>(table.shard_count()), &inputs->routing));
}

absl::Status KeysToHost(const Context& core, Span<const Key>* keys, std::vector<Key>* copy) {
  if (keys->space == MemorySpace::kHost) return absl::OkStatus();
  copy->resize(static_cast<size_t>(keys->size));
  TF_RETURN_IF_ERROR(ToTensorFlow(
      CopyFromGpu(core, copy->data(), keys->data, keys->size * static_cast<int64_t>(sizeof(Key)))));
  *keys = *copy;
  return absl::OkStatus();
}

absl::Status BeginBirth(const Context& core, const TableInput& table, Span<const Key> keys,
                        KeyStrings::Birth* birth) {
  if (table.strings == nullptr) return absl::OkStatus();
  std::vector<Key> copy;
  TF_RETURN_IF_ERROR(KeysToHost(core, &keys, &copy));
  return ToTensorFlow(KeyStrings::Birth::Begin(table.strings.get(), keys, birth));
}

absl::Status GetStrings(OpKernelContext* context, const char* name, const KeyInputs& inputs,
                        std::vector<std::string_view>* strings) {
  const Tensor* tensor;
  TF_RETURN_IF_ERROR(context->input(name, &tensor));
  if (tensor->NumElements() != inputs.keys.size) {
    return ToTensorFlow(InvalidArgument(name, ": got ", tensor->NumElements(),
                                        ", want one per key, ", inputs.keys.size));
  }
  const auto flat = tensor->flat<tensorflow::tstring>();
  strings->clear();
  for (int64_t i = 0; i < flat.size(); ++i) strings->emplace_back(flat(i).data(), flat(i).size());
  return absl::OkStatus();
}

absl::Status GetRows(OpKernelContext* context, const char* name, const KeyInputs& inputs,
                     const TableSchema& schema, ConstRows* rows) {
  const Tensor* tensor;
  TF_RETURN_IF_ERROR(context->input(name, &tensor));
  return RowsOfKeys(name, *tensor, inputs, schema.dim, rows);
}

absl::Status RowsOfKeys(const char* name, const Tensor& tensor, const KeyInputs& inputs,
                        int64_t dim, ConstRows* rows) {
  TensorShape want = inputs.keys_tensor->shape();
  TF_RETURN_IF_ERROR(want.AddDimWithStatus(dim));
  if (tensor.shape() != want) {
    return ToTensorFlow(InvalidArgument(name, ": got shape ", tensor.shape().DebugString(),
                                        ", want the keys' shape + (dim,) = ", want.DebugString()));
  }
  *rows = RowsOf(tensor, inputs.keys.size, dim * tensorflow::DataTypeSize(tensor.dtype()),
                 inputs.keys.space);
  return absl::OkStatus();
}

template <typename T>
absl::Status GetScalar(OpKernelContext* context, const char* name, T* value) {
  const Tensor* tensor;
  TF_RETURN_IF_ERROR(context->input(name, &tensor));
  if (!tensorflow::TensorShapeUtils::IsScalar(tensor->shape())) {
    return ToTensorFlow(
        InvalidArgument(name, ": got shape ", tensor->shape().DebugString(), ", want a scalar"));
  }
  *value = tensor->scalar<T>()();
  return absl::OkStatus();
}
template absl::Status GetScalar(OpKernelContext*, const char*, int64_t*);
template absl::Status GetScalar(OpKernelContext*, const char*, tensorflow::tstring*);

Status ForEachShard(const TableInput& table, Span<const Key> keys, const Routing& routing,
                    const std::function<Status(Table*, const Batch&)>& call) {
  const Shards& shards = keys.space == MemorySpace::kHost ? table.shards : table.in_place;
  for (size_t s = 0; s < shards.size(); ++s) {
    Batch batch;
    batch.keys = keys;
    batch.select = routing.share(static_cast<int>(s));
    DYNEMB_RETURN_IF_ERROR(call(shards[s].get(), batch));
  }
  return Status();
}

Status MissingKeys(const TableInput& table, Span<const Key> keys, const Routing& routing,
                   std::vector<Key>* missing) {
  const Dedup dedup(keys);
  // Where the values go that nobody asked for: all to one place, by this one thread.
  std::vector<char> value(table.schema.dim * SizeOf(table.schema.value_dtype));
  const std::vector<int64_t> place(keys.size);
  std::vector<Outcome> outcomes(keys.size);
  Report report;
  report.outcomes = outcomes;
  DYNEMB_RETURN_IF_ERROR(ForEachShard(table, keys, routing, [&](Table* shard, const Batch& batch) {
    return shard->Find(OneThread(), batch, IfMissing::kLeave, Rows(value.data(), place), report);
  }));
  std::vector<bool> is_missing(dedup.size());
  for (int64_t i = 0; i < keys.size; ++i) {
    if (outcomes[i] == Outcome::kMissing) is_missing[dedup.inverse()[i]] = true;
  }
  for (int64_t u = 0; u < dedup.size(); ++u) {
    if (is_missing[u]) missing->push_back(dedup.unique()[u]);
  }
  return Status();
}

ConstRows RowsOf(const Tensor& tensor, int64_t rows, int64_t row_bytes, MemorySpace space) {
  return {tensor.tensor_data().data(), rows, row_bytes, space};
}

Rows MutableRowsOf(Tensor* tensor, int64_t rows, int64_t row_bytes, MemorySpace space) {
  return {const_cast<char*>(tensor->tensor_data().data()), rows, row_bytes, space};
}

}  // namespace dynemb

#include "cc/kernels/table_resource.h"

#include <algorithm>
#include <memory>
#include <set>

#include "cc/core/base/run_calls.h"
#include "cc/core/base/shared_tasks.h"
#include "cc/core/lookup/widen.h"
#include "cc/core/snapshot/writer.h"
#include "cc/core/storage/reopening.h"
#include "cc/core/storage/tiered_table.h"
#include "cc/core/table/distinct_keys.h"
#include "cc/core/table/evicted_rows.h"
#include "cc/core/table/host_table.h"
#include "cc/gpu/table/gpu_tiered_table.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "tensorflow/core/framework/types.h"
#include "tensorflow/core/platform/threadpool.h"

namespace dynemb {

using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;

std::vector<Table*> Pointers(const Shards& shards) {
  std::vector<Table*> pointers;
  for (const auto& shard : shards) pointers.push_back(shard.get());
  return pointers;
}

namespace {

using MakeShard = std::function<Status(const TableOptions&, std::shared_ptr<Table>*)>;

Status MakeEach(const Context& context, const TableOptions& options, int64_t number,
                int64_t rows_of_shard, const MakeShard& make, Shards* shards) {
  shards->resize(static_cast<size_t>(number));
  const std::vector<TableOptions> of_shards = OptionsOfShards(options, static_cast<int>(number));
  for (size_t s = 0; s < shards->size(); ++s) {
    std::shared_ptr<Table>& shard = (*shards)[s];
    DYNEMB_RETURN_IF_ERROR(make(of_shards[s], &shard));
    DYNEMB_RETURN_IF_ERROR(shard->Reserve(context, std::min(rows_of_shard, shard->max_rows())));
  }
  return Status();
}

// One of so many.
Status MakeHostShard(const TableSchema& schema, const TableOptions& options, const Storage& storage,
                     int64_t number, std::unique_ptr<Table>* shard) {
  if (storage == nullptr || storage->disk == nullptr) return MakeHostTable(schema, options, shard);
  return MakeTieredTable(schema, options, storage->OfShard(number), shard);
}

// One on the op's GPU with the others of its rows in the host's memory, and on disk.
Status MakeShardOverHost(OpKernelContext* context, const TableSchema& schema,
                         const TableOptions& options, const Storage& storage,
                         std::shared_ptr<Table>* shard) {
  TableSchema of_table;
  DYNEMB_RETURN_IF_ERROR(storage->SchemaFor(schema, &of_table));
  TableOptions of_tiers = options;
  std::unique_ptr<Table> below;
  DYNEMB_RETURN_IF_ERROR(MakeHostShard(of_table, OptionsBelow(&of_tiers), storage, 1, &below));
  return MakeGpuTieredShard(context, of_table, of_tiers, storage->max_device_bytes,
                            std::move(below), shard);
}

}  // namespace

Status MakeHostShards(const Context& context, const TableSchema& schema,
                      const TableOptions& options, const Storage& storage, int64_t number,
                      int64_t rows_of_shard, Shards* shards) {
  TableSchema of_table = schema;
  if (storage != nullptr) {
    DYNEMB_RETURN_IF_ERROR(storage->SchemaFor(schema, &of_table));
  }
  if (storage != nullptr && storage->max_device_bytes >= 0) {
    return InvalidArgument("storage: got DeviceMemory for a table in host memory, want none");
  }
  const auto make = [&](const TableOptions& of_shard, std::shared_ptr<Table>* shard) {
    std::unique_ptr<Table> made;
    DYNEMB_RETURN_IF_ERROR(MakeHostShard(of_table, of_shard, storage, number, &made));
    *shard = std::move(made);
    return Status();
  };
  return MakeEach(context, options, number, rows_of_shard, make, shards);
}

absl::Status MakeShards(OpKernelContext* context, const TableSchema& schema,
                        const TableOptions& options, const Storage& storage, int64_t number,
                        int64_t rows_of_shard, Shards* shards) {
  const PoolContext core(context);
  if (!OnGpu(context)) {
    return ToTensorFlow(
        MakeHostShards(core, schema, options, storage, number, rows_of_shard, shards));
  }
  if (storage != nullptr && storage->max_device_bytes < 0) {
    return ToTensorFlow(
        InvalidArgument("storage: got none of DeviceMemory for a table on a GPU, want it first"));
  }
  const auto make = [&](const TableOptions& of_shard, std::shared_ptr<Table>* shard) {
    return storage == nullptr ? MakeGpuShard(context, schema, of_shard, shard)
                              : MakeShardOverHost(context, schema, of_shard, storage, shard);
  };
  return ToTensorFlow(MakeEach(core, options, number, rows_of_shard, make, shards));
}

ShardSet::Contents ContentsOf(Shards shards) {
  ShardSet::Contents contents;
  if (shards[0]->schema().strings) contents.strings = std::make_shared<KeyStrings>();
  contents.shards = std::move(shards);
  return contents;
}

namespace {

int64_t RowsOfAll(const ShardSet::Lease& held) {
  int64_t rows = 0;
  for (const auto& shard : held->shards) rows += shard->size();
  return rows;
}

}  // namespace

int64_t TableResource::rows() const { return RowsOfAll(shards_.Acquire()); }

std::string TableResource::DebugString() const {
  if (view_ != nullptr) return "tf_dynemb view of rows that a step has fetched";
  const ShardSet::Lease held = shards_.Acquire();
  return StrCat("tf_dynemb table of ", RowsOfAll(held), " rows in ", held->shards.size(),
                " shards\n", held->schema().ToText());
}

int64_t TableResource::MemoryUsed() const {
  const ShardSet::Lease held = shards_.Acquire();
  int64_t bytes = 0;
  for (const auto& shard : held->shards) bytes += shard->memory_bytes();
  return bytes;
}

void TableResource::Replace(ShardSet::Contents contents, const std::vector<uint64_t>& snapshots) {
  std::lock_guard<std::mutex> lock(mutex_);
  CountShardsThatGo();
  const Shards before = shards_.shards();
  shards_.Replace(std::move(contents));
  given_scores_.Clear();
  KeepEvictedOf(before);
  lineage_.Loaded(snapshots);
}

void TableResource::KeepEvictedOf(const Shards& before) {
  EvictedRows *const from = before[0]->evicted(), *const to = shards_.shards()[0]->evicted();
  if (from == nullptr || to == nullptr || from == to) return;
  static_cast<void>(OrNoMemory([&] {  // without memory they are lost with the shards
    int64_t dropped;
    KeptRows rows = from->Take(&dropped);
    to->PutBack(std::move(rows), dropped);
  }));
}

void TableResource::CountShardsThatGo() {
  earlier_ = CountersByShard();
  const Shards& shards = shards_.shards();
  for (size_t s = 0; s < shards.size(); ++s) earlier_[s].erased += shards[s]->size();
}

std::vector<TableCounters> TableResource::CountersByShard() const {
  std::vector<TableCounters> counters = earlier_;
  const Shards& shards = shards_.shards();
  counters.resize(std::max(counters.size(), shards.size()));
  for (size_t s = 0; s < shards.size(); ++s) counters[s].Add(shards[s]->counters());
  return counters;
}

std::vector<TableCounters> TableResource::counters_by_shard() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return CountersByShard();
}

TableCounters TableResource::counters() const {
  std::lock_guard<std::mutex> lock(mutex_);
  TableCounters counters = of_table_;
  for (const TableCounters& of_shard : CountersByShard()) counters.Add(of_shard);
  return counters;
}

void TableResource::AddNotAdmitted(int64_t keys) {
  if (keys == 0) return;
  std::lock_guard<std::mutex> lock(mutex_);
  of_table_.not_admitted += keys;
}

void TableResource::AddSave(bool is_delta, int64_t microseconds) {
  std::lock_guard<std::mutex> lock(mutex_);
  ++(is_delta ? of_table_.deltas : of_table_.saves);
  (is_delta ? of_table_.delta_microseconds : of_table_.save_microseconds) += microseconds;
}

void TableResource::Swap(TableResource* other) {
  if (other == this) return;
  std::scoped_lock lock(mutex_, other->mutex_);
  for (TableResource* table : {this, other}) table->CountShardsThatGo();
  const Shards before = shards_.shards();
  ShardSet::Swap(&shards_, &other->shards_);
  KeepEvictedOf(before);
  std::swap(lineage_, other->lineage_);
}

Status TableResource::Reopen(Span<const int32_t> shard_ids, std::vector<Key>* keys) {
  std::lock_guard<std::mutex> lock(mutex_);
  keys->clear();
  if (reopening_ == nullptr) return Status();
  if (awaits_shard_ids_) DYNEMB_RETURN_IF_ERROR(reopening_->Place(shard_ids));
  awaits_shard_ids_ = false;
  Span<const Key> next;
  DYNEMB_RETURN_IF_ERROR(reopening_->Next(&next));
  keys->assign(next.data, next.data + next.size);
  awaits_shard_ids_ = next.size > 0;
  if (!awaits_shard_ids_) reopening_.reset();
  return Status();
}

Status TableResource::EpochOf(uint64_t snapshot, const Shards& shards, EndedEpoch* epoch) {
  std::lock_guard<std::mutex> lock(mutex_);
  int64_t ended;
  if (shards_.Has(shards) && lineage_.EpochOf(snapshot, &ended)) {
    *epoch = lineage_.Hold(ended);
    return Status();
  }
  return FailedPrecondition(
      "base: the table does not know what has changed since this snapshot; a delta needs one that "
      "was saved of the table, or that it was restored from, with follow=True, and none of a later "
      "one may have been saved");
}

Status TableResource::BeginEpoch(const Context& context, const Shards& shards, EndedEpoch* ended) {
  // One at a time, so that no save forgets the changes since an epoch that is not held yet.
  std::lock_guard<std::mutex> lock(mutex_);
  int64_t epoch;
  DYNEMB_RETURN_IF_ERROR(dynemb::BeginEpoch(context, Pointers(shards), &epoch));
  *ended = lineage_.Hold(epoch);
  return Status();
}

void TableResource::SetEpochOf(uint64_t snapshot, uint64_t base, const Shards& shards,
                               const EndedEpoch& ended) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (!shards_.Has(shards)) return;
  lineage_.Tracked(snapshot, base, *ended);
  for (const auto& shard : shards) shard->TrimChanges(lineage_.positions());
}

PoolExecutor::PoolExecutor(OpKernelContext* context)
    : pool_(context->device()->tensorflow_cpu_worker_threads()->workers) {}

int PoolExecutor::concurrency() const { return std::max(1, pool_->NumThreads()); }

void PoolExecutor::RunEach(int64_t tasks, int64_t nanoseconds_per_task,
                           const std::function<void(int64_t)>& task) {
  // As many threads as TensorFlow's ParallelFor takes for so much work.
  constexpr double kNanosecondsOfThread = 100'000;
  const double work = static_cast<double>(tasks) * static_cast<double>(nanoseconds_per_task);
  const double most = static_cast<double>(std::min<int64_t>(concurrency(), tasks));
  const int64_t threads =
      static_cast<int64_t>(std::clamp(work / kNanosecondsOfThread - 0.1, 1.0, std::max(1.0, most)));
  if (threads <= 1) {
    for (int64_t i = 0; i < tasks; ++i) task(i);
    return;
  }
  const auto shared =
      std::make_shared<SharedTasks>(tasks, std::max<int64_t>(1, tasks / (8 * threads)), &task);
  // The caller alone can do them all: while it holds a lock, threads of the pool may all wait for
  // it.
  for (int64_t t = 1; t < threads; ++t) {
    if (!OrNoMemory([&] { pool_->Schedule([shared] { shared->Work(); }); }).ok()) break;
  }
  shared->Work();
  shared->Wait();
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

std::vector<const RowReader*> TableInput::readers(MemorySpace space) const {
  if (resource->view() != nullptr) return {resource->view()};
  std::vector<const RowReader*> readers;
  for (const auto& shard : space == MemorySpace::kHost ? shards : in_place) {
    readers.push_back(shard.get());
  }
  return readers;
}

std::vector<const Tensor*> TensorsOf(const tensorflow::OpInputList& list) {
  std::vector<const Tensor*> tensors;
  for (int i = 0; i < list.size(); ++i) tensors.push_back(&list[i]);
  return tensors;
}

absl::Status GetTablesOf(OpKernelContext* context, const std::vector<const Tensor*>& handles,
                         bool may_be_views, std::vector<TableInput>* tables, CallLength length) {
  *tables = std::vector<TableInput>(handles.size());
  std::vector<const ShardSet*> sets;
  for (size_t t = 0; t < handles.size(); ++t) {
    if (!tensorflow::TensorShapeUtils::IsScalar(handles[t]->shape())) {
      return ToTensorFlow(InvalidArgument("table: got shape ", handles[t]->shape().DebugString(),
                                          ", want the scalar that DynembTable gives"));
    }
    TableInput& table = (*tables)[t];
    TF_RETURN_IF_ERROR(tensorflow::LookupResource(
        context, handles[t]->scalar<tensorflow::ResourceHandle>()(), &table.resource));
    if (table.resource->view() != nullptr && !may_be_views) {
      return ToTensorFlow(
          FailedPrecondition("table: the rows that a step has fetched can only be looked up"));
    }
    sets.push_back(table.resource->shards());
  }
  std::vector<ShardSet::Lease> leases = ShardSet::Acquire(sets, length);
  for (size_t t = 0; t < handles.size(); ++t) {
    TableInput& table = (*tables)[t];
    table.lease = std::move(leases[t]);
    table.shards = table.lease->shards;
    table.strings = table.lease->strings;
    for (const auto& shard : table.shards) table.in_place.push_back(InPlace(shard));
    table.schema = table.readers(MemorySpace::kHost)[0]->schema();
  }
  return absl::OkStatus();
}

namespace {

absl::Status GetInput(OpKernelContext* context, bool may_be_view, TableInput* table,
                      CallLength length) {
  const Tensor* handle;
  std::vector<TableInput> tables;
  TF_RETURN_IF_ERROR(context->input("table", &handle));
  TF_RETURN_IF_ERROR(GetTablesOf(context, {handle}, may_be_view, &tables, length));
  *table = std::move(tables[0]);
  return absl::OkStatus();
}

}  // namespace

absl::Status GetTable(OpKernelContext* context, tensorflow::DataType dtype, TableInput* table,
                      CallLength length) {
  TF_RETURN_IF_ERROR(GetInput(context, false, table, length));
  return dtype == tensorflow::DT_INVALID ? absl::OkStatus() : CheckDType(dtype, table->schema);
}

absl::Status CallShards(OpKernelContext* context, TableInput* table,
                        const std::function<Status(const Context&, Table*)>& call) {
  TF_RETURN_IF_ERROR(GetTable(context, tensorflow::DT_INVALID, table, CallLength::kLong));
  const PoolContext core(context);
  for (const auto& shard : table->shards) {
    TF_RETURN_IF_ERROR(ToTensorFlow(call(core, shard.get())));
  }
  return absl::OkStatus();
}

absl::Status GetTableToRead(OpKernelContext* context, tensorflow::DataType dtype, bool may_be_view,
                            TableInput* table, CallLength length) {
  TF_RETURN_IF_ERROR(GetInput(context, may_be_view, table, length));
  if (CanWiden(table->schema.value_dtype, ToCore(dtype))) return absl::OkStatus();
  return CheckDType(dtype, table->schema);
}

absl::Status GetKeys(OpKernelContext* context, const TableInput& table, KeyInputs* inputs,
                     MemorySpace space) {
  const Tensor *keys, *shard_ids;
  TF_RETURN_IF_ERROR(context->input("keys", &keys));
  TF_RETURN_IF_ERROR(context->input("shard_ids", &shard_ids));
  return RouteKeys(PoolContext(context), *keys, *shard_ids, table, inputs, space);
}

absl::Status RouteKeys(const Context& context, const Tensor& keys, const Tensor& shard_ids,
                       const TableInput& table, KeyInputs* inputs, MemorySpace space) {
  inputs->keys_tensor = &keys;
  inputs->keys = {keys.flat<int64_t>().data(), keys.NumElements(), space};
  return ToTensorFlow(Routing::Make(context, inputs->keys,
                                    {shard_ids.flat<int32_t>().data(), shard_ids.NumElements()},
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

absl::Status PinStrings(const Context& core, const TableInput& table, Span<const Key> keys,
                        KeyStrings::PinGuard* pin) {
  if (table.strings == nullptr) return absl::OkStatus();
  std::vector<Key> copy;
  TF_RETURN_IF_ERROR(KeysToHost(core, &keys, &copy));
  return ToTensorFlow(KeyStrings::PinGuard::Begin(table.strings.get(), keys, pin, core));
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

absl::Status ScoresOfKeys(const Tensor& scores, const KeyInputs& inputs, Stamp* stamp) {
  stamp->scores = {scores.flat<int64_t>().data(), scores.NumElements(), inputs.keys.space};
  if (scores.NumElements() == 0 || scores.NumElements() == inputs.keys.size) {
    return absl::OkStatus();
  }
  return ToTensorFlow(InvalidArgument("scores: got ", scores.NumElements(), " for ",
                                      inputs.keys.size, " keys, want one for each, or none"));
}

absl::Status GetStamp(OpKernelContext* context, const KeyInputs& inputs, Stamp* stamp) {
  const Tensor* scores;
  TF_RETURN_IF_ERROR(GetScalar(context, "now", &stamp->now));
  TF_RETURN_IF_ERROR(context->input("scores", &scores));
  return ScoresOfKeys(*scores, inputs, stamp);
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

namespace {

// Calls call(context, shard number, batch) for each of so many shards, with its keys.
Status RunShards(const Context& context, size_t shards, Span<const Key> keys,
                 const Routing& routing,
                 const std::function<Status(const Context&, size_t, const Batch&)>& call) {
  std::vector<int64_t> sizes;
  for (size_t s = 0; s < shards; ++s) {
    const Positions* const share = routing.share(static_cast<int>(s));
    sizes.push_back(share == nullptr ? keys.size : *share->count);
  }
  return RunCalls(context, sizes, [&](int64_t s, const Context& of_shard) {
    return call(of_shard, static_cast<size_t>(s), {keys, routing.share(static_cast<int>(s))});
  });
}

}  // namespace

Status ForEachShard(const Context& context, const TableInput& table, Span<const Key> keys,
                    const Routing& routing,
                    const std::function<Status(const Context&, Table*, const Batch&)>& call) {
  const Shards& shards = keys.space == MemorySpace::kHost ? table.shards : table.in_place;
  if (table.resource->options().is_bounded()) {
    // One after the other: which rows find room does not depend on threads. And a call that finds
    // none waits for others (row_budget.h), for which no thread of the pool is to wait.
    for (size_t s = 0; s < shards.size(); ++s) {
      DYNEMB_RETURN_IF_ERROR(
          call(context, shards[s].get(), {keys, routing.share(static_cast<int>(s))}));
    }
    return Status();
  }
  return RunShards(context, shards.size(), keys, routing,
                   [&](const Context& of_shard, size_t s, const Batch& batch) {
                     return call(of_shard, shards[s].get(), batch);
                   });
}

Status ForEachReader(
    const Context& context, const TableInput& table, const KeyInputs& inputs,
    const std::function<Status(const Context&, const RowReader*, const Batch&)>& call) {
  const std::vector<const RowReader*> readers = table.readers(inputs.keys.space);
  return RunShards(context, readers.size(), inputs.keys, inputs.routing,
                   [&](const Context& of_shard, size_t s, const Batch& batch) {
                     return call(of_shard, readers[s], batch);
                   });
}

bool HasRoomFor(const TableInput& table, int64_t keys) {
  return std::all_of(table.shards.begin(), table.shards.end(),
                     [keys](const auto& shard) { return shard->HasRoom(keys); });
}

absl::Status CheckRoom(const Context& core, const TableInput& table, Span<const Key> keys,
                       const Routing& routing, const bool* exists) {
  if (!table.resource->refuses_when_full() || HasRoomFor(table, keys.size)) return absl::OkStatus();
  std::vector<Key> copied;
  std::vector<KeyOfShard> missing;
  TF_RETURN_IF_ERROR(KeysToHost(core, &keys, &copied));
  TF_RETURN_IF_ERROR(ToTensorFlow(MissingKeys(HostContext(core), table, keys, routing, &missing)));
  if (exists != nullptr) {
    std::unique_ptr<bool[]> flags(new bool[static_cast<size_t>(keys.size)]);
    if (core.space != MemorySpace::kHost) {
      TF_RETURN_IF_ERROR(ToTensorFlow(CopyFromGpu(core, flags.get(), exists, keys.size)));
      exists = flags.get();
    }
    std::set<Key> inserted;
    for (int64_t i = 0; i < keys.size; ++i) {
      if (!exists[i]) inserted.insert(keys[i]);
    }
    missing.erase(
        std::remove_if(missing.begin(), missing.end(),
                       [&](const KeyOfShard& one) { return inserted.count(one.key) == 0; }),
        missing.end());
  }
  return CheckRoomFor(table, missing);
}

absl::Status CheckRoomFor(const TableInput& table, const std::vector<KeyOfShard>& inserted) {
  const TableOptions& options = table.resource->options();
  const size_t budgets = options.have_one_budget() ? 1 : table.shards.size();
  std::vector<std::vector<Key>> more(budgets);
  for (const auto& [key, shard] : inserted) more[budgets == 1 ? 0 : shard].push_back(key);
  for (size_t b = 0; b < budgets; ++b) {
    const int64_t count = static_cast<int64_t>(more[b].size());
    int64_t room = table.shards[b]->room();
    if (count > room && options.eviction.expires()) {
      for (size_t s = b; s < (budgets == 1 ? table.shards.size() : b + 1); ++s) {
        TF_RETURN_IF_ERROR(ToTensorFlow(table.shards[s]->RemoveExpired(OneThread())));
      }
      room = table.shards[b]->room();
    }
    const int64_t most = table.shards[b]->max_rows();
    if (count <= std::max<int64_t>(0, room)) continue;
    const char* limit = options.max_bytes >= 0 ? "max_bytes" : "max_rows";
    if (options.max_bytes >= 0 && table.resource->storage() != nullptr) {
      limit = options.max_rows >= 0 ? "max_rows or Disk(max_bytes)" : "Disk(max_bytes)";
    }
    return ToTensorFlow(ResourceExhausted(limit, " of ", table.resource->name(), ": got ", count,
                                          " ids without a row, such as ", more[b][0], ", beside ",
                                          most - room, " rows of at most ", most,
                                          budgets == 1 ? "" : " in their shard", "; give a larger ",
                                          limit, ", an eviction policy, or on_full='decline'"));
  }
  return absl::OkStatus();
}

absl::Status SetProblem(OpKernelContext* context, const absl::Status& status) {
  if (!status.ok() && !absl::IsResourceExhausted(status)) return status;
  Tensor* problem;
  TF_RETURN_IF_ERROR(context->allocate_output(0, TensorShape({}), &problem));
  problem->scalar<tensorflow::tstring>()() = std::string(status.message());
  return absl::OkStatus();
}

Status MissingKeys(const Context& context, const TableInput& table, Span<const Key> keys,
                   const Routing& routing, std::vector<KeyOfShard>* missing) {
  const DistinctKeys distinct(keys);
  std::vector<int> shard_of(static_cast<size_t>(distinct.size()), -1);  // of those that are missing
  std::vector<int64_t> at(static_cast<size_t>(keys.size));
  int64_t count = 0;
  Positions misses;
  misses.at = at;
  misses.count = &count;
  Report report;
  report.misses = &misses;
  for (size_t s = 0; s < table.shards.size(); ++s) {
    DYNEMB_RETURN_IF_ERROR(table.shards[s]->ReadRows(
        context, {keys, routing.share(static_cast<int>(s))}, RowParts(), report));
    for (int64_t m = 0; m < count; ++m) {
      shard_of[static_cast<size_t>(distinct.numbers()[misses.at[m]])] = static_cast<int>(s);
    }
  }
  for (int64_t u = 0; u < distinct.size(); ++u) {
    const int shard = shard_of[static_cast<size_t>(u)];
    if (shard >= 0) missing->push_back({distinct.keys()[u], shard});
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

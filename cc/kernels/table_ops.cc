// Kernels of the ops about a table as a whole: make, clear, size.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "cc/core/base/no_memory.h"
#include "cc/core/shard/routing.h"
#include "cc/core/storage/flush.h"
#include "cc/core/storage/reopening.h"
#include "cc/core/storage/tiered_table.h"
#include "cc/core/table/evicted_rows.h"
#include "cc/gpu/table/gpu_tiered_table.h"
#include "cc/kernels/catching_kernel.h"
#include "cc/kernels/gpu_place.h"
#include "cc/kernels/named_resource.h"
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
using tensorflow::core::RefCountPtr;

constexpr int64_t kMaxShards = 65536;

// The table of host memory that has the rows which are not on a GPU.
Table* InHostMemory(const std::shared_ptr<Table>& shard) {
  const auto* const tiered = dynamic_cast<const GpuTieredTable*>(InPlace(shard).get());
  return tiered == nullptr ? shard.get() : tiered->below();
}

Status TieredTables(const Shards& shards, std::vector<TieredTable*>* tables) {
  for (const auto& shard : shards) {
    tables->push_back(dynamic_cast<TieredTable*>(InHostMemory(shard)));
    if (tables->back() == nullptr) {
      return FailedPrecondition("the table has no rows on disk: give it storage");
    }
  }
  return Status();
}

// See NamedResource.
class TableOp : public CatchingKernel {
 public:
  explicit TableOp(OpKernelConstruction* context) : CatchingKernel(context) {
    std::string text;
    OP_REQUIRES_OK(context, context->GetAttr("schema", &text));
    OP_REQUIRES_OK(context, ToTensorFlow(TableSchema::Parse(text, &schema_)));
    OP_REQUIRES_OK(context, context->GetAttr("shards", &shards_));
    OP_REQUIRES(
        context, shards_ <= kMaxShards,
        ToTensorFlow(InvalidArgument("shards: got ", shards_, ", want up to ", kMaxShards)));
    OP_REQUIRES_OK(context, context->GetAttr("init_rows", &init_rows_));
    OP_REQUIRES_OK(context, context->GetAttr("track_changes", &options_.track_changes));
    OP_REQUIRES_OK(context, context->GetAttr("max_rows", &options_.max_rows));
    OP_REQUIRES_OK(context, context->GetAttr("max_bytes", &options_.max_bytes));
    std::string on_full, eviction;
    OP_REQUIRES_OK(context, context->GetAttr("on_full", &on_full));
    options_.on_full = on_full == "error" ? OnFull::kError : OnFull::kDecline;
    OP_REQUIRES_OK(context, context->GetAttr("eviction", &eviction));
    OP_REQUIRES_OK(context, ToTensorFlow(EvictionPolicy::Parse(eviction, &options_.eviction)));
    std::vector<float> missing_value;
    OP_REQUIRES_OK(context, context->GetAttr("missing_value", &missing_value));
    if (!missing_value.empty()) options_.missing_value = missing_value[0];
    OP_REQUIRES_OK(context, context->GetAttr("keep_evicted", &options_.keep_evicted));
    OP_REQUIRES_OK(context, context->GetAttr("storage", &storage_));
    OP_REQUIRES_OK(context, context->GetAttr("table_name", &table_name_));
    OP_REQUIRES_OK(context, named_.Init(context));
  }

  void TryCompute(OpKernelContext* context) override {
    OP_REQUIRES_OK(context, named_.SetHandle(
                                context, [&](TableResource** made) { return Make(context, made); },
                                [&](TableResource* found) { return CheckNamed(found); }));
  }

 protected:
  int64_t shards() const { return shards_; }

 private:
  absl::Status Make(OpKernelContext* context, TableResource** resource) const {
    std::shared_ptr<StorageOptions> storage;
    TableOptions options = options_;
    if (!storage_.empty()) {
      storage = std::make_shared<StorageOptions>();
      options.have_shares = true;
      TF_RETURN_IF_ERROR(ToTensorFlow(
          StorageOptions::Parse(storage_, table_name_, options_.max_bytes, storage.get())));
      // A restore makes a table beside the one that has the folder, without a name.
      if (storage->is_shared && !named_.name().empty() && storage->disk->flushed_step() >= 0) {
        return ToTensorFlow(FailedPrecondition(storage->disk->path(), ": the table ", named_.name(),
                                               " of another session has the "
                                               "rows of the last flush; end that session first"));
      }
    }
    Shards shards;
    TF_RETURN_IF_ERROR(
        MakeShards(context, schema_, options, storage, shards_, init_rows_, &shards));
    ShardSet::Contents contents = ContentsOf(std::move(shards));
    std::shared_ptr<Reopening> reopening;
    if (storage != nullptr && storage->flushed != nullptr) {
      // Those that are put in the place of these begin without.
      const auto flushed = std::exchange(storage->flushed, nullptr);
      TF_RETURN_IF_ERROR(ToTensorFlow(OrNoMemory([&] {
        std::vector<TieredTable*> tables;
        DYNEMB_RETURN_IF_ERROR(TieredTables(contents.shards, &tables));
        reopening = std::make_shared<Reopening>(flushed, storage->disk, std::move(tables),
                                                contents.strings.get());
        if (!storage->key_mod) return Status();
        DYNEMB_RETURN_IF_ERROR(Reopen(reopening.get(), [&](Span<const Key> keys, const Reopening&) {
          return KeyMod(keys, shards_);
        }));
        reopening.reset();
        return Status();
      })));
    }
    *resource = new TableResource(std::move(contents), options, std::move(storage), table_name_);
    (*resource)->set_reopening(std::move(reopening));
    return absl::OkStatus();
  }

  // Is the table that another kernel made under this name the one that is wanted here?
  absl::Status CheckNamed(TableResource* resource) const {
    const ShardSet::Lease lease = resource->shards()->Acquire();
    const Shards& shards = lease->shards;
    if (static_cast<int64_t>(shards.size()) != shards_) {
      return ToTensorFlow(InvalidArgument("shared_name: the table ", named_.name(), " has ",
                                          shards.size(), " shards, got ", shards_));
    }
    return ToTensorFlow(CheckCompatible(schema_, shards[0]->schema()));
  }

  TableSchema schema_;
  int64_t shards_;
  int64_t init_rows_;
  TableOptions options_;
  std::string storage_;  // as StorageOptions reads it; "": in memory alone
  std::string table_name_;
  NamedResource<TableResource> named_;
};

class ClearOp : public CatchingKernel {
 public:
  using CatchingKernel::CatchingKernel;
  void TryCompute(OpKernelContext* context) override {
    TableInput table;
    OP_REQUIRES_OK(context, CallShards(context, &table, [](const Context& core, Table* shard) {
                     return shard->Clear(core);
                   }));
    table.resource->given_scores()->Clear();
  }
};

class ResetOptimizerOp : public CatchingKernel {
 public:
  using CatchingKernel::CatchingKernel;
  void TryCompute(OpKernelContext* context) override {
    RefCountPtr<TableResource> resource;
    {
      TableInput table;
      OP_REQUIRES_OK(context, GetTable(context, tensorflow::DT_INVALID, &table));
      resource = table.resource.GetNewRef();
    }  // a change of schema waits for all who hold the table
    OP_REQUIRES_OK(context, ToTensorFlow(resource->shards()->ResetOptimizer(PoolContext(context))));
    resource->forget_snapshots();
  }
};

class SizeOp : public CatchingKernel {
 public:
  using CatchingKernel::CatchingKernel;
  void TryCompute(OpKernelContext* context) override {
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

// Gives names (n,) and numbers (n,) as the outputs of an op.
void OutputNumbers(OpKernelContext* context,
                   const std::vector<std::pair<const char*, int64_t>>& all) {
  const TensorShape shape({static_cast<int64_t>(all.size())});
  Tensor *names, *numbers;
  OP_REQUIRES_OK(context, context->allocate_output(0, shape, &names));
  OP_REQUIRES_OK(context, context->allocate_output(1, shape, &numbers));
  for (size_t i = 0; i < all.size(); ++i) {
    names->vec<tensorflow::tstring>()(static_cast<int64_t>(i)) = all[i].first;
    numbers->vec<int64_t>()(static_cast<int64_t>(i)) = all[i].second;
  }
}

class CountersOp : public CatchingKernel {
 public:
  using CatchingKernel::CatchingKernel;
  void TryCompute(OpKernelContext* context) override {
    TableInput table;
    OP_REQUIRES_OK(context, GetTable(context, tensorflow::DT_INVALID, &table));
    const TableCounters counters = table.resource->counters();
    std::vector<std::pair<const char*, int64_t>> all;
    TableCounters::ForEach([&](const char* name, int64_t TableCounters::* what) {
      all.emplace_back(name, counters.*what);
    });
    OutputNumbers(context, all);
    const std::vector<TableCounters> shards = table.resource->counters_by_shard();
    Tensor* by_shard;
    const TensorShape shape(
        {static_cast<int64_t>(shards.size()), static_cast<int64_t>(all.size())});
    OP_REQUIRES_OK(context, context->allocate_output(2, shape, &by_shard));
    int64_t* to = by_shard->flat<int64_t>().data();
    for (const TableCounters& shard : shards) {
      TableCounters::ForEach(
          [&](const char*, int64_t TableCounters::* what) { *to++ = shard.*what; });
    }
  }
};

class TakeEvictedOp : public CatchingKernel {
 public:
  using CatchingKernel::CatchingKernel;
  void TryCompute(OpKernelContext* context) override {
    TableInput table;
    OP_REQUIRES_OK(context, GetTable(context, context->expected_output_dtype(1), &table));
    EvictedRows* const evicted = table.shards[0]->evicted();
    OP_REQUIRES(context, evicted != nullptr,
                ToTensorFlow(FailedPrecondition("keep_evicted: got 0, for which the table keeps no "
                                                "rows that leave; make it with another number")));
    int64_t dropped;
    KeptRows rows = evicted->Take(&dropped);
    const absl::Status output = Output(context, table.schema.dim, rows, dropped);
    if (!output.ok()) evicted->PutBack(std::move(rows), dropped);
    OP_REQUIRES_OK(context, output);
  }

 private:
  static absl::Status Output(OpKernelContext* context, int64_t dim, const KeptRows& rows,
                             int64_t dropped) {
    Tensor *keys, *values, *count;
    TF_RETURN_IF_ERROR(context->allocate_output(0, TensorShape({rows.size()}), &keys));
    TF_RETURN_IF_ERROR(context->allocate_output(1, TensorShape({rows.size(), dim}), &values));
    TF_RETURN_IF_ERROR(context->allocate_output(2, TensorShape({}), &count));
    std::copy(rows.keys.begin(), rows.keys.end(), keys->flat<int64_t>().data());
    if (rows.size() > 0) std::memcpy(values->data(), rows.values.data(), rows.values.size());
    count->scalar<int64_t>()() = dropped;
    return absl::OkStatus();
  }
};

class TierStatsOp : public CatchingKernel {
 public:
  using CatchingKernel::CatchingKernel;
  void TryCompute(OpKernelContext* context) override {
    TableInput table;
    OP_REQUIRES_OK(context, GetTable(context, tensorflow::DT_INVALID, &table));
    TierStats sum;
    GpuTierStats on_gpus;
    bool has_tiers = false, has_gpu_tiers = false;
    for (const auto& shard : table.shards) {
      if (const auto* const tiered = dynamic_cast<const GpuTieredTable*>(InPlace(shard).get())) {
        has_gpu_tiers = true;
        const GpuTierStats stats = tiered->gpu_tier_stats();
        GpuTierStats::ForEach(
            [&](const char*, int64_t GpuTierStats::* what) { on_gpus.*what += stats.*what; });
      }
      const auto* const tiered = dynamic_cast<const TieredTable*>(InHostMemory(shard));
      if (tiered == nullptr) continue;
      has_tiers = true;
      const TierStats stats = tiered->tier_stats();
      TierStats::ForEach([&](const char*, int64_t TierStats::* what) { sum.*what += stats.*what; });
    }
    std::vector<std::pair<const char*, int64_t>> all;
    if (has_tiers) {
      const DiskFolder& disk = *table.resource->storage()->disk;
      sum.bytes_below += disk.bytes_kept() - disk.bytes_shared();
      all.emplace_back("flushed_step", disk.flushed_step());
      TierStats::ForEach(
          [&](const char* name, int64_t TierStats::* what) { all.emplace_back(name, sum.*what); });
    }
    if (has_gpu_tiers) {
      GpuTierStats::ForEach([&](const char* name, int64_t GpuTierStats::* what) {
        all.emplace_back(name, on_gpus.*what);
      });
    }
    OutputNumbers(context, all);
  }
};

class FlushOp : public CatchingKernel {
 public:
  using CatchingKernel::CatchingKernel;
  void TryCompute(OpKernelContext* context) override {
    TableInput table;
    OP_REQUIRES_OK(context, GetTable(context, tensorflow::DT_INVALID, &table, CallLength::kLong));
    int64_t step;
    OP_REQUIRES_OK(context, GetScalar(context, "step", &step));
    OP_REQUIRES(context, step >= 0,
                ToTensorFlow(InvalidArgument("step: got ", step, ", want 0 or more")));
    std::vector<TieredTable*> shards;
    OP_REQUIRES_OK(context, ToTensorFlow(TieredTables(table.shards, &shards)));
    OP_REQUIRES(context, !table.resource->is_reopening(),
                ToTensorFlow(FailedPrecondition(
                    "the rows of the last flush are not all there yet: see DynembReopen")));
    auto* const on_gpu = dynamic_cast<GpuTieredTable*>(table.in_place[0].get());
    OP_REQUIRES_OK(context, ToTensorFlow(Flush(
                                shards, table.strings.get(), table.resource->storage()->disk.get(),
                                step, [&](const std::function<Status()>& flush) {
                                  return on_gpu == nullptr ? flush() : on_gpu->WithAllBelow(flush);
                                })));
  }
};

class ReopenOp : public CatchingKernel {
 public:
  using CatchingKernel::CatchingKernel;
  void TryCompute(OpKernelContext* context) override {
    TableInput table;
    OP_REQUIRES_OK(context, GetTable(context, tensorflow::DT_INVALID, &table, CallLength::kLong));
    std::vector<TieredTable*> shards;
    OP_REQUIRES_OK(context, ToTensorFlow(TieredTables(table.shards, &shards)));
    const Tensor* shard_ids;
    OP_REQUIRES_OK(context, context->input("shard_ids", &shard_ids));
    std::vector<Key> next;
    OP_REQUIRES_OK(context,
                   ToTensorFlow(table.resource->Reopen(
                       {shard_ids->flat<int32_t>().data(), shard_ids->NumElements()}, &next)));
    Tensor* keys;
    OP_REQUIRES_OK(context, context->allocate_output(
                                0, TensorShape({static_cast<int64_t>(next.size())}), &keys));
    std::copy(next.begin(), next.end(), keys->flat<int64_t>().data());
  }
};

class DescribeOp : public CatchingKernel {
 public:
  using CatchingKernel::CatchingKernel;
  void TryCompute(OpKernelContext* context) override {
    TableInput table;
    OP_REQUIRES_OK(context, GetTable(context, tensorflow::DT_INVALID, &table));
    Tensor *name, *schema, *id;
    OP_REQUIRES_OK(context, context->allocate_output(0, TensorShape({}), &name));
    OP_REQUIRES_OK(context, context->allocate_output(1, TensorShape({}), &schema));
    OP_REQUIRES_OK(context, context->allocate_output(2, TensorShape({}), &id));
    name->scalar<tensorflow::tstring>()() = table.resource->name();
    schema->scalar<tensorflow::tstring>()() = table.schema.ToText();
    id->scalar<int64_t>()() = table.resource->id();
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
REGISTER_KERNEL_BUILDER(Name("DynembResetOptimizer").Device(tensorflow::DEVICE_CPU),
                        ResetOptimizerOp);
REGISTER_KERNEL_BUILDER(
    Name("DynembResetOptimizer").Device(tensorflow::DEVICE_GPU).HostMemory("table"),
    ResetOptimizerOp);
REGISTER_KERNEL_BUILDER(Name("DynembCounters").Device(tensorflow::DEVICE_CPU), CountersOp);
REGISTER_KERNEL_BUILDER(Name("DynembCounters")
                            .Device(tensorflow::DEVICE_GPU)
                            .HostMemory("table")
                            .HostMemory("names")
                            .HostMemory("counters")
                            .HostMemory("by_shard"),
                        CountersOp);
REGISTER_KERNEL_BUILDER(Name("DynembTakeEvicted").Device(tensorflow::DEVICE_CPU), TakeEvictedOp);
REGISTER_KERNEL_BUILDER(Name("DynembTakeEvicted")
                            .Device(tensorflow::DEVICE_GPU)
                            .HostMemory("table")
                            .HostMemory("keys")
                            .HostMemory("values")
                            .HostMemory("dropped"),
                        TakeEvictedOp);
REGISTER_KERNEL_BUILDER(Name("DynembTierStats").Device(tensorflow::DEVICE_CPU), TierStatsOp);
REGISTER_KERNEL_BUILDER(Name("DynembTierStats")
                            .Device(tensorflow::DEVICE_GPU)
                            .HostMemory("table")
                            .HostMemory("names")
                            .HostMemory("numbers"),
                        TierStatsOp);
REGISTER_KERNEL_BUILDER(Name("DynembFlush").Device(tensorflow::DEVICE_CPU), FlushOp);
REGISTER_KERNEL_BUILDER(
    Name("DynembFlush").Device(tensorflow::DEVICE_GPU).HostMemory("table").HostMemory("step"),
    FlushOp);
REGISTER_KERNEL_BUILDER(Name("DynembReopen").Device(tensorflow::DEVICE_CPU), ReopenOp);
REGISTER_KERNEL_BUILDER(Name("DynembDescribe").Device(tensorflow::DEVICE_CPU), DescribeOp);
REGISTER_KERNEL_BUILDER(Name("DynembDescribe")
                            .Device(tensorflow::DEVICE_GPU)
                            .HostMemory("table")
                            .HostMemory("name")
                            .HostMemory("schema")
                            .HostMemory("id"),
                        DescribeOp);
REGISTER_KERNEL_BUILDER(Name("DynembSize").Device(tensorflow::DEVICE_CPU), SizeOp);
REGISTER_KERNEL_BUILDER(Name("DynembSize")
                            .Device(tensorflow::DEVICE_GPU)
                            .HostMemory("table")
                            .HostMemory("rows")
                            .HostMemory("memory_bytes"),
                        SizeOp);

}  // namespace
}  // namespace dynemb

#include "cc/kernels/table_updates.h"

#include <memory>
#include <mutex>
#include <string>

#include "cc/core/lookup/bags.h"

namespace dynemb {

using tensorflow::OpInputList;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;

absl::Status TableUpdates::Init(OpKernelConstruction* context) {
  std::string rule;
  float slot_initial;
  TF_RETURN_IF_ERROR(context->GetAttr("dtype", &dtype_));
  TF_RETURN_IF_ERROR(context->GetAttr("rule", &rule));
  TF_RETURN_IF_ERROR(context->GetAttr("slot_initial", &slot_initial));
  TF_RETURN_IF_ERROR(context->GetAttr("limits", &limits_));
  TF_RETURN_IF_ERROR(context->GetAttr("limit_names", &limit_names_));
  return ToTensorFlow(MakeRuleSpec(rule, slot_initial, &rule_));
}

absl::Status TableUpdates::Get(OpKernelContext* context, std::vector<Update>* updates) const {
  OpInputList tables;
  const Tensor *hyper, *now;
  TF_RETURN_IF_ERROR(context->input_list("tables", &tables));
  TF_RETURN_IF_ERROR(context->input("hyper", &hyper));
  TF_RETURN_IF_ERROR(context->input("now", &now));
  updates->resize(tables.size());
  if (limits_.size() != updates->size() || limit_names_.size() != updates->size()) {
    return ToTensorFlow(InvalidArgument("limits and limit_names: got ", limits_.size(), " and ",
                                        limit_names_.size(), ", want one per table, ",
                                        updates->size()));
  }
  if (now->NumElements() != tables.size()) {
    return ToTensorFlow(InvalidArgument("now: got ", now->NumElements(),
                                        " numbers, want one per table, ", tables.size()));
  }
  if (hyper->dims() != 2 || hyper->dim_size(0) != tables.size()) {
    return ToTensorFlow(InvalidArgument("hyper: got shape ", hyper->shape().DebugString(),
                                        ", want a row per table, ", tables.size()));
  }
  const int64_t numbers = hyper->dim_size(1);
  for (int i = 0; i < tables.size(); ++i) {
    Update& update = (*updates)[i];
    update.hyper = {hyper->flat<double>().data() + i * numbers, numbers};
    TF_RETURN_IF_ERROR(GetTableOf(context, tables[i], &update.table));
    const DType held = update.table.schema.value_dtype;
    if (IsFloating(held) && GradientDType(held) != ToCore(dtype_)) {
      return ToTensorFlow(InvalidArgument("gradients: got ", Name(ToCore(dtype_)),
                                          " for a table of ", Name(held), ", want ",
                                          Name(GradientDType(held))));
    }
    update.stamp.now = now->flat<int64_t>()(i);
  }
  return absl::OkStatus();
}

absl::Status TableUpdates::Run(OpKernelContext* context, const DeviceContext& core,
                               std::vector<Update>* updates) const {
  std::vector<KeyStrings::Birth> births(updates->size());
  for (size_t i = 0; i < updates->size(); ++i) {
    const Update& update = (*updates)[i];
    std::unique_ptr<RowUpdater> checked;
    TF_RETURN_IF_ERROR(ToTensorFlow(
        MakeRowUpdater(rule_.name, update.table.schema.value_dtype, update.hyper, &checked)));
    TF_RETURN_IF_ERROR(BeginBirth(core, update.table, update.keys, &births[i]));
    const RuleSpec& attached = update.table.schema.rule;
    if (!attached.name.empty() && !(attached == rule_)) {
      // Refused, in the table's words; before another table gets slots.
      return ToTensorFlow(update.table.shards[0]->Attach(PoolContext(context), rule_));
    }
    if (limits_[i] >= 0) {
      TF_RETURN_IF_ERROR(CheckLimit(core, update, limits_[i], limit_names_[i]));
    }
  }
  const PoolContext on_host(context);
  std::vector<int64_t> sizes;
  for (const Update& update : *updates) {
    sizes.push_back(update.keys.size);
    for (const auto& shard : update.table.shards) {
      TF_RETURN_IF_ERROR(ToTensorFlow(shard->Attach(on_host, rule_)));
    }
  }
  std::mutex mutex;
  Status first;
  ForEachTable(core, sizes, [&](int64_t i, const Context& of_table) {
    const Update& update = (*updates)[i];
    const dynemb::Update how = {&rule_, update.hyper, update.scales};
    const Status status = ForEachShard(
        update.table, update.keys, update.routing, [&](Table* shard, const Batch& batch) {
          return shard->Apply(of_table, batch, update.gradients, how, update.stamp, Report());
        });
    if (status.ok()) return;
    std::lock_guard<std::mutex> lock(mutex);
    if (first.ok()) first = status;
  });
  return ToTensorFlow(first);
}

absl::Status TableUpdates::CheckLimit(const DeviceContext& core, const Update& update,
                                      int64_t limit, const std::string& name) {
  int64_t size = 0;
  for (const auto& shard : update.table.shards) size += shard->size();
  if (size + update.keys.size <= limit) return absl::OkStatus();
  std::vector<Key> copied, missing;
  Span<const Key> keys = update.keys;
  TF_RETURN_IF_ERROR(KeysToHost(core, &keys, &copied));
  TF_RETURN_IF_ERROR(ToTensorFlow(MissingKeys(update.table, keys, update.routing, &missing)));
  const int64_t more = static_cast<int64_t>(missing.size());
  if (more == 0 || size + more <= limit) return absl::OkStatus();
  return ToTensorFlow(
      ResourceExhausted(name, ": got ", more, " ids without a row, such as ", missing[0], ", for ",
                        size, " rows here that may be ", limit,
                        "; give a larger limit or an eviction (in a collection also a hash_size)"));
}

}  // namespace dynemb

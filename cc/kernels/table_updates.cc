#include "cc/kernels/table_updates.h"

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "cc/core/base/run_calls.h"
#include "cc/core/table/schema_change.h"
#include "cc/kernels/gpu_place.h"

namespace dynemb {

using tensorflow::OpInputList;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;

namespace {

// ForEachShard with the Admission of each shard, whose tables are in the memory of the keys, or
// with a sketch in the host's. One shard after the other: they share the candidates and the sketch.
Status ForEachShardOf(const TableUpdates::Update& update, const Admission& admission,
                      Span<const Key> keys,
                      const std::function<Status(Table*, const Batch&, const Admission&)>& call) {
  const bool on_host = keys.space == MemorySpace::kHost;
  const auto shards = [on_host](const TableInput& table) -> const Shards& {
    return on_host ? table.shards : table.in_place;
  };
  for (size_t s = 0; s < update.table.shards.size(); ++s) {
    Batch batch;
    batch.keys = keys;
    batch.select = update.routing.share(static_cast<int>(s));
    Admission of_shard = admission;
    if (update.candidates.resource != nullptr) {
      of_shard.candidates = shards(update.candidates)[0].get();
      of_shard.calls = update.candidates.resource->admission_calls();
    }
    if (update.sketch.resource != nullptr) {
      of_shard.candidates = update.candidates.shards[0].get();
      of_shard.sketch = update.sketch.shards[0].get();
    }
    DYNEMB_RETURN_IF_ERROR(call(shards(update.table)[s].get(), batch, of_shard));
  }
  return Status();
}

}  // namespace

absl::Status TableUpdates::Init(OpKernelConstruction* context) {
  std::string rule;
  float slot_initial;
  TF_RETURN_IF_ERROR(context->GetAttr("dtype", &dtype_));
  TF_RETURN_IF_ERROR(context->GetAttr("rule", &rule));
  TF_RETURN_IF_ERROR(context->GetAttr("slot_initial", &slot_initial));
  std::vector<std::string> admission;
  TF_RETURN_IF_ERROR(context->GetAttr("admission", &admission));
  for (const std::string& text : admission) {
    admission_.emplace_back();
    TF_RETURN_IF_ERROR(ToTensorFlow(AdmissionPolicy::Parse(text, &admission_.back())));
  }
  return ToTensorFlow(MakeOptimizerSpec(rule, slot_initial, &rule_));
}

absl::Status TableUpdates::Get(OpKernelContext* context, std::vector<Update>* updates) const {
  OpInputList tables;
  const Tensor *hyper, *now;
  TF_RETURN_IF_ERROR(context->input_list("tables", &tables));
  TF_RETURN_IF_ERROR(context->input("hyper", &hyper));
  TF_RETURN_IF_ERROR(context->input("now", &now));
  updates->resize(tables.size());
  if (admission_.size() != updates->size()) {
    return ToTensorFlow(InvalidArgument("admission: got ", admission_.size(),
                                        ", want one per table, ", updates->size()));
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
  TF_RETURN_IF_ERROR(Hold(context, updates));
  for (int i = 0; i < tables.size(); ++i) {
    Update& update = (*updates)[i];
    update.hyper = {hyper->flat<double>().data() + i * numbers, numbers};
    update.admission.policy = admission_[i];
    // The number of the step is a hyper-parameter of all rules.
    if (numbers > Hyper::kStep) {
      update.admission.step = static_cast<int64_t>(update.hyper[Hyper::kStep]);
    }
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

absl::Status TableUpdates::Hold(OpKernelContext* context, std::vector<Update>* updates) const {
  OpInputList tables, candidates;
  TF_RETURN_IF_ERROR(context->input_list("tables", &tables));
  TF_RETURN_IF_ERROR(context->input_list("candidates", &candidates));
  std::vector<const Tensor*> handles = TensorsOf(tables);
  for (const Tensor* handle : TensorsOf(candidates)) handles.push_back(handle);
  std::vector<TableInput> held;
  TF_RETURN_IF_ERROR(GetTablesOf(context, handles, false, &held));
  size_t next = updates->size();
  for (size_t i = 0; i < updates->size(); ++i) {
    Update& update = (*updates)[i];
    update.table = std::move(held[i]);
    if (admission_[i].kind != AdmissionPolicy::Kind::kMinCount) continue;
    if (next == held.size()) return ToTensorFlow(InvalidArgument("candidates: got too few"));
    update.candidates = std::move(held[next++]);
    const TableInput& counts = update.candidates;
    TF_RETURN_IF_ERROR(CheckCandidates(counts));
    if (!admission_[i].has_sketch()) continue;
    if (next == held.size()) return ToTensorFlow(InvalidArgument("candidates: got too few"));
    update.sketch = std::move(held[next++]);
    TF_RETURN_IF_ERROR(CheckSketch(update.sketch));
  }
  return absl::OkStatus();
}

absl::Status CheckCandidates(const TableInput& candidates) {
  const TableSchema& schema = candidates.schema;
  if (candidates.shards.size() == 1 && schema.dim == 1 && schema.value_dtype == DType::kFloat32) {
    return absl::OkStatus();
  }
  return ToTensorFlow(InvalidArgument("candidates: got ", candidates.shards.size(), " shards of ",
                                      Name(schema.value_dtype), ", dim ", schema.dim,
                                      ", want one of float32, dim 1"));
}

absl::Status CheckSketch(const TableInput& sketch) {
  if (sketch.shards.size() == 1) return ToTensorFlow(CountSketch::Check(sketch.schema));
  return ToTensorFlow(
      InvalidArgument("candidates: got a sketch of ", sketch.shards.size(), " shards, want one"));
}

absl::Status TableUpdates::SetAdmitted(const Tensor& admitted, Update* update) {
  update->admission.given = {admitted.flat<bool>().data(), admitted.NumElements(),
                             update->keys.space};
  const bool is_given = update->admission.policy.kind == AdmissionPolicy::Kind::kGiven;
  if (admitted.NumElements() == (is_given ? update->keys.size : 0)) return absl::OkStatus();
  return ToTensorFlow(
      InvalidArgument("admitted: got ", admitted.NumElements(), " for ", update->keys.size,
                      " keys of ", update->table.resource->name(),
                      ", want one for each; an admission's function gives a bool for "
                      "each key"));
}

absl::Status TableUpdates::CheckRoomOf(const DeviceContext& core, const Update& update) {
  if (update.admission.policy.admits_all()) {
    return CheckRoom(core, update.table, update.keys, update.routing);
  }
  const TableInput& table = update.table;
  if (!table.resource->refuses_when_full() || HasRoomFor(table, update.keys.size)) {
    return absl::OkStatus();
  }
  Span<const Key> keys = update.keys;
  std::vector<Key> copied;
  TF_RETURN_IF_ERROR(KeysToHost(core, &keys, &copied));
  Admission admission = update.admission;
  const int64_t flags = admission.given.size;
  const std::unique_ptr<bool[]> given(new bool[static_cast<size_t>(flags)]);
  if (flags > 0 && core.space != MemorySpace::kHost) {
    TF_RETURN_IF_ERROR(ToTensorFlow(CopyFromGpu(core, given.get(), admission.given.data, flags)));
    admission.given = {given.get(), flags};
  }
  std::vector<KeyOfShard> inserted;
  int s = 0;
  TF_RETURN_IF_ERROR(ToTensorFlow(ForEachShardOf(
      update, admission, keys, [&](Table* shard, const Batch& batch, const Admission& of_shard) {
        std::vector<Key> keys_of_shard;
        DYNEMB_RETURN_IF_ERROR(
            AppendAdmitted(HostContext(core), *shard, batch, of_shard, &keys_of_shard));
        for (const Key key : keys_of_shard) inserted.push_back({key, s});
        ++s;
        return Status();
      })));
  return CheckRoomFor(table, inserted);
}

absl::Status TableUpdates::Check(const DeviceContext& core, const std::vector<Update>& updates,
                                 std::vector<KeyStrings::PinGuard>* pins) const {
  for (size_t i = 0; i < updates.size(); ++i) {
    const Update& update = updates[i];
    std::unique_ptr<RowUpdater> checked;
    TF_RETURN_IF_ERROR(ToTensorFlow(
        MakeRowUpdater(rule_.name, update.table.schema.value_dtype, update.hyper, &checked)));
    TF_RETURN_IF_ERROR(PinStrings(core, update.table, update.keys, &(*pins)[i]));
    TableSchema schema = update.table.schema;
    TF_RETURN_IF_ERROR(ToTensorFlow(SetOptimizer(rule_, &schema)));
    TF_RETURN_IF_ERROR(CheckRoomOf(core, update));
  }
  return absl::OkStatus();
}

absl::Status TableUpdates::SetOptimizers(OpKernelContext* context,
                                         std::vector<Update>* updates) const {
  const OptimizerSpec of_candidates = CandidateOptimizer();
  std::vector<std::pair<tensorflow::core::RefCountPtr<TableResource>, const OptimizerSpec*>> wanted;
  for (Update& update : *updates) {
    wanted.emplace_back(std::move(update.table.resource), &rule_);
    if (update.candidates.resource != nullptr) {
      wanted.emplace_back(std::move(update.candidates.resource), &of_candidates);
    }
    // A change of schema waits for all who hold the table.
    update.table = TableInput();
    update.candidates = TableInput();
    update.sketch = TableInput();
  }
  for (const auto& [resource, optimizer] : wanted) {
    TF_RETURN_IF_ERROR(
        ToTensorFlow(resource->shards()->SetOptimizer(PoolContext(context), *optimizer)));
  }
  return Hold(context, updates);
}

absl::Status TableUpdates::Prepare(OpKernelContext* context, const DeviceContext& core,
                                   std::vector<Update>* updates,
                                   std::vector<KeyStrings::PinGuard>* pins) const {
  *pins = std::vector<KeyStrings::PinGuard>(updates->size());
  TF_RETURN_IF_ERROR(Check(core, *updates, pins));
  // Once for each table; and again, if a restore has put other rows in place meanwhile.
  const auto untrained = [](const Update& update) {
    const TableInput& counts = update.candidates;
    return update.table.schema.rule.name.empty() ||
           (counts.resource != nullptr && counts.schema.rule.name.empty());
  };
  while (std::any_of(updates->begin(), updates->end(), untrained)) {
    *pins = std::vector<KeyStrings::PinGuard>(updates->size());
    TF_RETURN_IF_ERROR(SetOptimizers(context, updates));
    TF_RETURN_IF_ERROR(Check(core, *updates, pins));
  }
  return absl::OkStatus();
}

absl::Status TableUpdates::Run(OpKernelContext* context, const DeviceContext& core,
                               std::vector<Update>* updates) const {
  std::vector<KeyStrings::PinGuard> pins;
  TF_RETURN_IF_ERROR(Prepare(context, core, updates, &pins));
  if (core.space != MemorySpace::kHost) return ToTensorFlow(RunOnGpu(core, rule_, *updates));
  std::vector<int64_t> sizes;
  for (const Update& update : *updates) sizes.push_back(update.keys.size);
  return ToTensorFlow(RunCalls(core, sizes, [&](int64_t i, const Context& of_table) {
    return UpdateTable(of_table, rule_, (*updates)[i]);
  }));
}

Status TableUpdates::RunOnGpu(const Context& context, const OptimizerSpec& rule,
                              const std::vector<Update>& updates) {
  FirstError error;
  std::vector<ApplyOfTable> calls;
  for (const Update& update : updates) {
    if (!update.admission.policy.admits_all() || update.table.in_place.size() != 1) {
      error.Add(UpdateTable(context, rule, update));
      continue;
    }
    calls.push_back({static_cast<GpuTable*>(update.table.in_place[0].get()),
                     {update.keys, update.routing.share(0)},
                     update.gradients,
                     {&rule, update.hyper, update.scales},
                     update.stamp});
  }
  error.Add(ApplyInPlace(context, calls));
  return error.Or(Status());
}

Status TableUpdates::UpdateTable(const Context& context, const OptimizerSpec& rule,
                                 const Update& update) {
  const dynemb::Update how = {&rule, update.hyper, update.scales};
  if (update.admission.policy.admits_all()) {
    return ForEachShard(context, update.table, update.keys, update.routing,
                        [&](const Context& of_shard, Table* shard, const Batch& batch) {
                          return shard->Apply(of_shard, batch, update.gradients, how, update.stamp,
                                              Report());
                        });
  }
  return ForEachShardOf(update, update.admission, update.keys,
                        [&](Table* shard, const Batch& batch, const Admission& admission) {
                          int64_t declined;
                          const Status status =
                              ApplyAdmittedInPlace(shard, context, batch, update.gradients, how,
                                                   update.stamp, admission, &declined);
                          update.table.resource->AddNotAdmitted(declined);
                          return status;
                        });
}

}  // namespace dynemb

// Calls of several tables on a GPU whose kernels work for all of them.
#include <algorithm>
#include <functional>
#include <mutex>
#include <type_traits>

#include "cc/core/base/run_calls.h"
#include "cc/gpu/table/gpu_table_impl.h"
#include "cc/gpu/table/group_batch.h"
#include "cc/gpu/table/launches.cu.h"

namespace dynemb {

template <typename F>
Status GpuTableOfMemory::InTurnOfAll(const Context& context,
                                     std::vector<const GpuTableOfMemory*> tables, bool writes,
                                     const F& call) {
  const GpuTableOfMemory* const first = tables[0];
  // Always in the same order, so that no two calls wait for each other.
  std::sort(tables.begin(), tables.end(), std::less<>());
  tables.erase(std::unique(tables.begin(), tables.end()), tables.end());
  std::vector<std::unique_lock<FairSharedMutex>> locks;
  for (const GpuTableOfMemory* table : tables) locks.emplace_back(table->mutex_);
  const DeviceGuard guard(first->device_);
  for (const GpuTableOfMemory* table : tables) {
    DYNEMB_RETURN_IF_ERROR(table->order_.Begin(context, writes));
  }
  Status status = OrNoMemory(call);
  for (const GpuTableOfMemory* table : tables) {
    const Status ended = OrNoMemory([&] { return table->order_.End(context, writes); });
    if (status.ok()) status = ended;
  }
  return status;
}

Status GpuTableOfMemory::FindBags(const Context& context, const DeviceBags& bags, Rows out) const {
  DYNEMB_RETURN_IF_ERROR(CheckBags(context, bags, out));
  const BagsOfTable call = {this, bags, out};
  return FindBagsInOne(context, {&call});
}

Status GpuTableOfMemory::FindBagsInOne(const Context& context,
                                       const std::vector<const BagsOfTable*>& calls) {
  std::vector<const GpuTableOfMemory*> tables;
  std::vector<int64_t> sizes;
  for (const BagsOfTable* call : calls) {
    tables.push_back(static_cast<const GpuTableOfMemory*>(call->table));
    sizes.push_back(call->out.count);
  }
  const TableSchema& schema = tables[0]->schema_;
  return InTurnOfAll(context, tables, false, [&] {
    return VisitDType(schema.value_dtype, [&](auto tag) -> Status {
      using V = typename decltype(tag)::type;
      if constexpr (std::is_integral_v<V>) {
        return Status();
      } else {
        using T = ComputeType<V>;
        std::vector<PoolBags<V>> bodies;
        for (size_t t = 0; t < calls.size(); ++t) {
          const DeviceBags& bags = calls[t]->bags;
          bodies.push_back({tables[t]->live_rows(), tables[t]->missing_values(), schema.dim,
                            bags.ids, bags.begins, bags.pooling == Pooling::kMean,
                            reinterpret_cast<const T*>(bags.weights), calls[t]->out,
                            tables[t]->counts_.reads()});
        }
        const int width = PoolBags<V>::Width(schema.dim);
        if (calls.size() == 1) return Launches(context).ForTiles<0>(bodies, sizes, width);
        Launches launches(context, &tables[0]->arguments_);
        DYNEMB_RETURN_IF_ERROR(launches.ForTiles<0>(bodies, sizes, width));
        return launches.Run();
      }
    });
  });
}

namespace {

template <typename Call>
using Groups = std::vector<std::vector<const Call*>>;

// The last group whose calls are `like` this one; null: none.
template <typename Call, typename Like>
std::vector<const Call*>* GroupOf(const Like& like, Groups<Call>* groups) {
  const auto group =
      std::find_if(groups->rbegin(), groups->rend(), [&](const auto& of) { return like(*of[0]); });
  return group == groups->rend() ? nullptr : &*group;
}
template <typename Call>
void AddTo(std::vector<const Call*>* group, const Call& call, Groups<Call>* groups) {
  if (group == nullptr) {
    groups->push_back({&call});
  } else {
    group->push_back(&call);
  }
}

bool HasSameValues(const GpuTable& a, const GpuTable& b) {
  return a.schema().value_dtype == b.schema().value_dtype && a.schema().dim == b.schema().dim &&
         a.device() == b.device();
}

}  // namespace

Status FindBagsOfTables(const Context& context, const std::vector<BagsOfTable>& calls) {
  FirstError error;
  Groups<BagsOfTable> groups;
  for (const BagsOfTable& call : calls) {
    const auto* table = dynamic_cast<const GpuTableOfMemory*>(call.table);
    if (table == nullptr) {
      error.Add(call.table->FindBags(context, call.bags, call.out));
      continue;
    }
    const Status checked = table->CheckBags(context, call.bags, call.out);
    error.Add(checked);
    if (!checked.ok()) continue;
    AddTo(GroupOf([&](const BagsOfTable& of) { return HasSameValues(*of.table, *table); }, &groups),
          call, &groups);
  }
  for (const auto& group : groups) {
    const Status found = GpuTableOfMemory::FindBagsInOne(context, group);
    if (group.size() == 1 || found.code() != Code::kResourceExhausted) {
      error.Add(found);
      continue;
    }
    // There was no memory for the arguments of all.
    for (const BagsOfTable* call : group) {
      error.Add(call->table->FindBags(context, call->bags, call->out));
    }
  }
  return error.Or(Status());
}

// Apply of tables without limits, which are in turn: what GpuTableOfMemory::Write is for one.
class GpuTableOfMemory::ApplyCalls {
 public:
  ApplyCalls(const Context& context, const std::vector<const ApplyOfTable*>& calls)
      : context_(context), calls_(calls) {
    for (const ApplyOfTable* call : calls) {
      tables_.push_back(static_cast<GpuTableOfMemory*>(call->table));
    }
  }

  Status Run(bool* begun) {
    *begun = false;
    Launches launches(context_, &tables_[0]->arguments_);
    DYNEMB_RETURN_IF_ERROR(MakeRoom());
    DYNEMB_RETURN_IF_ERROR(Note(&launches));
    const Status ran = launches.Run();
    *begun = launches.started() > before_insert_;
    if (!*begun) return ran;
    if (launches.started() < after_work_) TakeBack();
    // Whatever happens, what has been taken is counted.
    const bool counted = launches.started() == launches.noted();
    FirstError error;
    error.Add(ran);
    for (size_t t = 0; t < tables_.size(); ++t) {
      KnownCounts& counts = tables_[t]->counts_;
      error.Add(counted ? counts.Ended(context_, sizes_[t])
                        : counts.EndCall(context_, limits_[t], sizes_[t]));
    }
    if (ran.ok()) ReportFull(&error);
    return error.Or(Status());
  }

 private:
  Status MakeRoom() {
    for (size_t t = 0; t < tables_.size(); ++t) {
      sizes_.push_back(calls_[t]->batch.keys.size);
      int64_t limit;
      DYNEMB_RETURN_IF_ERROR(tables_[t]->MakeRoom(context_, sizes_[t], INT64_MAX, &limit));
      limits_.push_back(limit);
      may_be_full_.push_back(tables_[t]->counts_.most_rows() + sizes_[t] > limit);
    }
    return {};
  }

  // Notes the kernels, and takes the memory that they work in.
  Status Note(Launches* launches) {
    GpuTableOfMemory* const first = tables_[0];
    std::vector<Batch> batches;
    int64_t scratch_bytes = 0;
    for (size_t t = 0; t < tables_.size(); ++t) {
      batches.push_back(calls_[t]->batch);
      scratch_bytes += ApplyScratchBytes(tables_[t]->schema_, sizes_[t]);
    }
    std::vector<GroupedBatch> grouped;
    DYNEMB_RETURN_IF_ERROR(
        GroupBatches(batches, true, scratch_bytes, launches, &first->scratch_, &grouped));
    std::vector<FindHeads> find;
    std::vector<InsertHeads<AnyHead>> insert;
    std::vector<ApplyCall> apply;
    std::vector<CountWritten> written;
    std::vector<CountRows> ending;
    std::vector<int64_t> warps;
    const std::vector<int64_t> one_each(tables_.size(), 1);
    for (size_t t = 0; t < tables_.size(); ++t) {
      GpuTableOfMemory& table = *tables_[t];
      const Index& index = table.index_.view();
      RowCounts* const counts = table.counts_.there();
      find.push_back({grouped[t], {index, table.rows_.view(), Expiry()}});
      insert.push_back({grouped[t], index, counts, table.rows_.free_rows(), limits_[t], AnyHead()});
      apply.push_back(table.CallOf(grouped[t], calls_[t]->gradients, calls_[t]->update,
                                   table.Stamped(calls_[t]->stamp)));
      written.push_back({grouped[t], false, counts});
      ending.push_back(table.counts_.Ending(context_, limits_[t], sizes_[t]));
      warps.push_back(WarpsFor(context_, sizes_[t]));
    }
    DYNEMB_RETURN_IF_ERROR(launches->For(find, sizes_));
    before_insert_ = launches->noted();
    DYNEMB_RETURN_IF_ERROR(launches->ForTiles<kWarp>(insert, warps));
    DYNEMB_RETURN_IF_ERROR(ApplyRows(first->schema_, apply, launches, &first->scratch_));
    after_work_ = launches->noted();
    DYNEMB_RETURN_IF_ERROR(launches->ForTiles<kWarp>(written, warps));
    grouped_ = std::move(grouped);
    return launches->For(ending, one_each);
  }

  // A kernel has not been started, the one that writes the rows or one before it: keys must not
  // have rows with anything in them.
  void TakeBack() const {
    for (size_t t = 0; t < tables_.size(); ++t) {
      static_cast<void>(
          ForEach(context_, sizes_[t], RemoveInserted{grouped_[t], tables_[t]->index_.view()}));
      static_cast<void>(tables_[t]->counts_.ForgetTaken(context_));
    }
  }

  void ReportFull(FirstError* error) const {
    for (size_t t = 0; t < tables_.size(); ++t) {
      if (may_be_full_[t]) error->Add(tables_[t]->SayWhetherFull(context_));
    }
  }

  const Context& context_;
  const std::vector<const ApplyOfTable*>& calls_;
  std::vector<GpuTableOfMemory*> tables_;
  std::vector<int64_t> sizes_, limits_;
  std::vector<bool> may_be_full_;
  std::vector<GroupedBatch> grouped_;
  int64_t before_insert_ = 0, after_work_ = 0;  // noted launches
};

bool GpuTableOfMemory::AppliesInOne(const ApplyOfTable& call) const {
  return max_rows_ < 0 && !expires() && call.batch.select == nullptr &&
         call.update.if_missing == IfMissing::kInsert;
}

Status GpuTableOfMemory::ApplyInOne(const Context& context,
                                    const std::vector<const ApplyOfTable*>& calls, bool* begun) {
  *begun = false;
  std::vector<const GpuTableOfMemory*> tables;
  for (const ApplyOfTable* call : calls) {
    tables.push_back(static_cast<const GpuTableOfMemory*>(call->table));
  }
  return InTurnOfAll(context, tables, true, [&] { return ApplyCalls(context, calls).Run(begun); });
}

Status ApplyToTables(const Context& context, const std::vector<ApplyOfTable>& calls) {
  FirstError error;
  const auto apply_alone = [&](const ApplyOfTable& call) {
    error.Add(
        call.table->Apply(context, call.batch, call.gradients, call.update, call.stamp, Report()));
  };
  Groups<ApplyOfTable> groups;
  const auto apply_groups = [&] {
    for (const auto& group : groups) {
      bool begun = false;
      if (group.size() > 1) {
        const Status applied = GpuTableOfMemory::ApplyInOne(context, group, &begun);
        if (begun || applied.ok()) {
          error.Add(applied);
          continue;
        }
      }
      // Alone, or there was no memory to work on all at once.
      for (const ApplyOfTable* call : group) apply_alone(*call);
    }
    groups.clear();
  };
  const auto has_table = [](const std::vector<const ApplyOfTable*>& group, const Table* table) {
    return std::any_of(group.begin(), group.end(),
                       [&](const ApplyOfTable* of) { return of->table == table; });
  };
  for (const ApplyOfTable& call : calls) {
    const auto* table = dynamic_cast<const GpuTableOfMemory*>(call.table);
    const bool can =
        table != nullptr && table->AppliesInOne(call) &&
        table->CheckApply(context, call.batch, call.gradients, call.update, call.stamp, Report())
            .ok();
    if (!can) {
      // After the table's calls before it.
      if (std::any_of(groups.begin(), groups.end(),
                      [&](const auto& group) { return has_table(group, call.table); })) {
        apply_groups();
      }
      apply_alone(call);
      continue;
    }
    auto* group = GroupOf(
        [&](const ApplyOfTable& of) {
          return HasSameValues(*of.table, *table) &&
                 of.table->schema().rule == table->schema().rule;
        },
        &groups);
    // A table's further calls come in further groups, in their order.
    if (group != nullptr && has_table(*group, call.table)) group = nullptr;
    AddTo(group, call, &groups);
  }
  apply_groups();
  return error.Or(Status());
}

}  // namespace dynemb

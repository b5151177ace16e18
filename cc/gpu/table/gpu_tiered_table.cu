#include <algorithm>
#include <map>
#include <mutex>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "cc/core/base/fair_shared_mutex.h"
#include "cc/core/base/hash.h"
#include "cc/core/base/no_memory.h"
#include "cc/core/storage/tier_changes.h"
#include "cc/core/table/call_checks.h"
#include "cc/gpu/for_each.cu.h"
#include "cc/gpu/table/admit_rows.h"
#include "cc/gpu/table/call_in_parts.h"
#include "cc/gpu/table/device_guard.h"
#include "cc/gpu/table/gpu_tiered_table.h"
#include "cc/gpu/table/gpu_tiers.h"
#include "cc/gpu/table/stream_order.h"
#include "cc/gpu/table/write_rows.cu.h"

namespace dynemb {
namespace {

class Tiered final : public GpuTieredTable {
 public:
  Tiered(std::unique_ptr<GpuTiers> tiers, std::shared_ptr<TierChanges> changes,
         DeviceMemory* memory)
      : tiers_(std::move(tiers)),
        changes_(std::move(changes)),
        memory_(memory),
        schema_(tiers_->above()->schema()),
        layout_(schema_),
        device_(tiers_->above()->device()),
        scratch_(memory),
        admitter_(memory) {}
  ~Tiered() override {
    at_end_.emplace(device_);
    static_cast<void>(order_.WaitForAll());
  }

  MemorySpace space() const override { return memory_->space(); }
  const TableSchema& schema() const override { return schema_; }

  Status Find(const Context& context, const Batch& batch, Rows values,
              const Report& report) const override {
    return Read(context, batch, report, [&](const Batch& part, const Report& of_part) {
      return tiers_->above()->Find(context, part, values, of_part);
    });
  }

  Status ReadRows(const Context& context, const Batch& batch, const RowParts& rows,
                  const Report& report) const override {
    return Read(context, batch, report, [&](const Batch& part, const Report& of_part) {
      return tiers_->above()->ReadRows(context, part, rows, of_part);
    });
  }

  Status FindBags(const Context& context, const DeviceBags& bags, Rows out) const override {
    Batch batch;
    batch.keys = bags.ids;
    DYNEMB_RETURN_IF_ERROR(CheckBatch(context, batch, Report(), space()));
    return InTurn(context, [&]() -> Status {
      bool fits;
      DYNEMB_RETURN_IF_ERROR(tiers_->MakeResident(context, batch, false, &fits));
      if (fits) return tiers_->above()->FindBags(context, bags, out);
      return ResourceExhausted(
          "DeviceMemory(max_bytes): the bags of one call have more distinct ids than the ",
          tiers_->above()->max_rows(),
          " rows that there is room for on the GPU; want a larger max_bytes, or smaller batches");
    });
  }

  Status Apply(const Context& context, const Batch& batch, ConstRows gradients,
               const Update& update, const Stamp& stamp, const Report& report) override {
    const RowInserts inserts = {update.if_missing == IfMissing::kInsert};
    return Call(context, batch, report, inserts, DoneIsChange(),
                [&](const Batch& part, const Report& of_part) {
                  return tiers_->above()->Apply(context, part, gradients, update, stamp, of_part);
                });
  }

  Status ApplyAdmitted(const Context& context, const Batch& batch, ConstRows gradients,
                       const Update& update, const Stamp& stamp, const Admission& admission,
                       int64_t* declined) override {
    *declined = 0;
    DYNEMB_RETURN_IF_ERROR(CheckBatch(context, batch, Report(), space()));
    DYNEMB_RETURN_IF_ERROR(CheckAdmission(batch, admission, space()));
    if (admission.policy.admits_all()) {
      return Apply(context, batch, gradients, update, stamp, Report());
    }
    const DeviceGuard guard(device_);
    return admitter_.Apply(context, this, batch, gradients, update, stamp, admission, declined);
  }

  Status Upsert(const Context& context, const Batch& batch, ConstRows values, const Stamp& stamp,
                const Report& report) override {
    return Call(context, batch, report, {true}, DoneIsChange(),
                [&](const Batch& part, const Report& of_part) {
                  return tiers_->above()->Upsert(context, part, values, stamp, of_part);
                });
  }

  Status Accumulate(const Context& context, const Batch& batch, ConstRows values_or_deltas,
                    Span<const bool> exists, const Stamp& stamp, const Report& report) override {
    DYNEMB_RETURN_IF_ERROR(CheckBatch(context, batch, report, space()));
    DYNEMB_RETURN_IF_ERROR(CheckExists(batch, exists, space()));
    std::vector<char> seen;
    if (changes_->tracking() || tiers_->options().max_rows >= 0) {
      DYNEMB_RETURN_IF_ERROR(OrNoMemory([&]() -> Status {
        seen.resize(static_cast<size_t>(exists.size));
        DYNEMB_RETURN_IF_ERROR(CopyAny(context, seen.data(), exists.data, exists.size));
        return Wait(context);
      }));
    }
    const auto changed = [&](int64_t position, Outcome outcome) {
      if (seen.empty()) return IsDone(outcome);  // tracking has begun since
      return outcome == Outcome::kInserted ||
             (outcome == Outcome::kFound && seen[static_cast<size_t>(position)] != 0);
    };
    return Call(context, batch, report, {true, &seen}, changed,
                [&](const Batch& part, const Report& of_part) {
                  return tiers_->above()->Accumulate(context, part, values_or_deltas, exists, stamp,
                                                     of_part);
                });
  }

  Status Erase(const Context& context, const Batch& batch, const Report& report) override {
    return Call(
        context, batch, report, {false},
        [](int64_t, Outcome outcome) { return outcome == Outcome::kFound; },
        [&](const Batch& part, const Report& of_part) {
          return tiers_->above()->Erase(context, part, of_part);
        });
  }

  Status InsertRows(const Context& context, const Batch& batch, const ConstRowParts& rows,
                    const RowParts& displaced, const Report& report) override {
    return Call(context, batch, report, {true, nullptr, &rows}, DoneIsChange(),
                [&](const Batch& part, const Report& of_part) {
                  return tiers_->above()->InsertRows(context, part, rows, displaced, of_part);
                });
  }

  Status Clear(const Context& context) override {
    DYNEMB_RETURN_IF_ERROR(CheckContext(context, space()));
    return InTurn(context, [&] {
      changes_->Forget();
      exported_.clear();
      return tiers_->Clear(context);
    });
  }

  // The room above is there.
  Status Reserve(const Context& context, int64_t rows) override {
    DYNEMB_RETURN_IF_ERROR(CheckContext(context, space()));
    if (rows < 0) return InvalidArgument("rows: got ", rows, ", want 0 or more");
    return InTurn(context, [&] { return tiers_->below()->Reserve(GpuTiers::Below(), rows); });
  }

  Status Export(const Context& context, Cursor* cursor, const RowParts& out,
                int64_t* rows) const override {
    DYNEMB_RETURN_IF_ERROR(CheckContext(context, space()));
    DYNEMB_RETURN_IF_ERROR(CheckExport(layout_, out, space()));
    DYNEMB_RETURN_IF_ERROR(CheckTablePart(*cursor));
    return InTurn(context, [&] { return ExportNext(context, cursor, out, rows); });
  }

  Status Histogram(const Context& context, MetaField field, const RowOrder& prefix, int prefix_bits,
                   Span<int64_t> counts) const override {
    DYNEMB_RETURN_IF_ERROR(CheckContext(context, space()));
    return InTurn(context, [&]() -> Status {
      DYNEMB_RETURN_IF_ERROR(
          tiers_->above()->Histogram(context, field, prefix, prefix_bits, counts));
      const int64_t bytes = counts.size * static_cast<int64_t>(sizeof(int64_t));
      std::vector<int64_t> all(static_cast<size_t>(counts.size));
      DYNEMB_RETURN_IF_ERROR(CopyAny(context, all.data(), counts.data, bytes));
      DYNEMB_RETURN_IF_ERROR(Wait(context));
      DYNEMB_RETURN_IF_ERROR(
          tiers_->below()->Histogram(GpuTiers::Below(), field, prefix, prefix_bits, all));
      DYNEMB_RETURN_IF_ERROR(CopyAny(context, counts.data, all.data(), bytes));
      return Wait(context);
    });
  }

  Status EraseBelow(const Context& context, MetaField field, const RowOrder& bound,
                    int64_t* erased) override {
    DYNEMB_RETURN_IF_ERROR(CheckContext(context, space()));
    DYNEMB_RETURN_IF_ERROR(CheckMetaField(layout_, field));
    return InTurn(context, [&]() -> Status {
      DYNEMB_RETURN_IF_ERROR(tiers_->RemoveExpired());  // of which these are none
      std::vector<Key> gone;
      const bool tracking = changes_->tracking();
      const Status status = OrNoMemory(
          [&] { return tiers_->EraseBelow(field, bound, tracking ? &gone : nullptr, erased); });
      if (!status.ok()) changes_->Forget();  // what has gone may be unknown
      Batch batch;
      batch.keys = gone;
      changes_->Note(batch, tiers_->size(), [](int64_t) { return true; });
      return status;
    });
  }

  Status BeginEpoch(const Context& context, int64_t epoch) override {
    DYNEMB_RETURN_IF_ERROR(CheckContext(context, space()));
    return InTurn(context, [&]() -> Status {
      if (epoch <= changes_->epoch()) return EpochNotLater(epoch, changes_->epoch());
      changes_->BeginEpoch(epoch, tiers_->size());
      return {};
    });
  }
  int64_t epoch() const override { return changes_->epoch(); }

  Status ChangedKeys(const Context& context, int64_t since, const TablePart& part,
                     std::vector<Key>* keys) const override {
    DYNEMB_RETURN_IF_ERROR(CheckContext(context, space()));
    DYNEMB_RETURN_IF_ERROR(CheckTablePart(part));
    return InTurn(context, [&]() -> Status {
      keys->clear();
      if (changes_->Since(since, part, keys)) return {};
      keys->clear();
      return ChangesNotKnown(since);
    });
  }
  void TrimChanges(const std::vector<int64_t>& positions) override {
    const std::lock_guard<FairSharedMutex> lock(mutex_);
    changes_->Trim(positions);
  }

  Status PrepareMove(const Context& context, const TableSchema& schema,
                     std::unique_ptr<RowMove>* move) override {
    DYNEMB_RETURN_IF_ERROR(CheckContext(context, space()));
    DYNEMB_RETURN_IF_ERROR(CheckMove(schema_, schema));
    return InTurn(context, [&]() -> Status {
      auto made = std::make_unique<Move>(this);
      DYNEMB_RETURN_IF_ERROR(tiers_->PrepareSchema(schema, &made->next));
      made->to = std::make_unique<Tiered>(this, *made->next.tiers);
      *move = std::move(made);
      return {};
    });
  }

  Status RemoveExpired(const Context& context) override {
    DYNEMB_RETURN_IF_ERROR(CheckContext(context, space()));
    return InTurn(context, [&] { return tiers_->RemoveExpired(); });
  }

  int64_t size() const override {
    return Asked([&] { return tiers_->size(); });
  }
  int64_t room() const override {
    return Asked([&] { return std::max<int64_t>(tiers_->room(), 0); });
  }
  int64_t max_rows() const override { return tiers_->max_rows(); }
  EvictedRows* evicted() const override { return tiers_->options().evicted.get(); }
  TableCounters counters() const override {
    return Asked([&] { return tiers_->counters(); });
  }
  int64_t memory_bytes() const override {
    return Asked([&] { return tiers_->memory_bytes() + changes_->memory_bytes(); });
  }
  int device() const override { return device_; }
  int64_t index_cells() const override { return tiers_->above()->index_cells(); }
  Table* below() const override { return tiers_->below(); }
  Status WithAllBelow(const std::function<Status()>& work) override {
    return Asked([&]() -> Status {
      const Status down = OrNoMemory([&] { return tiers_->AllDown(); });
      NoteGone();
      return down.ok() ? work() : down;
    });
  }
  GpuTierStats gpu_tier_stats() const override {
    return Asked([&] {
      GpuTierStats stats;
      stats.rows_on_device = tiers_->above()->size();
      stats.bytes_on_device = tiers_->above()->memory_bytes();
      stats.device_misses = tiers_->misses();
      stats.rows_left_device = tiers_->rows_left();
      return stats;
    });
  }

  // The table of a move, which gets its tiers when the move runs.
  Tiered(const Tiered* from, const GpuTiers& next)
      : changes_(from->changes_),
        memory_(from->memory_),
        schema_(next.above()->schema()),
        layout_(schema_),
        device_(from->device_),
        scratch_(memory_),
        admitter_(memory_) {}

 private:
  struct Move final : public RowMove {
    explicit Move(Tiered* table) : from(table) {}
    std::unique_ptr<Table> Run(const Context&) override {
      const std::lock_guard<FairSharedMutex> lock(from->mutex_);
      const DeviceGuard guard(from->device_);
      to->tiers_ = from->tiers_->TakeNext(std::move(next));
      return std::move(to);
    }
    Tiered* const from;
    GpuTiers::Next next;
    std::unique_ptr<Tiered> to;
  };

  struct NoChange {
    bool operator()(int64_t, Outcome) const { return false; }
  };
  struct DoneIsChange {
    bool operator()(int64_t, Outcome outcome) const { return IsDone(outcome); }
  };

  template <typename F>
  Status InTurn(const Context& context, const F& call) const {
    const std::lock_guard<FairSharedMutex> lock(mutex_);
    const DeviceGuard guard(device_);
    DYNEMB_RETURN_IF_ERROR(order_.Begin(context, true));
    const Status status = OrNoMemory(call);
    NoteGone();
    const Status ended = order_.End(context, true);
    return status.ok() ? ended : status;
  }
  template <typename F>
  std::invoke_result_t<F> Asked(const F& ask) const {
    const std::lock_guard<FairSharedMutex> lock(mutex_);
    const DeviceGuard guard(device_);
    return ask();
  }

  // Calls that only read are made above first: mostly that is all.
  template <typename Op>
  Status Read(const Context& context, const Batch& batch, const Report& report,
              const Op& op) const {
    DYNEMB_RETURN_IF_ERROR(CheckBatch(context, batch, report, space()));
    return InTurn(context, [&]() -> Status {
      bool found;
      const Status read = tiers_->ReadAbove(context, batch, report, op, &found);
      if (!read.ok()) return SayFull(context, batch, report, read);
      return found ? Status() : CallInTurn(context, batch, report, {false}, NoChange(), op);
    });
  }

  // The frame of all calls by key: op(batch, report) does it above. changed(position, outcome):
  // whether that is a change.
  template <typename Changed, typename Op>
  Status Call(const Context& context, const Batch& batch, const Report& report,
              const RowInserts& inserts, const Changed& changed, const Op& op) const {
    DYNEMB_RETURN_IF_ERROR(CheckBatch(context, batch, report, space()));
    return InTurn(context, [&] {
      const Status status = CallInTurn(context, batch, report, inserts, changed, op);
      // What the call was for has been done; after an error rows leave at another one.
      static_cast<void>(OrNoMemory(
          [&] { return tiers_->SweepExpiredBelow(Entries(batch).most, inserts.missing_keys); }));
      return status;
    });
  }
  template <typename Changed, typename Op>
  Status CallInTurn(const Context& context, const Batch& batch, const Report& report,
                    const RowInserts& inserts, const Changed& changed, const Op& op) const {
    const bool notes = changes_->tracking() && !std::is_same_v<Changed, NoChange>;
    bool fits = true, within_limit = true;
    Report noted = report;
    Status status = OrNoMemory([&]() -> Status {
      if (notes) DYNEMB_RETURN_IF_ERROR(WithOutcomes(context, batch, &noted));
      return tiers_->MakeResident(context, batch, inserts.missing_keys, &fits, &within_limit);
    });
    if (!status.ok()) return SayFull(context, batch, report, status);
    if (!within_limit || !fits) {
      return InParts(context, batch, report, inserts, changed, op, within_limit);
    }
    status = op(batch, noted);
    if (notes && (status.ok() || status.code() == Code::kResourceExhausted)) {
      Note(context, batch, noted, changed);
    }
    return status;
  }

  template <typename Changed>
  Status InParts(const Context& context, const Batch& batch, const Report& report,
                 const RowInserts& inserts, const Changed& changed, const CallInParts::Op& op,
                 bool within_limit) const {
    CallInParts call(context, batch, report, inserts, op, tiers_.get(), &scratch_);
    Status status = OrNoMemory([&] { return call.Begin(); });
    if (status.ok()) {
      status = OrNoMemory([&] { return within_limit ? call.WriteAll() : call.WriteWithinLimit(); });
    }
    if (!status.ok() && !call.has_begun()) return SayFull(context, batch, report, status);
    // Keys that have been declined are no changes.
    if (changes_->tracking() && !std::is_same_v<Changed, NoChange>) {
      Note(context, batch, call.full_report(), changed);
    }
    const Status reported = OrNoMemory([&] { return call.ReportTo(report); });
    return status.ok() ? reported : status;
  }

  // A report that has outcomes.
  Status WithOutcomes(const Context& context, const Batch& batch, Report* report) const {
    const int64_t n = batch.keys.size;
    if (!report->outcomes.empty() || n == 0) return {};
    DYNEMB_RETURN_IF_ERROR(scratch_.Begin(
        context,
        Scratch::Bytes<Outcome>(n) + Scratch::Bytes<int64_t>(n) + Scratch::Bytes<int64_t>(1)));
    report->outcomes = {scratch_.Take<Outcome>(n), n, context.space};
    return {};
  }

  // Nothing has been done to any key, which is reported.
  static Status SayFull(const Context& context, const Batch& batch, const Report& report,
                        const Status& error) {
    if (error.code() != Code::kResourceExhausted) return error;
    const Entries entries(batch);
    const Reports reports(report);
    if (reports.miss_count != nullptr) {
      DYNEMB_RETURN_IF_ERROR(FillBytes(context, reports.miss_count, 0, sizeof(int64_t)));
    }
    DYNEMB_RETURN_IF_ERROR(ForEach(context, entries.most, ReportFull{entries, reports}));
    return error;
  }

  // Notes what a call has changed. Without memory for that the changes of this epoch are not known.
  template <typename Changed>
  void Note(const Context& context, const Batch& batch, const Report& report,
            const Changed& changed) const {
    const Status noted = OrNoMemory([&]() -> Status {
      std::vector<Key> keys;
      std::vector<int64_t> positions;
      std::vector<Outcome> outcomes;
      DYNEMB_RETURN_IF_ERROR(GpuTiers::ToHost(context, batch, &keys, &positions));
      DYNEMB_RETURN_IF_ERROR(GpuTiers::OutcomesToHost(context, report, &outcomes));
      Batch of_host;
      of_host.keys = keys;
      changes_->Note(of_host, tiers_->size(), [&](int64_t i) {
        const int64_t position = positions[static_cast<size_t>(i)];
        return changed(position, outcomes[static_cast<size_t>(position)]);
      });
      return {};
    });
    if (!noted.ok()) changes_->Forget();
  }
  // Notes the rows that have left by the policy.
  void NoteGone() const {
    if (!tiers_->evicts() && !tiers_->expires()) return;
    std::vector<Key> gone;
    bool knows_all = true;
    const Status taken = OrNoMemory([&] { knows_all = tiers_->TakeGone(&gone); });
    if (!taken.ok() || !knows_all) changes_->Forget();
    if (gone.empty() || !changes_->tracking()) return;
    Batch batch;
    batch.keys = gone;
    changes_->Note(batch, tiers_->size(), [](int64_t) { return true; });
  }

  // The rows in the order of their hashes, a 64th of these at a time, which no move between the
  // tiers changes. The keys of a part are listed when an export comes to it.
  Status ExportNext(const Context& context, Cursor* cursor, const RowParts& out,
                    int64_t* rows) const {
    constexpr int kPartBits = 6;
    static_assert(TierChanges::kParts == 1 << kPartBits);
    const int first = TierChanges::FirstPart(*cursor), end = TierChanges::EndPart(*cursor);
    uint64_t from = cursor->position[0];
    bool begins_part = false, done = cursor->done;
    if (cursor->position[1] == 0) {
      from = static_cast<uint64_t>(first) << (64 - kPartBits);
      begins_part = true;
      done = done || first == end;
    }
    int64_t n = 0;
    while (!done && n < out.keys.size) {
      const int part = static_cast<int>(from >> (64 - kPartBits));
      std::vector<uint64_t>* hashes;
      begins_part = begins_part || from == static_cast<uint64_t>(part) << (64 - kPartBits);
      DYNEMB_RETURN_IF_ERROR(HashesOf(part, begins_part, &hashes));
      begins_part = false;
      const auto next = std::lower_bound(hashes->begin(), hashes->end(), from);
      const int64_t some = std::min(hashes->end() - next, out.keys.size - n);
      std::vector<Key> keys;
      for (auto hash = next; hash != next + some; ++hash) {
        keys.push_back(static_cast<Key>(Unmix64(*hash)));
      }
      DYNEMB_RETURN_IF_ERROR(ExportThese(context, &keys, out, n));
      n += static_cast<int64_t>(keys.size());
      if (next + some != hashes->end()) {
        from = *(next + some);
        continue;
      }
      done = part + 1 >= end;
      from = static_cast<uint64_t>(part + 1) << (64 - kPartBits);
      exported_.erase(part);
    }
    cursor->position[0] = from;
    cursor->position[1] = 1;
    cursor->done = done;
    *rows = n;
    return {};
  }

  // Those of the keys of a part, ascending. A list that was made for another export will do, if it
  // was made since this one came to the part: what is there all the time is in it.
  Status HashesOf(int part, bool anew, std::vector<uint64_t>** hashes) const {
    const auto found = exported_.find(part);
    if (!anew && found != exported_.end()) {
      *hashes = &found->second;
      return {};
    }
    std::vector<Key> keys;
    DYNEMB_RETURN_IF_ERROR(tiers_->KeysOf(part, &keys));
    std::vector<uint64_t> listed;
    listed.reserve(keys.size());
    for (const Key key : keys) listed.push_back(Mix64(static_cast<uint64_t>(key)));
    std::sort(listed.begin(), listed.end());
    listed.erase(std::unique(listed.begin(), listed.end()), listed.end());
    *hashes = &(exported_[part] = std::move(listed));
    return {};
  }

  // Exports the rows of these keys, of those that are still there, from row n of `out` on.
  Status ExportThese(const Context& context, std::vector<Key>* keys, const RowParts& out,
                     int64_t n) const {
    if (keys->empty()) return {};
    GpuTiers::HostRows rows;
    DYNEMB_RETURN_IF_ERROR(tiers_->ReadRows(keys, &rows));
    const auto count = static_cast<int64_t>(keys->size());
    if (out.keys.data != nullptr) {
      DYNEMB_RETURN_IF_ERROR(CopyAny(context, out.keys.data + n, keys->data(),
                                     count * static_cast<int64_t>(sizeof(Key))));
    }
    const auto copy = [&](const Rows& to, const std::vector<char>& from, int64_t bytes) -> Status {
      if (to.data == nullptr || bytes == 0) return {};
      if (to.stride_bytes == bytes) return CopyAny(context, to[n], from.data(), count * bytes);
      for (int64_t i = 0; i < count; ++i) {
        DYNEMB_RETURN_IF_ERROR(CopyAny(context, to[n + i], from.data() + i * bytes, bytes));
      }
      return {};
    };
    DYNEMB_RETURN_IF_ERROR(copy(out.values, rows.values, layout_.value_bytes));
    DYNEMB_RETURN_IF_ERROR(copy(out.slots, rows.slots, layout_.slots_bytes));
    DYNEMB_RETURN_IF_ERROR(copy(out.meta, rows.meta, layout_.meta_bytes));
    return Wait(context);
  }

  std::optional<DeviceGuard> at_end_;  // while all members below give their memory back
  std::unique_ptr<GpuTiers> tiers_;
  const std::shared_ptr<TierChanges> changes_;
  DeviceMemory* const memory_;
  const TableSchema schema_;
  const RowLayout layout_;
  const int device_;
  mutable FairSharedMutex mutex_;
  mutable StreamOrder order_;
  mutable Scratch scratch_;
  mutable std::map<int, std::vector<uint64_t>> exported_;  // by part; see HashesOf
  RowAdmitter admitter_;
};

}  // namespace

Status MakeGpuTieredTable(const TableSchema& schema, const TableOptions& options,
                          const GpuBudget& budget, DeviceMemory* memory,
                          std::unique_ptr<Table> below, std::unique_ptr<GpuTieredTable>* table) {
  DYNEMB_RETURN_IF_ERROR(schema.Validate());
  DYNEMB_RETURN_IF_ERROR(options.Validate());
  if (options.max_bytes >= 0) {
    return InvalidArgument(
        "max_bytes: got ", options.max_bytes,
        " for a table with DeviceMemory, want none; give max_rows, or memory enough");
  }
  return OrNoMemory([&]() -> Status {
    TableOptions of_tiers = options;
    if (of_tiers.clock == nullptr) of_tiers.clock = std::make_shared<PolicyClock>();
    std::unique_ptr<GpuTiers> tiers;
    DYNEMB_RETURN_IF_ERROR(
        GpuTiers::Make(schema, of_tiers, budget, memory, std::move(below), &tiers));
    const auto changes = std::make_shared<TierChanges>();
    if (options.track_changes) changes->BeginEpoch(1, 0);
    *table = std::make_unique<Tiered>(std::move(tiers), changes, memory);
    return {};
  });
}

}  // namespace dynemb

// The calls that change rows of a table on a GPU by key.
#include <algorithm>
#include <memory>
#include <type_traits>
#include <vector>

#include "cc/core/optimizer/rule.h"
#include "cc/core/table/call_checks.h"
#include "cc/core/table/evictor.h"
#include "cc/gpu/table/apply_rows.h"
#include "cc/gpu/table/gpu_table_impl.h"
#include "cc/gpu/table/group_batch.h"

namespace dynemb {
namespace {

constexpr int64_t kCallsAhead = 6, kHeadroomBytes = int64_t{4} << 20;  // see Headroom
constexpr int kMostWaitsInVain = 2;

}  // namespace

Status GpuTableOfMemory::CheckApply(const Context& context, const Batch& batch,
                                    const ConstRows& gradients, const Update& update,
                                    const Stamp& stamp, const Report& report) const {
  DYNEMB_RETURN_IF_ERROR(CheckBatch(context, batch, report, space()));
  DYNEMB_RETURN_IF_ERROR(CheckValues("gradients", batch, gradients,
                                     GradientDType(schema_.value_dtype), schema_.dim, space()));
  DYNEMB_RETURN_IF_ERROR(CheckScales(batch, update, space()));
  DYNEMB_RETURN_IF_ERROR(CheckStamp(batch, stamp, space()));
  if (update.rule == nullptr) return InvalidArgument("update.rule: got none");
  std::unique_ptr<RowUpdater> checked;
  DYNEMB_RETURN_IF_ERROR(
      MakeRowUpdater(update.rule->name, schema_.value_dtype, update.hyper, &checked));
  return CheckOptimizer(schema_, *update.rule);
}

Status GpuTableOfMemory::Apply(const Context& context, const Batch& batch, ConstRows gradients,
                               const Update& update, const Stamp& stamp, const Report& report) {
  DYNEMB_RETURN_IF_ERROR(CheckApply(context, batch, gradients, update, stamp, report));
  return InTurn(context, true, [&] {
    const RowStamp stamped = Stamped(stamp);
    How how;
    how.in_order = true;
    how.scratch_bytes = ApplyScratchBytes(schema_, Entries(batch).most);
    const auto apply = [&](const GroupedBatch& grouped) {
      Launches launches(context);
      return ApplyRows(schema_, {CallOf(grouped, gradients, update, stamped)}, &launches,
                       &scratch_);
    };
    return update.if_missing == IfMissing::kInsert
               ? Write(context, batch, report, how, AnyHead(), apply)
               : Write(context, batch, report, how, NoHead(), apply);
  });
}

Status GpuTableOfMemory::Upsert(const Context& context, const Batch& batch, ConstRows values,
                                const Stamp& stamp, const Report& report) {
  DYNEMB_RETURN_IF_ERROR(CheckBatch(context, batch, report, space()));
  DYNEMB_RETURN_IF_ERROR(
      CheckValues("values", batch, values, schema_.value_dtype, schema_.dim, space()));
  DYNEMB_RETURN_IF_ERROR(CheckStamp(batch, stamp, space()));
  return InTurn(context, true, [&] {
    const RowStamp stamped = Stamped(stamp);
    How how;
    how.last_counts = true;
    return Write(context, batch, report, how, AnyHead(), [&](const GroupedBatch& grouped) {
      return ForEachHead(context, grouped, rows_.view(), marks(), RowWidth(),
                         UpsertHead{initial_slots(), stamped, layout_.value_bytes, values});
    });
  });
}

Status GpuTableOfMemory::Accumulate(const Context& context, const Batch& batch,
                                    ConstRows values_or_deltas, Span<const bool> exists,
                                    const Stamp& stamp, const Report& report) {
  DYNEMB_RETURN_IF_ERROR(CheckBatch(context, batch, report, space()));
  DYNEMB_RETURN_IF_ERROR(CheckValues("values_or_deltas", batch, values_or_deltas,
                                     schema_.value_dtype, schema_.dim, space()));
  DYNEMB_RETURN_IF_ERROR(CheckExists(batch, exists, space()));
  DYNEMB_RETURN_IF_ERROR(CheckStamp(batch, stamp, space()));
  return InTurn(context, true, [&] {
    const RowStamp stamped = Stamped(stamp);
    How how;
    how.in_order = how.each_reports = true;
    return Write(context, batch, report, how, UnseenHead{exists.data},
                 [&](const GroupedBatch& grouped) {
                   return VisitDType(schema_.value_dtype, [&](auto tag) {
                     using V = typename decltype(tag)::type;
                     return ForEachRow(
                         context, grouped.size,
                         AccumulateHeads<V>{grouped, rows_.view(), marks(), initial_slots(),
                                            stamped, schema_.dim, values_or_deltas, exists.data});
                   });
                 });
  });
}

Status GpuTableOfMemory::Erase(const Context& context, const Batch& batch, const Report& report) {
  DYNEMB_RETURN_IF_ERROR(CheckBatch(context, batch, report, space()));
  return InTurn(context, true, [&]() -> Status {
    FreedRows freed;
    const Status begun = BeginErasing(context, Entries(batch).most, &freed);
    if (!begun.ok()) return SayFull(context, Entries(batch), Reports(report), begun);
    return Write(context, batch, report, {}, NoHead(), [&](const GroupedBatch& grouped) {
      return ForEach(context, grouped.size, EraseHeads{grouped, index_.view(), freed});
    });
  });
}

Status GpuTableOfMemory::InsertRows(const Context& context, const Batch& batch,
                                    const ConstRowParts& rows, const RowParts& displaced,
                                    const Report& report) {
  DYNEMB_RETURN_IF_ERROR(CheckBatch(context, batch, report, space()));
  DYNEMB_RETURN_IF_ERROR(CheckRowsToInsert(layout_, batch, rows, space()));
  DYNEMB_RETURN_IF_ERROR(CheckRowsToRead(layout_, batch, displaced, space()));
  const bool displaces = displaced.keys.data != nullptr || displaced.values.data != nullptr ||
                         displaced.slots.data != nullptr || displaced.meta.data != nullptr;
  return InTurn(context, true, [&]() -> Status {
    // Rows come with scores: those of the table and of the batch leave by them together.
    How how;
    how.last_counts = how.whole_rows = true;
    const bool times = options_.eviction.uses_time();
    const InsertRow insert = {
        layout_, rows, times ? layout_.meta_field[static_cast<int>(MetaField::kLastWriteTime)] : -1,
        options_.eviction, &counts_.there()->latest};
    static const int64_t none = INT64_MIN;
    if (times) {
      DYNEMB_RETURN_IF_ERROR(CopyAny(context, insert.latest, &none, sizeof(none)));
    }
    const Status written =
        Write(context, batch, report, how, AnyHead(), [&](const GroupedBatch& grouped) -> Status {
          if (displaces) {
            DYNEMB_RETURN_IF_ERROR(ForEachRow(
                context, grouped.size, DisplaceRows{grouped, rows_.view(), layout_, displaced}));
          }
          return ForEachHead(context, grouped, rows_.view(), marks(), RowWidth(), insert);
        });
    if (!times) return written;
    const Status noted = NoteLatestTime(context);
    return written.ok() ? noted : written;
  });
}

Status GpuTableOfMemory::ApplyAdmitted(const Context& context, const Batch& batch,
                                       ConstRows gradients, const Update& update,
                                       const Stamp& stamp, const Admission& admission,
                                       int64_t* declined) {
  *declined = 0;
  DYNEMB_RETURN_IF_ERROR(CheckBatch(context, batch, Report(), space()));
  DYNEMB_RETURN_IF_ERROR(CheckAdmission(batch, admission, space()));
  if (admission.policy.admits_all()) {
    return Apply(context, batch, gradients, update, stamp, Report());
  }
  const DeviceGuard guard(device_);
  return admitter_.Apply(context, this, batch, gradients, update, stamp, admission, declined);
}

RowStamp GpuTableOfMemory::Stamped(Stamp stamp) {
  const EvictionPolicy& policy = options_.eviction;
  if (policy.uses_time()) stamp.now = options_.clock->Stamp(stamp.now);
  RowStamp stamped(layout_, stamp);
  if (policy.adds_writes()) {
    stamped.score = layout_.meta_field[static_cast<int>(MetaField::kScore)];
    stamped.write = policy.WriteAt(stamp.now);
    stamped.order = policy.order;
  }
  if (policy.half_life > 0 || policy.adds_scores()) stamped.logs = decay_logs_.as<DecayLogs>();
  if (policy.takes_scores()) {
    stamped.given = layout_.meta_field[static_cast<int>(MetaField::kScore)];
    stamped.first_score = policy.first_score();
    if (!stamp.scores.empty()) stamped.scores = stamp.scores.data;
  }
  return stamped;
}

Status GpuTableOfMemory::NoteLatestTime(const Context& context) {
  RowCounts counts;
  DYNEMB_RETURN_IF_ERROR(counts_.Read(context, &counts));
  options_.clock->Advance(counts.latest);
  return {};
}

Status GpuTableOfMemory::LoadKernels(const Context& context) {
  // CUDA loads a kernel when it is first called, which takes memory.
  DYNEMB_RETURN_IF_ERROR(ForEach(context, 1, RemoveInserted{GroupedBatch(), index_.view()}));
  DYNEMB_RETURN_IF_ERROR(ForEach(context, 1, ReportFull{Entries(), Reports()}));
  return counts_.EndCall(context, 0, 0);
}

// The frame of all calls that change rows by key: groups the batch, finds its keys, inserts those
// that are missing and wanted, does the work, reports.
template <typename Wanted, typename Work>
Status GpuTableOfMemory::Write(const Context& context, const Batch& batch, const Report& report,
                               const How& how, const Wanted& wanted, const Work& work) {
  constexpr bool kInserts = !std::is_same_v<Wanted, NoHead>;
  const Reports reports(report);
  DYNEMB_RETURN_IF_ERROR(BeginReport(context, reports));
  GroupedBatch grouped;
  // Where there may not be room for all, the first ones of the batch get it, in two passes.
  const bool in_order = how.in_order || (kInserts && goes_on());
  Status begun = GroupBatch(context, batch, in_order, how.scratch_bytes * (goes_on() ? 2 : 1),
                            &scratch_, &grouped);
  const Expiry expiry = this->expiry();  // of the whole call
  if (begun.ok()) {
    begun =
        ForEach(context, grouped.size, FindHeads{grouped, {index_.view(), rows_.view(), expiry}});
  }
  if (begun.ok() && expires()) begun = EraseExpired(context, grouped);
  if (!begun.ok()) return SayFull(context, Entries(batch), reports, begun);
  grouped.last_counts = how.last_counts && in_order;
  Status written;
  if constexpr (kInserts) {
    counts_.Poll();
    const bool is_full = max_rows_ >= 0 && counts_.most_rows() + grouped.size > max_rows_;
    written = is_full && how.whole_rows && evicts()
                  ? PutBack(context, how, wanted, work, reports, &grouped)
                  : InsertMissing(context, how, wanted, work, reports, expiry, &grouped);
  } else {
    written = work(grouped);
    if (written.ok()) written = ReportAll(context, grouped, how, reports);
    // Whatever happens, what has been freed is counted.
    DYNEMB_RETURN_IF_ERROR(counts_.EndCall(context, rows_.capacity(), 0));
  }
  DYNEMB_RETURN_IF_ERROR(written);
  if (!expires() || options_.removes == TableOptions::Removes::kNone) return {};
  const Status removed = RemoveSomeExpired(context, expiry, grouped, kInserts);
  // What the call was for has been done; without memory rows leave at another one.
  return removed.code() == Code::kResourceExhausted ? Status() : removed;
}

Status GpuTableOfMemory::ReportAll(const Context& context, const GroupedBatch& grouped,
                                   const How& how, const Reports& reports) const {
  DYNEMB_RETURN_IF_ERROR(
      ForEachTile<kWarp>(context, WarpsFor(context, grouped.size),
                         CountWritten{grouped, how.each_reports, counts_.there()}));
  if (reports.outcomes == nullptr && reports.misses == nullptr) return {};
  return ForEach(context, grouped.size, ReportEntries{grouped, how.each_reports, reports});
}

// Makes room for the missing keys, inserts them and works on all.
template <typename Wanted, typename Work>
Status GpuTableOfMemory::InsertMissing(const Context& context, const How& how, const Wanted& wanted,
                                       const Work& work, const Reports& reports,
                                       const Expiry& expiry, GroupedBatch* grouped) {
  const int64_t max_rows = max_rows_ < 0 ? INT64_MAX : max_rows_;
  int64_t limit;
  DYNEMB_RETURN_IF_ERROR(MakeRoom(context, grouped->size, max_rows, &limit));
  if (counts_.most_rows() + grouped->size > max_rows) {
    // Rows that are put back, as by a restore, are not declined.
    const bool refuses = !evicts() && (options_.on_full == OnFull::kError || how.whole_rows);
    Status found_written;
    const Status room = MakeRoomForMissing(context, *grouped, wanted, refuses, expiry, [&] {
      grouped->kind = HeadKind::kFound;
      found_written = work(*grouped);
      grouped->kind = HeadKind::kNotFound;
      return found_written;
    });
    const bool has_written = grouped->kind == HeadKind::kNotFound && found_written.ok();
    if (!room.ok() && !has_written) return SayFull(context, grouped->entries, reports, room);
    if (!room.ok()) {
      DYNEMB_RETURN_IF_ERROR(
          ForEachTile<kWarp>(context, WarpsFor(context, grouped->size),
                             LeaveOut<Wanted>{*grouped, wanted, 0, 0, Outcome::kFull}));
      if (how.each_reports) DYNEMB_RETURN_IF_ERROR(work(*grouped));
      DYNEMB_RETURN_IF_ERROR(ReportAll(context, *grouped, how, reports));
      return room;
    }
  }
  bool worked;
  const Status written = InsertAndWork(context, wanted, work, max_rows, limit, *grouped, &worked);
  if (!worked && grouped->kind == HeadKind::kAll) {
    return SayFull(context, grouped->entries, reports, written);
  }
  const Status reported = ReportAll(context, *grouped, how, reports);
  return written.ok() ? reported : written;
}

// Inserts whole rows into a full table that evicts, some at a time, after each of which the rows of
// the lowest scores leave, of those that were there and those that have come.
template <typename Wanted, typename Work>
Status GpuTableOfMemory::PutBack(const Context& context, const How& how, const Wanted& wanted,
                                 const Work& work, const Reports& reports, GroupedBatch* grouped) {
  grouped->kind = HeadKind::kFound;
  Status status = work(*grouped);
  if (!status.ok()) return SayFull(context, grouped->entries, reports, status);
  grouped->kind = HeadKind::kNotFound;
  const int64_t at_once = RowsPutBackAtOnce(max_rows_);
  for (int64_t first = 0; status.ok() && first < grouped->size; first += at_once) {
    grouped->first = first;
    grouped->end = std::min(grouped->size, first + at_once);
    // Of a call before for which there was no memory to evict.
    if (counts_.most_rows() > max_rows_) status = EvictDownTo(context, max_rows_);
    int64_t limit;
    if (status.ok()) status = MakeRoom(context, grouped->end - first, RowsAtMost(), &limit);
    if (!status.ok()) break;
    bool worked;
    status = InsertAndWork(context, wanted, work, RowsAtMost(), limit, *grouped, &worked);
    const Status evicted = EvictDownTo(context, max_rows_);
    if (status.ok()) status = evicted;
  }
  grouped->first = 0;
  grouped->end = grouped->size;
  if (!status.ok()) {
    DYNEMB_RETURN_IF_ERROR(
        ForEachTile<kWarp>(context, WarpsFor(context, grouped->size),
                           LeaveOut<Wanted>{*grouped, wanted, 0, 0, Outcome::kFull}));
  }
  const Status reported = ReportAll(context, *grouped, how, reports);
  return status.ok() ? reported : status;
}

// Inserts missing keys and works on the batch, as its kind and places say. *worked: the kernels
// that write rows have been started; kResourceExhausted then: some keys are kFull.
template <typename Wanted, typename Work>
Status GpuTableOfMemory::InsertAndWork(const Context& context, const Wanted& wanted,
                                       const Work& work, int64_t max_rows, int64_t limit,
                                       const GroupedBatch& grouped, bool* worked) {
  *worked = false;
  const int64_t inserting = grouped.end - grouped.first;
  const int64_t most = std::min(limit, max_rows);
  const bool may_be_full = counts_.most_rows() + inserting > most;
  DYNEMB_RETURN_IF_ERROR(
      ForEachTile<kWarp>(context, WarpsFor(context, grouped.size),
                         InsertHeads<Wanted>{grouped, index_.view(), counts_.there(),
                                             rows_.free_rows(), most, wanted}));
  const Status status = work(grouped);
  *worked = status.ok();
  if (!status.ok()) {
    // A kernel has not been started, the one that writes the rows or one before it: keys must not
    // have rows with anything in them.
    static_cast<void>(ForEach(context, grouped.size, RemoveInserted{grouped, index_.view()}));
    static_cast<void>(counts_.ForgetTaken(context));
  }
  // Whatever happens, what has been taken is counted.
  DYNEMB_RETURN_IF_ERROR(counts_.EndCall(context, most, inserting));
  DYNEMB_RETURN_IF_ERROR(status);
  return may_be_full ? SayWhetherFull(context) : Status();
}

Status GpuTableOfMemory::SayWhetherFull(const Context& context) {
  RowCounts counts;
  DYNEMB_RETURN_IF_ERROR(counts_.ReadAndForgetFull(context, &counts));
  if (counts.full == 0) return {};
  return ResourceExhausted("no GPU memory for more rows; the table has ", counts.rows());
}

// Before missing keys are inserted for which there may not be room below max_rows. Where there is
// not: calls write_found(), which writes the keys that have rows, evicts rows, and leaves the
// last missing keys out where that is not enough. kResourceExhausted: it `refuses`, or there is
// no memory to work in.
template <typename Wanted, typename WriteFound>
Status GpuTableOfMemory::MakeRoomForMissing(const Context& context, const GroupedBatch& grouped,
                                            const Wanted& wanted, bool refuses,
                                            const Expiry& expiry, const WriteFound& write_found) {
  std::vector<uint32_t> missing(static_cast<size_t>(WarpsFor(context, grouped.size)));
  const auto warps = static_cast<int64_t>(missing.size());
  DYNEMB_RETURN_IF_ERROR(
      room_scratch_.Begin(context, Scratch::Bytes<uint32_t>(warps) + Scratch::Bytes<uint32_t>(1)));
  uint32_t* const there = room_scratch_.Take<uint32_t>(warps);
  DYNEMB_RETURN_IF_ERROR(
      ForEachTile<kWarp>(context, warps, CountMissing<Wanted>{grouped, wanted, there}));
  DYNEMB_RETURN_IF_ERROR(
      CopyAny(context, missing.data(), there, warps * static_cast<int64_t>(sizeof(uint32_t))));
  RowCounts counts;
  DYNEMB_RETURN_IF_ERROR(counts_.Read(context, &counts));
  int64_t all = 0;
  for (const uint32_t of_warp : missing) all += of_warp;
  int64_t room = max_rows_ - counts.rows();
  if (all <= room) return {};
  if (refuses && expires()) {
    DYNEMB_RETURN_IF_ERROR(RemoveAllExpired(context, expiry));
    DYNEMB_RETURN_IF_ERROR(counts_.Read(context, &counts));
    room = max_rows_ - counts.rows();
    if (all <= room) return {};
  }
  if (refuses) {
    const char* const limit = options_.max_bytes >= 0 ? "max_bytes" : "max_rows";
    return ResourceExhausted(limit, ": got ", all, " keys without a row, for ", counts.rows(),
                             " rows of at most ", max_rows_, "; want a larger ", limit,
                             ", or an eviction policy");
  }
  DYNEMB_RETURN_IF_ERROR(write_found());
  if (evicts()) {
    DYNEMB_RETURN_IF_ERROR(EvictDownTo(context, std::max<int64_t>(max_rows_ - all, 0)));
    room = max_rows_ - counts_.most_rows();
  }
  if (all <= room) return {};
  int64_t first_warp = 0;
  for (; room >= missing[static_cast<size_t>(first_warp)]; ++first_warp) {
    room -= missing[static_cast<size_t>(first_warp)];
  }
  DYNEMB_RETURN_IF_ERROR(
      ForEachTile<kWarp>(context, warps - first_warp,
                         LeaveOut<Wanted>{grouped, wanted, first_warp, static_cast<uint32_t>(room),
                                          Outcome::kDeclined}));
  uint32_t* const declined_there = room_scratch_.Take<uint32_t>(1);
  uint32_t declined = 0;
  DYNEMB_RETURN_IF_ERROR(FillBytes(context, declined_there, 0, sizeof(declined)));
  DYNEMB_RETURN_IF_ERROR(
      ForEachTile<kWarp>(context, warps, CountDeclined{grouped, declined_there}));
  DYNEMB_RETURN_IF_ERROR(CopyAny(context, &declined, declined_there, sizeof(declined)));
  DYNEMB_RETURN_IF_ERROR(Wait(context));
  counters_.declined += declined;
  return {};
}

// Room for `inserting` more rows, or as many as there is memory for: *limit in all.
Status GpuTableOfMemory::MakeRoom(const Context& context, int64_t inserting, int64_t max_rows,
                                  int64_t* limit) {
  counts_.Poll();
  const auto most = [&] { return std::min(counts_.most_rows() + inserting, max_rows); };
  int64_t needed = most(), ahead = needed;
  if (needed > rows_.capacity() || index_.TakesMemory(needed)) {
    RowCounts counts;
    DYNEMB_RETURN_IF_ERROR(counts_.Read(context, &counts));
    needed = most();
    const bool in_vain = needed <= rows_.capacity() && !index_.TakesMemory(needed);
    waits_in_vain_ = in_vain ? waits_in_vain_ + 1 : 0;
    if (waits_in_vain_ >= kMostWaitsInVain) {
      ahead = std::min(needed + Headroom(inserting), std::max(needed, max_rows));
    }
  } else {
    waits_in_vain_ = 0;
  }
  // What is needed comes first, for there may not be memory for both.
  DYNEMB_RETURN_IF_ERROR(rows_.Grow(context, needed));
  DYNEMB_RETURN_IF_ERROR(index_.MakeRoom(context, needed, inserting, ahead));
  DYNEMB_RETURN_IF_ERROR(rows_.Grow(context, ahead));
  *limit = std::min(rows_.capacity(), index_.limit());
  return {};
}

// Rows for which there is room beyond a call, where one after the other has waited to hear that
// there is enough: those of calls like it whose counts have not come when the next ones are made.
// Where that is much memory, no more than a share of what the table has.
int64_t GpuTableOfMemory::Headroom(int64_t inserting) const {
  const int64_t most = std::max(kHeadroomBytes / layout_.row_bytes, rows_.capacity() / 8);
  const int64_t calls = std::min(kCallsAhead * inserting, most);
  return max_rows_ < 0 ? calls : std::clamp<int64_t>(max_rows_ - counts_.most_rows(), 0, calls);
}

// The end of a call without memory to work in: nothing has been done to any key, which is
// reported. Returns the error.
Status GpuTableOfMemory::SayFull(const Context& context, const Entries& entries,
                                 const Reports& reports, const Status& error) {
  if (error.code() != Code::kResourceExhausted) return error;
  DYNEMB_RETURN_IF_ERROR(BeginReport(context, reports));
  DYNEMB_RETURN_IF_ERROR(ForEach(context, entries.most, ReportFull{entries, reports}));
  return error;
}

}  // namespace dynemb

// The calls of HostTable that change rows by key.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <mutex>
#include <new>
#include <optional>
#include <shared_mutex>
#include <type_traits>
#include <utility>
#include <vector>

#include "cc/core/base/copy_bytes.h"
#include "cc/core/base/fair_shared_mutex.h"
#include "cc/core/optimizer/rule.h"
#include "cc/core/table/batch_order.h"
#include "cc/core/table/call_checks.h"
#include "cc/core/table/call_report.h"
#include "cc/core/table/evicted_rows.h"
#include "cc/core/table/evictor.h"
#include "cc/core/table/for_each_key.h"
#include "cc/core/table/host_table_impl.h"
#include "cc/core/table/row_budget.h"
#include "cc/core/table/value_functions.h"

namespace dynemb {

// One key of a call that changes rows.
struct HostTable::Entry : LocatedKey {
  LockedSegment* part;
  Span<const int64_t> positions;
  int64_t last() const { return positions[positions.size - 1]; }
};

// What a task that changes rows keeps from one key to the next.
struct HostTable::Task : TaskReport {
  Task(const Report& report, int64_t scratch_bytes)
      : TaskReport(report), sums(static_cast<size_t>(scratch_bytes)) {}
  RowUpdater::Row updates[kKeysPerGroup];  // to be made at the end of the group of keys
  int64_t update_count = 0;
  // Keys of the group that have been written and are not marked.
  struct {
    Key key;
    uint64_t hash;
  } changed[kKeysPerGroup];
  int64_t changed_count = 0;
  std::vector<char> sums;  // of the gradients of each key of the group
  // Rows that have been inserted, and removed by key or because they had expired.
  int64_t inserted = 0, erased = 0, expired = 0;
  KeptRows gone;  // those that had expired, if they are kept
  // Positions and keys that it has gone through, of which some were left out or deferred.
  int64_t positions = 0, keys = 0, positions_deferred = 0;
  int64_t written() const { return positions - positions_deferred - left_out(); }
  int64_t distinct() const {
    return keys - static_cast<int64_t>(deferred.size()) - keys_left_out();
  }
  // Distinct keys that were left out, to be inserted when there is room: where they stand in the
  // batch, in its order.
  std::vector<Span<const int64_t>> deferred;

  // Without memory for the rest of the call its outcome is this one.
  void Defer(Span<const int64_t> positions, const Report& report) {
    deferred.push_back(positions);
    positions_deferred += positions.size;
    if (report.outcomes.empty()) return;
    for (const int64_t i : positions) report.outcomes[i] = Outcome::kFull;
  }
};

// A call that changes rows by key: what it was given, how it writes a key, and what has come of it.
template <typename Which, typename WriteKey, typename EndGroup>
struct HostTable::WriteCall {
  const Context& context;
  const ConstRows& inputs;  // the rows that it reads, to be fetched ahead
  int64_t scratch_bytes;    // the size of Task::sums
  const Report& report;
  const Which& inserts;
  const WriteKey& write_key;
  const EndGroup& end_group;
  CallReport whole;
  RowBudget::Taken taken;
};

// Which missing keys a call inserts, by their positions.
struct HostTable::Always {
  bool operator()(Span<const int64_t>) const { return true; }
};
struct HostTable::Never {
  bool operator()(Span<const int64_t>) const { return false; }
};
struct HostTable::WholeRows : Always {
  explicit WholeRows(const ConstRowParts& rows) : rows(rows) {}
  const ConstRowParts& rows;
};

// A new row, whose bytes are the caller's to write. False: no memory.
bool HostTable::Insert(Entry* entry) {
  entry->ref = entry->part->segment.Insert(entry->key, entry->hash);
  if (entry->ref == Segment::kNone) return false;
  entry->row = entry->part->segment.row(entry->ref);
  return true;
}

// A new row with initial slots and meta of zeros; the value is the caller's to write.
bool HostTable::InsertInitial(Entry* entry) const {
  if (!Insert(entry)) return false;
  CopyBytes(entry->row + layout_.slots_offset, initial_slots_.data(), layout_.slots_bytes);
  char* const meta = entry->row + layout_.meta_offset;
  std::memset(meta, 0, static_cast<size_t>(layout_.meta_bytes));
  if (const int64_t score = options_.eviction.first_score(); score != 0) {
    WriteInt64(score, meta + layout_.meta_field[static_cast<int>(MetaField::kScore)]);
  }
  return true;
}

// Erases a row that has expired: its key is missing.
void HostTable::EraseExpired(Entry* entry, Task* task) const {
  if (options_.evicted != nullptr) task->gone.Add(entry->key, entry->row, layout_.value_bytes);
  entry->part->EraseRow(entry->key, entry->hash);
  entry->ref = Segment::kNone;
  entry->row = nullptr;
  entry->marked = false;
  ++task->expired;
}

// What a call writes to the meta of its rows: where the policy goes by time, that does not fall.
struct HostTable::CallStamp {
  int64_t now;
  int64_t write;               // of AddWrite, if the policy adds writes
  Span<const int64_t> scores;  // by position, if they are given
};
HostTable::CallStamp HostTable::Stamped(const Stamp& stamp) const {
  const EvictionPolicy& policy = options_.eviction;
  int64_t now = stamp.now;
  if (policy.uses_time()) now = options_.clock->Stamp(stamp.now);
  return {now, policy.WriteAt(now), policy.takes_scores() ? stamp.scores : Span<const int64_t>()};
}
// Notes the time of a row that comes from elsewhere; a time in another unit is replaced by kNoTime.
void HostTable::NoteTime(char* row) {
  const int64_t at = layout_.meta_field[static_cast<int>(MetaField::kLastWriteTime)];
  if (at < 0 || !options_.eviction.uses_time()) return;
  char* const time = row + layout_.meta_offset + at;
  if (!options_.eviction.has_unit_of(ReadInt64(time))) WriteInt64(RowScores::kNoTime, time);
  const int64_t written = ReadInt64(time);
  options_.clock->Advance(written);
  if (expires()) evictor_->NoteTime(written);
}

// What follows the writes of a key's row, once: its change is noted, and its meta stamped.
void HostTable::Wrote(const CallStamp& stamp, const Entry& entry, Task* task) const {
  Changed(entry, task);
  StampMeta(stamp, entry.row);
  GiveScore(stamp, entry);
}
// Without a branch: some keys of a group are mostly listed already, and others are not.
void HostTable::Changed(const Entry& entry, Task* task) {
  task->changed[task->changed_count] = {entry.key, entry.hash};
  task->changed_count += !entry.marked;
}
void HostTable::ListChanges(LockedSegment* part, Task* task) const {
  const int64_t count = std::exchange(task->changed_count, 0);
  const bool tracking = part->changes.tracking();
  if (!tracking && !options_.marks_dirty) return;
  for (int64_t i = 0; i < count; ++i) {
    const auto& [key, hash] = task->changed[i];
    const bool was_marked = part->segment.Mark(key, hash);
    if (tracking && !was_marked) part->changes.Add(key, part->segment.size());
  }
}
void HostTable::StampMeta(const CallStamp& stamp, char* row) const {
  if (layout_.meta_bytes == 0) return;
  char* const meta = row + layout_.meta_offset;
  const auto field = [&](MetaField f) { return layout_.meta_field[static_cast<int>(f)]; };
  if (const int64_t at = field(MetaField::kLastWriteTime); at >= 0)
    WriteInt64(stamp.now, meta + at);
  if (const int64_t at = field(MetaField::kCount); at >= 0) {
    // Unsigned, since a count that was inserted may be anything.
    WriteInt64(static_cast<int64_t>(static_cast<uint64_t>(ReadInt64(meta + at)) + 1), meta + at);
  }
  if (options_.eviction.adds_writes()) {
    char* const score = meta + field(MetaField::kScore);
    WriteInt64(AddWrite(options_.eviction, ReadInt64(score), stamp.write), score);
  }
}
// Once for each key of a call.
void HostTable::GiveScore(const CallStamp& stamp, const Entry& entry) const {
  if (stamp.scores.empty()) return;
  char* const at =
      entry.row + layout_.meta_offset + layout_.meta_field[static_cast<int>(MetaField::kScore)];
  const int64_t given = stamp.scores[entry.last()];
  WriteInt64(options_.eviction.adds_scores() ? AddDecayedWrite(ReadInt64(at), given) : given, at);
}

// In which order missing keys are inserted where there is no room for all: that of the batch. Of
// whole rows those with the lowest scores come first, since they leave again.
template <typename Which>
bool HostTable::Before(const Which&, Span<const int64_t> a, Span<const int64_t> b) const {
  return a[0] < b[0];
}
bool HostTable::Before(const WholeRows& which, Span<const int64_t> a, Span<const int64_t> b) const {
  const auto score = [&](Span<const int64_t> at) {
    if (!evicts()) return int64_t{0};
    const int64_t last = at[at.size - 1];
    return evictor_->scores().Score(which.rows.values[last], which.rows.meta[last]);
  };
  return std::make_pair(score(a), a[0]) < std::make_pair(score(b), b[0]);
}

template <typename Which, typename WriteKey>
Status HostTable::WriteKeys(const Context& context, const Batch& batch, const ConstRows& inputs,
                            const Report& report, const Which& inserts, const WriteKey& write_key) {
  return WriteKeys(context, batch, inputs, 0, report, inserts, write_key, [](Task*) {});
}

// The frame of all calls that change rows by key: calls write_key(entry, task) for each distinct
// key, and end_group(task) after each group of them, with the segment held. inserts(positions):
// whether it will insert a key that has no row. `inputs` are the rows that they read, to be
// fetched ahead; scratch_bytes the size of Task::sums.
//
// Most calls are sure of room for all of their keys, and write them in one pass. Otherwise the
// keys that have rows are written first; then room is made; then the others are inserted.
template <typename Which, typename WriteKey, typename EndGroup>
Status HostTable::WriteKeys(const Context& context, const Batch& batch, const ConstRows& inputs,
                            int64_t scratch_bytes, const Report& report, const Which& inserts,
                            const WriteKey& write_key, const EndGroup& end_group) {
  WriteCall<Which, WriteKey, EndGroup> call = {context,
                                               inputs,
                                               scratch_bytes,
                                               report,
                                               inserts,
                                               write_key,
                                               end_group,
                                               CallReport(report),
                                               RowBudget::Taken(options_.budget.get())};
  CallReport& whole = call.whole;
  RowBudget::Taken& taken = call.taken;
  std::optional<BatchOrder> order;
  const Status ordered = OrNoMemory([&] { order.emplace(context, batch); });
  if (!ordered.ok()) {
    for (int64_t i = 0; i < batch.size(); ++i) {
      const int64_t position = batch.position(i);
      whole.AddFull({&position, 1});
    }
    return ordered;
  }
  Status written;
  if (std::is_same_v<Which, Never> || taken.TakeForCall(order->size())) {
    written = WriteInOrder(&call, &*order, nullptr);
  } else {
    const bool evicts = this->evicts();
    // Rows that are put back, as by a restore, are not dropped.
    const bool refuses =
        !evicts && (options_.on_full == OnFull::kError || std::is_same_v<Which, WholeRows>);
    if (refuses) DYNEMB_RETURN_IF_ERROR(TakeForMissing(context, &*order, inserts, &taken));
    std::vector<Span<const int64_t>> deferred;
    written = WriteInOrder(&call, &*order, &deferred);
    const auto sort = [&](size_t begin, size_t end) {
      std::sort(deferred.begin() + static_cast<std::ptrdiff_t>(begin),
                deferred.begin() + static_cast<std::ptrdiff_t>(end),
                [&](const auto& a, const auto& b) { return Before(inserts, a, b); });
    };
    const auto insert = [&](size_t begin, size_t end) {
      if (written.ok() && !refuses) {
        written = MakeRoom(context, static_cast<int64_t>(end - begin), &taken);
      }
      if (static_cast<int64_t>(end - begin) > taken.rows()) sort(begin, end);
      const Outcome otherwise = refuses || !written.ok() ? Outcome::kFull : Outcome::kDeclined;
      std::vector<int64_t> select =
          LeaveOut({deferred.data() + begin, static_cast<int64_t>(end - begin)}, taken.rows(),
                   otherwise, report, &whole);
      int64_t count = static_cast<int64_t>(select.size());
      const Positions positions = {select, &count};
      BatchOrder these(context, {batch.keys, &positions});
      const Status inserted = WriteInOrder(&call, &these, nullptr);
      if (written.ok()) written = inserted;
    };
    const Status inserted = OrNoMemory([&] {
      // Whole rows come with scores, and may evict each other: a part of the table at a time.
      size_t step = deferred.size();
      if (evicts && std::is_same_v<Which, WholeRows>) {
        if (static_cast<int64_t>(deferred.size()) > taken.rows()) sort(0, deferred.size());
        step = static_cast<size_t>(options_.budget->max_rows() / 16 + 1);
      }
      for (size_t at = 0; at < deferred.size(); at += step) {
        insert(at, std::min(at + step, deferred.size()));
      }
    });
    if (written.ok()) written = inserted;
  }
  if (expires() && options_.removes != TableOptions::Removes::kNone && evictor_->MayHaveExpired() &&
      written.ok()) {
    written =
        RemoveExpired(context, Evictor::RowsToLookAt(order->distinct(), whole.inserted()), &taken);
  }
  if (whole.full()) return ResourceExhausted("no memory for more rows; the table has ", size());
  return written;
}

// Takes the room that the missing keys of a batch need. kResourceExhausted: there is not so much.
template <typename Which>
Status HostTable::TakeForMissing(const Context& context, BatchOrder* order, const Which& inserts,
                                 RowBudget::Taken* taken) {
  std::atomic<int64_t> missing{0};
  const auto count = [&](int64_t* rows) {
    missing = 0;
    const Status counted = context.executor->Run(kSegments, kNanosecondsPerSegment, [&](int64_t s) {
      BatchOrder::Scratch scratch;
      const int64_t distinct = order->Group(s, &scratch);
      const std::shared_lock<FairSharedMutex> lock(parts_[s]->mutex);
      ForEachKey(
          0, distinct, 0, [&](int64_t i) { return order->key(s, i); },
          [&](uint64_t) -> const Segment& { return parts_[s]->segment; }, [](int64_t, uint64_t) {},
          [&](int64_t i, const LocatedKey& at) {
            if (at.row == nullptr && inserts(order->positions(s, i))) ++missing;
          },
          [] {});
    });
    *rows = missing - taken->rows();
    return counted;
  };
  DYNEMB_RETURN_IF_ERROR(taken->Settle(INT64_MAX, count));
  if (taken->rows() < missing && expires()) {
    DYNEMB_RETURN_IF_ERROR(RemoveExpired(context, size(), taken));
    DYNEMB_RETURN_IF_ERROR(taken->Settle(INT64_MAX, count));
  }
  if (taken->rows() >= missing) return Status();
  const char* const limit = options_.max_bytes >= 0 ? "max_bytes" : "max_rows";
  return ResourceExhausted(limit, ": got ", missing.load(), " keys without a row, for ", size(),
                           " rows of at most ", options_.budget->max_rows(), "; want a larger ",
                           limit, ", or an eviction policy");
}

// Takes room for so many rows, by evicting others where there is not enough; or less, if there
// are no more.
Status HostTable::MakeRoom(const Context& context, int64_t rows, RowBudget::Taken* taken) {
  DYNEMB_RETURN_IF_ERROR(taken->Settle(0, [rows](int64_t* wanted) {
    *wanted = rows;
    return Status();
  }));
  if (taken->rows() >= rows || !evicts()) return Status();
  int64_t evicted;
  const Status status = evictor_->Evict(context, rows - taken->rows(), &evicted);
  counters_.Add(&TableCounters::evicted, evicted);
  taken->Add(evicted);
  return status;
}

// The positions of the first `most` of some keys; the others get this outcome.
std::vector<int64_t> HostTable::LeaveOut(Span<const Span<const int64_t>> keys, int64_t most,
                                         Outcome outcome, const Report& report, CallReport* whole) {
  std::vector<int64_t> positions;
  TaskReport left_out(report);
  for (int64_t i = 0; i < keys.size; ++i) {
    if (i < most) {
      positions.insert(positions.end(), keys[i].begin(), keys[i].end());
    } else {
      left_out.SetAll(keys[i], outcome);
    }
  }
  const int64_t left = std::max<int64_t>(keys.size - most, 0);
  counters_.Add(&TableCounters::declined, outcome == Outcome::kDeclined ? left : 0);
  whole->Add(left_out);
  return positions;
}

Status HostTable::RemoveExpired(const Context& context) { return SweepExpired(context, size()); }

Status HostTable::SweepExpired(const Context& context, int64_t rows) {
  DYNEMB_RETURN_IF_ERROR(CheckContext(context));
  if (!expires() || !evictor_->MayHaveExpired()) return Status();
  RowBudget::Taken taken(options_.budget.get());
  return OrNoMemory([&] { return RemoveExpired(context, rows, &taken); });
}

Status HostTable::RemoveExpired(const Context& context, int64_t rows, RowBudget::Taken* taken) {
  int64_t removed;
  const Status status = evictor_->RemoveExpired(context, rows, &removed);
  counters_.Add(&TableCounters::expired, removed);
  if (options_.budget != nullptr) taken->Add(removed);
  return status;
}

// One pass of a call that changes rows by key. Keys that would be inserted go to `deferred`, if
// that is not null.
template <typename Call>
Status HostTable::WriteInOrder(Call* call, BatchOrder* order,
                               std::vector<Span<const int64_t>>* deferred) {
  std::mutex mutex;  // of `deferred` and call->taken
  // Several segments to a task, which use its memory in turn.
  const int64_t tasks = std::min<int64_t>(kSegments, 4 * call->context.executor->concurrency());
  bool begun[kSegments] = {};  // each task's
  const auto write = [&](int64_t end, int64_t* next, Task* task) {
    BatchOrder::Scratch scratch;
    int64_t positions = 0;
    for (int64_t s = *next; s < end; ++s) positions += order->size(s);
    task->Reserve(positions);
    if (deferred != nullptr) task->deferred.reserve(static_cast<size_t>(positions));
    if (expires() && options_.evicted != nullptr) {
      task->gone.Reserve(positions, layout_.value_bytes);
    }
    for (int64_t& s = *next; s < end; ++s) {
      const int64_t distinct = order->Group(s, &scratch);
      if (distinct == 0) continue;
      LockedSegment* const part = &*parts_[s];
      std::unique_lock<FairSharedMutex> lock(part->mutex);
      const int64_t rows_before = part->segment.size() + task->erased + task->expired;
      // Also without insertions, a growth that has begun comes to its end.
      part->segment.ContinueGrowth(static_cast<uint32_t>(distinct));
      ForEachKey(
          0, distinct, layout_.row_bytes, [&](int64_t i) { return order->key(s, i); },
          [&](uint64_t) -> const Segment& { return part->segment; },
          [&](int64_t i, uint64_t) {
            if (call->inputs.data == nullptr) return;
            PrefetchRow(call->inputs[order->positions(s, i)[0]], layout_.value_bytes);
          },
          [&](int64_t i, const LocatedKey& at) {
            Entry entry{at, part, order->positions(s, i)};
            if (entry.row != nullptr && HasExpired(entry.row)) EraseExpired(&entry, task);
            if (deferred != nullptr && entry.row == nullptr && call->inserts(entry.positions)) {
              task->Defer(entry.positions, call->report);
              return;
            }
            call->write_key(entry, task);
          },
          [&] {
            call->end_group(task);
            ListChanges(part, task);
          });
      task->inserted += part->segment.size() + task->erased + task->expired - rows_before;
      task->positions += order->size(s);
      task->keys += distinct;
    }
  };
  const auto add_full = [&](int64_t begin, int64_t end) {
    for (int64_t s = begin; s < end; ++s) call->whole.AddFull(order->positions(s));
  };
  const Status ran = call->context.executor->Run(
      tasks, order->size() / tasks * kNanosecondsPerKey, [&](int64_t number) {
        const int64_t end = kSegments * (number + 1) / tasks;
        int64_t next = kSegments * number / tasks;
        begun[number] = true;
        std::optional<Task> task;
        // Memory runs out between segments, so that none is half done.
        const Status written = OrNoMemory([&] {
          task.emplace(call->report, call->scratch_bytes);
          write(end, &next, &*task);
        });
        if (task) call->whole.Add(*task);
        if (task) call->whole.AddInserted(task->inserted);
        const std::lock_guard<std::mutex> lock(mutex);
        if (task) Count(&*task, &call->taken);
        add_full(next, end);
        if (!written.ok()) throw std::bad_alloc();
        if (deferred == nullptr) return;
        deferred->insert(deferred->end(), task->deferred.begin(), task->deferred.end());
      });
  for (int64_t number = 0; number < tasks; ++number) {
    if (!begun[number]) add_full(kSegments * number / tasks, kSegments * (number + 1) / tasks);
  }
  return ran;
}

// What a task has done, when it is done.
void HostTable::Count(Task* done, RowBudget::Taken* taken) {
  Task& task = *done;
  counters_.Add(&TableCounters::written, task.written());
  counters_.Add(&TableCounters::distinct, task.distinct());
  counters_.Add(&TableCounters::inserted, task.inserted);
  counters_.Add(&TableCounters::erased, task.erased);
  counters_.Add(&TableCounters::expired, task.expired);
  if (options_.evicted != nullptr) options_.evicted->Add(std::move(task.gone));
  if (options_.budget != nullptr) taken->Inserted(task.inserted - task.erased - task.expired);
}

Status HostTable::Apply(const Context& context, const Batch& batch, ConstRows gradients,
                        const Update& update, const Stamp& stamp, const Report& report) {
  DYNEMB_RETURN_IF_ERROR(CheckBatch(context, batch, report));
  DYNEMB_RETURN_IF_ERROR(CheckValues("gradients", batch, gradients, gradient_dtype_, schema_.dim));
  DYNEMB_RETURN_IF_ERROR(CheckScales(batch, update));
  DYNEMB_RETURN_IF_ERROR(CheckStamp(batch, stamp));
  if (update.rule == nullptr) return InvalidArgument("update.rule: got none");
  std::unique_ptr<RowUpdater> updater;
  DYNEMB_RETURN_IF_ERROR(
      MakeRowUpdater(update.rule->name, schema_.value_dtype, update.hyper, &updater));
  DYNEMB_RETURN_IF_ERROR(CheckOptimizer(schema_, *update.rule));
  const int64_t gradient_bytes = schema_.dim * SizeOf(gradient_dtype_);
  const bool inserts = update.if_missing == IfMissing::kInsert;
  const auto write_key = [&, stamp = Stamped(stamp)](Entry entry, Task* task) {
    Outcome outcome = Outcome::kFound;
    if (entry.row == nullptr) {
      if (!inserts) return task->SetAll(entry.positions, Outcome::kMissing);
      if (!InsertInitial(&entry)) return task->SetAll(entry.positions, Outcome::kFull);
      fill_(schema_.initializer, entry.key, layout_.dim, entry.row);
      outcome = Outcome::kInserted;
    }
    Wrote(stamp, entry, task);
    task->SetAll(entry.positions, outcome);
    RowUpdater::Row row = {entry.row, entry.row + layout_.slots_offset,
                           gradients[entry.positions[0]]};
    if (entry.positions.size > 1 || !update.scales.empty()) {
      char* const sum = &task->sums[static_cast<size_t>(task->update_count * gradient_bytes)];
      sum_(layout_.dim, gradients, entry.positions, update.scales.data_or_null(), sum);
      row.gradient = sum;
    }
    task->updates[task->update_count++] = row;
  };
  const auto end_group = [&](Task* task) {
    updater->Update(layout_.dim, Span<const RowUpdater::Row>(task->updates, task->update_count));
    task->update_count = 0;
  };
  return WriteKeys(
      context, batch, gradients, kKeysPerGroup * gradient_bytes, report,
      [inserts](Span<const int64_t>) { return inserts; }, write_key, end_group);
}

Status HostTable::Upsert(const Context& context, const Batch& batch, ConstRows values,
                         const Stamp& stamp, const Report& report) {
  DYNEMB_RETURN_IF_ERROR(CheckBatch(context, batch, report));
  DYNEMB_RETURN_IF_ERROR(CheckValues("values", batch, values, schema_.value_dtype, schema_.dim));
  DYNEMB_RETURN_IF_ERROR(CheckStamp(batch, stamp));
  return WriteKeys(context, batch, values, report, Always(),
                   [&, stamp = Stamped(stamp)](Entry entry, Task* task) {
                     Outcome outcome = Outcome::kFound;
                     if (entry.row == nullptr) {
                       if (!InsertInitial(&entry))
                         return task->SetAll(entry.positions, Outcome::kFull);
                       outcome = Outcome::kInserted;
                     }
                     CopyBytes(entry.row, values[entry.last()], layout_.value_bytes);
                     Wrote(stamp, entry, task);
                     task->SetAll(entry.positions, outcome);
                   });
}

Status HostTable::Accumulate(const Context& context, const Batch& batch, ConstRows values_or_deltas,
                             Span<const bool> exists, const Stamp& stamp, const Report& report) {
  DYNEMB_RETURN_IF_ERROR(CheckBatch(context, batch, report));
  DYNEMB_RETURN_IF_ERROR(
      CheckValues("values_or_deltas", batch, values_or_deltas, schema_.value_dtype, schema_.dim));
  DYNEMB_RETURN_IF_ERROR(CheckExists(batch, exists));
  DYNEMB_RETURN_IF_ERROR(CheckStamp(batch, stamp));
  const auto inserts = [&](Span<const int64_t> positions) {
    return std::any_of(positions.begin(), positions.end(),
                       [&](int64_t position) { return !exists[position]; });
  };
  return WriteKeys(context, batch, values_or_deltas, report, inserts,
                   [&, stamp = Stamped(stamp)](Entry entry, Task* task) {
                     bool written = false, has_row = false;
                     for (const int64_t position : entry.positions) {
                       Outcome outcome = entry.row != nullptr ? Outcome::kFound : Outcome::kMissing;
                       if ((entry.row != nullptr) == exists[position]) {
                         if (entry.row != nullptr) {
                           add_(layout_.dim, entry.row, values_or_deltas[position]);
                         } else if (InsertInitial(&entry)) {
                           CopyBytes(entry.row, values_or_deltas[position], layout_.value_bytes);
                           outcome = Outcome::kInserted;
                         } else {
                           outcome = Outcome::kFull;
                         }
                         if (entry.row != nullptr) StampMeta(stamp, entry.row);
                         written |= entry.row != nullptr;
                       }
                       task->Set(position, outcome);
                       has_row |= TaskReport::HasRow(outcome);
                     }
                     if (!has_row) task->AddKeyLeftOut();
                     if (!written) return;
                     Changed(entry, task);
                     GiveScore(stamp, entry);
                   });
}

Status HostTable::Erase(const Context& context, const Batch& batch, const Report& report) {
  DYNEMB_RETURN_IF_ERROR(CheckBatch(context, batch, report));
  return WriteKeys(context, batch, ConstRows(), report, Never(), [&](Entry entry, Task* task) {
    if (entry.row != nullptr) {
      entry.part->EraseRow(entry.key, entry.hash);
      ++task->erased;
    }
    task->SetAll(entry.positions, entry.row != nullptr ? Outcome::kFound : Outcome::kMissing);
  });
}

Status HostTable::InsertRows(const Context& context, const Batch& batch, const ConstRowParts& rows,
                             const RowParts& displaced, const Report& report) {
  DYNEMB_RETURN_IF_ERROR(CheckBatch(context, batch, report));
  DYNEMB_RETURN_IF_ERROR(CheckRowsToInsert(layout_, batch, rows));
  DYNEMB_RETURN_IF_ERROR(CheckRowsToRead(layout_, batch, displaced));
  return WriteKeys(
      context, batch, rows.values, report, WholeRows(rows), [&](Entry entry, Task* task) {
        const Outcome outcome = entry.row == nullptr ? Outcome::kInserted : Outcome::kFound;
        if (outcome == Outcome::kFound) {
          for (const int64_t position : entry.positions) {
            if (displaced.keys.data) displaced.keys[position] = entry.key;
            CopyRow(entry.row, displaced, position);
          }
        } else if (!Insert(&entry)) {
          return task->SetAll(entry.positions, Outcome::kFull);
        }
        CopyBytes(entry.row, rows.values[entry.last()], layout_.value_bytes);
        if (layout_.slots_bytes > 0) {
          CopyBytes(entry.row + layout_.slots_offset, rows.slots[entry.last()],
                    layout_.slots_bytes);
        }
        if (layout_.meta_bytes > 0) {
          CopyBytes(entry.row + layout_.meta_offset, rows.meta[entry.last()], layout_.meta_bytes);
          NoteTime(entry.row);
        }
        if (!options_.marks_dirty) Changed(entry, task);
        task->SetAll(entry.positions, outcome);
      });
}

void HostTable::Clean(Span<const Key> keys) {
  std::unique_lock<FairSharedMutex> lock;  // of the segment of the last key
  for (const Key key : keys) {
    const uint64_t hash = Mix64(static_cast<uint64_t>(key));
    LockedSegment& part = *parts_[BatchOrder::SegmentOf(hash)];
    if (lock.mutex() != &part.mutex) {
      if (lock.owns_lock()) lock.unlock();
      lock = std::unique_lock<FairSharedMutex>(part.mutex);
    }
    part.segment.Unmark(key, hash);
  }
}

}  // namespace dynemb

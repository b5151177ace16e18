#include "cc/core/table/host_table.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstring>
#include <mutex>
#include <new>
#include <optional>
#include <shared_mutex>
#include <utility>
#include <vector>

#include "cc/core/base/copy_bytes.h"
#include "cc/core/base/fair_shared_mutex.h"
#include "cc/core/optimizer/rule.h"
#include "cc/core/table/batch_order.h"
#include "cc/core/table/call_checks.h"
#include "cc/core/table/call_report.h"
#include "cc/core/table/evictor.h"
#include "cc/core/table/for_each_key.h"
#include "cc/core/table/locked_segment.h"
#include "cc/core/table/memory_bound.h"
#include "cc/core/table/read_locks.h"
#include "cc/core/table/row_budget.h"
#include "cc/core/table/segment_scan.h"
#include "cc/core/table/value_functions.h"

namespace dynemb {
namespace {

constexpr int kSegments = BatchOrder::kSegments;
constexpr int64_t kReadKeys = 2048;  // that a task reads under one hold of the locks
constexpr int64_t kScanRows = 2048;  // that a scan goes through under one hold of a lock
constexpr int64_t kNanosecondsPerKey = 50;
constexpr int64_t kNanosecondsPerSegment = 1'000'000;

class HostTable final : public Table {
 public:
  HostTable(const TableSchema& schema, const TableOptions& options,
            std::shared_ptr<SlabArena> index_arena)
      : schema_(schema),
        layout_(schema),
        options_(options),
        missing_value_(MissingValue(schema, options)),
        fill_(FillFor(schema.value_dtype)),
        add_(AddFor(schema.value_dtype)),
        gradient_dtype_(GradientDType(schema.value_dtype)),
        sum_(SumFor(gradient_dtype_)),
        initial_slots_(static_cast<size_t>(std::max<int64_t>(1, layout_.slots_bytes))),
        index_arena_(std::move(index_arena)) {
    FillInitialSlots(schema_, initial_slots_.data());
    for (int s = 0; s < kSegments; ++s) {
      parts_[s].emplace(&row_arena_, index_arena_.get(), layout_,
                        static_cast<double>(s) / kSegments);
    }
    if (options_.eviction.evicts() || options_.eviction.expires()) {
      evictor_.emplace(options_.eviction, layout_, schema_.value_dtype, &parts_);
    }
  }
  ~HostTable() override { GiveBack(size()); }

  static Status Make(const TableSchema& schema, TableOptions options,
                     std::unique_ptr<Table>* table) {
    DYNEMB_RETURN_IF_ERROR(SetBudget(RowLayout(schema), 0, &options));
    auto made = std::make_unique<HostTable>(schema, options, NewIndexArena());
    if (options.max_bytes >= 0) DYNEMB_RETURN_IF_ERROR(made->ReserveWithin());
    if (options.track_changes) DYNEMB_RETURN_IF_ERROR(made->BeginEpoch(OneThread(), 1));
    *table = std::move(made);
    return Status();
  }

  // An index is read twice for each key, and is a small part of a table: a quarter of a huge page
  // is enough to take one.
  static std::shared_ptr<SlabArena> NewIndexArena() {
    return std::make_shared<SlabArena>(int64_t{512} << 10);
  }

  MemorySpace space() const override { return MemorySpace::kHost; }
  const TableSchema& schema() const override { return schema_; }

  Status Find(const Context& context, const Batch& batch, Rows values,
              const Report& report) const override {
    DYNEMB_RETURN_IF_ERROR(CheckBatch(context, batch, report));
    DYNEMB_RETURN_IF_ERROR(CheckValues("values", batch, values, schema_.value_dtype, schema_.dim));
    return ReadKeys(context, batch, report, [&](const auto& keys, TaskReport* reported) {
      const int64_t bytes = layout_.value_bytes;
      const int64_t fetched = expires() ? layout_.row_bytes : bytes;
      RowCopy copies[kKeysPerGroup];
      int64_t count = 0;  // of the group's copies
      keys.ForEach(
          fetched,
          [&, bytes, values](int64_t position, const LocatedKey& at) {
            char* out = values[position];
            if (at.row != nullptr) {
              copies[count++] = {out, at.row};
            } else {
              fill_(missing_value_, at.key, layout_.dim, out);
            }
            reported->Set(position, at.row == nullptr ? Outcome::kMissing : Outcome::kFound);
          },
          [&] {
            copy_rows_(bytes, copies, count);
            count = 0;
          });
    });
  }

  Status ReadRows(const Context& context, const Batch& batch, const RowParts& rows,
                  const Report& report) const override {
    DYNEMB_RETURN_IF_ERROR(CheckBatch(context, batch, report));
    DYNEMB_RETURN_IF_ERROR(CheckRowsToRead(layout_, batch, rows));
    const bool any = rows.values.data || rows.slots.data || rows.meta.data;
    return ReadKeys(context, batch, report, [&](const auto& keys, TaskReport* reported) {
      keys.ForEach(
          any || expires() ? layout_.row_bytes : 0,
          [&](int64_t position, const LocatedKey& at) {
            if (at.row != nullptr) CopyRow(at.row, rows, position);
            reported->Set(position, at.row == nullptr ? Outcome::kMissing : Outcome::kFound);
          },
          [] {});
    });
  }

  Status Apply(const Context& context, const Batch& batch, ConstRows gradients,
               const Update& update, const Stamp& stamp, const Report& report) override {
    DYNEMB_RETURN_IF_ERROR(CheckBatch(context, batch, report));
    DYNEMB_RETURN_IF_ERROR(
        CheckValues("gradients", batch, gradients, gradient_dtype_, schema_.dim));
    DYNEMB_RETURN_IF_ERROR(CheckScales(batch, update));
    if (update.rule == nullptr) return InvalidArgument("update.rule: got none");
    std::unique_ptr<RowUpdater> updater;
    DYNEMB_RETURN_IF_ERROR(
        MakeRowUpdater(update.rule->name, schema_.value_dtype, update.hyper, &updater));
    DYNEMB_RETURN_IF_ERROR(CheckAttached(schema_, *update.rule));
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

  Status Upsert(const Context& context, const Batch& batch, ConstRows values, const Stamp& stamp,
                const Report& report) override {
    DYNEMB_RETURN_IF_ERROR(CheckBatch(context, batch, report));
    DYNEMB_RETURN_IF_ERROR(CheckValues("values", batch, values, schema_.value_dtype, schema_.dim));
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

  Status Accumulate(const Context& context, const Batch& batch, ConstRows values_or_deltas,
                    Span<const bool> exists, const Stamp& stamp, const Report& report) override {
    DYNEMB_RETURN_IF_ERROR(CheckBatch(context, batch, report));
    DYNEMB_RETURN_IF_ERROR(
        CheckValues("values_or_deltas", batch, values_or_deltas, schema_.value_dtype, schema_.dim));
    DYNEMB_RETURN_IF_ERROR(CheckExists(batch, exists));
    const auto inserts = [&](Span<const int64_t> positions) {
      return std::any_of(positions.begin(), positions.end(),
                         [&](int64_t position) { return !exists[position]; });
    };
    return WriteKeys(context, batch, values_or_deltas, report, inserts,
                     [&, stamp = Stamped(stamp)](Entry entry, Task* task) {
                       bool written = false;
                       for (const int64_t position : entry.positions) {
                         Outcome outcome =
                             entry.row != nullptr ? Outcome::kFound : Outcome::kMissing;
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
                       }
                       if (written) Changed(entry, task);
                     });
  }

  Status Erase(const Context& context, const Batch& batch, const Report& report) override {
    DYNEMB_RETURN_IF_ERROR(CheckBatch(context, batch, report));
    return WriteKeys(context, batch, ConstRows(), report, Never(), [&](Entry entry, Task* task) {
      if (entry.row != nullptr) {
        entry.part->EraseRow(entry.key, entry.hash);
        ++task->erased;
      }
      task->SetAll(entry.positions, entry.row != nullptr ? Outcome::kFound : Outcome::kMissing);
    });
  }

  Status InsertRows(const Context& context, const Batch& batch, const ConstRowParts& rows,
                    const RowParts& displaced, const Report& report) override {
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
          Changed(entry, task);
          task->SetAll(entry.positions, outcome);
        });
  }

  Status Clear(const Context& context) override {
    DYNEMB_RETURN_IF_ERROR(CheckContext(context));
    for (auto& part : parts_) {
      std::unique_lock<FairSharedMutex> lock(part->mutex);
      const int64_t rows = part->segment.size();
      part->changes.Forget();
      part->segment.Clear();
      // Again as large as it will be. Without memory it is tried again by insertions.
      if (options_.max_bytes >= 0) static_cast<void>(part->segment.ReserveIndex(RowsOfIndex()));
      counters_.Add(&TableCounters::erased, rows);
      GiveBack(rows);
    }
    return Status();
  }

  Status Reserve(const Context& context, int64_t rows) override {
    DYNEMB_RETURN_IF_ERROR(CheckContext(context));
    if (rows < 0) return InvalidArgument("rows: got ", rows, ", want 0 or more");
    if (options_.max_bytes >= 0) return Status();  // its index has the size that it will have
    const int64_t share = RowsOfSegment(rows);
    const int64_t expected = std::min(rows, int64_t{1} << 26);  // more would make no difference
    row_arena_.Expect(expected * layout_.row_bytes);
    index_arena_->Expect(expected * Segment::kIndexBytesPerRow);
    for (auto& part : parts_) {
      std::unique_lock<FairSharedMutex> lock(part->mutex);
      if (!part->segment.ReserveIndex(share)) {
        return ResourceExhausted("no memory for an index of ", rows, " rows");
      }
    }
    return Status();
  }

  Status Export(const Context& context, Cursor* cursor, const RowParts& out,
                int64_t* rows) const override {
    DYNEMB_RETURN_IF_ERROR(CheckContext(context));
    DYNEMB_RETURN_IF_ERROR(CheckExport(layout_, out));
    DYNEMB_RETURN_IF_ERROR(CheckTablePart(*cursor));
    if (cursor->position[1] > 1 + Stripes::kMaxBits) {
      return InvalidArgument("cursor: got a position that no export has given");
    }
    ScanPlace place(cursor->position[0], cursor->position[1]);
    const int first = FirstSegment(*cursor), end = EndSegment(*cursor);
    if (place.hash == 0 && place.bits == 0) {
      place = ScanPlace(first);
      cursor->done = cursor->done || first == end;
    }
    const bool whole_rows = out.values.data || out.slots.data || out.meta.data;
    int64_t n = 0;
    const auto copy = [&](const Segment& segment, const Segment::Entry& entry) {
      if (n == out.keys.size) return false;
      const char* const row = segment.row(entry.ref);
      if (HasExpired(row)) return true;
      if (out.keys.data) out.keys[n] = entry.key;
      CopyRow(row, out, n++);
      return true;
    };
    return OrNoMemory([&] {
      while (!cursor->done && n < out.keys.size) {
        const int s = BatchOrder::SegmentOf(place.hash);
        std::shared_lock<FairSharedMutex> lock(parts_[s]->mutex);
        const Segment& segment = parts_[s]->segment;
        const bool scanned =
            ScanSegment(segment, 0, whole_rows || expires() ? layout_.row_bytes : 0, &place,
                        [&](const Segment::Entry& entry) { return copy(segment, entry); });
        if (scanned) {
          cursor->done = s + 1 >= end;
          place = ScanPlace((s + 1) % kSegments);
        }
      }
      cursor->position[0] = place.hash;
      cursor->position[1] = place.bits;
      *rows = n;
    });
  }

  Status Histogram(const Context& context, MetaField field, const RowOrder& prefix, int prefix_bits,
                   Span<int64_t> counts) const override {
    DYNEMB_RETURN_IF_ERROR(CheckContext(context));
    DYNEMB_RETURN_IF_ERROR(CheckMetaField(layout_, field));
    int bits;
    DYNEMB_RETURN_IF_ERROR(CheckCounts(counts, prefix_bits, &bits));
    std::mutex counts_mutex;
    // A few segments to a task, which counts for itself.
    const int64_t tasks = std::min<int64_t>(kSegments, 4 * context.executor->concurrency());
    return context.executor->Run(tasks, kNanosecondsPerSegment, [&](int64_t task) {
      std::vector<int64_t> own(counts.size);
      for (int64_t s = kSegments * task / tasks; s < kSegments * (task + 1) / tasks; ++s) {
        ScanInSlices<std::shared_lock<FairSharedMutex>>(
            *parts_[s], s, field, [&](const Segment::Entry&, const RowOrder& order) {
              const int64_t digit = DigitOf(order, prefix, prefix_bits, bits);
              if (digit >= 0) ++own[digit];
            });
      }
      std::lock_guard<std::mutex> lock(counts_mutex);
      for (int64_t b = 0; b < counts.size; ++b) counts[b] += own[b];
    });
  }

  Status EraseBelow(const Context& context, MetaField field, const RowOrder& bound,
                    int64_t* erased) override {
    DYNEMB_RETURN_IF_ERROR(CheckContext(context));
    DYNEMB_RETURN_IF_ERROR(CheckMetaField(layout_, field));
    std::atomic<int64_t> count{0};
    const Status done = context.executor->Run(kSegments, kNanosecondsPerSegment, [&](int64_t s) {
      LockedSegment& part = *parts_[s];
      ScanInSlices<std::unique_lock<FairSharedMutex>>(
          part, s, field, [&](const Segment::Entry& entry, const RowOrder& order) {
            if (!(order < bound)) return;
            part.EraseRow(entry.key, entry.hash);
            count.fetch_add(1, std::memory_order_relaxed);
          });
    });
    *erased = count;
    counters_.Add(&TableCounters::erased, count);
    GiveBack(count);
    return done;
  }

  Status BeginEpoch(const Context& context, int64_t epoch) override {
    DYNEMB_RETURN_IF_ERROR(CheckContext(context));
    std::lock_guard<std::mutex> one_at_a_time(epoch_mutex_);
    if (epoch <= epoch_) return EpochNotLater(epoch, epoch_);
    for (auto& part : parts_) {
      std::unique_lock<FairSharedMutex> lock(part->mutex);
      part->changes.BeginEpoch(epoch, part->segment.size());
      part->segment.ClearMarks();
    }
    epoch_ = epoch;
    return Status();
  }

  int64_t epoch() const override { return epoch_; }

  Status ChangedKeys(const Context& context, int64_t since, const TablePart& part,
                     std::vector<Key>* keys) const override {
    DYNEMB_RETURN_IF_ERROR(CheckContext(context));
    DYNEMB_RETURN_IF_ERROR(CheckTablePart(part));
    keys->clear();
    bool known = true;
    DYNEMB_RETURN_IF_ERROR(OrNoMemory([&] {
      for (int s = FirstSegment(part); known && s < EndSegment(part); ++s) {
        std::shared_lock<FairSharedMutex> lock(parts_[s]->mutex);
        known = parts_[s]->changes.AppendSince(since, keys);
      }
    }));
    if (known) return Status();
    keys->clear();
    return ChangesNotKnown(since);
  }

  void TrimChanges(int64_t through) override {
    for (auto& part : parts_) {
      std::unique_lock<FairSharedMutex> lock(part->mutex);
      part->changes.Trim(through);
    }
  }

  Status PrepareMove(const Context& context, const TableSchema& schema,
                     std::unique_ptr<RowMove>* move) override {
    DYNEMB_RETURN_IF_ERROR(CheckContext(context));
    DYNEMB_RETURN_IF_ERROR(CheckMove(schema_, schema));
    if (options_.max_bytes >= 0) return PrepareMoveWithin(schema, move);
    auto to = std::make_unique<HostTable>(schema, options_, index_arena_);
    to->row_arena_.Expect(row_arena_.memory_bytes() / layout_.row_bytes * to->layout_.row_bytes);
    return AllocateMove(std::move(to), move);
  }

  int64_t size() const override {
    int64_t rows = 0;
    for (const auto& part : parts_) {
      std::shared_lock<FairSharedMutex> lock(part->mutex);
      rows += part->segment.size();
    }
    return rows;
  }

  int64_t room() const override {
    return options_.budget == nullptr ? INT64_MAX : options_.budget->room();
  }

  int64_t max_rows() const override {
    return options_.budget == nullptr ? INT64_MAX : options_.budget->max_rows();
  }

  TableCounters counters() const override { return counters_.Read(); }

  int64_t memory_bytes() const override {
    int64_t bytes = row_arena_.memory_bytes() + index_arena_->memory_bytes();
    for (const auto& part : parts_) {
      std::shared_lock<FairSharedMutex> lock(part->mutex);
      bytes += part->changes.memory_bytes();
    }
    return bytes;
  }

 private:
  // Gives the options of a bounded table a budget, if they have none. Errors: not one row fits into
  // max_bytes.
  static Status SetBudget(const RowLayout& layout, int64_t index_bytes, TableOptions* options) {
    if (!options->is_bounded() || options->budget != nullptr) return Status();
    int64_t rows = options->max_rows;
    if (options->max_bytes >= 0) {
      const int64_t fit = RowsWithin(options->max_bytes, layout, index_bytes);
      if (fit == 0) {
        return InvalidArgument("max_bytes: got ", options->max_bytes, ", want at least ",
                               std::max(index_bytes, IndexBytes(1)) + RowBytes(1, layout),
                               " for each shard");
      }
      rows = rows < 0 ? fit : std::min(rows, fit);
    }
    options->budget = std::make_shared<RowBudget>(rows);
    return Status();
  }

  // How many rows the index of each segment is made for, of a table that is bounded by max_bytes.
  int64_t RowsOfIndex() const { return RowsOfSegment(options_.budget->max_rows()); }

  // Takes the memory of the index of a table that is bounded by max_bytes, and makes sure that no
  // more than these is taken.
  Status ReserveWithin() {
    for (auto& part : parts_) {
      if (!part->segment.ReserveIndex(RowsOfIndex())) {
        return ResourceExhausted("max_bytes: no memory for an index of ",
                                 options_.budget->max_rows(), " rows");
      }
    }
    return LimitArenas();
  }
  Status LimitArenas() {
    const int64_t index_bytes = index_arena_->memory_bytes();
    index_arena_->SetLimit(index_bytes);
    row_arena_.SetLimit(options_.max_bytes - index_bytes);
    return Status();
  }

  // PrepareMove of a table that is bounded by max_bytes, into one with as many bytes.
  Status PrepareMoveWithin(const TableSchema& schema, std::unique_ptr<RowMove>* move) {
    TableOptions options = options_;
    options.budget = nullptr;
    const RowLayout layout(schema);
    if (size() == 0) {  // whose index can have another size
      DYNEMB_RETURN_IF_ERROR(SetBudget(layout, 0, &options));
      auto to = std::make_unique<HostTable>(schema, options, NewIndexArena());
      DYNEMB_RETURN_IF_ERROR(to->ReserveWithin());
      *move = std::make_unique<Move>(this, std::move(to));
      return Status();
    }
    const int64_t index_bytes = index_arena_->memory_bytes();
    DYNEMB_RETURN_IF_ERROR(SetBudget(layout, index_bytes, &options));
    int64_t allocated = 0;
    for (const auto& part : parts_) allocated += part->segment.allocated_rows();
    const int64_t needed = index_bytes + allocated * layout.row_bytes;
    if (size() > options.budget->max_rows() || needed > options.max_bytes) {
      return ResourceExhausted("max_bytes: got ", options.max_bytes, ", want at least ", needed,
                               " for ", size(), " rows of ", layout.row_bytes,
                               " bytes, as an optimizer makes them; before they had ",
                               layout_.row_bytes, "; give a larger max_bytes");
    }
    auto to = std::make_unique<HostTable>(schema, options, index_arena_);
    options.budget->Take(size());
    DYNEMB_RETURN_IF_ERROR(to->LimitArenas());
    return AllocateMove(std::move(to), move);
  }

  // This is address space alone; memory is taken as rows are written, and given back in turn.
  Status AllocateMove(std::unique_ptr<HostTable> to, std::unique_ptr<RowMove>* move) {
    for (int s = 0; s < kSegments; ++s) {
      if (to->parts_[s]->segment.AllocateRowsOf(parts_[s]->segment)) continue;
      return ResourceExhausted("no memory for rows of ", to->layout_.row_bytes, " bytes, before ",
                               layout_.row_bytes);
    }
    *move = std::make_unique<Move>(this, std::move(to));
    return Status();
  }

  // One key of a call that changes rows.
  struct Entry : LocatedKey {
    LockedSegment* part;
    Span<const int64_t> positions;
    int64_t last() const { return positions[positions.size - 1]; }
  };

  // What a task that changes rows keeps from one key to the next.
  struct Task : TaskReport {
    Task(const Report& report, int64_t scratch_bytes)
        : TaskReport(report), sums(static_cast<size_t>(scratch_bytes)) {}
    RowUpdater::Row updates[kKeysPerGroup];  // to be made at the end of the group of keys
    int64_t update_count = 0;
    // Keys of the group that have been written and may not be listed as changed.
    struct {
      Key key;
      uint64_t hash;
    } changed[kKeysPerGroup];
    int64_t changed_count = 0;
    std::vector<char> sums;  // of the gradients of each key of the group
    // Rows that have been inserted, and removed by key or because they had expired.
    int64_t inserted = 0, erased = 0, expired = 0;
    int64_t distinct = 0;  // keys that have been written
    int64_t written() const { return count(Outcome::kFound) + count(Outcome::kInserted); }
    // Distinct keys that were left out, to be inserted when there is room: where they stand in the
    // batch, in its order.
    std::vector<Span<const int64_t>> deferred;

    // Without memory for the rest of the call its outcome is this one.
    void Defer(Span<const int64_t> positions, const Report& report) {
      deferred.push_back(positions);
      if (report.outcomes.empty()) return;
      for (const int64_t i : positions) report.outcomes[i] = Outcome::kFull;
    }
  };

  // TableCounters that any thread may add to.
  class Counters {
   public:
    void Add(int64_t TableCounters::* what, int64_t number) {
      if (number != 0) At(what)->fetch_add(number, std::memory_order_relaxed);
    }
    TableCounters Read() const {
      TableCounters read;
      TableCounters::ForEach([&](const char*, int64_t TableCounters::* what) {
        read.*what = const_cast<Counters*>(this)->At(what)->load(std::memory_order_relaxed);
      });
      return read;
    }
    // Goes on from those of another table.
    void Start(const TableCounters& from) {
      TableCounters::ForEach(
          [&](const char*, int64_t TableCounters::* what) { *At(what) = from.*what; });
    }

   private:
    static_assert(sizeof(TableCounters) % sizeof(int64_t) == 0, "numbers alone");
    // The number with the same place as in TableCounters.
    std::atomic<int64_t>* At(int64_t TableCounters::* what) {
      static const TableCounters places{};
      return &numbers_[&(places.*what) - reinterpret_cast<const int64_t*>(&places)];
    }
    std::atomic<int64_t> numbers_[sizeof(TableCounters) / sizeof(int64_t)] = {};
  };

  class Move final : public RowMove {
   public:
    Move(HostTable* from, std::unique_ptr<HostTable> to) : from_(from), to_(std::move(to)) {}

    std::unique_ptr<Table> Run(const Context& context) override {
      const RowLayout &old_layout = from_->layout_, &new_layout = to_->layout_;
      const bool same_slots = from_->schema_.rule == to_->schema_.rule;
      const bool takes_rows = from_->size() > 0 || from_->index_arena_ == to_->index_arena_;
      bool moved[kSegments] = {};
      const auto move = [&](int64_t s) {
        moved[s] = true;
        to_->parts_[s]->changes = std::move(from_->parts_[s]->changes);
        if (!takes_rows) return;
        to_->parts_[s]->segment.TakeRows(
            &from_->parts_[s]->segment, [&](const char* old_row, char* new_row) {
              CopyBytes(new_row + new_layout.slots_offset,
                        same_slots ? old_row + old_layout.slots_offset : to_->initial_slots_.data(),
                        new_layout.slots_bytes);
              for (int field = 0; field < kMetaFields; ++field) {
                const int64_t from = old_layout.meta_field[field];
                const int64_t to = new_layout.meta_field[field];
                if (to < 0) continue;
                WriteInt64(from < 0 ? 0 : ReadInt64(old_row + old_layout.meta_offset + from),
                           new_row + new_layout.meta_offset + to);
              }
            });
      };
      if (!context.executor->Run(kSegments, kNanosecondsPerSegment, move).ok()) {
        for (int s = 0; s < kSegments; ++s) {  // a task takes no memory: it is the executor's
          if (!moved[s]) move(s);
        }
      }
      to_->epoch_ = from_->epoch();
      to_->counters_.Start(from_->counters());
      if (to_->evictor_) to_->evictor_->AdvanceClock(from_->evictor_->clock());
      return std::move(to_);
    }

   private:
    HostTable* const from_;
    std::unique_ptr<HostTable> to_;
  };

  const Segment& SegmentOf(uint64_t hash) const {
    return parts_[BatchOrder::SegmentOf(hash)]->segment;
  }
  static int FirstSegment(const TablePart& part) {
    return static_cast<int>(kSegments * part.part / part.parts);
  }
  static int EndSegment(const TablePart& part) {
    return static_cast<int>(kSegments * (part.part + 1) / part.parts);
  }

  // Those keys of a batch that one task reads: ForEach(row_bytes, visit(position, located),
  // end_group()), as ForEachKey.
  template <typename PositionAt, typename KeyAt>
  struct KeysToRead {
    const HostTable* table;
    int64_t begin, end;
    PositionAt position;
    KeyAt key;

    template <typename Visit, typename EndGroup>
    void ForEach(int64_t row_bytes, const Visit& visit, const EndGroup& end_group) const {
      ForEachKey(
          begin, end, row_bytes, key,
          [this](uint64_t hash) -> const Segment& { return table->SegmentOf(hash); },
          [](int64_t) {},
          [this, &visit, at = position](int64_t i, const LocatedKey& key) {
            if (key.row == nullptr || !table->HasExpired(key.row)) return visit(at(i), key);
            visit(at(i), LocatedKey{key.key, key.hash, Segment::kNone, nullptr, false});
          },
          end_group);
    }
  };

  // The frame of all calls that read by key: calls read(keys, report) for each task's, with their
  // segments held.
  template <typename Read>
  Status ReadKeys(const Context& context, const Batch& batch, const Report& report,
                  const Read& read) const {
    const int64_t n = batch.select == nullptr ? batch.keys.size : *batch.select->count;
    CallReport whole(report);
    return context.executor->Run(
        (n + kReadKeys - 1) / kReadKeys, kReadKeys * kNanosecondsPerKey, [&](int64_t task) {
          const int64_t begin = task * kReadKeys, end = std::min(n, begin + kReadKeys);
          // On the stack, where no store to a row can change them.
          const int64_t* const selected = batch.select == nullptr ? nullptr : batch.select->at.data;
          const auto position = [selected](int64_t i) {
            return selected == nullptr ? i : selected[i];
          };
          const auto key = [keys = batch.keys.data, position](int64_t i) {
            return keys[position(i)];
          };
          const ReadLocks<kSegments> locks(
              begin, end,
              [&](int64_t i) {
                return BatchOrder::SegmentOf(Mix64(static_cast<uint64_t>(key(i))));
              },
              [&](int s) { return &parts_[s]->mutex; });
          TaskReport reported(report);
          read(KeysToRead<decltype(position), decltype(key)>{this, begin, end, position, key},
               &reported);
          whole.Add(reported);
          counters_.Add(&TableCounters::found, reported.count(Outcome::kFound));
          counters_.Add(&TableCounters::missing, reported.count(Outcome::kMissing));
        });
  }

  // Which missing keys a call inserts, by their positions.
  struct Always {
    bool operator()(Span<const int64_t>) const { return true; }
  };
  struct Never {
    bool operator()(Span<const int64_t>) const { return false; }
  };
  struct WholeRows : Always {
    explicit WholeRows(const ConstRowParts& rows) : rows(rows) {}
    const ConstRowParts& rows;
  };

  // In which order missing keys are inserted where there is no room for all: that of the batch. Of
  // whole rows those with the lowest scores come first, since they leave again.
  template <typename Which>
  bool Before(const Which&, Span<const int64_t> a, Span<const int64_t> b) const {
    return a[0] < b[0];
  }
  bool Before(const WholeRows& which, Span<const int64_t> a, Span<const int64_t> b) const {
    const auto score = [&](Span<const int64_t> at) {
      if (!options_.eviction.evicts()) return int64_t{0};
      const int64_t last = at[at.size - 1];
      return evictor_->Score(which.rows.values[last], which.rows.meta[last]);
    };
    return std::make_pair(score(a), a[0]) < std::make_pair(score(b), b[0]);
  }

  template <typename Which, typename WriteKey>
  Status WriteKeys(const Context& context, const Batch& batch, const ConstRows& inputs,
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
  Status WriteKeys(const Context& context, const Batch& batch, const ConstRows& inputs,
                   int64_t scratch_bytes, const Report& report, const Which& inserts,
                   const WriteKey& write_key, const EndGroup& end_group) {
    std::optional<BatchOrder> order;
    CallReport whole(report);
    const Status ordered = OrNoMemory([&] { order.emplace(context, batch); });
    if (!ordered.ok()) {
      const int64_t n = batch.select == nullptr ? batch.keys.size : *batch.select->count;
      for (int64_t i = 0; i < n; ++i) {
        const int64_t position = batch.select == nullptr ? i : batch.select->at[i];
        whole.AddFull({&position, 1});
      }
      return ordered;
    }
    RowBudget::Taken taken(options_.budget.get());
    const auto write = [&](BatchOrder* these, std::vector<Span<const int64_t>>* deferred) {
      return WriteInOrder(context, these, inputs, scratch_bytes, report, inserts, write_key,
                          end_group, deferred, &whole, &taken);
    };
    Status written;
    if (std::is_same_v<Which, Never> || taken.TakeForCall(order->size())) {
      written = write(&*order, nullptr);
    } else {
      const bool evicts = options_.eviction.evicts();
      // Rows that are put back, as by a restore, are not dropped.
      const bool refuses =
          !evicts && (options_.on_full == OnFull::kError || std::is_same_v<Which, WholeRows>);
      if (refuses) DYNEMB_RETURN_IF_ERROR(TakeForMissing(context, &*order, inserts, &taken));
      std::vector<Span<const int64_t>> deferred;
      written = write(&*order, &deferred);
      const auto insert = [&](size_t begin, size_t end) {
        if (written.ok() && !refuses) {
          written = MakeRoom(context, static_cast<int64_t>(end - begin), &taken);
        }
        const Outcome otherwise = refuses || !written.ok() ? Outcome::kFull : Outcome::kDeclined;
        std::vector<int64_t> select =
            LeaveOut({deferred.data() + begin, static_cast<int64_t>(end - begin)}, taken.rows(),
                     otherwise, report, &whole);
        int64_t count = static_cast<int64_t>(select.size());
        const Positions positions = {select, &count};
        BatchOrder these(context, {batch.keys, &positions});
        const Status inserted = write(&these, nullptr);
        if (written.ok()) written = inserted;
      };
      const Status inserted = OrNoMemory([&] {
        if (static_cast<int64_t>(deferred.size()) > taken.rows()) {
          std::sort(deferred.begin(), deferred.end(),
                    [&](const auto& a, const auto& b) { return Before(inserts, a, b); });
        }
        // Whole rows come with scores, and may evict each other: a part of the table at a time.
        const size_t step = evicts && std::is_same_v<Which, WholeRows>
                                ? static_cast<size_t>(options_.budget->max_rows() / 16 + 1)
                                : deferred.size();
        for (size_t at = 0; at < deferred.size(); at += step) {
          insert(at, std::min(at + step, deferred.size()));
        }
      });
      if (written.ok()) written = inserted;
    }
    if (expires() && written.ok()) {
      written = RemoveExpired(context, order->distinct() / 4 + 64, &taken);
    }
    if (whole.full()) return ResourceExhausted("no memory for more rows; the table has ", size());
    return written;
  }

  // Takes the room that the missing keys of a batch need. kResourceExhausted: there is not so much.
  template <typename Which>
  Status TakeForMissing(const Context& context, BatchOrder* order, const Which& inserts,
                        RowBudget::Taken* taken) {
    std::atomic<int64_t> missing{0}, example{-1};
    DYNEMB_RETURN_IF_ERROR(taken->Settle(INT64_MAX, [&](int64_t* rows) {
      const Status counted =
          context.executor->Run(kSegments, kNanosecondsPerSegment, [&](int64_t s) {
            BatchOrder::Scratch scratch;
            const int64_t distinct = order->Group(s, &scratch);
            const std::shared_lock<FairSharedMutex> lock(parts_[s]->mutex);
            ForEachKey(
                0, distinct, 0, [&](int64_t i) { return order->key(s, i); },
                [&](uint64_t) -> const Segment& { return parts_[s]->segment; }, [](int64_t) {},
                [&](int64_t i, const LocatedKey& at) {
                  if (at.row != nullptr || !inserts(order->positions(s, i))) return;
                  ++missing;
                  example = order->positions(s, i)[0];
                },
                [] {});
          });
      *rows = missing;
      return counted;
    }));
    if (taken->rows() == missing) return Status();
    const char* const limit = options_.max_bytes >= 0 ? "max_bytes" : "max_rows";
    return ResourceExhausted(limit, ": got ", missing.load(), " keys without a row, for ", size(),
                             " rows of at most ", options_.budget->max_rows(), "; want a larger ",
                             limit, ", or an eviction policy");
  }

  // Takes room for so many rows, by evicting others where there is not enough; or less, if there
  // are no more.
  Status MakeRoom(const Context& context, int64_t rows, RowBudget::Taken* taken) {
    DYNEMB_RETURN_IF_ERROR(taken->Settle(0, [rows](int64_t* wanted) {
      *wanted = rows;
      return Status();
    }));
    if (taken->rows() >= rows || !options_.eviction.evicts()) return Status();
    int64_t evicted;
    const Status status = evictor_->Evict(context, rows - taken->rows(), &evicted);
    counters_.Add(&TableCounters::evicted, evicted);
    taken->Add(evicted);
    return status;
  }

  // The positions of the first `most` of some keys; the others get this outcome.
  std::vector<int64_t> LeaveOut(Span<const Span<const int64_t>> keys, int64_t most, Outcome outcome,
                                const Report& report, CallReport* whole) {
    std::vector<int64_t> positions;
    TaskReport left_out(report);
    for (int64_t i = 0; i < keys.size; ++i) {
      if (i < most) {
        positions.insert(positions.end(), keys[i].begin(), keys[i].end());
      } else {
        left_out.SetAll(keys[i], outcome);
      }
    }
    counters_.Add(&TableCounters::declined, left_out.count(Outcome::kDeclined));
    whole->Add(left_out);
    return positions;
  }

  Status RemoveExpired(const Context& context, int64_t rows, RowBudget::Taken* taken) {
    int64_t removed;
    const Status status = evictor_->RemoveExpired(context, rows, &removed);
    counters_.Add(&TableCounters::expired, removed);
    if (options_.budget != nullptr) taken->Add(removed);
    return status;
  }

  // One pass of a call that changes rows by key. Keys that would be inserted go to `deferred`, if
  // that is not null.
  template <typename Which, typename WriteKey, typename EndGroup>
  Status WriteInOrder(const Context& context, BatchOrder* order, const ConstRows& inputs,
                      int64_t scratch_bytes, const Report& report, const Which& inserts,
                      const WriteKey& write_key, const EndGroup& end_group,
                      std::vector<Span<const int64_t>>* deferred, CallReport* whole,
                      RowBudget::Taken* taken) {
    std::mutex mutex;  // of `deferred` and `taken`
    // Several segments to a task, which use its memory in turn.
    const int64_t tasks = std::min<int64_t>(kSegments, 4 * context.executor->concurrency());
    bool begun[kSegments] = {};  // each task's
    const auto write = [&](int64_t end, int64_t* next, Task* task) {
      BatchOrder::Scratch scratch;
      int64_t positions = 0;
      for (int64_t s = *next; s < end; ++s) positions += order->size(s);
      task->Reserve(positions);
      if (deferred != nullptr) task->deferred.reserve(static_cast<size_t>(positions));
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
            [&](int64_t i) {
              if (inputs.data == nullptr) return;
              PrefetchRow(inputs[order->positions(s, i)[0]], layout_.value_bytes);
            },
            [&](int64_t i, const LocatedKey& at) {
              Entry entry{at, part, order->positions(s, i)};
              if (entry.row != nullptr && HasExpired(entry.row)) EraseExpired(&entry, task);
              if (deferred != nullptr && entry.row == nullptr && inserts(entry.positions)) {
                task->Defer(entry.positions, report);
                return;
              }
              const int64_t written = task->written();
              write_key(entry, task);
              if (task->written() != written) ++task->distinct;
            },
            [&] {
              end_group(task);
              ListChanges(part, task);
            });
        task->inserted += part->segment.size() + task->erased + task->expired - rows_before;
      }
    };
    const auto add_full = [&](int64_t begin, int64_t end) {
      for (int64_t s = begin; s < end; ++s) whole->AddFull(order->positions(s));
    };
    const Status ran = context.executor->Run(
        tasks, order->size() / tasks * kNanosecondsPerKey, [&](int64_t number) {
          const int64_t end = kSegments * (number + 1) / tasks;
          int64_t next = kSegments * number / tasks;
          begun[number] = true;
          std::optional<Task> task;
          // Memory runs out between segments, so that none is half done.
          const Status written = OrNoMemory([&] {
            task.emplace(report, scratch_bytes);
            write(end, &next, &*task);
          });
          if (task) whole->Add(*task);
          const std::lock_guard<std::mutex> lock(mutex);
          if (task) Count(*task, taken);
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
  void Count(const Task& task, RowBudget::Taken* taken) {
    counters_.Add(&TableCounters::written, task.written());
    counters_.Add(&TableCounters::distinct, task.distinct);
    counters_.Add(&TableCounters::inserted, task.inserted);
    counters_.Add(&TableCounters::erased, task.erased);
    counters_.Add(&TableCounters::expired, task.expired);
    if (options_.budget != nullptr) taken->Inserted(task.inserted - task.erased - task.expired);
  }
  void GiveBack(int64_t rows) {
    if (options_.budget != nullptr) options_.budget->Give(rows);
  }

  // Calls visit(entry, order) for the rows of a part, in slices of about kScanRows rows between
  // which its lock is given back. A slice is a range of hashes, so that no row is met twice.
  template <typename Lock, typename PartType, typename Visit>
  void ScanInSlices(PartType& part, int64_t number, MetaField field, const Visit& visit) const {
    constexpr int kHashBits = 64 - BatchOrder::kSegmentBits;
    constexpr int kMostBits = 32;
    const int64_t offset = layout_.meta_offset + layout_.meta_field[static_cast<int>(field)];
    int bits = 0;  // of the number of a slice
    {
      std::shared_lock<FairSharedMutex> lock(part.mutex);
      while (bits < kMostBits && part.segment.size() >> bits > kScanRows) ++bits;
    }
    for (uint64_t slice = 0; slice < uint64_t{1} << bits; ++slice) {
      const uint64_t width = uint64_t{1} << (kHashBits - bits);
      const uint64_t first = (static_cast<uint64_t>(number) << kHashBits) + slice * width;
      const Lock lock(part.mutex);
      part.segment.ForEachInRange(
          {first, first + (width - 1)},
          [offset](const char* row) {
            __builtin_prefetch(row);  // where an erased row is linked
            __builtin_prefetch(row + offset);
          },
          [&](const Segment::Entry& entry) {
            visit(entry, RowOrder{ReadInt64(part.segment.row(entry.ref) + offset), entry.hash});
          });
    }
  }

  // Copies a row to row i of `out`, the parts that it has buffers for.
  void CopyRow(const char* row, const RowParts& out, int64_t i) const {
    if (out.values.data) CopyBytes(out.values[i], row, layout_.value_bytes);
    if (out.slots.data) CopyBytes(out.slots[i], row + layout_.slots_offset, layout_.slots_bytes);
    if (out.meta.data) CopyBytes(out.meta[i], row + layout_.meta_offset, layout_.meta_bytes);
  }

  // A new row, whose bytes are the caller's to write. False: no memory.
  static bool Insert(Entry* entry) {
    entry->ref = entry->part->segment.Insert(entry->key, entry->hash);
    if (entry->ref == Segment::kNone) return false;
    entry->row = entry->part->segment.row(entry->ref);
    return true;
  }

  // A new row with initial slots and meta of zeros; the value is the caller's to write.
  bool InsertInitial(Entry* entry) const {
    if (!Insert(entry)) return false;
    CopyBytes(entry->row + layout_.slots_offset, initial_slots_.data(), layout_.slots_bytes);
    char* const meta = entry->row + layout_.meta_offset;
    std::memset(meta, 0, static_cast<size_t>(layout_.meta_bytes));
    if (options_.eviction.half_life > 0) {
      WriteInt64(kNeverWritten, meta + layout_.meta_field[static_cast<int>(MetaField::kScore)]);
    }
    return true;
  }

  static Initializer MissingValue(const TableSchema& schema, const TableOptions& options) {
    Initializer initializer = schema.initializer;
    if (const auto value = options.missing_value) {
      initializer = Initializer();
      initializer.constant = {*value};
    }
    return initializer;
  }

  bool expires() const { return options_.eviction.expires(); }
  bool HasExpired(const char* row) const {
    return expires() && evictor_->HasExpired(row, evictor_->clock());
  }
  // Erases a row that has expired: its key is missing.
  static void EraseExpired(Entry* entry, Task* task) {
    entry->part->EraseRow(entry->key, entry->hash);
    entry->ref = Segment::kNone;
    entry->row = nullptr;
    entry->marked = false;
    ++task->expired;
  }

  // What a call writes to the meta of its rows: where the policy goes by time, that does not fall.
  struct CallStamp {
    int64_t now;
    int64_t write;  // of AddWrite, if there is a half-life
  };
  CallStamp Stamped(const Stamp& stamp) const {
    const EvictionPolicy& policy = options_.eviction;
    int64_t now = stamp.now;
    if (policy.uses_time()) now = std::max<int64_t>(evictor_->AdvanceClock(stamp.now), 0);
    return {now, policy.half_life > 0 ? DecayedWrite(now, policy.half_life) : 0};
  }
  // Notes the time of a row that comes from elsewhere.
  void NoteTime(const char* row) {
    const int64_t at = layout_.meta_field[static_cast<int>(MetaField::kLastWriteTime)];
    if (at < 0 || !options_.eviction.uses_time()) return;
    evictor_->AdvanceClock(ReadInt64(row + layout_.meta_offset + at));
  }

  // What follows the writes of a key's row, once: its change is noted, and its meta stamped.
  void Wrote(const CallStamp& stamp, const Entry& entry, Task* task) const {
    Changed(entry, task);
    StampMeta(stamp, entry.row);
  }
  // Without a branch: some keys of a group are mostly listed already, and others are not.
  static void Changed(const Entry& entry, Task* task) {
    task->changed[task->changed_count] = {entry.key, entry.hash};
    task->changed_count += !entry.marked;
  }
  static void ListChanges(LockedSegment* part, Task* task) {
    const int64_t count = std::exchange(task->changed_count, 0);
    if (!part->changes.tracking()) return;
    for (int64_t i = 0; i < count; ++i) {
      const auto& [key, hash] = task->changed[i];
      if (!part->segment.Mark(key, hash)) part->changes.Add(key, part->segment.size());
    }
  }
  void StampMeta(const CallStamp& stamp, char* row) const {
    if (layout_.meta_bytes == 0) return;
    char* const meta = row + layout_.meta_offset;
    const auto field = [&](MetaField f) { return layout_.meta_field[static_cast<int>(f)]; };
    if (const int64_t at = field(MetaField::kLastWriteTime); at >= 0)
      WriteInt64(stamp.now, meta + at);
    if (const int64_t at = field(MetaField::kCount); at >= 0) {
      // Unsigned, since a count that was inserted may be anything.
      WriteInt64(static_cast<int64_t>(static_cast<uint64_t>(ReadInt64(meta + at)) + 1), meta + at);
    }
    if (options_.eviction.half_life > 0) {
      char* const score = meta + field(MetaField::kScore);
      WriteInt64(AddWrite(ReadInt64(score), stamp.write), score);
    }
  }

  const TableSchema schema_;
  const RowLayout layout_;
  const TableOptions options_;
  const Initializer missing_value_;  // what a key without a row reads
  const FillFunction fill_;
  const AddFunction add_;
  const DType gradient_dtype_;
  const SumFunction sum_;  // of gradients
  const CopyRowsFunction copy_rows_ = FastestCopyRows();
  std::vector<char> initial_slots_;  // of a row; never empty, for it is copied from
  SlabArena row_arena_{int64_t{4} << 20};
  const std::shared_ptr<SlabArena> index_arena_;  // of the table whose rows this one took, too
  LockedSegments parts_;
  mutable std::optional<Evictor> evictor_;  // where the options have a policy
  mutable Counters counters_;
  std::mutex epoch_mutex_;
  std::atomic<int64_t> epoch_{0};  // written under the mutex
};

}  // namespace

Status MakeHostTable(const TableSchema& schema, const TableOptions& options,
                     std::unique_ptr<Table>* table) {
  DYNEMB_RETURN_IF_ERROR(schema.Validate());
  DYNEMB_RETURN_IF_ERROR(options.Validate());
  for (int field = 0; field < kMetaFields; ++field) {
    if (!options.eviction.meta().has(MetaField(field)) || schema.meta.has(MetaField(field)))
      continue;
    return InvalidArgument("eviction: want the meta field ", Name(MetaField(field)),
                           " in the schema, for the policy to read");
  }
  return HostTable::Make(schema, options, table);
}

}  // namespace dynemb

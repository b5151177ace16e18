#include "cc/core/table/host_table.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <type_traits>
#include <utility>

#include "cc/core/base/copy_bytes.h"
#include "cc/core/table/batch_order.h"
#include "cc/core/table/call_checks.h"
#include "cc/core/table/call_report.h"
#include "cc/core/table/erase_log.h"
#include "cc/core/table/export_segment.h"
#include "cc/core/table/for_each_key.h"
#include "cc/core/table/read_locks.h"
#include "cc/core/table/segment.h"
#include "cc/core/table/value_functions.h"

namespace dynemb {
namespace {

constexpr int kSegments = BatchOrder::kSegments;
constexpr int64_t kFindKeys = 2048;  // that a task looks up under one hold of the locks
constexpr int64_t kNanosecondsPerKey = 50;

class HostTable final : public Table {
 public:
  explicit HostTable(const TableSchema& schema)
      : schema_(schema),
        layout_(schema),
        fill_(FillFor(schema.value_dtype)),
        add_(AddFor(schema.value_dtype)),
        gradient_dtype_(GradientDType(schema.value_dtype)),
        sum_(SumFor(gradient_dtype_)) {
    for (int s = 0; s < kSegments; ++s) {
      parts_[s].emplace(&row_arena_, &index_arena_, layout_, static_cast<double>(s) / kSegments);
    }
  }

  MemorySpace space() const override { return MemorySpace::kHost; }

  TableSchema schema() const override {
    std::shared_lock<std::shared_mutex> schema_lock(schema_mutex_);
    return schema_;
  }

  Status Find(const Context& context, const Batch& batch, IfMissing if_missing, Rows values,
              const Report& report) const override {
    DYNEMB_RETURN_IF_ERROR(CheckBatch(context, batch, report));
    DYNEMB_RETURN_IF_ERROR(CheckValues("values", batch, values, schema_.value_dtype, schema_.dim));
    std::shared_lock<std::shared_mutex> schema_lock(schema_mutex_);
    const int64_t n = batch.select == nullptr ? batch.keys.size : *batch.select->count;
    CallReport whole(report);
    context.executor->Run(
        (n + kFindKeys - 1) / kFindKeys, kFindKeys * kNanosecondsPerKey, [&](int64_t task) {
          const int64_t begin = task * kFindKeys, end = std::min(n, begin + kFindKeys);
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
          const int64_t bytes = layout_.value_bytes;
          RowCopy copies[kKeysPerGroup];
          int64_t count = 0;  // of the group's copies
          ForEachKey(
              begin, end, bytes, key,
              [&](uint64_t hash) -> const Segment& { return SegmentOf(hash); }, [](int64_t) {},
              [&, bytes, position, values](int64_t i, Key key, uint64_t, const char* row) {
                char* out = values[position(i)];
                if (row != nullptr) {
                  copies[count++] = {out, row};
                } else if (if_missing == IfMissing::kInitialValue) {
                  fill_(schema_.initializer, key, layout_.dim, out);
                }
                reported.Set(position(i), row == nullptr ? Outcome::kMissing : Outcome::kFound);
              },
              [&] {
                copy_rows_(bytes, copies, count);
                count = 0;
              });
          whole.Add(reported);
        });
    return Status();
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
    const int64_t gradient_bytes = schema_.dim * SizeOf(gradient_dtype_);
    return Write(context, batch, gradients, report, [&](const auto& writer) {
      DYNEMB_RETURN_IF_ERROR(CheckAttached(schema_, *update.rule));
      const auto update_rows = [&](Task* task) {
        updater->Update(layout_.dim, Span<const RowUpdater::Row>(task->updates));
        task->updates.clear();
      };
      const auto collect = [&](Entry entry, Task* task) {
        if (task->sums.empty()) task->sums.resize(kKeysPerGroup * gradient_bytes);
        Outcome outcome = Outcome::kFound;
        if (entry.row == nullptr) {
          entry.row = InsertInitial(entry);
          if (entry.row == nullptr) return task->SetAll(entry.positions, Outcome::kFull);
          fill_(schema_.initializer, entry.key, layout_.dim, entry.row);
          outcome = Outcome::kInserted;
        }
        StampRow(stamp, entry);
        task->SetAll(entry.positions, outcome);
        RowUpdater::Row row = {entry.row, entry.row + layout_.slots_offset,
                               gradients[entry.positions[0]]};
        if (entry.positions.size > 1 || !update.scales.empty()) {
          char* const sum = task->sums.data() + task->updates.size() * gradient_bytes;
          sum_(layout_.dim, gradients, entry.positions, update.scales.data_or_null(), sum);
          row.gradient = sum;
        }
        task->updates.push_back(row);
      };
      return writer(collect, update_rows);
    });
  }

  Status Upsert(const Context& context, const Batch& batch, ConstRows values, const Stamp& stamp,
                const Report& report) override {
    DYNEMB_RETURN_IF_ERROR(CheckBatch(context, batch, report));
    DYNEMB_RETURN_IF_ERROR(CheckValues("values", batch, values, schema_.value_dtype, schema_.dim));
    return Write(context, batch, values, report, [&](const auto& writer) {
      return writer([&](Entry entry, Task* task) {
        Outcome outcome = Outcome::kFound;
        if (entry.row == nullptr) {
          entry.row = InsertInitial(entry);
          if (entry.row == nullptr) return task->SetAll(entry.positions, Outcome::kFull);
          outcome = Outcome::kInserted;
        }
        CopyBytes(entry.row, values[entry.last()], layout_.value_bytes);
        StampRow(stamp, entry);
        task->SetAll(entry.positions, outcome);
      });
    });
  }

  Status Accumulate(const Context& context, const Batch& batch, ConstRows values_or_deltas,
                    Span<const bool> exists, const Stamp& stamp, const Report& report) override {
    DYNEMB_RETURN_IF_ERROR(CheckBatch(context, batch, report));
    DYNEMB_RETURN_IF_ERROR(
        CheckValues("values_or_deltas", batch, values_or_deltas, schema_.value_dtype, schema_.dim));
    DYNEMB_RETURN_IF_ERROR(CheckExists(batch, exists));
    return Write(context, batch, values_or_deltas, report, [&](const auto& writer) {
      return writer([&](Entry entry, Task* task) {
        for (const int64_t position : entry.positions) {
          Outcome outcome = entry.row != nullptr ? Outcome::kFound : Outcome::kMissing;
          if ((entry.row != nullptr) == exists[position]) {
            if (entry.row != nullptr) {
              add_(layout_.dim, entry.row, values_or_deltas[position]);
            } else if ((entry.row = InsertInitial(entry)) != nullptr) {
              CopyBytes(entry.row, values_or_deltas[position], layout_.value_bytes);
              outcome = Outcome::kInserted;
            } else {
              outcome = Outcome::kFull;
            }
            if (entry.row != nullptr) StampRow(stamp, entry);
          }
          task->Set(position, outcome);
        }
      });
    });
  }

  Status Erase(const Context& context, const Batch& batch, const Report& report) override {
    DYNEMB_RETURN_IF_ERROR(CheckBatch(context, batch, report));
    return Write(context, batch, ConstRows(), report, [&](const auto& writer) {
      return writer([&](Entry entry, Task* task) {
        if (entry.row != nullptr) EraseRow(entry.segment, entry.key, entry.hash);
        task->SetAll(entry.positions, entry.row != nullptr ? Outcome::kFound : Outcome::kMissing);
      });
    });
  }

  Status Clear(const Context& context) override {
    DYNEMB_RETURN_IF_ERROR(CheckContext(context));
    std::shared_lock<std::shared_mutex> schema_lock(schema_mutex_);
    for (auto& part : parts_) {
      std::unique_lock<std::shared_mutex> lock(part->mutex);
      part->segment.Clear();
    }
    erase_log_.Lose(version_);
    return Status();
  }

  Status Attach(const Context& context, const RuleSpec& rule) override {
    DYNEMB_RETURN_IF_ERROR(CheckContext(context));
    {
      std::shared_lock<std::shared_mutex> schema_lock(schema_mutex_);
      if (schema_.rule == rule) return Status();
    }
    std::unique_lock<std::shared_mutex> schema_lock(schema_mutex_);
    if (schema_.rule == rule) return Status();
    if (!schema_.rule.name.empty()) {
      return OtherRule(schema_.rule, rule);
    }
    TableSchema schema = schema_;
    schema.rule = rule;
    DYNEMB_RETURN_IF_ERROR(schema.Validate());
    DYNEMB_RETURN_IF_ERROR(Relayout(schema, RowLayout(schema, version_ > 0)));
    schema_.rule = rule;  // nothing else has changed, and the rest is read without the lock
    return Status();
  }

  Status Reserve(const Context& context, int64_t rows) override {
    DYNEMB_RETURN_IF_ERROR(CheckContext(context));
    if (rows < 0) return InvalidArgument("rows: got ", rows, ", want 0 or more");
    std::shared_lock<std::shared_mutex> schema_lock(schema_mutex_);
    // Hashing spreads n rows over segments with a standard deviation of about sqrt(n / segments).
    const double mean = static_cast<double>(rows) / kSegments;
    const int64_t share = rows == 0 ? 0 : static_cast<int64_t>(mean + 6 * std::sqrt(mean) + 1);
    const int64_t expected = std::min(rows, int64_t{1} << 26);  // more would make no difference
    row_arena_.Expect(expected * layout_.row_bytes);
    index_arena_.Expect(expected * Segment::kIndexBytesPerRow);
    for (auto& part : parts_) {
      std::unique_lock<std::shared_mutex> lock(part->mutex);
      if (!part->segment.ReserveIndex(share)) {
        return ResourceExhausted("no memory for an index of ", rows, " rows");
      }
    }
    return Status();
  }

  Status Export(const Context& context, Cursor* cursor, const RowParts& out,
                int64_t* rows) const override {
    DYNEMB_RETURN_IF_ERROR(CheckContext(context));
    const int64_t capacity = out.keys.size;
    std::shared_lock<std::shared_mutex> schema_lock(schema_mutex_);
    DYNEMB_RETURN_IF_ERROR(CheckExport(layout_, out));
    const int64_t since = cursor->since_version;
    if (since >= 0 && version_ == 0) return NotFollowing(since);
    if (cursor->position[1] > 1 + Stripes::kMaxBits) {
      return InvalidArgument("cursor: got a position that no export has given");
    }
    DYNEMB_RETURN_IF_ERROR(CheckParts(*cursor));
    const int64_t end = kSegments * (cursor->part + 1) / cursor->parts;
    if (cursor->position[0] == 0 && cursor->position[1] == 0) {
      const int64_t first = kSegments * cursor->part / cursor->parts;
      *cursor = AtSegment(*cursor, first);
      cursor->done = cursor->done || first == end;
    }
    int64_t n = 0;
    while (!cursor->done && n < capacity) {
      const int segment = BatchOrder::SegmentOf(cursor->position[0]);
      std::shared_lock<std::shared_mutex> lock(parts_[segment]->mutex);
      if (!ExportSegment(parts_[segment]->segment, layout_, out, cursor, &n)) break;
      *cursor = AtSegment(*cursor, segment + 1);
      cursor->done = segment + 1 >= end;
    }
    *rows = n;
    return Status();
  }

  Status Import(const Context& context, const ConstRowParts& rows) override {
    Batch batch;
    batch.keys = rows.keys;
    DYNEMB_RETURN_IF_ERROR(CheckBatch(context, batch, Report()));
    return Write(context, batch, rows.values, Report(), [&](const auto& writer) {
      DYNEMB_RETURN_IF_ERROR(CheckImport(layout_, rows));
      return writer([&](Entry entry, Task* task) {
        if (entry.row == nullptr) entry.row = entry.segment->Insert(entry.key, entry.hash);
        if (entry.row == nullptr) return task->SetAll(entry.positions, Outcome::kFull);
        CopyBytes(entry.row, rows.values[entry.last()], layout_.value_bytes);
        if (layout_.slots_bytes > 0) {
          CopyBytes(entry.row + layout_.slots_offset, rows.slots[entry.last()],
                    layout_.slots_bytes);
        }
        if (layout_.meta_bytes > 0) {
          CopyBytes(entry.row + layout_.meta_offset, rows.meta[entry.last()], layout_.meta_bytes);
        }
        StampVersion(*entry.segment, entry.row);
      });
    });
  }

  Status BeginVersion(const Context& context, int64_t version) override {
    DYNEMB_RETURN_IF_ERROR(CheckContext(context));
    std::unique_lock<std::shared_mutex> schema_lock(schema_mutex_);
    if (version <= version_) {
      return InvalidArgument("version: got ", version, ", want more than ", version_);
    }
    if (version_ == 0) {
      DYNEMB_RETURN_IF_ERROR(Relayout(schema_, RowLayout(schema_, true)));
      erase_log_.Lose(version - 1);
    }
    version_ = version;
    erase_log_.Compact();
    return Status();
  }

  int64_t version() const override {
    std::shared_lock<std::shared_mutex> schema_lock(schema_mutex_);
    return version_;
  }

  Status Erased(const Context& context, int64_t since, std::vector<Key>* keys) const override {
    DYNEMB_RETURN_IF_ERROR(CheckContext(context));
    keys->clear();
    std::shared_lock<std::shared_mutex> schema_lock(schema_mutex_);
    for (int s = 0; s < kSegments; ++s) {
      std::shared_lock<std::shared_mutex> lock(parts_[s]->mutex);
      erase_log_.AppendSince(s, since, keys);
    }
    const Status known = version_ == 0 ? NotFollowing(since) : erase_log_.CheckKnown(since);
    if (!known.ok()) keys->clear();
    return known;
  }

  Status Histogram(const Context& context, MetaField field, const RowOrder& prefix, int prefix_bits,
                   Span<int64_t> counts) const override {
    DYNEMB_RETURN_IF_ERROR(CheckContext(context));
    std::shared_lock<std::shared_mutex> schema_lock(schema_mutex_);
    DYNEMB_RETURN_IF_ERROR(CheckMetaField(layout_, field));
    int bits;
    DYNEMB_RETURN_IF_ERROR(CheckCounts(counts, prefix_bits, &bits));
    std::mutex counts_mutex;
    ForAllSegments(context, [&](int s) {
      std::shared_lock<std::shared_mutex> lock(parts_[s]->mutex);
      std::vector<int64_t> own(counts.size);
      ForAllRows(parts_[s]->segment, field, [&](Key, const RowOrder& order) {
        const int64_t digit = DigitOf(order, prefix, prefix_bits, bits);
        if (digit >= 0) ++own[digit];
      });
      std::lock_guard<std::mutex> counts_lock(counts_mutex);
      for (int64_t b = 0; b < counts.size; ++b) counts[b] += own[b];
    });
    return Status();
  }

  Status EraseBelow(const Context& context, MetaField field, const RowOrder& bound,
                    int64_t* erased) override {
    DYNEMB_RETURN_IF_ERROR(CheckContext(context));
    std::shared_lock<std::shared_mutex> schema_lock(schema_mutex_);
    DYNEMB_RETURN_IF_ERROR(CheckMetaField(layout_, field));
    std::atomic<int64_t> count{0};
    ForAllSegments(context, [&](int s) {
      std::unique_lock<std::shared_mutex> lock(parts_[s]->mutex);
      Segment& segment = parts_[s]->segment;
      ForAllRows(segment, field, [&](Key key, const RowOrder& order) {
        if (!(order < bound)) return;
        EraseRow(&segment, key, order.hash);
        count.fetch_add(1, std::memory_order_relaxed);
      });
    });
    *erased = count;
    return Status();
  }

  int64_t size() const override {
    int64_t rows = 0;
    for (const auto& part : parts_) {
      std::shared_lock<std::shared_mutex> lock(part->mutex);
      rows += part->segment.size();
    }
    return rows;
  }

  int64_t memory_bytes() const override {
    return row_arena_.memory_bytes() + index_arena_.memory_bytes();
  }

 private:
  struct alignas(64) Part {
    Part(SlabArena* row_arena, SlabArena* index_arena, const RowLayout& layout, double phase)
        : segment(row_arena, index_arena, layout, phase) {}
    mutable std::shared_mutex mutex;
    Segment segment;
  };

  // One key of a call that changes rows.
  struct Entry {
    Segment* segment;
    Key key;
    uint64_t hash;
    char* row;  // or nullptr
    Span<const int64_t> positions;
    int64_t last() const { return positions[positions.size - 1]; }
  };

  // What a task that changes rows keeps from one key to the next.
  struct Task : TaskReport {
    using TaskReport::TaskReport;
    std::vector<RowUpdater::Row> updates;  // to be made at the end of the group of keys
    std::vector<char> sums;                // of the gradients of each key of the group
  };

  const Segment& SegmentOf(uint64_t hash) const {
    return parts_[BatchOrder::SegmentOf(hash)]->segment;
  }

  // The frame of all calls that change rows: `call(writer)` makes its last checks, with the schema
  // held still, and passes writer the function (entry, task) for each distinct key and, if need be,
  // the function (task) for the end of each group of them. `inputs` are the rows that they read, to
  // be fetched ahead.
  template <typename F>
  Status Write(const Context& context, const Batch& batch, const ConstRows& inputs,
               const Report& report, const F& call) {
    std::shared_lock<std::shared_mutex> schema_lock(schema_mutex_);
    return call([&](const auto& write_key, const auto&... end_group) {
      BatchOrder order(context, batch);
      CallReport whole(report);
      // Several segments to a task, which use its memory in turn.
      const int64_t tasks = std::min<int64_t>(kSegments, 4 * context.executor->concurrency());
      context.executor->Run(tasks, order.size() / tasks * kNanosecondsPerKey, [&](int64_t number) {
        Task task(report);
        BatchOrder::Scratch scratch;
        for (int64_t s = kSegments * number / tasks; s < kSegments * (number + 1) / tasks; ++s) {
          const int64_t distinct = order.Group(s, &scratch);
          if (distinct == 0) continue;
          std::unique_lock<std::shared_mutex> lock(parts_[s]->mutex);
          Segment* const segment = &parts_[s]->segment;
          ForEachKey(
              0, distinct, layout_.row_bytes, [&](int64_t i) { return order.key(s, i); },
              [&](uint64_t) -> const Segment& { return *segment; },
              [&](int64_t i) {
                if (inputs.data == nullptr) return;
                PrefetchRow(inputs[order.positions(s, i)[0]], layout_.value_bytes);
              },
              [&](int64_t i, Key key, uint64_t hash, char* row) {
                write_key(Entry{segment, key, hash, row, order.positions(s, i)}, &task);
              },
              [&] { (end_group(&task), ...); });
        }
        whole.Add(task);
      });
      if (whole.full()) return ResourceExhausted("no memory for more rows; the table has ", size());
      return Status();
    });
  }

  template <typename F>
  static void ForAllSegments(const Context& context, const F& f) {
    context.executor->Run(kSegments, 1'000'000, [&](int64_t s) { f(static_cast<int>(s)); });
  }

  // The cursor where a segment begins.
  static Cursor AtSegment(Cursor cursor, int64_t segment) {
    cursor.position[0] = static_cast<uint64_t>(segment) << (64 - BatchOrder::kSegmentBits);
    cursor.position[1] = 0;
    return cursor;
  }

  template <typename F>
  void ForAllRows(const Segment& segment, MetaField field, const F& f) const {
    const int64_t offset = layout_.meta_offset + layout_.meta_field[static_cast<int>(field)];
    segment.ForEachRow(offset, [&](Key key, const char* row) {
      f(key, RowOrder{ReadInt64(row + offset), Mix64(static_cast<uint64_t>(key))});
    });
  }

  // A new row with initial slots and meta of zeros; the value is the caller's.
  char* InsertInitial(const Entry& entry) const {
    char* const row = entry.segment->Insert(entry.key, entry.hash);
    if (row != nullptr) {
      FillInitialSlots(schema_, row + layout_.slots_offset);
      std::memset(row + layout_.meta_offset, 0, layout_.meta_bytes);
    }
    return row;
  }

  void StampRow(const Stamp& stamp, const Entry& entry) const {
    StampVersion(*entry.segment, entry.row);
    if (layout_.meta_bytes == 0) return;
    char* const meta = entry.row + layout_.meta_offset;
    const auto field = [&](MetaField f) { return layout_.meta_field[static_cast<int>(f)]; };
    if (const int64_t at = field(MetaField::kUsed); at >= 0) WriteInt64(stamp.now, meta + at);
    if (const int64_t at = field(MetaField::kCount); at >= 0) {
      // Unsigned, since an imported count may be anything.
      WriteInt64(static_cast<int64_t>(static_cast<uint64_t>(ReadInt64(meta + at)) + 1), meta + at);
    }
  }

  // The layout is the segment's own, which may be ahead of the table's: see Relayout.
  void StampVersion(const Segment& segment, char* row) const {
    if (version_ > 0) WriteInt64(version_, row + segment.layout().version_offset);
  }

  // Erases a row that is there.
  void EraseRow(Segment* segment, Key key, uint64_t hash) {
    segment->Erase(key, hash);
    if (version_ > 0) erase_log_.Add(BatchOrder::SegmentOf(hash), key, version_);
  }

  // Lays all rows out anew, segment by segment. New slots get their initial values, a new version
  // is 0. A segment that has the new layout already is left over from an attempt that ran out of
  // memory half way: its slots are as new, since nothing trains before all segments have them.
  Status Relayout(const TableSchema& schema, const RowLayout& layout) {
    for (auto& part : parts_) {
      const RowLayout from = part->segment.layout();
      const bool done = part->segment.Relayout(layout, [&](const char* old_row, char* new_row) {
        CopyBytes(new_row, old_row, from.value_bytes);
        if (schema_.rule.name.empty()) {
          FillInitialSlots(schema, new_row + layout.slots_offset);
        } else {
          CopyBytes(new_row + layout.slots_offset, old_row + from.slots_offset, from.slots_bytes);
        }
        CopyBytes(new_row + layout.meta_offset, old_row + from.meta_offset, from.meta_bytes);
        if (layout.version_offset >= 0) {
          WriteInt64(version_ > 0 ? ReadInt64(old_row + from.version_offset) : 0,
                     new_row + layout.version_offset);
        }
      });
      if (!done) {
        return ResourceExhausted("no memory for rows of ", layout.row_bytes, " bytes, before ",
                                 layout_.row_bytes);
      }
    }
    layout_ = layout;
    return Status();
  }

  // Guards schema_, layout_ and version_: shared by every call, exclusive while rows are laid out
  // anew and a version begins. Value dtype, dim and initializer never change and are read without
  // it.
  mutable std::shared_mutex schema_mutex_;
  TableSchema schema_;
  RowLayout layout_;
  int64_t version_ = 0;  // 0: changes are not followed
  const FillFunction fill_;
  const AddFunction add_;
  const DType gradient_dtype_;
  const SumFunction sum_;  // of gradients
  const CopyRowsFunction copy_rows_ = FastestCopyRows();
  SlabArena row_arena_{int64_t{4} << 20};
  // An index is read twice for each key, and is a small part of a table: a quarter of a huge page
  // is enough to take one.
  SlabArena index_arena_{int64_t{512} << 10};
  std::array<std::optional<Part>, kSegments> parts_;
  EraseLog erase_log_{kSegments};  // its parts under the locks of ours
};

}  // namespace

Status MakeHostTable(const TableSchema& schema, std::unique_ptr<Table>* table) {
  DYNEMB_RETURN_IF_ERROR(schema.Validate());
  *table = std::make_unique<HostTable>(schema);
  return Status();
}

}  // namespace dynemb

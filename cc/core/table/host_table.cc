#include "cc/core/table/host_table.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <deque>
#include <mutex>
#include <shared_mutex>
#include <type_traits>
#include <utility>

#include "cc/core/table/batch_order.h"
#include "cc/core/table/call_checks.h"
#include "cc/core/table/erase_log.h"
#include "cc/core/table/segment.h"
#include "cc/core/table/value_functions.h"

namespace dynemb {
namespace {

constexpr int kSegments = BatchOrder::kSegments;
constexpr int64_t kGroup = 16;           // keys whose memory is fetched ahead together
constexpr int64_t kPrefetchBytes = 512;  // of a row; the hardware follows a longer one by itself
constexpr int64_t kNanosecondsPerKey = 50;

class HostTable final : public Table {
 public:
  explicit HostTable(const TableSchema& schema)
      : schema_(schema),
        layout_(schema),
        fill_(FillFor(schema.value_dtype)),
        add_(AddFor(schema.value_dtype)) {
    for (int s = 0; s < kSegments; ++s) {
      parts_.emplace_back(&arena_, layout_, static_cast<double>(s) / kSegments);
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
    const BatchOrder order(context, batch);
    return Work(context, order, report, [&](int s, int64_t begin, int64_t end, Outcomes* outcomes) {
      std::shared_lock<std::shared_mutex> lock(parts_[s].mutex);
      const Segment& segment = parts_[s].segment;
      ForEach(segment, order, begin, end, layout_.value_bytes,
              [&](int64_t position, Key key, uint64_t, Segment::Ref ref) {
                char* out = values[position];
                if (ref != Segment::kNone) {
                  std::memcpy(out, segment.value(ref), layout_.value_bytes);
                } else if (if_missing == IfMissing::kInitialValue) {
                  fill_(schema_.initializer, key, layout_.dim, out);
                }
                outcomes->Set(position,
                              ref == Segment::kNone ? Outcome::kMissing : Outcome::kFound);
              });
    });
  }

  Status Apply(const Context& context, const Batch& batch, ConstRows gradients,
               const Update& update, const Stamp& stamp, const Report& report) override {
    DYNEMB_RETURN_IF_ERROR(CheckBatch(context, batch, report));
    DYNEMB_RETURN_IF_ERROR(
        CheckValues("gradients", batch, gradients, schema_.value_dtype, schema_.dim));
    if (update.rule == nullptr) return InvalidArgument("update.rule: got none");
    std::unique_ptr<RowUpdater> updater;
    DYNEMB_RETURN_IF_ERROR(
        MakeRowUpdater(update.rule->name, schema_.value_dtype, update.hyper, &updater));
    return Write(context, batch, report, [&](const auto& writer) {
      if (!(schema_.rule == *update.rule)) {
        return FailedPrecondition("the table is trained by ", schema_.rule.DebugString(), ", got ",
                                  update.rule->DebugString(), "; attach the rule first");
      }
      return writer([&](Segment* segment, int64_t position, Key key, uint64_t hash,
                        Segment::Ref ref) {
        Outcome outcome = Outcome::kFound;
        if (ref == Segment::kNone) {
          ref = InsertInitial(segment, key, hash);
          if (ref == Segment::kNone) return Outcome::kFull;
          fill_(schema_.initializer, key, layout_.dim, segment->value(ref));
          outcome = Outcome::kInserted;
        }
        updater->Update(layout_.dim, segment->value(ref), segment->slots(ref), gradients[position]);
        StampRow(stamp, segment, ref);
        return outcome;
      });
    });
  }

  Status Upsert(const Context& context, const Batch& batch, ConstRows values, const Stamp& stamp,
                const Report& report) override {
    DYNEMB_RETURN_IF_ERROR(CheckBatch(context, batch, report));
    DYNEMB_RETURN_IF_ERROR(CheckValues("values", batch, values, schema_.value_dtype, schema_.dim));
    return Write(context, batch, report, [&](const auto& writer) {
      return writer(
          [&](Segment* segment, int64_t position, Key key, uint64_t hash, Segment::Ref ref) {
            Outcome outcome = Outcome::kFound;
            if (ref == Segment::kNone) {
              ref = InsertInitial(segment, key, hash);
              if (ref == Segment::kNone) return Outcome::kFull;
              outcome = Outcome::kInserted;
            }
            std::memcpy(segment->value(ref), values[position], layout_.value_bytes);
            StampRow(stamp, segment, ref);
            return outcome;
          });
    });
  }

  Status Accumulate(const Context& context, const Batch& batch, ConstRows values_or_deltas,
                    Span<const bool> exists, const Stamp& stamp, const Report& report) override {
    DYNEMB_RETURN_IF_ERROR(CheckBatch(context, batch, report));
    DYNEMB_RETURN_IF_ERROR(
        CheckValues("values_or_deltas", batch, values_or_deltas, schema_.value_dtype, schema_.dim));
    DYNEMB_RETURN_IF_ERROR(CheckSpan("exists", exists));
    if (exists.size != batch.keys.size) {
      return InvalidArgument("exists: got ", exists.size, " flags, want one per key, ",
                             batch.keys.size);
    }
    return Write(context, batch, report, [&](const auto& writer) {
      return writer(
          [&](Segment* segment, int64_t position, Key key, uint64_t hash, Segment::Ref ref) {
            const bool found = ref != Segment::kNone;
            if (found != exists[position]) return found ? Outcome::kFound : Outcome::kMissing;
            if (found) {
              add_(layout_.dim, segment->value(ref), values_or_deltas[position]);
            } else {
              ref = InsertInitial(segment, key, hash);
              if (ref == Segment::kNone) return Outcome::kFull;
              std::memcpy(segment->value(ref), values_or_deltas[position], layout_.value_bytes);
            }
            StampRow(stamp, segment, ref);
            return found ? Outcome::kFound : Outcome::kInserted;
          });
    });
  }

  Status Erase(const Context& context, const Batch& batch, const Report& report) override {
    DYNEMB_RETURN_IF_ERROR(CheckBatch(context, batch, report));
    return Write(context, batch, report, [&](const auto& writer) {
      return writer([&](Segment* segment, int64_t, Key key, uint64_t hash, Segment::Ref) {
        if (segment->Find(key, hash) == Segment::kNone) return Outcome::kMissing;
        EraseRow(segment, key, hash);
        return Outcome::kFound;
      });
    });
  }

  Status Clear(const Context& context) override {
    DYNEMB_RETURN_IF_ERROR(CheckContext(context));
    std::shared_lock<std::shared_mutex> schema_lock(schema_mutex_);
    for (Part& part : parts_) {
      std::unique_lock<std::shared_mutex> lock(part.mutex);
      part.segment.Clear();
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
      return FailedPrecondition("the table is trained by ", schema_.rule.DebugString(), ", got ",
                                rule.DebugString(),
                                "; a table has one optimizer rule for its life: use the same one, "
                                "or a new table");
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
    for (Part& part : parts_) {
      std::unique_lock<std::shared_mutex> lock(part.mutex);
      if (!part.segment.ReserveIndex(share)) {
        return ResourceExhausted("no memory for an index of ", rows, " rows");
      }
    }
    return Status();
  }

  Status Export(const Context& context, Cursor* cursor, const RowParts& out,
                int64_t* rows) const override {
    DYNEMB_RETURN_IF_ERROR(CheckContext(context));
    const int64_t capacity = out.keys.size;
    if (out.keys.data != nullptr) DYNEMB_RETURN_IF_ERROR(CheckSpan("out.keys", out.keys));
    if (capacity < 1) return InvalidArgument("out.keys: got room for ", capacity, " rows, want 1");
    std::shared_lock<std::shared_mutex> schema_lock(schema_mutex_);
    DYNEMB_RETURN_IF_ERROR(CheckPart("out.values", capacity, layout_.value_bytes, out.values));
    DYNEMB_RETURN_IF_ERROR(CheckPart("out.slots", capacity, layout_.slots_bytes, out.slots));
    DYNEMB_RETURN_IF_ERROR(CheckPart("out.meta", capacity, layout_.meta_bytes, out.meta));
    const int64_t since = cursor->since_version;
    if (since >= 0 && version_ == 0) return NotFollowing(since);
    int64_t n = 0;
    int64_t s = static_cast<int64_t>(cursor->position >> 32);
    Segment::Ref from = static_cast<Segment::Ref>(cursor->position);
    for (; s < kSegments && n < capacity; ++s, from = 0) {
      std::shared_lock<std::shared_mutex> lock(parts_[s].mutex);
      const Segment& segment = parts_[s].segment;
      Segment::Ref ref = segment.NextLive(from);
      for (; ref != Segment::kNone && n < capacity; ref = segment.NextLive(ref + 1)) {
        if (since >= 0 && Version(segment, ref) <= since) continue;
        if (out.keys.data) out.keys[n] = segment.key(ref);
        if (out.values.data) std::memcpy(out.values[n], segment.value(ref), layout_.value_bytes);
        if (out.slots.data) std::memcpy(out.slots[n], segment.slots(ref), layout_.slots_bytes);
        if (out.meta.data) std::memcpy(out.meta[n], segment.meta(ref), layout_.meta_bytes);
        ++n;
      }
      if (ref != Segment::kNone) {
        from = ref;
        break;
      }
    }
    cursor->position = static_cast<uint64_t>(s) << 32 | from;
    cursor->done = s >= kSegments;
    *rows = n;
    return Status();
  }

  Status Import(const Context& context, const ConstRowParts& rows) override {
    Batch batch;
    batch.keys = rows.keys;
    DYNEMB_RETURN_IF_ERROR(CheckBatch(context, batch, Report()));
    return Write(context, batch, Report(), [&](const auto& writer) {
      const int64_t n = rows.keys.size;
      DYNEMB_RETURN_IF_ERROR(CheckPart("values", n, layout_.value_bytes, rows.values));
      DYNEMB_RETURN_IF_ERROR(CheckPart("slots", n, layout_.slots_bytes, rows.slots));
      DYNEMB_RETURN_IF_ERROR(CheckPart("meta", n, layout_.meta_bytes, rows.meta));
      if ((!rows.values.data && n > 0) || (!rows.slots.data && layout_.slots_bytes > 0 && n > 0) ||
          (!rows.meta.data && layout_.meta_bytes > 0 && n > 0)) {
        return InvalidArgument("rows to import: a part that the schema has is missing");
      }
      return writer(
          [&](Segment* segment, int64_t position, Key key, uint64_t hash, Segment::Ref ref) {
            const bool found = ref != Segment::kNone;
            if (!found) ref = segment->Insert(key, hash);
            if (ref == Segment::kNone) return Outcome::kFull;
            std::memcpy(segment->value(ref), rows.values[position], layout_.value_bytes);
            if (layout_.slots_bytes > 0) {
              std::memcpy(segment->slots(ref), rows.slots[position], layout_.slots_bytes);
            }
            if (layout_.meta_bytes > 0) {
              std::memcpy(segment->meta(ref), rows.meta[position], layout_.meta_bytes);
            }
            StampVersion(segment, ref);
            return found ? Outcome::kFound : Outcome::kInserted;
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
      std::shared_lock<std::shared_mutex> lock(parts_[s].mutex);
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
    DYNEMB_RETURN_IF_ERROR(CheckMetaField(field));
    DYNEMB_RETURN_IF_ERROR(CheckSpan("counts", counts));
    int bits = 0;
    while (bits < 16 && (int64_t{1} << bits) < counts.size) ++bits;
    if (bits == 0 || counts.size != int64_t{1} << bits || prefix_bits < 0 ||
        prefix_bits + bits > 128 || prefix_bits % bits != 0 || 64 % bits != 0) {
      return InvalidArgument("histogram: got ", counts.size, " counts after ", prefix_bits,
                             " bits, want a power of two up to 65536 whose logarithm divides 64 "
                             "and prefix_bits");
    }
    // Number `word` of the order, most significant first.
    const auto word = [](const RowOrder& order, int index) {
      return index == 0 ? static_cast<uint64_t>(order.score) ^ (uint64_t{1} << 63) : order.hash;
    };
    std::mutex counts_mutex;
    ForAllSegments(context, [&](int s) {
      std::shared_lock<std::shared_mutex> lock(parts_[s].mutex);
      std::vector<int64_t> own(counts.size);
      ForAllRows(parts_[s].segment, field, [&](Segment::Ref, const RowOrder& order) {
        for (int w = 0; w * 64 < prefix_bits; ++w) {
          const int low = 64 - std::min(64, prefix_bits - w * 64);
          if (word(order, w) >> low != word(prefix, w) >> low) return;
        }
        const int shift = 64 - prefix_bits % 64 - bits;
        ++own[word(order, prefix_bits / 64) >> shift & (counts.size - 1)];
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
    DYNEMB_RETURN_IF_ERROR(CheckMetaField(field));
    std::atomic<int64_t> count{0};
    ForAllSegments(context, [&](int s) {
      std::unique_lock<std::shared_mutex> lock(parts_[s].mutex);
      Segment& segment = parts_[s].segment;
      ForAllRows(segment, field, [&](Segment::Ref ref, const RowOrder& order) {
        if (!(order < bound)) return;
        EraseRow(&segment, segment.key(ref), order.hash);
        count.fetch_add(1, std::memory_order_relaxed);
      });
    });
    *erased = count;
    return Status();
  }

  int64_t size() const override {
    int64_t rows = 0;
    for (const Part& part : parts_) {
      std::shared_lock<std::shared_mutex> lock(part.mutex);
      rows += part.segment.size();
    }
    return rows;
  }

  int64_t memory_bytes() const override {
    int64_t bytes = arena_.memory_bytes();
    for (const Part& part : parts_) {
      std::shared_lock<std::shared_mutex> lock(part.mutex);
      bytes += part.segment.index_bytes();
    }
    return bytes;
  }

 private:
  struct alignas(64) Part {
    Part(SlabArena* arena, const RowLayout& layout, double phase) : segment(arena, layout, phase) {}
    mutable std::shared_mutex mutex;
    Segment segment;
  };

  // Where the outcomes of one segment's share go.
  class Outcomes {
   public:
    explicit Outcomes(const Report& report) : report_(report) {}
    void Set(int64_t position, Outcome outcome) {
      if (!report_.outcomes.empty()) report_.outcomes[position] = outcome;
      full_ |= outcome == Outcome::kFull;
      if (report_.misses != nullptr && outcome != Outcome::kFound &&
          outcome != Outcome::kInserted && outcome != Outcome::kEvicted) {
        misses_.push_back(position);
      }
    }
    bool full() const { return full_; }
    const std::vector<int64_t>& misses() const { return misses_; }

   private:
    const Report& report_;
    std::vector<int64_t> misses_;
    bool full_ = false;
  };

  Status CheckMetaField(MetaField field) const {
    if (layout_.meta_field[static_cast<int>(field)] >= 0) return Status();
    return FailedPrecondition("the table's rows have no meta field ", Name(field));
  }

  // Calls work(segment number, begin, end, outcomes) for each segment's share of the order, in
  // parallel, and completes the report.
  template <typename F>
  Status Work(const Context& context, const BatchOrder& order, const Report& report,
              const F& work) const {
    std::atomic<int64_t> misses{0};
    std::atomic<bool> full{false};
    ForAllSegments(context, order.size() / kSegments * kNanosecondsPerKey, [&](int s) {
      const int64_t begin = order.begin(s), end = order.begin(s + 1);
      if (begin == end) return;
      Outcomes outcomes(report);
      work(s, begin, end, &outcomes);
      if (outcomes.full()) full = true;
      if (!outcomes.misses().empty()) {
        const int64_t count = static_cast<int64_t>(outcomes.misses().size());
        std::copy(outcomes.misses().begin(), outcomes.misses().end(),
                  report.misses->at.data + misses.fetch_add(count));
      }
    });
    if (report.misses != nullptr) *report.misses->count = misses;
    if (full) return ResourceExhausted("no memory for more rows; the table has ", size());
    return Status();
  }

  // The frame of all calls that change rows: `call(writer)` makes its last checks, with the schema
  // held still, and passes writer the function (segment, position, key, hash, ref) -> Outcome for
  // one key.
  template <typename F>
  Status Write(const Context& context, const Batch& batch, const Report& report, const F& call) {
    std::shared_lock<std::shared_mutex> schema_lock(schema_mutex_);
    return call([&](const auto& write_row) {
      const BatchOrder order(context, batch);
      return Work(context, order, report,
                  [&](int s, int64_t begin, int64_t end, Outcomes* outcomes) {
                    std::unique_lock<std::shared_mutex> lock(parts_[s].mutex);
                    Segment* segment = &parts_[s].segment;
                    ForEach(*segment, order, begin, end, layout_.row_bytes,
                            [&](int64_t position, Key key, uint64_t hash, Segment::Ref ref) {
                              outcomes->Set(position, write_row(segment, position, key, hash, ref));
                            });
                  });
    });
  }

  template <typename F>
  static void ForAllSegments(const Context& context, const F& f) {
    ForAllSegments(context, 1'000'000, f);
  }
  template <typename F>
  static void ForAllSegments(const Context& context, int64_t nanoseconds_each, const F& f) {
    context.executor->Run(kSegments, nanoseconds_each, [&](int64_t s) { f(static_cast<int>(s)); });
  }

  // Calls visit(position, key, hash, row or kNone) for entries [begin, end) of the order, in order,
  // with the chunk and then the row of each fetched ahead. `visit` may insert. If it erases, `ref`
  // may be a row that is free by now, whose bytes prove nothing: it must look the key up again.
  template <typename F>
  static void ForEach(const Segment& segment, const BatchOrder& order, int64_t begin, int64_t end,
                      int64_t row_bytes, const F& visit) {
    const int64_t prefetch_bytes = std::min(row_bytes, kPrefetchBytes);
    const auto hash = [&](int64_t entry) { return Mix64(static_cast<uint64_t>(order.key(entry))); };
    for (int64_t e = begin; e < std::min(end, begin + kGroup); ++e) segment.PrefetchChunk(hash(e));
    for (int64_t group = begin; group < end; group += kGroup) {
      const int64_t stop = std::min(end, group + kGroup);
      Segment::Ref candidate[kGroup];
      for (int64_t e = group; e < stop; ++e) {
        candidate[e - group] = segment.FindCandidate(hash(e));
        if (candidate[e - group] != Segment::kNone) {
          segment.PrefetchRow(candidate[e - group], prefetch_bytes);
        }
      }
      for (int64_t e = stop; e < std::min(end, stop + kGroup); ++e) segment.PrefetchChunk(hash(e));
      for (int64_t e = group; e < stop; ++e) {
        const Key key = order.key(e);
        // The candidate may be another key's row, and the keys before may have inserted this one.
        Segment::Ref ref = candidate[e - group];
        if (ref == Segment::kNone || segment.key(ref) != key) ref = segment.Find(key, hash(e));
        visit(order.position(e), key, hash(e), ref);
      }
    }
  }

  template <typename F>
  void ForAllRows(const Segment& segment, MetaField field, const F& f) const {
    const int64_t offset = layout_.meta_field[static_cast<int>(field)];
    for (Segment::Ref ref = segment.NextLive(0); ref != Segment::kNone;
         ref = segment.NextLive(ref + 1)) {
      f(ref, RowOrder{ReadInt64(segment.meta(ref) + offset),
                      Mix64(static_cast<uint64_t>(segment.key(ref)))});
    }
  }

  // A new row with initial slots and meta of zeros; the value is the caller's.
  Segment::Ref InsertInitial(Segment* segment, Key key, uint64_t hash) const {
    const Segment::Ref ref = segment->Insert(key, hash);
    if (ref != Segment::kNone) {
      FillInitialSlots(schema_, segment->slots(ref));
      std::memset(segment->meta(ref), 0, layout_.meta_bytes);
    }
    return ref;
  }

  void StampRow(const Stamp& stamp, Segment* segment, Segment::Ref ref) const {
    StampVersion(segment, ref);
    if (layout_.meta_bytes == 0) return;
    char* const meta = segment->meta(ref);
    const auto field = [&](MetaField f) { return layout_.meta_field[static_cast<int>(f)]; };
    if (const int64_t at = field(MetaField::kUsed); at >= 0) WriteInt64(stamp.now, meta + at);
    if (const int64_t at = field(MetaField::kCount); at >= 0) {
      // Unsigned, since an imported count may be anything.
      WriteInt64(static_cast<int64_t>(static_cast<uint64_t>(ReadInt64(meta + at)) + 1), meta + at);
    }
  }

  // The layout is the segment's own, which may be ahead of the table's: see Relayout.
  void StampVersion(Segment* segment, Segment::Ref ref) const {
    if (version_ > 0) {
      WriteInt64(version_, segment->value(ref) + segment->layout().version_offset);
    }
  }
  int64_t Version(const Segment& segment, Segment::Ref ref) const {
    return ReadInt64(segment.value(ref) + segment.layout().version_offset);
  }
  static Status NotFollowing(int64_t since) {
    return FailedPrecondition("what has changed since version ", since,
                              ": the table does not follow changes; begin a version first");
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
    for (Part& part : parts_) {
      const RowLayout from = part.segment.layout();
      const bool done = part.segment.Relayout(layout, [&](const char* old_row, char* new_row) {
        std::memcpy(new_row, old_row, from.value_bytes);
        if (schema_.rule.name.empty()) {
          FillInitialSlots(schema, new_row + layout.slots_offset);
        } else {
          std::memcpy(new_row + layout.slots_offset, old_row + from.slots_offset, from.slots_bytes);
        }
        std::memcpy(new_row + layout.meta_offset, old_row + from.meta_offset, from.meta_bytes);
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
  SlabArena arena_;
  std::deque<Part> parts_;
  EraseLog erase_log_{kSegments};  // its parts under the locks of ours
};

}  // namespace

Status MakeHostTable(const TableSchema& schema, std::unique_ptr<Table>* table) {
  DYNEMB_RETURN_IF_ERROR(schema.Validate());
  *table = std::make_unique<HostTable>(schema);
  return Status();
}

}  // namespace dynemb

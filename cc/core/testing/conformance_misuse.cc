// The part of the conformance suite that gives tables wrong arguments, one at a time, and looks
// whether they answer with the right code and whether anything has changed: rows, outputs, reports.
#include <cmath>
#include <functional>
#include <memory>
#include <utility>

#include "cc/core/optimizer/rule.h"
#include "cc/core/testing/caller.h"
#include "cc/core/testing/conformance_checks.h"
#include "gtest/gtest.h"

namespace dynemb {
namespace {

constexpr int64_t kKeys = 4;
constexpr int64_t kDim = 3;

MemorySpace OtherThan(MemorySpace space) {
  return space == MemorySpace::kHost ? MemorySpace::kSimulatedDevice : MemorySpace::kHost;
}

// A table with rows 1, 2 and 3, and good arguments for every call, to be spoilt.
class Bench {
 public:
  explicit Bench(const TableHarness& harness)
      : memory_(harness.memory),
        table_(harness.Make(Schema())),
        other_space(OtherThan(memory_->space())),
        keys_(memory_, Keys{1, 2, 7, 8}),
        select_(memory_, std::vector<int64_t>{2, 0}),
        select_count_(memory_, std::vector<int64_t>{2}),
        values_(memory_, Floats(kKeys * kDim, 0.5f)),
        slots_(memory_, Floats(kKeys * kDim, 0.25f)),
        meta_(memory_, kKeys * 2),
        displaced_keys_(memory_, kKeys),
        displaced_values_(memory_, kKeys * kDim),
        displaced_slots_(memory_, kKeys * kDim),
        displaced_meta_(memory_, kKeys * 2),
        scales_(memory_, std::vector<double>(kKeys, 1.0)),
        exists_(memory_, std::vector<bool>{true, false, true, false}),
        outcomes_(memory_, kKeys),
        misses_(memory_, kKeys),
        misses_count_(memory_, 1) {
    const Status status = Caller(table_.get(), memory_).Upsert({1, 2, 3}, Floats(3 * kDim, 1.0f));
    EXPECT_TRUE(status.ok()) << status.message();
    before_ = Content();
    Reset();
  }

  static TableSchema Schema() {
    TableSchema schema;
    schema.dim = kDim;
    schema.rule = UsualRule("adagrad");
    schema.meta.add(MetaField::kLastWriteTime);
    schema.meta.add(MetaField::kScore);
    return schema;
  }

  // The good arguments.
  void Reset() {
    table = table_.get();
    context = memory_->context();
    select = {select_.span(), select_count_.there()};
    misses = {misses_.span(), misses_count_.there()};
    batch = {keys_.span(), &select};
    report = {outcomes_.span(), &misses};
    values = values_.rows(kKeys, kDim);
    exists = exists_.span();
    rule = UsualRule("adagrad");
    hyper = UsualHyper("adagrad", 1);
    scales = scales_.span();
    parts = {keys_.span(), values_.rows(kKeys, kDim), slots_.rows(kKeys, kDim),
             meta_.rows(kKeys, 2)};
    displaced = {displaced_keys_.span(), displaced_values_.rows(kKeys, kDim),
                 displaced_slots_.rows(kKeys, kDim), displaced_meta_.rows(kKeys, 2)};
    cursor = Cursor();
    schema = table_->schema();
    epoch = 10;
    since = 0;
    part = TablePart();
  }

  // Spoils the arguments, makes the call and expects the error, and that nothing has changed.
  void Expect(Code code, const std::string& what, const std::function<void()>& spoil,
              const std::function<Status()>& call) {
    SCOPED_TRACE(what);
    Reset();
    spoil();
    const Status status = call();
    EXPECT_EQ(static_cast<int>(status.code()), static_cast<int>(code)) << status.message();
    EXPECT_NE(status.message(), "") << "an error says what is wrong";
    EXPECT_EQ(Difference(before_, Content()), "") << "the table has changed";
    EXPECT_TRUE(values_.SameBits(values_.size())) << "values were written";
    EXPECT_TRUE(slots_.SameBits(slots_.size())) << "slots were written";
    EXPECT_TRUE(meta_.SameBits(meta_.size())) << "meta was written";
    EXPECT_TRUE(keys_.SameBits(keys_.size())) << "keys were written";
    EXPECT_TRUE(displaced_keys_.SameBits(kKeys)) << "displaced keys were written";
    EXPECT_TRUE(displaced_values_.SameBits(kKeys * kDim)) << "displaced values were written";
    EXPECT_TRUE(displaced_slots_.SameBits(kKeys * kDim)) << "displaced slots were written";
    EXPECT_TRUE(displaced_meta_.SameBits(kKeys * 2)) << "displaced meta was written";
    EXPECT_TRUE(outcomes_.SameBits(outcomes_.size())) << "outcomes were written";
    EXPECT_TRUE(misses_.SameBits(misses_.size())) << "misses were written";
    EXPECT_TRUE(misses_count_.SameBits(1)) << "the number of misses was written";
    EXPECT_EQ(cursor.position[0], 0u);
    EXPECT_EQ(cursor.position[1], 0u);
    EXPECT_FALSE(cursor.done);
    EXPECT_EQ(table_->epoch(), 0) << "an epoch has begun";
  }

  // The calls, with the arguments as they are.
  Status Find() { return table->Find(context, batch, values, report); }
  Status ReadRows() { return table->ReadRows(context, batch, parts, report); }
  Status Apply() {
    return table->Apply(context, batch, values, {&rule, hyper, scales}, {}, report);
  }
  Status ApplyToFound() {
    const Update update = {&rule, hyper, scales, IfMissing::kReport};
    return table->Apply(context, batch, values, update, {}, report);
  }
  Status Upsert() { return table->Upsert(context, batch, values, {}, report); }
  Status Accumulate() { return table->Accumulate(context, batch, values, exists, {}, report); }
  Status Erase() { return table->Erase(context, batch, report); }
  Status Export() {
    int64_t rows;
    return table->Export(context, &cursor, parts, &rows);
  }
  Status InsertRows() {
    const ConstRowParts rows = {parts.keys, parts.values, parts.slots, parts.meta};
    return table->InsertRows(context, batch, rows, displaced, report);
  }
  Status PrepareMove() {
    std::unique_ptr<RowMove> move;
    const Status status = table->PrepareMove(context, schema, &move);
    EXPECT_EQ(status.ok(), move != nullptr);
    return status;
  }
  Status BeginEpoch() { return table->BeginEpoch(context, epoch); }
  Status ChangedKeys() {
    std::vector<Key> keys;
    const Status status = table->ChangedKeys(context, since, part, &keys);
    EXPECT_TRUE(keys.empty());
    return status;
  }

 private:
  TableContent Content() const { return ExportAll(*table_, memory_, 100); }

  TestMemory* const memory_;
  const std::unique_ptr<Table> table_;
  TableContent before_;

 public:
  const MemorySpace other_space;
  Table* table;
  Context context;
  Positions select, misses;
  Batch batch;
  Report report;
  Rows values;
  Span<const bool> exists;
  OptimizerSpec rule;
  std::vector<double> hyper;
  Span<const double> scales;
  RowParts parts, displaced;
  Cursor cursor;
  TableSchema schema;
  int64_t epoch, since;
  TablePart part;

 private:
  Mirror<Key> keys_;
  Mirror<int64_t> select_, select_count_;
  Mirror<float> values_, slots_;
  Mirror<int64_t> meta_;
  Mirror<Key> displaced_keys_;
  Mirror<float> displaced_values_, displaced_slots_;
  Mirror<int64_t> displaced_meta_;
  Mirror<double> scales_;
  Mirror<bool> exists_;
  Mirror<Outcome> outcomes_;
  Mirror<int64_t> misses_, misses_count_;
};

using Spoil = std::pair<const char*, std::function<void()>>;

}  // namespace

void CheckBadSchemas(const TableHarness& harness) {
  const auto refused = [&](const std::function<void(TableSchema*)>& spoil) {
    TableSchema schema = Bench::Schema();
    spoil(&schema);
    std::unique_ptr<Table> table;
    EXPECT_EQ(harness.make(schema, &table).code(), Code::kInvalidArgument) << schema.ToText();
    EXPECT_EQ(table, nullptr);
  };
  refused([](TableSchema* s) { s->dim = 0; });
  refused([](TableSchema* s) { s->dim = kMaxDim + 1; });
  refused([](TableSchema* s) { s->initializer.constant = {1, 2}; });
  refused([](TableSchema* s) { s->rule.name = "hill_climbing"; });
  refused([](TableSchema* s) { s->rule.slots.pop_back(); });
  refused([](TableSchema* s) { s->value_dtype = DType::kInt32; });  // with a rule
}

void CheckBadBatches(const TableHarness& harness) {
  Bench b(harness);
  const std::vector<Spoil> batches = {
      {"keys in another space", [&] { b.batch.keys.space = b.other_space; }},
      {"keys null", [&] { b.batch.keys.data = nullptr; }},
      {"keys of size -1",
       [&] {
         b.batch = {Span<const Key>(b.batch.keys.data, -1, b.batch.keys.space)};
         b.values.count = b.exists.size = -1;
         b.report = Report();
       }},
      {"select in another space", [&] { b.select.at.space = b.other_space; }},
      {"select null", [&] { b.select.at.data = nullptr; }},
      {"select without count", [&] { b.select.count = nullptr; }},
      {"outcomes in another space", [&] { b.report.outcomes.space = b.other_space; }},
      {"outcomes null", [&] { b.report.outcomes.data = nullptr; }},
      {"outcomes too short", [&] { --b.report.outcomes.size; }},
      {"misses in another space", [&] { b.misses.at.space = b.other_space; }},
      {"misses null", [&] { b.misses.at.data = nullptr; }},
      {"misses without count", [&] { b.misses.count = nullptr; }},
      {"misses without room", [&] { b.misses.at.size = 1; }},
      {"misses without room, all keys",
       [&] {
         b.batch.select = nullptr;
         b.misses.at.size = kKeys - 1;
       }},
  };
  const std::vector<Spoil> rows = {
      {"rows in another space", [&] { b.values.space = b.other_space; }},
      {"rows null", [&] { b.values.data = nullptr; }},
      {"a row too few", [&] { --b.values.count; }},
      {"a row too many", [&] { ++b.values.count; }},
      {"stride too small", [&] { b.values.stride_bytes -= sizeof(float); }},
      {"stride 0", [&] { b.values.stride_bytes = 0; }},
      {"negative stride", [&] { b.values.stride_bytes = -b.values.stride_bytes; }},
  };
  const std::vector<Spoil> flags = {
      {"exists in another space", [&] { b.exists.space = b.other_space; }},
      {"exists null", [&] { b.exists.data = nullptr; }},
      {"exists too short", [&] { --b.exists.size; }},
  };
  const auto all = [&](const char* name, const std::function<Status()>& call,
                       std::initializer_list<const std::vector<Spoil>*> lists) {
    SCOPED_TRACE(name);
    for (const auto* list : lists) {
      for (const Spoil& spoil : *list) {
        b.Expect(Code::kInvalidArgument, spoil.first, spoil.second, call);
      }
    }
  };
  all("Find", [&] { return b.Find(); }, {&batches, &rows});
  all("ReadRows", [&] { return b.ReadRows(); }, {&batches});
  all("InsertRows", [&] { return b.InsertRows(); }, {&batches});
  all("Apply", [&] { return b.Apply(); }, {&batches, &rows});
  all("Apply to what is found", [&] { return b.ApplyToFound(); }, {&batches, &rows});
  all("Upsert", [&] { return b.Upsert(); }, {&batches, &rows});
  all("Accumulate", [&] { return b.Accumulate(); }, {&batches, &rows, &flags});
  all("Erase", [&] { return b.Erase(); }, {&batches});
}

void CheckBadUpdates(const TableHarness& harness) {
  Bench b(harness);
  const auto apply = [&] { return b.Apply(); };
  b.Expect(
      Code::kFailedPrecondition, "another rule",
      [&] {
        b.rule = UsualRule("adam");
        b.hyper = UsualHyper("adam", 1);
      },
      apply);
  b.Expect(
      Code::kFailedPrecondition, "another start of a slot", [&] { b.rule.slots[0].initial = 0.5f; },
      apply);
  b.Expect(Code::kInvalidArgument, "an unknown rule", [&] { b.rule.name = "luck"; }, apply);
  b.Expect(
      Code::kInvalidArgument, "no rule", [] {},
      [&] {
        return b.table->Apply(b.context, b.batch, b.values, {nullptr, b.hyper, {}}, {}, b.report);
      });
  b.Expect(Code::kInvalidArgument, "a scale too few", [&] { b.scales.size = kKeys - 1; }, apply);
  b.Expect(
      Code::kInvalidArgument, "scales elsewhere", [&] { b.scales.space = b.other_space; }, apply);
  b.Expect(Code::kInvalidArgument, "a number too few", [&] { b.hyper.pop_back(); }, apply);
  b.Expect(Code::kInvalidArgument, "a number too many", [&] { b.hyper.push_back(0); }, apply);
  b.Expect(Code::kInvalidArgument, "no numbers", [&] { b.hyper.clear(); }, apply);
  b.Expect(
      Code::kInvalidArgument, "learning rate NaN",
      [&] { b.hyper[Hyper::kLearningRate] = std::nan(""); }, apply);
  b.Expect(Code::kInvalidArgument, "step 0", [&] { b.hyper[Hyper::kStep] = 0; }, apply);
  b.Expect(
      Code::kInvalidArgument, "reserve a negative number", [] {},
      [&] { return b.table->Reserve(b.context, -1); });

  // A table without a rule is not trained.
  TableSchema schema = Bench::Schema();
  schema.rule = OptimizerSpec();
  const std::unique_ptr<Table> untrained = harness.Make(schema);
  b.Expect(
      Code::kFailedPrecondition, "no rule attached", [&] { b.table = untrained.get(); }, apply);
  b.Expect(
      Code::kFailedPrecondition, "no rule, and nothing to insert",
      [&] { b.table = untrained.get(); }, [&] { return b.ApplyToFound(); });
  EXPECT_EQ(untrained->size(), 0);

  schema.value_dtype = DType::kInt32;
  const std::unique_ptr<Table> integers = harness.Make(schema);
  b.Expect(Code::kInvalidArgument, "train integers", [&] { b.table = integers.get(); }, apply);
  b.Expect(
      Code::kInvalidArgument, "a rule for integers",
      [&] {
        b.table = integers.get();
        b.schema.value_dtype = DType::kInt32;
      },
      [&] { return b.PrepareMove(); });
  EXPECT_EQ(integers->size(), 0);
}

void CheckBadParts(const TableHarness& harness) {
  Bench b(harness);
  const auto all = [&](const char* name, const std::function<Status()>& call,
                       std::initializer_list<const std::vector<Spoil>*> lists) {
    SCOPED_TRACE(name);
    for (const auto* list : lists) {
      for (const Spoil& spoil : *list) {
        b.Expect(Code::kInvalidArgument, spoil.first, spoil.second, call);
      }
    }
  };
  const std::vector<Spoil> keys = {
      {"keys in another space", [&] { b.parts.keys.space = b.other_space; }},
  };
  const std::vector<Spoil> parts = {
      {"values in another space", [&] { b.parts.values.space = b.other_space; }},
      {"slots in another space", [&] { b.parts.slots.space = b.other_space; }},
      {"meta in another space", [&] { b.parts.meta.space = b.other_space; }},
      {"a value too few", [&] { --b.parts.values.count; }},
      {"a row of slots too few", [&] { --b.parts.slots.count; }},
      {"a row of meta too few", [&] { --b.parts.meta.count; }},
      {"a value too many", [&] { ++b.parts.values.count; }},
      {"values too close", [&] { b.parts.values.stride_bytes -= 4; }},
      {"slots too close", [&] { b.parts.slots.stride_bytes -= 4; }},
      {"meta too close", [&] { b.parts.meta.stride_bytes -= 8; }},
  };
  const std::vector<Spoil> left_out = {
      {"no values", [&] { b.parts.values = Rows(); }},
      {"no slots", [&] { b.parts.slots = Rows(); }},
      {"no meta", [&] { b.parts.meta = Rows(); }},
  };
  const std::vector<Spoil> displaced = {
      {"displaced keys in another space", [&] { b.displaced.keys.space = b.other_space; }},
      {"displaced values in another space", [&] { b.displaced.values.space = b.other_space; }},
      {"displaced slots in another space", [&] { b.displaced.slots.space = b.other_space; }},
      {"displaced meta in another space", [&] { b.displaced.meta.space = b.other_space; }},
      {"a displaced key too few", [&] { --b.displaced.keys.size; }},
      {"a displaced value too few", [&] { --b.displaced.values.count; }},
      {"displaced slots too close", [&] { b.displaced.slots.stride_bytes -= 4; }},
      {"displaced meta too close", [&] { b.displaced.meta.stride_bytes -= 8; }},
  };
  all("Export", [&] { return b.Export(); }, {&keys, &parts});
  all("ReadRows", [&] { return b.ReadRows(); }, {&parts});
  all("InsertRows", [&] { return b.InsertRows(); }, {&parts, &left_out, &displaced});
}

void CheckBadChanges(const TableHarness& harness) {
  Bench b(harness);
  const auto begin = [&] { return b.BeginEpoch(); };
  const auto changed = [&] { return b.ChangedKeys(); };
  b.Expect(Code::kInvalidArgument, "epoch 0", [&] { b.epoch = 0; }, begin);
  b.Expect(Code::kInvalidArgument, "epoch -5", [&] { b.epoch = -5; }, begin);
  b.Expect(Code::kFailedPrecondition, "not tracked", [] {}, changed);
  const std::unique_ptr<Table> tracked = harness.Make(Bench::Schema());
  ASSERT_OK(tracked->BeginEpoch(harness.memory->context(), 20));
  ASSERT_OK(Caller(tracked.get(), harness.memory).Upsert({1, 2}, Floats(2 * kDim)));
  const auto with_tracked = [&](Code code, const char* what, const std::function<void()>& spoil,
                                const std::function<Status()>& call) {
    const auto spoil_tracked = [&] {
      b.table = tracked.get();
      b.since = 20;
      spoil();
    };
    b.Expect(code, what, spoil_tracked, call);
    EXPECT_EQ(tracked->epoch(), 20);
  };
  constexpr Code kInvalid = Code::kInvalidArgument;
  with_tracked(kInvalid, "the same epoch", [&] { b.epoch = 20; }, begin);
  with_tracked(kInvalid, "an earlier epoch", [&] { b.epoch = 19; }, begin);
  with_tracked(Code::kFailedPrecondition, "before the first", [&] { b.since = 18; }, changed);
  with_tracked(kInvalid, "part -1", [&] { b.part = {-1, 2}; }, changed);
  with_tracked(kInvalid, "part 2 of 2", [&] { b.part = {2, 2}; }, changed);
  with_tracked(kInvalid, "no parts", [&] { b.part = {0, 0}; }, changed);
  with_tracked(kInvalid, "-1 parts", [&] { b.part = {0, -1}; }, changed);
  std::vector<Key> keys;
  ASSERT_OK(tracked->ChangedKeys(harness.memory->context(), 19, {}, &keys));
  EXPECT_EQ(keys.size(), 2u);
}

void CheckBadHistograms(const TableHarness& harness) {
  Bench b(harness);
  const Mirror<int64_t> counts(harness.memory, 1 << 17);
  const auto histogram = [&](Code code, const std::string& what, MetaField field, int prefix_bits,
                             Span<int64_t> span) {
    b.Expect(
        code, what, [] {},
        [&] { return b.table->Histogram(b.context, field, RowOrder(), prefix_bits, span); });
    EXPECT_TRUE(counts.SameBits(counts.size())) << what << ": counts were written";
  };
  const auto score = MetaField::kScore;
  Span<int64_t> elsewhere = counts.span(16);
  elsewhere.space = b.other_space;
  const Span<int64_t> null(nullptr, 16, harness.memory->space());
  histogram(Code::kInvalidArgument, "no counts", score, 0, counts.span(0));
  histogram(Code::kInvalidArgument, "null counts", score, 0, null);
  histogram(Code::kInvalidArgument, "counts in another space", score, 0, elsewhere);
  histogram(Code::kInvalidArgument, "3 counts", score, 0, counts.span(3));
  histogram(Code::kInvalidArgument, "too many counts", score, 0, counts.span(1 << 17));
  histogram(Code::kInvalidArgument, "half a digit", score, 6, counts.span(16));
  histogram(Code::kInvalidArgument, "negative prefix", score, -4, counts.span(16));
  histogram(Code::kInvalidArgument, "nothing after the prefix", score, 128, counts.span(16));
  const MetaField missing = MetaField::kCount;
  histogram(Code::kFailedPrecondition, "a field that is not there", missing, 0, counts.span(16));
  b.Expect(
      Code::kFailedPrecondition, "erase by a field that is not there", [] {},
      [&] {
        int64_t erased = 0;
        return b.table->EraseBelow(b.context, missing, {INT64_MAX, 0}, &erased);
      });
}

void CheckForeignContext(const TableHarness& harness) {
  Bench b(harness);
  const Mirror<int64_t> counts(harness.memory, 16);
  int64_t erased = 0;
  InlineExecutor executor;
  const auto spoil = [&] {
    b.context = Context();
    b.context.space = b.other_space;
    b.context.executor = &executor;
  };
  const std::pair<const char*, std::function<Status()>> calls[] = {
      {"Find", [&] { return b.Find(); }},
      {"Apply", [&] { return b.Apply(); }},
      {"Upsert", [&] { return b.Upsert(); }},
      {"Accumulate", [&] { return b.Accumulate(); }},
      {"Erase", [&] { return b.Erase(); }},
      {"Clear", [&] { return b.table->Clear(b.context); }},
      {"ReadRows", [&] { return b.ReadRows(); }},
      {"InsertRows", [&] { return b.InsertRows(); }},
      {"PrepareMove", [&] { return b.PrepareMove(); }},
      {"BeginEpoch", [&] { return b.BeginEpoch(); }},
      {"ChangedKeys", [&] { return b.ChangedKeys(); }},
      {"Reserve", [&] { return b.table->Reserve(b.context, 10); }},
      {"Export", [&] { return b.Export(); }},
      {"Histogram",
       [&] { return b.table->Histogram(b.context, MetaField::kScore, {}, 0, counts.span()); }},
      {"EraseBelow",
       [&] { return b.table->EraseBelow(b.context, MetaField::kScore, {INT64_MAX, 0}, &erased); }},
  };
  for (const auto& call : calls) {
    b.Expect(Code::kInvalidArgument, call.first, spoil, call.second);
  }
  EXPECT_TRUE(counts.SameBits(16));
}

}  // namespace dynemb

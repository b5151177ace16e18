#include "cc/core/testing/conformance_checks.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <random>

#include "cc/core/base/hash.h"
#include "cc/core/testing/caller.h"
#include "cc/core/testing/model_run.h"
#include "gtest/gtest.h"

namespace dynemb {
namespace {

constexpr Outcome kMissing = Outcome::kMissing;
constexpr Outcome kFound = Outcome::kFound;
constexpr Outcome kInserted = Outcome::kInserted;

}  // namespace

TableSchema FloatSchema(int64_t dim, const std::string& rule,
                        std::initializer_list<MetaField> meta) {
  TableSchema schema;
  schema.dim = dim;
  schema.rule = UsualRule(rule);
  for (const MetaField field : meta) schema.meta.add(field);
  return schema;
}

void CheckInitialValues(const TableHarness& harness) {
  TableSchema schema = FloatSchema(5, "sgd", {});
  schema.initializer.distribution = {Distribution::Kind::kNormal, 1.0f, 3.0f};
  schema.initializer.seed = 77;
  Tested t(harness, schema);
  const Keys keys = {INT64_MIN, -1, 0, 1, INT64_MAX, 0};
  Floats want(keys.size() * 5), got;
  for (size_t i = 0; i < keys.size(); ++i) {
    FillInitialValue(schema.initializer, keys[i], 5, &want[i * 5]);
  }
  Outcomes outcomes;
  ASSERT_OK(t.call.Find(keys, &got, &outcomes));
  EXPECT_EQ(got, want);
  EXPECT_EQ(outcomes, Outcomes(6, kMissing));
  EXPECT_EQ(t.table->size(), 0) << "Find inserted";

  // A gradient of zero inserts exactly what was read.
  const Keys distinct(keys.begin(), keys.end() - 1);
  ASSERT_OK(t.call.Apply(distinct, Floats(25, 0.0f), schema.rule, {0.5, 1, 0}, {}, &outcomes));
  EXPECT_EQ(outcomes, Outcomes(5, kInserted));
  ASSERT_OK(t.call.Find(keys, &got, &outcomes));
  EXPECT_EQ(got, want);
  EXPECT_EQ(outcomes, Outcomes(6, kFound));

  // After another gradient, and again after the row is gone.
  ASSERT_OK(t.call.Apply({-1}, {1, 2, 4, 8, 16}, schema.rule, {0.5, 2, 0}, {}, &outcomes));
  EXPECT_EQ(outcomes, Outcomes(1, kFound));
  ASSERT_OK(t.call.Find({-1}, &got));
  for (int c = 0; c < 5; ++c) EXPECT_EQ(got[c], want[5 + c] - 0.5f * static_cast<float>(1 << c));
  ASSERT_OK(t.call.Erase({-1, 3}, &outcomes));
  EXPECT_EQ(outcomes, (Outcomes{kFound, kMissing}));
  ASSERT_OK(t.call.Find({-1}, &got));
  EXPECT_EQ(got, Floats(want.begin() + 5, want.begin() + 10));
}

void CheckAccumulateCells(const TableHarness& harness) {
  Tested t(harness, FloatSchema(2, "", {}));
  ASSERT_OK(t.call.Upsert({1, 2}, {10, 20, 30, 40}));
  Outcomes outcomes;
  // Seen and there, not seen but there, seen but gone, neither.
  ASSERT_OK(t.call.Accumulate({1, 2, 3, 4}, {1, 2, 3, 4, 5, 6, 7, 8}, {true, false, true, false},
                              {}, &outcomes));
  EXPECT_EQ(outcomes, (Outcomes{kFound, kFound, kMissing, kInserted}));
  const TableContent content = t.call.Export();
  EXPECT_EQ(content.size(), 3u);
  EXPECT_EQ(Numbers<float>(content.at(1).value), (Floats{11, 22}));
  EXPECT_EQ(Numbers<float>(content.at(2).value), (Floats{30, 40}));
  EXPECT_EQ(Numbers<float>(content.at(4).value), (Floats{7, 8}));
}

void CheckRepetitions(const TableHarness& harness) {
  Tested t(harness, FloatSchema(2, "adagrad", {MetaField::kCount}));
  const OptimizerSpec rule = UsualRule("adagrad");
  Tested one(harness, FloatSchema(2, "adagrad", {MetaField::kCount}));
  Outcomes outcomes;
  // Gradients are summed and applied once, whether the row is there or inserted by it.
  for (const double step : {1, 2}) {
    ASSERT_OK(t.call.Apply({7, 8, 7, 7}, {1, 2, 5, 5, 10, 20, 100, 200}, rule, {0.5, step, 0, 1e-3},
                           {}, &outcomes));
    EXPECT_EQ(outcomes, Outcomes(4, step == 1 ? kInserted : kFound));
    ASSERT_OK(one.call.Apply({7, 8}, {111, 222, 5, 5}, rule, {0.5, step, 0, 1e-3}));
    EXPECT_EQ(t.call.Export(), one.call.Export());
  }
  // The last value counts, and the row is written once.
  ASSERT_OK(t.call.Upsert({8, 9, 8, 9}, {1, 1, 2, 2, 3, 3, 4, 4}, {}, &outcomes));
  EXPECT_EQ(outcomes, (Outcomes{kFound, kInserted, kFound, kInserted}));
  EXPECT_EQ(Numbers<float>(t.call.Export().at(8).value), (Floats{3, 3}));
  EXPECT_EQ(Numbers<float>(t.call.Export().at(9).value), (Floats{4, 4}));
  EXPECT_EQ(Numbers<int64_t>(t.call.Export().at(8).meta), (std::vector<int64_t>{3}));
  // One after the other: the first makes the row, which the second did not expect, the third did.
  ASSERT_OK(
      t.call.Accumulate({5, 5, 5}, {1, 1, 10, 10, 100, 100}, {false, false, true}, {}, &outcomes));
  EXPECT_EQ(outcomes, (Outcomes{kInserted, kFound, kFound}));
  EXPECT_EQ(Numbers<float>(t.call.Export().at(5).value), (Floats{101, 101}));
  ASSERT_OK(t.call.Erase({5, 6, 5}, &outcomes));
  EXPECT_EQ(outcomes, (Outcomes{kFound, kMissing, kFound}));
  EXPECT_EQ(t.table->size(), 3);
}

void CheckMetaStamps(const TableHarness& harness) {
  Tested t(harness, FloatSchema(1, "sgd",
                                {MetaField::kLastWriteTime, MetaField::kCount, MetaField::kScore}));
  const auto meta = [&](Key key) { return Numbers<int64_t>(t.call.Export().at(key).meta); };
  const OptimizerSpec rule = UsualRule("sgd");
  using Meta = std::vector<int64_t>;
  ASSERT_OK(t.call.Upsert({1}, {1}, {100}));
  EXPECT_EQ(meta(1), (Meta{100, 1, 0}));
  ASSERT_OK(t.call.Apply({1, 2}, {0, 0}, rule, {1, 1, 0}, {200}));
  EXPECT_EQ(meta(1), (Meta{200, 2, 0}));
  EXPECT_EQ(meta(2), (Meta{200, 1, 0}));
  ASSERT_OK(t.call.Accumulate({1, 2, 3, 4}, {1, 1, 1, 1}, {true, false, true, false}, {300}));
  EXPECT_EQ(meta(1), (Meta{300, 3, 0}));
  EXPECT_EQ(meta(2), (Meta{200, 1, 0})) << "not written: not stamped";
  EXPECT_EQ(meta(4), (Meta{300, 1, 0}));
  Floats values;
  ASSERT_OK(t.call.Find({1, 2, 4}, &values));
  EXPECT_EQ(meta(1), (Meta{300, 3, 0})) << "reading is not writing";
  const RowBytes row = {Bytes<float>({9}), "", Bytes<int64_t>({-2, 50, INT64_MIN})};
  ASSERT_OK(t.call.InsertRows({{1, row}, {5, row}}));
  EXPECT_EQ(t.call.Export().at(1), row);
  EXPECT_EQ(t.call.Export().at(5), row);
  ASSERT_OK(t.call.Upsert({1}, {1}, {-4}));
  EXPECT_EQ(meta(1), (Meta{-4, 51, INT64_MIN})) << "the score is the policy's";
  ASSERT_OK(t.call.Erase({1}));
  ASSERT_OK(t.call.Upsert({1}, {1}, {400}));
  EXPECT_EQ(meta(1), (Meta{400, 1, 0})) << "a new life";
}

void CheckSlotsBelongToRows(const TableHarness& harness) {
  const TableSchema schema = FloatSchema(2, "adagrad", {});
  const std::vector<double> hyper = {1, 1, 0, 0};
  Tested t(harness, schema);
  const auto slots = [&](Key key) { return Numbers<float>(t.call.Export().at(key).slots); };
  ASSERT_OK(t.call.Upsert({1}, {5, 6}));
  EXPECT_EQ(slots(1), (Floats{0.1f, 0.1f}));
  ASSERT_OK(t.call.Apply({1, 2}, {1, 2, 3, 0}, schema.rule, hyper));
  EXPECT_EQ(slots(1), (Floats{0.1f + 1, 0.1f + 4}));
  EXPECT_EQ(slots(2), (Floats{0.1f + 9, 0.1f}));
  ASSERT_OK(t.call.Upsert({1}, {7, 8}));
  EXPECT_EQ(slots(1), (Floats{0.1f + 1, 0.1f + 4})) << "an upsert keeps the slots";
  ASSERT_OK(t.call.Accumulate({1, 3}, {1, 1, 1, 1}, {true, false}));
  EXPECT_EQ(slots(1), (Floats{0.1f + 1, 0.1f + 4}));
  EXPECT_EQ(slots(3), (Floats{0.1f, 0.1f}));
  ASSERT_OK(t.call.Erase({1}));
  ASSERT_OK(t.call.Upsert({1}, {7, 8}));
  EXPECT_EQ(slots(1), (Floats{0.1f, 0.1f})) << "a new life";
  const RowBytes row = {Bytes<float>({1, 2}), Bytes<float>({3, 4}), ""};
  ASSERT_OK(t.call.InsertRows({{2, row}, {9, row}}));
  EXPECT_EQ(t.call.Export().at(2), row);
  EXPECT_EQ(t.call.Export().at(9), row);
}

// What is stored is what was given, NaNs and all.
void CheckEveryBitPattern(const TableHarness& harness) {
  std::mt19937_64 random(5);
  for (int dtype = 0; dtype <= static_cast<int>(DType::kInt64); ++dtype) {
    TableSchema schema;
    schema.value_dtype = static_cast<DType>(dtype);
    SCOPED_TRACE(Name(schema.value_dtype));
    schema.dim = 7;
    const std::unique_ptr<Table> table = harness.Make(schema);
    const int64_t n = 500, value_bytes = 7 * SizeOf(schema.value_dtype);
    const Mirror<Key> keys(harness.memory, DifficultKeys(n, 5));
    Mirror<char> in(harness.memory, n * value_bytes), out(harness.memory, n * value_bytes);
    for (int64_t i = 0; i < in.size(); ++i) in[i] = static_cast<char>(random());
    in.Push();
    const Batch batch = {keys.span(n)};
    ASSERT_OK(table->Upsert(harness.memory->context(), batch, in.rows(n, value_bytes), {}, {}));
    ASSERT_OK(table->Find(harness.memory->context(), batch, out.rows(n, value_bytes), {}));
    out.Pull();
    EXPECT_EQ(std::memcmp(in.host(), out.host(), in.size()), 0);
  }
}

void CheckRestrictByScore(const TableHarness& harness) {
  Tested t(harness, FloatSchema(1, "", {MetaField::kLastWriteTime, MetaField::kScore}));
  const std::vector<std::pair<Key, int64_t>> scores = {
      {1, 5}, {2, -3}, {3, 5}, {4, INT64_MIN}, {5, INT64_MAX}, {6, 5}, {7, 0}};
  TableContent rows;
  for (const auto& [key, score] : scores) {
    rows[key] = {Bytes<float>({1}), "", Bytes<int64_t>({-score / 2, score})};
  }
  ASSERT_OK(t.call.InsertRows(rows));
  // By the first bit: negative scores come first.
  Mirror<int64_t> counts(harness.memory, 2);
  counts[0] = 100;
  counts.Push();
  const Context context = harness.memory->context();
  ASSERT_OK(t.table->Histogram(context, MetaField::kScore, {}, 0, counts.span()));
  counts.Pull();
  EXPECT_EQ(counts[0], 102) << "counts are added to";
  EXPECT_EQ(counts[1], 5);
  int64_t erased = -1;
  ASSERT_OK(t.call.EraseBelow(MetaField::kScore, {INT64_MIN, 0}, &erased));
  EXPECT_EQ(erased, 0);
  ASSERT_OK(t.call.EraseBelow(MetaField::kScore, {5, 0}, &erased));
  EXPECT_EQ(erased, 3);
  // Of the three with score 5, the one with the smallest hash goes.
  Keys tied = {1, 3, 6};
  std::sort(tied.begin(), tied.end(), [](Key a, Key b) {
    return Mix64(static_cast<uint64_t>(a)) < Mix64(static_cast<uint64_t>(b));
  });
  ASSERT_OK(
      t.call.EraseBelow(MetaField::kScore, {5, Mix64(static_cast<uint64_t>(tied[1]))}, &erased));
  EXPECT_EQ(erased, 1);
  TableContent want;
  for (const Key key : {tied[1], tied[2], Key{5}}) want[key] = rows[key];
  EXPECT_EQ(Difference(want, t.call.Export()), "");
  ASSERT_OK(t.call.EraseBelow(MetaField::kLastWriteTime, {INT64_MAX, ~uint64_t{0}}, &erased));
  EXPECT_EQ(erased, 3);
  EXPECT_EQ(t.table->size(), 0);
}

// Two tables fill one output: what the first misses, the second finds or begins. The host never
// looks at the misses.
void CheckMissesGoToNextTier(const TableHarness& harness) {
  TableSchema schema = FloatSchema(2, "", {});
  schema.initializer.constant = {0.5};
  Tested upper(harness, schema), lower(harness, schema);
  ASSERT_OK(upper.call.Upsert({1, 2}, {1, 1, 2, 2}));
  ASSERT_OK(lower.call.Upsert({2, 3}, {-2, -2, -3, -3}));
  TestMemory* const memory = harness.memory;
  const Mirror<Key> keys(memory, Keys{9, 1, 3, 2, 3});
  Mirror<float> values(memory, 5 * 3);
  Mirror<Outcome> outcomes(memory, 5);
  const Mirror<int64_t> at(memory, 5), count(memory, 1);
  Positions misses = {at.span(), count.there()};
  const Report first = {outcomes.span(), &misses}, second = {outcomes.span(), nullptr};
  RowParts only_values;
  only_values.values = values.rows(5, 3, 1);
  ASSERT_OK(upper.table->ReadRows(memory->context(), {keys.span()}, only_values, first));
  ASSERT_OK(
      lower.table->Find(memory->context(), {keys.span(), &misses}, values.rows(5, 3, 1), second));
  values.Pull();
  outcomes.Pull();
  EXPECT_EQ(Floats(values.host(), values.host() + 15),
            (Floats{0, 0.5f, 0.5f, 0, 1, 1, 0, -3, -3, 0, 2, 2, 0, -3, -3}));
  EXPECT_EQ(Outcomes(outcomes.host(), outcomes.host() + 5),
            (Outcomes{kMissing, kFound, kFound, kFound, kFound}));
}

void CheckExportLeavesOut(const TableHarness& harness) {
  Tested t(harness, FloatSchema(1, "adagrad", {MetaField::kLastWriteTime}));
  ASSERT_OK(t.call.Upsert({4}, {2.5f}, {77}));
  TestMemory* const memory = harness.memory;
  Mirror<Key> keys(memory, 3);
  Mirror<float> values(memory, 3), slots(memory, 3);
  Mirror<int64_t> meta(memory, 3);
  for (int without = 0; without < 4; ++without) {
    RowParts out = {keys.span(), values.rows(3, 1), slots.rows(3, 1), meta.rows(3, 1)};
    keys[0] = values[0] = slots[0] = meta[0] = -1;
    keys.Push(), values.Push(), slots.Push(), meta.Push();
    if (without == 0) out.keys.data = nullptr;
    if (without == 1) out.values = Rows();
    if (without == 2) out.slots = Rows();
    if (without == 3) out.meta = Rows();
    Cursor cursor;
    int64_t rows = 0, all = 0;
    for (; !cursor.done; all += rows) {
      ASSERT_OK(t.table->Export(memory->context(), &cursor, out, &rows));
    }
    EXPECT_EQ(all, 1);
    keys.Pull(), values.Pull(), slots.Pull(), meta.Pull();
    EXPECT_EQ(keys[0], without == 0 ? -1 : 4);
    EXPECT_EQ(values[0], without == 1 ? -1 : 2.5f);
    EXPECT_EQ(slots[0], without == 2 ? -1 : 0.1f);
    EXPECT_EQ(meta[0], without == 3 ? -1 : 77);
    // A cursor that is done stays done.
    ASSERT_OK(t.table->Export(memory->context(), &cursor, out, &rows));
    EXPECT_EQ(rows, 0);
    EXPECT_TRUE(cursor.done);
  }
}

void CheckExportParts(const TableHarness& harness) {
  Tested t(harness, FloatSchema(1, "", {}));
  Keys keys;
  for (Key key = 0; key < 1000; ++key) keys.push_back(key * key * key - 500'000);
  ASSERT_OK(t.call.Upsert(keys, Floats(keys.size())));
  std::sort(keys.begin(), keys.end());
  for (const int64_t parts : {1, 2, 3, 64, 100}) {
    Keys got;
    size_t largest = 0;
    for (int64_t part = 0; part < parts; ++part) {
      const size_t before = got.size();
      Cursor cursor;
      cursor.part = part;
      cursor.parts = parts;
      while (!cursor.done) {
        for (const auto& row : ExportSome(*t.table, harness.memory, 7, true, &cursor)) {
          got.push_back(row.first);
        }
      }
      largest = std::max(largest, got.size() - before);
    }
    std::sort(got.begin(), got.end());
    EXPECT_EQ(got, keys) << parts << " parts";
    EXPECT_LE(largest, 2 * keys.size() / static_cast<size_t>(parts) + 20) << parts << " parts";
  }
  for (const auto& [part, parts] : {std::pair(-1, 1), {0, 0}, {2, 2}, {0, -1}}) {
    Cursor cursor;
    cursor.part = part;
    cursor.parts = parts;
    Mirror<Key> out(harness.memory, 1);
    int64_t rows;
    RowParts only_keys;
    only_keys.keys = out.span();
    EXPECT_EQ(t.table->Export(harness.memory->context(), &cursor, only_keys, &rows).code(),
              Code::kInvalidArgument);
  }
}

void CheckMemoryComesAndGoes(const TableHarness& harness) {
  constexpr int64_t kRows = 20'000, kDim = 16;
  Tested t(harness, FloatSchema(kDim, "", {}));
  const int64_t empty = t.table->memory_bytes();
  const auto keys = [](int64_t round) {
    Keys keys;
    for (int64_t i = 0; i < kRows; ++i) keys.push_back(round * kRows + i);
    return keys;
  };
  ASSERT_OK(t.call.Upsert(keys(0), Floats(kRows * kDim)));
  const int64_t full = t.table->memory_bytes();
  if (harness.rows_in_memory) {
    EXPECT_GE(full, empty + kRows * kDim * 4);
  }
  // Other keys in place of the erased ones need no more, or little: the shares of a table's parts
  // vary.
  for (int64_t round = 1; round <= 10; ++round) {
    ASSERT_OK(t.call.Erase(keys(round - 1)));
    ASSERT_OK(t.call.Upsert(keys(round), Floats(kRows * kDim)));
    EXPECT_EQ(t.table->size(), kRows);
  }
  EXPECT_LT(t.table->memory_bytes(), full + full / 2 + harness.bytes_ahead);
  if (!harness.rows_in_memory) return;
  for (int round = 0; round < 3; ++round) {
    ASSERT_OK(t.call.Clear());
    EXPECT_EQ(t.table->size(), 0);
    EXPECT_LT(t.table->memory_bytes(), full / 4);
    ASSERT_OK(t.call.Upsert(keys(round), Floats(kRows * kDim)));
    EXPECT_LT(t.table->memory_bytes(), full + full / 4);
  }
}

// Batches and tables large enough for what small ones never reach: calls divided over threads, many
// growths, large slabs. Each value tells its key.
void CheckManyRows(const TableHarness& harness) {
  constexpr int64_t kDim = 12, kBatch = 30'000;
  Tested t(harness, FloatSchema(kDim, "sgd", {}));
  const auto key = [](int64_t i) { return (i % 3 - 1) * (i << (i % 40)) + i; };
  const auto value = [](int64_t i, int64_t c) { return static_cast<float>(i * 16 + c); };
  Keys all;
  for (int64_t i = 0; i < kBatch * harness.batches_of_many_rows; ++i) all.push_back(key(i));
  std::sort(all.begin(), all.end());
  all.erase(std::unique(all.begin(), all.end()), all.end());
  std::shuffle(all.begin(), all.end(), std::mt19937(3));
  const int64_t n = static_cast<int64_t>(all.size());
  Outcomes outcomes;
  for (int64_t begin = 0; begin < n; begin += kBatch) {
    const int64_t end = std::min(n, begin + kBatch);
    Floats values;
    for (int64_t i = begin; i < end; ++i) {
      for (int64_t c = 0; c < kDim; ++c) values.push_back(value(i, c));
    }
    const Keys keys(all.begin() + begin, all.begin() + end);
    ASSERT_OK(t.call.Upsert(keys, values, {}, &outcomes));
    EXPECT_EQ(std::count(outcomes.begin(), outcomes.end(), kInserted), end - begin);
  }
  EXPECT_EQ(t.table->size(), n);
  // Every third goes; among 10,000 keys and more, also ones that never were.
  Keys gone;
  for (int64_t i = 0; i < n; i += 3) gone.push_back(all[i]);
  ASSERT_OK(t.call.Erase(gone, &outcomes));
  EXPECT_EQ(std::count(outcomes.begin(), outcomes.end(), kFound), (n + 2) / 3);
  ASSERT_OK(t.call.Apply(all, Floats(n * kDim, 1.0f), UsualRule("sgd"), {2, 1, 0}, {}, &outcomes));
  EXPECT_EQ(std::count(outcomes.begin(), outcomes.end(), kInserted), (n + 2) / 3);
  Floats got;
  ASSERT_OK(t.call.Find(all, &got, &outcomes));
  int64_t wrong = 0;
  for (int64_t i = 0; i < n; ++i) {
    wrong += outcomes[i] != kFound;
    for (int64_t c = 0; c < kDim; ++c) {
      wrong += got[i * kDim + c] != (i % 3 == 0 ? 0 : value(i, c)) - 2.0f;
    }
  }
  EXPECT_EQ(wrong, 0);
  const TableContent content = t.call.Export(10'000);
  EXPECT_EQ(static_cast<int64_t>(content.size()), n);
  // The misses of a large call, in no order.
  ASSERT_OK(t.call.Erase(gone));
  const Mirror<Key> keys(harness.memory, all);
  const Mirror<float> out(harness.memory, n * kDim);
  Mirror<int64_t> at(harness.memory, n), count(harness.memory, 1);
  Positions misses = {at.span(), count.there()};
  ASSERT_OK(
      t.table->Find(harness.memory->context(), {keys.span()}, out.rows(n, kDim), {{}, &misses}));
  at.Pull();
  count.Pull();
  ASSERT_EQ(count[0], (n + 2) / 3);
  std::vector<int64_t> positions(at.host(), at.host() + count[0]);
  std::sort(positions.begin(), positions.end());
  for (int64_t j = 0; j < count[0]; ++j) ASSERT_EQ(positions[j], 3 * j);
}

}  // namespace dynemb

// Moves of all rows into a table of another schema: other slots, further meta fields.
#include <algorithm>
#include <memory>
#include <utility>

#include "cc/core/optimizer/rule.h"
#include "cc/core/testing/caller.h"
#include "cc/core/testing/conformance_checks.h"
#include "gtest/gtest.h"

namespace dynemb {
namespace {

// A table of 3000 keys, three of which have been erased.
void Fill(const Caller& call) {
  Keys keys;
  Floats values;
  for (int i = 0; i < 3000; ++i) {
    keys.push_back(i * 7 - 5000);
    for (int c = 0; c < 3; ++c) values.push_back(static_cast<float>(i + c));
  }
  ASSERT_OK(call.Upsert(keys, values));
  ASSERT_OK(call.Erase({keys[0], keys[1], keys[2999]}));
}

}  // namespace

void CheckMoves(const TableHarness& harness) {
  Tested t(harness, FloatSchema(3, "", {MetaField::kCount}));
  Fill(t.call);
  TableContent want = t.call.Export();

  // A rule where there was none: initial slots; keys, values and meta stay.
  const OptimizerSpec adagrad = UsualRule("adagrad");
  ASSERT_OK(t.SetOptimizer(adagrad));
  EXPECT_EQ(t.table->schema().rule, adagrad);
  for (auto& key_and_row : want) key_and_row.second.slots = Bytes<float>({0.1f, 0.1f, 0.1f});
  EXPECT_EQ(t.table->size(), 2997);
  EXPECT_EQ(Difference(want, t.call.Export()), "");

  // Rows of before are trained, and new ones are inserted.
  ASSERT_OK(t.call.Apply({-5000, -4965}, {1, 1, 1, 1, 1, 1}, adagrad, {1, 1, 0, 0}));
  const TableContent trained = t.call.Export();
  EXPECT_EQ(trained.size(), 2998u);
  EXPECT_EQ(Numbers<float>(trained.at(-5000).slots), Floats(3, 0.1f + 1));
  EXPECT_EQ(Numbers<float>(trained.at(-4965).slots), Floats(3, 0.1f + 1));

  // The same schema, and the same rule with further meta fields, before and after the one that
  // there is: slots stay to the last bit, the new fields are 0.
  ASSERT_OK(t.Move(t.table->schema()));
  EXPECT_EQ(Difference(trained, t.call.Export()), "");
  TableSchema schema = t.table->schema();
  schema.meta.add(MetaField::kLastWriteTime);
  schema.meta.add(MetaField::kScore);
  ASSERT_OK(t.Move(schema));
  EXPECT_EQ(t.table->schema().ToText(), schema.ToText());
  want = trained;
  for (auto& key_and_row : want) {
    std::string& meta = key_and_row.second.meta;
    meta = Bytes<int64_t>({0, Numbers<int64_t>(meta)[0], 0});
  }
  EXPECT_EQ(Difference(want, t.call.Export()), "");
  ASSERT_OK(t.call.Upsert({-4965, 77}, Floats(6), {50}));
  EXPECT_EQ(Numbers<int64_t>(t.call.Export().at(-4965).meta), (std::vector<int64_t>{50, 3, 0}));
  EXPECT_EQ(Numbers<int64_t>(t.call.Export().at(77).meta), (std::vector<int64_t>{50, 1, 0}));

  // Another rule, and another start of a slot of the same: as new rows have them; then none.
  OptimizerSpec other_start;
  ASSERT_OK(MakeOptimizerSpec("adagrad", 0.25, &other_start));
  want = t.call.Export();
  for (const OptimizerSpec& rule : {UsualRule("adam"), adagrad, other_start, OptimizerSpec()}) {
    SCOPED_TRACE(rule.DebugString());
    schema.rule = rule;
    ASSERT_OK(t.Move(schema));
    std::string initial(static_cast<size_t>(RowLayout(schema).slots_bytes), '\0');
    FillInitialSlots(schema, initial.data());
    for (auto& key_and_row : want) key_and_row.second.slots = initial;
    EXPECT_EQ(Difference(want, t.call.Export()), "");
  }

  // No rows.
  ASSERT_OK(t.call.Clear());
  ASSERT_OK(t.SetOptimizer(adagrad));
  EXPECT_EQ(t.table->size(), 0);
  EXPECT_TRUE(t.call.Export().empty());
  ASSERT_OK(t.call.Upsert({1}, {1, 2, 3}));
  EXPECT_EQ(t.table->size(), 1);
  ASSERT_OK(t.call.Clear());
  EXPECT_EQ(t.table->schema().rule, adagrad) << "Clear keeps the rule";
}

void CheckMovedChanges(const TableHarness& harness) {
  Tested t(harness, FloatSchema(1, "", {}));
  // Not tracked before: not tracked after.
  ASSERT_OK(t.call.Upsert({1}, {1}));
  TableSchema schema = t.table->schema();
  schema.meta.add(MetaField::kLastWriteTime);
  ASSERT_OK(t.Move(schema));
  EXPECT_EQ(t.table->epoch(), 0);
  Keys keys;
  EXPECT_EQ(t.call.ChangedKeys(0, &keys).code(), Code::kFailedPrecondition);

  ASSERT_OK(t.call.BeginEpoch(5));
  ASSERT_OK(t.call.Upsert({2, 3, 4}, {1, 1, 1}));
  ASSERT_OK(t.call.BeginEpoch(6));
  ASSERT_OK(t.call.Erase({3}));
  ASSERT_OK(t.call.BeginEpoch(9));
  ASSERT_OK(t.call.Upsert({4, 5}, {1, 1}));
  ASSERT_OK(t.SetOptimizer(UsualRule("adagrad")));
  EXPECT_EQ(t.table->epoch(), 9);
  const auto expect = [&](int64_t since, Keys want) {
    Keys got;
    ASSERT_OK(t.call.ChangedKeys(since, &got));
    std::sort(got.begin(), got.end());
    EXPECT_EQ(got, want) << "since " << since;
  };
  expect(4, {2, 3, 4, 5});
  expect(5, {3, 4, 5});
  expect(8, {4, 5});
  expect(9, {});
  EXPECT_EQ(t.call.ChangedKeys(3, &keys).code(), Code::kFailedPrecondition);
  // Writes go on in the same epoch, and in the next.
  ASSERT_OK(t.call.Upsert({5, 6}, {1, 1}));
  expect(8, {4, 5, 6});
  EXPECT_EQ(t.call.BeginEpoch(9).code(), Code::kInvalidArgument);
  ASSERT_OK(t.call.BeginEpoch(10));
  ASSERT_OK(t.call.Erase({2, 5}));
  expect(9, {2, 5});
  expect(4, {2, 3, 4, 5, 6});
  // What was trimmed before a move is not known after it.
  t.table->TrimChanges({6});
  schema = t.table->schema();
  schema.meta.add(MetaField::kScore);
  ASSERT_OK(t.Move(schema));
  EXPECT_EQ(t.call.ChangedKeys(5, &keys).code(), Code::kFailedPrecondition);
  expect(6, {2, 4, 5, 6});
}

// Rows that were erased before a move or after it make room for others.
void CheckMovesUseErasedRows(const TableHarness& harness) {
  constexpr int64_t kRows = 20'000, kDim = 16;
  const auto keys = [](int64_t begin, int64_t count) {
    Keys keys;
    for (int64_t i = 0; i < count; ++i) keys.push_back(begin + i);
    return keys;
  };
  Tested fresh(harness, FloatSchema(kDim, "adagrad", {}));
  ASSERT_OK(fresh.call.Upsert(keys(0, kRows), Floats(kRows * kDim)));
  const int64_t full = fresh.table->memory_bytes();
  Tested t(harness, FloatSchema(kDim, "", {}));
  ASSERT_OK(t.call.Upsert(keys(0, kRows), Floats(kRows * kDim)));
  ASSERT_OK(t.call.Erase(keys(kRows / 4, kRows - kRows / 4)));
  ASSERT_OK(t.SetOptimizer(UsualRule("adagrad")));
  EXPECT_EQ(t.table->size(), kRows / 4);
  for (int64_t round = 1; round < 6; ++round) {
    const Keys others = keys(round * kRows, kRows - kRows / 4);
    ASSERT_OK(t.call.Upsert(others, Floats(others.size() * kDim)));
    EXPECT_EQ(t.table->size(), kRows);
    EXPECT_LE(t.table->memory_bytes(), full + full / 2 + harness.bytes_ahead);
    ASSERT_OK(t.call.Erase(others));
  }
}

void CheckMovesThatAreNot(const TableHarness& harness) {
  Tested t(harness, FloatSchema(3, "adagrad", {MetaField::kCount}));
  Fill(t.call);
  ASSERT_OK(t.call.BeginEpoch(1));
  ASSERT_OK(t.call.Upsert({1}, {1, 2, 3}));
  const TableContent before = t.call.Export();
  const TableSchema schema = t.table->schema();
  const Context context = harness.memory->context();
  const auto expect_whole = [&](const char* what) {
    SCOPED_TRACE(what);
    EXPECT_EQ(t.table->schema().ToText(), schema.ToText());
    EXPECT_EQ(t.table->size(), static_cast<int64_t>(before.size()));
    EXPECT_EQ(Difference(before, t.call.Export()), "");
    Keys keys;
    ASSERT_OK(t.call.ChangedKeys(0, &keys));
    EXPECT_EQ(keys, Keys{1});
  };
  const auto refused = [&](const char* what, auto spoil) {
    SCOPED_TRACE(what);
    TableSchema other = schema;
    spoil(&other);
    std::unique_ptr<RowMove> move;
    const Status status = t.table->PrepareMove(context, other, &move);
    EXPECT_EQ(status.code(), Code::kInvalidArgument) << status.message();
    EXPECT_NE(status.message(), "");
    EXPECT_EQ(move, nullptr);
    expect_whole(what);
  };
  refused("dim", [](TableSchema* s) { s->dim = 4; });
  refused("value dtype", [](TableSchema* s) { s->value_dtype = DType::kFloat64; });
  refused("key", [](TableSchema* s) { s->key = "int32"; });
  refused("constant", [](TableSchema* s) { s->initializer.constant = {1}; });
  refused("distribution", [](TableSchema* s) {
    s->initializer.distribution = {Distribution::Kind::kUniform, -1, 1};
  });
  refused("a rule that does not exist", [](TableSchema* s) { s->rule.name = "luck"; });
  refused("a rule without its slots", [](TableSchema* s) { s->rule.slots.clear(); });
  EXPECT_EQ(t.SetOptimizer(UsualRule("adam")).code(), Code::kFailedPrecondition);
  expect_whole("another optimizer");

  // A move that is given up leaves nothing behind.
  const int64_t bytes = t.table->memory_bytes();
  TableSchema adam = schema;
  adam.rule = UsualRule("adam");
  for (int times = 0; times < 3; ++times) {
    std::unique_ptr<RowMove> move;
    ASSERT_OK(t.table->PrepareMove(context, adam, &move));
    EXPECT_NE(move, nullptr);
    move.reset();
    expect_whole("given up");
    if (harness.rows_in_memory) {
      EXPECT_EQ(t.table->memory_bytes(), bytes);
    }
  }
  ASSERT_OK(t.call.Apply({1, 2}, Floats(6, 1.0f), schema.rule, UsualHyper("adagrad", 1)));
  ASSERT_OK(t.call.Erase({1, 9}));
  TableContent after = t.call.Export();
  EXPECT_EQ(after.size(), before.size()) << "one more, one less";
  // And a later one is whole.
  ASSERT_OK(t.Move(schema));
  EXPECT_EQ(Difference(after, t.call.Export()), "");
}

}  // namespace dynemb

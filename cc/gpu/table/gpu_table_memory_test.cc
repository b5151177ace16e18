// The memory of tables on a GPU: it grows, is reserved, runs out and is given back. Each test on
// the GPU, if there is one, and on the host.
#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "cc/gpu/table/gpu_table.h"
#include "cc/gpu/table/host_access.h"
#include "cc/gpu/table/testing/gpu_table_fixture.h"
#include "gtest/gtest.h"

namespace dynemb {
namespace {

DYNEMB_INSTANTIATE_GPU_TABLE_TESTS();

// The index grows while keys come and go; each call moves a part of it.
TEST_P(GpuTableTest, GrowsByAndBy) {
  constexpr int64_t kDim = 2, kBatch = 1000, kBatches = 150;
  const auto table = Make(Schema(kDim));
  const Caller call(table.get(), memory());
  std::map<Key, float> model;
  std::mt19937_64 random(9);
  std::vector<Key> known;
  int64_t growths = 0, cells = table->index_cells();
  for (int64_t b = 0; b < kBatches; ++b) {
    Keys keys = Numbers(b * kBatch, kBatch), gone;
    Floats values;
    for (const Key key : keys) {
      values.insert(values.end(), kDim, static_cast<float>(random() % 1000));
      model[key] = values.back();
      known.push_back(key);
    }
    ASSERT_OK(call.Upsert(keys, values));
    for (int64_t i = 0; i < kBatch / 3; ++i) gone.push_back(known[random() % known.size()]);
    ASSERT_OK(call.Erase(gone));
    for (const Key key : gone) model.erase(key);
    growths += table->index_cells() != cells;
    cells = table->index_cells();
    if (b % 10 != 9) continue;
    ASSERT_EQ(table->size(), static_cast<int64_t>(model.size()));
    Floats got;
    Outcomes outcomes;
    ASSERT_OK(call.Find(known, &got, &outcomes));
    for (size_t i = 0; i < known.size(); ++i) {
      const auto row = model.find(known[i]);
      ASSERT_EQ(outcomes[i], row == model.end() ? Outcome::kMissing : Outcome::kFound);
      if (row == model.end()) continue;
      ASSERT_EQ(got[i * kDim + 1], row->second);
    }
    ASSERT_EQ(call.Export(3000).size(), model.size());
  }
  EXPECT_GE(growths, 8);
  EXPECT_LT(cells, 4 * table->size());
}

TEST_P(GpuTableTest, ReservingTooMuchIsAnError) {
  LimitedMemory limited(device_memory(), 1 << 20);
  const auto table = Make(Schema(1), &limited);
  const Caller call(table.get(), memory());
  ASSERT_OK(call.Upsert({1, 2}, {1, 2}));
  for (const int64_t rows : {int64_t{1} << 20, int64_t{1} << 40, INT64_MAX}) {
    EXPECT_EQ(call.Reserve(rows).code(), Code::kResourceExhausted) << rows;
  }
  Floats values;
  ASSERT_OK(call.Find({1, 2}, &values));
  EXPECT_EQ(values, (Floats{1, 2}));
}

// What is reserved is filled to nine tenths, and beyond it the index grows.
TEST_P(GpuTableTest, ReservedIndexIsFilled) {
  const auto table = Make(Schema(1));
  const Caller call(table.get(), memory());
  constexpr int64_t kRows = 50'000;
  ASSERT_OK(call.Reserve(kRows));
  const int64_t cells = table->index_cells();
  EXPECT_LT(cells, kRows * 1.2);
  for (int64_t i = 0; i < 10; ++i) {
    ASSERT_OK(call.Upsert(Numbers(i * kRows / 10, kRows / 10), Floats(kRows / 10, 1.5f)));
    EXPECT_EQ(table->index_cells(), cells);
  }
  Floats values;
  ASSERT_OK(call.Find(Numbers(0, kRows), &values));
  EXPECT_EQ(values, Floats(kRows, 1.5f));
  for (int64_t i = 10; i < 15; ++i) {
    ASSERT_OK(call.Upsert(Numbers(i * kRows / 10, kRows / 10), Floats(kRows / 10, 1.5f)));
  }
  EXPECT_GT(table->index_cells(), cells);
  ASSERT_OK(call.Find(Numbers(0, kRows * 3 / 2), &values));
  EXPECT_EQ(values, Floats(kRows * 3 / 2, 1.5f));
}

// Memory that runs out is an error that says which keys were done, and leaves a table that works.
TEST_P(GpuTableTest, MemoryRunsOut) {
  constexpr int64_t kDim = 64, kBatch = 3000;
  LimitedMemory limited(device_memory(), 8 << 20);
  const auto table = Make(Schema(kDim, "sgd"), &limited);
  const Caller call(table.get(), memory());
  std::map<Key, float> model;
  int64_t fulls = 0;
  for (int64_t b = 0; b < 20; ++b) {
    const Keys keys = Numbers(b * kBatch, kBatch);
    Outcomes outcomes;
    const Status status =
        call.Upsert(keys, Floats(kBatch * kDim, static_cast<float>(b)), {}, &outcomes);
    int64_t full = 0;
    for (int64_t i = 0; i < kBatch; ++i) {
      ASSERT_TRUE(outcomes[i] == Outcome::kInserted || outcomes[i] == Outcome::kFull);
      full += outcomes[i] == Outcome::kFull;
      if (outcomes[i] == Outcome::kInserted) model[keys[i]] = static_cast<float>(b);
    }
    EXPECT_EQ(status.code(), full > 0 ? Code::kResourceExhausted : Code::kOk) << status.message();
    EXPECT_EQ(table->size(), static_cast<int64_t>(model.size()));
    fulls += full;
  }
  ASSERT_GT(fulls, 0);
  ASSERT_GT(model.size(), 8000u);
  const auto check = [&] {
    const TableContent content = call.Export(10'000);
    ASSERT_EQ(content.size(), model.size());
    for (const auto& [key, row] : content) {
      float number;
      std::memcpy(&number, row.value.data() + 4 * (kDim - 1), sizeof(number));
      ASSERT_EQ(number, model.at(key));
    }
  };
  check();
  // Keys that are there are updated; missing ones in the same call are not.
  Keys keys;
  for (const auto& [key, number] : model) keys.push_back(key);
  keys.resize(500);
  for (Key& key : keys) model[key] -= 1;
  const Keys missing = Numbers(1'000'000, 3000);
  Keys both = keys;
  both.insert(both.end(), missing.begin(), missing.end());
  Outcomes outcomes;
  EXPECT_EQ(
      call.Apply(both, Floats(both.size() * kDim, 1.0f), UsualRule("sgd"), {1, 1, 0}, {}, &outcomes)
          .code(),
      Code::kResourceExhausted);
  EXPECT_EQ(std::count(outcomes.begin(), outcomes.end(), Outcome::kFound), 500);
  for (size_t i = 500; i < both.size(); ++i) {
    if (outcomes[i] == Outcome::kInserted) {
      Floats value;
      ASSERT_OK(call.Find({both[i]}, &value));
      model[both[i]] = value[kDim - 1];
    }
  }
  check();
  // What is erased makes room.
  ASSERT_OK(call.Erase(keys));
  for (const Key key : keys) model.erase(key);
  ASSERT_OK(call.Upsert(keys, Floats(keys.size() * kDim, 5.0f)));
  for (const Key key : keys) model[key] = 5;
  check();
  // And so does more memory.
  limited.Add(64 << 20);
  ASSERT_OK(call.Upsert(missing, Floats(missing.size() * kDim, 6.0f)));
  for (const Key key : missing) model[key] = 6;
  check();
}

TEST_P(GpuTableTest, CallsWithoutMemoryToWorkInSayFull) {
  constexpr int64_t kDim = 4, kKeys = 200'000;
  LimitedMemory limited(device_memory(), 3 << 20);
  const std::shared_ptr<GpuTable> table = Make(Schema(kDim, "sgd"), &limited);
  const std::unique_ptr<Table> through_host = MakeHostAccess(table, &limited);
  const Caller calls[] = {Caller(table.get(), memory()),
                          Caller(through_host.get(), HostTestMemory())};
  for (const Caller& call : calls) {
    const Keys keys = Numbers(0, kKeys);
    const Floats rows(kKeys * kDim, 1.0f);
    Outcomes outcomes(kKeys, Outcome::kFound);
    EXPECT_EQ(call.Upsert(keys, rows, {}, &outcomes).code(), Code::kResourceExhausted);
    EXPECT_EQ(std::count(outcomes.begin(), outcomes.end(), Outcome::kFull), kKeys);
    outcomes.assign(kKeys, Outcome::kFound);
    EXPECT_EQ(call.Apply(keys, rows, UsualRule("sgd"), {1, 1, 0}, {}, &outcomes).code(),
              Code::kResourceExhausted);
    EXPECT_EQ(std::count(outcomes.begin(), outcomes.end(), Outcome::kFull), kKeys);
    outcomes.assign(kKeys, Outcome::kFound);
    EXPECT_EQ(call.Erase(keys, &outcomes).code(), Code::kResourceExhausted);
    EXPECT_EQ(std::count(outcomes.begin(), outcomes.end(), Outcome::kFull), kKeys);
    EXPECT_EQ(table->size(), 0);
  }
  // It is as usable as before.
  for (const Caller& call : calls) {
    ASSERT_OK(call.Upsert({1, 2}, Floats(2 * kDim, 3.0f)));
    Floats values;
    ASSERT_OK(call.Find({2}, &values));
    EXPECT_EQ(values, Floats(kDim, 3.0f));
  }
}

// A move needs room for the rows twice; without it the table is as it was.
TEST_P(GpuTableTest, MovesWithoutMemoryChangeNothing) {
  LimitedMemory limited(device_memory(), 6 << 20);
  std::unique_ptr<Table> table = Make(Schema(32), &limited);
  ASSERT_OK(Caller(table.get(), memory()).Upsert(Numbers(0, 20'000), Floats(20'000 * 32, 0.5f)));
  const TableContent before = ExportAll(*table, memory(), 5000);
  const int64_t bytes = table->memory_bytes(), left = limited.left();
  TableSchema schema = table->schema();
  schema.rule = UsualRule("adam");
  std::unique_ptr<RowMove> move;
  EXPECT_EQ(table->PrepareMove(memory()->context(), schema, &move).code(),
            Code::kResourceExhausted);
  EXPECT_EQ(move, nullptr);
  EXPECT_EQ(table->schema().rule, OptimizerSpec());
  EXPECT_EQ(table->memory_bytes(), bytes);
  EXPECT_EQ(limited.left(), left);
  EXPECT_EQ(Difference(before, ExportAll(*table, memory(), 5000)), "");

  // With memory for both the rows move, and what they lay in is given back.
  limited.Add(64 << 20);
  ASSERT_OK(table->PrepareMove(memory()->context(), schema, &move));
  const int64_t left_for_both = limited.left();
  limited.Add(-left_for_both);
  const std::unique_ptr<Table> moved = move->Run(memory()->context());
  EXPECT_GT(limited.left(), 20'000 * 32 * 4);
  limited.Add(left_for_both);
  move.reset();
  table.reset();
  const Caller call(moved.get(), memory());
  TableContent after = call.Export(5000);
  for (auto& key_and_row : after) key_and_row.second.slots.clear();
  EXPECT_EQ(Difference(before, after), "");
  ASSERT_OK(call.Apply(Numbers(0, 30'000), Floats(30'000 * 32, 1.0f), schema.rule,
                       UsualHyper("adam", 1)));
  EXPECT_EQ(moved->size(), 30'000);
}

// The memory of a table may be held by any holder of the table; it is as long as a table is there
// that its rows were moved to.
TEST_P(GpuTableTest, MovedTablesHoldTheirMemory) {
  int memories = 1;
  {
    const std::shared_ptr<LimitedMemory> limited(
        new LimitedMemory(device_memory(), 64 << 20), [&](LimitedMemory* gone) {
          EXPECT_EQ(gone->left(), 64 << 20) << "the memory ends before the tables";
          --memories;
          delete gone;
        });
    std::unique_ptr<GpuTable> made = Make(Schema(4), limited.get());
    std::shared_ptr<GpuTable> held(made.release(), [limited](GpuTable* table) { delete table; });
    std::unique_ptr<Table> table = MakeHostAccess(std::move(held), limited.get());
    ASSERT_OK(Caller(table.get(), HostTestMemory()).Upsert({1, 2}, Floats(8, 3.0f)));
    for (const char* rule : {"sgd", "adam", ""}) {
      TableSchema schema = table->schema();
      schema.rule = UsualRule(rule);
      std::unique_ptr<RowMove> move;
      ASSERT_OK(table->PrepareMove(HostTestMemory()->context(), schema, &move));
      table = move->Run(HostTestMemory()->context());
      const auto* access = dynamic_cast<const HostAccess*>(table.get());
      ASSERT_NE(access, nullptr);
      EXPECT_EQ(access->table()->schema().rule.name, rule);
    }
    Floats values;
    ASSERT_OK(Caller(table.get(), HostTestMemory()).Find({2}, &values));
    EXPECT_EQ(values, Floats(4, 3.0f));
  }
  EXPECT_EQ(memories, 0);
}

// Changed keys come to the host through as much memory as there is.
TEST_P(GpuTableTest, TellsChangesWithoutMemory) {
  constexpr int64_t kKeys = 60'000, kBatch = 500;
  LimitedMemory limited(device_memory(), 64 << 20);
  const auto table = Make(Schema(1), &limited);
  const Caller call(table.get(), memory());
  ASSERT_OK(call.BeginEpoch(1));
  for (int64_t i = 0; i < kKeys; i += kBatch) {
    ASSERT_OK(call.Upsert(Numbers(i, kBatch), Floats(kBatch, 1.0f)));
  }
  limited.Add(-limited.left());
  for (const int64_t parts : {1, 3}) {
    Keys all;
    for (int64_t part = 0; part < parts; ++part) {
      Keys keys;
      ASSERT_OK(call.ChangedKeys(0, &keys, {part, parts}));
      all.insert(all.end(), keys.begin(), keys.end());
    }
    Keys want = Numbers(0, kKeys);
    std::sort(all.begin(), all.end());
    std::sort(want.begin(), want.end());
    EXPECT_TRUE(all == want) << all.size();
  }
  limited.Add(64 << 20);
}

// Memory that runs out while whole rows are inserted through the host.
TEST_P(GpuTableTest, WholeRowsThroughTheHostUntilMemoryRunsOut) {
  constexpr int64_t kDim = 64, kKeys = 60'000;
  LimitedMemory limited(device_memory(), 12 << 20);
  const std::shared_ptr<GpuTable> table = Make(Schema(kDim), &limited);
  const std::unique_ptr<Table> access = MakeHostAccess(table, &limited);
  const Caller call(access.get(), HostTestMemory());
  const Keys keys = Numbers(0, kKeys);
  TableContent rows;
  for (const Key key : keys) rows[key].value = Bytes(Floats(kDim, 1.0f));
  const Keys some(keys.begin(), keys.begin() + 1000);
  ASSERT_OK(call.Upsert(some, Floats(some.size() * kDim, 2.0f)));
  Outcomes outcomes;
  EXPECT_EQ(call.InsertRows(rows, nullptr, &outcomes).code(), Code::kResourceExhausted);
  TableContent want;
  int64_t at = 0, full = 0;
  for (const auto& [key, row] : rows) {
    const Outcome outcome = outcomes[at++];
    full += outcome == Outcome::kFull;
    if (outcome != Outcome::kFull) want[key] = row;
  }
  for (const Key key : some) {
    if (want.count(key) == 0) want[key].value = Bytes(Floats(kDim, 2.0f));
  }
  EXPECT_GT(full, 0);
  EXPECT_GT(want.size(), 5000u);
  limited.Add(64 << 20);
  EXPECT_EQ(Difference(want, call.Export(5000)), "");
}

TEST_P(GpuTableTest, GivesAllMemoryBack) {
  LimitedMemory limited(device_memory(), int64_t{1} << 30);
  const int64_t before = limited.left();
  {
    const auto table = Make(Schema(8, "adam"), &limited);
    const Caller call(table.get(), memory());
    for (int round = 0; round < 3; ++round) {
      ASSERT_OK(call.Upsert(Numbers(0, 30'000), Floats(30'000 * 8, 0.5f)));
      ASSERT_OK(call.Erase(Numbers(0, 10'000)));
      ASSERT_OK(call.BeginEpoch(round + 1));
      ASSERT_OK(call.Erase(Numbers(10'000, 100)));
      std::unique_ptr<RowMove> given_up;
      ASSERT_OK(table->PrepareMove(memory()->context(), Schema(8), &given_up));
      given_up.reset();
      if (round < 2) ASSERT_OK(call.Clear());
    }
    std::unique_ptr<RowMove> move;
    ASSERT_OK(table->PrepareMove(memory()->context(), Schema(8), &move));
    EXPECT_EQ(move->Run(memory()->context())->size(), 19'900);
  }
  EXPECT_EQ(limited.left(), before);
}

}  // namespace
}  // namespace dynemb

// Tables on a GPU with limits, beside those on the host; gpu_bounded_test.cc has what all tables
// with limits have to show.
#include <algorithm>
#include <iterator>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "cc/core/table/evicted_rows.h"
#include "cc/core/table/host_table.h"
#include "cc/gpu/table/host_access.h"
#include "cc/gpu/table/testing/gpu_table_fixture.h"
#include "gtest/gtest.h"

namespace dynemb {
namespace {

DYNEMB_INSTANTIATE_GPU_TABLE_TESTS();

TableSchema SchemaOf(const TableOptions& options, const std::string& rule) {
  TableSchema schema = Schema(3, rule);
  schema.meta = options.eviction.meta();
  return schema;
}

// A table of the host's memory is the model, which is exact up to 2,048 rows: bounded_table_test.
// Every call of both, with keys that repeat, as many as there is room for and more.
TEST_P(GpuTableTest, BoundedTablesAreThoseOfTheHost) {
  for (const char* policy : {"", "lru", "lfu", "norm", "lfu half_life 10", "lfu epoch 10",
                             "lfu lru", "score", "score sum", "lru ttl 7", "score ttl 5"}) {
    for (const int64_t max_rows : {1, 7, 100, 1000}) {
      SCOPED_TRACE(StrCat("policy '", policy, "', ", max_rows, " rows"));
      const TableOptions options = Bounded(max_rows, policy, OnFull::kDecline);
      const TableSchema schema = SchemaOf(options, "adagrad");
      std::unique_ptr<GpuTable> table;
      ASSERT_OK(MakeGpuTable(schema, options, device_memory(), &table));
      std::unique_ptr<Table> of_host;
      ASSERT_OK(MakeHostTable(schema, options, &of_host));
      const Caller call(table.get(), memory()), model(of_host.get(), HostTestMemory());
      std::mt19937_64 random(static_cast<uint64_t>(max_rows));
      const std::vector<double> hyper = UsualHyper("adagrad", 1);
      for (int64_t now = 1; now < 60; ++now) {
        const uint64_t most = now % 13 == 0 ? 2 * max_rows : 1 + max_rows / 3;
        Keys keys(1 + random() % most);
        for (Key& key : keys) key = static_cast<Key>(random() % (3 * max_rows));
        Floats numbers;
        for (size_t i = 0; i < 3 * keys.size(); ++i) {
          numbers.push_back(static_cast<float>(random() % 100));
        }
        const std::unique_ptr<bool[]> exists(new bool[keys.size()]);
        for (size_t i = 0; i < keys.size(); ++i) exists[i] = random() % 2 == 0;
        std::vector<int64_t> scores;  // equal ones for equal keys
        for (const Key key : keys) scores.push_back(key * (now / 10) % 17 - 8);
        const Stamp stamp = {now, scores};
        Outcomes outcomes, want;
        for (const Caller* each : {&call, &model}) {
          Outcomes* const to = each == &call ? &outcomes : &want;
          if (now % 11 == 0) {
            ASSERT_OK(each->Erase({keys[0]}, to));
          } else if (now % 3 == 0) {
            ASSERT_OK(each->Apply(keys, numbers, schema.rule, hyper, stamp, to));
          } else if (now % 3 == 1) {
            ASSERT_OK(each->Upsert(keys, numbers, stamp, to));
          } else {
            std::vector<bool> flags(exists.get(), exists.get() + keys.size());
            ASSERT_OK(each->Accumulate(keys, numbers, flags, stamp, to));
          }
        }
        ASSERT_EQ(outcomes, want) << "at " << now;
        ASSERT_EQ(Difference(model.Export(), call.Export()), "") << "at " << now;
        if (options.eviction.expires()) {
          // Which rows that have expired are still there is each table's business.
          ASSERT_OK(table->RemoveExpired(memory()->context()));
          ASSERT_OK(of_host->RemoveExpired(OneThread()));
        }
        ASSERT_EQ(table->room(), of_host->room());
      }
      const TableCounters got = table->counters(), expected = of_host->counters();
      EXPECT_EQ(got.written, expected.written);
      EXPECT_EQ(got.distinct, expected.distinct);
      if (max_rows > 1) {
        EXPECT_LT(got.distinct, got.written);
      }
      if (options.eviction.expires()) continue;
      EXPECT_EQ(got.inserted, expected.inserted);
      EXPECT_EQ(got.erased, expected.erased);
      EXPECT_EQ(got.evicted, expected.evicted);
      EXPECT_EQ(got.declined, expected.declined);
      EXPECT_GT(std::string(policy).empty() ? got.declined : got.evicted, 0);
    }
  }
}

TEST_P(GpuTableTest, AFullTableRefusesTheCallAndIsAsItWas) {
  const TableOptions options = Bounded(4, "");
  std::unique_ptr<GpuTable> table;
  ASSERT_OK(MakeGpuTable(Schema(1), options, device_memory(), &table));
  const Caller call(table.get(), memory());
  ASSERT_OK(call.Upsert({1, 2, 3, 3, 2}, Floats(5, 1)));
  const TableContent before = call.Export();
  const Status full = call.Upsert({1, 5, 6, 5}, Floats(4, 2));
  EXPECT_EQ(full.code(), Code::kResourceExhausted);
  EXPECT_EQ(full.message(),
            "max_rows: got 2 keys without a row, for 3 rows of at most 4; want a larger max_rows, "
            "or an eviction policy");
  EXPECT_EQ(Difference(before, call.Export()), "");
  Outcomes outcomes;
  EXPECT_EQ(call.Upsert({1, 5, 6}, Floats(3, 2), {}, &outcomes).code(), Code::kResourceExhausted);
  EXPECT_EQ(outcomes, Outcomes(3, Outcome::kFull));
  ASSERT_OK(call.Upsert({1, 7, 7, 2, 3}, Floats(5, 3)));
  EXPECT_EQ(table->size(), 4);
}

// Keys that are often in a batch are added up in memory of the call, once, also near the limit.
TEST_P(GpuTableTest, LongGroupsNearTheLimit) {
  constexpr int64_t kDim = 256, kRows = 3000;
  for (const char* policy : {"", "lru"}) {
    const TableOptions options = Bounded(kRows, policy);
    TableSchema schema = SchemaOf(options, "sgd");
    schema.dim = kDim;
    std::unique_ptr<GpuTable> table;
    ASSERT_OK(MakeGpuTable(schema, options, device_memory(), &table));
    std::unique_ptr<Table> of_host;
    ASSERT_OK(MakeHostTable(schema, options, &of_host));
    for (int64_t now = 1; now < 4; ++now) {
      Keys keys;
      for (int64_t i = 0; i < 4000; ++i) keys.push_back(i < 1000 ? 7 : i % 2900);
      Stamp stamp;
      stamp.now = now;
      for (const Caller& call :
           {Caller(table.get(), memory()), Caller(of_host.get(), HostTestMemory())}) {
        ASSERT_OK(call.Apply(keys, Floats(keys.size() * kDim, 0.25f), schema.rule,
                             UsualHyper("sgd", 1), stamp));
      }
    }
    const TableContent got = Caller(table.get(), memory()).Export();
    const TableContent want = Caller(of_host.get(), HostTestMemory()).Export();
    ASSERT_EQ(got.size(), want.size());
    // Sums of quarters are exact in any order.
    EXPECT_EQ(Difference(want, got), "");
  }
}

// Without memory to find those that leave, the keys that have rows are done and the others are not.
TEST_P(GpuTableTest, EvictionWithoutMemory) {
  LimitedMemory limited(device_memory(), int64_t{64} << 20);
  const TableOptions options = Bounded(5000, "lru");
  std::unique_ptr<GpuTable> table;
  ASSERT_OK(MakeGpuTable(SchemaOf(options, ""), options, &limited, &table));
  const Caller call(table.get(), memory());
  const auto upsert = [&](Key first, int64_t count, float value, int64_t now, Outcomes* outcomes) {
    Keys keys;
    for (Key key = first; key < first + count; ++key) keys.push_back(key);
    Stamp stamp;
    stamp.now = now;
    return call.Upsert(keys, Floats(3 * count, value), stamp, outcomes);
  };
  ASSERT_OK(upsert(0, 4900, 1, 1, nullptr));
  Outcomes outcomes;
  ASSERT_OK(upsert(4800, 200, 2, 2, &outcomes));  // the memory to count the missing ones is there
  const int64_t left = limited.left();
  limited.Add(-left);
  EXPECT_EQ(upsert(4900, 200, 3, 3, &outcomes).code(), Code::kResourceExhausted);
  for (size_t i = 0; i < outcomes.size(); ++i) {
    ASSERT_EQ(outcomes[i], i < 100 ? Outcome::kFound : Outcome::kFull) << i;
  }
  EXPECT_EQ(table->size(), 5000);
  limited.Add(left);
  ASSERT_OK(upsert(4900, 200, 4, 4, &outcomes));
  EXPECT_EQ(outcomes[150], Outcome::kInserted);
  EXPECT_EQ(table->size(), 5000);
  EXPECT_EQ(call.Export().size(), 5000);
}

TEST_P(GpuTableTest, WhatBoundsCannotBeIsRefused) {
  std::unique_ptr<GpuTable> table;
  const TableOptions unbounded = Bounded(-1, "lru");
  EXPECT_EQ(MakeGpuTable(SchemaOf(unbounded, ""), unbounded, device_memory(), &table).code(),
            Code::kInvalidArgument);
  EXPECT_EQ(MakeGpuTable(Schema(1), Bounded(5, "lru"), device_memory(), &table).code(),
            Code::kInvalidArgument);  // no field for its times
}

// Lookups and bags of keys without a row give the number that the table was told, training begins
// with their initial values.
TEST_P(GpuTableTest, MissingKeysReadTheirNumber) {
  TableOptions options;
  options.missing_value = 0.5;
  std::unique_ptr<GpuTable> table;
  const TableSchema schema = Schema(3, "sgd");
  ASSERT_OK(MakeGpuTable(schema, options, device_memory(), &table));
  const Caller call(table.get(), memory());
  ASSERT_OK(call.Upsert({1}, {1, 2, 3}));
  Floats values;
  ASSERT_OK(call.Find({1, 2}, &values));
  EXPECT_EQ(values, Floats({1, 2, 3, 0.5f, 0.5f, 0.5f}));
  const Mirror<Key> ids(memory(), Keys{1, 2, 2});
  const Mirror<int64_t> begins(memory(), std::vector<int64_t>{0, 3});
  Mirror<float> out(memory(), 3);
  ASSERT_OK(table->FindBags(memory()->context(), {ids.span(), begins.span()}, out.rows(1, 3)));
  out.Pull();
  EXPECT_EQ(Floats(out.host(), out.host() + 3), Floats({2, 3, 4}));
  std::unique_ptr<Table> of_host;
  ASSERT_OK(MakeHostTable(schema, options, &of_host));
  const Caller model(of_host.get(), HostTestMemory());
  for (const Caller* each : {&call, &model}) {
    ASSERT_OK(each->Upsert({1}, {1, 2, 3}));
    ASSERT_OK(each->Apply({2}, {1, 1, 1}, schema.rule, UsualHyper("sgd", 1)));
  }
  EXPECT_EQ(Difference(model.Export(), call.Export()), "");
}

// Many rows are put back into a small table, a part of them at a time: it takes no memory for all.
TEST_P(GpuTableTest, RowsThatArePutBackTakeNoMoreMemory) {
  const TableOptions options = Bounded(1000, "lru");
  const TableSchema schema = SchemaOf(options, "");
  std::unique_ptr<Table> large;
  ASSERT_OK(MakeHostTable(schema, &large));
  const Caller all(large.get(), HostTestMemory());
  constexpr int64_t kRows = 50'000;
  for (int64_t now = 1; now <= 50; ++now) {
    Stamp stamp;
    stamp.now = now;
    ASSERT_OK(all.Upsert(Numbers(now * 1000, 1000), Floats(3000, static_cast<float>(now)), stamp));
  }
  std::unique_ptr<GpuTable> table;
  ASSERT_OK(MakeGpuTable(schema, options, device_memory(), &table));
  const Caller call(table.get(), memory());
  ASSERT_OK(call.Upsert(Numbers(0, 1000), Floats(3000, 1)));
  const int64_t full = table->memory_bytes();
  const TableContent rows = all.Export();
  ASSERT_EQ(static_cast<int64_t>(rows.size()), kRows);
  ASSERT_OK(call.InsertRows(rows));
  EXPECT_EQ(table->size(), 1000);
  EXPECT_LE(table->memory_bytes(), 2 * full);
  // Exactly those that were written last, for a table of this size evicts exactly.
  const Keys last = Numbers(50'000, 1000);
  const std::set<Key> want(last.begin(), last.end());
  for (const auto& [key, row] : call.Export()) ASSERT_EQ(want.count(key), 1u) << key;
}

// Rows of keys that were written at these times.
TableContent WrittenAt(const TableSchema& schema, const std::vector<std::pair<Keys, int64_t>>& at) {
  std::unique_ptr<Table> table;
  EXPECT_TRUE(MakeHostTable(schema, &table).ok());
  const Caller call(table.get(), HostTestMemory());
  for (const auto& [keys, now] : at) {
    Stamp stamp;
    stamp.now = now;
    EXPECT_TRUE(call.Upsert(keys, Floats(keys.size() * schema.dim, 1), stamp).ok());
  }
  return call.Export();
}

// Rows that are put back while memory runs out leave no more than there may be, and none of them
// is lost when there is memory again.
TEST_P(GpuTableTest, RowsThatArePutBackWithoutMemory) {
  LimitedMemory limited(device_memory(), int64_t{64} << 20);
  const TableOptions options = Bounded(1000, "lru");
  TableSchema schema = SchemaOf(options, "");
  schema.dim = 12;
  std::unique_ptr<GpuTable> table;
  ASSERT_OK(MakeGpuTable(schema, options, &limited, &table));
  const Caller call(table.get(), memory());
  ASSERT_OK(call.InsertRows(WrittenAt(schema, {{Numbers(0, 1000), 1}})));
  // The memory that a call works in is there then.
  ASSERT_OK(call.InsertRows(WrittenAt(schema, {{Numbers(5000, 20), 5}})));
  const int64_t left = limited.left();
  limited.Add(40'000 - left);  // less than a slab of rows
  static_cast<void>(call.InsertRows(WrittenAt(schema, {{Numbers(6000, 126), 5}})));
  EXPECT_LE(table->size(), 1000);
  limited.Add(left);
  ASSERT_OK(call.InsertRows(WrittenAt(schema, {{Numbers(7000, 254), 6}})));
  EXPECT_EQ(table->size(), 1000);
  const TableContent rows = call.Export();
  for (const Key key : Numbers(7000, 254)) ASSERT_EQ(rows.count(key), 1u) << key;
}

// A refused call is no moment at which rows expire.
TEST_P(GpuTableTest, RefusedRowsDoNotMoveTheClock) {
  const TableOptions options = Bounded(4, "ttl 10");
  const TableSchema schema = SchemaOf(options, "");
  std::unique_ptr<GpuTable> table;
  ASSERT_OK(MakeGpuTable(schema, options, device_memory(), &table));
  const Caller call(table.get(), memory());
  ASSERT_OK(call.InsertRows(WrittenAt(schema, {{{1, 2, 3}, 5}})));
  EXPECT_EQ(call.InsertRows(WrittenAt(schema, {{{10, 11, 12, 13, 14}, 1000}})).code(),
            Code::kResourceExhausted);
  EXPECT_EQ(call.Export().size(), 3);
}

// Rows that are there can be written where there is no memory for others.
TEST_P(GpuTableTest, RowsThatExpireWithoutMemory) {
  LimitedMemory limited(device_memory(), int64_t{64} << 20);
  const TableOptions options = Bounded(-1, "ttl 1000");
  std::unique_ptr<GpuTable> table;
  ASSERT_OK(MakeGpuTable(SchemaOf(options, ""), options, &limited, &table));
  const Caller call(table.get(), memory());
  ASSERT_OK(call.Upsert(Numbers(0, 1000), Floats(3000, 1)));
  limited.Add(-limited.left());
  Key next = 2000;
  Status status;
  for (; status.ok() && next < 100'000; next += 30) {
    status = call.Upsert(Numbers(next, 30), Floats(90, 1));
  }
  EXPECT_EQ(status.code(), Code::kResourceExhausted);
  ASSERT_OK(call.Upsert(Numbers(0, 3), Floats(9, 2)));
}

// What stays of a smaller size of rows counts.
TEST_P(GpuTableTest, BytesAreBoundedAfterAMove) {
  TableOptions options;
  options.max_bytes = 1 << 20;
  options.track_changes = true;
  TableSchema schema = Schema(8);
  std::unique_ptr<GpuTable> table;
  ASSERT_OK(MakeGpuTable(schema, options, device_memory(), &table));
  const Caller call(table.get(), memory());
  const Keys keys = Numbers(0, table->max_rows() / 2);
  ASSERT_OK(call.Upsert(keys, Floats(8 * keys.size(), 1)));
  ASSERT_OK(call.Erase({keys[0]}));
  schema.rule = UsualRule("adagrad");
  std::unique_ptr<RowMove> move;
  ASSERT_OK(table->PrepareMove(memory()->context(), schema, &move));
  const std::unique_ptr<Table> moved = move->Run(memory()->context());
  const Caller after(moved.get(), memory());
  const Keys more = Numbers(1'000'000, moved->room());
  ASSERT_OK(after.Upsert(more, Floats(8 * more.size(), 1)));
  EXPECT_EQ(moved->room(), 0);
  EXPECT_LE(moved->memory_bytes(), options.max_bytes);
}

// A table that is bounded by bytes is cleared without any that it would have to take.
TEST_P(GpuTableTest, ClearingTakesNoMemory) {
  LimitedMemory limited(device_memory(), int64_t{64} << 20);
  TableOptions options;
  options.max_bytes = 1 << 20;
  options.track_changes = true;
  std::unique_ptr<GpuTable> table;
  ASSERT_OK(MakeGpuTable(Schema(3), options, &limited, &table));
  const Caller call(table.get(), memory());
  ASSERT_OK(call.Upsert({1, 2, 3}, Floats(9, 1)));
  const int64_t left = limited.left();
  limited.Add(-left);
  ASSERT_OK(call.Clear());
  EXPECT_EQ(table->size(), 0);
  limited.Add(left);
  ASSERT_OK(call.Upsert(Numbers(0, 5000), Floats(15'000, 1)));
  EXPECT_LE(table->memory_bytes(), options.max_bytes);
  std::vector<Key> changed;
  EXPECT_EQ(table->ChangedKeys(memory()->context(), 0, TablePart(), &changed).code(),
            Code::kFailedPrecondition);  // it was cleared since
}

// Of more rows than are kept those are dropped that the host drops.
TEST_P(GpuTableTest, TheSameRowsAreKept) {
  KeptRows kept[2];
  for (const bool of_host : {false, true}) {
    TableOptions options = Bounded(20, "lru");
    options.keep_evicted = 5;
    options.evicted = std::make_shared<EvictedRows>(5);
    const TableSchema schema = SchemaOf(options, "");
    std::unique_ptr<GpuTable> on_gpu;
    std::unique_ptr<Table> on_host;
    ASSERT_OK(MakeGpuTable(schema, options, device_memory(), &on_gpu));
    ASSERT_OK(MakeHostTable(schema, options, &on_host));
    const Caller call =
        of_host ? Caller(on_host.get(), HostTestMemory()) : Caller(on_gpu.get(), memory());
    for (int64_t now = 1; now < 4; ++now) {
      Stamp stamp;
      stamp.now = now;
      ASSERT_OK(call.Upsert(Numbers(now * 100, 20), Floats(60, static_cast<float>(now)), stamp));
    }
    int64_t dropped;
    kept[of_host] = options.evicted->Take(&dropped);
    EXPECT_EQ(dropped, 35);
  }
  EXPECT_EQ(kept[0].keys, kept[1].keys);
  EXPECT_EQ(kept[0].values, kept[1].values);
}

// Beyond 2,048 rows those that leave are of a sample. The limit holds at every moment, the same
// rows leave in every run, a moved table goes on, and evicted keys are changes.
TEST_P(GpuTableTest, LargeTablesEvictFromASample) {
  constexpr int64_t kRows = 20'000;
  for (const char* policy : {"lru", "lfu"}) {
    const TableOptions options = Bounded(kRows, policy);
    TableContent contents[2];
    for (TableContent& content : contents) {
      std::unique_ptr<GpuTable> made;
      TableSchema schema = SchemaOf(options, "");
      ASSERT_OK(MakeGpuTable(schema, options, device_memory(), &made));
      std::unique_ptr<Table> table = std::move(made);
      std::mt19937_64 random(4);
      Keys erased;
      for (int64_t now = 1; now < 30; ++now) {
        Keys keys(4000);
        for (Key& key : keys) key = static_cast<Key>(random() % 60'000);
        Stamp stamp;
        stamp.now = now;
        if (now == 15) {
          schema.rule = UsualRule("adam");
          std::unique_ptr<RowMove> move;
          ASSERT_OK(table->PrepareMove(memory()->context(), schema, &move));
          table = move->Run(memory()->context());
          ASSERT_OK(table->BeginEpoch(memory()->context(), 1));
        }
        if (now == 20) ASSERT_OK(table->BeginEpoch(memory()->context(), 2));
        const TableContent before =
            now == 20 ? Caller(table.get(), memory()).Export() : TableContent();
        ASSERT_OK(Caller(table.get(), memory()).Upsert(keys, Floats(3 * keys.size(), 1), stamp));
        ASSERT_LE(table->size(), kRows);
        if (now != 20) continue;
        const TableContent after = Caller(table.get(), memory()).Export();
        std::vector<Key> changed;
        ASSERT_OK(table->ChangedKeys(memory()->context(), 1, TablePart(), &changed));
        const std::set<Key> changes(changed.begin(), changed.end());
        int64_t gone = 0;
        for (const auto& row : before) {
          if (after.count(row.first) > 0) continue;
          ++gone;
          EXPECT_EQ(changes.count(row.first), 1);
        }
        EXPECT_GT(gone, 1000);
      }
      EXPECT_EQ(table->size(), kRows);
      EXPECT_GT(table->counters().evicted, kRows);
      content = Caller(table.get(), memory()).Export();
    }
    EXPECT_EQ(Difference(contents[0], contents[1]), "");
  }
}

// Rows of a snapshot come with scores. Those of the highest stay.
TEST_P(GpuTableTest, RowsThatAreInsertedIntoASmallerTable) {
  const TableOptions options = Bounded(100, "lru");
  const TableSchema schema = SchemaOf(options, "");
  std::unique_ptr<Table> large;
  ASSERT_OK(MakeHostTable(schema, &large));
  const Caller all(large.get(), HostTestMemory());
  std::set<int64_t> times;
  for (int64_t now = 1; now <= 300; ++now) {
    Stamp stamp;
    stamp.now = now * 7 % 311;
    times.insert(stamp.now);
    ASSERT_OK(all.Upsert({now}, Floats(3, static_cast<float>(now)), stamp));
  }
  std::unique_ptr<GpuTable> table;
  ASSERT_OK(MakeGpuTable(schema, options, device_memory(), &table));
  const Caller call(table.get(), memory());
  ASSERT_OK(call.InsertRows(all.Export()));
  const TableContent kept = call.Export();
  EXPECT_EQ(kept.size(), 100);
  const int64_t lowest = *std::next(times.begin(), 200);
  for (const auto& row : kept) EXPECT_GE(row.first * 7 % 311, lowest) << row.first;

  // One that declines does not drop what is put back, itself or through the host.
  TableSchema plain = Schema(3);
  std::unique_ptr<Table> many;
  ASSERT_OK(MakeHostTable(plain, &many));
  ASSERT_OK(Caller(many.get(), HostTestMemory()).Upsert(Numbers(0, 101), Floats(303, 1)));
  std::unique_ptr<GpuTable> refuses;
  ASSERT_OK(MakeGpuTable(plain, Bounded(100, "", OnFull::kDecline), device_memory(), &refuses));
  const TableContent rows = Caller(many.get(), HostTestMemory()).Export();
  EXPECT_EQ(Caller(refuses.get(), memory()).InsertRows(rows).code(), Code::kResourceExhausted);
  EXPECT_EQ(refuses->size(), 0);
  const std::shared_ptr<Table> through =
      MakeHostAccess(std::shared_ptr<GpuTable>(std::move(refuses)), device_memory());
  EXPECT_EQ(Caller(through.get(), HostTestMemory()).InsertRows(rows).code(),
            Code::kResourceExhausted);
}

}  // namespace
}  // namespace dynemb

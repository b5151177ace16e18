// A sketch of counts against maps that count exactly.
#include "cc/core/policy/count_sketch.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <random>
#include <vector>

#include "cc/core/table/host_table.h"
#include "cc/core/testing/caller.h"

namespace dynemb {
namespace {

constexpr int64_t kDim = 256;

// A sketch with the table of its counters.
struct Sketched {
  explicit Sketched(const SketchShape& shape)
      : table(MakeTable()), sketch(table.get(), shape), shape(shape) {}

  static std::unique_ptr<Table> MakeTable() {
    TableSchema schema;
    schema.value_dtype = DType::kInt8;
    schema.dim = kDim;
    std::unique_ptr<Table> table;
    EXPECT_TRUE(MakeHostTable(schema, TableOptions(), &table).ok());
    return table;
  }
  // What counts may add up to before all are halved.
  int64_t most() const {
    return static_cast<int64_t>(std::floor(static_cast<double>(shape.blocks * kDim) / std::exp(1)));
  }
  void Note(const Keys& keys, const Floats& counts) {
    ASSERT_OK(sketch.Note(OneThread(), keys, counts));
  }
  Floats Estimate(const Keys& keys) const {
    Floats estimates(keys.size(), -1);
    EXPECT_TRUE(sketch.Estimate(OneThread(), keys, estimates.data()).ok());
    return estimates;
  }
  float Estimate(Key key) const { return Estimate(Keys{key})[0]; }

  std::unique_ptr<Table> table;
  CountSketch sketch;
  SketchShape shape;
};

Keys Range(Key begin, Key end) {
  Keys keys;
  for (Key key = begin; key < end; ++key) keys.push_back(key);
  return keys;
}

// Notes the occurrences of a stream, some keys at a time, each as what it began with and what has
// come, and checks what is promised at the end: at 1506 counts, which are all that it is for.
void CheckBound(const Keys& stream, const Keys& others) {
  Sketched sketched({16, 0, 1});
  ASSERT_EQ(static_cast<int64_t>(stream.size()), sketched.most());
  std::map<Key, float> exact;
  for (size_t at = 0; at < stream.size(); at += 100) {
    std::map<Key, float> come;
    for (size_t i = at; i < std::min(stream.size(), at + 100); ++i) ++come[stream[i]];
    Keys keys;
    Floats counts;
    for (const auto& [key, count] : come) {
      exact[key] += count;
      keys.push_back(key);
      counts.push_back(count);
    }
    const Floats begun = sketched.Estimate(keys);
    for (size_t i = 0; i < keys.size(); ++i) counts[i] += begun[i];
    sketched.Note(keys, counts);
  }
  for (const Key other : others) exact.emplace(other, 0.0f);
  int64_t over = 0;
  for (const auto& [key, count] : exact) {
    const float estimate = sketched.Estimate(key);
    ASSERT_GE(estimate, std::min(count, 127.0f)) << key;
    over += estimate > count;
  }
  EXPECT_LE(static_cast<double>(over) / static_cast<double>(exact.size()), std::exp(-4));
}

TEST(CountSketchTest, AnEstimateIsSeldomTooLargeAndNeverTooSmall) {
  const Keys others = Range(1'000'000, 1'050'000);
  CheckBound(Range(0, 1506), others);  // all of them once
  std::mt19937_64 random(1);
  Keys skewed;
  while (skewed.size() < 1506) {
    const double u = static_cast<double>(random() % 100'000 + 1) / 100'000;
    skewed.push_back(static_cast<Key>(std::min(1 / u, 1e5)));  // n with a chance of about 1 / n^2
  }
  CheckBound(skewed, others);
}

TEST(CountSketchTest, ToNoteACountAgainAddsNothing) {
  Sketched sketched({16, 0, 1});
  for (int turn = 0; turn < 5; ++turn) sketched.Note({7}, {5});
  EXPECT_EQ(sketched.Estimate(7), 5);
  sketched.Note({7}, {3});
  EXPECT_EQ(sketched.Estimate(7), 5);
}

TEST(CountSketchTest, AllCountersAreHalvedWhenItIsFull) {
  Sketched sketched({16, 0, 1});
  sketched.Note({-1, -2, -3}, {9, 5, 1});
  int64_t raised = 15;
  Key next = 0;
  for (const float halved : {4.0f, 2.0f, 1.0f, 0.0f}) {
    const float before = sketched.Estimate(-1);
    while (true) {
      const int64_t raises = sketched.Estimate(next) == 0;
      sketched.Note({next++}, {1});
      if (raised + raises > sketched.most()) break;
      raised += raises;
      ASSERT_EQ(sketched.Estimate(-1), before) << "when estimates were raised by " << raised;
    }
    raised += 1 - raised / 2;
    ASSERT_EQ(sketched.Estimate(-1), halved);
    ASSERT_EQ(sketched.Estimate(next - 1), 1);
  }
  EXPECT_EQ(sketched.Estimate({-2, -3}), Floats({0, 0}));
}

TEST(CountSketchTest, RowsOfZerosAreRemoved) {
  Sketched sketched({64, 0, 1});
  for (Key key = 0; sketched.table->size() < 4 * 64 + 1; ++key) sketched.Note({key}, {1});
  for (Key key = 10'000; sketched.table->size() == 4 * 64 + 1; ++key) sketched.Note({key}, {1});
  EXPECT_EQ(sketched.table->size(), 4 + 1);  // those of the last key
  EXPECT_EQ(sketched.Estimate(0), 0);
}

TEST(CountSketchTest, ACallMayHaveMoreThanItCanHold) {
  Sketched sketched({16, 0, 1});
  sketched.Note(Range(0, 20'000), Floats(20'000, 1));
  int64_t kept = 0;
  for (const float estimate : sketched.Estimate(Range(0, 20'000))) kept += estimate > 0;
  EXPECT_LE(kept, 2 * sketched.most());
  EXPECT_EQ(sketched.Estimate(19'999), 1);
}

TEST(CountSketchTest, WhatWasNotedUnderAnotherShapeIsForgotten) {
  Sketched first({16, 1, 2});
  first.Note(Range(0, 100), Floats(100, 3));
  EXPECT_EQ(first.Estimate(5), 3);
  for (const SketchShape& other :
       {SketchShape{32, 1, 2}, SketchShape{16, 0, 3}, SketchShape{16, 0, 2}, SketchShape{16, 1, 3},
        SketchShape{16, 0, 1}}) {
    Sketched copy(other);
    Keys keys;
    for (const auto& [key, row] : Caller(first.table.get(), HostTestMemory()).Export()) {
      const ConstRows value = {row.value.data(), 1, kDim};
      ASSERT_OK(copy.table->Upsert(OneThread(), {{&key, 1}}, value, Stamp(), Report()));
    }
    ASSERT_EQ(copy.table->size(), first.table->size());
    EXPECT_EQ(copy.Estimate(Range(0, 100)), Floats(100, 0));
    copy.Note({5}, {1});
    EXPECT_EQ(copy.table->size(), CountSketch::kHashes + 1);
    EXPECT_EQ(copy.Estimate(Range(5, 7)), Floats({1, 0}));
  }
}

TEST(CountSketchTest, ItsKeysAreThoseOfItsProcess) {
  for (int64_t processes = 1; processes < 5; ++processes) {
    for (int64_t process = 0; process < processes; ++process) {
      Sketched sketched({16, process, processes});
      sketched.Note(Range(0, 300), Floats(300, 1));
      for (const auto& [key, row] : Caller(sketched.table.get(), HostTestMemory()).Export()) {
        ASSERT_EQ((key % processes + processes) % processes, process);
      }
    }
  }
}

TEST(CountSketchTest, CountsAndCountersThatCannotBe) {
  Sketched sketched({16, 0, 1});
  const float nan = std::numeric_limits<float>::quiet_NaN();
  sketched.Note({1, 2, 3, 4}, {1e9f, nan, -5, 0.5f});
  EXPECT_EQ(sketched.Estimate({1, 2, 3, 4}), Floats({127, 1, 1, 1}));
  const Caller call(sketched.table.get(), HostTestMemory());
  for (const auto& [key, row] : call.Export()) {
    if (key < 0) continue;
    const std::vector<int8_t> negative(kDim, -3);
    const ConstRows value = {reinterpret_cast<const char*>(negative.data()), 1, kDim};
    ASSERT_OK(sketched.table->Upsert(OneThread(), {{&key, 1}}, value, Stamp(), Report()));
  }
  EXPECT_EQ(sketched.Estimate(1), 0);
  TableSchema schema;
  schema.value_dtype = DType::kInt8;
  schema.dim = 31;
  EXPECT_EQ(CountSketch::Check(schema).code(), Code::kInvalidArgument);
  schema = TableSchema();
  schema.dim = kDim;
  EXPECT_EQ(CountSketch::Check(schema).code(), Code::kInvalidArgument);
}

}  // namespace
}  // namespace dynemb

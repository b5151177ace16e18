// Calls of several tables on a GPU, beside the same calls of one table after the other: on the GPU,
// if there is one, and on the host.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "cc/gpu/kernel_starts.h"
#include "cc/gpu/table/gpu_table.h"
#include "cc/gpu/table/testing/gpu_table_fixture.h"
#include "gtest/gtest.h"

namespace dynemb {
namespace {

// Starts of one Apply of several tables of float32, but for what a table that grows starts: fill
// apart, FindSlot, NameGroup, a sort, FindHeads, InsertHeads, two of SumPieces, WorkOnHeads,
// CountWritten, CountRows.
constexpr int64_t kStartsOfApply = 10;

using GpuTables = std::vector<std::unique_ptr<GpuTable>>;

// What one table is given, in its memory.
struct Gradients {
  Gradients(TestMemory* memory, const Keys& of, int64_t row_bytes)
      : keys(memory, of), numbers(memory, std::max<int64_t>(keys.size() * row_bytes, 1)) {}
  Mirror<Key> keys;
  Mirror<char> numbers;
  std::unique_ptr<Mirror<double>> scales;
};

class GpuTogetherTest : public GpuTableTest {
 protected:
  GpuTables MakeAll(const std::vector<TableSchema>& schemas) const {
    GpuTables tables;
    for (const TableSchema& schema : schemas) tables.push_back(Make(schema));
    return tables;
  }

  // Gradients for `n` keys below `keys`, which repeat.
  std::unique_ptr<Gradients> Draw(const TableSchema& schema, int64_t n, int64_t keys, bool scaled) {
    Keys drawn;
    for (int64_t i = 0; i < n; ++i) {
      // One in four is one of three keys, whose groups are long.
      const uint64_t dice = random_();
      drawn.push_back(static_cast<Key>(dice % 4 == 0 ? dice / 4 % 3 : dice / 4 % keys));
    }
    const DType dtype = GradientDType(schema.value_dtype);
    auto made = std::make_unique<Gradients>(memory(), drawn, schema.dim * SizeOf(dtype));
    std::normal_distribution<double> normal;
    for (int64_t i = 0; i < n * schema.dim; ++i) {
      const double wide = normal(random_);
      const auto narrow = static_cast<float>(wide);
      const bool is_wide = dtype == DType::kFloat64;
      std::memcpy(made->numbers.host() + i * SizeOf(dtype),
                  is_wide ? static_cast<const void*>(&wide) : &narrow, SizeOf(dtype));
    }
    made->numbers.Push();
    if (scaled) {
      std::vector<double> scales;
      for (int64_t i = 0; i < n; ++i) scales.push_back(static_cast<double>(random_() % 5) / 4);
      made->scales = std::make_unique<Mirror<double>>(memory(), scales);
    }
    return made;
  }

  ApplyOfTable CallOf(GpuTable* table, const Gradients& gradients, const std::vector<double>& hyper,
                      int64_t now = 0) const {
    const TableSchema& schema = table->schema();
    const int64_t row_bytes = schema.dim * SizeOf(GradientDType(schema.value_dtype));
    ApplyOfTable call;
    call.table = table;
    call.batch.keys = gradients.keys.span();
    call.gradients = gradients.numbers.rows(gradients.keys.size(), row_bytes);
    call.update.rule = &schema.rule;
    call.update.hyper = hyper;
    if (gradients.scales != nullptr) call.update.scales = gradients.scales->span();
    call.stamp.now = now;
    return call;
  }

  Status ApplyAlone(const ApplyOfTable& call) const {
    return call.table->Apply(memory()->context(), call.batch, call.gradients, call.update,
                             call.stamp, Report());
  }

  void ExpectSame(const GpuTables& got, const GpuTables& want) const {
    for (size_t t = 0; t < got.size(); ++t) {
      EXPECT_EQ(Difference(ExportAll(*want[t], memory(), 1000), ExportAll(*got[t], memory(), 1000)),
                "")
          << "table " << t;
      EXPECT_EQ(got[t]->size(), want[t]->size());
      const TableCounters counters = got[t]->counters(), wanted = want[t]->counters();
      TableCounters::ForEach([&](const char* name, int64_t TableCounters::* what) {
        EXPECT_EQ(counters.*what, wanted.*what) << name << " of table " << t;
      });
    }
  }

  std::mt19937_64 random_{3};
};

INSTANTIATE_TEST_SUITE_P(Spaces, GpuTogetherTest,
                         testing::Values(MemorySpace::kHost, MemorySpace::kDevice),
                         [](const auto& info) {
                           return info.param == MemorySpace::kHost ? "host" : "device";
                         });

// Some steps, of tables of several sizes that grow, with every rule.
TEST_P(GpuTogetherTest, AppliesAsOneAfterTheOther) {
  constexpr int64_t kTables = 7;
  for (const std::string& rule : AllRuleNames()) {
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat64}) {
      for (const int64_t dim : {5, 64}) {
        SCOPED_TRACE(StrCat(rule, " ", Name(dtype), " ", dim));
        std::vector<TableSchema> schemas(kTables, Schema(dim, rule, dtype));
        for (int64_t t = 0; t < kTables; ++t) {
          schemas[t].initializer.seed = static_cast<uint64_t>(t);
          if (t % 3 == 1) schemas[t].meta.add(MetaField::kCount);
          if (t % 3 == 2) schemas[t].meta.add(MetaField::kLastWriteTime);
        }
        const GpuTables together = MakeAll(schemas), alone = MakeAll(schemas);
        for (int step = 1; step <= 3; ++step) {
          const std::vector<double> hyper = UsualHyper(rule, step);
          std::vector<std::unique_ptr<Gradients>> gradients;
          std::vector<ApplyOfTable> calls;
          for (int64_t t = 0; t < kTables; ++t) {
            const int64_t n = t == 3 ? 0 : 20 + 350 * t * step;  // one has none
            gradients.push_back(Draw(schemas[t], n, 100 + 200 * t, (t + step) % 2 == 0));
            ASSERT_OK(ApplyAlone(CallOf(alone[t].get(), *gradients[t], hyper, step)));
            calls.push_back(CallOf(together[t].get(), *gradients[t], hyper, step));
          }
          ASSERT_OK(ApplyToTables(memory()->context(), calls));
        }
        ExpectSame(together, alone);
      }
    }
  }
}

// The same number of kernels for any number of tables.
TEST_P(GpuTogetherTest, StartsAsManyKernelsForAnyNumberOfTables) {
  constexpr int64_t kBatch = 1100, kKeys = 400;
  for (const size_t count : {2, 26, 104}) {
    SCOPED_TRACE(count);
    const std::vector<TableSchema> schemas(count, Schema(4, "adagrad"));
    const GpuTables tables = MakeAll(schemas);
    const std::vector<double> hyper = UsualHyper("adagrad", 1);
    std::vector<std::unique_ptr<Gradients>> gradients;
    std::vector<ApplyOfTable> calls;
    for (size_t t = 0; t < count; ++t) {
      ASSERT_OK(tables[t]->Reserve(memory()->context(), 20 * kKeys));
      gradients.push_back(Draw(schemas[t], kBatch, kKeys, false));
      calls.push_back(CallOf(tables[t].get(), *gradients[t], hyper));
    }
    ASSERT_OK(ApplyToTables(memory()->context(), calls));
    for (const auto& table : tables) EXPECT_GT(table->size(), 0);  // so their counts are known
    int64_t before = kernel_starts;
    ASSERT_OK(ApplyToTables(memory()->context(), calls));
    EXPECT_EQ(kernel_starts - before, kStartsOfApply);

    const Mirror<int64_t> begins(memory(), std::vector<int64_t>{0, 3, 3, 10});
    Mirror<float> out(memory(), static_cast<int64_t>(count) * 3 * 4);
    std::vector<BagsOfTable> bags;
    for (size_t t = 0; t < count; ++t) {
      bags.push_back({tables[t].get(),
                      {gradients[t]->keys.span(), begins.span()},
                      out.rows(3, 4, static_cast<int64_t>(t) * 12)});
    }
    before = kernel_starts;
    ASSERT_OK(FindBagsOfTables(memory()->context(), bags));
    EXPECT_EQ(kernel_starts - before, 1);
  }
}

// Features of several dims and dtypes, some of one table, weighted and not.
TEST_P(GpuTogetherTest, FindsBagsAsOneAfterTheOther) {
  constexpr int64_t kBags = 50;
  std::vector<TableSchema> schemas;
  for (const int64_t dim : {3, 16, 16, 200, 16}) schemas.push_back(Schema(dim, "sgd"));
  for (const int64_t dim : {16, 16}) schemas.push_back(Schema(dim, "sgd", DType::kFloat16));
  for (const int64_t dim : {16, 3}) schemas.push_back(Schema(dim, "sgd", DType::kFloat64));
  for (size_t t = 0; t < schemas.size(); ++t) schemas[t].initializer.seed = t;
  const GpuTables tables = MakeAll(schemas);
  for (size_t t = 0; t < tables.size(); ++t) {
    const auto gradients = Draw(schemas[t], 100, 60, false);
    ASSERT_OK(ApplyAlone(CallOf(tables[t].get(), *gradients, UsualHyper("sgd", 1))));
  }
  struct Feature {
    std::unique_ptr<Mirror<Key>> ids;
    std::unique_ptr<Mirror<int64_t>> begins;
    std::unique_ptr<Mirror<char>> weights, out;
    BagsOfTable call;
  };
  std::vector<Feature> features;
  std::vector<BagsOfTable> calls;
  for (int64_t f = 0; f < 40; ++f) {
    const GpuTable* const table = tables[static_cast<size_t>(f) % tables.size()].get();
    const int64_t row_bytes =
        table->schema().dim * SizeOf(GradientDType(table->schema().value_dtype));
    Keys ids;
    std::vector<int64_t> begins = {0};
    const int64_t bags = f == 17 ? 0 : kBags + f;
    for (int64_t b = 0; b < bags; ++b) {
      for (uint64_t i = random_() % (b % 3 == 0 ? 1 : 70); i > 0; --i) {
        ids.push_back(static_cast<Key>(random_() % 90));  // some have no row
      }
      begins.push_back(static_cast<int64_t>(ids.size()));
    }
    Feature feature;
    feature.ids = std::make_unique<Mirror<Key>>(memory(), ids);
    feature.begins = std::make_unique<Mirror<int64_t>>(memory(), begins);
    feature.out = std::make_unique<Mirror<char>>(memory(), bags * row_bytes + 1);
    feature.call.table = table;
    feature.call.bags = {feature.ids->span(), feature.begins->span(),
                         f % 2 == 0 ? Pooling::kSum : Pooling::kMean};
    if (f % 3 == 0) {
      const int64_t width = row_bytes / table->schema().dim, n = static_cast<int64_t>(ids.size());
      feature.weights = std::make_unique<Mirror<char>>(memory(), n * width);
      for (int64_t i = 0; i < n; ++i) {
        const double wide = static_cast<double>(random_() % 9) / 8;
        const auto narrow = static_cast<float>(wide);
        std::memcpy(feature.weights->host() + i * width,
                    width == 8 ? static_cast<const void*>(&wide) : &narrow, width);
      }
      feature.weights->Push();
      feature.call.bags.weights = feature.weights->there();
    }
    feature.call.out = feature.out->rows(bags, row_bytes);
    calls.push_back(feature.call);
    features.push_back(std::move(feature));
  }
  const int64_t before = kernel_starts;
  ASSERT_OK(FindBagsOfTables(memory()->context(), calls));
  EXPECT_EQ(kernel_starts - before, 6) << "dims and dtypes";
  std::vector<std::vector<char>> got;
  for (const Feature& feature : features) {
    got.push_back(feature.out->Fetch(feature.out->size()));
    std::fill_n(feature.out->host(), feature.out->size(), '\x7f');
    feature.out->Push();
  }
  for (size_t f = 0; f < features.size(); ++f) {
    const BagsOfTable& call = features[f].call;
    ASSERT_OK(call.table->FindBags(memory()->context(), call.bags, call.out));
    std::vector<char> want = features[f].out->Fetch(features[f].out->size());
    got[f].pop_back();  // which no row has
    want.pop_back();
    EXPECT_EQ(got[f], want) << "feature " << f;
  }
}

// Tables with limits, of other dims and rules, a table twice, and changes that are tracked.
TEST_P(GpuTogetherTest, TakesTablesOfAllKinds) {
  constexpr int64_t kKeys = 300;
  const auto make_all = [&] {
    GpuTables tables;
    for (const std::string rule : {"sgd", "adam"}) {
      for (const int64_t dim : {4, 4, 8, 8}) tables.push_back(Make(Schema(dim, rule)));
    }
    TableSchema with_meta = Schema(4, "sgd");
    with_meta.meta.add(MetaField::kLastWriteTime);
    tables.emplace_back();
    EXPECT_TRUE(MakeGpuTable(with_meta, Bounded(100, "lru"), device_memory(), &tables.back()).ok());
    return tables;
  };
  const GpuTables together = make_all(), alone = make_all();
  for (const GpuTables* tables : {&together, &alone}) {
    ASSERT_OK((*tables)[1]->BeginEpoch(memory()->context(), 1));
  }
  std::vector<double> hyper[2];
  for (int step = 1; step <= 4; ++step) {
    hyper[0] = UsualHyper("sgd", step);
    hyper[1] = UsualHyper("adam", step);
    std::vector<std::unique_ptr<Gradients>> gradients;
    std::vector<ApplyOfTable> calls;
    for (const size_t t : {0, 1, 2, 3, 8, 0, 4, 5, 1, 6, 7, 0, 3}) {
      const TableSchema& schema = alone[t]->schema();
      gradients.push_back(Draw(schema, 200, kKeys, false));
      const std::vector<double>& of_rule = hyper[schema.rule.name == "adam"];
      ASSERT_OK(ApplyAlone(CallOf(alone[t].get(), *gradients.back(), of_rule, step)));
      calls.push_back(CallOf(together[t].get(), *gradients.back(), of_rule, step));
    }
    ASSERT_OK(ApplyToTables(memory()->context(), calls));
  }
  ExpectSame(together, alone);
  Keys changed, want_changed;
  ASSERT_OK(Caller(together[1].get(), memory()).ChangedKeys(0, &changed));
  ASSERT_OK(Caller(alone[1].get(), memory()).ChangedKeys(0, &want_changed));
  std::sort(changed.begin(), changed.end());
  std::sort(want_changed.begin(), want_changed.end());
  EXPECT_EQ(changed, want_changed);
}

// What is wrong with one table stops none of the others.
TEST_P(GpuTogetherTest, OneErrorStopsNoOther) {
  const std::vector<TableSchema> schemas(3, Schema(2, "sgd"));
  const GpuTables tables = MakeAll(schemas);
  const std::vector<double> hyper = UsualHyper("sgd", 1);
  const auto gradients = Draw(schemas[0], 30, 10, false);
  std::vector<ApplyOfTable> calls;
  for (const auto& table : tables) calls.push_back(CallOf(table.get(), *gradients, hyper));
  calls[1].gradients.count = 7;
  EXPECT_EQ(ApplyToTables(memory()->context(), calls).code(), Code::kInvalidArgument);
  EXPECT_GT(tables[0]->size(), 0);
  EXPECT_EQ(tables[1]->size(), 0);
  EXPECT_EQ(tables[2]->size(), tables[0]->size());

  const Mirror<int64_t> begins(memory(), std::vector<int64_t>{0, 2, 5});
  Mirror<float> out(memory(), 12);
  std::vector<BagsOfTable> bags;
  for (int64_t t = 0; t < 3; ++t) {
    bags.push_back({tables[static_cast<size_t>(t)].get(),
                    {gradients->keys.span(), begins.span()},
                    out.rows(2, 2, 4 * t)});
  }
  bags[0].bags.pooling = Pooling::kNone;
  EXPECT_EQ(FindBagsOfTables(memory()->context(), bags).code(), Code::kInvalidArgument);
  out.Pull();
  EXPECT_EQ(std::count(out.host(), out.host() + 4, 0.0f), 4);
  EXPECT_NE(std::count(out.host() + 4, out.host() + 12, 0.0f), 8);
  // Nothing to do, for tables and without any.
  const Mirror<int64_t> none(memory(), std::vector<int64_t>{0});
  for (BagsOfTable& call : bags) call = {call.table, {call.bags.ids, none.span()}, out.rows(0, 2)};
  EXPECT_TRUE(FindBagsOfTables(memory()->context(), bags).ok());
  EXPECT_TRUE(ApplyToTables(memory()->context(), {}).ok());
  EXPECT_TRUE(FindBagsOfTables(memory()->context(), {}).ok());
}

// Without memory for all at once tables are called one after the other; without memory for rows
// some keys have none, and tables go on.
TEST_P(GpuTogetherTest, MemoryRunsOut) {
  constexpr int64_t kTables = 6, kBatch = 4000, kDim = 4;
  const std::vector<double> hyper = {0.5, 1, 0};
  for (int64_t kilobytes = 100; kilobytes <= 6400; kilobytes += 150) {
    SCOPED_TRACE(kilobytes);
    LimitedMemory limited(device_memory(), kilobytes << 10);
    GpuTables tables;
    for (int64_t t = 0; t < kTables; ++t) tables.push_back(Make(Schema(kDim, "sgd"), &limited));
    std::vector<ApplyOfTable> calls;
    std::vector<std::unique_ptr<Gradients>> gradients;
    for (int64_t t = 0; t < kTables; ++t) {
      const Keys keys = Numbers(t, kBatch);
      gradients.push_back(
          std::make_unique<Gradients>(memory(), keys, int64_t{kDim * sizeof(float)}));
      calls.push_back(CallOf(tables[static_cast<size_t>(t)].get(), *gradients.back(), hyper));
    }
    const Status status = ApplyToTables(memory()->context(), calls);
    if (!status.ok()) {
      EXPECT_EQ(status.code(), Code::kResourceExhausted) << status.message();
    }
    limited.Add(64 << 20);  // for what follows
    int64_t rows = 0;
    for (const auto& table : tables) {
      rows += table->size();
      // Each row is a whole one: its initial value, for the gradients are zeros.
      const auto content = ExportAll(*table, memory(), 1000);
      EXPECT_EQ(static_cast<int64_t>(content.size()), table->size());
      const auto fresh = Make(Schema(kDim, "sgd"));
      Floats values, want;
      Keys keys;
      for (const auto& [key, row] : content) keys.push_back(key);
      ASSERT_OK(Caller(table.get(), memory()).Find(keys, &values));
      ASSERT_OK(Caller(fresh.get(), memory()).Find(keys, &want));
      EXPECT_EQ(values, want);
    }
    EXPECT_EQ(status.ok(), rows == kTables * kBatch) << rows << " rows";
    // With memory all come in.
    ASSERT_OK(ApplyToTables(memory()->context(), calls));
    for (const auto& table : tables) EXPECT_EQ(table->size(), kBatch);
  }
}

// Whichever kernel cannot be started: keys have whole rows or none, and tables go on.
TEST_P(GpuTogetherTest, AKernelIsNotStarted) {
  constexpr int64_t kTables = 3, kDim = 2;
  const std::vector<TableSchema> schemas(kTables, Schema(kDim, "sgd"));
  const std::vector<double> hyper = {0.5, 1, 0};
  const Keys keys = Numbers(0, 50);
  Gradients gradients(memory(), keys, int64_t{kDim * sizeof(float)});
  Floats initial;
  ASSERT_OK(Caller(Make(schemas[0]).get(), memory()).Find(keys, &initial));
  int64_t errors = 0;
  for (int64_t failing = 0; failing < kStartsOfApply + 2; ++failing) {
    SCOPED_TRACE(failing);
    const GpuTables tables = MakeAll(schemas);
    std::vector<ApplyOfTable> calls;
    for (const auto& table : tables) {
      ASSERT_OK(Caller(table.get(), memory()).Upsert({keys[0]}, Floats(kDim, 7.0f)));
      ASSERT_OK(table->Reserve(memory()->context(), 1000));
      calls.push_back(CallOf(table.get(), gradients, hyper));
    }
    failing_kernel_start = kernel_starts + failing;
    const Status status = ApplyToTables(memory()->context(), calls);
    failing_kernel_start = -1;
    if (!status.ok()) {
      EXPECT_EQ(status.code(), Code::kResourceExhausted);
      ++errors;
    }
    Floats want = initial;
    std::fill_n(want.begin(), kDim, 7.0f);
    for (const int64_t round : {0, 1}) {
      for (const auto& table : tables) {
        const Caller call(table.get(), memory());
        Floats values;
        ASSERT_OK(call.Find(keys, &values));
        EXPECT_EQ(values, want);  // gradients are zeros
        const int64_t rows = static_cast<int64_t>(call.Export(100).size());
        EXPECT_EQ(rows, table->size());
        if (round == 1 || status.ok()) {
          EXPECT_EQ(rows, 50);
        }
      }
      ASSERT_OK(ApplyToTables(memory()->context(), calls));
    }
  }
  // Those before anything was inserted are made up for by calls of one table.
  EXPECT_GT(errors, 1);
  EXPECT_LT(errors, kStartsOfApply);
}

// Threads that name the same tables in different orders, beside readers and calls of one table.
TEST_P(GpuTogetherTest, ThreadsNameTablesInAnyOrder) {
  constexpr int64_t kTables = 5, kBatch = 64, kRounds = 40, kThreads = 4;
  const std::vector<TableSchema> schemas(kTables, Schema(2, "sgd"));
  const GpuTables tables = MakeAll(schemas);
  const std::vector<double> hyper = {1, 1, 0};
  Keys keys;
  for (int64_t i = 0; i < kBatch; ++i) keys.push_back(i);
  Gradients gradients(memory(), keys, 2 * sizeof(float));
  for (int64_t i = 0; i < 2 * kBatch; ++i) {
    const float one = -1;
    std::memcpy(gradients.numbers.host() + i * sizeof(float), &one, sizeof(one));
  }
  gradients.numbers.Push();
  const Mirror<int64_t> begins(memory(), std::vector<int64_t>{0, kBatch});
  Floats before;
  ASSERT_OK(Caller(tables[0].get(), memory()).Find(keys, &before));
  std::vector<std::thread> threads;
  for (int64_t thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&, thread] {
      std::mt19937_64 random(static_cast<uint64_t>(thread));
      std::vector<size_t> order = {0, 1, 2, 3, 4};
      Mirror<float> out(memory(), 2 * kTables);
      for (int64_t round = 0; round < kRounds; ++round) {
        std::shuffle(order.begin(), order.end(), random);
        std::vector<ApplyOfTable> calls;
        std::vector<BagsOfTable> bags;
        for (const size_t t : order) {
          calls.push_back(CallOf(tables[t].get(), gradients, hyper));
          bags.push_back({tables[t].get(),
                          {gradients.keys.span(), begins.span()},
                          out.rows(1, 2, static_cast<int64_t>(2 * t))});
        }
        ASSERT_OK(ApplyToTables(memory()->context(), calls));
        ASSERT_OK(FindBagsOfTables(memory()->context(), bags));
        ASSERT_OK(ApplyAlone(calls[0]));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  double sum = 0;
  for (const auto& table : tables) {
    Floats after;
    ASSERT_OK(Caller(table.get(), memory()).Find(keys, &after));
    for (size_t i = 0; i < after.size(); ++i) {
      const double steps = after[i] - before[i];
      EXPECT_NEAR(steps, std::round(steps), 1e-3);
      sum += std::round(steps);
    }
  }
  EXPECT_EQ(sum, 2.0 * kBatch * kThreads * kRounds * (kTables + 1));
}

}  // namespace
}  // namespace dynemb

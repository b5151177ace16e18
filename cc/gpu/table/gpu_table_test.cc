// What tables on a GPU have to show beside the suites that every table passes: each test on the
// GPU, if there is one, and on the host.
#include "cc/gpu/table/gpu_table.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "cc/core/lookup/bags.h"
#include "cc/core/table/host_table.h"
#include "cc/gpu/table/host_access.h"
#include "cc/gpu/table/testing/gpu_table_fixture.h"
#include "gtest/gtest.h"

namespace dynemb {
namespace {

DYNEMB_INSTANTIATE_GPU_TABLE_TESTS();

// Keys that are often, some of them far more often than a piece of a long group.
TEST_P(GpuTableTest, LongGroupsAreSummedInPieces) {
  constexpr int64_t kDim = 6, kBatch = 20'000;
  const TableSchema schema = Schema(kDim, "sgd");
  const auto table = Make(schema);
  std::unique_ptr<Table> host;
  ASSERT_OK(MakeHostTable(schema, &host));
  const Caller call(table.get(), memory()), on_host(host.get(), HostTestMemory());
  std::mt19937_64 random(5);
  for (int round = 0; round < 6; ++round) {
    Keys keys;
    Floats gradients;
    for (int64_t i = 0; i < kBatch; ++i) {
      // Of the rounds one has one key alone, others a few that make up most of the batch.
      const uint64_t dice = random();
      keys.push_back(round == 0      ? 7
                     : dice % 4 != 0 ? static_cast<Key>(dice / 4 % (5 * round))
                                     : static_cast<Key>(dice / 4 % 1000));
      // Numbers whose sums are exact in any order.
      for (int64_t c = 0; c < kDim; ++c) gradients.push_back(static_cast<float>(random() % 16) / 8);
    }
    Outcomes outcomes, want_outcomes;
    ASSERT_OK(call.Apply(keys, gradients, schema.rule, {0.25, 1, 0}, {}, &outcomes));
    ASSERT_OK(on_host.Apply(keys, gradients, schema.rule, {0.25, 1, 0}, {}, &want_outcomes));
    EXPECT_EQ(outcomes, want_outcomes);
    EXPECT_EQ(Difference(on_host.Export(1000), call.Export(1000)), "");
  }
}

// The same calls give the same bits, however the device orders its threads.
TEST_P(GpuTableTest, SumsAreTheSameInEveryRun) {
  constexpr int64_t kDim = 5, kBatch = 30'000;
  const TableSchema schema = Schema(kDim, "adam");
  std::mt19937_64 random(6);
  std::normal_distribution<float> normal;
  Keys keys;
  Floats gradients;
  for (int64_t i = 0; i < kBatch; ++i) {
    keys.push_back(static_cast<Key>(random() % (1 + random() % 3000)));
    for (int64_t c = 0; c < kDim; ++c) gradients.push_back(normal(random));
  }
  TableContent first;
  for (int run = 0; run < 3; ++run) {
    const auto table = Make(schema);
    const Caller call(table.get(), memory());
    for (int step = 1; step <= 3; ++step) {
      ASSERT_OK(call.Apply(keys, gradients, schema.rule, UsualHyper("adam", step)));
    }
    TableContent content = call.Export(5000);
    if (run == 0) first = content;
    EXPECT_EQ(Difference(first, content), "");
  }
}

// 100 steps of every rule from the same rows, beside the table in host memory: bit for bit, but for
// rules that call pow() of the device.
TEST_P(GpuTableTest, RulesTrainAsOnTheHost) {
  constexpr int64_t kKeys = 40, kSteps = 100;
  for (const std::string& rule : AllRuleNames()) {
    for (const DType dtype :
         {DType::kFloat32, DType::kFloat16, DType::kBFloat16, DType::kFloat64}) {
      for (const int64_t dim : {3, 64}) {
        SCOPED_TRACE(StrCat(rule, " ", Name(dtype), " ", dim));
        const TableSchema schema = Schema(dim, rule, dtype);
        const auto table = Make(schema);
        std::unique_ptr<Table> host;
        ASSERT_OK(MakeHostTable(schema, &host));
        const int64_t width = SizeOf(GradientDType(dtype));
        std::mt19937_64 random(dim);
        std::normal_distribution<double> normal;
        const Mirror<Key> keys(memory(), Numbers(0, kKeys));
        Mirror<char> gradients(memory(), kKeys * dim * width);
        for (int step = 1; step <= kSteps; ++step) {
          for (int64_t i = 0; i < kKeys * dim; ++i) {
            const double number = normal(random);
            const auto narrow = static_cast<float>(number);
            std::memcpy(gradients.host() + i * width,
                        width == 8 ? static_cast<const void*>(&number) : &narrow, width);
          }
          gradients.Push();
          const std::vector<double> hyper = UsualHyper(rule, step);
          const Update update = {&schema.rule, hyper, {}};
          ASSERT_OK(table->Apply(memory()->context(), {keys.span()},
                                 gradients.rows(kKeys, dim * width), update, {}, {}));
          OneThread one;
          ASSERT_OK(host->Apply(one, {Span<const Key>(keys.host(), kKeys)},
                                Rows(gradients.host(), kKeys, dim * width), update, {}, {}));
        }
        EXPECT_EQ(
            Difference(ExportAll(*host, HostTestMemory(), 100), ExportAll(*table, memory(), 100)),
            "");
      }
    }
  }
}

// Bags, beside those of tables in host memory.
TEST_P(GpuTableTest, PoolsBags) {
  constexpr int64_t kBags = 300;
  std::mt19937_64 random(8);
  for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16, DType::kFloat64}) {
    for (const int64_t dim : {1, 6, 32, 200, 1000}) {
      SCOPED_TRACE(StrCat(Name(dtype), " ", dim));
      const TableSchema schema = Schema(dim, "", dtype);
      const auto table = Make(schema);
      std::unique_ptr<Table> host;
      ASSERT_OK(MakeHostTable(schema, &host));
      const DType out_dtype = GradientDType(dtype);
      const int64_t width = SizeOf(out_dtype);
      // Some ids have rows, others initial values.
      const Mirror<Key> present(memory(), Numbers(0, 100));
      Mirror<char> values(memory(), 100 * dim * SizeOf(dtype));
      for (int64_t at = 0; at < values.size(); at += SizeOf(dtype)) {
        VisitDType(dtype, [&](auto tag) {
          using V = typename decltype(tag)::type;
          const V number = static_cast<V>(static_cast<ComputeType<V>>(random() % 64) / 16);
          std::memcpy(values.host() + at, &number, sizeof(V));
        });
      }
      values.Push();
      ASSERT_OK(table->Upsert(memory()->context(), {present.span()},
                              values.rows(100, dim * SizeOf(dtype)), {}, {}));
      OneThread one;
      ASSERT_OK(host->Upsert(one, {Span<const Key>(present.host(), 100)},
                             Rows(values.host(), 100, dim * SizeOf(dtype)), {}, {}));
      std::vector<Key> ids;
      std::vector<int64_t> begins = {0}, lengths;
      for (int64_t b = 0; b < kBags; ++b) {
        lengths.push_back(static_cast<int64_t>(random() % (b % 7 == 0 ? 1 : 30)));
        for (int64_t i = 0; i < lengths.back(); ++i) {
          ids.push_back(static_cast<Key>(random() % 150 * 0x9e3779b97f4a7c15));
        }
        begins.push_back(static_cast<int64_t>(ids.size()));
      }
      const Mirror<Key> ids_there(memory(), ids);
      const Mirror<int64_t> begins_there(memory(), begins);
      Mirror<char> weights(memory(), static_cast<int64_t>(ids.size()) * width);
      for (size_t i = 0; i < ids.size(); ++i) {
        const double number = static_cast<double>(random() % 5) / 4;
        const auto narrow = static_cast<float>(number);
        std::memcpy(weights.host() + i * width,
                    width == 8 ? static_cast<const void*>(&number) : &narrow, width);
      }
      weights.Push();
      for (const Pooling pooling : {Pooling::kSum, Pooling::kMean}) {
        for (const bool weighted : {false, true}) {
          Mirror<char> out(memory(), kBags * dim * width);
          ASSERT_OK(table->FindBags(memory()->context(),
                                    {ids_there.span(), begins_there.span(), pooling,
                                     weighted ? weights.there() : nullptr},
                                    out.rows(kBags, dim * width)));
          out.Pull();
          BagInput input;
          input.features = 1;
          input.ids = ids;
          input.weights = weighted ? weights.host() : nullptr;
          Bags bags;
          ASSERT_OK(Bags::Make<int64_t>(input, lengths, {{0, 0, pooling}},
                                        {{{host.get()}, dtype, dim}}, out_dtype, &bags));
          std::vector<char> want(kBags * dim * width);
          ASSERT_OK(FindBags(one, bags, want.data()));
          for (int64_t i = 0; i < kBags * dim; ++i) {
            const auto number = [&](const char* from) {
              float narrow;
              double wide;
              std::memcpy(&narrow, from + i * width, sizeof(narrow));
              if (width == 4) return static_cast<double>(narrow);
              std::memcpy(&wide, from + i * width, sizeof(wide));
              return wide;
            };
            // The sums are of the same numbers in the same order; a mean may be rounded once more.
            ASSERT_NEAR(number(out.host()), number(want.data()), 1e-6 * 30) << i;
          }
        }
      }
    }
  }
}

TEST_P(GpuTableTest, BadBagsAreErrors) {
  const auto table = Make(Schema(2));
  const Mirror<Key> ids(memory(), Keys{1, 2, 3});
  const Mirror<int64_t> begins(memory(), std::vector<int64_t>{0, 1, 99});
  Mirror<float> out(memory(), 4);
  const auto code = [&](const DeviceBags& bags, const Rows& rows) {
    return table->FindBags(memory()->context(), bags, rows).code();
  };
  const DeviceBags good = {ids.span(), begins.span()};
  EXPECT_EQ(code(good, out.rows(2, 2)), Code::kOk) << "an end outside of the ids is cut off";
  EXPECT_EQ(code(good, out.rows(1, 2)), Code::kInvalidArgument);
  EXPECT_EQ(code(good, out.rows(2, 1)), Code::kInvalidArgument);
  DeviceBags bad = good;
  bad.pooling = Pooling::kNone;
  EXPECT_EQ(code(bad, out.rows(2, 2)), Code::kInvalidArgument);
  bad = good;
  bad.begins = begins.span(0);
  EXPECT_EQ(code(bad, out.rows(2, 2)), Code::kInvalidArgument);
  bad = good;
  bad.ids.space = MemorySpace::kSimulatedDevice;
  EXPECT_EQ(code(bad, out.rows(2, 2)), Code::kInvalidArgument);
  const auto integers = Make([] {
    TableSchema schema;
    schema.value_dtype = DType::kInt32;
    return schema;
  }());
  EXPECT_EQ(integers->FindBags(memory()->context(), good, out.rows(2, 2)).code(),
            Code::kInvalidArgument);
}

TEST_P(GpuTableTest, TracksChangesFromTheStart) {
  TableOptions options;
  options.track_changes = true;
  std::unique_ptr<GpuTable> table;
  ASSERT_OK(MakeGpuTable(Schema(1), options, device_memory(), &table));
  EXPECT_EQ(table->epoch(), 1);
  const Caller call(table.get(), memory());
  ASSERT_OK(call.Upsert({1, 2}, {1, 2}));
  Keys keys;
  ASSERT_OK(call.ChangedKeys(0, &keys));
  EXPECT_EQ(keys.size(), 2u);
}

// Keys are erased in larger numbers than the list of erased keys on the device takes at a time.
TEST_P(GpuTableTest, KnowsManyErasedKeys) {
  constexpr int64_t kKeys = 700'000, kBatch = 50'000;
  TableSchema schema = Schema(1);
  schema.meta.add(MetaField::kLastWriteTime);
  const auto table = Make(schema);
  const Caller call(table.get(), memory());
  const auto upsert_all = [&](int64_t now) {
    ASSERT_OK(call.Upsert(Numbers(0, kKeys), Floats(kKeys, 1.0f), {now}));
  };
  const auto expect_changed = [&](int64_t since, Keys want) {
    Keys keys;
    ASSERT_OK(call.ChangedKeys(since, &keys));
    std::sort(keys.begin(), keys.end());
    std::sort(want.begin(), want.end());
    EXPECT_TRUE(keys == want) << keys.size() << " keys, want " << want.size();
  };
  ASSERT_OK(call.BeginEpoch(1));
  upsert_all(1);
  ASSERT_OK(call.BeginEpoch(2));
  // In batches, with a few that are there again.
  for (int64_t i = 0; i < kKeys; i += kBatch) ASSERT_OK(call.Erase(Numbers(i, kBatch)));
  ASSERT_OK(call.Upsert(Numbers(0, 1000), Floats(1000, 1.0f)));
  expect_changed(1, Numbers(0, kKeys));
  ASSERT_OK(call.BeginEpoch(3));
  expect_changed(2, {});
  // Below a bound, by slices that do not fit into what the list has room for.
  upsert_all(2);
  ASSERT_OK(call.Upsert(Numbers(0, 7), Floats(7, 1.0f), {5}));
  ASSERT_OK(call.BeginEpoch(4));
  constexpr int64_t kBefore = 200'000;
  ASSERT_OK(call.Erase(Numbers(kKeys - kBefore, kBefore)));
  int64_t erased = 0;
  ASSERT_OK(call.EraseBelow(MetaField::kLastWriteTime, {4, 0}, &erased));
  EXPECT_EQ(erased, kKeys - kBefore - 7);
  EXPECT_EQ(table->size(), 7);
  expect_changed(3, Numbers(7, kKeys - 7));
  // At once.
  upsert_all(3);
  ASSERT_OK(call.BeginEpoch(5));
  ASSERT_OK(call.Erase(Numbers(5000, kKeys - 5000)));
  expect_changed(4, Numbers(5000, kKeys - 5000));
}

// The oldest epochs are forgotten where more keys were erased than all rows are worth.
TEST_P(GpuTableTest, ForgetsOldEpochs) {
  constexpr int64_t kKeys = 20'000;
  const auto table = Make(Schema(1));
  const Caller call(table.get(), memory());
  const Keys keys = Numbers(0, kKeys);
  const int64_t epochs = ((int64_t{1} << 18) + 2 * kKeys) / kKeys + 5;
  for (int64_t epoch = 1; epoch <= epochs; ++epoch) {
    ASSERT_OK(call.BeginEpoch(epoch));
    ASSERT_OK(call.Upsert(keys, Floats(kKeys, 1.0f)));
    ASSERT_OK(call.Erase(keys));
  }
  Keys changed;
  EXPECT_EQ(call.ChangedKeys(0, &changed).code(), Code::kFailedPrecondition);
  EXPECT_EQ(call.ChangedKeys(4, &changed).code(), Code::kFailedPrecondition);
  for (const int64_t since : {int64_t{6}, epochs - 1}) {
    ASSERT_OK(call.ChangedKeys(since, &changed));
    EXPECT_EQ(changed.size(), static_cast<size_t>(kKeys));
  }
}

// Through the host whole rows go in pieces, of which nothing is seen.
TEST_P(GpuTableTest, ManyWholeRowsThroughTheHost) {
  constexpr int64_t kDim = 500, kKeys = 15'000, kBatch = 4 * kKeys;
  const std::shared_ptr<GpuTable> table = Make(Schema(kDim));
  const std::unique_ptr<Table> access = MakeHostAccess(table, device_memory());
  const Context context = HostTestMemory()->context();
  const Keys some = Numbers(0, kKeys / 2);
  Floats before(some.size() * kDim);
  for (size_t i = 0; i < before.size(); ++i) before[i] = static_cast<float>(i / kDim);
  ASSERT_OK(Caller(access.get(), HostTestMemory()).Upsert(some, before));
  // Keys that come again after several pieces.
  Keys keys = Numbers(0, kKeys);
  while (keys.size() < kBatch) keys.push_back(keys[keys.size() % kKeys]);
  Floats values(kBatch * kDim), displaced(kBatch * kDim, -1.0f);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i / kDim) + 0.5f;
  const Batch batch = {keys};
  const auto rows = [&](Floats& of) {
    return Rows(reinterpret_cast<char*>(of.data()), kBatch, kDim * sizeof(float));
  };
  Outcomes outcomes(kBatch);
  Keys displaced_keys(kBatch, -1);
  ASSERT_OK(access->InsertRows(context, batch, {{}, rows(values), {}, {}},
                               {displaced_keys, rows(displaced), {}, {}}, {outcomes, nullptr}));
  for (int64_t i = 0; i < kBatch; ++i) {
    const int64_t key = i % kKeys;
    ASSERT_EQ(outcomes[i], key < kKeys / 2 ? Outcome::kFound : Outcome::kInserted) << i;
    ASSERT_EQ(displaced_keys[i], key < kKeys / 2 ? keys[i] : -1) << i;
    ASSERT_EQ(displaced[i * kDim + 7], key < kKeys / 2 ? static_cast<float>(key) : -1.0f) << i;
  }
  EXPECT_EQ(table->size(), kKeys);
  Floats read(kBatch * kDim);
  ASSERT_OK(access->ReadRows(context, batch, {{}, rows(read), {}, {}}, {outcomes, nullptr}));
  for (int64_t i = 0; i < kBatch; ++i) {
    ASSERT_EQ(outcomes[i], Outcome::kFound) << i;
    ASSERT_EQ(read[i * kDim + 7], static_cast<float>(kBatch - kKeys + i % kKeys) + 0.5f) << i;
  }
}

// Streams that read come and go; a writer waits for all of them.
TEST_P(GpuTableTest, ReadsInManyStreams) {
  if (on_host()) GTEST_SKIP() << "two streams need a GPU; the simulated one runs on the host";
  constexpr int64_t kDim = 64, kKeys = 50'000;
  const auto table = Make(Schema(kDim));
  const Caller call(table.get(), memory());
  ASSERT_OK(call.Upsert(Numbers(0, kKeys), Floats(kKeys * kDim, 1.0f)));
  const Mirror<Key> keys(memory(), Numbers(0, kKeys));
  for (int round = 2; round < 5; ++round) {
    std::vector<cudaStream_t> streams(50);
    std::vector<std::unique_ptr<Mirror<float>>> values;
    for (cudaStream_t& stream : streams) {
      ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
      values.push_back(std::make_unique<Mirror<float>>(memory(), kKeys * kDim));
      Context context = memory()->context();
      context.stream = stream;
      ASSERT_OK(table->Find(context, {keys.span()}, values.back()->rows(kKeys, kDim), {}));
    }
    ASSERT_OK(call.Upsert(Numbers(0, kKeys), Floats(kKeys * kDim, static_cast<float>(round))));
    for (size_t s = 0; s < streams.size(); ++s) {
      ASSERT_EQ(cudaStreamSynchronize(streams[s]), cudaSuccess);
      ASSERT_EQ(cudaStreamDestroy(streams[s]), cudaSuccess);
      values[s]->Pull();
      for (int64_t i = 0; i < kKeys * kDim; i += 61) {
        ASSERT_EQ((*values[s])[i], static_cast<float>(round - 1)) << i;
      }
    }
  }
}

// Positions outside of the batch: left out on the device, an error where the host sees them.
TEST_P(GpuTableTest, WrongPositionsAreLeftOut) {
  if (on_host()) GTEST_SKIP() << "the host refuses them: RefusesBadBatches";
  const auto table = Make(Schema(1));
  const Mirror<Key> keys(memory(), Keys{1, 2, 3});
  const Mirror<float> values(memory(), Floats{1, 2, 3});
  const Mirror<int64_t> at(memory(), std::vector<int64_t>{-1, 1, 3, int64_t{1} << 60, 0});
  const Mirror<int64_t> count(memory(), std::vector<int64_t>{4});
  Positions select = {at.span(), count.there()};
  ASSERT_OK(table->Upsert(memory()->context(), {keys.span(), &select}, values.rows(3, 1), {}, {}));
  const TableContent content = ExportAll(*table, memory(), 10);
  ASSERT_EQ(content.size(), 1u);
  EXPECT_EQ(content.begin()->first, 2);
}

}  // namespace
}  // namespace dynemb

// FetchedRowsView against a map, and against what it must refuse.
#include "cc/core/lookup/fetched_rows_view.h"

#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <random>
#include <vector>

#include "cc/core/testing/executors.h"
#include "cc/core/testing/harness.h"

namespace dynemb {
namespace {

constexpr int64_t kDim = 3;
constexpr int64_t kRowBytes = kDim * sizeof(float);

ConstRows RowsIn(const std::vector<float>& numbers) {
  return {reinterpret_cast<const char*>(numbers.data()),
          static_cast<int64_t>(numbers.size()) / kDim, kRowBytes};
}

TEST(FetchedRowsView, SaysThatThereIsNoMemory) {
  NoMemoryExecutor executor;
  Context context;
  context.executor = &executor;
  const std::vector<Key> keys = {1, 2};
  std::vector<float> values(2 * kDim);
  std::unique_ptr<RowReader> table;
  ASSERT_OK(MakeFetchedRowsView(keys, RowsIn(values), DType::kFloat32, kDim, nullptr, &table));
  Batch batch;
  batch.keys = keys;
  const Rows read(reinterpret_cast<char*>(values.data()), 2, kRowBytes);
  EXPECT_EQ(table->Find(context, batch, read, Report()).code(), Code::kResourceExhausted);
}

TEST(FetchedRowsView, HasTheFirstRowOfEachKeyAndZerosForOthers) {
  const Context context = HostTestMemory()->context();
  for (const int64_t n : {0, 1, 5, 3000}) {
    std::mt19937_64 random(n);
    std::vector<Key> keys = {std::numeric_limits<Key>::min(), -1, 0, 1,
                             std::numeric_limits<Key>::max()};
    keys.resize(n);
    for (int64_t i = 5; i < n; ++i) keys[i] = static_cast<Key>(random() % (n / 2) << 40);
    std::vector<float> values(n * kDim);
    std::map<Key, std::vector<float>> rows;
    for (int64_t i = 0; i < n; ++i) {
      for (int64_t c = 0; c < kDim; ++c) values[i * kDim + c] = static_cast<float>(i + 1);
      rows.try_emplace(keys[i], kDim, static_cast<float>(i + 1));
    }
    std::unique_ptr<RowReader> table;
    ASSERT_OK(MakeFetchedRowsView(keys, RowsIn(values), DType::kFloat32, kDim, nullptr, &table));
    EXPECT_EQ(table->schema().dim, kDim);

    std::vector<Key> asked = keys;
    for (Key key = 2; key < 40; ++key) asked.push_back(key);  // of which none is there
    const int64_t m = static_cast<int64_t>(asked.size());
    for (const bool leave : {false, true}) {
      std::vector<float> got(m * kDim, 7);
      std::vector<Outcome> outcomes(m, Outcome::kFull);
      Batch batch;
      batch.keys = asked;
      Report report;
      report.outcomes = outcomes;
      const Rows out(reinterpret_cast<char*>(got.data()), m, kRowBytes);
      RowParts parts;
      parts.values = out;
      ASSERT_OK(leave ? table->ReadRows(context, batch, parts, report)
                      : table->Find(context, batch, out, report));
      for (int64_t i = 0; i < m; ++i) {
        const auto found = rows.find(asked[i]);
        const bool there = found != rows.end();
        EXPECT_EQ(outcomes[i], there ? Outcome::kFound : Outcome::kMissing);
        const std::vector<float> want =
            there ? found->second : std::vector<float>(kDim, leave ? 7.0f : 0.0f);
        EXPECT_EQ(std::memcmp(&got[i * kDim], want.data(), kRowBytes), 0) << asked[i];
      }
    }
  }
}

TEST(FetchedRowsView, ReadsTheSelectedKeysAloneAndReportsMisses) {
  const std::vector<Key> keys = {4, 8};
  const std::vector<float> values = {1, 1, 1, 2, 2, 2};
  std::unique_ptr<RowReader> table;
  ASSERT_OK(MakeFetchedRowsView(keys, RowsIn(values), DType::kFloat32, kDim, nullptr, &table));
  const std::vector<Key> asked = {8, 5, 4, 6};
  std::vector<int64_t> selected = {0, 3}, missed(4);
  int64_t count = 2, misses = -1;
  Positions select, missing;
  select.at = selected;
  select.count = &count;
  missing.at = missed;
  missing.count = &misses;
  Batch batch;
  batch.keys = asked;
  batch.select = &select;
  Report report;
  report.misses = &missing;
  std::vector<float> got(4 * kDim, 7);
  ASSERT_OK(table->Find(HostTestMemory()->context(), batch,
                        Rows(reinterpret_cast<char*>(got.data()), 4, kRowBytes), report));
  EXPECT_EQ(got, (std::vector<float>{2, 2, 2, 7, 7, 7, 7, 7, 7, 0, 0, 0}));
  ASSERT_EQ(misses, 1);
  EXPECT_EQ(missed[0], 3);
}

TEST(FetchedRowsView, KeepsTheMemoryOfItsRows) {
  auto held = std::make_shared<std::vector<float>>(kDim, 5.0f);
  const std::weak_ptr<std::vector<float>> watched = held;
  const std::vector<Key> keys = {1};
  std::unique_ptr<RowReader> table;
  ASSERT_OK(MakeFetchedRowsView(keys, RowsIn(*held), DType::kFloat32, kDim, held, &table));
  held.reset();
  EXPECT_FALSE(watched.expired());
  table.reset();
  EXPECT_TRUE(watched.expired());
}

TEST(FetchedRowsView, RefusesWhatDoesNotFit) {
  const std::vector<Key> keys = {1, 2};
  const std::vector<float> values(2 * kDim);
  std::unique_ptr<RowReader> table;
  const auto made = [&](const std::vector<Key>& of, int64_t dim) {
    return MakeFetchedRowsView(of, RowsIn(values), DType::kFloat32, dim, nullptr, &table).code();
  };
  EXPECT_EQ(made({1}, kDim), Code::kInvalidArgument);
  EXPECT_EQ(made(keys, kDim + 1), Code::kInvalidArgument);
  EXPECT_EQ(made(keys, 0), Code::kInvalidArgument);
  EXPECT_EQ(table, nullptr);
  ASSERT_EQ(made(keys, kDim), Code::kOk);

  const Context context = HostTestMemory()->context();
  Batch batch;
  batch.keys = keys;
  std::vector<float> small(kDim);
  EXPECT_EQ(table
                ->Find(context, batch, Rows(reinterpret_cast<char*>(small.data()), 1, kRowBytes),
                       Report())
                .code(),
            Code::kInvalidArgument);
}

}  // namespace
}  // namespace dynemb

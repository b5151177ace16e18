// HostTable against the contract, on the host and behind the simulated device, and what it promises
// beyond.
#include "cc/core/table/host_table.h"

#include <sys/resource.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <memory>

#include "cc/core/testing/caller.h"
#include "cc/core/testing/conformance.h"
#include "cc/core/testing/executors.h"

namespace dynemb {
namespace {

DYNEMB_INSTANTIATE_CONFORMANCE(HostTable, HostTableHarness());
DYNEMB_INSTANTIATE_CONFORMANCE(HostTableOnSimulatedDevice, HostTableOnSimulatedDeviceHarness());

// The tests below ask for more than the contract does.
class HostTableTest : public ::testing::Test {
 protected:
  HostTableTest() {
    TableSchema schema;
    schema.dim = 4;
    EXPECT_TRUE(MakeHostTable(schema, &table_).ok());
    context_.executor = &executor_;
  }
  Status Upsert(const Batch& batch, const ConstRows& values) {
    return table_->Upsert(context_, batch, values, {}, {});
  }

  std::unique_ptr<Table> table_;
  InlineExecutor executor_;
  Context context_;
};

// On the host a selection can be looked at before anything is done.
TEST_F(HostTableTest, RefusesSelectionsThatPointNowhere) {
  const Keys keys = {1, 2, 3};
  Floats values(12);
  const ConstRows rows(reinterpret_cast<const char*>(values.data()), 3, 16);
  int64_t count = 2;
  std::vector<int64_t> at = {0, 2};
  const Positions select = {at, &count};
  for (const int64_t bad : {int64_t{-1}, int64_t{3}, INT64_MAX, INT64_MIN}) {
    at[1] = bad;
    EXPECT_EQ(Upsert({keys, &select}, rows).code(), Code::kInvalidArgument) << bad;
  }
  at[1] = 1;
  for (const int64_t bad : {int64_t{-1}, int64_t{3}, INT64_MAX}) {
    count = bad;
    EXPECT_EQ(Upsert({keys, &select}, rows).code(), Code::kInvalidArgument) << bad;
  }
  EXPECT_EQ(table_->size(), 0);
  count = 2;
  EXPECT_TRUE(Upsert({keys, &select}, rows).ok());
  EXPECT_EQ(table_->size(), 2);
}

// Numbers are read where they lie, so they must be aligned.
TEST_F(HostTableTest, RefusesNumbersThatAreNotAligned) {
  const Keys keys = {1};
  Floats values(8);
  char* const data = reinterpret_cast<char*>(values.data());
  EXPECT_EQ(Upsert({keys}, ConstRows(data + 2, 1, 16)).code(), Code::kInvalidArgument);
  EXPECT_EQ(Upsert({keys}, ConstRows(data, 1, 18)).code(), Code::kInvalidArgument);
  EXPECT_EQ(table_->size(), 0);
  EXPECT_TRUE(Upsert({keys}, ConstRows(data + 4, 1, 20)).ok());
}

TEST_F(HostTableTest, RefusesAContextWithoutExecutor) {
  context_.executor = nullptr;
  EXPECT_EQ(table_->Clear(context_).code(), Code::kInvalidArgument);
}

TEST_F(HostTableTest, ReportsAllKeysAsFullIfThereIsNoMemoryToSortThem) {
  NoMemoryExecutor executor;
  Context context;
  context.executor = &executor;
  const Keys keys = {1, 2, 3, 2};
  Floats values(16);
  Outcomes outcomes(4, Outcome::kFound);
  std::vector<int64_t> at(4, -1);
  int64_t count = -7;
  Positions misses = {at, &count};
  Report report;
  report.outcomes = outcomes;
  report.misses = &misses;
  const ConstRows rows(reinterpret_cast<const char*>(values.data()), 4, 16);
  EXPECT_EQ(table_->Upsert(context, {keys}, rows, {}, report).code(), Code::kResourceExhausted);
  EXPECT_EQ(outcomes, Outcomes(4, Outcome::kFull));
  EXPECT_EQ(count, 4);
  EXPECT_EQ(at, std::vector<int64_t>({0, 1, 2, 3}));
  EXPECT_EQ(table_->size(), 0);
}

// Whenever in a call there is no memory, of which each run of its executor stands for a part: the
// outcomes say which keys have been done, and nothing else has.
TEST_F(HostTableTest, OutcomesSayWhatWasDoneUntilThereWasNoMemory) {
  TableOptions bounded, declines, evicts;
  bounded.max_rows = 5;
  declines.max_rows = evicts.max_rows = 4;
  declines.on_full = OnFull::kDecline;
  ASSERT_TRUE(EvictionPolicy::Parse("lru", &evicts.eviction).ok());
  TableSchema schema;
  schema.meta = evicts.eviction.meta();
  const Keys keys = {1, 2, 3, 2, 4};
  Floats old = {10, 20}, values = {1, 2, 3, 2.5, 4};
  const auto rows = [](Floats& numbers, int64_t n) {
    return Rows(reinterpret_cast<char*>(numbers.data()), n, sizeof(float));
  };
  int64_t failed = 0;
  for (const TableOptions& options : {TableOptions(), bounded, declines, evicts}) {
    Status status = Status(Code::kInternal, "not called");
    for (int64_t runs = 0; !status.ok(); ++runs) {
      std::unique_ptr<Table> table;
      ASSERT_TRUE(MakeHostTable(schema, options, &table).ok());
      ASSERT_TRUE(table->Upsert(context_, {{Keys{1, 9}}}, rows(old, 2), {1}, {}).ok());
      NoMemoryExecutor executor(runs);
      Context context;
      context.executor = &executor;
      Outcomes outcomes(5, Outcome::kFull), found(5);
      status = table->Upsert(context, {keys}, rows(values, 5), {2}, {outcomes});
      if (!status.ok()) {
        ++failed;
        EXPECT_EQ(status.code(), Code::kResourceExhausted) << status.message();
      }
      Floats read(5);
      ASSERT_TRUE(table->Find(context_, {keys}, rows(read, 5), {found}).ok());
      const std::map<Key, float> written = {{1, 1.0f}, {2, 2.5f}, {3, 3.0f}, {4, 4.0f}};
      for (size_t i = 0; i < keys.size(); ++i) {
        const bool done = outcomes[i] == Outcome::kFound || outcomes[i] == Outcome::kInserted;
        const bool was_there = keys[i] == 1;
        EXPECT_EQ(found[i] == Outcome::kFound, done || was_there) << i << ", " << runs;
        const float want = done ? written.at(keys[i]) : was_there ? 10.0f : 0.0f;
        EXPECT_EQ(read[i], want) << i << ", " << runs;
      }
      EXPECT_LE(table->size(), table->max_rows());
      if (runs > 20) break;
    }
    EXPECT_TRUE(status.ok()) << status.message();
  }
  EXPECT_GT(failed, 8);
}

// As a change of schema must not fail once it has begun, it goes on by itself.
TEST_F(HostTableTest, AMoveNeedsNoMemoryOfTheExecutor) {
  const Keys keys = {1, 2, 3};
  Floats values(12, 7.0f), read(12);
  const Rows rows(reinterpret_cast<char*>(values.data()), 3, 16);
  ASSERT_TRUE(Upsert({keys}, rows).ok());
  TableSchema schema = table_->schema();
  schema.rule = UsualRule("adam");
  std::unique_ptr<RowMove> move;
  ASSERT_TRUE(table_->PrepareMove(context_, schema, &move).ok());
  NoMemoryExecutor executor;
  Context context;
  context.executor = &executor;
  const std::unique_ptr<Table> moved = move->Run(context);
  const Rows out(reinterpret_cast<char*>(read.data()), 3, 16);
  ASSERT_TRUE(moved->Find(context_, {keys}, out, {}).ok());
  EXPECT_EQ(read, values);
  EXPECT_EQ(moved->size(), 3);
}

// The rows, where they lie and so in which order they are exported do not depend on the executor.
TEST_F(HostTableTest, IsTheSameForAnyExecutor) {
  BackwardExecutor backward;
  Context backward_context;
  backward_context.executor = &backward;
  TableSchema schema;
  schema.dim = 3;
  schema.initializer.distribution = {Distribution::Kind::kUniform, -1, 1};
  schema.rule = UsualRule("adam");
  std::vector<std::pair<Key, std::string>> exported[2];
  for (const bool b : {false, true}) {
    std::unique_ptr<Table> table;
    ASSERT_TRUE(MakeHostTable(schema, &table).ok());
    const Context& context = b ? backward_context : context_;
    for (int64_t step = 1; step < 5; ++step) {
      Keys keys;
      Floats gradients;
      for (int64_t i = 0; i < 40'000; ++i) {
        keys.push_back(i * step * 97);
        for (int64_t c = 0; c < 3; ++c) gradients.push_back(static_cast<float>(i % 11 - c));
      }
      const ConstRows rows(reinterpret_cast<const char*>(gradients.data()), 40'000, 12);
      const std::vector<double> hyper = UsualHyper("adam", static_cast<double>(step));
      ASSERT_TRUE(table->Apply(context, {keys}, rows, {&schema.rule, hyper, {}}, {}, {}).ok());
      keys.resize(5000);
      ASSERT_TRUE(table->Erase(context, {keys}, {}).ok());
    }
    for (Cursor cursor; !cursor.done;) {
      for (const auto& [key, row] : ExportSome(*table, HostTestMemory(), 1000, true, &cursor)) {
        exported[b].emplace_back(key, row.value + row.slots);
      }
    }
  }
  EXPECT_EQ(exported[0], exported[1]);
}

// After Reserve the index is there, with room for keys: what inserting then takes is the rows.
TEST_F(HostTableTest, ReserveMakesTheIndexBeforehand) {
  constexpr int64_t kRows = 100'000, kRowBytes = 16;
  const Caller call(table_.get(), HostTestMemory());
  ASSERT_TRUE(call.Reserve(kRows).ok());
  const int64_t index_bytes = table_->memory_bytes();
  EXPECT_GE(index_bytes, kRows * 8);
  Keys keys;
  for (Key key = 0; key < kRows; ++key) keys.push_back(key * 10'007);
  ASSERT_TRUE(call.Upsert(keys, Floats(kRows * 4)).ok());
  const int64_t row_bytes = table_->memory_bytes() - index_bytes;
  EXPECT_GE(row_bytes, kRows * kRowBytes);
  EXPECT_LE(row_bytes, kRows * kRowBytes * 5 / 4)
      << "blocks are at most 1/8 ahead, or the index grew";
  // More than can be had is an error, not an abort, and changes nothing.
  EXPECT_EQ(call.Reserve(INT64_MAX).code(), Code::kResourceExhausted);
  EXPECT_EQ(table_->memory_bytes(), index_bytes + row_bytes);
  EXPECT_EQ(table_->size(), kRows);
}

// Keys whose hashes agree wherever the index looks (bits 26-63; segment.h) all want the
// same cell. That is slow and must still be right, also past 255 overflows, where the counts stop.
TEST_F(HostTableTest, SurvivesKeysThatAllCollide) {
  const Caller call(table_.get(), HostTestMemory());
  Keys keys;
  Floats values;
  for (uint64_t i = 0; i < 3000; ++i) {
    keys.push_back(KeyOfHash(0xabcdef0123400055 | i << 7));
    values.insert(values.end(), 4, static_cast<float>(i));
  }
  for (int round = 0; round < 2; ++round) {
    ASSERT_TRUE(call.Upsert(keys, values).ok());
    EXPECT_EQ(table_->size(), 3000);
    Floats got;
    Outcomes outcomes;
    ASSERT_TRUE(call.Find(keys, &got, &outcomes).ok());
    EXPECT_EQ(got, values);
    EXPECT_EQ(outcomes, Outcomes(3000, Outcome::kFound));
    ASSERT_TRUE(call.Erase(Keys(keys.begin() + 100, keys.end()), &outcomes).ok());
    EXPECT_EQ(outcomes, Outcomes(2900, Outcome::kFound));
    ASSERT_TRUE(call.Find(keys, &got, &outcomes).ok());
    for (size_t i = 0; i < keys.size(); ++i) {
      ASSERT_EQ(outcomes[i], i < 100 ? Outcome::kFound : Outcome::kMissing) << i;
    }
  }
}

TEST_F(HostTableTest, TracksChangesFromTheStartIfAskedTo) {
  TableSchema schema;
  std::unique_ptr<Table> table;
  TableOptions options;
  options.track_changes = true;
  ASSERT_OK(MakeHostTable(schema, options, &table));
  const Caller call(table.get(), HostTestMemory());
  EXPECT_EQ(table->epoch(), 1);
  Keys keys;
  ASSERT_OK(call.ChangedKeys(0, &keys));
  EXPECT_EQ(keys, Keys());
  ASSERT_OK(call.Upsert({5}, {1}));
  ASSERT_OK(call.ChangedKeys(0, &keys));
  EXPECT_EQ(keys, Keys{5});
  EXPECT_EQ(call.ChangedKeys(-1, &keys).code(), Code::kFailedPrecondition);
  EXPECT_EQ(call.BeginEpoch(1).code(), Code::kInvalidArgument);
  ASSERT_OK(call.BeginEpoch(2));
  EXPECT_EQ(table->epoch(), 2);
}

// Keys that come and go, many times more than there are rows: the log of changes does not grow with
// them. It says that it does not know any more, and goes on with the next epoch.
TEST_F(HostTableTest, ForgetsChangesThatAreFarMoreThanItsRows) {
  constexpr int64_t kBatch = 10'000, kBatches = 200;
  const Caller call(table_.get(), HostTestMemory());
  ASSERT_OK(call.BeginEpoch(1));
  int64_t bytes_at_first = 0, most_bytes = 0;
  const Floats values(kBatch * 4);
  for (int64_t b = 0; b < kBatches; ++b) {
    Keys keys;
    for (int64_t i = 0; i < kBatch; ++i) keys.push_back(b * kBatch + i);
    ASSERT_OK(call.Upsert(keys, values));
    ASSERT_OK(call.Erase(keys));
    if (b == 0) bytes_at_first = table_->memory_bytes();
    most_bytes = std::max(most_bytes, table_->memory_bytes());
  }
  // In each segment twice its rows and 4096 keys at most, and as much room again. All keys would be
  // 16 MB.
  EXPECT_LT(most_bytes, bytes_at_first + 2 * (2 * kBatch + 64 * 4096) * 8);
  Keys keys;
  const Status unknown = call.ChangedKeys(0, &keys);
  EXPECT_EQ(unknown.code(), Code::kFailedPrecondition);
  EXPECT_NE(unknown.message().find("full"), std::string::npos) << unknown.message();
  ASSERT_OK(call.BeginEpoch(2));
  EXPECT_EQ(call.ChangedKeys(0, &keys).code(), Code::kFailedPrecondition);
  ASSERT_OK(call.Upsert({1, 2, 3}, Floats(12)));
  ASSERT_OK(call.Erase({2}));
  ASSERT_OK(call.ChangedKeys(1, &keys));
  std::sort(keys.begin(), keys.end());
  EXPECT_EQ(keys, (Keys{1, 2, 3}));
}

// What is forgotten first is what is oldest, and rows that stay may all change in several epochs.
TEST_F(HostTableTest, ForgetsTheOldestEpochsFirst) {
  constexpr int64_t kRows = 30'000, kEpochs = 40;
  const Caller call(table_.get(), HostTestMemory());
  Keys keys;
  for (Key key = 0; key < kRows; ++key) keys.push_back(key * 31);
  const Floats values(kRows * 4);
  for (int64_t epoch = 1; epoch <= kEpochs; ++epoch) {
    ASSERT_OK(call.BeginEpoch(epoch));
    ASSERT_OK(call.Upsert(keys, values));
    Keys changed;
    ASSERT_OK(call.ChangedKeys(std::max<int64_t>(epoch - 3, 0), &changed));
    std::sort(changed.begin(), changed.end());
    EXPECT_EQ(changed, keys) << "epoch " << epoch;
  }
  EXPECT_EQ(call.ChangedKeys(0, &keys).code(), Code::kFailedPrecondition);
}

// One key that comes and goes all the time is one change.
TEST_F(HostTableTest, RemembersAKeyThatComesAndGoes) {
  const Caller call(table_.get(), HostTestMemory());
  ASSERT_OK(call.BeginEpoch(1));
  for (int i = 0; i < 20'000; ++i) {
    ASSERT_OK(call.Upsert({7}, Floats(4)));
    ASSERT_OK(call.Erase({7}));
  }
  Keys keys;
  ASSERT_OK(call.ChangedKeys(0, &keys));
  EXPECT_EQ(keys, Keys{7});
  EXPECT_LT(table_->memory_bytes(), int64_t{4} << 20);
}

// Ends the program with 1 and a line if something is not as it should be.
void Require(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "not so: %s\n", what);
  std::exit(1);
}

// Lets the program have `more_bytes` of address space beyond what it has; all there is for -1.
void LimitMemory(int64_t more_bytes) {
  rlimit limit;
  getrlimit(RLIMIT_AS, &limit);
  int64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  limit.rlim_cur = more_bytes < 0 ? limit.rlim_max : static_cast<rlim_t>(pages * 4096 + more_bytes);
  setrlimit(RLIMIT_AS, &limit);
}

// Runs out of memory in the middle of a call: some keys are done, the others say so, and when there
// is memory again the table goes on.
void RunOutOfMemory() {
  constexpr int64_t kDim = 1024, kKeys = 20'000, kValueBytes = kDim * 4;  // 80 MB
  TableSchema schema;
  schema.dim = kDim;
  std::unique_ptr<Table> table;
  Require(MakeHostTable(schema, &table).ok(), "a table");
  InlineExecutor executor;
  Context context;
  context.executor = &executor;
  Keys keys;
  for (Key key = 0; key < kKeys; ++key) keys.push_back(key);
  Floats values(kKeys * kDim, 1.0f), read(kKeys * kDim);
  const Rows given(reinterpret_cast<char*>(values.data()), kKeys, kValueBytes);
  const Rows out(reinterpret_cast<char*>(read.data()), kKeys, kValueBytes);
  Outcomes outcomes(kKeys), found(kKeys);
  std::vector<int64_t> at(kKeys);
  int64_t misses_count = 0;
  Positions misses = {at, &misses_count};
  LimitMemory(int64_t{30} << 20);
  const Status full = table->Upsert(context, {keys}, given, {}, {outcomes, &misses});
  LimitMemory(-1);
  Require(full.code() == Code::kResourceExhausted, "kResourceExhausted");
  const int64_t inserted = std::count(outcomes.begin(), outcomes.end(), Outcome::kInserted);
  Require(inserted > 1000 && inserted < 10'000, "some were inserted");
  Require(std::count(outcomes.begin(), outcomes.end(), Outcome::kFull) == kKeys - inserted,
          "the others are full");
  Require(misses_count == kKeys - inserted, "the others are misses");
  for (int64_t j = 0; j < misses_count; ++j) Require(outcomes[at[j]] == Outcome::kFull, "a miss");
  Require(table->size() == inserted, "size");
  Require(table->Find(context, {keys}, out, {found, nullptr}).ok(), "find");
  for (int64_t i = 0; i < kKeys; ++i) {
    const bool there = outcomes[i] == Outcome::kInserted;
    Require((found[i] == Outcome::kFound) == there, "found what was inserted");
    Require(read[i * kDim + kDim - 1] == (there ? 1.0f : 0.0f), "the value");
  }
  Require(table->Upsert(context, {keys}, given, {}, {}).ok(), "it goes on");
  Require(table->size() == kKeys, "all are there");
  std::exit(0);
}

// There is no memory for the rows of another schema: the table stays as it was, and can be moved
// when there is.
void RunOutOfMemoryForAMove() {
  constexpr int64_t kDim = 1024, kKeys = 10'000;  // 40 MB
  TableSchema schema;
  schema.dim = kDim;
  std::unique_ptr<Table> table;
  Require(MakeHostTable(schema, &table).ok(), "a table");
  const Context context = HostTestMemory()->context();
  Keys keys;
  for (Key key = 0; key < kKeys; ++key) keys.push_back(key);
  Require(Caller(table.get(), HostTestMemory()).Upsert(keys, Floats(kKeys * kDim, 1.0f)).ok(),
          "rows");
  const int64_t bytes = table->memory_bytes();
  schema.rule = UsualRule("adam");
  std::unique_ptr<RowMove> move;
  LimitMemory(int64_t{30} << 20);
  const Status full = table->PrepareMove(context, schema, &move);
  LimitMemory(-1);
  Require(full.code() == Code::kResourceExhausted, "kResourceExhausted");
  Require(move == nullptr, "no move");
  Require(table->size() == kKeys && table->memory_bytes() == bytes, "as it was");
  Require(table->PrepareMove(context, schema, &move).ok(), "a move");
  table = move->Run(context);
  const TableContent content = ExportAll(*table, HostTestMemory(), 1000);
  Require(content.size() == kKeys, "all are there");
  for (const auto& [key, row] : content) {
    Require(row.value == Bytes(Floats(kDim, 1.0f)), "the value");
    Require(row.slots == Bytes(Floats(2 * kDim)), "the slots");
  }
  std::exit(0);
}

TEST(HostTableDeathTest, RunsOutOfMemoryWithoutHarm) {
  if (kUnderAddressSanitizer || kUnderThreadSanitizer) {
    // The limit is on the process' address space, of which a sanitizer reserves terabytes for
    // itself: it could not start. The plain build runs this test.
    GTEST_SKIP() << "a sanitizer cannot run in limited memory; the plain build runs this";
  }
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(RunOutOfMemory(), ::testing::ExitedWithCode(0), "");
  EXPECT_EXIT(RunOutOfMemoryForAMove(), ::testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace dynemb

// Following changes: what an export since a version and the log of erased keys give, against a
// plain record of what was done.
#include <map>
#include <random>
#include <set>

#include "cc/core/testing/caller.h"
#include "cc/core/testing/conformance_checks.h"
#include "gtest/gtest.h"

namespace dynemb {
namespace {

// A table with random writes, and the record of them.
class Changes {
 public:
  explicit Changes(const TableHarness& harness)
      : memory_(harness.memory),
        table_(harness.Make(TableSchema())),
        call_(table_.get(), harness.memory) {}

  const Caller& call() const { return call_; }
  Table* table() const { return table_.get(); }

  void Begin(int64_t version) {
    ASSERT_OK(table_->BeginVersion(memory_->context(), version));
    EXPECT_EQ(table_->version(), version);
    version_ = version;
  }

  void WriteAtRandom() {
    Keys keys;
    for (int64_t n = 1 + Below(20); n > 0; --n) keys.push_back(Below(200) - 100);
    const std::set<Key> distinct(keys.begin(), keys.end());
    keys.assign(distinct.begin(), distinct.end());
    const Floats values(keys.size(), static_cast<float>(Below(1000)));
    switch (Below(6)) {
      case 0:
        ASSERT_OK(call_.Upsert(keys, values));
        for (const Key key : keys) written_[key] = version_;
        break;
      case 1:
        ASSERT_OK(call_.Erase(keys));
        for (const Key key : keys) Erased(key);
        break;
      case 2: {  // of rows that are there, and of some that are not: only the first count
        ASSERT_OK(call_.Accumulate(keys, values, std::vector<bool>(keys.size(), true)));
        for (const Key key : keys) {
          if (written_.count(key) > 0) written_[key] = version_;
        }
        break;
      }
      case 3: {
        TableContent rows = call_.Export();
        if (rows.empty()) break;
        const auto row = *std::next(rows.begin(), Below(static_cast<int64_t>(rows.size())));
        ASSERT_OK(call_.Import({row}));
        written_[row.first] = version_;
        break;
      }
      case 4:
        if (table_->schema().rule.name.empty()) break;
        ASSERT_OK(call_.Apply(keys, Floats(keys.size()), table_->schema().rule,
                              UsualHyper("adagrad", 1)));
        for (const Key key : keys) written_[key] = version_;
        break;
      default:
        if (Below(10) == 0) ASSERT_OK(call_.Attach(UsualRule("adagrad")));  // is no write
        break;
    }
  }

  // Compares what the table says has changed since a version with the record.
  void CompareSince(int64_t since) {
    SCOPED_TRACE(StrCat("since version ", since));
    std::set<Key> got, want;
    Cursor cursor;
    cursor.since_version = since;
    while (!cursor.done) {
      for (const auto& row : ExportSome(*table_, memory_, 7, true, &cursor)) {
        EXPECT_TRUE(got.insert(row.first).second) << "key " << row.first << " appears twice";
      }
    }
    for (const auto& [key, version] : written_) {
      if (version > since) want.insert(key);
    }
    EXPECT_EQ(got, want);
    std::vector<Key> erased;
    ASSERT_OK(table_->Erased(memory_->context(), since, &erased));
    want.clear();
    for (const auto& [key, version] : erased_) {
      if (version > since) want.insert(key);
    }
    EXPECT_EQ(std::set<Key>(erased.begin(), erased.end()), want);
  }

  int64_t Below(int64_t n) { return static_cast<int64_t>(random_() % static_cast<uint64_t>(n)); }

 private:
  void Erased(Key key) {
    if (written_.erase(key) > 0) erased_.emplace_back(key, version_);
  }

  std::mt19937_64 random_{20};
  TestMemory* const memory_;
  std::unique_ptr<Table> table_;
  Caller call_;
  int64_t version_ = 0;
  std::map<Key, int64_t> written_;  // the rows that are there, with the version of the last write
  std::vector<std::pair<Key, int64_t>> erased_;
};

}  // namespace

void CheckChanges(const TableHarness& harness) {
  Changes changes(harness);
  const Context context = harness.memory->context();
  for (int i = 0; i < 40; ++i) changes.WriteAtRandom();
  // A table that does not follow changes says so.
  EXPECT_EQ(changes.table()->version(), 0);
  Cursor cursor;
  cursor.since_version = 0;
  RowParts out;
  Mirror<Key> keys(harness.memory, 10);
  out.keys = keys.span();
  int64_t rows;
  std::vector<Key> erased;
  EXPECT_EQ(changes.table()->Export(context, &cursor, out, &rows).code(),
            Code::kFailedPrecondition);
  EXPECT_EQ(changes.table()->Erased(context, 0, &erased).code(), Code::kFailedPrecondition);

  const TableContent before = changes.call().Export();
  std::vector<int64_t> versions;
  for (int64_t version : {5, 6, 7, 100, 101}) {
    changes.Begin(version);
    EXPECT_TRUE(version != 5 || Difference(before, changes.call().Export()).empty());
    versions.push_back(version - 1);
    for (int i = 0; i < 30; ++i) changes.WriteAtRandom();
    for (const int64_t since : versions) changes.CompareSince(since);
  }
  changes.CompareSince(101);
  EXPECT_EQ(changes.table()->BeginVersion(context, 101).code(), Code::kInvalidArgument);
  EXPECT_EQ(changes.table()->BeginVersion(context, -3).code(), Code::kInvalidArgument);
  EXPECT_EQ(changes.table()->Erased(context, 3, &erased).code(), Code::kFailedPrecondition)
      << "from before the first version";

  // After a Clear it is not known what was erased, until the next version.
  ASSERT_OK(changes.call().Clear());
  EXPECT_EQ(changes.table()->Erased(context, 100, &erased).code(), Code::kFailedPrecondition);
  ASSERT_OK(changes.table()->BeginVersion(context, 102));
  ASSERT_OK(changes.call().Upsert({1, 2}, {1, 2}));
  ASSERT_OK(changes.call().Erase({2}));
  ASSERT_OK(changes.table()->Erased(context, 101, &erased));
  EXPECT_EQ(erased, std::vector<Key>{2});

  // So it is after too many.
  Keys many;
  for (Key key = 0; key <= Table::kErasedLimit; ++key) many.push_back(key);
  ASSERT_OK(changes.call().Upsert(many, Floats(many.size())));
  ASSERT_OK(changes.call().Erase(many));
  EXPECT_EQ(changes.table()->Erased(context, 101, &erased).code(), Code::kFailedPrecondition);
  EXPECT_TRUE(erased.empty());
  ASSERT_OK(changes.table()->BeginVersion(context, 103));
  ASSERT_OK(changes.call().Upsert({1}, {1}));
  ASSERT_OK(changes.call().Erase({1}));
  ASSERT_OK(changes.table()->Erased(context, 102, &erased));
  EXPECT_EQ(erased, std::vector<Key>{1});
}

}  // namespace dynemb

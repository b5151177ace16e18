// The strings beside a table: what is kept, what is refused, what a sweep may drop.
#include "cc/core/table/key_strings.h"

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <thread>
#include <vector>

#include "cc/core/table/host_table.h"

namespace dynemb {
namespace {

using Strings = std::vector<std::string>;
using Shards = std::vector<std::shared_ptr<Table>>;

Status Record(KeyStrings* kept, const std::vector<Key>& keys, const Strings& strings) {
  const std::vector<std::string_view> views(strings.begin(), strings.end());
  return kept->Record(Span<const Key>(keys), Span<const std::string_view>(views));
}

// The strings of keys, "?" for one that has none.
Strings Get(KeyStrings* kept, const std::vector<Key>& keys) {
  Strings got;
  for (const Key key : keys) {
    const std::vector<Key> one = {key};
    std::string string = "?";
    (void)kept->Get(Span<const Key>(one), [&](int64_t, const std::string& s) { string = s; });
    got.push_back(string);
  }
  return got;
}

Status Begin(KeyStrings* kept, const std::vector<Key>& keys) {
  KeyStrings::Birth birth;
  return KeyStrings::Birth::Begin(kept, Span<const Key>(keys), &birth);
}

class Tables {
 public:
  explicit Tables(int shards) : shards_(shards) {
    context_.executor = &executor_;
    TableSchema schema;
    schema.initializer.constant = {0};
    for (auto& shard : shards_) {
      std::unique_ptr<Table> made;
      EXPECT_TRUE(MakeHostTable(schema, &made).ok());
      shard = std::move(made);
    }
  }

  void Upsert(const std::vector<Key>& keys) {
    for (const Key key : keys) {
      const std::vector<Key> one = {key};
      const float value = 1;
      Batch batch;
      batch.keys = one;
      const ConstRows rows(reinterpret_cast<const char*>(&value), 1, sizeof(value));
      EXPECT_TRUE(Of(key)->Upsert(context_, batch, rows, Stamp(), Report()).ok());
    }
  }

  void Erase(const std::vector<Key>& keys) {
    for (const Key key : keys) {
      const std::vector<Key> one = {key};
      Batch batch;
      batch.keys = one;
      EXPECT_TRUE(Of(key)->Erase(context_, batch, Report()).ok());
    }
  }

  const Shards& shards() const { return shards_; }
  const Context& context() const { return context_; }

 private:
  Table* Of(Key key) { return shards_[static_cast<uint64_t>(key) % shards_.size()].get(); }

  InlineExecutor executor_;
  Context context_;
  Shards shards_;
};

TEST(KeyStrings, KeepsWhatIsRecorded) {
  KeyStrings kept;
  const Strings odd = {"", std::string("\0a\xff", 3), std::string(1000, 'x')};
  ASSERT_TRUE(Record(&kept, {0, -1, 7}, odd).ok());
  ASSERT_TRUE(Record(&kept, {7, 0, 7}, {odd[2], odd[0], odd[2]}).ok());
  EXPECT_EQ(Get(&kept, {7, 0, -1, 3}), (Strings{odd[2], odd[0], odd[1], "?"}));
  EXPECT_EQ(kept.size(), 3);
  ASSERT_TRUE(Record(&kept, {}, {}).ok());
  EXPECT_EQ(Record(&kept, {8, 9}, {"eight"}).message(), "strings: got 1, want one per key, 2");
}

TEST(KeyStrings, TwoStringsOfOneKeyAreRefusedAndNothingIsKept) {
  KeyStrings kept;
  ASSERT_TRUE(Record(&kept, {5}, {"five"}).ok());
  const std::string here_and_there = Record(&kept, {1, 5, 2}, {"one", "FIVE", "two"}).message();
  EXPECT_NE(here_and_there.find("'FIVE'"), std::string::npos) << here_and_there;
  EXPECT_NE(here_and_there.find("'five'"), std::string::npos) << here_and_there;
  EXPECT_NE(here_and_there.find("fingerprint 5 "), std::string::npos) << here_and_there;
  const Status in_the_batch = Record(&kept, {1, 2, 1}, {"one", "two", "ONE"});
  EXPECT_EQ(in_the_batch.code(), Code::kInvalidArgument);
  EXPECT_NE(in_the_batch.message().find("'ONE'"), std::string::npos) << in_the_batch.message();
  EXPECT_EQ(Get(&kept, {1, 2, 5}), (Strings{"?", "?", "five"}));
  EXPECT_EQ(kept.size(), 1);
}

TEST(KeyStrings, AReadBehindAnotherString) {
  KeyStrings kept;
  ASSERT_TRUE(Record(&kept, {5}, {"five"}).ok());
  const std::vector<Key> keys = {1, 5};
  const std::vector<std::string_view> same = {"one", "five"}, other = {"one", "FIVE"};
  EXPECT_TRUE(kept.Check(keys, same).ok());
  EXPECT_EQ(kept.Check(keys, other).code(), Code::kInvalidArgument);
  EXPECT_EQ(kept.size(), 1);
}

TEST(KeyStrings, NoBirthWithoutAString) {
  KeyStrings kept;
  ASSERT_TRUE(Record(&kept, {1, 2}, {"one", "two"}).ok());
  EXPECT_TRUE(Begin(&kept, {1, 2, 1}).ok());
  EXPECT_TRUE(Begin(&kept, {}).ok());
  const Status status = Begin(&kept, {1, 3});
  EXPECT_EQ(status.code(), Code::kFailedPrecondition);
  EXPECT_NE(status.message().find("none for 3;"), std::string::npos) << status.message();
  EXPECT_TRUE(Begin(nullptr, {3}).ok());
}

TEST(KeyStrings, AMissingStringOfARowIsAnInternalError) {
  KeyStrings kept;
  const std::vector<Key> keys = {4};
  const Status status = kept.Get(Span<const Key>(keys), [](int64_t, const std::string&) {});
  EXPECT_EQ(status.code(), Code::kInternal);
}

std::vector<Key> Range(Key begin, Key end) {
  std::vector<Key> keys;
  for (Key key = begin; key < end; ++key) keys.push_back(key);
  return keys;
}

Strings Names(const std::vector<Key>& keys) {
  Strings names;
  for (const Key key : keys) names.push_back(std::to_string(key));
  return names;
}

void Age(KeyStrings* kept) {
  for (int64_t i = 0; i <= KeyStrings::kGraceBirths; ++i) ASSERT_TRUE(Begin(kept, {}).ok());
}

TEST(KeyStrings, ASweepDropsOldStringsWithoutRowsAndNoOthers) {
  for (const int shards : {1, 3}) {
    KeyStrings kept;
    Tables tables(shards);
    const std::vector<Key> old = Range(0, 10000), rows = Range(0, 100), young = Range(20000, 20010);
    ASSERT_TRUE(Record(&kept, old, Names(old)).ok());
    tables.Upsert(rows);
    Age(&kept);
    ASSERT_TRUE(Record(&kept, young, Names(young)).ok());  // whose gradient is not applied yet
    ASSERT_TRUE(Begin(&kept, {5000}).ok());                // a birth keeps its strings, too
    ASSERT_TRUE(kept.Sweep(tables.context(), tables.shards()).ok());
    EXPECT_EQ(kept.size(), 111);
    EXPECT_EQ(Get(&kept, rows), Names(rows));
    EXPECT_EQ(Get(&kept, young), Names(young));
    EXPECT_EQ(Get(&kept, {5000, 5001, 100}), (Strings{"5000", "?", "?"}));
    // What was dropped can be recorded again, under any string.
    ASSERT_TRUE(Record(&kept, {5001}, {"another"}).ok());
  }
}

TEST(KeyStrings, NoSweepWhileMostStringsHaveRowsOrThereAreFew) {
  Tables tables(2);
  KeyStrings few, most;
  ASSERT_TRUE(Record(&few, Range(0, 1000), Names(Range(0, 1000))).ok());
  Age(&few);
  ASSERT_TRUE(few.Sweep(tables.context(), tables.shards()).ok());
  EXPECT_EQ(few.size(), 1000);
  tables.Upsert(Range(0, 6000));
  ASSERT_TRUE(Record(&most, Range(0, 10000), Names(Range(0, 10000))).ok());
  Age(&most);
  ASSERT_TRUE(most.Sweep(tables.context(), tables.shards()).ok());
  EXPECT_EQ(most.size(), 10000);
  tables.Erase(Range(2000, 6000));
  ASSERT_TRUE(most.Sweep(tables.context(), tables.shards()).ok());
  EXPECT_EQ(most.size(), 2000);
}

// Writers record, make rows and remove them while others sweep: no row is ever without its string.
TEST(KeyStrings, RowsHaveStringsWhateverOthersDo) {
  KeyStrings kept;
  Tables tables(1);
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&, t] {
      for (Key round = 0; round < 40; ++round) {
        const std::vector<Key> keys = Range(t * 500, t * 500 + 1000);
        ASSERT_TRUE(Record(&kept, keys, Names(keys)).ok());
        const std::vector<Key> passing = Range(1000000 + round * 300, 1000000 + round * 300 + 300);
        ASSERT_TRUE(Record(&kept, passing, Names(passing)).ok());
        {
          KeyStrings::Birth birth;
          ASSERT_TRUE(KeyStrings::Birth::Begin(&kept, Span<const Key>(keys), &birth).ok());
          tables.Upsert(keys);
          ASSERT_EQ(Get(&kept, keys), Names(keys));
        }
        for (int i = 0; i < 100; ++i) ASSERT_TRUE(Begin(&kept, {}).ok());
        tables.Erase(Range(t * 500, t * 500 + 200));
        ASSERT_TRUE(kept.Sweep(tables.context(), tables.shards()).ok());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  KeyStrings::Birth birth;
  ASSERT_TRUE(KeyStrings::Birth::Begin(&kept, {}, &birth).ok());
  std::vector<Key> keys(10000);
  RowParts out;
  out.keys = keys;
  Cursor cursor;
  int64_t rows = 0;
  ASSERT_TRUE(tables.shards()[0]->Export(tables.context(), &cursor, out, &rows).ok());
  ASSERT_TRUE(cursor.done);
  keys.resize(rows);
  EXPECT_EQ(Get(&kept, keys), Names(keys));
}

}  // namespace
}  // namespace dynemb

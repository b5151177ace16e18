// The strings beside a table: what is kept, what is refused, what a sweep may drop.
#include "cc/core/table/key_strings.h"

#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <random>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "cc/core/table/host_table.h"
#include "cc/core/testing/executors.h"
#include "cc/core/testing/failing_allocations.h"

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
    (void)kept->Get(Span<const Key>(one), [&](int64_t, std::string_view s) { string = s; });
    got.push_back(string);
  }
  return got;
}

Status Begin(KeyStrings* kept, const std::vector<Key>& keys) {
  KeyStrings::PinGuard guard;
  return KeyStrings::PinGuard::Begin(kept, Span<const Key>(keys), &guard);
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
  std::vector<int64_t> missing = {7};
  EXPECT_TRUE(kept.Check(keys, same, &missing).ok());
  EXPECT_EQ(missing, std::vector<int64_t>{0});
  EXPECT_EQ(kept.Check(keys, other, &missing).code(), Code::kInvalidArgument);
  EXPECT_EQ(kept.size(), 1);
}

TEST(KeyStrings, NoPinWithoutAString) {
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
  const Status status = kept.Get(Span<const Key>(keys), [](int64_t, std::string_view) {});
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
  for (int64_t i = 0; i <= KeyStrings::kGraceCalls; ++i) ASSERT_TRUE(Begin(kept, {}).ok());
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
    ASSERT_TRUE(Begin(&kept, {5000}).ok());  // a call that pins keeps its strings, too
    const std::vector<Key> found = {6000};   // as a lookup does, whose gradient may follow
    const std::string_view name = "6000";
    std::vector<int64_t> missing;
    ASSERT_TRUE(kept.Check(found, {&name, 1}, &missing).ok());
    ASSERT_TRUE(kept.Sweep(tables.context(), tables.shards()).ok());
    EXPECT_EQ(kept.size(), 112);
    EXPECT_EQ(Get(&kept, found), Strings{"6000"});
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

// Strings of all lengths, in batches with repetitions and some conflicts, against a std::map.
TEST(KeyStrings, AgreesWithAMap) {
  std::mt19937_64 random(1);
  KeyStrings kept;
  std::map<Key, std::string> model;
  const auto string_of = [](Key key) {
    const size_t length = key % 97 == 0 ? 20000 : static_cast<size_t>(key * 7919 % 300);
    return std::to_string(key) + std::string(length, 'a');
  };
  int refused = 0;
  for (int round = 0; round < 200; ++round) {
    std::vector<Key> keys;
    Strings strings;
    const auto n = random() % (round % 10 == 0 ? 9000 : 300);
    for (size_t i = 0; i < n; ++i) {
      keys.push_back(static_cast<Key>(random() % 40000));
      strings.push_back(string_of(keys.back()));
    }
    if (n > 0 && random() % 3 == 0) strings[random() % n] += "b";
    std::map<Key, std::string> after = model;
    bool conflict = false;
    for (size_t i = 0; i < n; ++i) {
      conflict |= after.emplace(keys[i], strings[i]).first->second != strings[i];
    }
    const Status status = Record(&kept, keys, strings);
    ASSERT_EQ(status.code(), conflict ? Code::kInvalidArgument : Code::kOk) << round;
    if (conflict) {
      ++refused;
    } else {
      model = after;
    }
    ASSERT_EQ(kept.size(), static_cast<int64_t>(model.size())) << round;
    for (const Key key : keys) {
      const auto at = model.find(key);
      ASSERT_EQ(Get(&kept, {key})[0], at == model.end() ? "?" : at->second) << round;
    }
  }
  EXPECT_GT(refused, 5);
}

// Of several errors the one that comes first in the batch, whatever parts the keys are in.
TEST(KeyStrings, TheFirstErrorOfABatchIsTheOneThatIsReported) {
  KeyStrings kept;
  const std::vector<Key> keys = Range(0, 2000);
  ASSERT_TRUE(Record(&kept, keys, Names(keys)).ok());
  Strings other = Names(keys);
  for (size_t i = 700; i < other.size(); ++i) other[i] += "!";
  EXPECT_NE(Record(&kept, keys, other).message().find("'700!'"), std::string::npos);
  EXPECT_NE(Begin(&kept, Range(1500, 4000)).message().find("none for 2000;"), std::string::npos);
}

TEST(KeyStrings, AStringStaysWhereItIsWhileOthersCome) {
  KeyStrings kept;
  const std::vector<Key> keys = Range(0, 100);
  ASSERT_TRUE(Record(&kept, keys, Names(keys)).ok());
  KeyStrings::PinGuard guard;
  ASSERT_TRUE(KeyStrings::PinGuard::Begin(&kept, Span<const Key>(keys), &guard).ok());
  std::vector<std::string_view> before, after;
  const auto collect = [&](std::vector<std::string_view>* to) {
    ASSERT_TRUE(kept.Get(keys, [&](int64_t, std::string_view s) { to->push_back(s); }).ok());
  };
  collect(&before);
  ASSERT_TRUE(Record(&kept, Range(1000, 100000), Names(Range(1000, 100000))).ok());
  collect(&after);
  ASSERT_EQ(before.size(), keys.size());
  for (size_t i = 0; i < keys.size(); ++i) {
    EXPECT_EQ(before[i].data(), after[i].data());
    EXPECT_EQ(before[i], std::to_string(i));
  }
}

TEST(KeyStrings, ASweepGivesMemoryBack) {
  KeyStrings kept;
  Tables tables(1);
  const std::vector<Key> rows = Range(0, 1000), all = Range(0, 100000);
  ASSERT_TRUE(Record(&kept, rows, Names(rows)).ok());
  const int64_t few_bytes = kept.memory_bytes();
  EXPECT_GT(few_bytes, 1000 * 20);
  ASSERT_TRUE(Record(&kept, all, Names(all)).ok());
  EXPECT_GT(kept.memory_bytes(), 10 * few_bytes);
  EXPECT_LT(kept.memory_bytes(), 100000 * 48);  // the key, its string of 5 bytes, and what is ahead
  tables.Upsert(rows);
  Age(&kept);
  ASSERT_TRUE(kept.Sweep(tables.context(), tables.shards()).ok());
  EXPECT_EQ(kept.size(), 1000);
  EXPECT_LT(kept.memory_bytes(), 2 * few_bytes);
  EXPECT_EQ(Get(&kept, rows), Names(rows));
  ASSERT_TRUE(Record(&kept, all, Names(all)).ok());
  EXPECT_EQ(Get(&kept, {0, 99999}), (Strings{"0", "99999"}));
}

// Every allocation of a call fails in turn: nothing is kept, and when there is memory it goes on.
TEST(KeyStrings, WithoutMemoryNothingIsKept) {
  KeyStrings kept;
  const std::vector<Key> old = Range(0, 5000), both = Range(4000, 9000);
  const Strings old_names = Names(old), both_names = Names(both);
  ASSERT_TRUE(Record(&kept, old, old_names).ok());
  const std::vector<std::string_view> views(both_names.begin(), both_names.end());
  const int64_t bytes = kept.memory_bytes();
  int64_t failures = 0;
  for (Status status(Code::kResourceExhausted, ""); !status.ok(); ++failures) {
    allocations_left = failures;
    status = kept.Record(Span<const Key>(both), Span<const std::string_view>(views));
    allocations_left = -1;
    if (status.ok()) break;
    ASSERT_EQ(status.code(), Code::kResourceExhausted);
    ASSERT_EQ(kept.size(), 5000);
    ASSERT_EQ(kept.memory_bytes(), bytes);
  }
  EXPECT_GT(failures, 20);
  EXPECT_EQ(kept.size(), 9000);
  EXPECT_EQ(Get(&kept, both), both_names);
  EXPECT_EQ(Get(&kept, old), old_names);
  // A check without memory says so; a pin needs none but what the executor takes.
  KeyStrings::PinGuard guard;
  const auto check = [&](const Context& context) {
    std::vector<int64_t> missing;
    return kept.Check(Span<const Key>(both), Span<const std::string_view>(views), &missing,
                      context);
  };
  const auto pin = [&](const Context& context) {
    return KeyStrings::PinGuard::Begin(&kept, Span<const Key>(both), &guard, context);
  };
  const OneThread one_thread;
  allocations_left = 0;
  const Status checked = check(one_thread), pinned = pin(one_thread);
  allocations_left = -1;
  EXPECT_EQ(checked.code(), Code::kResourceExhausted);
  EXPECT_TRUE(check(one_thread).ok());
  EXPECT_TRUE(pinned.ok());
  NoMemoryExecutor no_memory;
  Context without;
  without.executor = &no_memory;
  EXPECT_EQ(check(without).code(), Code::kResourceExhausted);
  EXPECT_EQ(pin(without).code(), Code::kResourceExhausted);
}

// Threads race for the same keys under different strings: each key has the string of one thread,
// whose whole batch is kept, or none.
TEST(KeyStrings, OfTwoBatchesThatDisagreeOneIsKept) {
  for (Key round = 0; round < 50; ++round) {
    KeyStrings kept;
    const std::vector<Key> shared = Range(0, 300);
    std::vector<std::thread> threads;
    std::atomic<int> recorded{0};
    for (int t = 0; t < 3; ++t) {
      threads.emplace_back([&, t] {
        std::vector<Key> keys = Range(1000 * (t + 1), 1000 * (t + 1) + 300);
        keys.insert(keys.end(), shared.begin(), shared.end());
        Strings names = Names(keys);
        for (std::string& name : names) name += std::to_string(t);
        if (Record(&kept, keys, names).ok()) {
          ++recorded;
          EXPECT_EQ(Get(&kept, keys), names);
        } else {
          EXPECT_EQ(Get(&kept, {keys[0]})[0], "?");
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(recorded, 1);
    EXPECT_EQ(kept.size(), 600);
  }
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
          KeyStrings::PinGuard guard;
          ASSERT_TRUE(KeyStrings::PinGuard::Begin(&kept, Span<const Key>(keys), &guard).ok());
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
  KeyStrings::PinGuard guard;
  ASSERT_TRUE(KeyStrings::PinGuard::Begin(&kept, {}, &guard).ok());
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

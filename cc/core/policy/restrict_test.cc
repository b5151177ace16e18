// RestrictTo against a sorted std::vector: exactly the highest rows stay, with all their bytes,
// over all shards; and under writers what they write stays.
#include "cc/core/policy/restrict.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <random>
#include <thread>
#include <utility>

#include "cc/core/base/hash.h"
#include "cc/core/policy/clock.h"
#include "cc/core/testing/caller.h"

namespace dynemb {
namespace {

using Shards = std::vector<std::shared_ptr<Table>>;
using Random = std::mt19937_64;

TableSchema Schema(MetaField field) {
  TableSchema schema;
  schema.dim = 2;
  schema.rule = UsualRule("adagrad");
  schema.meta.add(MetaField::kCount);
  schema.meta.add(field);
  return schema;
}

Shards MakeShards(size_t count, MetaField field = MetaField::kScore) {
  const TableHarness harness = HostTableHarness();
  Shards shards;
  for (size_t s = 0; s < count; ++s) shards.push_back(harness.Make(Schema(field)));
  return shards;
}

// Puts a row with this score into a shard; the rest of it tells its key.
void Put(const Shards& shards, size_t shard, Key key, int64_t score) {
  const float number = static_cast<float>(key % 1000);
  RowBytes row;
  row.value = Bytes(Floats{number, 1});
  row.slots = Bytes(Floats{2, number});
  row.meta = Bytes(std::vector<int64_t>{key, score});
  ASSERT_TRUE(Caller(shards[shard].get(), HostTestMemory()).InsertRows({{key, row}}).ok());
}

std::vector<TableContent> Contents(const Shards& shards) {
  std::vector<TableContent> contents;
  for (const auto& shard : shards) contents.push_back(ExportAll(*shard, HostTestMemory(), 100));
  return contents;
}

// What a restriction to n rows leaves, by sorting.
std::vector<TableContent> Restricted(std::vector<TableContent> contents, int64_t n) {
  using Place = std::pair<std::pair<int64_t, uint64_t>, std::pair<size_t, Key>>;
  std::vector<Place> places;
  for (size_t s = 0; s < contents.size(); ++s) {
    for (const auto& [key, row] : contents[s]) {
      const int64_t score = Numbers<int64_t>(row.meta)[1];
      places.push_back({{score, Mix64(static_cast<uint64_t>(key))}, {s, key}});
    }
  }
  std::sort(places.begin(), places.end());
  const int64_t size = static_cast<int64_t>(places.size());
  for (int64_t i = 0; i < size - n; ++i) {
    contents[places[i].second.first].erase(places[i].second.second);
  }
  return contents;
}

void ExpectRestricts(const Shards& shards, int64_t n) {
  const std::vector<TableContent> before = Contents(shards), want = Restricted(before, n);
  int64_t erased = -1;
  const Status status =
      RestrictTo(HostTestMemory()->context(), shards, MetaField::kScore, n, &erased);
  ASSERT_TRUE(status.ok()) << status.message();
  const std::vector<TableContent> got = Contents(shards);
  for (size_t s = 0; s < shards.size(); ++s) {
    EXPECT_EQ(Difference(want[s], got[s]), "") << "shard " << s;
    erased -= static_cast<int64_t>(before[s].size() - got[s].size());
  }
  EXPECT_EQ(erased, 0);
}

// Draws of scores: many ties, extremes, neighbours, anything.
int64_t Score(int kind, Random* random) {
  const int64_t extremes[] = {INT64_MIN, INT64_MIN + 1, -1, 0, 1, INT64_MAX - 1, INT64_MAX};
  const int64_t any = static_cast<int64_t>((*random)());
  switch (kind) {
    case 0:
      return 7;
    case 1:
      return any % 3;
    case 2:
      return extremes[static_cast<uint64_t>(any) % 7];
    case 3:
      return any % 1000 - (int64_t{1} << 40);
    default:
      return any;
  }
}

TEST(Restrict, LeavesTheHighestRowsOfAllShards) {
  Random random(1);
  for (const size_t shard_count : {1, 2, 5}) {
    for (int kind = 0; kind < 5; ++kind) {
      SCOPED_TRACE(StrCat(shard_count, " shards, scores of kind ", kind));
      for (int64_t left : {300, 299, 200, 17, 1}) {
        const Shards shards = MakeShards(shard_count);
        for (int i = 0; i < 300; ++i) {
          // Most rows in the first shard: shares need not be even.
          const size_t shard = random() % 4 == 0 ? random() % shard_count : 0;
          Put(shards, shard, static_cast<Key>(random()), Score(kind, &random));
        }
        ExpectRestricts(shards, left + 1);
        ExpectRestricts(shards, left);
        ExpectRestricts(shards, left / 2);
        ExpectRestricts(shards, 0);
      }
    }
  }
}

TEST(Restrict, ChangesNothingWhereThereAreFewEnough) {
  const Shards shards = MakeShards(3);
  ExpectRestricts(shards, 0);
  ExpectRestricts(shards, 5);
  Put(shards, 1, 4, INT64_MIN);
  Put(shards, 2, 5, INT64_MAX);
  for (const int64_t n : {int64_t{2}, int64_t{3}, INT64_MAX}) ExpectRestricts(shards, n);
  EXPECT_EQ(shards[1]->size() + shards[2]->size(), 2);
}

TEST(Restrict, KnowsTheLowestAndTheHighestOrderThereIs) {
  for (int64_t n = 4; n >= 0; --n) {
    const Shards shards = MakeShards(2);
    for (const int64_t score : {INT64_MIN, INT64_MAX}) {
      const size_t shard = score > 0;
      Put(shards, shard, KeyOfHash(0), score);
      Put(shards, shard, KeyOfHash(~uint64_t{0}), score);
    }
    ExpectRestricts(shards, n);
  }
}

TEST(Restrict, RefusesWhatItCannotDoAndChangesNothing) {
  const Shards shards = MakeShards(2);
  for (Key key = 0; key < 10; ++key) Put(shards, key % 2, key, key);
  const std::vector<TableContent> before = Contents(shards);
  const Context context = HostTestMemory()->context();
  int64_t erased = -1;
  Status status = RestrictTo(context, shards, MetaField::kScore, -1, &erased);
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  EXPECT_EQ(status.message(), "rows: got -1, want 0 or more");
  for (const int64_t n : {0, 5}) {
    status = RestrictTo(context, shards, MetaField::kLastWriteTime, n, &erased);
    EXPECT_EQ(status.code(), Code::kFailedPrecondition);
    EXPECT_EQ(status.message(), "the table's rows have no meta field used");
  }
  EXPECT_EQ(Contents(shards), before);

  const TableHarness device = HostTableOnSimulatedDeviceHarness();
  const Shards elsewhere = {device.Make(Schema(MetaField::kScore))};
  status = RestrictTo(device.memory->context(), elsewhere, MetaField::kScore, 0, &erased);
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
}

// Writers bring no more keys than may stay, all later than the rows of before: so whatever the
// interleaving, nothing that they wrote may go.
TEST(Restrict, UnderWritersWhatTheyWriteStays) {
  constexpr int kWriters = 3, kRestrictors = 2;
  constexpr int64_t kLeft = 300;
  const int rounds = kUnderThreadSanitizer || kUnderAddressSanitizer ? 60 : 300;
  const Shards shards = MakeShards(2, MetaField::kLastWriteTime);
  std::vector<Caller> callers;
  for (const auto& shard : shards) callers.emplace_back(shard.get(), HostTestMemory());
  std::atomic<Key> old{0};  // keys of before are negative
  const auto add_old = [&] {
    for (int i = 0; i < 20; ++i) {
      const Key key = old.fetch_sub(1) - 1;
      ASSERT_TRUE(callers[-key % 2].Upsert({key}, {0, 0}, {-key}).ok());
    }
  };
  for (int i = 0; i < 50; ++i) add_old();

  std::vector<std::thread> threads;
  for (int w = 0; w < kWriters; ++w) {
    threads.emplace_back([&, w] {
      Random random(static_cast<uint64_t>(w));
      for (int i = 0; i < rounds; ++i) {
        const Key key = w * kLeft / kWriters + static_cast<Key>(random() % (kLeft / kWriters));
        const Caller& caller = callers[key % 2];
        const Floats row = {static_cast<float>(i), static_cast<float>(w)};
        ASSERT_TRUE(caller.Upsert({key}, row, {NextMicrosecond()}).ok());
        add_old();
        Floats found;
        Outcomes outcomes;
        ASSERT_TRUE(caller.Find({key}, &found, &outcomes).ok());
        EXPECT_EQ(outcomes, Outcomes{Outcome::kFound});
        EXPECT_EQ(found, row);
      }
    });
  }
  std::atomic<int64_t> all_erased{0};
  const auto restrict_once = [&] {
    int64_t erased = -1;
    const Context context = HostTestMemory()->context();
    ASSERT_TRUE(RestrictTo(context, shards, MetaField::kLastWriteTime, kLeft, &erased).ok());
    EXPECT_GE(shards[0]->size() + shards[1]->size(), kLeft);
    all_erased += erased;
  };
  for (int r = 0; r < kRestrictors; ++r) {
    threads.emplace_back([&] {
      for (int i = 0; i < rounds / 5; ++i) restrict_once();
    });
  }
  for (std::thread& thread : threads) thread.join();
  restrict_once();
  EXPECT_EQ(shards[0]->size() + shards[1]->size(), kLeft);
  int64_t written = 0;
  for (const TableContent& content : Contents(shards)) {
    for (const auto& key_and_row : content) written += key_and_row.first >= 0;
  }
  EXPECT_EQ(all_erased, -old + written - kLeft);
}

}  // namespace
}  // namespace dynemb

// Sixteen threads do at once all that can be done to the shards of one table: train, read, upsert,
// accumulate, insert rows, erase, export, restrict, save, and save chains of deltas. To be run
// under ThreadSanitizer and AddressSanitizer as well; all counts are bounded and nothing sleeps.
//
// What must hold, whatever the interleaving:
// - every row that anybody sees is whole, its value, slots and count of one moment;
// - of the keys that nobody removes no update is lost: the sums are exact, and every export and
//   every snapshot has each of them once; of the others none twice;
// - a full snapshot and the deltas that continue it make up the table, to the byte.
#include <algorithm>
#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "cc/core/policy/restrict.h"
#include "cc/core/testing/tortured.h"

namespace dynemb {
namespace {

// Keys below it are trained by all and removed by nobody; the next so many are trained, the next
// are written, and all of these are removed as well. Keys of a thread's own, which only come, are
// larger; the higher half of what comes is for restrictions to remove.
constexpr Key kKeys = 60;
constexpr Key kFresh = 1'000'000;
constexpr int64_t kForEver = INT64_MAX;  // the stamp that keeps a row in every restriction
constexpr int64_t kLeft = 400;           // rows that a restriction leaves

bool IsTrained(Key key) { return key < 2 * kKeys || key >= kFresh; }

// The same for a whole row; of one that is only trained also that its parts agree.
void CheckRow(Key key, const RowBytes& row) {
  const Floats value = Numbers<float>(row.value), slots = Numbers<float>(row.slots);
  const int64_t count = Numbers<int64_t>(row.meta)[1];
  CheckValue(key, value.data());
  if (!IsTrained(key)) return;
  const float slot = static_cast<float>(count);
  EXPECT_EQ(std::count(slots.begin(), slots.end(), slot), kDim) << "key " << key;
  EXPECT_EQ(value[0], slot * (slot + 1) / 2) << "key " << key;
}

// Rows as an export or a snapshot has them: none twice, none mixed, and all that stay for ever.
void CheckAll(const TableContent& content) {
  for (const auto& [key, row] : content) CheckRow(key, row);
  for (Key key = 0; key < kKeys; ++key) EXPECT_EQ(content.count(key), 1u) << "key " << key;
}

class Torture : public ::testing::Test, protected Tortured {
 protected:
  void SetUp() override {
    MetaFields meta;
    meta.add(MetaField::kLastWriteTime);
    meta.add(MetaField::kCount);
    Make(WholeRowSchema(meta), TableOptions());
    trained_ = 0;
    Keys all;
    for (Key key = 0; key < kKeys; ++key) all.push_back(key);
    Train(all, kForEver);
  }

  void Run();
  // What one thread does in one call.
  void TrainSome(Random* random, Key* fresh);
  void WriteSome(Random* random);
  void ReadSome(Random* random);

  std::atomic<int64_t> clock_{0};
  std::atomic<int64_t> trained_{0};  // how often all keys that stay were trained
};

void Torture::TrainSome(Random* random, Key* fresh) {
  Keys all, some;
  for (Key key = 0; key < kKeys; ++key) all.push_back(key);
  for (Key key = kKeys; key < 2 * kKeys; ++key) {
    if ((*random)() % 4 == 0) some.push_back(key);
  }
  for (int n = 0; n < 10; ++n) some.push_back((*fresh)++);
  Train(all, kForEver);
  ++trained_;
  Train(some, ++clock_);
}

void Torture::WriteSome(Random* random) {
  Keys some;
  for (Key key = 2 * kKeys; key < 3 * kKeys; ++key) {
    if ((*random)() % 4 == 0) some.push_back(key);
  }
  const int64_t number = static_cast<int64_t>((*random)() % 1000);
  const bool seen = (*random)() % 2 == 0;
  const uint64_t dice = (*random)() % 4;
  if (dice == 2) {  // of those that are trained, too
    for (Key key = kKeys; key < 2 * kKeys; ++key) {
      if ((*random)() % 8 == 0) some.push_back(key);
    }
  }
  ForEachShard(some, [&](const Caller& caller, const Keys& share) {
    const Floats rows = RowsFrom(std::vector<int64_t>(share.size(), number));
    if (dice == 0) {
      ASSERT_OK(caller.Upsert(share, rows, {++clock_}));
    } else if (dice == 1) {
      // A delta is the same in all columns; what is inserted is a row.
      const Floats deltas = seen ? Floats(share.size() * kDim, 3.0f) : rows;
      ASSERT_OK(
          caller.Accumulate(share, deltas, std::vector<bool>(share.size(), seen), {++clock_}));
    } else if (dice == 2) {
      ASSERT_OK(caller.Erase(share));
    } else {
      TableContent rows_to_insert, displaced;
      for (const Key key : share) {
        rows_to_insert[key] = {Bytes(RowsFrom({number})), Bytes(Floats(kDim, 2.0f)),
                               Bytes(std::vector<int64_t>{++clock_, number})};
      }
      ASSERT_OK(caller.InsertRows(rows_to_insert, &displaced));
      for (const auto& [key, row] : displaced) CheckRow(key, row);
    }
  });
}

void Torture::ReadSome(Random* random) {
  Keys some;
  for (int n = 0; n < 40; ++n) some.push_back(static_cast<Key>((*random)() % (4 * kKeys)));
  ForEachShard(some, [&](const Caller& caller, const Keys& share) {
    TableContent rows;
    ASSERT_OK(caller.ReadRows(share, &rows));
    for (const auto& [key, row] : rows) CheckRow(key, row);
    Floats values;
    Outcomes outcomes;
    ASSERT_OK(caller.Find(share, &values, &outcomes));
    for (size_t i = 0; i < share.size(); ++i) {
      CheckValue(share[i], &values[i * kDim]);
      if (share[i] < kKeys) {
        EXPECT_EQ(outcomes[i], Outcome::kFound);
      }
    }
  });
}

void Torture::Run() {
  constexpr int kCalls = Calls(400);
  std::atomic<int64_t> restricted{0};
  Chain chains[2];
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      Random random(static_cast<uint64_t>(t));
      Key fresh = (t + 1) * kFresh;
      for (int i = 0; i < kCalls && !HasFailure(); ++i) {
        switch (t % 8) {
          case 0:
          case 1:
            TrainSome(&random, &fresh);
            break;
          case 2:
            WriteSome(&random);
            break;
          case 3:
            ReadSome(&random);
            break;
          case 4:
            CheckAll(Export());
            break;
          case 5: {
            int64_t erased = 0;
            ASSERT_OK(RestrictTo(HostTestMemory()->context(), shards_, MetaField::kLastWriteTime,
                                 kLeft, &erased));
            restricted += erased;
            break;
          }
          case 6: {
            if (i % 10 != 0) break;
            TableContent content;
            uint64_t id;
            Save(StrCat("full-", t), -1, 0, &id, &content);
            CheckAll(content);
            break;
          }
          default:
            if (i % 10 != 0) break;
            Continue(StrCat("chain-", t), &chains[t / 8]);
            CheckAll(chains[t / 8].content);
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  ASSERT_FALSE(HasFailure());
  EXPECT_GT(restricted, 0) << "nothing was restricted: this has shown little";

  const TableContent content = Export();
  CheckAll(content);
  int64_t rows = 0;
  for (const auto& shard : shards_) rows += shard->size();
  EXPECT_EQ(static_cast<int64_t>(content.size()), rows);
  EXPECT_EQ(trained_, 4 * kCalls);
  for (Key key = 0; key < kKeys; ++key) {
    EXPECT_EQ(Numbers<int64_t>(content.at(key).meta)[1], trained_ + 1) << "key " << key;
  }
  for (size_t c = 0; c < 2; ++c) {
    Continue(StrCat("chain-", 8 * c + 7), &chains[c]);
    CheckAll(chains[c].content);
    EXPECT_EQ(Difference(content, chains[c].content), "") << "chain " << c;
  }
}

TEST_F(Torture, SixteenThreadsAtOnce) {
  for (int64_t round = 0; round < SoakFactor() && !HasFailure(); ++round) {
    SetUp();
    Run();
  }
}

}  // namespace
}  // namespace dynemb

// torture_suite.cc with tables that have no room for all: sixteen threads train, read, upsert,
// insert rows, erase, have expired rows leave, take what has left, export, save, and save chains of
// deltas, while rows leave by each policy.
//
// What must hold, whatever the interleaving:
// - no shard has more rows than it may, and a table that once had would have them still;
// - every row that anybody sees is whole, and one that is only trained is as old as its slots say:
//   what comes back has begun anew;
// - what was inserted is there or was erased, evicted or expired, and each row that has left by the
//   policy was given away, whole, or counted as dropped;
// - a full snapshot and the deltas that continue it make up the table, to the byte.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "cc/core/table/evicted_rows.h"
#include "cc/core/testing/bounded.h"
#include "cc/core/testing/tortured.h"

namespace dynemb {
namespace {

constexpr int64_t kMaxRows = 330;
// Keys below it are trained, the next so many are written. Keys of a thread's own, which only come,
// are larger.
constexpr Key kKeys = 400;
constexpr Key kFresh = 1'000'000;

bool IsTrained(Key key) { return key < kKeys || key >= kFresh; }

void CheckAll(const TableContent& content) {
  for (const auto& [key, row] : content) {
    const Floats value = Numbers<float>(row.value), slots = Numbers<float>(row.slots);
    CheckValue(key, value.data());
    if (!IsTrained(key)) continue;
    EXPECT_GE(slots[0], 1) << "key " << key;
    EXPECT_EQ(std::count(slots.begin(), slots.end(), slots[0]), kDim) << "key " << key;
    EXPECT_EQ(value[0], slots[0] * (slots[0] + 1) / 2) << "key " << key;
  }
}

class EvictingTorture : public ::testing::TestWithParam<std::string>, protected Tortured {
 protected:
  void Run(const TableOptions& options);
  void RunThreads(int round, Chain* chain);

  // While nobody writes: a size is a sum over segments.
  void CheckLimit(const TableOptions& options) const {
    if (!options.is_bounded()) return;
    int64_t all = 0;
    for (const auto& shard : shards_) {
      all += shard->size();
      if (options.eviction.evicts()) {
        EXPECT_LE(shard->size(), kMaxRows / static_cast<int64_t>(kShards));
      }
    }
    EXPECT_LE(all, kMaxRows);
  }

  // What one thread does in one call.
  void TrainSome(Random* random, Key* fresh) {
    Keys some;
    for (Key key = 0; key < kKeys; ++key) {
      if ((*random)() % 16 == 0) some.push_back(key);
    }
    for (int n = 0; n < 10; ++n) some.push_back((*fresh)++);
    Train(some, ++clock_);
  }

  void WriteSome(Random* random) {
    Keys some;
    for (Key key = kKeys; key < 2 * kKeys; ++key) {
      if ((*random)() % 16 == 0) some.push_back(key);
    }
    const int64_t number = static_cast<int64_t>((*random)() % 1000);
    const uint64_t dice = (*random)() % 3;
    ForEachShard(some, [&](const Caller& caller, const Keys& share) {
      const Floats rows = RowsFrom(std::vector<int64_t>(share.size(), number));
      const std::vector<int64_t> scores(share.size(), number % 7);
      if (dice == 0) {
        ASSERT_OK(caller.Upsert(share, rows, {++clock_, scores}));
      } else if (dice == 1) {
        ASSERT_OK(caller.Erase(share));
      } else {
        const std::vector<int64_t> meta(static_cast<size_t>(meta_fields_), ++clock_);
        TableContent rows_to_insert;
        for (const Key key : share) {
          rows_to_insert[key] = {Bytes(RowsFrom({number})), Bytes(Floats(kDim, 2.0f)), Bytes(meta)};
        }
        const Status inserted = caller.InsertRows(rows_to_insert);
        // Rows that are put back are not declined.
        if (!refuses_) {
          ASSERT_OK(inserted);
        }
      }
    });
  }

  void ReadSome(Random* random) {
    Keys some;
    for (int n = 0; n < 40; ++n) some.push_back(static_cast<Key>((*random)() % (2 * kKeys)));
    ForEachShard(some, [&](const Caller& caller, const Keys& share) {
      TableContent rows;
      ASSERT_OK(caller.ReadRows(share, &rows));
      CheckAll(rows);
      Floats values;
      ASSERT_OK(caller.Find(share, &values));
      for (size_t i = 0; i < share.size(); ++i) CheckValue(share[i], &values[i * kDim]);
    });
  }

  void TakeSome() {
    EvictedRows* const evicted = shards_[0]->evicted();
    if (evicted == nullptr) return;
    int64_t dropped;
    const KeptRows rows = evicted->Take(&dropped);
    taken_ += rows.size() + dropped;
    Floats values(rows.values.size() / sizeof(float));
    if (!values.empty()) std::memcpy(values.data(), rows.values.data(), rows.values.size());
    for (size_t i = 0; i < rows.keys.size(); ++i) CheckValue(rows.keys[i], &values[i * kDim]);
  }

  void RemoveExpired() {
    for (const auto& shard : shards_) {
      ASSERT_OK(shard->RemoveExpired(HostTestMemory()->context()));
    }
  }

  bool refuses_ = false;  // rows for which there is no room
  int meta_fields_ = 0;
  std::atomic<int64_t> clock_{0};
  std::atomic<int64_t> taken_{0};
};

void EvictingTorture::RunThreads(int round, Chain* chain) {
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      Random random(static_cast<uint64_t>(kThreads * round + t));
      Key fresh = (kThreads * round + t + 1) * kFresh;
      for (int i = 0; i < Calls(25) && !HasFailure(); ++i) {
        if (t < 6) {
          TrainSome(&random, &fresh);
        } else if (t < 9) {
          WriteSome(&random);
        } else if (t < 12) {
          ReadSome(&random);
        } else if (t == 12) {
          CheckAll(Export());
        } else if (t == 13) {
          TakeSome();
          RemoveExpired();
        } else if (i % 10 == 0 && t == 14) {
          TableContent content;
          uint64_t id;
          Save("full", -1, 0, &id, &content);
          CheckAll(content);
        } else if (i % 10 == 0 && t == 15) {
          Continue("chain", chain);
          CheckAll(chain->content);
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

void EvictingTorture::Run(const TableOptions& options) {
  refuses_ = options.is_bounded() && !options.eviction.evicts();
  const TableSchema schema = WholeRowSchema(options.eviction.meta());
  meta_fields_ = static_cast<int>(RowLayout(schema).meta_bytes / 8);
  Make(schema, options);
  taken_ = 0;
  Chain chain;
  for (int round = 0; round < 4 && !HasFailure(); ++round) {
    RunThreads(round, &chain);
    CheckLimit(options);
  }
  ASSERT_FALSE(HasFailure());

  RemoveExpired();
  TakeSome();
  TableCounters counters;
  int64_t rows = 0;
  for (const auto& shard : shards_) {
    counters.Add(shard->counters());
    rows += shard->size();
  }
  EXPECT_EQ(counters.inserted - counters.erased - counters.evicted - counters.expired, rows);
  EXPECT_GT(options.keep_evicted > 0 ? counters.evicted + counters.expired : counters.declined,
            1000)
      << "little has left: this has shown little";
  if (options.keep_evicted > 0) {
    EXPECT_EQ(taken_, counters.evicted + counters.expired);
  }
  const TableContent content = Export();
  CheckAll(content);
  EXPECT_EQ(static_cast<int64_t>(content.size()), rows);
  Continue("chain", &chain);
  EXPECT_EQ(Difference(content, chain.content), "");
}

TEST_P(EvictingTorture, SixteenThreadsAtOnce) {
  const std::string policy = GetParam();
  TableOptions options = Options(policy == "ttl 40" ? -1 : kMaxRows, policy, OnFull::kDecline);
  options.keep_evicted = policy.empty() ? 0 : 500;
  for (int64_t round = 0; round < SoakFactor() && !HasFailure(); ++round) Run(options);
}

INSTANTIATE_TEST_SUITE_P(Policies, EvictingTorture,
                         ::testing::Values("", "lru", "lfu", "lfu half_life 10", "lfu epoch 10",
                                           "lfu lru", "norm", "score", "score sum", "lru ttl 60",
                                           "ttl 40"));

}  // namespace
}  // namespace dynemb

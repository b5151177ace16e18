// TieredTable with limits under many threads. Run it under ThreadSanitizer too: bazel test
// --config=tsan.
#include <atomic>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "cc/core/storage/testing/opened.h"
#include "cc/core/storage/testing/twins.h"
#include "cc/core/table/evicted_rows.h"
#include "cc/core/testing/caller.h"
#include "gtest/gtest.h"

namespace dynemb {
namespace {

// There are never more rows than there may be, what is read is what was written, and in the end all
// that was counted adds up, while rows move, leave and expire, and flushes go on.
TEST(BoundedStorageConcurrencyTest, RowsAreWholeAndNoneTooMany) {
  for (const std::string policy : {"", "lfu", "lru ttl 40", "ttl 40"}) {
    TableOptions options;
    options.max_rows = policy == "ttl 40" ? -1 : 600;
    options.on_full = OnFull::kDecline;
    ASSERT_TRUE(EvictionPolicy::Parse(policy, &options.eviction).ok());
    if (!policy.empty()) options.evicted = std::make_shared<EvictedRows>(1 << 20);
    MemoryFileSystem files;
    Opened opened;
    ASSERT_OK(Open(&files, TwinSchema(2, "", options), 100, &opened, 1, {{"/tiers"}}, options));
    Table* const table = opened.tiered();
    std::atomic<int64_t> now{1};
    std::atomic<bool> stop{false};
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&, t] {
        const Caller call(table, HostTestMemory());
        std::mt19937_64 random(static_cast<uint64_t>(t));
        for (int i = 0; i < 150; ++i) {
          Keys keys(1 + random() % 60);
          Floats values;
          for (Key& key : keys) {
            key = static_cast<Key>(random() % 2000);
            values.insert(values.end(), 2, static_cast<float>(key));
          }
          EXPECT_TRUE(call.Upsert(keys, values, {now++}).ok());
          EXPECT_LE(table->size(), options.max_rows < 0 ? 2000 : 600);
          Outcomes outcomes;
          Floats found;
          EXPECT_TRUE(call.Find(keys, &found, &outcomes).ok());
          for (size_t k = 0; k < keys.size(); ++k) {
            if (outcomes[k] != Outcome::kFound) continue;
            EXPECT_EQ(found[2 * k], static_cast<float>(keys[k]));
            EXPECT_EQ(found[2 * k + 1], static_cast<float>(keys[k]));
          }
          if (i % 9 == t) {
            EXPECT_TRUE(call.Erase(keys).ok());
          }
          if (i % 50 == 7 + t) {
            EXPECT_TRUE(table->RemoveExpired(OneThread()).ok());
          }
        }
      });
    }
    std::thread flushes([&] {
      for (int64_t step = 0; !stop; ++step) EXPECT_TRUE(opened.Flush(step).ok());
    });
    for (std::thread& thread : threads) thread.join();
    stop = true;
    flushes.join();
    const TableCounters counters = table->counters();
    EXPECT_EQ(counters.inserted - counters.erased - counters.evicted - counters.expired,
              table->size());
    ASSERT_OK(table->RemoveExpired(OneThread()));
    EXPECT_EQ(static_cast<int64_t>(ContentOf(opened).size()), table->size());
    if (policy.empty()) continue;
    int64_t dropped;
    const KeptRows gone = table->evicted()->Take(&dropped);
    const TableCounters after = table->counters();
    EXPECT_EQ(gone.size() + dropped, after.evicted + after.expired);
    EXPECT_EQ(dropped, 0);
  }
}

}  // namespace
}  // namespace dynemb

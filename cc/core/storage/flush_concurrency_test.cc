// Flushes while threads call the table.
#include <atomic>
#include <random>
#include <thread>
#include <vector>

#include "cc/core/storage/testing/opened.h"
#include "cc/core/storage/testing/twins.h"
#include "cc/core/testing/caller.h"
#include "gtest/gtest.h"

namespace dynemb {
namespace {

// Each row is as it was at some moment of the flush, while threads write, look up and make room.
TEST(FlushConcurrencyTest, RowsAreWholeAndOfTheTimeOfTheFlush) {
  constexpr Key kKeys = 400;
  constexpr int kThreads = 3;
  MemoryFileSystem files;
  const TableSchema schema = TwinSchema(4, "");
  for (int round = 0; round < 3; ++round) {
    Opened opened;
    ASSERT_OK(Open(&files, schema, 100, &opened));
    std::atomic<bool> stop{false};
    std::vector<std::atomic<int>> begun(kKeys), done(kKeys);
    std::vector<int> least(kKeys), most(kKeys);
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, t] {
        const Caller call(opened.shards[0].get(), HostTestMemory());
        std::mt19937_64 random(static_cast<uint64_t>(t));
        Floats values;
        while (!stop) {
          const Key key = static_cast<Key>(random() % (kKeys / kThreads)) * kThreads + t;
          const int next = ++begun[static_cast<size_t>(key)];
          EXPECT_TRUE(call.Upsert({key}, Floats(4, static_cast<float>(next))).ok());
          ++done[static_cast<size_t>(key)];
          EXPECT_TRUE(call.Find({key, (key + 7) % kKeys}, &values).ok());
        }
      });
    }
    for (int flushes = 0; flushes < 40; ++flushes) {
      for (size_t key = 0; key < kKeys; ++key) least[key] = done[key];
      ASSERT_OK(opened.Flush(flushes));
      for (size_t key = 0; key < kKeys; ++key) most[key] = begun[key];
    }
    stop = true;
    for (std::thread& thread : threads) thread.join();
    opened = Opened();
    ASSERT_OK(Open(&files, schema, 100, &opened));
    const TableContent rows = ContentOf(opened);
    for (Key key = 0; key < kKeys; ++key) {
      const auto row = rows.find(key);
      const Floats value = row == rows.end() ? Floats(4, 0) : Numbers<float>(row->second.value);
      EXPECT_EQ(value, Floats(4, value[0]));
      EXPECT_GE(value[0], static_cast<float>(least[static_cast<size_t>(key)])) << key;
      EXPECT_LE(value[0], static_cast<float>(most[static_cast<size_t>(key)])) << key;
    }
    opened = Opened();
    ASSERT_OK(Open(&files, schema, 100, &opened, 1, {{"/tiers"}, false}));
  }
}

}  // namespace
}  // namespace dynemb

// A bounded table that evicts all the time, with a delta a minute, by a clock of the test's: no
// delta ever misses what happened, and memory stays flat. In full, as `make soak` runs it, an hour
// in which 10,000 rows leave in each second.
#include <algorithm>
#include <iostream>
#include <numeric>
#include <random>

#include "cc/core/snapshot/reader.h"
#include "cc/core/snapshot/writer.h"
#include "cc/core/table/host_table.h"
#include "cc/core/testing/caller.h"
#include "cc/core/testing/memory_file_system.h"
#include "cc/core/testing/snapshots.h"
#include "gtest/gtest.h"

namespace dynemb {
namespace {

TEST(EvictingDeltas, TheChainHoldsAndMemoryStaysFlat) {
  const int64_t minutes = std::min<int64_t>(60, 3 * SoakFactor());
  const int64_t per_second = std::min<int64_t>(10'000, 500 * SoakFactor());
  const int64_t max_rows = 90 * per_second;  // a row that is not written again stays for 90 s
  TableOptions options;
  options.max_rows = max_rows;
  options.track_changes = true;
  ASSERT_OK(EvictionPolicy::Parse("lru", &options.eviction));
  std::unique_ptr<Table> table;
  ASSERT_OK(MakeHostTable(MakeSchema(DType::kFloat32, 2, "", {MetaField::kLastWriteTime}), options,
                          &table));
  const Caller call(table.get(), HostTestMemory());
  std::mt19937_64 random(1);
  Key next = 0;
  const auto train = [&](int64_t second) {
    Keys keys(static_cast<size_t>(per_second));
    std::iota(keys.begin(), keys.end(), next);
    next += per_second;
    for (int64_t i = 0; i < per_second / 4; ++i) {  // of the last minute
      const int64_t back = static_cast<int64_t>(random() % static_cast<uint64_t>(60 * per_second));
      keys.push_back(std::max<Key>(0, next - 1 - back));
    }
    Floats values;
    for (const Key key : keys) values.insert(values.end(), {float(key % 1000), float(second)});
    ASSERT_OK(call.Upsert(keys, values, {second}));
  };

  TableToSave save;
  save.name = "t";
  save.shards = {table.get()};
  Manifest base;
  TableContent restored;
  int64_t memory_of_second_minute = 0, most_memory = 0;
  for (int64_t minute = 0; minute < minutes; ++minute) {
    SCOPED_TRACE(StrCat("minute ", minute));
    for (int64_t second = 60 * minute; second < 60 * (minute + 1); ++second) train(second);
    int64_t ended;
    MemoryFileSystem files;
    ASSERT_OK(BeginEpoch(OneThread(), save.shards, &ended));
    ASSERT_OK(SaveTables(OneThread(), &files, "/s", {save}, base.id, &base));
    save.since_epoch = ended;
    table->TrimChanges({ended});

    SnapshotContent changes;
    std::map<std::string, std::vector<Key>> erased;
    ASSERT_OK(Load(&files, "/s", &changes, &erased));
    for (const Key key : erased["t"]) restored.erase(key);
    for (const auto& [key, row] : changes["t"]) restored[key] = row;
    ASSERT_EQ(Difference(call.Export(1 << 14), restored), "");
    if (minute == 0) continue;
    EXPECT_GE(table->counters().evicted, per_second * 60 * (minute - 1)) << "it does not evict";
    const int64_t memory = table->memory_bytes();
    if (minute == 1) memory_of_second_minute = memory;
    most_memory = std::max(most_memory, memory);
    // A list of changes grows by half, and segments do not all have as many rows.
    EXPECT_LE(memory, memory_of_second_minute + memory_of_second_minute / 20);
  }
  std::cout << table->counters().evicted << " rows left in " << minutes
            << " minutes; bytes after 2: " << memory_of_second_minute
            << ", at most: " << most_memory << "\n";
}

}  // namespace
}  // namespace dynemb

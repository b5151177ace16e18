// What tests of limits over tiers have in common.
#ifndef TF_DYNEMB_CC_CORE_STORAGE_TESTING_LIMITED_H_
#define TF_DYNEMB_CC_CORE_STORAGE_TESTING_LIMITED_H_

#include <cstddef>
#include <cstdint>
#include <random>
#include <set>
#include <string>
#include <utility>

#include "cc/core/table/evicted_rows.h"
#include "cc/core/testing/caller.h"
#include "cc/core/testing/memory_file_system.h"
#include "gtest/gtest.h"

namespace dynemb {

// Keys and values of what has left since the last time, in an order of its own.
using Gone = std::multiset<std::pair<Key, std::string>>;
inline Gone TakeFrom(const Table& table) {
  int64_t dropped;
  const KeptRows rows = table.evicted()->Take(&dropped);
  EXPECT_EQ(dropped, 0);
  Gone gone;
  for (int64_t i = 0; i < rows.size(); ++i) {
    const auto value = rows.values.begin() + static_cast<std::ptrdiff_t>(i * rows.value_bytes());
    gone.emplace(rows.keys[static_cast<size_t>(i)],
                 std::string(value, value + static_cast<std::ptrdiff_t>(rows.value_bytes())));
  }
  return gone;
}

// Writes to a table of dim 2 that has at most `max_rows`, while an operation of its files fails,
// the nth from then on. After the error, rows that had to leave may have left; what is there is
// whole, what is counted adds up, and calls can be made again.
inline void WriteWhileFilesFail(Table* table, int64_t max_rows, TestMemory* memory,
                                MemoryFileSystem* files, int64_t nth) {
  const Caller call(table, memory);
  std::mt19937_64 random(4);
  int64_t now = 0;
  const auto write = [&](int calls, bool may_fail) {
    for (int i = 0; i < calls; ++i) {
      Keys keys(40);
      Floats values;
      for (Key& key : keys) {
        key = static_cast<Key>(random() % 500);
        values.insert(values.end(), 2, static_cast<float>(key));
      }
      const Status status = call.Upsert(keys, values, {++now});
      if (!may_fail) ASSERT_OK(status);
      ASSERT_LE(table->size(), max_rows);
    }
  };
  write(40, false);
  Fault fault;
  fault.code = Code::kInternal;
  files->Inject(nth, fault);
  write(30, true);
  files->Heal();
  write(40, false);
  const TableCounters counters = table->counters();
  EXPECT_EQ(counters.inserted - counters.erased - counters.evicted - counters.expired,
            table->size());
  for (const auto& [key, row] : call.Export()) {
    EXPECT_EQ(Numbers<float>(row.value), Floats(2, static_cast<float>(key)));
  }
}

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_CORE_STORAGE_TESTING_LIMITED_H_

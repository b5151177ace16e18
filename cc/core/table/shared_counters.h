// SharedCounters: the counters of a table, added to by its threads.
#ifndef TF_DYNEMB_CC_CORE_TABLE_SHARED_COUNTERS_H_
#define TF_DYNEMB_CC_CORE_TABLE_SHARED_COUNTERS_H_

#include <atomic>
#include <cstdint>

#include "cc/core/table/table.h"

namespace dynemb {

// TableCounters that any thread may add to.
class SharedCounters {
 public:
  void Add(int64_t TableCounters::* what, int64_t number) {
    if (number != 0) At(what)->fetch_add(number, std::memory_order_relaxed);
  }
  TableCounters Read() const {
    TableCounters read;
    TableCounters::ForEach([&](const char*, int64_t TableCounters::* what) {
      read.*what = const_cast<SharedCounters*>(this)->At(what)->load(std::memory_order_relaxed);
    });
    return read;
  }
  // Goes on from those of another table.
  void Start(const TableCounters& from) {
    TableCounters::ForEach(
        [&](const char*, int64_t TableCounters::* what) { *At(what) = from.*what; });
  }

 private:
  static_assert(sizeof(TableCounters) % sizeof(int64_t) == 0, "numbers alone");
  // The number with the same place as in TableCounters.
  std::atomic<int64_t>* At(int64_t TableCounters::* what) {
    static const TableCounters places{};
    return &numbers_[&(places.*what) - reinterpret_cast<const int64_t*>(&places)];
  }
  std::atomic<int64_t> numbers_[sizeof(TableCounters) / sizeof(int64_t)] = {};
};

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_CORE_TABLE_SHARED_COUNTERS_H_

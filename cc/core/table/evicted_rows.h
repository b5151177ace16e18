// EvictedRows: keys and values of rows that have left a table by its eviction policy, until
// somebody takes them. Those of all shards of a table. Thread-safe.
#ifndef TF_DYNEMB_CC_CORE_TABLE_EVICTED_ROWS_H_
#define TF_DYNEMB_CC_CORE_TABLE_EVICTED_ROWS_H_

#include <cstdint>
#include <deque>
#include <mutex>
#include <vector>

#include "cc/core/table/table.h"

namespace dynemb {

// Rows one after the other.
struct KeptRows {
  std::vector<Key> keys;
  std::vector<char> values;  // packed

  int64_t size() const { return static_cast<int64_t>(keys.size()); }
  int64_t value_bytes() const { return static_cast<int64_t>(values.size() / keys.size()); }
  void Reserve(int64_t rows, int64_t value_bytes) {
    keys.reserve(static_cast<size_t>(rows));
    values.reserve(static_cast<size_t>(rows * value_bytes));
  }
  void Add(Key key, const char* value, int64_t value_bytes) {
    keys.push_back(key);
    values.insert(values.end(), value, value + value_bytes);
  }
};

class EvictedRows {
 public:
  // Keeps so many rows; of more the oldest are dropped.
  explicit EvictedRows(int64_t most) : most_(most) {}

  int64_t most() const { return most_; }

  // Takes no time that grows with the rows that are kept. Rows for which there is no memory are
  // dropped.
  void Add(KeptRows rows);
  // Counts rows that could not be kept.
  void AddDropped(int64_t rows);

  // The rows that are kept, in the order of the calls that they left in, and how many have been
  // dropped since the last time. std::bad_alloc: all are kept on.
  KeptRows Take(int64_t* dropped);
  // What was taken, or was kept for the rows that these ones replace, comes before what is there.
  void PutBack(KeptRows rows, int64_t dropped);

 private:
  // Drops the oldest of more rows than are kept.
  void Trim();

  const int64_t most_;
  std::mutex mutex_;             // of what follows
  std::deque<KeptRows> chunks_;  // none is empty
  int64_t first_ = 0;            // in the first chunk
  int64_t rows_ = 0;
  int64_t dropped_ = 0;
};

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_CORE_TABLE_EVICTED_ROWS_H_

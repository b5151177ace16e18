// EvictedRows: keys and values of rows that have left a table by its eviction policy, until
// somebody takes them. Those of all shards of a table. Thread-safe.
#ifndef TF_DYNEMB_CC_CORE_TABLE_EVICTED_ROWS_H_
#define TF_DYNEMB_CC_CORE_TABLE_EVICTED_ROWS_H_

#include <cstdint>
#include <mutex>
#include <vector>

#include "cc/core/base/span.h"
#include "cc/core/table/table.h"

namespace dynemb {

// Rows one after the other.
struct KeptRows {
  std::vector<Key> keys;
  std::vector<char> values;  // (n, value_bytes)

  int64_t size() const { return static_cast<int64_t>(keys.size()); }
  void Add(Key key, const char* value, int64_t value_bytes) {
    keys.push_back(key);
    values.insert(values.end(), value, value + value_bytes);
  }
  void Add(const KeptRows& rows) {
    keys.insert(keys.end(), rows.keys.begin(), rows.keys.end());
    values.insert(values.end(), rows.values.begin(), rows.values.end());
  }
  void EraseFirst(int64_t rows, int64_t value_bytes) {
    keys.erase(keys.begin(), keys.begin() + rows);
    values.erase(values.begin(), values.begin() + rows * value_bytes);
  }
};

class EvictedRows {
 public:
  // Keeps so many rows; of more the oldest are dropped.
  EvictedRows(int64_t most, int64_t value_bytes) : most_(most), value_bytes_(value_bytes) {}

  int64_t value_bytes() const { return value_bytes_; }

  // Rows for which there is no memory are dropped.
  void Add(const KeptRows& rows);

  // All rows that are kept, in the order of the calls that they left in; and how many have been
  // dropped since the last time.
  KeptRows Take(int64_t* dropped);

 private:
  const int64_t most_, value_bytes_;
  std::mutex mutex_;  // of what follows
  KeptRows rows_;
  int64_t dropped_ = 0;
};

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_CORE_TABLE_EVICTED_ROWS_H_

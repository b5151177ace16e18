// DistinctKeys: the keys of a batch, each once, numbered in the order of their first appearance.
#ifndef TF_DYNEMB_CC_CORE_TABLE_DISTINCT_KEYS_H_
#define TF_DYNEMB_CC_CORE_TABLE_DISTINCT_KEYS_H_

#include <cstdint>
#include <vector>

#include "cc/core/base/span.h"
#include "cc/core/table/key_numbers.h"
#include "cc/core/table/table.h"

namespace dynemb {

class DistinctKeys {
 public:
  // In one thread. Several, which sort keys into parts first, took 0.6 to 0.8 of the time with 8
  // and 16 threads and 262,144 keys, and more time with fewer of either. Throw std::bad_alloc.
  explicit DistinctKeys(Span<const Key> keys) : DistinctKeys(Batch{keys}) {}
  explicit DistinctKeys(const Batch& batch);

  int64_t size() const { return static_cast<int64_t>(keys_.size()); }
  const std::vector<Key>& keys() const { return keys_; }
  // The number, which is a place in keys(), of the key at each position that takes part, and at the
  // j-th of them.
  const std::vector<int64_t>& numbers() const { return numbers_; }
  int64_t number(int64_t j) const { return numbers_[static_cast<size_t>(j)]; }
  // The number of a key, or -1.
  int64_t NumberOf(Key key) const { return table_.Find(key, keys_.data()); }

 private:
  // Calls key_at(j) for each position that takes part.
  template <typename KeyAt>
  void AddAll(const KeyAt& key_at);

  std::vector<Key> keys_;
  std::vector<int64_t> numbers_;
  KeyNumbers<int64_t> table_;
};

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_CORE_TABLE_DISTINCT_KEYS_H_

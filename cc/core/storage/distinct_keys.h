// DistinctKeys: the keys of a batch, each once, numbered in the order in which they appear.
#ifndef TF_DYNEMB_CC_CORE_STORAGE_DISTINCT_KEYS_H_
#define TF_DYNEMB_CC_CORE_STORAGE_DISTINCT_KEYS_H_

#include <cstdint>
#include <vector>

#include "cc/core/base/hash.h"
#include "cc/core/table/table.h"

namespace dynemb {

// How many positions of a batch take part, and which the j-th is.
inline int64_t PositionsOf(const Batch& batch) {
  return batch.select == nullptr ? batch.keys.size : *batch.select->count;
}
inline int64_t PositionOf(const Batch& batch, int64_t j) {
  return batch.select == nullptr ? j : batch.select->at[j];
}

class DistinctKeys {
 public:
  explicit DistinctKeys(const Batch& batch) : DistinctKeys(PositionsOf(batch)) {
    for (int64_t j = 0; j < PositionsOf(batch); ++j) Add(batch.keys[PositionOf(batch, j)]);
  }
  explicit DistinctKeys(Span<const Key> keys) : DistinctKeys(keys.size) {
    for (const Key key : keys) Add(key);
  }

  const std::vector<Key>& keys() const { return keys_; }
  int64_t size() const { return static_cast<int64_t>(keys_.size()); }
  // The number of the key at the j-th position that takes part.
  int64_t number(int64_t j) const { return numbers_[static_cast<size_t>(j)]; }
  // The number of a key, or -1.
  int64_t NumberOf(Key key) const { return table_[Slot(key)]; }

 private:
  explicit DistinctKeys(int64_t positions) {
    size_t slots = 16;
    while (slots < 2 * static_cast<size_t>(positions)) slots *= 2;
    table_.assign(slots, -1);
    numbers_.reserve(static_cast<size_t>(positions));
    keys_.reserve(static_cast<size_t>(positions));
  }
  // Where the key is, or would be.
  size_t Slot(Key key) const {
    size_t at = Mix64(static_cast<uint64_t>(key)) & (table_.size() - 1);
    while (table_[at] >= 0 && keys_[static_cast<size_t>(table_[at])] != key) {
      at = (at + 1) & (table_.size() - 1);
    }
    return at;
  }
  void Add(Key key) {
    int64_t& number = table_[Slot(key)];
    if (number < 0) {
      number = size();
      keys_.push_back(key);
    }
    numbers_.push_back(number);
  }

  std::vector<int64_t> table_;  // numbers, by hash
  std::vector<int64_t> numbers_;
  std::vector<Key> keys_;
};

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_CORE_STORAGE_DISTINCT_KEYS_H_

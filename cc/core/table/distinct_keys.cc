#include "cc/core/table/distinct_keys.h"

#include <algorithm>

namespace dynemb {
namespace {

constexpr int64_t kFetchedAhead = 64;

}  // namespace

DistinctKeys::DistinctKeys(const Batch& batch)
    : numbers_(static_cast<size_t>(batch.size())), table_(batch.size()) {
  keys_.reserve(numbers_.size());
  if (batch.select == nullptr) {
    AddAll([keys = batch.keys.data](int64_t j) { return keys[j]; });
  } else {
    AddAll([keys = batch.keys.data, at = batch.select->at.data](int64_t j) { return keys[at[j]]; });
  }
}

template <typename KeyAt>
void DistinctKeys::AddAll(const KeyAt& key_at) {
  const auto n = static_cast<int64_t>(numbers_.size());
  int64_t* const numbers = numbers_.data();
  for (int64_t begin = 0; begin < n; begin += kFetchedAhead) {
    const int64_t end = std::min(n, begin + kFetchedAhead);
    for (int64_t j = begin; j < end; ++j) table_.Prefetch(key_at(j));
    for (int64_t j = begin; j < end; ++j) {
      const Key key = key_at(j);
      numbers[j] = table_.Add(key, keys_.data(), size());
      if (numbers[j] == size()) keys_.push_back(key);
    }
  }
}

}  // namespace dynemb

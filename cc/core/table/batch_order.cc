#include "cc/core/table/batch_order.h"

#include <algorithm>
#include <new>
#include <utility>

#include "cc/core/base/sort_by_part.h"

namespace dynemb {
namespace {

uint64_t Hash(Key key) { return Mix64(static_cast<uint64_t>(key)); }

}  // namespace

BatchOrder::BatchOrder(const Context& context, const Batch& batch)
    : size_(batch.size()),
      keys_(new Key[size_]),
      positions_(new int64_t[size_]),
      ends_(new int64_t[size_]) {
  std::fill(distinct_, distinct_ + kSegments, -1);
  const Status sorted = SortByPart(
      context, size_, kSegments,
      [&](int64_t i) { return SegmentOf(Hash(batch.keys[batch.position(i)])); },
      [&](int64_t i, int64_t, int64_t at) {
        const int64_t from = batch.position(i);
        positions_[at] = from;
        keys_[at] = batch.keys[from];
      },
      begin_);
  if (!sorted.ok()) throw std::bad_alloc();
}

int64_t BatchOrder::Group(int64_t segment, Scratch* scratch) {
  if (distinct_[segment] >= 0) return distinct_[segment];
  const int64_t begin = begin_[segment], n = size(segment);
  Key* const keys = &keys_[begin];
  int64_t* const positions = &positions_[begin];
  int64_t* const ends = &ends_[begin];
  std::vector<int64_t>& number = scratch->number;  // of each entry's key
  number.resize(n);
  scratch->numbers.Reset(n);
  int64_t distinct = 0;
  for (int64_t i = 0; i < n; ++i) {
    const Key key = keys[i];
    number[i] = scratch->numbers.Add(key, keys, distinct);
    if (number[i] == distinct) {
      keys[distinct] = key;  // distinct <= i: what is overwritten has been read
      ends[distinct++] = 0;
    }
    ++ends[number[i]];
  }
  // From counts to begins, which become the ends as positions are put there.
  int64_t at = begin;
  for (int64_t i = 0; i < distinct; ++i) at += std::exchange(ends[i], at);
  if (distinct == n) {
    for (int64_t i = 0; i < n; ++i) ++ends[i];
  } else {
    scratch->positions.assign(positions, positions + n);
    for (int64_t i = 0; i < n; ++i) positions_[ends[number[i]]++] = scratch->positions[i];
  }
  return distinct_[segment] = distinct;
}

}  // namespace dynemb

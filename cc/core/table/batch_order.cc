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
    : size_(batch.select == nullptr ? batch.keys.size : *batch.select->count),
      keys_(new Key[size_]),
      positions_(new int64_t[size_]),
      ends_(new int64_t[size_]) {
  std::fill(distinct_, distinct_ + kSegments, -1);
  const auto position = [&](int64_t i) {
    return batch.select == nullptr ? i : batch.select->at[i];
  };
  const Status sorted = SortByPart(
      context, size_, kSegments,
      [&](int64_t i) { return SegmentOf(Hash(batch.keys[position(i)])); },
      [&](int64_t i, int64_t, int64_t at) {
        const int64_t from = position(i);
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
  // Open addressing, at most half full: a cell holds 1 + the number of a distinct key.
  int64_t cells = 2;
  while (cells < 2 * n) cells *= 2;
  std::vector<int64_t>& table = scratch->table;
  table.assign(cells, 0);
  int64_t distinct = 0;
  for (int64_t i = 0; i < n; ++i) {
    const Key key = keys[i];
    uint64_t at = Hash(key) & (cells - 1);
    while (table[at] != 0 && keys[table[at] - 1] != key) at = (at + 1) & (cells - 1);
    if (table[at] == 0) {
      keys[distinct] = key;  // distinct <= i: what is overwritten has been read
      ends[distinct] = 0;
      table[at] = ++distinct;
    }
    number[i] = table[at] - 1;
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

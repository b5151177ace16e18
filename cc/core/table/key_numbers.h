// KeyNumbers: a hash table that numbers the keys of an array, which the caller has.
#ifndef TF_DYNEMB_CC_CORE_TABLE_KEY_NUMBERS_H_
#define TF_DYNEMB_CC_CORE_TABLE_KEY_NUMBERS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "cc/core/base/hash.h"
#include "cc/core/table/table.h"

namespace dynemb {

// A number is a key's place in the array `keys` of a call, which has the keys of all numbers that
// Add has given. `Number` is an integer type that holds 1 + the highest of them.
template <typename Number>
class KeyNumbers {
 public:
  static constexpr Number kNone = static_cast<Number>(-1);

  explicit KeyNumbers(int64_t most_keys = 0) { Reset(most_keys); }

  // Forgets all keys, and has room for so many; memory stays. Throws std::bad_alloc.
  void Reset(int64_t most_keys) {
    size_t cells = 2;
    while (cells < 2 * static_cast<size_t>(most_keys)) cells *= 2;
    cells_.assign(cells, 0);
  }

  // The key's number; `next` if it has had none.
  Number Add(Key key, const Key* keys, Number next) {
    Number& cell = cells_[CellOf(key, keys)];
    if (cell == 0) cell = next + 1;
    return cell - 1;
  }

  // The key's number, or kNone.
  Number Find(Key key, const Key* keys) const { return cells_[CellOf(key, keys)] - 1; }

  void Prefetch(Key key) const { __builtin_prefetch(&cells_[FirstCellOf(key)]); }

 private:
  size_t FirstCellOf(Key key) const {
    return Mix64(static_cast<uint64_t>(key)) & (cells_.size() - 1);
  }
  // The cell that has the key, or the empty one where it would be.
  size_t CellOf(Key key, const Key* keys) const {
    size_t at = FirstCellOf(key);
    while (cells_[at] != 0 && keys[cells_[at] - 1] != key) at = (at + 1) & (cells_.size() - 1);
    return at;
  }

  // Open addressing, at most half full: 1 + a number, or 0.
  std::vector<Number> cells_;
};

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_CORE_TABLE_KEY_NUMBERS_H_

// Candidates of an eviction, of tables whose rows lie in several places: see Evictor for how those
// of a table in one place are chosen.
#ifndef TF_DYNEMB_CC_CORE_TABLE_EVICTION_CANDIDATES_H_
#define TF_DYNEMB_CC_CORE_TABLE_EVICTION_CANDIDATES_H_

#include <algorithm>
#include <cstdint>
#include <vector>

#include "cc/core/base/hash.h"
#include "cc/core/table/evictor.h"
#include "cc/core/table/table.h"

namespace dynemb {

struct EvictionCandidate {
  EvictionCandidate(int64_t score, Key of) : order{score, TieOf(of)}, key(of) {}
  bool operator<(const EvictionCandidate& o) const { return order < o.order; }

  RowOrder order;
  Key key;

 private:
  // What ties are broken by, as in Evictor.
  static uint64_t TieOf(Key key) { return TieOfHash(Mix64(static_cast<uint64_t>(key))); }
};

// The keys of the lowest `most` candidates, and of no others. One that has been met twice is there
// once.
inline std::vector<Key> LowestKeys(int64_t most, std::vector<EvictionCandidate>* candidates) {
  const auto end = candidates->begin() + std::min(most, static_cast<int64_t>(candidates->size()));
  std::nth_element(candidates->begin(), end, candidates->end());
  std::sort(candidates->begin(), end);
  std::vector<Key> keys;
  for (auto candidate = candidates->begin(); candidate != end; ++candidate) {
    if (keys.empty() || keys.back() != candidate->key) keys.push_back(candidate->key);
  }
  return keys;
}

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_CORE_TABLE_EVICTION_CANDIDATES_H_

// GivenScores: the scores that lookups have given to keys, from their gradients until the update
// that writes the rows. Those of all shards of a table. Thread-safe.
#ifndef TF_DYNEMB_CC_CORE_POLICY_GIVEN_SCORES_H_
#define TF_DYNEMB_CC_CORE_POLICY_GIVEN_SCORES_H_

#include <cstdint>
#include <mutex>
#include <vector>

#include "cc/core/base/span.h"
#include "cc/core/table/table.h"

namespace dynemb {

class GivenScores {
 public:
  // Keys that are never written, since nobody applies their gradients, are not kept without end.
  static constexpr int64_t kMaxKeys = int64_t{1} << 24;

  // Of several scores of one key, which may come in any order: the highest counts, or their sum.
  enum class Several { kHighest, kSum };
  // Notes a score of each key; scores that are summed are not negative. Where there would be more
  // than `most` keys, those before are forgotten.
  void Add(Span<const Key> keys, Span<const int64_t> scores, Several several = Several::kHighest,
           int64_t most = kMaxKeys);
  void Clear();

  // Writes the score of each key for which there is one, and forgets it; keys may repeat. The
  // positions of keys without one come into `without`. False: there is none of any key at all.
  bool Take(Span<const Key> keys, int64_t* scores, std::vector<int64_t>* without);

  // Hands out all keys, each once, and their scores, and forgets them.
  void TakeAll(std::vector<Key>* keys, std::vector<int64_t>* scores);

 private:
  static constexpr int32_t kNone = -1;
  struct Entry {
    Key key;
    int64_t score;
    int64_t taken;  // the number of the call that took it; 0: none has
  };

  // The place of a key among the entries, or the cell that it would have. Entries are in the order
  // in which keys came, which is often the one in which they are taken: so the one after the last
  // that was found is looked at first.
  int32_t Find(Key key, size_t* cell);
  // Cells for so many entries, of those that were not taken.
  void Rebuild(size_t entries);
  void Forget();

  std::mutex mutex_;  // of what follows
  std::vector<Entry> entries_;
  std::vector<int32_t> cells_;  // places of entries, by open addressing, at most half full
  int64_t left_ = 0;            // entries that were not taken
  int64_t calls_ = 0;           // that have taken some
  int32_t next_ = 0;            // after the last entry that was found
};

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_CORE_POLICY_GIVEN_SCORES_H_

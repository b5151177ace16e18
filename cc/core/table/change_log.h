// ChangeLog: the keys of one segment that have changed, epoch by epoch.
//
// In each epoch a key is listed once: whether a key with a row is listed already its mark says
// (segment.h). The exceptions are a key that is erased and comes back, again and again, in one
// epoch, for its new row does not know of the old one's mark; and tables that have no marks
// (tier_changes.h). Repetitions are removed after the log has been read, and when it has become
// long.
//
// Epochs between which nobody asks for changes (Trim) are merged, as soon as the later ones have
// half as many keys as the one before them: so a key is listed about twice at most for each
// position, however many epochs others end meanwhile, and is moved a number of times that grows
// with the logarithm of theirs.
//
// The log is no longer than twice the rows that the segment had, and kLeastKeys: a consumer
// that has not asked for so long copies all rows in less time. Then the oldest epochs are
// forgotten.
#ifndef TF_DYNEMB_CC_CORE_TABLE_CHANGE_LOG_H_
#define TF_DYNEMB_CC_CORE_TABLE_CHANGE_LOG_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "cc/core/table/table.h"

namespace dynemb {

// Not thread-safe; the table holds the segment's lock. Without memory it forgets; AppendSince alone
// throws.
class ChangeLog {
 public:
  static constexpr int64_t kLeastKeys = 4096;

  // Whether changes are noted, which the first BeginEpoch starts.
  bool tracking() const { return epoch_ > 0; }

  // `rows`: how many the segment has. All marks must have been taken away.
  void BeginEpoch(int64_t epoch, int64_t rows);

  // Lists a key that is not listed, or whose mark is lost. `rows`: how many the segment has.
  void Add(Key key, int64_t rows) {
    if (static_cast<int64_t>(current_.size()) == room_) MakeRoom(rows);
    if (room_ > 0) current_.push_back(key);
  }

  // From here on nothing is known of the current epoch and those before it.
  void Forget();
  // Changes will be asked for since these epochs, ascending, or later ones than the last of them:
  // forgets the epochs up to the first, and merges others. None: nothing.
  void Trim(const std::vector<int64_t>& positions);

  // Appends the keys that have changed in later epochs than `since`; some may be repeated. False:
  // they are not known, or were merged with those of earlier epochs.
  bool AppendSince(int64_t since, std::vector<Key>* keys) const;
  // Sorts keys[begin], ... and leaves each once: for what has been appended, without the lock.
  static void RemoveRepetitions(size_t begin, std::vector<Key>* keys);

  int64_t memory_bytes() const;

 private:
  struct Epochs {
    int64_t first, last;
    std::vector<Key> keys;
    bool sorted;  // and each key once
  };

  // For one more key in the current epoch, if need be by forgetting. room_ == 0: it is not listed.
  void MakeRoom(int64_t rows);
  void ForgetThrough(int64_t epoch);
  void Sort(Epochs* epochs);
  // Puts the keys of `after`, which is over then, into `before`. False: there is no memory.
  bool Merge(Epochs* before, Epochs* after);

  int64_t epoch_ = 0;
  int64_t known_since_ = 0;   // later epochs than this one are known
  std::vector<Epochs> past_;  // ascending
  int64_t past_keys_ = 0;
  std::vector<Key> current_;  // keys of the current epoch
  int64_t room_ = 0;          // until when keys are appended without a further look
  int64_t most_rows_ = 0;     // that the segment had when one of the epochs here began
};

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_CORE_TABLE_CHANGE_LOG_H_

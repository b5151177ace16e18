// Lineage: which snapshots the rows of a table contain, so that a delta of one of them can be
// saved, or loaded into the table.
//
// It has at most kMost snapshots, for any number of chains of deltas side by side. Once a delta of
// a base has been saved, the snapshot that the base itself was a delta of is forgotten: nobody asks
// for deltas of it any more. Beyond kMost, the least recently used are forgotten; a snapshot is
// used when it is saved, and when it is the base of a delta.
#ifndef TF_DYNEMB_CC_CORE_SNAPSHOT_LINEAGE_H_
#define TF_DYNEMB_CC_CORE_SNAPSHOT_LINEAGE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace dynemb {

// Not thread-safe.
class Lineage {
 public:
  static constexpr size_t kMost = 16;
  static constexpr int64_t kNotTracked = -1;

  // The rows are those of a snapshot, or of several in their order, and no changes are known.
  void Loaded(const std::vector<uint64_t>& snapshots);
  // A snapshot was saved, or loaded, with the changes since the end of `epoch` tracked. `base`: the
  // one that it is a delta of, or 0.
  void Tracked(uint64_t snapshot, uint64_t base, int64_t epoch);

  // The epoch that a snapshot ended. False: the changes since it are not known.
  bool EpochOf(uint64_t snapshot, int64_t* epoch) const;
  // The epochs, ascending, that those of them ended whose changes are known, and those that are
  // held: since these changes may be asked for (ChangeTracker::TrimChanges).
  std::vector<int64_t> positions() const;

  // For a save under way, which ended `epoch` and is Tracked() when all is written: later changes
  // are of use as long as the result lives.
  std::shared_ptr<const int64_t> Hold(int64_t epoch);

  // Deltas of these can be loaded; the latest is the last.
  std::vector<uint64_t> snapshots() const;

 private:
  struct Entry {
    uint64_t snapshot;
    uint64_t base;  // of which it is a delta, or 0
    int64_t epoch;
  };
  std::vector<Entry>::iterator Find(uint64_t snapshot);

  std::vector<Entry> entries_;  // by their last use
  std::vector<std::weak_ptr<const int64_t>> held_;
};

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_CORE_SNAPSHOT_LINEAGE_H_

// TierChanges: which keys of a tiered table have changed, wherever their rows are: a ChangeLog for
// each of 64 shares of the hashes, which are the parts of a host table.
//
// The tiers' own moves are no changes, so that the host table above cannot keep this. A call notes
// its changes before it gives back the table's lock, which BeginEpoch takes alone: so an epoch that
// has ended has all of its changes.
#ifndef TF_DYNEMB_CC_CORE_STORAGE_TIER_CHANGES_H_
#define TF_DYNEMB_CC_CORE_STORAGE_TIER_CHANGES_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "cc/core/base/hash.h"
#include "cc/core/base/no_memory.h"
#include "cc/core/storage/disk_index.h"
#include "cc/core/table/change_log.h"
#include "cc/core/table/distinct_keys.h"
#include "cc/core/table/table.h"

namespace dynemb {

// Thread-safe.
class TierChanges {
 public:
  static constexpr int kParts = DiskIndex::kParts;
  static int FirstPart(const TablePart& part) {
    return static_cast<int>(kParts * part.part / part.parts);
  }
  static int EndPart(const TablePart& part) {
    return static_cast<int>(kParts * (part.part + 1) / part.parts);
  }

  int64_t epoch() const { return epoch_; }
  bool tracking() const { return epoch_ > 0; }

  // The table's lock is held alone. `rows`: how many the table has.
  void BeginEpoch(int64_t epoch, int64_t rows) {
    for (Part& part : parts_) part.log.BeginEpoch(epoch, rows / kParts);
    epoch_ = epoch;
  }
  void Forget() {
    for (Part& part : parts_) {
      const std::lock_guard<std::mutex> lock(part.mutex);
      part.log.Forget();
    }
  }

  // Notes the keys of a call, of which changed(position) is true. Where there is no memory for that
  // the changes of this epoch are not known.
  template <typename Changed>
  void Note(const Batch& batch, int64_t rows, const Changed& changed) {
    if (!tracking()) return;
    if (!OrNoMemory([&] { NoteAll(batch, rows, changed); }).ok()) Forget();
  }

  // False: they are not known.
  bool Since(int64_t since, const TablePart& part, std::vector<Key>* keys) const {
    for (int p = FirstPart(part); p < EndPart(part); ++p) {
      const size_t begin = keys->size();
      {
        const std::lock_guard<std::mutex> lock(parts_[p].mutex);
        if (!parts_[p].log.AppendSince(since, keys)) return false;
      }
      ChangeLog::RemoveRepetitions(begin, keys);
    }
    return true;
  }
  void Trim(const std::vector<int64_t>& positions) {
    for (Part& part : parts_) {
      const std::lock_guard<std::mutex> lock(part.mutex);
      part.log.Trim(positions);
    }
  }

  int64_t memory_bytes() const {
    int64_t bytes = 0;
    for (const Part& part : parts_) {
      const std::lock_guard<std::mutex> lock(part.mutex);
      bytes += part.log.memory_bytes();
    }
    return bytes;
  }

 private:
  struct Part {
    mutable std::mutex mutex;
    ChangeLog log;
  };
  template <typename Changed>
  void NoteAll(const Batch& batch, int64_t rows, const Changed& changed) {
    const int64_t n = batch.size();
    int64_t begin[kParts + 1] = {};
    std::vector<Key> keys;
    keys.reserve(static_cast<size_t>(n));
    for (int64_t j = 0; j < n; ++j) {
      const int64_t position = batch.position(j);
      if (!changed(position)) continue;
      keys.push_back(batch.keys[position]);
      ++begin[PartOf(keys.back()) + 1];
    }
    for (int p = 0; p < kParts; ++p) begin[p + 1] += begin[p];
    std::vector<Key> sorted(keys.size());
    int64_t next[kParts];
    for (int p = 0; p < kParts; ++p) next[p] = begin[p];
    for (const Key key : keys) sorted[static_cast<size_t>(next[PartOf(key)]++)] = key;
    for (int p = 0; p < kParts; ++p) {
      if (begin[p] == begin[p + 1]) continue;
      const std::lock_guard<std::mutex> lock(parts_[p].mutex);
      for (int64_t i = begin[p]; i < begin[p + 1]; ++i) {
        parts_[p].log.Add(sorted[static_cast<size_t>(i)], rows / kParts);
      }
    }
  }

  static int PartOf(Key key) { return DiskIndex::PartOf(DiskHash(key)); }

  Part parts_[kParts];
  std::atomic<int64_t> epoch_{0};
};

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_CORE_STORAGE_TIER_CHANGES_H_

// EraseLog: which keys a table erased in which version, for deltas; bounded.
#ifndef TF_DYNEMB_CC_CORE_TABLE_ERASE_LOG_H_
#define TF_DYNEMB_CC_CORE_TABLE_ERASE_LOG_H_

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <utility>
#include <vector>

#include "cc/core/base/status.h"
#include "cc/core/table/table.h"

namespace dynemb {

// In parts, each guarded by a lock of the table's: Add and AppendSince want that of their part. The
// other calls want that nothing else runs, but for Lose, which wants nothing.
class EraseLog {
 public:
  explicit EraseLog(int parts) : parts_(static_cast<size_t>(parts)) {}

  // Notes that a key was erased in a version. Once the log is full, nothing more of this version is
  // worth noting.
  void Add(int part, Key key, int64_t version) {
    if (version <= lost_through_) return;
    if (count_.fetch_add(1) >= Table::kErasedLimit) {
      Lose(version);
    } else {
      parts_[static_cast<size_t>(part)].push_back({key, version});
    }
  }

  // From here on nothing is known of this version and those before.
  void Lose(int64_t version) { lost_through_ = version; }

  // Drops what is of no use any more.
  void Compact() {
    int64_t count = 0;
    for (auto& part : parts_) {
      part.erase(std::remove_if(part.begin(), part.end(),
                                [&](const auto& entry) { return entry.second <= lost_through_; }),
                 part.end());
      count += static_cast<int64_t>(part.size());
    }
    count_ = count;
  }

  void AppendSince(int part, int64_t since, std::vector<Key>* keys) const {
    for (const auto& [key, version] : parts_[static_cast<size_t>(part)]) {
      if (version > since) keys->push_back(key);
    }
  }
  // Is everything known that was erased in later versions? Ask after the last AppendSince.
  Status CheckKnown(int64_t since) const {
    if (since >= lost_through_) return Status();
    return FailedPrecondition("keys erased since version ", since,
                              ": they are not known; the table began to follow changes later, was "
                              "cleared, or more than ",
                              Table::kErasedLimit, " keys were erased; save a full snapshot");
  }

 private:
  std::vector<std::vector<std::pair<Key, int64_t>>> parts_;
  std::atomic<int64_t> lost_through_{0};
  std::atomic<int64_t> count_{0};
};

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_CORE_TABLE_ERASE_LOG_H_

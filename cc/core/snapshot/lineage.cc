#include "cc/core/snapshot/lineage.h"

#include <algorithm>

namespace dynemb {

std::vector<Lineage::Entry>::iterator Lineage::Find(uint64_t snapshot) {
  return std::find_if(entries_.begin(), entries_.end(),
                      [snapshot](const Entry& entry) { return entry.snapshot == snapshot; });
}

void Lineage::Loaded(const std::vector<uint64_t>& snapshots) {
  entries_.clear();
  const size_t skipped = snapshots.size() > kMost ? snapshots.size() - kMost : 0;
  for (size_t i = skipped; i < snapshots.size(); ++i) {
    entries_.push_back({snapshots[i], 0, kNotTracked});
  }
}

void Lineage::Tracked(uint64_t snapshot, uint64_t base, int64_t epoch) {
  if (const auto of = Find(base); base != 0 && of != entries_.end()) {
    const uint64_t base_of_base = of->base;
    std::rotate(of, of + 1, entries_.end());
    const auto before = Find(base_of_base);
    if (base_of_base != 0 && before != entries_.end()) entries_.erase(before);
  }
  if (const auto found = Find(snapshot); found != entries_.end()) entries_.erase(found);
  if (entries_.size() == kMost) entries_.erase(entries_.begin());
  entries_.push_back({snapshot, base, epoch});
}

bool Lineage::EpochOf(uint64_t snapshot, int64_t* epoch) const {
  for (const Entry& entry : entries_) {
    if (entry.snapshot != snapshot || entry.epoch == kNotTracked) continue;
    *epoch = entry.epoch;
    return true;
  }
  return false;
}

std::vector<int64_t> Lineage::positions() const {
  std::vector<int64_t> epochs;
  for (const Entry& entry : entries_) {
    if (entry.epoch != kNotTracked) epochs.push_back(entry.epoch);
  }
  for (const auto& held : held_) {
    if (const auto epoch = held.lock()) epochs.push_back(*epoch);
  }
  std::sort(epochs.begin(), epochs.end());
  return epochs;
}

std::shared_ptr<const int64_t> Lineage::Hold(int64_t epoch) {
  held_.erase(
      std::remove_if(held_.begin(), held_.end(), [](const auto& held) { return held.expired(); }),
      held_.end());
  auto hold = std::make_shared<const int64_t>(epoch);
  held_.push_back(hold);
  return hold;
}

std::vector<uint64_t> Lineage::snapshots() const {
  std::vector<uint64_t> ids;
  for (const Entry& entry : entries_) ids.push_back(entry.snapshot);
  return ids;
}

}  // namespace dynemb

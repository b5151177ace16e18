// How rows of tiers leave by the eviction policy: which are chosen, and that they go from both
// tiers.
#include <algorithm>
#include <cmath>
#include <iterator>
#include <set>
#include <utility>
#include <vector>

#include "cc/core/base/hash.h"
#include "cc/core/base/no_memory.h"
#include "cc/core/storage/tiers.h"
#include "cc/core/table/evictor.h"

namespace dynemb {
namespace {

constexpr int64_t kEvictedAtOnce = 64 << 10;  // rows that are chosen together

}  // namespace

Status Tiers::RemoveRows(Span<const Key> keys, int64_t TableCounters::* reason, int64_t* removed) {
  *removed = 0;
  const int64_t at_once = std::max<int64_t>(1, kReadBytes / layout_.row_bytes);
  for (int64_t begin = 0; begin < keys.size; begin += at_once) {
    const int64_t end = std::min(keys.size, begin + at_once);
    // Of more rows than are kept the first would be dropped.
    const bool keeps = evicted() != nullptr && end > keys.size - evicted()->most();
    // A row above that has expired is not seen there. Its copy tells, if it has one.
    std::vector<Key> expired, others;
    const Span<const Key> these = {keys.data + begin, end - begin};
    below_->ForEachHash(these, [&](int64_t i, uint64_t hash) {
      const bool is_over = below_->FindAny(hash) != kNowhere && below_->Find(hash) == kNowhere;
      (is_over ? expired : others).push_back(these[i]);
    });
    DYNEMB_RETURN_IF_ERROR(RemoveAlike(expired, true, keeps, reason, removed));
    DYNEMB_RETURN_IF_ERROR(RemoveAlike(others, false, keeps, reason, removed));
  }
  return Status();
}

Status Tiers::RemoveAlike(const std::vector<Key>& keys, bool expired_below, bool keeps,
                          int64_t TableCounters::* reason, int64_t* removed) {
  if (keys.empty()) return Status();
  gone_.insert(gone_.end(), keys.begin(), keys.end());
  std::vector<Outcome> outcomes(keys.size(), Outcome::kFull);
  Batch batch;
  batch.keys = keys;
  Report report;
  report.outcomes = outcomes;
  // Values of rows that are seen above or are below. The others the table above gives away itself.
  KeptRows values;
  if (keeps && !expired_below) values = ReadToKeep(keys);
  static_cast<void>(KeepExpiredAbove());
  const int64_t before = above_->counters().expired;
  const Status erased = above_->Erase(Threads(), batch, report);
  const int64_t unseen = above_->counters().expired - before;  // rows above that have expired
  std::set<Key> given;
  if (keeps && expired_below && KeepExpiredAbove(&given).ok()) {
    // Without memory, or the disk, rows leave without being kept.
    static_cast<void>(OrNoMemory([&] {
      std::vector<Key> others;
      std::copy_if(keys.begin(), keys.end(), std::back_inserter(others),
                   [&](Key key) { return given.count(key) == 0; });
      values = ReadToKeep(others);
    }));
  }
  int64_t found = 0, only_below = 0, copies = 0;
  below_->ForEachHash(keys, [&](int64_t i, uint64_t hash) {
    const Outcome outcome = outcomes[static_cast<size_t>(i)];
    if (outcome == Outcome::kFull) return;  // it is still there
    found += outcome == Outcome::kFound;
    if (below_->Remove(hash)) ++(outcome == Outcome::kFound ? copies : only_below);
  });
  if (expired_below) {  // each row above has its copy
    only_below -= unseen;
    copies += unseen;
  }
  copies_ -= copies;
  CountWritten(found, &TableCounters::erased);
  own_writes_.expired += unseen;
  own_writes_.*reason -= found + unseen + only_below;
  *removed += found + unseen + only_below;
  if (evicted() != nullptr) {
    if (!erased.ok()) values = KeptRows();  // some of them are still there
    evicted()->AddDropped(found + only_below - values.size());
    evicted()->Add(std::move(values));
  }
  return erased;
}

Status Tiers::KeepExpiredAbove(std::set<Key>* keys) {
  if (expired_above_ == nullptr) return Status();
  return OrNoMemory([&] {
    int64_t dropped;
    KeptRows rows = expired_above_->Take(&dropped);  // or they wait for the next time
    const Status known = OrNoMemory([&] {
      if (keys != nullptr) keys->insert(rows.keys.begin(), rows.keys.end());
    });
    evicted()->AddDropped(dropped);
    evicted()->Add(std::move(rows));
    return known;
  });
}

KeptRows Tiers::ReadToKeep(const std::vector<Key>& keys) {
  const int64_t n = static_cast<int64_t>(keys.size()), row_bytes = layout_.row_bytes;
  KeptRows kept;
  // Those of an error are not kept.
  static_cast<void>(OrNoMemory([&] {
    std::vector<char> rows(static_cast<size_t>(n * row_bytes));
    std::vector<Outcome> outcomes(keys.size(), Outcome::kMissing);
    Batch batch;
    batch.keys = keys;
    Report report;
    report.outcomes = outcomes;
    DYNEMB_RETURN_IF_ERROR(above_->ReadRows(Threads(), batch, PartsOf(rows.data(), n), report));
    const int64_t found = std::count(outcomes.begin(), outcomes.end(), Outcome::kFound);
    CountRead(found, n - found);
    std::vector<std::pair<Location, Key>> below;
    kept.Reserve(n, layout_.value_bytes);
    for (size_t i = 0; i < keys.size(); ++i) {
      if (outcomes[i] == Outcome::kFound) {
        kept.Add(keys[i], &rows[i * static_cast<size_t>(row_bytes)], layout_.value_bytes);
      } else if (const Location at = below_->FindAny(DiskHash(keys[i])); at != kNowhere) {
        below.emplace_back(at, keys[i]);
      }
    }
    std::sort(below.begin(), below.end());
    std::vector<Location> locations;
    for (const auto& [location, key] : below) locations.push_back(location);
    DYNEMB_RETURN_IF_ERROR(below_->Read(locations, rows.data()));
    for (size_t i = 0; i < below.size(); ++i) {
      kept.Add(below[i].second, &rows[i * static_cast<size_t>(row_bytes)], layout_.value_bytes);
    }
    return Status();
  }));
  return kept;
}

Status Tiers::GatherAbove(int64_t wanted, int64_t most_score, std::vector<Cursor>* hands,
                          std::vector<EvictionCandidate>* candidates) {
  if (wanted <= 0) return Status();
  const bool all = wanted >= rows_above();
  const int64_t at_once = all ? kScanKeys : (wanted + kHands - 1) / kHands;
  std::vector<Key> keys(static_cast<size_t>(at_once));
  const int64_t value_bytes = scores_->reads_values() ? layout_.value_bytes : 0;
  std::vector<char> values(static_cast<size_t>(at_once * value_bytes));
  std::vector<char> meta(static_cast<size_t>(at_once * layout_.meta_bytes));
  RowParts out;
  out.keys = keys;
  if (value_bytes > 0) out.values = Rows(values.data(), at_once, value_bytes);
  out.meta = Rows(meta.data(), at_once, layout_.meta_bytes);
  for (int64_t part = 0; part < kHands; ++part) {
    Cursor& hand = (*hands)[static_cast<size_t>(part)];
    if (all || hand.done) hand = Hand(part);
    do {
      int64_t count = 0;
      DYNEMB_RETURN_IF_ERROR(above_->Export(OneThread(), &hand, out, &count));
      for (int64_t i = 0; i < count; ++i) {
        const Key key = keys[static_cast<size_t>(i)];
        const char* const value = value_bytes > 0 ? out.values[i] : nullptr;
        const int64_t score = scores_->Score(value, out.meta[i]);
        if (score <= most_score) candidates->emplace_back(score, key);
      }
    } while (all && !hand.done);
  }
  return Status();
}

void Tiers::GatherBelow(int64_t wanted, int64_t most_score, uint64_t* hand,
                        std::vector<EvictionCandidate>* candidates) {
  if (wanted <= 0) return;
  constexpr uint64_t kHashes = uint64_t{1} << (64 - DiskIndex::kPartBits);  // of a part
  // What the hand passes over in each part, which may begin anew.
  uint64_t size = kHashes;
  if (wanted < below_->size()) {
    size = static_cast<uint64_t>(static_cast<double>(kHashes) * static_cast<double>(wanted) /
                                 static_cast<double>(below_->size()));
  }
  const uint64_t begin = *hand, end = begin + size;
  *hand = end % kHashes;
  for (int part = 0; part < DiskIndex::kParts; ++part) {
    const uint64_t first = static_cast<uint64_t>(part) * kHashes;
    const auto gather = [&](uint64_t from, uint64_t to) {
      if (from == to) return;
      below_->index().ForEach(part, first + from, [&](const DiskIndex::Entry& entry) {
        if (entry.hash - first >= to) return false;
        const int64_t score = below_->Score(entry);
        if (score > most_score) return true;
        const Key key = KeyOfDiskHash(entry.hash);
        candidates->emplace_back(score, key);
        return true;
      });
    };
    gather(begin, std::min(end, kHashes));
    gather(0, end > kHashes ? end - kHashes : 0);
  }
}

Status Tiers::Gather(int64_t wanted, int64_t most_score, std::vector<Cursor>* hands, uint64_t* hand,
                     std::vector<EvictionCandidate>* candidates) {
  candidates->clear();
  const int64_t above = rows_above(), below = below_->size();
  const double share = std::min(1.0, static_cast<double>(wanted) / static_cast<double>(size()));
  const auto of = [&](int64_t rows) {
    return static_cast<int64_t>(std::ceil(share * static_cast<double>(rows)));
  };
  DYNEMB_RETURN_IF_ERROR(GatherAbove(of(above), most_score, hands, candidates));
  GatherBelow(of(below), most_score, hand, candidates);
  return Status();
}

Status Tiers::Evict(int64_t wanted) {
  std::vector<EvictionCandidate> candidates;
  int64_t evicted = 0, removed = 1;
  Status status;
  // Again where the hands met fewer rows, or some twice.
  for (int64_t passed = 0; status.ok() && (removed > 0 || passed <= 2 * size());) {
    const int64_t left = std::min({wanted - evicted, size(), kEvictedAtOnce});
    if (left <= 0) break;
    const int64_t some = std::max(Evictor::kUnitRows, left * Evictor::kCandidates);
    passed += some;
    status = Gather(some, INT64_MAX, &evicting_, &evicting_below_, &candidates);
    if (!status.ok()) break;
    status = RemoveRows(LowestKeys(left, &candidates), &TableCounters::evicted, &removed);
    evicted += removed;
  }
  return status;
}

Status Tiers::RemoveExpired(Span<const Key> keys, std::vector<Outcome>* above) {
  DYNEMB_RETURN_IF_ERROR(FindAbove(keys, above));
  if (!options_.eviction.expires()) return Status();
  std::vector<Key> expired;  // or without a row, as it seems above
  below_->ForEachHash(keys, [&](int64_t i, uint64_t hash) {
    if ((*above)[static_cast<size_t>(i)] == Outcome::kFound) return;
    if (below_->Find(hash) == kNowhere) expired.push_back(keys[i]);
  });
  int64_t removed;
  return RemoveRows(expired, &TableCounters::expired, &removed);
}

Status Tiers::SweepExpired(int64_t rows) {
  if (size() == 0) return Status();
  std::vector<EvictionCandidate> candidates;
  DYNEMB_RETURN_IF_ERROR(Gather(rows, INT64_MIN, &sweeping_, &sweeping_below_, &candidates));
  int64_t removed;
  return RemoveRows(LowestKeys(static_cast<int64_t>(candidates.size()), &candidates),
                    &TableCounters::expired, &removed);
}

}  // namespace dynemb

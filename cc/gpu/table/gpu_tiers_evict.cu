// How rows of GpuTiers leave by the eviction policy: which are chosen, and that they go from the
// tier where they are.
#include <algorithm>
#include <cmath>
#include <set>
#include <utility>
#include <vector>

#include "cc/core/base/no_memory.h"
#include "cc/core/table/evictor.h"
#include "cc/core/table/row_scores.h"
#include "cc/gpu/table/gpu_tiers.h"

namespace dynemb {
namespace {

constexpr int64_t kEvictedAtOnce = 64 << 10;  // rows that are chosen together
constexpr int64_t kScanRows = 1 << 14;        // that are read at once

Batch BatchOf(Span<const Key> keys) {
  Batch batch;
  batch.keys = keys;
  return batch;
}

}  // namespace

Status GpuTiers::FindRows(Span<const Key> keys, std::vector<bool>* found) {
  const auto n = static_cast<size_t>(keys.size);
  std::vector<Outcome> above(n, Outcome::kMissing), below = above;
  DYNEMB_RETURN_IF_ERROR(Uncounted([&]() -> Status {
    DYNEMB_RETURN_IF_ERROR(
        above_of_host_->ReadRows(Below(), BatchOf(keys), RowParts(), {above, nullptr}));
    return below_->ReadRows(Below(), BatchOf(keys), RowParts(), {below, nullptr});
  }));
  std::vector<Key> unseen;
  found->resize(n);
  for (size_t i = 0; i < n; ++i) {
    (*found)[i] = above[i] == Outcome::kFound || below[i] == Outcome::kFound;
    if (!(*found)[i]) unseen.push_back(keys.data[i]);
  }
  return expires() ? RemoveUnseen(unseen) : Status();
}

Status GpuTiers::RemoveUnseen(Span<const Key> keys) {
  if (keys.size == 0) return {};
  return Uncounted([&]() -> Status {
    DYNEMB_RETURN_IF_ERROR(above_of_host_->Erase(Below(), BatchOf(keys), Report()));
    return below_->Erase(Below(), BatchOf(keys), Report());
  });
}

Status GpuTiers::RemoveExpired() {
  if (!expires()) return {};
  DYNEMB_RETURN_IF_ERROR(above_->RemoveExpired(OwnContext()));
  return below_->RemoveExpired(Below());
}

Status GpuTiers::SweepExpiredBelow(int64_t written, bool inserts) {
  constexpr int64_t kLeast = 4096;
  if (!expires()) return {};
  looks_below_ += Evictor::RowsToLookAt(written, inserts ? written : 0);
  if (looks_below_ < std::min(kLeast, below_->size())) return {};
  return below_->SweepExpired(Below(), std::exchange(looks_below_, 0));
}

Status GpuTiers::Gather(const Table& table, int64_t wanted, Cursor* hand, std::set<Key>* expired,
                        std::vector<EvictionCandidate>* candidates) const {
  if (wanted <= 0) return {};
  const bool all = wanted >= table.size();
  if (all) *hand = Cursor();
  const RowScores scores(options_.eviction, layout_, schema_.value_dtype, options_.clock);
  const int64_t at_once = std::min(wanted, kScanRows);
  const int64_t value_bytes = scores.reads_values() ? layout_.value_bytes : 0;
  std::vector<Key> keys(static_cast<size_t>(at_once));
  std::vector<char> values(static_cast<size_t>(at_once * value_bytes));
  std::vector<char> meta(static_cast<size_t>(at_once * layout_.meta_bytes));
  int64_t left = wanted, ends = 0;
  while (left > 0 && ends < 2) {
    if (hand->done) *hand = Cursor();
    hand->with_expired = true;
    const int64_t some = std::min(left, at_once);
    RowParts out;
    out.keys = {keys.data(), some};
    if (value_bytes > 0) out.values = Rows(values.data(), some, value_bytes);
    if (layout_.meta_bytes > 0) out.meta = Rows(meta.data(), some, layout_.meta_bytes);
    int64_t count = 0;
    DYNEMB_RETURN_IF_ERROR(table.Export(Below(), hand, out, &count));
    for (int64_t i = 0; i < count; ++i) {
      const char* const value = value_bytes > 0 ? out.values[i] : nullptr;
      const int64_t score = scores.Score(value, out.meta.data == nullptr ? nullptr : out.meta[i]);
      const Key key = keys[static_cast<size_t>(i)];
      if (expires() && score == INT64_MIN) {
        expired->insert(key);
      } else {
        candidates->emplace_back(score, key);
      }
    }
    left -= count;
    ends += hand->done;
    if (all && hand->done) break;
  }
  return {};
}

Status GpuTiers::Evict(int64_t wanted) {
  std::vector<EvictionCandidate> candidates;
  std::set<Key> expired;
  for (int64_t left = wanted, in_vain = 0; left > 0 && in_vain <= 2 * size();) {
    const int64_t above = above_->size(), below = below_->size(), rows = above + below;
    if (rows == 0) break;
    int64_t leaving = std::min({left, rows, kEvictedAtOnce});
    const int64_t some = std::max(Evictor::kUnitRows, leaving * Evictor::kCandidates);
    const double share = std::min(1.0, static_cast<double>(some) / static_cast<double>(rows));
    const auto of = [&](int64_t n) {
      return static_cast<int64_t>(std::ceil(share * static_cast<double>(n)));
    };
    // Those that have expired leave first: below these, and of those above the ones that are found.
    if (expires()) DYNEMB_RETURN_IF_ERROR(below_->SweepExpired(Below(), of(below)));
    leaving = std::min(leaving, left - (rows - size()));
    if (leaving <= 0) break;
    candidates.clear();
    expired.clear();
    DYNEMB_RETURN_IF_ERROR(
        Gather(*above_of_host_, of(above), &evicting_above_, &expired, &candidates));
    DYNEMB_RETURN_IF_ERROR(Gather(*below_, of(below), &evicting_below_, &expired, &candidates));
    // These make room, and so count as evicted.
    std::vector<Key> first(expired.begin(), expired.end());
    if (static_cast<int64_t>(first.size()) > leaving) first.resize(static_cast<size_t>(leaving));
    const auto removed = static_cast<int64_t>(first.size());
    DYNEMB_RETURN_IF_ERROR(RemoveUnseen(first));
    own_.expired += removed;
    own_.evicted -= removed;
    // Others may have gone with them, which the table above has met.
    leaving = std::min(leaving - removed, left - (rows - size()));
    DYNEMB_RETURN_IF_ERROR(RemoveRows(LowestKeys(leaving, &candidates)));
    left -= rows - size();
    in_vain = size() < rows ? 0 : in_vain + some;
  }
  return {};
}

Status GpuTiers::RemoveRows(const std::vector<Key>& keys) {
  if (keys.empty()) return {};
  KeptRows kept;
  if (options_.evicted != nullptr) {
    // Those of an error are not kept.
    static_cast<void>(OrNoMemory([&]() -> Status {
      std::vector<Key> read = keys;
      HostRows rows;
      DYNEMB_RETURN_IF_ERROR(ReadRows(&read, &rows));
      rows.values.resize(read.size() * static_cast<size_t>(layout_.value_bytes));
      kept = {std::move(read), std::move(rows.values)};
      return {};
    }));
  }
  gone_.insert(gone_.end(), keys.begin(), keys.end());
  std::vector<Outcome> above(keys.size(), Outcome::kFull), below = above;
  const Status status = Uncounted([&]() -> Status {
    DYNEMB_RETURN_IF_ERROR(above_of_host_->Erase(Below(), BatchOf(keys), {above, nullptr}));
    return below_->Erase(Below(), BatchOf(keys), {below, nullptr});
  });
  const auto removed = std::count(above.begin(), above.end(), Outcome::kFound) +
                       std::count(below.begin(), below.end(), Outcome::kFound);
  own_.evicted -= removed;
  if (options_.evicted != nullptr) {
    if (!status.ok()) kept = KeptRows();  // some of them are still there
    options_.evicted->AddDropped(removed - kept.size());
    options_.evicted->Add(std::move(kept));
  }
  return status;
}

void GpuTiers::KeepExpired(EvictedRows* of_tier) {
  if (of_tier == nullptr) return;
  int64_t dropped;
  KeptRows rows = of_tier->Take(&dropped);
  const Status noted =
      OrNoMemory([&] { gone_.insert(gone_.end(), rows.keys.begin(), rows.keys.end()); });
  knows_gone_ = knows_gone_ && noted.ok() && dropped == 0;
  if (options_.evicted == nullptr) return;
  options_.evicted->AddDropped(dropped);
  options_.evicted->Add(std::move(rows));
}

bool GpuTiers::TakeGone(std::vector<Key>* gone) {
  KeepExpired(expired_above_.get());
  KeepExpired(below_->evicted());
  *gone = std::exchange(gone_, {});
  return std::exchange(knows_gone_, true);
}

}  // namespace dynemb

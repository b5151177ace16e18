// The calls of a tiered table that write by key.
#include <algorithm>
#include <numeric>
#include <optional>
#include <shared_mutex>
#include <utility>
#include <vector>

#include "cc/core/storage/tiered_table_impl.h"
#include "cc/core/table/call_checks.h"
#include "cc/core/table/evictor.h"

namespace dynemb {
namespace {

bool IsDone(Outcome outcome) { return outcome == Outcome::kFound || outcome == Outcome::kInserted; }

// Fills a report from the outcomes of all positions.
void FillReport(const Batch& batch, const std::vector<Outcome>& outcomes, const Report& report) {
  int64_t misses = 0;
  for (int64_t j = 0; j < batch.size(); ++j) {
    const int64_t position = batch.position(j);
    const Outcome outcome = outcomes[static_cast<size_t>(position)];
    if (!report.outcomes.empty()) report.outcomes[position] = outcome;
    if (report.misses != nullptr && !IsDone(outcome)) report.misses->at[misses++] = position;
  }
  if (report.misses != nullptr) *report.misses->count = misses;
}

}  // namespace

Status Tiered::Apply(const Context& context, const Batch& batch, ConstRows gradients,
                     const Update& update, const Stamp& stamp, const Report& report) {
  return Write(
      context, batch, report,
      [&](const Context& inner, const Batch& part, const Report& of_part) {
        return tiers_->above()->Apply(inner, part, gradients, update, stamp, of_part);
      },
      [](int64_t, Outcome outcome) { return IsDone(outcome); },
      [&](int64_t) { return update.if_missing == IfMissing::kInsert; });
}

Status Tiered::Upsert(const Context& context, const Batch& batch, ConstRows values,
                      const Stamp& stamp, const Report& report) {
  return Write(
      context, batch, report,
      [&](const Context& inner, const Batch& part, const Report& of_part) {
        return tiers_->above()->Upsert(inner, part, values, stamp, of_part);
      },
      [](int64_t, Outcome outcome) { return IsDone(outcome); }, [](int64_t) { return true; });
}

Status Tiered::Accumulate(const Context& context, const Batch& batch, ConstRows values_or_deltas,
                          Span<const bool> exists, const Stamp& stamp, const Report& report) {
  return Write(
      context, batch, report,
      [&](const Context& inner, const Batch& part, const Report& of_part) {
        return tiers_->above()->Accumulate(inner, part, values_or_deltas, exists, stamp, of_part);
      },
      [&](int64_t position, Outcome outcome) {
        return outcome == Outcome::kInserted || (outcome == Outcome::kFound && exists[position]);
      },
      [&](int64_t position) { return !exists[position]; });
}

Status Tiered::InsertRows(const Context& context, const Batch& batch, const ConstRowParts& rows,
                          const RowParts& displaced, const Report& report) {
  return Write(
      context, batch, report,
      [&](const Context& inner, const Batch& part, const Report& of_part) {
        return tiers_->above()->InsertRows(inner, part, rows, displaced, of_part);
      },
      [](int64_t, Outcome outcome) { return IsDone(outcome); }, [](int64_t) { return true; },
      &rows);
}

Status Tiered::Erase(const Context& context, const Batch& batch, const Report& report) {
  DYNEMB_RETURN_IF_ERROR(CheckBatch(context, batch, report));
  const Status status = OrNoMemory([&] {
    const auto erase = [&](const Context& inner, const Batch& part, const Report& of_part) {
      return tiers_->above()->Erase(inner, part, of_part);
    };
    const auto changed = [](int64_t, Outcome outcome) { return outcome == Outcome::kFound; };
    {
      const std::shared_lock<FairSharedMutex> lock(mutex_);
      std::vector<Key> keys_below;
      DYNEMB_RETURN_IF_ERROR(tiers_->KeysBelow(context, batch, &keys_below));
      if (keys_below.empty()) return WriteAbove(context, batch, report, erase, changed);
    }
    const Alone alone(*this);
    const DistinctKeys distinct(batch);
    std::vector<Outcome> found;
    if (expires()) DYNEMB_RETURN_IF_ERROR(tiers_->RemoveExpired(distinct.keys(), &found));
    const int64_t n = batch.size();
    std::vector<Outcome> outcomes(static_cast<size_t>(batch.keys.size), Outcome::kFull);
    std::vector<int64_t> erased(static_cast<size_t>(distinct.size()));  // below, of each key
    const Status above = erase(Tiers::Inner(context), batch, {outcomes, nullptr});
    DiskRows* const below = tiers_->below();
    for (int64_t j = 0; j < n; ++j) {
      const int64_t position = batch.position(j);
      Outcome& outcome = outcomes[static_cast<size_t>(position)];
      int64_t& only_below = erased[static_cast<size_t>(distinct.number(j))];
      const uint64_t hash = DiskHash(batch.keys[position]);
      if (outcome == Outcome::kFound && below->Remove(hash)) tiers_->AddCopies(-1);
      if (outcome != Outcome::kMissing) continue;
      if (only_below == 0 && !below->Remove(hash)) continue;
      ++only_below;
      outcome = Outcome::kFound;
    }
    for (const int64_t positions : erased) tiers_->CountErased(positions);
    NoteChanges(batch, outcomes, changed);
    FillReport(batch, outcomes, report);
    return above;
  });
  if (status.ok()) SweepNow();
  return status;
}

template <typename WriteRows, typename Changed, typename Inserts>
Status Tiered::Write(const Context& context, const Batch& batch, const Report& report,
                     const WriteRows& write, const Changed& changed, const Inserts& inserts,
                     const ConstRowParts* whole_rows) {
  DYNEMB_RETURN_IF_ERROR(CheckBatch(context, batch, report));
  return OrNoMemory([&] {
    if (report.misses != nullptr) *report.misses->count = 0;
    const int64_t n = batch.size();
    std::vector<Key> keys_below;
    int64_t rows_written;
    bool is_written = false;
    Status written;
    {
      const std::shared_lock<FairSharedMutex> lock(mutex_);
      DYNEMB_RETURN_IF_ERROR(tiers_->KeysBelow(context, batch, &keys_below));
      rows_written = tiers_->below()->rows_written();
      if (keys_below.empty() && tiers_->TakeRoom(n)) {
        is_written = true;
        written = OrNoMemory([&] { return WriteAbove(context, batch, report, write, changed); });
        tiers_->GiveRoom(n);
        WakeUpkeep();
      }
    }
    if (!is_written) {
      const Alone alone(*this);
      if (tiers_->below()->rows_written() != rows_written) {
        DYNEMB_RETURN_IF_ERROR(tiers_->KeysBelow(context, batch, &keys_below));
      }
      DYNEMB_RETURN_IF_ERROR(CheckArguments(context, batch, write));
      DYNEMB_RETURN_IF_ERROR(BringAllUp(batch, keys_below, &is_written));
      written = is_written ? WriteAbove(context, batch, report, write, changed)
                           : WriteAlone(Tiers::Inner(context), batch, report, write, changed,
                                        inserts, whole_rows);
    }
    if (written.ok()) SweepNow();
    return written;
  });
}

template <typename WriteRows>
Status Tiered::CheckArguments(const Context& context, const Batch& batch, const WriteRows& write) {
  int64_t none = 0;
  const Positions no_positions = {{}, &none};
  Batch no_keys = batch;
  no_keys.select = &no_positions;
  return write(Tiers::Inner(context), no_keys, {});
}

Status Tiered::BringAllUp(const Batch& batch, const std::vector<Key>& keys_below, bool* done) {
  const int64_t n = batch.size();
  *done = n <= std::min(tiers_->max_rows_above() / 4, tiers_->room());
  if (!*done) return Status();
  std::optional<DistinctKeys> distinct;  // made if a row is to leave
  DYNEMB_RETURN_IF_ERROR(tiers_->MakeResident(keys_below, n, [&](Key key) {
    if (!distinct) distinct.emplace(batch);
    return distinct->NumberOf(key) >= 0;
  }));
  *done = tiers_->above()->room() >= n;
  return Status();
}

void Tiered::SweepNow() {
  constexpr int64_t kLeast = 4096;
  if (!expires()) return;
  const int64_t looks = looks_.load(std::memory_order_relaxed);
  if (looks < kLeast && looks < size()) return;
  const Alone alone(*this);
  static_cast<void>(OrNoMemory([&] { return tiers_->SweepExpired(looks_.exchange(0)); }));
}

void Tiered::NoteLooks(const Batch& batch, Span<const Outcome> outcomes) {
  if (!expires()) return;
  const int64_t n = batch.size();
  int64_t inserted = 0;
  for (int64_t j = 0; j < n; ++j) inserted += outcomes[batch.position(j)] == Outcome::kInserted;
  looks_.fetch_add(Evictor::RowsToLookAt(n, inserted), std::memory_order_relaxed);
}

template <typename WriteRows, typename Changed>
Status Tiered::WriteAbove(const Context& context, const Batch& batch, const Report& report,
                          const WriteRows& write, const Changed& changed) {
  const Context inner = Tiers::Inner(context);
  std::vector<Outcome> own;
  Report tracked = report;
  if ((changes_->tracking() || expires()) && report.outcomes.empty()) {
    own.resize(static_cast<size_t>(batch.keys.size));
    tracked.outcomes = own;
  }
  const Status written = write(inner, batch, tracked);
  if (written.ok() || written.code() == Code::kResourceExhausted) {
    NoteChanges(batch, tracked.outcomes, changed);
  }
  static_cast<void>(tiers_->KeepExpiredAbove());
  return written;
}

template <typename WriteRows, typename Changed, typename Inserts>
Status Tiered::WriteAlone(const Context& inner, const Batch& batch, const Report& report,
                          const WriteRows& write, const Changed& changed, const Inserts& inserts,
                          const ConstRowParts* whole_rows) {
  const DistinctKeys distinct(batch);
  std::vector<int64_t> numbers, missing;  // of the keys
  DYNEMB_RETURN_IF_ERROR(FindMissing(batch, distinct, inserts, &numbers, &missing));
  const bool evicts = options_.eviction.evicts();
  // A table that was opened with a lower limit may have more rows than that.
  const auto has_room = [&] {
    return static_cast<int64_t>(missing.size()) <= std::max<int64_t>(tiers_->room(), 0);
  };
  if (!has_room()) {
    // Rows that are put back, as by a restore, are not dropped.
    const bool refuses = !evicts && (options_.on_full == OnFull::kError || whole_rows != nullptr);
    if (refuses && expires()) DYNEMB_RETURN_IF_ERROR(tiers_->SweepExpired(tiers_->size()));
    if (refuses && !has_room()) {
      return ResourceExhausted(tiers_->limit(), ": got ", missing.size(),
                               " keys without a row, for ", tiers_->size(), " rows of at most ",
                               tiers_->max_rows(), "; want a larger ", tiers_->limit(),
                               ", or an eviction policy");
    }
    if (whole_rows != nullptr) SortByScore(batch, distinct, *whole_rows, &missing);
  } else {
    numbers.resize(static_cast<size_t>(distinct.size()));
    std::iota(numbers.begin(), numbers.end(), 0);
    missing.clear();
  }
  std::vector<Outcome> outcomes(static_cast<size_t>(batch.keys.size), Outcome::kFull);
  bool has_begun = false;
  const auto write_these = [&](const std::vector<int64_t>& these) {
    return WriteInSlices(inner, batch, distinct, these, write, changed, &outcomes, &has_begun);
  };
  Status written = OrNoMemory([&] { return write_these(numbers); });
  // Whole rows come with scores, and may evict each other: a part of the table at a time.
  const size_t step = evicts && whole_rows != nullptr
                          ? static_cast<size_t>(tiers_->max_rows() / 16 + 1)
                          : missing.size();
  for (size_t at = 0; written.ok() && at < missing.size(); at += step) {
    const size_t end = std::min(missing.size(), at + step);
    const int64_t wanted = static_cast<int64_t>(end - at);
    has_begun = true;
    written = OrNoMemory([&] {
      if (evicts && wanted > tiers_->room()) {
        DYNEMB_RETURN_IF_ERROR(tiers_->Evict(wanted - tiers_->room()));
      }
      const auto first = missing.begin() + static_cast<std::ptrdiff_t>(at);
      const auto declined = first + std::clamp<int64_t>(tiers_->room(), 0, wanted);
      DYNEMB_RETURN_IF_ERROR(write_these({first, declined}));
      Decline(batch, distinct, {declined, missing.begin() + static_cast<std::ptrdiff_t>(end)},
              &outcomes);
      return Status();
    });
  }
  if (!written.ok() && !has_begun) return written;  // nothing has changed
  FillReport(batch, outcomes, report);
  return written;
}

template <typename Inserts>
Status Tiered::FindMissing(const Batch& batch, const DistinctKeys& distinct, const Inserts& inserts,
                           std::vector<int64_t>* others, std::vector<int64_t>* missing) {
  if (distinct.size() <= tiers_->room()) return Status();
  std::vector<Outcome> found;
  DYNEMB_RETURN_IF_ERROR(tiers_->RemoveExpired(distinct.keys(), &found));
  std::vector<bool> is_new(static_cast<size_t>(distinct.size()));
  tiers_->below()->ForEachHash(distinct.keys(), [&](int64_t number, uint64_t hash) {
    Outcome& outcome = found[static_cast<size_t>(number)];
    if (outcome == Outcome::kMissing && tiers_->below()->Find(hash) != kNowhere) {
      outcome = Outcome::kFound;
    }
  });
  for (int64_t j = 0; j < batch.size(); ++j) {
    const size_t number = static_cast<size_t>(distinct.number(j));
    if (found[number] == Outcome::kFound || is_new[number]) continue;
    is_new[number] = inserts(batch.position(j));
  }
  for (int64_t number = 0; number < distinct.size(); ++number) {
    (is_new[static_cast<size_t>(number)] ? missing : others)->push_back(number);
  }
  return Status();
}

void Tiered::SortByScore(const Batch& batch, const DistinctKeys& distinct,
                         const ConstRowParts& rows, std::vector<int64_t>* numbers) const {
  if (tiers_->scores() == nullptr) return;
  std::vector<int64_t> scores(static_cast<size_t>(distinct.size()));
  for (int64_t j = 0; j < batch.size(); ++j) {  // the last position counts
    const int64_t position = batch.position(j);
    scores[static_cast<size_t>(distinct.number(j))] =
        tiers_->scores()->Score(rows.values[position], rows.meta[position]);
  }
  std::stable_sort(numbers->begin(), numbers->end(), [&](int64_t a, int64_t b) {
    return scores[static_cast<size_t>(a)] < scores[static_cast<size_t>(b)];
  });
}

void Tiered::Decline(const Batch& batch, const DistinctKeys& distinct,
                     const std::vector<int64_t>& numbers, std::vector<Outcome>* outcomes) {
  if (numbers.empty()) return;
  std::vector<bool> is_declined(static_cast<size_t>(distinct.size()));
  for (const int64_t number : numbers) is_declined[static_cast<size_t>(number)] = true;
  for (int64_t j = 0; j < batch.size(); ++j) {
    if (!is_declined[static_cast<size_t>(distinct.number(j))]) continue;
    (*outcomes)[static_cast<size_t>(batch.position(j))] = Outcome::kDeclined;
  }
  tiers_->CountDeclined(static_cast<int64_t>(numbers.size()));
}

template <typename WriteRows, typename Changed>
Status Tiered::WriteInSlices(const Context& inner, const Batch& batch, const DistinctKeys& distinct,
                             const std::vector<int64_t>& numbers, const WriteRows& write,
                             const Changed& changed, std::vector<Outcome>* outcomes,
                             bool* has_begun) {
  const int64_t n = batch.size(), most = tiers_->max_rows_above();
  const int64_t keys = static_cast<int64_t>(numbers.size());
  const int64_t slices = (keys + most - 1) / most;
  const bool whole = slices == 1 && keys == distinct.size();
  std::vector<int64_t> slice_of(static_cast<size_t>(distinct.size()), -1);
  for (int64_t i = 0; i < keys; ++i) slice_of[static_cast<size_t>(numbers[i])] = i / most;
  const auto slice_at = [&](int64_t j) {
    return slice_of[static_cast<size_t>(distinct.number(j))];
  };
  // The positions of each slice, in the order of the batch.
  std::vector<int64_t> positions, ends(static_cast<size_t>(slices));
  if (!whole) {
    std::vector<int64_t> next(static_cast<size_t>(slices) + 1);
    for (int64_t j = 0; j < n; ++j) ++next[static_cast<size_t>(slice_at(j) + 1)];
    next[0] = 0;  // of those that are left out
    for (size_t s = 0; s < ends.size(); ++s) ends[s] = next[s + 1] += next[s];
    positions.resize(static_cast<size_t>(next.back()));
    for (int64_t j = 0; j < n; ++j) {
      if (slice_at(j) < 0) continue;
      int64_t& at = next[static_cast<size_t>(slice_at(j))];
      positions[static_cast<size_t>(at++)] = batch.position(j);
    }
  }
  std::vector<Key> of_slice;
  for (int64_t s = 0; s < slices; ++s) {
    of_slice.clear();
    for (int64_t i = s * most; i < std::min(keys, (s + 1) * most); ++i) {
      of_slice.push_back(distinct.keys()[static_cast<size_t>(numbers[i])]);
    }
    Status written = OrNoMemory([&] {
      return tiers_->MakeResident(of_slice, n, [&](Key key) {
        const int64_t number = distinct.NumberOf(key);
        return number >= 0 && slice_of[static_cast<size_t>(number)] == s;
      });
    });
    if (!written.ok()) return written;
    int64_t count = 0;
    Positions select;
    Batch part = batch;
    if (!whole) {
      const int64_t first = s == 0 ? 0 : ends[static_cast<size_t>(s - 1)];
      count = ends[static_cast<size_t>(s)] - first;
      select = {{positions.data() + first, count}, &count};
      part.select = &select;
    }
    written = write(inner, part, {*outcomes, nullptr});
    if (!written.ok() && written.code() != Code::kResourceExhausted) return written;
    *has_begun = true;
    NoteChanges(part, *outcomes, changed);
    if (!written.ok()) return written;
  }
  return Status();
}

template <typename Changed>
void Tiered::NoteChanges(const Batch& batch, Span<const Outcome> outcomes, const Changed& changed) {
  NoteLooks(batch, outcomes);
  // A row that had expired may have gone without any outcome saying so.
  changes_->Note(batch, tiers_->size(), [&](int64_t position) {
    return expires() || changed(position, outcomes[position]);
  });
}

}  // namespace dynemb

#include <algorithm>
#include <numeric>

#include "cc/core/table/row_scores.h"
#include "cc/gpu/for_each.cu.h"
#include "cc/gpu/table/call_in_parts.h"
#include "cc/gpu/table/write_rows.cu.h"

namespace dynemb {

Status CallInParts::Begin() {
  const int64_t n = batch_.keys.size;
  DYNEMB_RETURN_IF_ERROR(scratch_->Begin(
      context_,
      Scratch::Bytes<Outcome>(n) + Scratch::Bytes<int64_t>(n) + Scratch::Bytes<int64_t>(1)));
  Outcome* const own = scratch_->Take<Outcome>(n);
  int64_t* const at = scratch_->Take<int64_t>(n);
  int64_t* const count = scratch_->Take<int64_t>(1);
  if (full_.outcomes.empty()) full_.outcomes = {own, n, context_.space};
  part_ = {{at, n, context_.space}, count};
  // What is wrong with the arguments is known before anything is done.
  DYNEMB_RETURN_IF_ERROR(FillBytes(context_, count, 0, sizeof(*count)));
  const Positions none = {{at, 0, context_.space}, count};
  DYNEMB_RETURN_IF_ERROR(op_({batch_.keys, &none}, Report()));
  DYNEMB_RETURN_IF_ERROR(GpuTiers::ToHost(context_, batch_, &keys_, &positions_));
  distinct_.emplace(Span<const Key>(keys_));
  const Entries entries(batch_);
  return ForEach(context_, entries.most, ReportFull{entries, Reports(full_)});
}

std::vector<int64_t> CallInParts::AllNumbers() const {
  std::vector<int64_t> numbers(static_cast<size_t>(distinct_->size()));
  std::iota(numbers.begin(), numbers.end(), 0);
  return numbers;
}

// Those of these numbers, as many at a time as there is room for above.
Status CallInParts::WriteKeys(const std::vector<int64_t>& numbers) {
  const int64_t most = tiers_->above()->max_rows();
  const auto all = static_cast<int64_t>(numbers.size());
  std::vector<int64_t> slice_of(static_cast<size_t>(distinct_->size()), -1);
  std::vector<std::vector<int64_t>> of_slices(static_cast<size_t>((all + most - 1) / most));
  for (int64_t i = 0; i < all; ++i) {
    slice_of[static_cast<size_t>(numbers[static_cast<size_t>(i)])] = i / most;
  }
  for (size_t j = 0; j < positions_.size(); ++j) {
    const int64_t slice = slice_of[static_cast<size_t>(number(j))];
    if (slice >= 0) of_slices[static_cast<size_t>(slice)].push_back(positions_[j]);
  }
  for (size_t s = 0; s < of_slices.size(); ++s) {
    const std::vector<int64_t>& at = of_slices[s];
    const auto n = static_cast<int64_t>(at.size());
    DYNEMB_RETURN_IF_ERROR(
        CopyAny(context_, part_.at.data, at.data(), n * static_cast<int64_t>(sizeof(int64_t))));
    DYNEMB_RETURN_IF_ERROR(CopyAny(context_, part_.count, &n, sizeof(n)));
    DYNEMB_RETURN_IF_ERROR(Wait(context_));
    const Positions select = {{part_.at.data, n, context_.space}, part_.count};
    const Batch part = {batch_.keys, &select};
    bool fits;
    const bool inserts = inserts_.missing_keys;
    DYNEMB_RETURN_IF_ERROR(tiers_->MakeResident(context_, part, inserts, &fits));
    if (!fits) {
      std::vector<Key> keys;
      const auto first = static_cast<int64_t>(s) * most;
      for (int64_t i = first; i < std::min(all, first + most); ++i) {
        const auto number = static_cast<size_t>(numbers[static_cast<size_t>(i)]);
        keys.push_back(distinct_->keys()[number]);
      }
      DYNEMB_RETURN_IF_ERROR(tiers_->AllDown());
      DYNEMB_RETURN_IF_ERROR(tiers_->BringUp(keys));
    }
    const Status done = op_(part, full_);
    has_begun_ = has_begun_ || done.ok() || done.code() == Code::kResourceExhausted;
    DYNEMB_RETURN_IF_ERROR(done);
  }
  return {};
}

Status CallInParts::WriteWithinLimit() {
  std::vector<int64_t> others, missing;
  DYNEMB_RETURN_IF_ERROR(FindMissing(&others, &missing));
  const auto room = [&] { return std::max<int64_t>(tiers_->room(), 0); };
  const auto has_room = [&] { return static_cast<int64_t>(missing.size()) <= room(); };
  if (has_room()) return WriteKeys(AllNumbers());
  // Rows that are put back, as by a restore, are not dropped.
  const bool evicts = tiers_->evicts(), is_whole = inserts_.whole_rows != nullptr;
  if (!evicts && (tiers_->options().on_full == OnFull::kError || is_whole)) {
    DYNEMB_RETURN_IF_ERROR(tiers_->RemoveExpired());
    if (has_room()) return WriteKeys(AllNumbers());
    return ResourceExhausted("max_rows: got ", missing.size(), " keys without a row, for ",
                             tiers_->size(), " rows of at most ", tiers_->max_rows(),
                             "; want a larger max_rows, or an eviction policy");
  }
  if (evicts && is_whole) {
    DYNEMB_RETURN_IF_ERROR(SortByScore(&missing));
  }
  DYNEMB_RETURN_IF_ERROR(WriteKeys(others));
  // Whole rows come with scores, and may evict each other: a part of the table at a time.
  const size_t step =
      evicts && is_whole ? static_cast<size_t>(tiers_->max_rows() / 16 + 1) : missing.size();
  for (size_t at = 0; at < missing.size(); at += step) {
    const size_t end = std::min(missing.size(), at + step);
    const auto wanted = static_cast<int64_t>(end - at);
    has_begun_ = true;
    if (evicts && wanted > tiers_->room()) {
      DYNEMB_RETURN_IF_ERROR(tiers_->Evict(wanted - tiers_->room()));
    }
    const auto first = missing.begin() + static_cast<std::ptrdiff_t>(at);
    const auto declined = first + std::min(room(), wanted);
    DYNEMB_RETURN_IF_ERROR(WriteKeys({first, declined}));
    declined_.insert(declined_.end(), declined, missing.begin() + static_cast<std::ptrdiff_t>(end));
  }
  return {};
}

Status CallInParts::FindMissing(std::vector<int64_t>* others, std::vector<int64_t>* missing) const {
  const std::vector<char>* const seen = inserts_.unless_seen;
  std::vector<bool> found, is_new(static_cast<size_t>(distinct_->size()));
  DYNEMB_RETURN_IF_ERROR(tiers_->FindRows(distinct_->keys(), &found));
  for (size_t j = 0; j < positions_.size(); ++j) {
    const auto at = static_cast<size_t>(number(j));
    const auto position = static_cast<size_t>(positions_[j]);
    if (found[at]) continue;
    if (seen == nullptr || (*seen)[position] == 0) is_new[at] = true;
  }
  for (size_t number = 0; number < is_new.size(); ++number) {
    (is_new[number] ? missing : others)->push_back(static_cast<int64_t>(number));
  }
  return {};
}

Status CallInParts::SortByScore(std::vector<int64_t>* numbers) const {
  const ConstRowParts& rows = *inserts_.whole_rows;
  const RowLayout& layout = tiers_->layout();
  const TableOptions& options = tiers_->options();
  const RowScores of_rows(options.eviction, layout, tiers_->above()->schema().value_dtype,
                          options.clock);
  const int64_t n = batch_.keys.size;
  std::vector<char> values, meta;
  const auto fetch = [&](const ConstRows& from, int64_t bytes, std::vector<char>* to) -> Status {
    to->resize(static_cast<size_t>(n * bytes));
    if (bytes == 0) return {};
    if (from.stride_bytes == bytes) return CopyAny(context_, to->data(), from.data, n * bytes);
    std::vector<int64_t> offsets;
    DYNEMB_RETURN_IF_ERROR(OffsetsToHost(from, &offsets));
    for (int64_t i = 0; i < n; ++i) {
      DYNEMB_RETURN_IF_ERROR(CopyAny(context_, to->data() + i * bytes,
                                     from.data + offsets[static_cast<size_t>(i)], bytes));
    }
    return {};
  };
  const int64_t value_bytes = of_rows.reads_values() ? layout.value_bytes : 0;
  DYNEMB_RETURN_IF_ERROR(fetch(rows.values, value_bytes, &values));
  DYNEMB_RETURN_IF_ERROR(fetch(rows.meta, layout.meta_bytes, &meta));
  DYNEMB_RETURN_IF_ERROR(Wait(context_));
  std::vector<int64_t> scores(static_cast<size_t>(distinct_->size()));
  for (size_t j = 0; j < positions_.size(); ++j) {
    const int64_t position = positions_[j];
    scores[static_cast<size_t>(number(j))] = of_rows.Score(
        values.data() + position * value_bytes, meta.data() + position * layout.meta_bytes);
  }
  std::stable_sort(numbers->begin(), numbers->end(), [&](int64_t a, int64_t b) {
    return scores[static_cast<size_t>(a)] < scores[static_cast<size_t>(b)];
  });
  return {};
}

Status CallInParts::OffsetsToHost(const ConstRows& rows, std::vector<int64_t>* offsets) const {
  offsets->resize(static_cast<size_t>(rows.count));
  for (int64_t i = 0; i < rows.count; ++i) {
    (*offsets)[static_cast<size_t>(i)] = i * rows.stride_bytes;
  }
  if (rows.offsets == nullptr) return {};
  DYNEMB_RETURN_IF_ERROR(CopyAny(context_, offsets->data(), rows.offsets,
                                 rows.count * static_cast<int64_t>(sizeof(int64_t))));
  return Wait(context_);
}

Status CallInParts::ReportDeclined() const {
  if (declined_.empty()) return {};
  tiers_->CountDeclined(static_cast<int64_t>(declined_.size()));
  std::vector<Outcome> outcomes;
  DYNEMB_RETURN_IF_ERROR(GpuTiers::OutcomesToHost(context_, full_, &outcomes));
  std::vector<bool> is_declined(static_cast<size_t>(distinct_->size()));
  for (const int64_t number : declined_) is_declined[static_cast<size_t>(number)] = true;
  for (size_t j = 0; j < positions_.size(); ++j) {
    if (!is_declined[static_cast<size_t>(number(j))]) continue;
    outcomes[static_cast<size_t>(positions_[j])] = Outcome::kDeclined;
  }
  DYNEMB_RETURN_IF_ERROR(
      CopyAny(context_, full_.outcomes.data, outcomes.data(), full_.outcomes.size));
  return Wait(context_);
}

Status CallInParts::ReportMisses(const Report& report) const {
  if (report.misses == nullptr) return {};
  std::vector<Outcome> outcomes;
  DYNEMB_RETURN_IF_ERROR(GpuTiers::OutcomesToHost(context_, full_, &outcomes));
  std::vector<int64_t> misses;
  for (const int64_t position : positions_) {
    if (!IsDone(outcomes[static_cast<size_t>(position)])) misses.push_back(position);
  }
  const auto n = static_cast<int64_t>(misses.size());
  DYNEMB_RETURN_IF_ERROR(CopyAny(context_, report.misses->at.data, misses.data(),
                                 n * static_cast<int64_t>(sizeof(int64_t))));
  DYNEMB_RETURN_IF_ERROR(CopyAny(context_, report.misses->count, &n, sizeof(n)));
  return Wait(context_);
}

Status CallInParts::ReportTo(const Report& report) {
  DYNEMB_RETURN_IF_ERROR(ReportDeclined());
  return ReportMisses(report);
}

}  // namespace dynemb

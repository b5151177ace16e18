// The calls of a tiered table that read by key.
#include <algorithm>
#include <cstddef>
#include <memory>
#include <shared_mutex>
#include <utility>
#include <vector>

#include "cc/core/base/copy_bytes.h"
#include "cc/core/storage/tiered_table_impl.h"
#include "cc/core/table/call_checks.h"

namespace dynemb {
namespace {

constexpr int64_t kReadBytes = int64_t{4} << 20;  // of rows that are read at once

}  // namespace

Status Tiered::Find(const Context& context, const Batch& batch, Rows values,
                    const Report& report) const {
  return OrNoMemory([&] {
    FromBelow from_below;
    DYNEMB_RETURN_IF_ERROR(Read(
        context, batch, report, true,
        [&](const Context& inner, const Report& of_above) {
          return tiers_->above()->Find(inner, batch, values, of_above);
        },
        [&](int64_t position, const char* row) {
          CopyBytes(values[position], row, layout_.value_bytes);
        },
        &from_below));
    if (from_below.keys.empty()) return Status();
    const Alone alone(*this);
    // What was asked for has been read; that it stays below is no error.
    static_cast<void>(OrNoMemory([&] {
      return tiers_->BringUp(from_below.locations, from_below.numbers, &from_below.keys,
                             &from_below.rows);
    }));
    return Status();
  });
}

Status Tiered::ReadRows(const Context& context, const Batch& batch, const RowParts& rows,
                        const Report& report) const {
  return OrNoMemory([&] {
    const bool any = rows.values.data || rows.slots.data || rows.meta.data;
    return Read(
        context, batch, report, any,
        [&](const Context& inner, const Report& of_above) {
          return tiers_->above()->ReadRows(inner, batch, rows, of_above);
        },
        [&](int64_t position, const char* row) { CopyRow(row, rows, position); }, nullptr);
  });
}

template <typename Above, typename Copy>
Status Tiered::Read(const Context& context, const Batch& batch, const Report& report, bool rows,
                    const Above& above, const Copy& copy, FromBelow* kept) const {
  DYNEMB_RETURN_IF_ERROR(CheckBatch(context, batch, report));
  std::shared_lock<FairSharedMutex> lock(mutex_);
  DiskRows* const below = tiers_->below();
  if (below->empty()) return above(Tiers::Inner(context), report);
  std::unique_ptr<int64_t[]> own;  // of which no more is written than there is to be
  int64_t count = 0;
  Positions misses = {{}, &count};
  if (report.misses != nullptr) {
    misses.at = report.misses->at;
  } else {
    const int64_t n = batch.select == nullptr ? batch.keys.size : batch.select->at.size;
    own.reset(new int64_t[static_cast<size_t>(n)]);
    misses.at = {own.get(), n};
  }
  DYNEMB_RETURN_IF_ERROR(above(tiers_->Using(context), {report.outcomes, &misses}));
  // Which of those that are not above are below.
  std::vector<std::pair<Location, int64_t>> wanted;
  int64_t missing = 0;
  const auto hash_of = [&](int64_t m) { return DiskHash(batch.keys[misses.at[m]]); };
  constexpr int64_t kAhead = 8;
  for (int64_t m = 0; m < count; ++m) {
    if (m + kAhead < count) below->PrefetchEntry(hash_of(m + kAhead));
    const int64_t position = misses.at[m];
    const Location location = below->Find(hash_of(m));
    if (location == kNowhere) {
      misses.at[missing++] = position;
    } else {
      wanted.emplace_back(location, position);
      if (!report.outcomes.empty()) report.outcomes[position] = Outcome::kFound;
    }
  }
  if (report.misses != nullptr) *report.misses->count = missing;
  const int64_t found = static_cast<int64_t>(wanted.size());
  tiers_->CountRead(-found, found);  // they were counted as missing
  if (found == 0 || !rows) return Status();
  tiers_->AddMisses(found);
  const std::vector<ReadOfBelow> reads = PrepareReads(std::move(wanted));
  lock.unlock();  // the disk is slow
  return ReadBelow(batch, reads, copy, kept);
}

std::vector<Tiered::ReadOfBelow> Tiered::PrepareReads(
    std::vector<std::pair<Location, int64_t>> wanted) const {
  const size_t at_once = static_cast<size_t>(std::max<int64_t>(1, kReadBytes / layout_.row_bytes));
  std::sort(wanted.begin(), wanted.end());
  std::vector<ReadOfBelow> reads;
  for (const auto& [location, position] : wanted) {
    const bool is_same = !reads.empty() && reads.back().locations.back() == location;
    if (reads.empty() || (!is_same && reads.back().locations.size() == at_once)) {
      reads.emplace_back();
    }
    if (!is_same) {
      reads.back().locations.push_back(location);
      reads.back().numbers.push_back(tiers_->below()->NumberOf(location));
    }
    reads.back().wanted.emplace_back(location, position);
  }
  for (ReadOfBelow& read : reads) read.reads = tiers_->below()->PrepareReads(read.locations);
  return reads;
}

Status Tiered::ReadBelow(const Batch& batch, const std::vector<ReadOfBelow>& reads,
                         const CopyTo& copy, FromBelow* kept) const {
  const size_t row_bytes = static_cast<size_t>(layout_.row_bytes);
  const size_t most_kept =
      kept == nullptr ? 0 : static_cast<size_t>(std::max<int64_t>(1, tiers_->max_rows_above() / 2));
  std::vector<char> rows;
  for (const ReadOfBelow& read : reads) {
    const size_t count = read.locations.size();
    rows.resize(count * row_bytes);
    DYNEMB_RETURN_IF_ERROR(tiers_->below()->Read(read.reads, rows.data()));
    const size_t begin = kept == nullptr ? 0 : kept->keys.size();
    const size_t keeps = std::min(count, most_kept - begin);
    size_t w = 0;
    for (size_t i = 0; i < count; ++i) {
      if (i < keeps) kept->keys.push_back(batch.keys[read.wanted[w].second]);
      for (; w < read.wanted.size() && read.wanted[w].first == read.locations[i]; ++w) {
        copy(read.wanted[w].second, &rows[i * row_bytes]);
      }
    }
    if (keeps == 0) continue;
    const auto append = [keeps](const auto& from, auto* to) {
      to->insert(to->end(), from.begin(), from.begin() + static_cast<std::ptrdiff_t>(keeps));
    };
    append(read.locations, &kept->locations);
    append(read.numbers, &kept->numbers);
    if (begin == 0) kept->rows.swap(rows);  // most calls read once, and keep all of it
    if (begin > 0) kept->rows.insert(kept->rows.end(), rows.begin(), rows.end());
    kept->rows.resize((begin + keeps) * row_bytes);
  }
  return Status();
}

}  // namespace dynemb

// The calls of a tiered table that go over all of its rows.
#include <algorithm>
#include <cstring>
#include <shared_mutex>
#include <utility>
#include <vector>

#include "cc/core/base/hash.h"
#include "cc/core/storage/tiered_table_impl.h"
#include "cc/core/table/call_checks.h"

namespace dynemb {
namespace {

constexpr int64_t kScanRows = 2048;  // whose places above are asked for at once

}  // namespace

Status Tiered::Export(const Context& context, Cursor* cursor, const RowParts& out,
                      int64_t* rows) const {
  DYNEMB_RETURN_IF_ERROR(CheckContext(context));
  DYNEMB_RETURN_IF_ERROR(CheckExport(layout_, out));
  DYNEMB_RETURN_IF_ERROR(CheckTablePart(*cursor));
  if (cursor->position[1] > 1) {
    return InvalidArgument("cursor: got a position that no export has given");
  }
  return OrNoMemory([&] {
    // The rows in the order of their hashes, which no move between the tiers changes.
    const std::shared_lock<FairSharedMutex> lock(mutex_);
    const int first = TierChanges::FirstPart(*cursor), end = TierChanges::EndPart(*cursor);
    uint64_t from = cursor->position[0];
    if (cursor->position[1] == 0) {
      from = static_cast<uint64_t>(first) << (64 - DiskIndex::kPartBits);
      cursor->done = cursor->done || first == end;
    }
    bool done = cursor->done;
    int64_t n = 0;
    while (!done && n < out.keys.size) {
      const int part = DiskIndex::PartOf(from);
      std::vector<uint64_t> hashes;
      DYNEMB_RETURN_IF_ERROR(HashesOf(part, from, out.keys.size - n, &hashes));
      const bool is_whole = static_cast<int64_t>(hashes.size()) < out.keys.size - n;
      DYNEMB_RETURN_IF_ERROR(ExportThese(hashes, out, &n));
      if (is_whole) {
        done = part + 1 >= end;
        from = static_cast<uint64_t>(part + 1) << (64 - DiskIndex::kPartBits);
      } else {
        from = hashes.back() + 1;
        done = from == 0 || DiskIndex::PartOf(from) >= end;
      }
    }
    cursor->position[0] = from;
    cursor->position[1] = 1;
    cursor->done = done;
    *rows = n;
    return Status();
  });
}

Status Tiered::Histogram(const Context& context, MetaField field, const RowOrder& prefix,
                         int prefix_bits, Span<int64_t> counts) const {
  DYNEMB_RETURN_IF_ERROR(CheckContext(context));
  return OrNoMemory([&] {
    const std::shared_lock<FairSharedMutex> lock(mutex_);
    DYNEMB_RETURN_IF_ERROR(
        tiers_->above()->Histogram(Tiers::Inner(context), field, prefix, prefix_bits, counts));
    int bits;
    DYNEMB_RETURN_IF_ERROR(CheckCounts(counts, prefix_bits, &bits));
    return ForEachOnlyBelow(field, [&](Key, const RowOrder& order) {
      const int64_t digit = DigitOf(order, prefix, prefix_bits, bits);
      if (digit >= 0) ++counts[digit];
    });
  });
}

Status Tiered::EraseBelow(const Context& context, MetaField field, const RowOrder& bound,
                          int64_t* erased) {
  DYNEMB_RETURN_IF_ERROR(CheckContext(context));
  DYNEMB_RETURN_IF_ERROR(CheckMetaField(layout_, field));
  return OrNoMemory([&] {
    const Alone alone(*this);
    if (expires()) DYNEMB_RETURN_IF_ERROR(tiers_->SweepExpired(tiers_->size()));
    std::vector<Key> below, above;
    DYNEMB_RETURN_IF_ERROR(ForEachOnlyBelow(field, [&](Key key, const RowOrder& order) {
      if (order < bound) below.push_back(key);
    }));
    DYNEMB_RETURN_IF_ERROR(ForEachAbove(field, [&](Key key, const RowOrder& order) {
      if (order < bound) above.push_back(key);
    }));
    NoteGone(above);
    NoteGone(below);
    // First the copies: what an error leaves above has none, and is a row.
    for (const Key key : above) {
      if (tiers_->below()->Remove(DiskHash(key))) tiers_->AddCopies(-1);
    }
    int64_t from_above;
    DYNEMB_RETURN_IF_ERROR(
        tiers_->above()->EraseBelow(Tiers::Inner(context), field, bound, &from_above));
    for (const Key key : below) tiers_->below()->Remove(DiskHash(key));
    tiers_->CountRemoved(static_cast<int64_t>(below.size()));
    *erased = from_above + static_cast<int64_t>(below.size());
    return Status();
  });
}

Status Tiered::HashesOf(int part, uint64_t from, int64_t most,
                        std::vector<uint64_t>* hashes) const {
  DYNEMB_RETURN_IF_ERROR(
      tiers_->ForEachAbove({part, DiskIndex::kParts}, false, [&](const std::vector<Key>& keys) {
        for (const Key key : keys) {
          if (DiskHash(key) >= from) hashes->push_back(DiskHash(key));
        }
        return Status();
      }));
  // Of those above the first `most` are enough, and as many of those below.
  if (static_cast<int64_t>(hashes->size()) > most) {
    std::nth_element(hashes->begin(), hashes->begin() + most, hashes->end());
    hashes->resize(static_cast<size_t>(most));
  }
  int64_t more = most;
  tiers_->below()->index().ForEach(part, from, [&](const DiskIndex::Entry& entry) {
    if (tiers_->below()->HasExpired(entry)) return true;
    hashes->push_back(entry.hash);
    return --more > 0;
  });
  std::sort(hashes->begin(), hashes->end());
  hashes->erase(std::unique(hashes->begin(), hashes->end()), hashes->end());
  if (static_cast<int64_t>(hashes->size()) > most) hashes->resize(static_cast<size_t>(most));
  return Status();
}

Status Tiered::ExportThese(const std::vector<uint64_t>& hashes, const RowParts& out,
                           int64_t* n) const {
  const int64_t count = static_cast<int64_t>(hashes.size());
  if (count == 0) return Status();
  const bool any = out.values.data || out.slots.data || out.meta.data;
  std::vector<Key> keys(hashes.size());
  for (size_t i = 0; i < hashes.size(); ++i) keys[i] = KeyOfDiskHash(hashes[i]);
  if (!any) {
    if (out.keys.data) std::copy(keys.begin(), keys.end(), out.keys.data + *n);
    *n += count;
    return Status();
  }
  const auto from = [&](const Rows& rows) {
    return rows.data == nullptr ? Rows() : Rows(rows[*n], count, rows.stride_bytes);
  };
  const RowParts these = {{}, from(out.values), from(out.slots), from(out.meta)};
  std::vector<Outcome> outcomes(hashes.size(), Outcome::kMissing);
  Batch batch;
  batch.keys = keys;
  DYNEMB_RETURN_IF_ERROR(tiers_->above()->ReadRows(OneThread(), batch, these, {outcomes, nullptr}));
  const int64_t found = std::count(outcomes.begin(), outcomes.end(), Outcome::kFound);
  tiers_->CountRead(found, count - found);
  std::vector<std::pair<Location, int64_t>> wanted;
  for (int64_t i = 0; found < count && i < count; ++i) {
    if (outcomes[static_cast<size_t>(i)] == Outcome::kFound) continue;
    const Location location = tiers_->below()->Find(hashes[static_cast<size_t>(i)]);
    if (location == kNowhere) continue;  // it has just been erased
    wanted.emplace_back(location, i);
    outcomes[static_cast<size_t>(i)] = Outcome::kFound;
  }
  DYNEMB_RETURN_IF_ERROR(ReadBelow(
      batch, PrepareReads(std::move(wanted)),
      [&](int64_t i, const char* row) { CopyRow(row, these, i); }, nullptr));
  // Those that are there move together.
  int64_t next = 0;
  for (int64_t i = 0; i < count; ++i) {
    if (outcomes[static_cast<size_t>(i)] != Outcome::kFound) continue;
    if (out.keys.data) out.keys[*n + next] = keys[static_cast<size_t>(i)];
    const auto move = [&](const Rows& rows, int64_t bytes) {
      if (rows.data != nullptr && next < i && bytes > 0) {
        std::memmove(rows[next], rows[i], static_cast<size_t>(bytes));
      }
    };
    move(these.values, layout_.value_bytes);
    move(these.slots, layout_.slots_bytes);
    move(these.meta, layout_.meta_bytes);
    ++next;
  }
  *n += next;
  return Status();
}

RowOrder Tiered::OrderOf(Key key, const char* meta, MetaField field) const {
  return {ReadInt64(meta + layout_.meta_field[static_cast<int>(field)]),
          Mix64(static_cast<uint64_t>(key))};
}

template <typename Visit>
Status Tiered::ForEachAbove(MetaField field, const Visit& visit) const {
  std::vector<Key> keys(static_cast<size_t>(kScanRows));
  std::vector<int64_t> meta(static_cast<size_t>(kScanRows * layout_.meta_bytes / 8));
  char* const bytes = reinterpret_cast<char*>(meta.data());
  Cursor cursor;
  while (!cursor.done) {
    RowParts out;
    out.keys = keys;
    out.meta = Rows(bytes, kScanRows, layout_.meta_bytes);
    int64_t count = 0;
    DYNEMB_RETURN_IF_ERROR(tiers_->above()->Export(OneThread(), &cursor, out, &count));
    for (int64_t i = 0; i < count; ++i) {
      const Key key = keys[static_cast<size_t>(i)];
      visit(key, OrderOf(key, out.meta[i], field));
    }
  }
  return Status();
}

template <typename Visit>
Status Tiered::ForEachOnlyBelow(MetaField field, const Visit& visit) const {
  if (tiers_->below()->empty()) return Status();
  std::vector<Key> keys;
  std::vector<RowOrder> orders;
  std::vector<Outcome> outcomes;
  const auto flush = [&] {
    DYNEMB_RETURN_IF_ERROR(tiers_->FindAbove(keys, &outcomes));
    for (size_t i = 0; i < keys.size(); ++i) {
      if (outcomes[i] == Outcome::kMissing) visit(keys[i], orders[i]);
    }
    keys.clear();
    orders.clear();
    return Status();
  };
  DYNEMB_RETURN_IF_ERROR(tiers_->below()->ForEachRow([&](Key key, const char* row) {
    keys.push_back(key);
    orders.push_back(OrderOf(key, row + layout_.meta_offset, field));
    return static_cast<int64_t>(keys.size()) < kScanRows ? Status() : flush();
  }));
  return flush();
}

}  // namespace dynemb

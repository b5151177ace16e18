// The calls of HostTable that go through its rows, or list those that have changed.
#include <algorithm>
#include <atomic>
#include <mutex>
#include <shared_mutex>
#include <vector>

#include "cc/core/base/fair_shared_mutex.h"
#include "cc/core/table/batch_order.h"
#include "cc/core/table/call_checks.h"
#include "cc/core/table/host_table_impl.h"
#include "cc/core/table/segment_scan.h"

namespace dynemb {

namespace {

constexpr int64_t kScanRows = 2048;  // that a scan goes through under one hold of a lock

}  // namespace

Status HostTable::Export(const Context& context, Cursor* cursor, const RowParts& out,
                         int64_t* rows) const {
  DYNEMB_RETURN_IF_ERROR(CheckContext(context));
  DYNEMB_RETURN_IF_ERROR(CheckExport(layout_, out));
  DYNEMB_RETURN_IF_ERROR(CheckTablePart(*cursor));
  if (cursor->position[1] > 1 + Stripes::kMaxBits) {
    return InvalidArgument("cursor: got a position that no export has given");
  }
  ScanPlace place(cursor->position[0], cursor->position[1]);
  const int first = FirstSegment(*cursor), end = EndSegment(*cursor);
  if (place.hash == 0 && place.bits == 0) {
    place = ScanPlace(first);
    cursor->done = cursor->done || first == end;
  }
  const bool whole_rows = out.values.data || out.slots.data || out.meta.data;
  int64_t n = 0;
  const auto copy = [&](const Segment& segment, const Segment::Entry& entry) {
    if (n == out.keys.size) return false;
    const char* const row = segment.row(entry.ref);
    if (!cursor->with_expired && HasExpired(row)) return true;
    if (out.keys.data) out.keys[n] = entry.key;
    CopyRow(row, out, n++);
    return true;
  };
  return OrNoMemory([&] {
    while (!cursor->done && n < out.keys.size) {
      const int s = BatchOrder::SegmentOf(place.hash);
      std::shared_lock<FairSharedMutex> lock(parts_[s]->mutex);
      const Segment& segment = parts_[s]->segment;
      const bool scanned =
          ScanSegment(segment, 0, whole_rows || expires() ? layout_.row_bytes : 0, &place,
                      [&](const Segment::Entry& entry) { return copy(segment, entry); });
      if (scanned) {
        cursor->done = s + 1 >= end;
        place = ScanPlace((s + 1) % kSegments);
      }
    }
    cursor->position[0] = place.hash;
    cursor->position[1] = place.bits;
    *rows = n;
  });
}

// Calls visit(entry, order) for the rows of a part, in slices of about kScanRows rows between
// which its lock is given back, and end_slice() before it is. A slice is a range of hashes, so that
// no row is met twice.
template <typename Lock, typename PartType, typename Visit, typename EndSlice>
void HostTable::ScanInSlices(PartType& part, int64_t number, MetaField field, const Visit& visit,
                             const EndSlice& end_slice) const {
  constexpr int kHashBits = 64 - BatchOrder::kSegmentBits;
  constexpr int kMostBits = 32;
  const int64_t offset = layout_.meta_offset + layout_.meta_field[static_cast<int>(field)];
  int bits = 0;  // of the number of a slice
  {
    std::shared_lock<FairSharedMutex> lock(part.mutex);
    while (bits < kMostBits && part.segment.size() >> bits > kScanRows) ++bits;
  }
  for (uint64_t slice = 0; slice < uint64_t{1} << bits; ++slice) {
    const uint64_t width = uint64_t{1} << (kHashBits - bits);
    const uint64_t first = (static_cast<uint64_t>(number) << kHashBits) + slice * width;
    const Lock lock(part.mutex);
    part.segment.ForEachInRange(
        {first, first + (width - 1)},
        [offset](const char* row) DYNEMB_INLINE_LAMBDA {
          __builtin_prefetch(row);  // where an erased row is linked
          __builtin_prefetch(row + offset);
        },
        [&](const Segment::Entry& entry) {
          visit(entry, RowOrder{ReadInt64(part.segment.row(entry.ref) + offset), entry.hash});
        });
    end_slice();
  }
}

Status HostTable::Histogram(const Context& context, MetaField field, const RowOrder& prefix,
                            int prefix_bits, Span<int64_t> counts) const {
  DYNEMB_RETURN_IF_ERROR(CheckContext(context));
  DYNEMB_RETURN_IF_ERROR(CheckMetaField(layout_, field));
  int bits;
  DYNEMB_RETURN_IF_ERROR(CheckCounts(counts, prefix_bits, &bits));
  std::mutex counts_mutex;
  // A few segments to a task, which counts for itself.
  const int64_t tasks = std::min<int64_t>(kSegments, 4 * context.executor->concurrency());
  return context.executor->Run(tasks, kNanosecondsPerSegment, [&](int64_t task) {
    std::vector<int64_t> own(counts.size);
    for (int64_t s = kSegments * task / tasks; s < kSegments * (task + 1) / tasks; ++s) {
      ScanInSlices<std::shared_lock<FairSharedMutex>>(
          *parts_[s], s, field,
          [&](const Segment::Entry&, const RowOrder& order) {
            const int64_t digit = DigitOf(order, prefix, prefix_bits, bits);
            if (digit >= 0) ++own[digit];
          },
          [] {});
    }
    std::lock_guard<std::mutex> lock(counts_mutex);
    for (int64_t b = 0; b < counts.size; ++b) counts[b] += own[b];
  });
}

Status HostTable::EraseBelow(const Context& context, MetaField field, const RowOrder& bound,
                             int64_t* erased) {
  DYNEMB_RETURN_IF_ERROR(CheckContext(context));
  DYNEMB_RETURN_IF_ERROR(CheckMetaField(layout_, field));
  std::atomic<int64_t> count{0};
  const Status done = context.executor->Run(kSegments, kNanosecondsPerSegment, [&](int64_t s) {
    LockedSegment& part = *parts_[s];
    std::vector<Segment::Entry> leaving;  // of a slice
    ScanInSlices<std::unique_lock<FairSharedMutex>>(
        part, s, field,
        [&](const Segment::Entry& entry, const RowOrder& order) {
          if (order < bound) leaving.push_back(entry);
        },
        [&] {
          for (const Segment::Entry& entry : leaving) part.EraseRow(entry.key, entry.hash);
          count.fetch_add(static_cast<int64_t>(leaving.size()), std::memory_order_relaxed);
          leaving.clear();
        });
  });
  *erased = count;
  counters_.Add(&TableCounters::erased, count);
  GiveBack(count);
  return done;
}

Status HostTable::BeginEpoch(const Context& context, int64_t epoch) {
  DYNEMB_RETURN_IF_ERROR(CheckContext(context));
  std::lock_guard<std::mutex> one_at_a_time(epoch_mutex_);
  if (epoch <= epoch_) return EpochNotLater(epoch, epoch_);
  for (auto& part : parts_) {
    std::unique_lock<FairSharedMutex> lock(part->mutex);
    part->changes.BeginEpoch(epoch, part->segment.size());
    part->segment.ClearMarks();
  }
  epoch_ = epoch;
  return Status();
}

Status HostTable::ChangedKeys(const Context& context, int64_t since, const TablePart& part,
                              std::vector<Key>* keys) const {
  DYNEMB_RETURN_IF_ERROR(CheckContext(context));
  DYNEMB_RETURN_IF_ERROR(CheckTablePart(part));
  keys->clear();
  bool known = true;
  DYNEMB_RETURN_IF_ERROR(OrNoMemory([&] {
    for (int s = FirstSegment(part); known && s < EndSegment(part); ++s) {
      const size_t begin = keys->size();
      {
        std::shared_lock<FairSharedMutex> lock(parts_[s]->mutex);
        known = parts_[s]->changes.AppendSince(since, keys);
      }
      ChangeLog::RemoveRepetitions(begin, keys);
    }
  }));
  if (known) return Status();
  keys->clear();
  return ChangesNotKnown(since);
}

void HostTable::TrimChanges(const std::vector<int64_t>& positions) {
  for (auto& part : parts_) {
    std::unique_lock<FairSharedMutex> lock(part->mutex);
    part->changes.Trim(positions);
  }
}

}  // namespace dynemb

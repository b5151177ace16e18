// The calls of HostTable that read by key.
#include <algorithm>
#include <mutex>
#include <utility>
#include <vector>

#include "cc/core/base/copy_bytes.h"
#include "cc/core/base/fair_shared_mutex.h"
#include "cc/core/table/batch_order.h"
#include "cc/core/table/call_checks.h"
#include "cc/core/table/call_report.h"
#include "cc/core/table/for_each_key.h"
#include "cc/core/table/host_table_impl.h"
#include "cc/core/table/read_locks.h"
#include "cc/core/table/use_marks.h"

namespace dynemb {

namespace {

constexpr int64_t kReadKeys = 2048;      // that a task reads under one hold of the locks
constexpr int64_t kLookedUpKeys = 8192;  // and of which it reads no row

}  // namespace

// Those keys of a batch that one task looks up. If there are use_marks, they are used.
template <typename PositionAt, typename KeyAt>
struct HostTable::KeysToRead {
  const HostTable* table;
  UseMarks* use_marks;
  int64_t begin, end;
  PositionAt position;
  KeyAt key;

  // As ForEachKey: visit(position, located).
  template <typename Visit, typename EndGroup>
  void ForEach(int64_t row_bytes, const Visit& visit, const EndGroup& end_group) const {
    ForEachKey(
        begin, end, row_bytes, key,
        [this](uint64_t hash) -> const Segment& { return table->SegmentOf(hash); },
        [marks = use_marks](int64_t, uint64_t hash) {
          if (marks != nullptr) marks->Prefetch(hash);
        },
        [this, &visit, at = position, marks = use_marks](int64_t i, const LocatedKey& key) {
          if (marks != nullptr) marks->Use(key.hash);
          if (key.row == nullptr || !table->HasExpired(key.row)) return visit(at(i), key);
          visit(at(i), LocatedKey{key.key, key.hash, Segment::kNone, nullptr, false});
        },
        end_group);
  }

  // Calls visit(key) for those that have no row that is marked. Reads no row, nor where it is.
  template <typename Visit>
  void ForEachNotMarked(const Visit& visit) const {
    uint64_t hashes[2][kKeysPerGroup];
    uint64_t *now = hashes[0], *next = hashes[1];
    const auto in_group = [this](int64_t group) {
      return std::clamp<int64_t>(end - group, 0, kKeysPerGroup);
    };
    const auto fetch = [&, marks = use_marks](int64_t group, uint64_t* to) {
      for (int64_t i = 0; i < in_group(group); ++i) {
        to[i] = Mix64(static_cast<uint64_t>(key(group + i)));
        table->SegmentOf(to[i]).PrefetchChunk(to[i]);
        if (marks != nullptr) marks->Prefetch(to[i]);
      }
    };
    fetch(begin, now);
    for (int64_t group = begin; group < end; group += kKeysPerGroup, std::swap(now, next)) {
      fetch(group + kKeysPerGroup, next);
      uint32_t later = 0;  // bit i: key i may be beyond its chunk, in one that is on its way
      for (int64_t i = 0; i < in_group(group); ++i) {
        bool beyond, marked;
        if (use_marks != nullptr) use_marks->Use(now[i]);
        table->SegmentOf(now[i]).FindAtHome(key(group + i), now[i], &beyond, &marked);
        later |= static_cast<uint32_t>(beyond) << i;
        if (!marked && !beyond) visit(key(group + i));
      }
      for (; later != 0; later &= later - 1) {
        const int i = __builtin_ctz(later);
        bool marked;
        table->SegmentOf(now[i]).FindBeyond(key(group + i), now[i], &marked);
        if (!marked) visit(key(group + i));
      }
    }
  }
};

// Calls read(keys) for the keys of each task, of which there are so many, with their segments held.
template <typename Read>
Status HostTable::ForEachShare(const Context& context, const Batch& batch, int64_t share_keys,
                               const Read& read) const {
  const int64_t n = batch.size();
  return context.executor->Run(
      (n + share_keys - 1) / share_keys, share_keys * kNanosecondsPerKey, [&](int64_t task) {
        const int64_t begin = task * share_keys, end = std::min(n, begin + share_keys);
        // On the stack, where no store to a row can change them.
        const int64_t* const selected = batch.select == nullptr ? nullptr : batch.select->at.data;
        const auto position = [selected](int64_t i) {
          return selected == nullptr ? i : selected[i];
        };
        const auto key = [keys = batch.keys.data, position](int64_t i) {
          return keys[position(i)];
        };
        const ReadLocks<kSegments> locks(
            begin, end,
            [&](int64_t i) { return BatchOrder::SegmentOf(Mix64(static_cast<uint64_t>(key(i)))); },
            [&](int s) { return &parts_[s]->mutex; });
        read(KeysToRead<decltype(position), decltype(key)>{this, context.use_marks, begin, end,
                                                           position, key});
      });
}

// The frame of all calls that read rows by key: calls read(keys, report) for each task's.
template <typename Read>
Status HostTable::ReadKeys(const Context& context, const Batch& batch, const Report& report,
                           const Read& read) const {
  CallReport whole(report);
  return ForEachShare(context, batch, kReadKeys, [&](const auto& keys) {
    TaskReport reported(report);
    read(keys, &reported);
    whole.Add(reported);
    counters_.Add(&TableCounters::found, keys.end - keys.begin - reported.left_out());
    counters_.Add(&TableCounters::missing, reported.left_out());
  });
}

Status HostTable::Find(const Context& context, const Batch& batch, Rows values,
                       const Report& report) const {
  DYNEMB_RETURN_IF_ERROR(CheckBatch(context, batch, report));
  DYNEMB_RETURN_IF_ERROR(CheckValues("values", batch, values, schema_.value_dtype, schema_.dim));
  return ReadKeys(context, batch, report, [&](const auto& keys, TaskReport* reported) {
    const int64_t bytes = layout_.value_bytes;
    const int64_t fetched = expires() ? layout_.row_bytes : bytes;
    RowCopy copies[kKeysPerGroup];
    int64_t count = 0;  // of the group's copies
    keys.ForEach(
        fetched,
        [&, bytes, values](int64_t position, const LocatedKey& at) {
          char* out = values[position];
          if (at.row != nullptr) {
            copies[count++] = {out, at.row};
          } else {
            fill_(missing_value_, at.key, layout_.dim, out);
          }
          reported->Set(position, at.row == nullptr ? Outcome::kMissing : Outcome::kFound);
        },
        [&] {
          copy_rows_(bytes, copies, count);
          count = 0;
        });
  });
}

Status HostTable::ReadRows(const Context& context, const Batch& batch, const RowParts& rows,
                           const Report& report) const {
  DYNEMB_RETURN_IF_ERROR(CheckBatch(context, batch, report));
  DYNEMB_RETURN_IF_ERROR(CheckRowsToRead(layout_, batch, rows));
  const bool any = rows.values.data || rows.slots.data || rows.meta.data;
  return ReadKeys(context, batch, report, [&](const auto& keys, TaskReport* reported) {
    keys.ForEach(
        any || expires() ? layout_.row_bytes : 0,
        [&](int64_t position, const LocatedKey& at) {
          if (at.row != nullptr) CopyRow(at.row, rows, position);
          reported->Set(position, at.row == nullptr ? Outcome::kMissing : Outcome::kFound);
        },
        [] {});
  });
}

Status HostTable::KeysNotDirty(const Context& context, const Batch& batch,
                               std::vector<Key>* keys) const {
  std::mutex mutex;  // of `keys`
  return ForEachShare(context, batch, kLookedUpKeys, [&](const auto& share) {
    std::vector<Key> some;
    share.ForEachNotMarked([&](Key key) { some.push_back(key); });
    if (some.empty()) return;
    const std::lock_guard<std::mutex> lock(mutex);
    keys->insert(keys->end(), some.begin(), some.end());
  });
}

}  // namespace dynemb

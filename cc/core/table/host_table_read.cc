// The calls of HostTable that read by key.
#include <algorithm>

#include "cc/core/base/copy_bytes.h"
#include "cc/core/base/fair_shared_mutex.h"
#include "cc/core/table/batch_order.h"
#include "cc/core/table/call_checks.h"
#include "cc/core/table/call_report.h"
#include "cc/core/table/for_each_key.h"
#include "cc/core/table/host_table_impl.h"
#include "cc/core/table/read_locks.h"

namespace dynemb {

namespace {

constexpr int64_t kReadKeys = 2048;  // that a task reads under one hold of the locks

}  // namespace

// Those keys of a batch that one task reads: ForEach(row_bytes, visit(position, located),
// end_group()), as ForEachKey.
template <typename PositionAt, typename KeyAt>
struct HostTable::KeysToRead {
  const HostTable* table;
  int64_t begin, end;
  PositionAt position;
  KeyAt key;

  template <typename Visit, typename EndGroup>
  void ForEach(int64_t row_bytes, const Visit& visit, const EndGroup& end_group) const {
    ForEachKey(
        begin, end, row_bytes, key,
        [this](uint64_t hash) -> const Segment& { return table->SegmentOf(hash); }, [](int64_t) {},
        [this, &visit, at = position](int64_t i, const LocatedKey& key) {
          if (key.row == nullptr || !table->HasExpired(key.row)) return visit(at(i), key);
          visit(at(i), LocatedKey{key.key, key.hash, Segment::kNone, nullptr, false});
        },
        end_group);
  }
};

// The frame of all calls that read by key: calls read(keys, report) for each task's, with their
// segments held.
template <typename Read>
Status HostTable::ReadKeys(const Context& context, const Batch& batch, const Report& report,
                           const Read& read) const {
  const int64_t n = batch.select == nullptr ? batch.keys.size : *batch.select->count;
  CallReport whole(report);
  return context.executor->Run(
      (n + kReadKeys - 1) / kReadKeys, kReadKeys * kNanosecondsPerKey, [&](int64_t task) {
        const int64_t begin = task * kReadKeys, end = std::min(n, begin + kReadKeys);
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
        TaskReport reported(report);
        read(KeysToRead<decltype(position), decltype(key)>{this, begin, end, position, key},
             &reported);
        whole.Add(reported);
        counters_.Add(&TableCounters::found, reported.count(Outcome::kFound));
        counters_.Add(&TableCounters::missing, reported.count(Outcome::kMissing));
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

}  // namespace dynemb

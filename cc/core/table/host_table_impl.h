// HostTable, as its own files see it. host_table.cc makes tables and asks them for their size; the
// others have the calls of one kind: host_table_read.cc, host_table_write.cc, host_table_scan.cc,
// host_table_move.cc.
#ifndef TF_DYNEMB_CC_CORE_TABLE_HOST_TABLE_IMPL_H_
#define TF_DYNEMB_CC_CORE_TABLE_HOST_TABLE_IMPL_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "cc/core/base/copy_bytes.h"
#include "cc/core/table/batch_order.h"
#include "cc/core/table/call_report.h"
#include "cc/core/table/evictor.h"
#include "cc/core/table/for_each_key.h"
#include "cc/core/table/host_table.h"
#include "cc/core/table/locked_segment.h"
#include "cc/core/table/row_budget.h"
#include "cc/core/table/shared_counters.h"
#include "cc/core/table/value_functions.h"

namespace dynemb {

class HostTable final : public CacheTable {
 public:
  // Errors: a schema or options that are not valid, a limit that not one row fits into, no memory.
  static Status Make(const TableSchema& schema, TableOptions options,
                     std::unique_ptr<HostTable>* table);
  HostTable(const TableSchema& schema, const TableOptions& options,
            std::shared_ptr<SlabArena> index_arena);
  ~HostTable() override;

  MemorySpace space() const override { return MemorySpace::kHost; }
  const TableSchema& schema() const override { return schema_; }
  int64_t size() const override;
  int64_t room() const override;
  int64_t max_rows() const override;
  EvictedRows* evicted() const override { return options_.evicted.get(); }
  TableCounters counters() const override { return counters_.Read(); }
  int64_t memory_bytes() const override;

  Status Find(const Context& context, const Batch& batch, Rows values,
              const Report& report) const override;
  Status ReadRows(const Context& context, const Batch& batch, const RowParts& rows,
                  const Report& report) const override;
  Status KeysNotDirty(const Context& context, const Batch& batch,
                      std::vector<Key>* keys) const override;

  Status Apply(const Context& context, const Batch& batch, ConstRows gradients,
               const Update& update, const Stamp& stamp, const Report& report) override;
  Status Upsert(const Context& context, const Batch& batch, ConstRows values, const Stamp& stamp,
                const Report& report) override;
  Status Accumulate(const Context& context, const Batch& batch, ConstRows values_or_deltas,
                    Span<const bool> exists, const Stamp& stamp, const Report& report) override;
  Status Erase(const Context& context, const Batch& batch, const Report& report) override;
  Status InsertRows(const Context& context, const Batch& batch, const ConstRowParts& rows,
                    const RowParts& displaced, const Report& report) override;
  void Clean(Span<const Key> keys) override;

  Status RemoveExpired(const Context& context) override;
  Status SweepExpired(const Context& context, int64_t rows) override;
  Status Clear(const Context& context) override;
  Status Reserve(const Context& context, int64_t rows) override;

  Status Export(const Context& context, Cursor* cursor, const RowParts& out,
                int64_t* rows) const override;
  Status Histogram(const Context& context, MetaField field, const RowOrder& prefix, int prefix_bits,
                   Span<int64_t> counts) const override;
  Status EraseBelow(const Context& context, MetaField field, const RowOrder& bound,
                    int64_t* erased) override;
  Status BeginEpoch(const Context& context, int64_t epoch) override;
  int64_t epoch() const override { return epoch_; }
  Status ChangedKeys(const Context& context, int64_t since, const TablePart& part,
                     std::vector<Key>* keys) const override;
  void TrimChanges(const std::vector<int64_t>& positions) override;

  Status PrepareMove(const Context& context, const TableSchema& schema,
                     std::unique_ptr<RowMove>* move) override;

 private:
  static constexpr int kSegments = BatchOrder::kSegments;
  static constexpr int64_t kNanosecondsPerKey = 50;
  static constexpr int64_t kNanosecondsPerSegment = 1'000'000;

  const Segment& SegmentOf(uint64_t hash) const {
    return parts_[BatchOrder::SegmentOf(hash)]->segment;
  }
  bool evicts() const {
    return options_.eviction.evicts() && options_.removes == TableOptions::Removes::kAll;
  }
  bool expires() const { return options_.eviction.expires(); }
  bool HasExpired(const char* row) const { return expires() && evictor_->HasExpired(row); }
  // Copies a row to row i of `out`, the parts that it has buffers for.
  void CopyRow(const char* row, const RowParts& out, int64_t i) const {
    if (out.values.data) CopyBytes(out.values[i], row, layout_.value_bytes);
    if (out.slots.data) CopyBytes(out.slots[i], row + layout_.slots_offset, layout_.slots_bytes);
    if (out.meta.data) CopyBytes(out.meta[i], row + layout_.meta_offset, layout_.meta_bytes);
  }
  void GiveBack(int64_t rows) {
    if (options_.budget != nullptr) options_.budget->Give(rows);
  }

  // --- host_table.cc: limits ---
  static std::shared_ptr<SlabArena> NewIndexArena();
  // Gives the options of a bounded table a budget, if they have none. Errors: not one row fits into
  // max_bytes.
  static Status SetBudget(const RowLayout& layout, int64_t index_bytes, TableOptions* options);
  // How many rows the index of each segment is made for, of a table that is bounded by max_bytes.
  int64_t RowsOfIndex() const;
  // Takes the memory of the index of a table that is bounded by max_bytes, and makes sure that no
  // more than these is taken.
  Status ReserveWithin();
  Status LimitArenas();

  // --- host_table_read.cc ---
  template <typename PositionAt, typename KeyAt>
  struct KeysToRead;
  template <typename Read>
  Status ForEachShare(const Context& context, const Batch& batch, int64_t share_keys,
                      const Read& read) const;
  template <typename Read>
  Status ReadKeys(const Context& context, const Batch& batch, const Report& report,
                  const Read& read) const;

  // --- host_table_write.cc ---
  struct Entry;
  struct Task;
  struct CallStamp;
  template <typename Which, typename WriteKey, typename EndGroup>
  struct WriteCall;
  // Which missing keys a call inserts, by their positions.
  struct Always;
  struct Never;
  struct WholeRows;

  template <typename Which, typename WriteKey>
  Status WriteKeys(const Context& context, const Batch& batch, const ConstRows& inputs,
                   const Report& report, const Which& inserts, const WriteKey& write_key);
  template <typename Which, typename WriteKey, typename EndGroup>
  Status WriteKeys(const Context& context, const Batch& batch, const ConstRows& inputs,
                   int64_t scratch_bytes, const Report& report, const Which& inserts,
                   const WriteKey& write_key, const EndGroup& end_group);
  template <typename Call>
  Status WriteInOrder(Call* call, BatchOrder* order, std::vector<Span<const int64_t>>* deferred);
  void Count(Task* done, RowBudget::Taken* taken);

  template <typename Which>
  Status TakeForMissing(const Context& context, BatchOrder* order, const Which& inserts,
                        RowBudget::Taken* taken);
  Status MakeRoom(const Context& context, int64_t rows, RowBudget::Taken* taken);
  Status RemoveExpired(const Context& context, int64_t rows, RowBudget::Taken* taken);
  std::vector<int64_t> LeaveOut(Span<const Span<const int64_t>> keys, int64_t most, Outcome outcome,
                                const Report& report, CallReport* whole);
  template <typename Which>
  bool Before(const Which& which, Span<const int64_t> a, Span<const int64_t> b) const;
  bool Before(const WholeRows& which, Span<const int64_t> a, Span<const int64_t> b) const;

  static bool Insert(Entry* entry);
  bool InsertInitial(Entry* entry) const;
  void EraseExpired(Entry* entry, Task* task) const;
  CallStamp Stamped(const Stamp& stamp) const;
  void StampMeta(const CallStamp& stamp, char* row) const;
  void GiveScore(const CallStamp& stamp, const Entry& entry) const;
  void NoteTime(char* row);
  void Wrote(const CallStamp& stamp, const Entry& entry, Task* task) const;
  static void Changed(const Entry& entry, Task* task);
  void ListChanges(LockedSegment* part, Task* task) const;

  // --- host_table_scan.cc ---
  static int FirstSegment(const TablePart& part) {
    return static_cast<int>(kSegments * part.part / part.parts);
  }
  static int EndSegment(const TablePart& part) {
    return static_cast<int>(kSegments * (part.part + 1) / part.parts);
  }
  template <typename Lock, typename PartType, typename Visit, typename EndSlice>
  void ScanInSlices(PartType& part, int64_t number, MetaField field, const Visit& visit,
                    const EndSlice& end_slice) const;

  // --- host_table_move.cc ---
  class Move;
  Status PrepareMoveWithin(const TableSchema& schema, std::unique_ptr<RowMove>* move);
  Status AllocateMove(std::unique_ptr<HostTable> to, std::unique_ptr<RowMove>* move);

  const TableSchema schema_;
  const RowLayout layout_;
  const TableOptions options_;
  const Initializer missing_value_;  // what a key without a row reads
  const FillFunction fill_;
  const AddFunction add_;
  const DType gradient_dtype_;
  const SumFunction sum_;  // of gradients
  const CopyRowsFunction copy_rows_ = FastestCopyRows();
  std::vector<char> initial_slots_;  // of a row; never empty, for it is copied from
  SlabArena row_arena_{int64_t{4} << 20};
  const std::shared_ptr<SlabArena> index_arena_;  // of the table whose rows this one took, too
  LockedSegments parts_;
  mutable std::optional<Evictor> evictor_;  // where the options have a policy
  mutable SharedCounters counters_;
  std::mutex epoch_mutex_;
  std::atomic<int64_t> epoch_{0};  // written under the mutex
};

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_CORE_TABLE_HOST_TABLE_IMPL_H_

// GpuTableOfMemory, as its own files see it: the table in a GPU's memory. gpu_table.cu makes
// tables, reads them and moves their rows; gpu_table_write.cu has the calls that change rows by
// key, gpu_table_together.cu those of several tables in the same kernels, gpu_table_evict.cu how
// rows leave, gpu_table_scan.cu the calls that go through all rows.
#ifndef TF_DYNEMB_CC_GPU_TABLE_GPU_TABLE_IMPL_H_
#define TF_DYNEMB_CC_GPU_TABLE_GPU_TABLE_IMPL_H_

#include <algorithm>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "cc/core/base/fair_shared_mutex.h"
#include "cc/core/table/row_scores.h"
#include "cc/gpu/for_each.cu.h"
#include "cc/gpu/table/admit_rows.h"
#include "cc/gpu/table/apply_rows.h"
#include "cc/gpu/table/call_arguments.h"
#include "cc/gpu/table/device_guard.h"
#include "cc/gpu/table/erase_log.h"
#include "cc/gpu/table/evict_rows.h"
#include "cc/gpu/table/find_rows.cu.h"
#include "cc/gpu/table/gpu_index.h"
#include "cc/gpu/table/gpu_table.h"
#include "cc/gpu/table/initial_rows.h"
#include "cc/gpu/table/known_counts.h"
#include "cc/gpu/table/left_rows.h"
#include "cc/gpu/table/row_store.h"
#include "cc/gpu/table/scan_rows.cu.h"
#include "cc/gpu/table/scratch.h"
#include "cc/gpu/table/stream_order.h"
#include "cc/gpu/table/write_rows.cu.h"

namespace dynemb {

class GpuTableOfMemory final : public GpuTable {
 public:
  GpuTableOfMemory(const TableSchema& schema, DeviceMemory* memory);
  ~GpuTableOfMemory() override;

  Status Init(const TableOptions& options);

  MemorySpace space() const override { return memory_->space(); }
  const TableSchema& schema() const override { return schema_; }

  Status Find(const Context& context, const Batch& batch, Rows values,
              const Report& report) const override;
  Status ReadRows(const Context& context, const Batch& batch, const RowParts& rows,
                  const Report& report) const override;
  Status FindBags(const Context& context, const DeviceBags& bags, Rows out) const override;

  Status Apply(const Context& context, const Batch& batch, ConstRows gradients,
               const Update& update, const Stamp& stamp, const Report& report) override;
  Status Upsert(const Context& context, const Batch& batch, ConstRows values, const Stamp& stamp,
                const Report& report) override;
  Status Accumulate(const Context& context, const Batch& batch, ConstRows values_or_deltas,
                    Span<const bool> exists, const Stamp& stamp, const Report& report) override;
  Status Erase(const Context& context, const Batch& batch, const Report& report) override;
  Status InsertRows(const Context& context, const Batch& batch, const ConstRowParts& rows,
                    const RowParts& displaced, const Report& report) override;

  Status ApplyAdmitted(const Context& context, const Batch& batch, ConstRows gradients,
                       const Update& update, const Stamp& stamp, const Admission& admission,
                       int64_t* declined) override;

  Status Clear(const Context& context) override;
  Status Reserve(const Context& context, int64_t rows) override;
  Status RemoveExpired(const Context& context) override;

  Status Export(const Context& context, Cursor* cursor, const RowParts& out,
                int64_t* rows) const override;
  Status Histogram(const Context& context, MetaField field, const RowOrder& prefix, int prefix_bits,
                   Span<int64_t> counts) const override;
  Status EraseBelow(const Context& context, MetaField field, const RowOrder& bound,
                    int64_t* erased) override;

  Status BeginEpoch(const Context& context, int64_t epoch) override;
  int64_t epoch() const override;
  Status ChangedKeys(const Context& context, int64_t since, const TablePart& part,
                     std::vector<Key>* keys) const override;
  void TrimChanges(const std::vector<int64_t>& positions) override;

  Status PrepareMove(const Context& context, const TableSchema& schema,
                     std::unique_ptr<RowMove>* move) override;

  // What others may insert meanwhile is not counted.
  int64_t room() const override;
  bool HasRoom(int64_t rows) const override;
  int64_t max_rows() const override { return max_rows_ < 0 ? INT64_MAX : max_rows_; }
  int64_t size() const override;
  TableCounters counters() const override;
  EvictedRows* evicted() const override { return options_.evicted.get(); }
  int64_t memory_bytes() const override;
  int device() const override { return device_; }
  int64_t index_cells() const override;

  // gpu_table_together.cu
  // Of tables whose values have the same dtype and dim.
  static Status FindBagsInOne(const Context& context, const std::vector<const BagsOfTable*>& calls);
  // Whether the call can be one of ApplyInOne.
  bool AppliesInOne(const ApplyOfTable& call) const;
  // Of different tables whose values have the same dtype and dim, and one rule. *begun: false and
  // an error: nothing has been done.
  static Status ApplyInOne(const Context& context, const std::vector<const ApplyOfTable*>& calls,
                           bool* begun);
  Status CheckBags(const Context& context, const DeviceBags& bags, const Rows& out) const;
  Status CheckApply(const Context& context, const Batch& batch, const ConstRows& gradients,
                    const Update& update, const Stamp& stamp, const Report& report) const;

 private:
  class Move;
  class ApplyCalls;
  // How a call that changes rows works.
  struct How {
    bool in_order = false;      // it looks at all entries of a key, in their order
    int64_t scratch_bytes = 0;  // that it takes for itself
    bool each_reports = false;  // entries have outcomes of their own
    bool last_counts = false;   // of the entries of a key
    bool whole_rows = false;    // they come with scores
  };

  bool evicts() const {
    return options_.eviction.evicts() && options_.removes == TableOptions::Removes::kAll;
  }
  bool expires() const { return options_.eviction.expires(); }
  // Whether a full table goes on.
  bool goes_on() const {
    return max_rows_ >= 0 && (evicts() || options_.on_full == OnFull::kDecline);
  }
  // How many rows of InsertRows a table that evicts takes before it evicts again.
  static int64_t RowsPutBackAtOnce(int64_t max_rows) { return max_rows / 16 + 64; }
  // How many rows a bounded table has at any moment.
  int64_t RowsAtMost() const { return max_rows_ + (evicts() ? RowsPutBackAtOnce(max_rows_) : 0); }

  // Runs a call when it is its turn, on the table's device.
  template <typename F>
  Status InTurn(const Context& context, bool writes, const F& call) const {
    std::lock_guard<FairSharedMutex> lock(mutex_);
    const DeviceGuard guard(device_);
    DYNEMB_RETURN_IF_ERROR(order_.Begin(context, writes));
    const Status status = OrNoMemory(call);
    const Status ended = order_.End(context, writes);
    return status.ok() ? ended : status;
  }
  // The same for a call of several tables, which may be named more than once, on the same device.
  template <typename F>
  static Status InTurnOfAll(const Context& context, std::vector<const GpuTableOfMemory*> tables,
                            bool writes, const F& call);
  // For the table's own waits.
  Context OwnContext() const;

  template <typename Body>
  Status ForEachRow(const Context& context, int64_t n, const Body& body) const {
    return ForEachTile<0>(context, n, body, RowWidth());
  }
  int RowWidth() const { return TileWidth(layout_.row_bytes / 16); }
  static Status BeginReport(const Context& context, const Reports& reports) {
    if (reports.miss_count == nullptr) return {};
    return FillBytes(context, reports.miss_count, 0, sizeof(int64_t));
  }
  const InitialValues& missing_values() const {
    return (options_.missing_value ? missing_ : initial_).values();
  }
  LiveRows live_rows() const { return {index_.view(), rows_.view(), expiry()}; }
  Expiry expiry() const;
  RowMarks marks() const { return rows_.marks(epoch_); }
  InitialSlots initial_slots() const {
    return {initial_.slots(), layout_.slots_offset, layout_.slots_bytes};
  }
  ApplyCall CallOf(const GroupedBatch& grouped, const ConstRows& gradients, const Update& update,
                   const RowStamp& stamp) const {
    return {grouped, gradients, update, rows_.view(), marks(), layout_, stamp, initial_.values()};
  }
  // Of the row, where a number of its meta begins.
  int64_t FieldOffset(MetaField field) const {
    return layout_.meta_offset + layout_.meta_field[static_cast<int>(field)];
  }

  // gpu_table.cu
  // What the table may have, where so many bytes are taken already for these parts.
  struct Taken {
    int64_t index = 0, marks = 0, free_rows = 0;
  };
  Status SetLimits(const Taken& taken);
  // An index of the size that it will have, of a table that is bounded by max_bytes.
  Status ReserveWithin(const Context& context);
  Status SetInitialRows(const Context& context);
  Status StartEpoch(const Context& context, int64_t epoch);
  Status PrepareLimits(const Context& context, const RowCounts& counts, GpuTableOfMemory* to) const;
  // What a move needs, so that MoveTo needs nothing more.
  Status PrepareRows(const Context& context, GpuTableOfMemory* to) const;
  void MoveTo(const Context& context, GpuTableOfMemory* to);
  Status Convert(const Context& context, int64_t first, int64_t n,
                 const GpuTableOfMemory& to) const;

  // gpu_table_write.cu
  // Loads the kernels that end a call that has failed.
  Status LoadKernels(const Context& context);
  // What a call writes to the meta of its rows: where the policy goes by time, that does not fall.
  RowStamp Stamped(Stamp stamp);
  // The clock goes by the times of rows that InsertRows has put in. Waits for the stream.
  Status NoteLatestTime(const Context& context);
  template <typename Wanted, typename Work>
  Status Write(const Context& context, const Batch& batch, const Report& report, const How& how,
               const Wanted& wanted, const Work& work);
  template <typename Wanted, typename Work>
  Status InsertMissing(const Context& context, const How& how, const Wanted& wanted,
                       const Work& work, const Reports& reports, const Expiry& expiry,
                       GroupedBatch* grouped);
  template <typename Wanted, typename Work>
  Status PutBack(const Context& context, const How& how, const Wanted& wanted, const Work& work,
                 const Reports& reports, GroupedBatch* grouped);
  template <typename Wanted, typename Work>
  Status InsertAndWork(const Context& context, const Wanted& wanted, const Work& work,
                       int64_t max_rows, int64_t limit, const GroupedBatch& grouped, bool* worked);
  template <typename Wanted, typename WriteFound>
  Status MakeRoomForMissing(const Context& context, const GroupedBatch& grouped,
                            const Wanted& wanted, bool refuses, const Expiry& expiry,
                            const WriteFound& write_found);
  Status ReportAll(const Context& context, const GroupedBatch& grouped, const How& how,
                   const Reports& reports) const;
  static Status SayFull(const Context& context, const Entries& entries, const Reports& reports,
                        const Status& error);
  Status MakeRoom(const Context& context, int64_t inserting, int64_t max_rows, int64_t* limit);
  // kResourceExhausted: keys of the call found no room. Waits for the stream.
  Status SayWhetherFull(const Context& context);
  int64_t Headroom(int64_t inserting) const;

  // gpu_table_evict.cu
  // Before a call that erases at most so many rows.
  Status BeginErasing(const Context& context, int64_t most, FreedRows* freed);
  // Before and after a call by which at most so many rows leave by the policy. `all`: there must be
  // room to keep all of them, if they are kept.
  Status BeginLeaving(const Context& context, int64_t most, bool all, FreedRows* freed);
  // *overflow: some found no room to be kept in, and stayed.
  Status EndLeaving(const Context& context, const FreedRows& freed, bool* overflow);
  // Takes the erased keys to the host, which forgets them where it has no memory. Waits for the
  // stream.
  Status DrainErased(const Context& context, bool* overflow = nullptr) const;
  // Removes the rows of the lowest scores until there are no more than `rows`. Waits for the
  // stream.
  Status EvictDownTo(const Context& context, int64_t rows);
  // Removes the rows of the batch's keys that have expired.
  Status EraseExpired(const Context& context, const GroupedBatch& grouped);
  // At the end of a call: looks at some rows and removes those that have expired.
  Status RemoveSomeExpired(const Context& context, const Expiry& expiry,
                           const GroupedBatch& grouped, bool inserts);
  // Removes all that have; waits for the stream.
  Status RemoveAllExpired(const Context& context, const Expiry& expiry);
  template <typename Which>
  Status EraseSlice(const Context& context, const Which& which, uint64_t* first, bool* done,
                    int64_t* erased);

  // gpu_table_scan.cu
  // The first hash of a part of the table; of all parts 2^64, which is 0.
  static uint64_t FirstHash(const TablePart& of, int64_t part) {
    return (static_cast<uint64_t>(part) << 32) / static_cast<uint64_t>(of.parts) << 32;
  }
  // How many upper halves of hashes have their homes in so many chunks.
  uint64_t SliceWidth(int64_t chunks) const;
  // The last hash of a slice that is so wide and does not go beyond `last`.
  static uint64_t EndOfSlice(uint64_t first, uint64_t last, uint64_t width) {
    const uint64_t left = (last >> 32) - (first >> 32);
    return width > left ? last : (((first >> 32) + width) << 32) - 1;
  }
  Status CollectChanges(const Context& context, int64_t since, const TablePart& part,
                        std::vector<Key>* keys) const;
  Status CollectWritten(const Context& context, int64_t since, uint64_t first, uint64_t last,
                        std::vector<Key>* keys) const;
  Status CollectWritten(const Context& context, const CollectChanged& collect, uint64_t first,
                        uint64_t last, std::vector<Key>* keys) const;
  Status ExportNext(const Context& context, Cursor* cursor, const RowParts& out,
                    int64_t* rows) const;
  Status ExportRange(const Context& context, uint64_t first, uint64_t last, const Expiry& hidden,
                     const RowParts& out, int64_t* found) const;

  std::optional<DeviceGuard> at_end_;  // while all members below give their memory back
  DeviceMemory* const memory_;
  int device_ = -1;  // where the memory is; -1: on the host
  TableOptions options_;
  int64_t max_rows_ = -1;  // by max_rows and max_bytes; negative: any number
  const TableSchema schema_;
  const RowLayout layout_;
  // Held while a call is put into its stream. Fair, so that a call of many slices lets others
  // through.
  mutable FairSharedMutex mutex_;
  mutable StreamOrder order_;
  int64_t epoch_ = 0;  // 0: changes are not tracked
  GpuIndex index_;
  RowStore rows_;
  mutable KnownCounts counts_;
  mutable Scratch scratch_;
  mutable CallArguments arguments_;  // of calls of several tables, this one the first
  InitialRows initial_, missing_;    // what new rows hold; what Find gives for a missing one
  DeviceBuffer decay_logs_;
  mutable EraseLog erased_;
  int waits_in_vain_ = 0;  // one after the other, for counts that would not have been needed
  Scratch room_scratch_;
  CandidateRows candidates_;
  RowAdmitter admitter_;
  LeftRows left_;                         // rows that leave, on their way to options_.evicted
  uint64_t hand_ = 0, expired_hand_ = 0;  // upper halves of the hashes where removing goes on
  uint64_t heads_ = 0, inserted_ = 0;     // RowCounts' after the last RemoveSomeExpired
  TableCounters counters_;                // what the host counts
  // What ExportRange has found, in the scratch memory.
  struct Range {
    uint64_t* hashes;
    RowRef* rows;
  };
  mutable Range range_ = {};
};

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_GPU_TABLE_GPU_TABLE_IMPL_H_

// GpuTieredTable: a table whose rows are in a GPU's memory as far as a budget of bytes allows, and
// in a table of the host's memory otherwise, which may itself have rows on disk. What it says and
// holds is what one table in the GPU's memory would, to the last bit.
//
// Where a row is. Above: in a GpuTable that is bounded by the budget. Below: in any table of the
// host's memory. A row is in one of the two, whole, and moves whole.
//
// Calls. All work by key is the table above's: a call first has the rows of its batch above. The
// GPU finds which keys are missing there; these alone go to the host, and are looked up below.
// Their rows come up, others leave for them: of some that a hand passes over, in the order of
// hashes, those that no call has named for the longest time. Then the table above does the call.
// The host waits for the GPU once in a call of which no key is missing above, if there are rows
// below; and for each copy of those that move, where some are missing.
//
// A batch of more distinct keys than there is room for above is done in slices, each with all
// positions of its keys, for which all other rows go below. Gradients of a key that is more than 32
// times in such a batch may be rounded otherwise than in one that is not divided. The bags of one
// call are not divided: that is an error (FindBags).
//
// Limits. max_rows and the eviction policy are of both tiers together, and hold as those of a
// table in one place do (TableOptions, Evictor). A call that may insert more rows than there is
// room for is done in parts: first the keys that have rows, then rows leave, then the others come.
// A table of up to Evictor::kUnitRows rows evicts the same rows, a larger one the lowest of a
// sample of its own, of which the host reads the meta; of rows on disk below, it reads them whole.
// Rows expire in both by one clock, and each tier removes its own.
//
// Exports, histograms and restricts read rows where they are; exports come in the order of hashes,
// which no move changes.
//
// Changes are noted by the host, for moves are none: while they are tracked, keys and outcomes of
// all calls that write go there.
//
// Memory. The budget is of the rows and the index above. On top come some 8 to 16 bytes a row, for
// when they were used last, and what calls work in.
//
// Locks. One call at a time, also of those that read. The lock of the table below comes after it.
//
// Errors. That there is no memory, or the disk below fails, is the status of the call that needed
// it. No row is lost by it.
#ifndef TF_DYNEMB_CC_GPU_TABLE_GPU_TIERED_TABLE_H_
#define TF_DYNEMB_CC_GPU_TABLE_GPU_TIERED_TABLE_H_

#include <cstdint>
#include <functional>
#include <memory>

#include "cc/core/base/status.h"
#include "cc/core/table/evicted_rows.h"
#include "cc/core/table/row_scores.h"
#include "cc/core/table/table.h"
#include "cc/core/table/table_options.h"
#include "cc/gpu/table/device_memory.h"
#include "cc/gpu/table/gpu_table.h"

namespace dynemb {

// What there may be above; negative: any number. One of the two is given.
struct GpuBudget {
  int64_t max_bytes = -1;  // of rows and index
  int64_t max_rows = -1;
};

// Numbers of the tier above; those without "now" only grow.
struct GpuTierStats {
  int64_t rows_on_device = 0;    // now
  int64_t bytes_on_device = 0;   // now: of rows and index
  int64_t device_misses = 0;     // rows that came up because a call named them
  int64_t rows_left_device = 0;  // rows that went below

  template <typename Visit>
  static void ForEach(const Visit& visit) {
    visit("rows_on_device", &GpuTierStats::rows_on_device);
    visit("bytes_on_device", &GpuTierStats::bytes_on_device);
    visit("device_misses", &GpuTierStats::device_misses);
    visit("rows_left_device", &GpuTierStats::rows_left_device);
  }
};

class GpuTieredTable : public GpuTable {
 public:
  virtual GpuTierStats gpu_tier_stats() const = 0;
  virtual Table* below() const = 0;
  // Calls work(), during which all rows are below; all other calls wait for it.
  virtual Status WithAllBelow(const std::function<Status()>& work) = 0;
};

// The options of the table below one that has these, which get a clock if they have none: the rows
// below expire by the same one. They are never more than both may be together, but for what a disk
// has when it is opened again: of that the limit is the table's below.
inline TableOptions OptionsBelow(TableOptions* options) {
  if (options->clock == nullptr) options->clock = std::make_shared<PolicyClock>();
  TableOptions below = *options;
  below.track_changes = false;
  below.on_full = OnFull::kError;
  below.keep_evicted = 0;
  below.evicted = nullptr;
  if (options->eviction.evicts() || options->eviction.expires()) {
    below.evicted = std::make_shared<EvictedRows>(INT64_MAX);
  }
  return below;
}

// An empty table over `below`, which is empty, has the same schema and is of the host's memory.
// kInvalidArgument: options with max_bytes; no room for a row.
Status MakeGpuTieredTable(const TableSchema& schema, const TableOptions& options,
                          const GpuBudget& budget, DeviceMemory* memory,
                          std::unique_ptr<Table> below, std::unique_ptr<GpuTieredTable>* table);

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_GPU_TABLE_GPU_TIERED_TABLE_H_

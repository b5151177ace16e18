// GpuTable: the table in the memory of a GPU.
//
// The same contract as the table in host memory, in the order of streams: a call puts kernels into
// its context's stream and returns. Whatever depends on the data stays on the device. Calls of
// several streams are put in order by events, as by a lock for readers and writers.
//
// The host waits for the device in these calls alone: Export, EraseBelow, RemoveExpired,
// PrepareMove and its move, the first BeginEpoch, ChangedKeys, Clear, size, counters,
// ApplyAdmitted; FindBagsOfTables and ApplyToTables where four calls with the same first table are
// under way; InsertRows where a policy goes by time; of the calls that change rows those that
// take memory or find none left: before the table takes some for rows it asks how many there really
// are, and where calls have asked in vain one after the other it takes memory for some calls ahead,
// up to 4 MiB or an eighth of its rows; those that may exceed max_rows, for which it counts missing
// keys, and evicts; where rows expire those of a table that is bounded, that tracks changes or that
// keeps rows that have left; and, where changes are tracked, an Erase before which the list of
// erased keys in the GPU's memory, of 2^18 keys or those of the largest batch, may be full: the
// host takes them to its own memory.
//
// Changes. Beside each row lies a mark, of 8 bytes: the epoch in which it was last written; keys
// that were erased are listed with theirs. ChangedKeys looks at all marks. When more erased keys
// are listed than twice the largest number of rows that the table has had, and 2^18, the oldest
// epochs are forgotten.
//
// Room. A table refuses, declines or evicts as TableOptions say, by the same order of rows as the
// table in host memory. A full table that evicts takes rows of InsertRows some at a time, 1/16 of
// its rows or somewhat more, and has so many more than max_rows until it evicts again; max_bytes
// counts them, and marks. A move of rows to a larger size of them is not counted.
//
// Where it differs from the table in host memory:
// - Gradients of a key that is more than 32 times in a batch are added up in pieces. The sum is the
//   same in every run, and may be rounded otherwise than the host's.
// - Positions of a selection that lie outside of the batch are left out; they are no error, for the
//   host does not see them.
// - A move of rows needs room for them as they were and as they become.
#ifndef TF_DYNEMB_CC_GPU_TABLE_GPU_TABLE_H_
#define TF_DYNEMB_CC_GPU_TABLE_GPU_TABLE_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "cc/core/base/context.h"
#include "cc/core/base/span.h"
#include "cc/core/base/status.h"
#include "cc/core/lookup/bags.h"
#include "cc/core/policy/admission.h"
#include "cc/core/table/table.h"
#include "cc/core/table/table_options.h"
#include "cc/gpu/table/device_memory.h"

namespace dynemb {

// The ids of bags in device memory: bag b has ids [begins[b], begins[b + 1]).
struct DeviceBags {
  Span<const Key> ids;
  Span<const int64_t> begins;  // one more than bags, ascending, from 0 to the number of ids
  Pooling pooling = Pooling::kSum;
  const char* weights = nullptr;  // one per id, numbers of the output's dtype; or none
};

class GpuTable : public Table {
 public:
  // Writes one vector per bag to `out`: numbers of GradientDType(value dtype). Ids without a row
  // count with their initial value; a bag without ids is zeros. Rows are pooled as they are read.
  // kInvalidArgument: Pooling::kNone, memory of another space, a number of rows that is not that of
  // the bags. Ends that lie outside of the ids are cut off.
  virtual Status FindBags(const Context& context, const DeviceBags& bags, Rows out) const = 0;

  // ApplyAdmitted of cc/core/policy/admission.h; the candidates are on the same GPU.
  virtual Status ApplyAdmitted(const Context& context, const Batch& batch, ConstRows gradients,
                               const Update& update, const Stamp& stamp, const Admission& admission,
                               int64_t* declined) = 0;

  // CUDA's number of the device that the table is on; -1: it runs on the host.
  virtual int device() const = 0;

  // How many keys the index has room for. Where keys are is found in about one cache line up to
  // nine tenths of that, beyond which it grows.
  virtual int64_t index_cells() const = 0;
};

// FindBags of several tables, which may be the same, in the same context. Tables whose values have
// the same dtype and dim are read by one kernel, however many there are. Returns the first error,
// which stops none of the others.
struct BagsOfTable {
  const GpuTable* table = nullptr;
  DeviceBags bags;
  Rows out;
};
Status FindBagsOfTables(const Context& context, const std::vector<BagsOfTable>& calls);

// Apply of several tables, likewise: those whose values have the same dtype and dim, and the same
// rule, are changed by the same kernels, unless they have limits, rows that expire, tiers, a
// selection of the batch or IfMissing::kReport, which are called one after the other. Each table is
// as after a call of its own, to the last bit; so it is where there is no memory.
struct ApplyOfTable {
  GpuTable* table = nullptr;
  Batch batch;
  ConstRows gradients;
  Update update;
  Stamp stamp;
};
Status ApplyToTables(const Context& context, const std::vector<ApplyOfTable>& calls);

// An empty table in the given memory, which must outlive it and those that its rows are moved to.
// Its rows are those of `device_memory`'s device. Errors: a schema that is not valid.
Status MakeGpuTable(const TableSchema& schema, const TableOptions& options, DeviceMemory* memory,
                    std::unique_ptr<GpuTable>* table);
inline Status MakeGpuTable(const TableSchema& schema, DeviceMemory* memory,
                           std::unique_ptr<GpuTable>* table) {
  return MakeGpuTable(schema, TableOptions(), memory, table);
}

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_GPU_TABLE_GPU_TABLE_H_

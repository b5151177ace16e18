// HostAccess: a GPU table as a table of the host's memory, for callers that work there: snapshots,
// whole rows, policies.
#ifndef TF_DYNEMB_CC_GPU_TABLE_HOST_ACCESS_H_
#define TF_DYNEMB_CC_GPU_TABLE_HOST_ACCESS_H_

#include <memory>

#include "cc/core/table/table.h"
#include "cc/gpu/table/device_memory.h"
#include "cc/gpu/table/gpu_table.h"

namespace dynemb {

// The table that everything is passed on to, through pinned memory that is as large as the largest
// call, or 16 MiB for whole rows: in one copy to the GPU before, and one back after. Calls run one
// at a time, in the stream of the memory, and have finished when they return. Rows move into a
// table that is a HostAccess, too, and holds the one that they came from.
class HostAccess : public Table {
 public:
  virtual const std::shared_ptr<GpuTable>& table() const = 0;
};

// `memory` is where the table is and must outlive it. Never null.
std::unique_ptr<HostAccess> MakeHostAccess(std::shared_ptr<GpuTable> table, DeviceMemory* memory);

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_GPU_TABLE_HOST_ACCESS_H_

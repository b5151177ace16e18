// HostAccess: a GPU table as a table of the host's memory, for whoever works there: snapshots,
// export and import, policies.
#ifndef TF_DYNEMB_CC_GPU_TABLE_HOST_ACCESS_H_
#define TF_DYNEMB_CC_GPU_TABLE_HOST_ACCESS_H_

#include <memory>

#include "cc/core/base/status.h"
#include "cc/core/table/table.h"
#include "cc/gpu/table/device_memory.h"
#include "cc/gpu/table/gpu_table.h"

namespace dynemb {

// The table that everything is passed on to, through pinned memory that is as large as the largest
// call: in one copy to the GPU before, and one back after. Calls run one at a time, and have
// finished when they return. `memory` is where the table is and must outlive it. Errors: no stream
// or no memory.
Status MakeHostAccess(std::shared_ptr<GpuTable> table, DeviceMemory* memory,
                      std::unique_ptr<Table>* access);

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_GPU_TABLE_HOST_ACCESS_H_

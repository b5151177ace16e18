// Brings the equal keys of a batch together: see grouped_batch.cu.h.
#ifndef TF_DYNEMB_CC_GPU_TABLE_GROUP_BATCH_H_
#define TF_DYNEMB_CC_GPU_TABLE_GROUP_BATCH_H_

#include <cstdint>
#include <vector>

#include "cc/core/base/context.h"
#include "cc/core/base/status.h"
#include "cc/core/table/table.h"
#include "cc/gpu/table/grouped_batch.cu.h"
#include "cc/gpu/table/launches.cu.h"
#include "cc/gpu/table/scratch.h"

namespace dynemb {

// Groups the entries of a batch, in order or not, in memory taken from `scratch`, in which it
// leaves `more_bytes` to be taken. Costs per key: two looks into a hash table of 12 to 24 bytes a
// key, which lies in the GPU's cache up to some million keys; in order, also a radix sort by the
// number of the group, three passes for a million keys. The result does not depend on the order of
// threads.
//
// kResourceExhausted: no memory; kInvalidArgument: 2^29 keys and more.
Status GroupBatch(const Context& context, const Batch& batch, bool in_order, int64_t more_bytes,
                  Scratch* scratch, GroupedBatch* grouped);

// The same for those of several tables, each by itself, with one sort for all.
Status GroupBatches(const std::vector<Batch>& batches, bool in_order, int64_t more_bytes,
                    Launches* launches, Scratch* scratch, std::vector<GroupedBatch>* grouped);

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_GPU_TABLE_GROUP_BATCH_H_

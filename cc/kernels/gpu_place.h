// What kernels do on the GPU that their op is placed on. Where the library is built without CUDA,
// no op is placed on one but with an error.
#ifndef TF_DYNEMB_CC_KERNELS_GPU_PLACE_H_
#define TF_DYNEMB_CC_KERNELS_GPU_PLACE_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "cc/core/base/context.h"
#include "cc/core/base/dtype.h"
#include "cc/core/base/span.h"
#include "cc/core/base/status.h"
#include "cc/core/table/table.h"
#include "cc/core/table/table_options.h"
#include "cc/gpu/table/gpu_table.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"

namespace dynemb {

// Whether the op is placed on a GPU.
bool OnGpu(tensorflow::OpKernelContext* context);

// Where the op is placed on a GPU: that one's memory and TensorFlow's stream. Otherwise nothing.
void UseGpu(tensorflow::OpKernelContext* context, Context* core);

// An empty table in TensorFlow's memory of the GPU that the op is placed on. It is called as one of
// the host's memory. kFailedPrecondition: built without CUDA; a GPU that is not CUDA's.
Status MakeGpuShard(tensorflow::OpKernelContext* context, const TableSchema& schema,
                    const TableOptions& options, std::shared_ptr<Table>* shard);

// The same with so many bytes there, over a table of the host's memory that has the other rows.
Status MakeGpuTieredShard(tensorflow::OpKernelContext* context, const TableSchema& schema,
                          const TableOptions& options, int64_t max_bytes,
                          std::unique_ptr<Table> below, std::shared_ptr<Table>* shard);

// The table as one of the memory where it is, to be called in the GPU's stream; one that is in the
// host's memory itself.
std::shared_ptr<Table> InPlace(const std::shared_ptr<Table>& shard);

// FindBagsOfTables and ApplyToTables of cc/gpu/table/gpu_table.h.
Status FindBagsInPlace(const Context& core, const std::vector<BagsOfTable>& calls);
Status ApplyInPlace(const Context& core, const std::vector<ApplyOfTable>& calls);

// GpuTable::ApplyAdmitted, likewise; ApplyAdmitted in host memory.
Status ApplyAdmittedInPlace(Table* table, const Context& core, const Batch& batch,
                            ConstRows gradients, const Update& update, const Stamp& stamp,
                            const Admission& admission, int64_t* declined);

// Copies to the host, and waits for it; and the other way, for which the host does not wait: what
// is copied is kept until it has been.
Status CopyFromGpu(const Context& core, void* to, const void* from, int64_t bytes);
Status CopyToGpu(const Context& core, void* to, const tensorflow::Tensor& from);

// Widen (cc/core/lookup/widen.h) in the memory of the context.
Status WidenInPlace(const Context& core, const Rows& rows, DType from, DType to, int64_t dim);

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_KERNELS_GPU_PLACE_H_

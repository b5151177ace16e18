#include "cc/core/lookup/widen.h"
#include "cc/kernels/gpu_place.h"

namespace dynemb {

using tensorflow::OpKernelContext;

namespace {

Status NoCuda() {
  return FailedPrecondition(
      "devices: the op library was built without CUDA, want CPUs; with a CUDA toolkit, "
      "./configure.sh and `make build` make one for GPUs");
}

}  // namespace

bool OnGpu(OpKernelContext* context) {
  return context->device()->parsed_name().type == tensorflow::DEVICE_GPU;
}

// There are no tables on GPUs, so that no op comes further than to look for its own.
void UseGpu(OpKernelContext*, Context*) {}

Status MakeGpuShard(OpKernelContext*, const TableSchema&, const TableOptions&,
                    std::shared_ptr<Table>*) {
  return NoCuda();
}

Status MakeGpuTieredShard(OpKernelContext*, const TableSchema&, const TableOptions&, int64_t,
                          std::unique_ptr<Table>, std::shared_ptr<Table>*) {
  return NoCuda();
}

std::shared_ptr<Table> InPlace(const std::shared_ptr<Table>& shard) { return shard; }

Status FindBagsInPlace(const Context&, const std::vector<BagsOfTable>&) { return NoCuda(); }
Status ApplyInPlace(const Context&, const std::vector<ApplyOfTable>&) { return NoCuda(); }
Status ApplyAdmittedInPlace(Table* table, const Context& core, const Batch& batch,
                            ConstRows gradients, const Update& update, const Stamp& stamp,
                            const Admission& admission, int64_t* declined) {
  return ApplyAdmitted(core, table, batch, gradients, update, stamp, admission, declined);
}
Status CopyFromGpu(const Context&, void*, const void*, int64_t) { return NoCuda(); }
Status CopyToGpu(const Context&, void*, const tensorflow::Tensor&) { return NoCuda(); }

Status WidenInPlace(const Context& core, const Rows& rows, DType from, DType to, int64_t dim) {
  return Widen(core, rows, from, to, dim);
}

}  // namespace dynemb

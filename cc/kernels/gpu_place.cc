#include "cc/kernels/gpu_place.h"

#include <cuda_runtime_api.h>

#include <atomic>
#include <string>
#include <utility>

#include "cc/core/lookup/widen.h"
#include "cc/gpu/table/device_buffer.h"
#include "cc/gpu/table/device_memory.h"
#include "cc/gpu/table/gpu_table.h"
#include "cc/gpu/table/gpu_tiered_table.h"
#include "cc/gpu/table/host_access.h"
#include "cc/gpu/table/widen_rows.h"
#include "tensorflow/core/framework/allocator.h"
#include "tensorflow/core/framework/device_base.h"
#include "tensorflow/core/public/version.h"

// In TensorFlow 2.19 stream_executor.h includes a class that needs headers of LLVM's, which
// TensorFlow's package does not have. Only a method that nothing here calls takes it: its name is
// enough. Newer versions need no LLVM there; the newest do not define TF_MINOR_VERSION.
#if TF_MINOR_VERSION == 19
#define XLA_STREAM_EXECUTOR_GPU_TMA_METADATA_H_
namespace stream_executor::gpu {
class TmaDescriptor {};
}  // namespace stream_executor::gpu
#endif

#include "xla/stream_executor/platform.h"
#include "xla/stream_executor/stream.h"
#include "xla/stream_executor/stream_executor.h"

namespace dynemb {

using tensorflow::OpKernelContext;

namespace {

// The one of tests, whose memory is the host's: cc/kernels/testing/host_gpu.cc.
constexpr char kHostGpu[] = "HOST_GPU";

stream_executor::Stream* StreamOf(OpKernelContext* context) {
  return context->op_device_context()->stream();
}

// Up to TensorFlow 2.16 an executor calls it otherwise.
template <typename Executor>
auto PlatformOf(const Executor& executor, int) -> decltype(executor.GetPlatform()) {
  return executor.GetPlatform();
}
template <typename Executor>
auto PlatformOf(const Executor& executor, int64_t) -> decltype(executor.platform()) {
  return executor.platform();
}

const std::string& Platform(OpKernelContext* context) {
  return PlatformOf(*StreamOf(context)->parent(), 0)->Name();
}

// What TensorFlow allocates a GPU's tensors from. It gives a block away that its stream may still
// work on; so tables work in that stream alone.
class TensorFlowMemory final : public DeviceMemory {
 public:
  TensorFlowMemory(tensorflow::Allocator* allocator, const Context& core)
      : allocator_(allocator), core_(core) {}
  MemorySpace space() const override { return core_.space; }
  void* stream() const override { return core_.stream; }
  void* Allocate(int64_t bytes) override {
    tensorflow::AllocationAttributes attributes;
    attributes.retry_on_failure = false;  // a table without memory says so
    return allocator_->AllocateRaw(tensorflow::Allocator::kAllocatorAlignment,
                                   static_cast<size_t>(bytes), attributes);
  }
  void Free(void* block) override { allocator_->DeallocateRaw(block); }

 private:
  tensorflow::Allocator* const allocator_;  // lives as long as the process
  const Context core_;
};

}  // namespace

bool OnGpu(OpKernelContext* context) {
  return context->device()->parsed_name().type == tensorflow::DEVICE_GPU;
}

void UseGpu(OpKernelContext* context, Context* core) {
  if (!OnGpu(context)) return;
  const bool is_simulated = Platform(context) == kHostGpu;
  core->space = is_simulated ? MemorySpace::kSimulatedDevice : MemorySpace::kDevice;
  core->stream = is_simulated ? nullptr : StreamOf(context)->platform_specific_handle().stream;
}

namespace {

// make(memory, &table) makes one of TensorFlow's memory of the op's GPU.
template <typename Made, typename Make>
Status MakeShardOn(OpKernelContext* context, const Make& make, std::shared_ptr<Table>* shard) {
  const std::string& platform = Platform(context);
  if (platform != "CUDA" && platform != kHostGpu) {
    return FailedPrecondition("devices: got a GPU of ", platform, ", want one of CUDA");
  }
  Context core;
  UseGpu(context, &core);
  const auto memory = std::make_shared<TensorFlowMemory>(
      context->device()->GetAllocator(tensorflow::AllocatorAttributes()), core);
  std::unique_ptr<Made> made;
  DYNEMB_RETURN_IF_ERROR(make(memory.get(), &made));
  std::shared_ptr<GpuTable> table(made.release(), [memory](GpuTable* held) { delete held; });
  *shard = MakeHostAccess(std::move(table), memory.get());
  return {};
}

}  // namespace

Status MakeGpuShard(OpKernelContext* context, const TableSchema& schema,
                    const TableOptions& options, std::shared_ptr<Table>* shard) {
  return MakeShardOn<GpuTable>(
      context,
      [&](DeviceMemory* memory, std::unique_ptr<GpuTable>* table) {
        return MakeGpuTable(schema, options, memory, table);
      },
      shard);
}

Status MakeGpuTieredShard(OpKernelContext* context, const TableSchema& schema,
                          const TableOptions& options, int64_t max_bytes,
                          std::unique_ptr<Table> below, std::shared_ptr<Table>* shard) {
  GpuBudget budget;
  budget.max_bytes = max_bytes;
  return MakeShardOn<GpuTieredTable>(
      context,
      [&](DeviceMemory* memory, std::unique_ptr<GpuTieredTable>* table) {
        return MakeGpuTieredTable(schema, options, budget, memory, std::move(below), table);
      },
      shard);
}

std::shared_ptr<Table> InPlace(const std::shared_ptr<Table>& shard) {
  const auto* access = dynamic_cast<const HostAccess*>(shard.get());
  return access == nullptr ? shard : access->table();
}

Status FindBagsInPlace(const Context& core, const std::vector<BagsOfTable>& calls) {
  return FindBagsOfTables(core, calls);
}

Status ApplyInPlace(const Context& core, const std::vector<ApplyOfTable>& calls) {
  return ApplyToTables(core, calls);
}

Status ApplyAdmittedInPlace(Table* table, const Context& core, const Batch& batch,
                            ConstRows gradients, const Update& update, const Stamp& stamp,
                            const Admission& admission, int64_t* declined) {
  if (core.space == MemorySpace::kHost) {
    return ApplyAdmitted(core, table, batch, gradients, update, stamp, admission, declined);
  }
  return static_cast<GpuTable*>(table)->ApplyAdmitted(core, batch, gradients, update, stamp,
                                                      admission, declined);
}

Status CopyFromGpu(const Context& core, void* to, const void* from, int64_t bytes) {
  DYNEMB_RETURN_IF_ERROR(CopyAny(core, to, from, bytes));
  return Wait(core);
}

namespace {

// Tensors that have been copied to a GPU, which the next copy frees: a host function of a stream
// must not take the allocator's lock, whose holder may wait for that stream.
struct CopiedTensor {
  tensorflow::Tensor tensor;
  CopiedTensor* next;
};
std::atomic<CopiedTensor*> copied_tensors{nullptr};

void FreeCopiedTensors() {
  for (CopiedTensor* each = copied_tensors.exchange(nullptr); each != nullptr;) {
    delete std::exchange(each, each->next);
  }
}
void CUDART_CB NoteCopied(void* tensor) {
  auto* const copied = static_cast<CopiedTensor*>(tensor);
  copied->next = copied_tensors.load();
  while (!copied_tensors.compare_exchange_weak(copied->next, copied)) {
  }
}

}  // namespace

Status CopyToGpu(const Context& core, void* to, const tensorflow::Tensor& from) {
  FreeCopiedTensors();
  auto held = std::make_unique<CopiedTensor>(CopiedTensor{from, nullptr});
  DYNEMB_RETURN_IF_ERROR(CopyAny(core, to, from.data(), static_cast<int64_t>(from.TotalBytes())));
  if (RunsOnHost(core.space)) return {};
  // If there is an error nobody can say whether it has been copied, and it is kept for good.
  return FromCuda(
      cudaLaunchHostFunc(static_cast<cudaStream_t>(core.stream), NoteCopied, held.release()),
      "holding what is copied to the GPU");
}

Status WidenInPlace(const Context& core, const Rows& rows, DType from, DType to, int64_t dim) {
  if (core.space != MemorySpace::kHost) return WidenOnGpu(core, rows, from, to, dim);
  return Widen(core, rows, from, to, dim);
}

}  // namespace dynemb

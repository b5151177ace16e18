// RowAdmitter: ApplyAdmitted (cc/core/policy/admission.h) of a table on a GPU.
#ifndef TF_DYNEMB_CC_GPU_TABLE_ADMIT_ROWS_H_
#define TF_DYNEMB_CC_GPU_TABLE_ADMIT_ROWS_H_

#include <cstdint>
#include <functional>
#include <mutex>

#include "cc/core/base/context.h"
#include "cc/core/base/span.h"
#include "cc/core/base/status.h"
#include "cc/core/policy/admission.h"
#include "cc/core/table/table.h"
#include "cc/gpu/table/scratch.h"
#include "cc/gpu/table/stream_order.h"

namespace dynemb {

// What can be checked about the admission of a batch for a table in this memory.
Status CheckAdmission(const Batch& batch, const Admission& admission, MemorySpace space);

// Calls from several threads run one after the other. Each waits for its stream, to hear how many
// keys are missing; where some are, once more, to hear how many are admitted. Of a policy with a
// sketch the host decides about the missing keys (AdmitMissing).
class RowAdmitter {
 public:
  explicit RowAdmitter(DeviceMemory* memory) : scratch_(memory), group_scratch_(memory) {}
  ~RowAdmitter() { static_cast<void>(order_.WaitForAll()); }

  // *declined: how many distinct keys were not admitted. The candidates are on the same GPU; those
  // of a policy with a sketch, and the sketch, are called through the host.
  Status Apply(const Context& context, Table* table, const Batch& batch, ConstRows gradients,
               const Update& update, const Stamp& stamp, const Admission& admission,
               int64_t* declined);

 private:
  Status Run(const Context& context, Table* table, const Batch& batch, ConstRows gradients,
             const Update& update, const Stamp& stamp, const Admission& admission,
             int64_t* declined);
  // The positions with this outcome, in their order. Waits for the stream.
  Status Select(const Context& context, Outcome outcome, int64_t* at, Positions* positions);
  // How many distinct keys there are. Waits for the stream.
  Status CountDistinct(const Context& context, const Batch& batch, int64_t* count);
  // Does all that follows for a policy with a sketch; the memory at admitted.at is free.
  Status AdmitOnHost(const Context& context, Span<const Key> keys, const Positions& missing,
                     Positions* admitted, const Admission& admission,
                     const std::function<Status()>& insert, int64_t* declined);
  // Sets the outcome of those missing keys to kInserted that are admitted.
  Status Judge(const Context& context, const Batch& missing, const Admission& admission);
  // Keys that are not admitted have occurred; those that are, are no candidates any more.
  Status UpdateCandidates(const Context& context, const Batch& declined, const Batch& admitted,
                          const Admission& admission);

  std::mutex mutex_;
  StreamOrder order_;
  Scratch scratch_, group_scratch_;
  // In the scratch memory, by position.
  int64_t size_ = 0;
  Outcome* outcomes_ = nullptr;
  float* counts_ = nullptr;
  uint32_t* distinct_ = nullptr;
  char* temp_ = nullptr;
  int64_t temp_bytes_ = 0;
};

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_GPU_TABLE_ADMIT_ROWS_H_

// CallArguments: what the kernels of one call read, and which is too much for a kernel's own
// parameters: it goes to the GPU's memory through pinned memory, in one copy.
#ifndef TF_DYNEMB_CC_GPU_TABLE_CALL_ARGUMENTS_H_
#define TF_DYNEMB_CC_GPU_TABLE_CALL_ARGUMENTS_H_

#include <cuda_runtime_api.h>

#include <cstdint>
#include <vector>

#include "cc/core/base/context.h"
#include "cc/core/base/status.h"
#include "cc/gpu/table/device_buffer.h"

namespace dynemb {

// Has memory for the arguments of some calls, which take turns. The host waits where that many
// calls are under way: for the oldest of them. One thread at a time calls it.
class CallArguments {
 public:
  explicit CallArguments(DeviceMemory* memory) : memory_(memory) {}
  CallArguments(const CallArguments&) = delete;
  CallArguments& operator=(const CallArguments&) = delete;
  // Nothing that was sent is read any more.
  ~CallArguments();

  // Puts a copy into the stream: *there, aligned to 256 bytes, until Done. kResourceExhausted.
  Status Send(const Context& context, const std::vector<char>& arguments, const char** there);
  // All that reads what was sent last has been put into the stream.
  Status Done(const Context& context);

 private:
  struct Turn {
    char* pinned = nullptr;
    int64_t pinned_bytes = 0;
    DeviceBuffer there;
    cudaEvent_t done = nullptr;
  };
  Status MakeRoom(const Context& context, int64_t bytes, Turn* turn) const;

  static constexpr int kTurns = 4;
  DeviceMemory* const memory_;
  Turn turns_[kTurns];
  int current_ = 0;
};

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_GPU_TABLE_CALL_ARGUMENTS_H_

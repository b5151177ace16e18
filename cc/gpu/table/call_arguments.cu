#include <cstring>

#include "cc/gpu/cuda_status.h"
#include "cc/gpu/table/call_arguments.h"

namespace dynemb {

CallArguments::~CallArguments() {
  for (Turn& turn : turns_) {
    if (turn.pinned != nullptr) cudaFreeHost(turn.pinned);
    if (turn.done != nullptr) cudaEventDestroy(turn.done);
  }
}

Status CallArguments::Send(const Context& context, const std::vector<char>& arguments,
                           const char** there) {
  const auto bytes = static_cast<int64_t>(arguments.size());
  current_ = (current_ + 1) % kTurns;
  Turn& turn = turns_[current_];
  DYNEMB_RETURN_IF_ERROR(MakeRoom(context, bytes, &turn));
  const char* from = arguments.data();
  if (bytes > 0 && !RunsOnHost(context.space)) {
    std::memcpy(turn.pinned, from, arguments.size());
    from = turn.pinned;
  }
  *there = turn.there.as<char>();
  return CopyAny(context, turn.there.as<char>(), from, bytes);
}

// Waits for the call that had the memory before, and makes it large enough.
Status CallArguments::MakeRoom(const Context& context, int64_t bytes, Turn* turn) const {
  const bool on_host = RunsOnHost(context.space);
  if (turn->done != nullptr) {
    DYNEMB_RETURN_IF_ERROR(FromCuda(cudaEventSynchronize(turn->done), "waiting for the GPU"));
  } else if (!on_host) {
    DYNEMB_RETURN_IF_ERROR(
        FromCuda(cudaEventCreateWithFlags(&turn->done, cudaEventDisableTiming), "making an event"));
  }
  const int64_t wanted = bytes + bytes / 4;
  if (turn->there.bytes() < bytes && !turn->there.Allocate(memory_, wanted)) {
    return ResourceExhausted("no GPU memory for the ", wanted, " bytes of a call's arguments");
  }
  if (on_host || turn->pinned_bytes >= bytes) return {};
  if (turn->pinned != nullptr) cudaFreeHost(turn->pinned);
  turn->pinned = nullptr;
  turn->pinned_bytes = 0;
  DYNEMB_RETURN_IF_ERROR(FromCuda(cudaMallocHost(reinterpret_cast<void**>(&turn->pinned), wanted),
                                  "allocating pinned memory"));
  turn->pinned_bytes = wanted;
  return {};
}

Status CallArguments::Done(const Context& context) {
  if (RunsOnHost(context.space)) return {};
  return FromCuda(cudaEventRecord(turns_[current_].done, StreamOf(context)), "ordering streams");
}

}  // namespace dynemb

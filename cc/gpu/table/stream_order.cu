#include "cc/gpu/cuda_status.h"
#include "cc/gpu/table/device_buffer.h"
#include "cc/gpu/table/stream_order.h"

namespace dynemb {

StreamOrder::~StreamOrder() {
  if (writer_.event != nullptr) cudaEventDestroy(writer_.event);
  for (auto& [stream, mark] : readers_) cudaEventDestroy(mark.event);
}

Status StreamOrder::WaitFor(const Context& context, const Mark& mark) {
  if (!mark.set) return {};
  return FromCuda(cudaStreamWaitEvent(StreamOf(context), mark.event, 0), "ordering streams");
}

Status StreamOrder::Record(const Context& context, Mark* mark) {
  if (mark->event == nullptr) {
    DYNEMB_RETURN_IF_ERROR(FromCuda(cudaEventCreateWithFlags(&mark->event, cudaEventDisableTiming),
                                    "making an event"));
  }
  mark->set = true;
  return FromCuda(cudaEventRecord(mark->event, StreamOf(context)), "ordering streams");
}

Status StreamOrder::Begin(const Context& context, bool writes) {
  if (RunsOnHost(context.space)) return {};
  DYNEMB_RETURN_IF_ERROR(WaitFor(context, writer_));
  for (const auto& [stream, mark] : readers_) {
    if (writes || stream == StreamOf(context)) DYNEMB_RETURN_IF_ERROR(WaitFor(context, mark));
  }
  return {};
}

Status StreamOrder::End(const Context& context, bool writes) {
  if (RunsOnHost(context.space)) return {};
  if (!writes) return Record(context, &readers_[StreamOf(context)]);
  for (auto& [stream, mark] : readers_) mark.set = false;
  return Record(context, &writer_);
}

Status StreamOrder::WaitForAll() {
  const auto wait = [](const Mark& mark) {
    return mark.set ? FromCuda(cudaEventSynchronize(mark.event), "waiting for the GPU") : Status();
  };
  DYNEMB_RETURN_IF_ERROR(wait(writer_));
  for (const auto& [stream, mark] : readers_) DYNEMB_RETURN_IF_ERROR(wait(mark));
  return {};
}

}  // namespace dynemb

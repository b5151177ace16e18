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

StreamOrder::Mark* StreamOrder::ReaderMark(cudaStream_t stream) {
  const auto known = readers_.find(stream);
  if (known != readers_.end()) return &known->second;
  Mark mark;
  if (readers_.size() >= kManyReaders) {
    for (auto it = readers_.begin(); it != readers_.end();) {
      if (it->second.set && cudaEventQuery(it->second.event) != cudaSuccess) {
        cudaGetLastError();  // the stream has still work
        ++it;
        continue;
      }
      if (mark.event != nullptr) cudaEventDestroy(mark.event);
      mark.event = it->second.event;
      it = readers_.erase(it);
    }
  }
  return &(readers_[stream] = mark);
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
  if (!writes) return Record(context, ReaderMark(StreamOf(context)));
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

// A GPU of TensorFlow's that is none: its memory is the host's, and what is put into a stream has
// been done when the call returns. So tests run what belongs on GPUs where there is none. A
// pluggable device, in TensorFlow's words.
//
// Environment: HOST_GPU_COUNT, how many there are (1); HOST_GPU_BYTES, the memory of each (1 GiB).
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "tensorflow/c/experimental/stream_executor/stream_executor.h"

namespace {

int64_t Number(const char* variable, int64_t otherwise) {
  const char* text = std::getenv(variable);
  return text == nullptr ? otherwise : std::atoll(text);
}

// Streams, events and timers have nothing to remember.
template <typename T>
void Make(T* made) {
  static char nothing;
  *made = reinterpret_cast<T>(&nothing);
}

void* Block(uint64_t size) { return std::aligned_alloc(256, (size + 256) / 256 * 256); }

using Memory = SP_DeviceMemoryBase;
using Device = const SP_Device*;

void CreateStreamExecutor(const SP_Platform*, SE_CreateStreamExecutorParams* params, TF_Status*) {
  SP_StreamExecutor& fns = *params->stream_executor;
  fns.allocate = [](Device, uint64_t size, int64_t, Memory* memory) {
    *memory = {SP_DEVICE_MEMORY_BASE_STRUCT_SIZE, nullptr, Block(size), size, 0};
  };
  fns.deallocate = [](Device, Memory* memory) { std::free(memory->opaque); };
  fns.host_memory_allocate = [](Device, uint64_t size) { return Block(size); };
  fns.host_memory_deallocate = [](Device, void* block) { std::free(block); };
  fns.get_allocator_stats = [](Device, SP_AllocatorStats*) -> TF_Bool { return false; };
  fns.device_memory_usage = [](Device, int64_t* free, int64_t* total) -> TF_Bool {
    *free = *total = Number("HOST_GPU_BYTES", int64_t{1} << 30);
    return true;
  };

  fns.create_stream = [](Device, SP_Stream* stream, TF_Status*) { Make(stream); };
  fns.destroy_stream = [](Device, SP_Stream) {};
  fns.create_stream_dependency = [](Device, SP_Stream, SP_Stream, TF_Status*) {};
  fns.get_stream_status = [](Device, SP_Stream, TF_Status*) {};
  fns.create_event = [](Device, SP_Event* event, TF_Status*) { Make(event); };
  fns.destroy_event = [](Device, SP_Event) {};
  fns.get_event_status = [](Device, SP_Event) { return SE_EVENT_COMPLETE; };
  fns.record_event = [](Device, SP_Stream, SP_Event, TF_Status*) {};
  fns.wait_for_event = [](Device, SP_Stream, SP_Event, TF_Status*) {};
  fns.create_timer = [](Device, SP_Timer* timer, TF_Status*) { Make(timer); };
  fns.destroy_timer = [](Device, SP_Timer) {};
  fns.start_timer = [](Device, SP_Stream, SP_Timer, TF_Status*) {};
  fns.stop_timer = [](Device, SP_Stream, SP_Timer, TF_Status*) {};
  fns.block_host_for_event = [](Device, SP_Event, TF_Status*) {};
  fns.block_host_until_done = [](Device, SP_Stream, TF_Status*) {};
  fns.synchronize_all_activity = [](Device, TF_Status*) {};
  fns.host_callback = [](Device, SP_Stream, SE_StatusCallbackFn call, void* argument) -> TF_Bool {
    TF_Status* status = TF_NewStatus();
    call(argument, status);
    TF_DeleteStatus(status);
    return true;
  };

  fns.memcpy_dtoh = [](Device, SP_Stream, void* to, const Memory* from, uint64_t size, TF_Status*) {
    std::memcpy(to, from->opaque, size);
  };
  fns.memcpy_htod = [](Device, SP_Stream, Memory* to, const void* from, uint64_t size, TF_Status*) {
    std::memcpy(to->opaque, from, size);
  };
  fns.memcpy_dtod = [](Device, SP_Stream, Memory* to, const Memory* from, uint64_t size,
                       TF_Status*) { std::memmove(to->opaque, from->opaque, size); };
  fns.sync_memcpy_dtoh = [](Device, void* to, const Memory* from, uint64_t size, TF_Status*) {
    std::memcpy(to, from->opaque, size);
  };
  fns.sync_memcpy_htod = [](Device, Memory* to, const void* from, uint64_t size, TF_Status*) {
    std::memcpy(to->opaque, from, size);
  };
  fns.sync_memcpy_dtod = [](Device, Memory* to, const Memory* from, uint64_t size, TF_Status*) {
    std::memmove(to->opaque, from->opaque, size);
  };
  fns.mem_zero = [](Device, SP_Stream, Memory* memory, uint64_t size, TF_Status*) {
    std::memset(memory->opaque, 0, size);
  };
  fns.memset = [](Device, SP_Stream, Memory* memory, uint8_t byte, uint64_t size, TF_Status*) {
    std::memset(memory->opaque, byte, size);
  };
  fns.memset32 = [](Device, SP_Stream, Memory* memory, uint32_t word, uint64_t size, TF_Status*) {
    for (uint64_t i = 0; i < size / 4; ++i) static_cast<uint32_t*>(memory->opaque)[i] = word;
  };
}

}  // namespace

extern "C" __attribute__((visibility("default"))) void SE_InitPlugin(
    SE_PlatformRegistrationParams* params, TF_Status*) {
  SP_Platform& platform = *params->platform;
  platform.name = "HOST_GPU";
  platform.type = "GPU";
  platform.use_bfc_allocator = true;
  platform.force_memory_growth = true;
  params->destroy_platform = [](SP_Platform*) {};
  params->destroy_platform_fns = [](SP_PlatformFns*) {};

  SP_PlatformFns& fns = *params->platform_fns;
  fns.get_device_count = [](const SP_Platform*, int* count, TF_Status*) {
    *count = static_cast<int>(Number("HOST_GPU_COUNT", 1));
  };
  fns.create_device = [](const SP_Platform*, SE_CreateDeviceParams* made, TF_Status*) {
    *made->device = {SP_DEVICE_STRUCT_SIZE, nullptr, made->ordinal, nullptr, "host", "host",
                     "0000:00:00.0"};
  };
  fns.destroy_device = [](const SP_Platform*, SP_Device*) {};
  fns.create_device_fns = [](const SP_Platform*, SE_CreateDeviceFnsParams*, TF_Status*) {};
  fns.destroy_device_fns = [](const SP_Platform*, SP_DeviceFns*) {};
  fns.create_stream_executor = CreateStreamExecutor;
  fns.destroy_stream_executor = [](const SP_Platform*, SP_StreamExecutor*) {};
  fns.create_timer_fns = [](const SP_Platform*, SP_TimerFns* timer, TF_Status*) {
    timer->nanoseconds = [](SP_Timer) -> uint64_t { return 0; };
  };
  fns.destroy_timer_fns = [](const SP_Platform*, SP_TimerFns*) {};
}

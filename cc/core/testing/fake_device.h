// A fake device: memory of MemorySpace::kFakeDevice that the host may not touch, copies into and out of
// it, a stream, and a table on it.
//
// Its memory is mapped without any access right except while a device operation runs, so a host that
// follows a device pointer dies at once. With it the conformance suite proves that neither the suite
// nor the contract ever needs the host to look at a device result: what holds here holds on a GPU.
// Operations run when they are called, on the calling thread; the tables' rows lie in host memory.
#ifndef TF_DYNEMB_CC_CORE_TESTING_FAKE_DEVICE_H_
#define TF_DYNEMB_CC_CORE_TESTING_FAKE_DEVICE_H_

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>

#include "cc/core/base/context.h"
#include "cc/core/base/status.h"
#include "cc/core/table/table.h"

namespace dynemb {

class FakeDevice {
 public:
  // Maps the memory; `bytes` is all that there will be. Pages that are never used cost nothing.
  explicit FakeDevice(int64_t bytes);
  ~FakeDevice();
  FakeDevice(const FakeDevice&) = delete;
  FakeDevice& operator=(const FakeDevice&) = delete;

  // Null when the memory is used up. Any thread.
  char* Allocate(int64_t bytes);
  void Free(char* data);

  void CopyIn(char* to_device, const char* from_host, int64_t bytes);
  void CopyOut(char* to_host, const char* from_device, int64_t bytes);

  // The context of calls to tables on this device.
  Context context();
  bool Owns(const void* data, int64_t bytes) const;

  // Runs f() as a device operation: the memory is accessible until no operation runs any more.
  template <typename F>
  auto Run(F&& f) {
    const Operation operation(this);
    return f();
  }

 private:
  struct Operation {
    explicit Operation(FakeDevice* device) : device(device) { device->Enter(); }
    ~Operation() { device->Leave(); }
    FakeDevice* device;
  };
  void Enter();
  void Leave();
  void Protect(int protection);

  const int64_t bytes_;
  char* const memory_;
  std::mutex mutex_;
  std::map<int64_t, int64_t> blocks_;  // what is allocated: offset -> bytes
  int running_ = 0;                    // device operations
};

// A table of space kFakeDevice over a host table: each call runs as a device operation. Batches,
// buffers and contexts that are not of `device` are kInvalidArgument, also where only the pointer and
// not its label is wrong. `device` must outlive the table.
std::unique_ptr<Table> MakeFakeDeviceTable(FakeDevice* device, std::unique_ptr<Table> host_table);

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_CORE_TESTING_FAKE_DEVICE_H_

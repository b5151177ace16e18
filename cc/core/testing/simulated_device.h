// A simulated device: memory of MemorySpace::kSimulatedDevice that the host may not touch, copies
// into and out of it, a stream, and a table on it.
//
// A device address lies in pages without any access right, so a host that follows a device pointer
// dies at once; what is stored at it lies elsewhere, where only device operations look. With it the
// conformance suite proves that neither the suite nor the contract ever needs the host to look at a
// device result: what holds here holds on a GPU. Operations run when they are called, on the
// calling thread; the rows of the tables lie in host memory.
#ifndef TF_DYNEMB_CC_CORE_TESTING_SIMULATED_DEVICE_H_
#define TF_DYNEMB_CC_CORE_TESTING_SIMULATED_DEVICE_H_

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>

#include "cc/core/base/context.h"
#include "cc/core/base/status.h"
#include "cc/core/table/table.h"

namespace dynemb {

class SimulatedDevice {
 public:
  // `bytes` is all the memory that there will be. Pages that are never used cost nothing.
  explicit SimulatedDevice(int64_t bytes);
  ~SimulatedDevice();
  SimulatedDevice(const SimulatedDevice&) = delete;
  SimulatedDevice& operator=(const SimulatedDevice&) = delete;

  // Null when the memory is used up. Any thread.
  char* Allocate(int64_t bytes);
  void Free(char* data);

  void CopyIn(char* to_device, const char* from_host, int64_t bytes);
  void CopyOut(char* to_host, const char* from_device, int64_t bytes);

  // The context of calls to tables on this device.
  Context context();
  bool Owns(const void* data, int64_t bytes) const;

  // Where the content of a device address is. For device operations only.
  template <typename T>
  T* Content(T* device_address) const {
    const int64_t offset = reinterpret_cast<const char*>(device_address) - addresses_;
    return reinterpret_cast<T*>(contents_ + offset);
  }

 private:
  const int64_t bytes_;
  char* const addresses_;
  char* const contents_;
  std::mutex mutex_;
  std::map<int64_t, int64_t> blocks_;  // what is allocated: offset -> bytes
};

// A table of space kSimulatedDevice over a host table: each call runs as a device operation.
// Batches, buffers and contexts that are not of `device` are kInvalidArgument, also where the label
// is right and the pointer is not. `device` must outlive the table.
std::unique_ptr<Table> MakeSimulatedDeviceTable(SimulatedDevice* device,
                                                std::unique_ptr<Table> host_table);

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_CORE_TESTING_SIMULATED_DEVICE_H_

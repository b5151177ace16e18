// IoUring: reads that the kernel is given, many at a time, by the interface of that name
// (io_uring(7)).
#ifndef TF_DYNEMB_CC_CORE_STORAGE_IO_URING_H_
#define TF_DYNEMB_CC_CORE_STORAGE_IO_URING_H_

#include <cstdint>
#include <memory>

namespace dynemb {

// Used by one thread at a time.
class IoUring {
 public:
  static constexpr int kEntries = 64;  // that may be under way

  // Null: the kernel has none, or none for this process.
  static std::unique_ptr<IoUring> Make();
  virtual ~IoUring() = default;

  // Notes a read; at most kEntries that have not been waited for. `bytes` at most 2^31 - 1.
  virtual void Add(int descriptor, int64_t offset, int64_t bytes, char* out, uint64_t number) = 0;
  // Waits until a read is done, for which the kernel is given what has been added. *result: the
  // bytes that it read, which may be fewer, or a negative error number. False: the kernel refuses
  // what has been added; there is nothing under way, and what has not been waited for is not done.
  virtual bool Wait(uint64_t* number, int64_t* result) = 0;
};

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_CORE_STORAGE_IO_URING_H_

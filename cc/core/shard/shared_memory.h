// SharedMemory: two rings of bytes, one each way, in memory that two processes of one machine map.
#ifndef TF_DYNEMB_CC_CORE_SHARD_SHARED_MEMORY_H_
#define TF_DYNEMB_CC_CORE_SHARD_SHARED_MEMORY_H_

#include <sys/types.h>
#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace dynemb {

constexpr size_t kRingBytes = size_t{1} << 19;

// Bytes on their way to one process, in its own memory and that of the writer. Who finds no bytes,
// or no room, asks to be woken; the other one learns of it as soon as there are some.
struct Ring;

class SharedMemory {
 public:
  SharedMemory(const SharedMemory&) = delete;
  ~SharedMemory();

  // Rings that another process of this user can open, by a name that nobody can guess. All of their
  // memory is there; null: it cannot be had.
  static std::unique_ptr<SharedMemory> Make();
  // Those that another process has made; null: they are not on this machine.
  static std::unique_ptr<SharedMemory> Open(const std::string& name);

  const std::string& name() const { return name_; }
  // From now on no process can open it. Those that have it, have it.
  void RemoveName();

  // As many bytes as there is room for; 0: none, and the reader will ask for a wake when half of
  // the ring is free. `wake`: the reader waits for bytes. -1: the other process has written
  // nonsense.
  ssize_t Write(const iovec* pieces, size_t count, bool* wake);
  // As many bytes as there are; 0: none, and the writer will ask for a wake when there are.
  // `wake`: the writer waits for room.
  ssize_t Read(const iovec* pieces, size_t count, bool* wake);
  bool has_room() const;
  bool has_bytes() const;

 private:
  SharedMemory(std::string name, void* memory, bool is_maker);

  std::string name_;
  void* const memory_;
  Ring* const outgoing_;
  Ring* const incoming_;
};

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_CORE_SHARD_SHARED_MEMORY_H_

// SharedRings: two ring buffers, one each way, in memory that two processes of one machine map.
#ifndef TF_DYNEMB_CC_CORE_SHARD_SHARED_RINGS_H_
#define TF_DYNEMB_CC_CORE_SHARD_SHARED_RINGS_H_

#include <sys/types.h>
#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <memory>

namespace dynemb {

constexpr size_t kRingBytes = size_t{1} << 19;

// How another process of this user finds the memory: a descriptor of the process that made it, and
// random bytes that are in it. All zeros: there is none.
struct RingsOffer {
  int64_t process = 0;
  int64_t descriptor = 0;
  uint64_t stamp[2] = {};
};

// One end. Bytes are written for the other end, which reads them. Who finds no room or no bytes
// asks for a wake, for which the other end has no means here: its `wake_peer` says that it must
// wake this end now, by whatever both have besides.
class SharedRings {
 public:
  SharedRings(const SharedRings&) = delete;
  ~SharedRings();

  // Memory of this process that another one can open, as long as it is offered. Null: it cannot be
  // had. The memory has no name, and goes with the last process that has it.
  static std::unique_ptr<SharedRings> Make();
  // The other end. Null: what is offered is not here, as from another machine or container.
  static std::unique_ptr<SharedRings> Open(const RingsOffer& offer);
  // The other end in this process and the same mapping, for tests: ThreadSanitizer does not see
  // that two mappings are one memory.
  std::unique_ptr<SharedRings> OtherEnd() const;

  const RingsOffer& offer() const { return offer_; }
  void EndOffer();

  // Writes as many bytes as there is room for. 0: there is none; the other end's Read sets
  // `wake_peer` when half is free. -1: the other end has broken the memory.
  ssize_t Write(const iovec* pieces, size_t count, bool* wake_peer);
  // Reads as many bytes as there are. 0: there are none; the other end's next Write sets
  // `wake_peer`. -1 as above.
  ssize_t Read(const iovec* pieces, size_t count, bool* wake_peer);
  // Whether half is free, and whether there is a byte.
  bool has_room() const;
  bool has_bytes() const;

 private:
  struct Memory;
  struct Ring;
  SharedRings(std::shared_ptr<Memory> memory, bool is_maker);

  const std::shared_ptr<Memory> memory_;
  const bool is_maker_;
  Ring* const outgoing_;
  Ring* const incoming_;
  // What this end has written and read. It does not believe what the memory says of itself.
  uint64_t written_ = 0, read_ = 0;
  RingsOffer offer_;
  int descriptor_ = -1;  // while it is offered
};

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_CORE_SHARD_SHARED_RINGS_H_

// Channel: bytes to and from another process, by a TCP connection, or through memory that both map
// where both are on one machine. The connection then carries wakes, and says when the other is
// gone.
#ifndef TF_DYNEMB_CC_CORE_SHARD_CHANNEL_H_
#define TF_DYNEMB_CC_CORE_SHARD_CHANNEL_H_

#include <sys/types.h>
#include <sys/uio.h>

#include <cstddef>
#include <memory>
#include <utility>

#include "cc/core/shard/shared_memory.h"

namespace dynemb {

// A socket, closed with its owner, and in a child that is forked: else the others would not learn
// that this process has died while its child lives.
class Socket {
 public:
  Socket() = default;
  explicit Socket(int descriptor);
  Socket(Socket&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
  Socket& operator=(Socket&& other) noexcept;
  ~Socket();

  int descriptor() const { return descriptor_; }
  bool is_open() const { return descriptor_ >= 0; }
  // Sends and receives nothing more; the other end is told.
  void Shutdown();

 private:
  int descriptor_ = -1;
};

class Channel {
 public:
  Channel() = default;
  // `memory`: null where there is none.
  Channel(Socket socket, std::unique_ptr<SharedMemory> memory)
      : socket_(std::move(socket)), memory_(std::move(memory)) {}

  // Whose events say that something can be sent or received, edge-triggered.
  const Socket& socket() const { return socket_; }
  bool has_memory() const { return memory_ != nullptr; }
  void Shutdown() { socket_.Shutdown(); }

  // As sendmsg and recvmsg without blocking: -1 and errno, EAGAIN where an event will say so; what
  // is received is 0 where the other end has closed.
  ssize_t Send(iovec* pieces, size_t count);
  ssize_t Receive(iovec* pieces, size_t count);
  // Whether something of this kind can be moved of which no event will tell: Send and Receive take
  // each other's wakes.
  bool has_more(bool to_send, bool to_receive) const {
    return memory_ != nullptr &&
           ((to_send && memory_->has_room()) || (to_receive && memory_->has_bytes()));
  }

 private:
  void Wake();
  // Takes the wakes that have come. 1: the other end is there; 0: it has closed; -1 and errno.
  int TakeWakes();

  Socket socket_;
  std::unique_ptr<SharedMemory> memory_;
};

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_CORE_SHARD_CHANNEL_H_

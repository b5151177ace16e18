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

#include "cc/core/shard/shared_rings.h"

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
  // `rings`: null where there are none.
  Channel(Socket socket, std::unique_ptr<SharedRings> rings)
      : socket_(std::move(socket)), rings_(std::move(rings)) {}

  // Whose events, edge-triggered, say that something can be sent or received, where has_more does
  // not.
  const Socket& socket() const { return socket_; }
  bool has_rings() const { return rings_ != nullptr; }
  void Shutdown() { socket_.Shutdown(); }
  // Whether the other end sends nothing more.
  bool is_closed() const;

  // As sendmsg and recvmsg without blocking: -1 and errno, EAGAIN where an event will say so; what
  // is received is 0 where the other end has closed and all that it sent has been received.
  ssize_t Send(iovec* pieces, size_t count);
  ssize_t Receive(iovec* pieces, size_t count);
  // Whether something of this kind can be moved of which no event will tell: Send and Receive take
  // each other's wakes.
  bool has_more(bool to_send, bool to_receive) const {
    return rings_ != nullptr &&
           ((to_send && rings_->has_room()) || (to_receive && rings_->has_bytes()));
  }

 private:
  enum class Peer { kThere, kClosed, kFailed };  // kFailed: and errno

  void Wake();
  // Takes the wakes that have come.
  Peer TakeWakes();

  Socket socket_;
  std::unique_ptr<SharedRings> rings_;
};

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_CORE_SHARD_CHANNEL_H_

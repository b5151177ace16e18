#include "cc/core/shard/channel.h"

#include <poll.h>
#include <pthread.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <mutex>
#include <set>

namespace dynemb {
namespace {

// The sockets of this process.
class OpenSockets {
 public:
  // Lives for ever.
  static OpenSockets& Get() {
    static OpenSockets* const sockets = [] {
      pthread_atfork([] { Get().mutex_.lock(); }, [] { Get().mutex_.unlock(); },
                     [] {
                       for (const int descriptor : Get().descriptors_) close(descriptor);
                       Get().descriptors_.clear();
                       Get().mutex_.unlock();
                     });
      return new OpenSockets;
    }();
    return *sockets;
  }

  void Add(int descriptor) {
    const std::lock_guard<std::mutex> lock(mutex_);
    descriptors_.insert(descriptor);
  }
  // Not those of the process that this one was forked from.
  void Close(int descriptor) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (descriptors_.erase(descriptor) > 0) close(descriptor);
  }

 private:
  std::mutex mutex_;
  std::set<int> descriptors_;
};

}  // namespace

Socket::Socket(int descriptor) : descriptor_(descriptor) {
  if (is_open()) OpenSockets::Get().Add(descriptor);
}

Socket& Socket::operator=(Socket&& other) noexcept {
  std::swap(descriptor_, other.descriptor_);
  return *this;
}

Socket::~Socket() {
  if (is_open()) OpenSockets::Get().Close(descriptor_);
}

void Socket::Shutdown() {
  if (is_open()) shutdown(descriptor_, SHUT_RDWR);
}

bool Channel::is_closed() const {
  pollfd polled = {socket_.descriptor(), POLLRDHUP, 0};
  return poll(&polled, 1, 0) == 1;
}

ssize_t Channel::Send(iovec* pieces, size_t count) {
  if (rings_ == nullptr) {
    msghdr message = {};
    message.msg_iov = pieces;
    message.msg_iovlen = count;
    return sendmsg(socket_.descriptor(), &message, MSG_NOSIGNAL);
  }
  bool wake_peer;
  const ssize_t sent = rings_->Write(pieces, count, &wake_peer);
  if (wake_peer) Wake();
  if (sent > 0) return sent;
  if (sent < 0) {
    errno = EBADMSG;
    return -1;
  }
  const Peer peer = TakeWakes();
  if (peer == Peer::kClosed) errno = EPIPE;
  if (peer == Peer::kThere) errno = EAGAIN;
  return -1;
}

ssize_t Channel::Receive(iovec* pieces, size_t count) {
  if (rings_ == nullptr) {
    msghdr message = {};
    message.msg_iov = pieces;
    message.msg_iovlen = count;
    return recvmsg(socket_.descriptor(), &message, 0);
  }
  bool wake_peer;
  ssize_t got = rings_->Read(pieces, count, &wake_peer);
  Peer peer = Peer::kThere;
  if (got == 0) {
    peer = TakeWakes();
    // What it wrote before it went is received first.
    if (peer != Peer::kThere) {
      const int error = errno;
      got = rings_->Read(pieces, count, &wake_peer);
      errno = error;
    }
  }
  if (wake_peer) Wake();
  if (got > 0 || (got == 0 && peer == Peer::kClosed)) return got;
  if (got < 0) errno = EBADMSG;
  if (got == 0 && peer == Peer::kThere) errno = EAGAIN;
  return -1;
}

void Channel::Wake() {
  const char wake = 1;
  // Where there is no room for it, there are wakes that the other one has not taken yet; where it
  // is gone, the next look at the socket says so.
  while (send(socket_.descriptor(), &wake, 1, MSG_NOSIGNAL) < 0 && errno == EINTR) continue;
}

Channel::Peer Channel::TakeWakes() {
  char wakes[256];
  while (true) {
    const ssize_t got = recv(socket_.descriptor(), wakes, sizeof(wakes), 0);
    // One that goes with a wake that it has not taken resets the connection.
    if (got == 0 || (got < 0 && errno == ECONNRESET)) return Peer::kClosed;
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return Peer::kThere;
    if (got < 0 && errno != EINTR) return Peer::kFailed;
  }
}

}  // namespace dynemb

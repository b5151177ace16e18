#include "cc/core/shard/channel.h"

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

ssize_t Channel::Send(iovec* pieces, size_t count) {
  if (memory_ == nullptr) {
    msghdr message = {};
    message.msg_iov = pieces;
    message.msg_iovlen = count;
    return sendmsg(socket_.descriptor(), &message, MSG_NOSIGNAL);
  }
  bool wake;
  const ssize_t sent = memory_->Write(pieces, count, &wake);
  if (wake) Wake();
  if (sent > 0) return sent;
  errno = EBADMSG;
  if (sent < 0) return -1;
  const int taken = TakeWakes();
  if (taken == 0) errno = EPIPE;
  if (taken > 0) errno = EAGAIN;
  return -1;
}

ssize_t Channel::Receive(iovec* pieces, size_t count) {
  if (memory_ == nullptr) {
    msghdr message = {};
    message.msg_iov = pieces;
    message.msg_iovlen = count;
    return recvmsg(socket_.descriptor(), &message, 0);
  }
  int taken = 1;
  while (true) {
    bool wake;
    const ssize_t got = memory_->Read(pieces, count, &wake);
    if (wake) Wake();
    errno = EBADMSG;
    if (got != 0) return got;
    if (taken == 0) return 0;
    taken = TakeWakes();
    if (taken < 0) return -1;
    // What it wrote before it closed is read first.
    if (taken == 0) continue;
    errno = EAGAIN;
    return -1;
  }
}

void Channel::Wake() {
  const char wake = 1;
  // Where there is no room for it, there are wakes that the other one has not taken yet; where it
  // is gone, the next look at the socket says so.
  while (send(socket_.descriptor(), &wake, 1, MSG_NOSIGNAL) < 0 && errno == EINTR) continue;
}

int Channel::TakeWakes() {
  char wakes[256];
  while (true) {
    const ssize_t got = recv(socket_.descriptor(), wakes, sizeof(wakes), 0);
    if (got == 0) return 0;
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return 1;
    if (got < 0 && errno != EINTR) return -1;
  }
}

}  // namespace dynemb

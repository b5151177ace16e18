#include "cc/core/shard/connections.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <memory>

namespace dynemb {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kSecretBytes = 16;
constexpr uint64_t kMagic =
    0x32656d79646e6474;  // of this protocol, and of machines of one byte order
// Connections that have not said who they are; more than that wait in the kernel's queue.
constexpr size_t kMostStrangers = 64;

// What both ends say first.
struct Hello {
  uint64_t magic = kMagic;
  char secret[kSecretBytes] = {};
  int64_t index = 0;
  // What the one that connects offers, and the other one takes of it.
  RingsOffer rings;
};
static_assert(sizeof(Hello) == 64, "no padding that would be sent as it is");

std::string ErrorText(int error) { return strerror(error); }

int Milliseconds(Clock::time_point deadline) {
  const auto left =
      std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
  return static_cast<int>(std::clamp<int64_t>(left, 0, 1 << 30));
}

// Waits until a socket can be read or written; false: not before the deadline.
bool WaitFor(int descriptor, short events, Clock::time_point deadline) {
  pollfd one = {descriptor, events, 0};
  int ready;
  do {
    ready = poll(&one, 1, Milliseconds(deadline));
  } while (ready < 0 && errno == EINTR);
  return ready > 0;
}

// Moves all bytes, or says why not.
Status MoveAll(const Socket& socket, bool sends, void* bytes, size_t size,
               Clock::time_point deadline) {
  char* at = static_cast<char*>(bytes);
  while (size > 0) {
    const ssize_t moved = sends ? send(socket.descriptor(), at, size, MSG_NOSIGNAL)
                                : recv(socket.descriptor(), at, size, 0);
    if (moved > 0) {
      at += moved;
      size -= static_cast<size_t>(moved);
    } else if (moved == 0) {
      return Unavailable("it closed the connection");
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      if (!WaitFor(socket.descriptor(), sends ? POLLOUT : POLLIN, deadline))
        return Unavailable("it said nothing in time");
    } else if (errno != EINTR) {
      return Unavailable(ErrorText(errno));
    }
  }
  return Status();
}

void SetOptions(int descriptor) {
  // While nothing is under way a machine that is gone is noticed in some 20 s. (TCP_USER_TIMEOUT
  // would do that of bytes under way, and take one that does not read for 20 s for one that is
  // gone.)
  const int on = 1, idle = 10, interval = 2, probes = 5;
  setsockopt(descriptor, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  setsockopt(descriptor, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
  setsockopt(descriptor, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof(idle));
  setsockopt(descriptor, IPPROTO_TCP, TCP_KEEPINTVL, &interval, sizeof(interval));
  setsockopt(descriptor, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof(probes));
}

Status SplitAddress(const std::string& address, std::string* host, std::string* port) {
  const size_t colon = address.rfind(':');
  if (colon == std::string::npos || colon == 0 || colon + 1 == address.size()) {
    return InvalidArgument("address: got '", Printable(address), "', want host:port");
  }
  *host = address.substr(0, colon);
  *port = address.substr(colon + 1);
  if (host->size() > 2 && host->front() == '[' && host->back() == ']')
    *host = host->substr(1, host->size() - 2);
  return Status();
}

// A connection to one of the addresses of a host.
Status ConnectTo(const std::string& address, Clock::time_point deadline, Socket* connected) {
  std::string host, port;
  DYNEMB_RETURN_IF_ERROR(SplitAddress(address, &host, &port));
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (const int error = getaddrinfo(host.c_str(), port.c_str(), &hints, &found); error != 0)
    return Unavailable(gai_strerror(error));
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> addresses(found, freeaddrinfo);
  std::string why = "the host has no address";
  int left = 0;
  for (const addrinfo* one = found; one != nullptr; one = one->ai_next) ++left;
  for (const addrinfo* one = found; one != nullptr; one = one->ai_next, --left) {
    // One that does not answer leaves time for the others.
    const Clock::time_point until = Clock::now() + (deadline - Clock::now()) / left;
    Socket candidate(socket(one->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    int error = candidate.is_open() ? 0 : errno;
    if (error == 0 && connect(candidate.descriptor(), one->ai_addr, one->ai_addrlen) != 0)
      error = errno;
    if (error == EINPROGRESS) {
      socklen_t size = sizeof(error);
      error = ETIMEDOUT;
      if (WaitFor(candidate.descriptor(), POLLOUT, until))
        getsockopt(candidate.descriptor(), SOL_SOCKET, SO_ERROR, &error, &size);
    }
    if (error == 0) {
      SetOptions(candidate.descriptor());
      *connected = std::move(candidate);
      return Status();
    }
    why = ErrorText(error);
  }
  return Unavailable(why);
}

// Whether both ends are on one machine: then each has the address of the other, or both have some
// of the loopback's, which has many.
bool IsLocal(const Socket& socket) {
  sockaddr_storage own = {}, other = {};
  socklen_t own_size = sizeof(own), other_size = sizeof(other);
  if (getsockname(socket.descriptor(), reinterpret_cast<sockaddr*>(&own), &own_size) != 0 ||
      getpeername(socket.descriptor(), reinterpret_cast<sockaddr*>(&other), &other_size) != 0 ||
      own.ss_family != other.ss_family) {
    return false;
  }
  if (own.ss_family == AF_INET) {
    const in_addr_t own_address = reinterpret_cast<sockaddr_in*>(&own)->sin_addr.s_addr;
    const in_addr_t other_address = reinterpret_cast<sockaddr_in*>(&other)->sin_addr.s_addr;
    const auto is_loopback = [](in_addr_t address) {
      return ntohl(address) >> 24 == IN_LOOPBACKNET;
    };
    return own_address == other_address || (is_loopback(own_address) && is_loopback(other_address));
  }
  return memcmp(&reinterpret_cast<sockaddr_in6*>(&own)->sin6_addr,
                &reinterpret_cast<sockaddr_in6*>(&other)->sin6_addr, sizeof(in6_addr)) == 0;
}

// Connections that were accepted, until they have said who they are.
class Door {
 public:
  Door(const Socket& listener, const Hello& expected) : listener_(listener), expected_(expected) {}

  // The next process that has said the secret; kUnavailable after the deadline.
  Status Next(Clock::time_point deadline, Socket* socket, Hello* hello) {
    while (true) {
      if (Milliseconds(deadline) == 0) return Unavailable("it did not connect in time");
      std::vector<pollfd> waiting;
      for (const Stranger& one : strangers_)
        waiting.push_back({one.socket.descriptor(), POLLIN, 0});
      // Who says nothing makes room for those who come.
      if (strangers_.size() < kMostStrangers)
        waiting.push_back({listener_.descriptor(), POLLIN, 0});
      const int most = strangers_.size() < kMostStrangers ? Milliseconds(deadline) : 100;
      const int ready = poll(waiting.data(), waiting.size(), most);
      if (ready < 0 && errno != EINTR) return Unavailable(ErrorText(errno));
      if (ready == 0 && strangers_.size() == kMostStrangers) strangers_.erase(strangers_.begin());
      if (ready <= 0) continue;
      const bool comes = waiting.size() > strangers_.size() && waiting.back().revents != 0;
      for (size_t s = strangers_.size(); s-- > 0;) {
        if (waiting[s].revents == 0 || !Listens(&strangers_[s])) continue;
        Stranger one = std::move(strangers_[s]);
        strangers_.erase(strangers_.begin() + static_cast<std::ptrdiff_t>(s));
        if (one.got < sizeof(Hello) || one.hello.magic != expected_.magic ||
            memcmp(one.hello.secret, expected_.secret, kSecretBytes) != 0) {
          continue;
        }
        *socket = std::move(one.socket);
        *hello = one.hello;
        return Status();
      }
      if (!comes) continue;
      Socket socket_of_next(
          accept4(listener_.descriptor(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
      if (!socket_of_next.is_open()) {
        const bool has_room =
            errno != EMFILE && errno != ENFILE && errno != ENOBUFS && errno != ENOMEM;
        if (!has_room) return Unavailable("another connection cannot be taken: ", ErrorText(errno));
        continue;
      }
      SetOptions(socket_of_next.descriptor());
      strangers_.push_back({std::move(socket_of_next), Hello(), 0});
    }
  }

 private:
  struct Stranger {
    Socket socket;
    Hello hello;
    size_t got = 0;
  };

  // Takes what it says; true: it has said all, or closed.
  static bool Listens(Stranger* one) {
    const ssize_t got =
        recv(one->socket.descriptor(), reinterpret_cast<char*>(&one->hello) + one->got,
             sizeof(Hello) - one->got, 0);
    if (got < 0) return errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR;
    one->got += static_cast<size_t>(got);
    // One of another version need not say as much.
    const bool is_other = one->got >= sizeof(kMagic) && one->hello.magic != kMagic;
    return got == 0 || is_other || one->got == sizeof(Hello);
  }

  const Socket& listener_;
  const Hello& expected_;
  std::vector<Stranger> strangers_;
};

}  // namespace

Status Connections::Listen(int port) {
  if (port < 0 || port > 65535) return InvalidArgument("port: got ", port, ", want 0 to 65535");
  int error = EAFNOSUPPORT;
  for (const int family : {AF_INET6, AF_INET}) {  // a machine may have no addresses of the first
    Socket listener(::socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    if (!listener.is_open()) {
      error = errno;
      continue;
    }
    const int on = 1, off = 0;
    setsockopt(listener.descriptor(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    sockaddr_storage address = {};
    socklen_t size;
    address.ss_family = static_cast<sa_family_t>(family);
    in_port_t* number;
    if (family == AF_INET6) {
      setsockopt(listener.descriptor(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
      auto* six = reinterpret_cast<sockaddr_in6*>(&address);
      size = sizeof(*six);
      number = &six->sin6_port;
    } else {
      auto* four = reinterpret_cast<sockaddr_in*>(&address);
      size = sizeof(*four);
      number = &four->sin_port;
    }
    *number = htons(static_cast<uint16_t>(port));
    if (bind(listener.descriptor(), reinterpret_cast<sockaddr*>(&address), size) != 0 ||
        listen(listener.descriptor(), 4096) != 0 ||
        getsockname(listener.descriptor(), reinterpret_cast<sockaddr*>(&address), &size) != 0) {
      error = errno;
      continue;
    }
    listener_ = std::move(listener);
    port_ = ntohs(*number);
    return Status();
  }
  return Unavailable("port ", port, ": ", ErrorText(error));
}

Status Connections::Connect(const std::vector<std::string>& addresses, int index,
                            const std::vector<int>& peers, const std::string& secret,
                            bool shared_memory, double timeout_seconds) {
  const int processes = static_cast<int>(addresses.size());
  if (index < 0 || index >= processes)
    return InvalidArgument("index: got ", index, ", want 0 to ", processes - 1);
  for (const int peer : peers) {
    if (peer < 0 || peer >= processes || peer == index)
      return InvalidArgument("peers: got ", peer, ", want others of 0 to ", processes - 1);
  }
  if (secret.size() != kSecretBytes)
    return InvalidArgument("secret: got ", secret.size(), " bytes, want ", kSecretBytes);
  if (!listener_.is_open()) return FailedPrecondition("it does not listen: call Listen before");
  const Socket listener = std::move(listener_);
  const auto deadline =
      Clock::now() +
      std::chrono::milliseconds(static_cast<int64_t>(1e3 * std::clamp(timeout_seconds, 0.0, 1e9)));
  Hello mine;
  std::copy(secret.begin(), secret.end(), mine.secret);
  mine.index = index;
  const auto failed = [&](int process, const Status& why) {
    return Status(why.code(),
                  StrCat("process ", index, " has no connection to process ", process, " at ",
                         Printable(addresses[process], 200), ": ", why.message()));
  };
  std::vector<Channel> channels(addresses.size());
  std::vector<std::pair<Socket, std::unique_ptr<SharedRings>>> called(addresses.size());
  const auto after = std::upper_bound(peers.begin(), peers.end(), index);
  for (auto peer = peers.begin(); peer != after; ++peer) {
    const int process = *peer;
    auto& [socket, rings] = called[process];
    Status status = ConnectTo(addresses[process], deadline, &socket);
    if (status.ok() && shared_memory && IsLocal(socket)) rings = SharedRings::Make();
    mine.rings = rings == nullptr ? RingsOffer() : rings->offer();
    if (status.ok()) status = MoveAll(socket, true, &mine, sizeof(mine), deadline);
    if (!status.ok()) return failed(process, status);
  }
  Door door(listener, mine);
  for (auto missing = peers.end() - after; missing > 0; --missing) {
    Socket socket;
    Hello hello;
    if (const Status status = door.Next(deadline, &socket, &hello); !status.ok()) {
      return failed(*std::find_if(after, peers.end(),
                                  [&](int peer) { return !channels[peer].socket().is_open(); }),
                    status);
    }
    const int64_t process = hello.index;
    if (!std::binary_search(after, peers.end(), process) || channels[process].socket().is_open()) {
      return InvalidArgument("index: a process says that it is number ", process,
                             ", which another one is, or none that connects to ", index, " can be");
    }
    std::unique_ptr<SharedRings> rings = shared_memory ? SharedRings::Open(hello.rings) : nullptr;
    mine.rings = rings == nullptr ? RingsOffer() : hello.rings;
    const Status status = MoveAll(socket, true, &mine, sizeof(mine), deadline);
    if (!status.ok()) return failed(static_cast<int>(process), status);
    channels[process] = Channel(std::move(socket), std::move(rings));
  }
  for (auto peer = peers.begin(); peer != after; ++peer) {
    const int process = *peer;  // its answer, which comes when it is so far
    auto& [socket, rings] = called[process];
    Hello hello;
    const Status status = MoveAll(socket, false, &hello, sizeof(hello), deadline);
    if (!status.ok()) return failed(process, status);
    if (hello.magic != kMagic || hello.index != process ||
        memcmp(hello.secret, mine.secret, kSecretBytes) != 0) {
      return failed(process, Unavailable("something else answered there"));
    }
    if (hello.rings.process == 0) rings.reset();
    if (rings != nullptr) rings->EndOffer();
    channels[process] = Channel(std::move(socket), std::move(rings));
  }
  index_ = index;
  addresses_ = addresses;
  channels_ = std::move(channels);
  return Status();
}

}  // namespace dynemb

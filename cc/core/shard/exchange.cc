#include "cc/core/shard/exchange.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

#include "cc/core/base/fingerprint.h"
#include "cc/core/base/hash.h"
#include "cc/core/base/no_memory.h"

namespace dynemb {
namespace {

using Clock = std::chrono::steady_clock;

constexpr uint64_t kMagic = 0x31676e6168637865;
constexpr int64_t kMostWords = 1 << 20;
constexpr int64_t kMostBytes = int64_t{1} << 47;
constexpr size_t kBuffersOfCall = 64;  // of one system call
// How long a machine may say nothing of bytes that were sent to it. One that is there and does not
// read says every two minutes that it is.
constexpr int64_t kSilentMilliseconds = 180000;

struct Header {
  uint64_t magic = kMagic;
  uint64_t message = 0;  // its number
  uint64_t program = 0;  // its fingerprint
  int64_t refuses = 0;
  int64_t words = 0;
  int64_t bytes = 0;  // of all items
};

// Bytes that are to be sent or received, in pieces.
class Pieces {
 public:
  void Add(const void* bytes, int64_t size) {
    if (size > 0) pieces_.push_back({const_cast<void*>(bytes), static_cast<size_t>(size)});
  }
  bool empty() const { return next_ == pieces_.size(); }
  iovec* data() { return pieces_.data() + next_; }
  size_t size() const { return std::min(pieces_.size() - next_, kBuffersOfCall); }
  void Advance(size_t bytes) {
    while (bytes > 0) {
      iovec& piece = pieces_[next_];
      const size_t moved = std::min(bytes, piece.iov_len);
      piece.iov_base = static_cast<char*>(piece.iov_base) + moved;
      piece.iov_len -= moved;
      bytes -= moved;
      if (piece.iov_len == 0) ++next_;
    }
  }

 private:
  std::vector<iovec> pieces_;
  size_t next_ = 0;
};

// A message from one process.
struct Incoming {
  enum class Stage { kHeader, kWords, kWaits, kItems, kDone };
  Stage stage = Stage::kHeader;
  Header header;
  std::vector<int64_t> words;
  Pieces pieces;  // of this stage
};

// One message from each process to each other.
class Round {
 public:
  // `events`: an epoll that has all sockets, edge-triggered, by the number of the process.
  Round(Connections* connections, const Socket& events, Header header, std::vector<int64_t> numbers,
        double timeout_seconds)
      : connections_(*connections),
        events_(events),
        header_(header),
        numbers_(std::move(numbers)),
        incoming_(static_cast<size_t>(connections->processes())),
        outgoing_(incoming_.size()),
        heads_(incoming_.size()) {
    if (timeout_seconds > 0 && timeout_seconds < 1e9)
      deadline_ =
          Clock::now() + std::chrono::microseconds(static_cast<int64_t>(1e6 * timeout_seconds));
  }

  // The message to a process: counts of its items, and the items.
  void Send(int process, const int64_t* counts, int64_t tables, const Pieces& items,
            int64_t bytes) {
    Head& head = heads_[static_cast<size_t>(process)];
    head.words = numbers_;
    head.words.insert(head.words.end(), counts, counts + tables);
    head.header = header_;
    head.header.words = static_cast<int64_t>(head.words.size());
    head.header.bytes = bytes;
    if (process == connections_.index()) return;
    Pieces& pieces = outgoing_[static_cast<size_t>(process)];
    pieces.Add(&head.header, sizeof(Header));
    pieces.Add(head.words.data(), static_cast<int64_t>(head.words.size() * sizeof(int64_t)));
    for (Pieces rest = items; !rest.empty(); rest.Advance(rest.data()->iov_len))
      pieces.Add(rest.data()->iov_base, static_cast<int64_t>(rest.data()->iov_len));
    sent_bytes_ +=
        static_cast<int64_t>(sizeof(Header) + head.words.size() * sizeof(int64_t)) + bytes;
  }

  // Moves everything. Calls receive() when the heads of all are here: it says where items go, by
  // Receive, and those of which it says nothing are dropped.
  Status Run(const std::function<void()>& receive) {
    const int processes = connections_.processes();
    Incoming& own = incoming_[static_cast<size_t>(connections_.index())];
    own.header = heads_[static_cast<size_t>(connections_.index())].header;
    own.words = heads_[static_cast<size_t>(connections_.index())].words;
    own.stage = Incoming::Stage::kWaits;
    waiting_ = unfinished_ = processes - 1;
    for (int i = 1; i < processes; ++i) {  // each begins with another one
      const int p = (connections_.index() + i) % processes;
      incoming_[p].pieces.Add(&incoming_[p].header, sizeof(Header));
      DYNEMB_RETURN_IF_ERROR(Move(p));
    }
    while (waiting_ > 0) DYNEMB_RETURN_IF_ERROR(MoveWhatIsReady());
    receive();
    for (int i = 1; i < processes; ++i) {
      const int p = (connections_.index() + i) % processes;
      BeginItems(&incoming_[p]);
      DYNEMB_RETURN_IF_ERROR(Move(p));
    }
    while (unfinished_ > 0) DYNEMB_RETURN_IF_ERROR(MoveWhatIsReady());
    return Status();
  }

  const Incoming& incoming(int process) const { return incoming_[static_cast<size_t>(process)]; }
  // Where items of a process go.
  void Receive(int process, char* to, int64_t bytes) {
    Incoming& one = incoming_[static_cast<size_t>(process)];
    one.pieces.Add(to, bytes);
    one.header.bytes -= bytes;
  }
  int64_t sent_bytes() const { return sent_bytes_; }

 private:
  struct Head {
    Header header;
    std::vector<int64_t> words;
  };

  Status Gone(int process, const std::string& why) const {
    return Unavailable("process ", connections_.index(), " has lost process ", process, " at ",
                       connections_.address(process), ": ", why,
                       "; start the processes anew, from what was saved last");
  }

  Status MoveWhatIsReady() {
    constexpr int kMostEvents = 256;
    constexpr int64_t kLookAfter = 10000;
    epoll_event ready[kMostEvents];
    int64_t wait = kLookAfter;
    if (waiting_ > 0 && deadline_ != Clock::time_point::max()) {
      const auto left =
          std::chrono::duration_cast<std::chrono::milliseconds>(deadline_ - Clock::now()).count();
      wait = std::clamp<int64_t>(left + 1, 0, kLookAfter);
    }
    const int count = epoll_wait(events_.descriptor(), ready, kMostEvents, static_cast<int>(wait));
    if (count < 0 && errno != EINTR) return Unavailable(strerror(errno));
    for (int e = 0; e < count; ++e)
      DYNEMB_RETURN_IF_ERROR(Move(static_cast<int>(ready[e].data.u32)));
    if (count != 0) return Status();
    if (waiting_ > 0 && Clock::now() >= deadline_) return Late();
    return CheckSilence();
  }

  Status Late() const {
    std::string missing;
    for (int p = 0; p < connections_.processes(); ++p) {
      if (incoming(p).stage < Incoming::Stage::kWaits)
        missing += StrCat(missing.empty() ? "" : ", ", p);
    }
    return Status(Code::kDeadlineExceeded,
                  StrCat("process ", connections_.index(), " has waited for process ", missing,
                         " for the timeout_seconds of the strategy's CommunicationOptions"));
  }

  // A machine that is gone answers no more. Where nothing was sent to it, keepalive notices.
  Status CheckSilence() {
    for (int p = 0; p < connections_.processes(); ++p) {
      if (p == connections_.index()) continue;
      tcp_info info = {};
      socklen_t size = sizeof(info);
      if (getsockopt(connections_.socket(p).descriptor(), IPPROTO_TCP, TCP_INFO, &info, &size) != 0)
        continue;
      if ((info.tcpi_unacked > 0 || info.tcpi_probes > 0) &&
          info.tcpi_last_ack_recv > kSilentMilliseconds) {
        return Gone(p, "its machine does not answer");
      }
    }
    return Status();
  }

  // What can be moved to and from a process now.
  Status Move(int process) {
    const int descriptor = connections_.socket(process).descriptor();
    Pieces& out = outgoing_[static_cast<size_t>(process)];
    Incoming& in = incoming_[static_cast<size_t>(process)];
    while (!out.empty()) {
      msghdr message = {};
      message.msg_iov = out.data();
      message.msg_iovlen = out.size();
      const ssize_t sent = sendmsg(descriptor, &message, MSG_NOSIGNAL);
      if (sent >= 0) {
        out.Advance(static_cast<size_t>(sent));
      } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
        break;
      } else if (errno != EINTR) {
        return Gone(process, strerror(errno));
      }
    }
    while (!in.pieces.empty()) {
      msghdr message = {};
      message.msg_iov = in.pieces.data();
      message.msg_iovlen = in.pieces.size();
      const ssize_t got = recvmsg(descriptor, &message, 0);
      if (got > 0) {
        in.pieces.Advance(static_cast<size_t>(got));
        if (in.pieces.empty()) DYNEMB_RETURN_IF_ERROR(EndStage(process, &in));
      } else if (got == 0) {
        return Gone(process, "it closed the connection");
      } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
        break;
      } else if (errno != EINTR) {
        return Gone(process, strerror(errno));
      }
    }
    if (in.stage == Incoming::Stage::kItems && in.pieces.empty() && out.empty()) {
      in.stage = Incoming::Stage::kDone;
      --unfinished_;
    }
    return Status();
  }

  Status EndStage(int process, Incoming* in) {
    const Header& header = in->header;
    if (in->stage == Incoming::Stage::kHeader) {
      if (header.magic != kMagic || header.message != header_.message || header.words < 0 ||
          header.words > kMostWords || header.bytes < 0 || header.bytes > kMostBytes) {
        return Gone(process, "it sent what is no message of this exchange");
      }
      in->words.resize(static_cast<size_t>(header.words));
      in->pieces.Add(in->words.data(), header.words * static_cast<int64_t>(sizeof(int64_t)));
      in->stage = Incoming::Stage::kWords;
    }
    if (in->stage == Incoming::Stage::kWords && in->pieces.empty()) {
      in->stage = Incoming::Stage::kWaits;
      --waiting_;
    }
    return Status();
  }

  void BeginItems(Incoming* in) {
    in->stage = Incoming::Stage::kItems;
    if (in->header.bytes > 0 && dropped_.empty()) dropped_.resize(1 << 16);
    while (in->header.bytes > 0) {
      const int64_t bytes =
          std::min<int64_t>(in->header.bytes, static_cast<int64_t>(dropped_.size()));
      in->pieces.Add(dropped_.data(), bytes);
      in->header.bytes -= bytes;
    }
  }

  Connections& connections_;
  const Socket& events_;
  const Header header_;
  const std::vector<int64_t> numbers_;
  std::vector<Incoming> incoming_;
  std::vector<Pieces> outgoing_;
  std::vector<Head> heads_;
  std::vector<char> dropped_;
  Clock::time_point deadline_ = Clock::time_point::max();  // until all heads are here
  int waiting_ = 0;                                        // processes whose heads are not
  int unfinished_ = 0;  // processes to or from which there is something to move
  int64_t sent_bytes_ = 0;
};

// Bytes of the items of a process, by the counts of their tables; -1: counts that cannot be.
int64_t BytesOf(const int64_t* counts, int64_t tables, const std::vector<int64_t>& item_bytes) {
  int64_t bytes = 0;
  for (size_t p = 0; p < item_bytes.size(); ++p) {
    const int64_t count = counts[static_cast<int64_t>(p) % tables];
    if (count < 0 || count > (kMostBytes - bytes) / item_bytes[p]) return -1;
    bytes += count * item_bytes[p];
  }
  return bytes;
}

}  // namespace

class Exchange::State {
 public:
  explicit State(Connections connections) : connections_(std::move(connections)) {}

  Status Init() {
    events_ = Socket(epoll_create1(EPOLL_CLOEXEC));
    if (!events_.is_open()) return ResourceExhausted("epoll: ", strerror(errno));
    for (int p = 0; p < connections_.processes(); ++p) {
      if (p == connections_.index()) continue;
      epoll_event event = {};
      event.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET;
      event.data.u32 = static_cast<uint32_t>(p);
      if (epoll_ctl(events_.descriptor(), EPOLL_CTL_ADD, connections_.socket(p).descriptor(),
                    &event) != 0) {
        return ResourceExhausted("epoll: ", strerror(errno));
      }
    }
    return Status();
  }

  Status Start(ExchangeCall call) {
    const int64_t rows = call.to_all ? 1 : connections_.processes();
    if (call.counts.size != rows * call.tables || (call.tables == 0) != call.parts.empty() ||
        call.item_bytes.size() != call.parts.size()) {
      return InvalidArgument("counts: got ", call.counts.size, " for ", call.parts.size(),
                             " parts, want one for each of ", call.tables, " tables and ", rows,
                             " processes");
    }
    for (const int64_t bytes : call.item_bytes)
      if (bytes < 1) return InvalidArgument("items: got ", bytes, " bytes each, want 1 or more");
    for (int64_t row = 0; row < rows; ++row) {
      if (BytesOf(call.counts.data + row * call.tables, call.tables, call.item_bytes) < 0)
        return InvalidArgument("counts: got negative ones, or more than fit any memory");
    }
    const std::lock_guard<std::mutex> lock(mutex_);
    calls_.push_back(std::move(call));
    changed_.notify_one();
    return Status();
  }

  void End() {
    const std::lock_guard<std::mutex> lock(mutex_);
    is_ending_ = true;
    changed_.notify_one();
  }

  void Serve() {
    while (true) {
      ExchangeCall call;
      {
        std::unique_lock<std::mutex> lock(mutex_);
        changed_.wait(lock, [&] { return is_ending_ || !calls_.empty(); });
        if (calls_.empty()) return;
        call = std::move(calls_.front());
        calls_.pop_front();
      }
      ExchangeResult result;
      Status status = OrNoMemory([&] {
        if (broken_.ok()) return Run(call, &result);
        return Status(broken_.code(), StrCat("the exchange has ended: ", broken_.message()));
      });
      if (is_moving_) Break(status);  // no process knows where it is now
      sent_bytes_ += result.sent_bytes;
      ++done_calls_;
      call.done(status, result);
    }
  }

  int processes() const { return connections_.processes(); }
  int64_t sent_bytes() const { return sent_bytes_; }
  int64_t calls() const { return done_calls_; }

 private:
  void Break(const Status& status) {
    is_moving_ = false;
    if (!OrNoMemory([&] { broken_ = status; }).ok()) broken_ = NoMemory();
    for (int p = 0; p < connections_.processes(); ++p) connections_.socket(p).Shutdown();
  }

  Status Run(const ExchangeCall& call, ExchangeResult* result) {
    const int64_t processes = connections_.processes();
    const int index = connections_.index();
    const bool refuses = !call.problem.empty();
    is_moving_ = true;
    Header header;
    header.message = ++messages_;
    header.program = Fingerprint(call.program);
    for (const size_t shape : {call.numbers.size(), call.parts.size(), size_t{call.to_all}})
      header.program = Mix64(header.program ^ shape);
    header.refuses = refuses ? 1 : 0;
    Round round(&connections_, events_, header, call.numbers, call.timeout_seconds);
    std::vector<int64_t> first(call.parts.size(), 0);  // item of the next process, of each part
    const std::vector<int64_t> nothing(static_cast<size_t>(call.tables), 0);
    std::vector<const char*> own(call.parts.size());
    for (int p = 0; p < processes; ++p) {
      const int64_t* counts =
          refuses ? nothing.data() : call.counts.data + (call.to_all ? 0 : p * call.tables);
      Pieces items;
      for (size_t part = 0; part < call.parts.size(); ++part) {
        const char* from = call.parts[part] + first[part] * call.item_bytes[part];
        if (p == index) own[part] = from;
        const int64_t count = counts[static_cast<int64_t>(part) % call.tables];
        items.Add(from, count * call.item_bytes[part]);
        if (!call.to_all) first[part] += count;
      }
      round.Send(p, counts, call.tables, items, BytesOf(counts, call.tables, call.item_bytes));
    }

    bool same = true, refused = false, fits = true;
    Status allocated;
    DYNEMB_RETURN_IF_ERROR(round.Run([&] {
      const size_t words = call.numbers.size() + static_cast<size_t>(call.tables);
      for (int p = 0; p < processes; ++p) {
        same = same && round.incoming(p).header.program == header.program;
        refused = refused || round.incoming(p).header.refuses != 0;
      }
      if (!same || refused) return;
      std::vector<int64_t>* const largest = &result->largest;
      std::vector<int64_t>* const all_counts = &result->counts;
      *largest = call.numbers;
      for (int p = 0; p < processes; ++p) {
        const Incoming& one = round.incoming(p);
        const int64_t* counts = one.words.data() + call.numbers.size();
        fits = fits && one.words.size() == words &&
               BytesOf(counts, call.tables, call.item_bytes) == one.header.bytes;
        if (!fits) return;
        for (size_t n = 0; n < largest->size(); ++n)
          (*largest)[n] = std::max((*largest)[n], one.words[n]);
        all_counts->insert(all_counts->end(), counts, counts + call.tables);
      }
      std::vector<char*> to;
      if (!call.parts.empty())
        allocated = OrNoMemory([&] { return call.allocate(*all_counts, &to); });
      if (!allocated.ok() || call.parts.empty()) return;
      for (int p = 0; p < processes; ++p) {
        for (size_t part = 0; part < call.parts.size(); ++part) {
          const int64_t bytes = (*all_counts)[static_cast<size_t>(
                                    p * call.tables + static_cast<int64_t>(part) % call.tables)] *
                                call.item_bytes[part];
          if (p == index && bytes > 0) memcpy(to[part], own[part], static_cast<size_t>(bytes));
          if (p != index) round.Receive(p, to[part], bytes);
          to[part] += bytes;
        }
      }
    }));
    result->sent_bytes = round.sent_bytes();
    if (!fits) return Status(Code::kInternal, "a process sent counts that are not of its items");
    if (!same || refused) return Tell(call, refused);
    is_moving_ = false;
    return allocated;
  }

  // The error of all processes: what each of them says.
  Status Tell(const ExchangeCall& call, bool refused) {
    std::string text = refused ? call.problem : call.program;
    if (static_cast<int64_t>(text.size()) > kMostTextBytes) text.resize(kMostTextBytes);
    Header header;
    header.message = ++messages_;
    const int64_t bytes = static_cast<int64_t>(text.size());
    Pieces items;
    items.Add(text.data(), bytes);
    Round round(&connections_, events_, header, {}, 0);
    const int processes = connections_.processes();
    for (int p = 0; p < processes; ++p) round.Send(p, nullptr, 0, items, bytes);
    std::vector<std::string> texts(static_cast<size_t>(processes));
    DYNEMB_RETURN_IF_ERROR(round.Run([&] {
      for (int p = 0; p < processes; ++p) {
        std::string& one = texts[static_cast<size_t>(p)];
        if (p == connections_.index()) {
          one = text;
        } else if (round.incoming(p).header.bytes <= kMostTextBytes) {
          one.resize(static_cast<size_t>(round.incoming(p).header.bytes));
          round.Receive(p, one.data(), static_cast<int64_t>(one.size()));
        }
      }
    }));
    is_moving_ = false;
    std::string all;
    for (int p = 0; p < processes; ++p) {
      if (texts[p].empty()) continue;
      all += StrCat(all.empty() ? "" : "; ", "process ", p, ": ", texts[p]);
    }
    if (refused)
      return Status(call.refusal, StrCat("processes refuse what they were to do: ", all));
    return InvalidArgument(
        "the programs of the processes differ: they must make the same tables, in the same order, "
        "and "
        "look them up and train them in the same order. Got ",
        all);
  }

  Connections connections_;
  Socket events_;
  uint64_t messages_ = 0;
  bool is_moving_ = false;  // from the beginning of a call until all have had all of it
  Status broken_;
  std::atomic<int64_t> sent_bytes_{0}, done_calls_{0};

  std::mutex mutex_;  // of what follows
  std::condition_variable changed_;
  std::deque<ExchangeCall> calls_;
  bool is_ending_ = false;
};

Status Exchange::Make(Connections connections, std::unique_ptr<Exchange>* exchange) {
  const auto state = std::make_shared<State>(std::move(connections));
  DYNEMB_RETURN_IF_ERROR(state->Init());
  try {
    std::thread([state] { state->Serve(); }).detach();
  } catch (const std::system_error& error) {
    return ResourceExhausted("no thread for the exchange between processes: ", error.what());
  }
  exchange->reset(new Exchange(state));
  return Status();
}

Exchange::~Exchange() { state_->End(); }

Status Exchange::Start(ExchangeCall call) { return state_->Start(std::move(call)); }
int Exchange::processes() const { return state_->processes(); }
int64_t Exchange::sent_bytes() const { return state_->sent_bytes(); }
int64_t Exchange::calls() const { return state_->calls(); }

}  // namespace dynemb

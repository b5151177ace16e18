#include "cc/core/shard/round.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

namespace dynemb {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kMostWords = 1 << 20;
constexpr size_t kBuffersOfCall = 64;  // of one system call
// Moved to or from one process before the others have their turn, whose heads may have come.
constexpr size_t kBytesOfTurn = 1 << 18;
// How long a machine may say nothing of bytes that were sent to it. One that is there and does not
// read says every two minutes that it is.
constexpr int64_t kSilentMilliseconds = 180000;

}  // namespace

size_t Pieces::size() const { return std::min(pieces_.size() - next_, kBuffersOfCall); }

void Pieces::Advance(size_t bytes) {
  while (bytes > 0) {
    iovec& piece = pieces_[next_];
    const size_t moved = std::min(bytes, piece.iov_len);
    piece.iov_base = static_cast<char*>(piece.iov_base) + moved;
    piece.iov_len -= moved;
    bytes -= moved;
    if (piece.iov_len == 0) ++next_;
  }
}

Round::Round(Connections* connections, const Socket& events, uint64_t number,
             double timeout_seconds)
    : connections_(*connections),
      events_(events),
      number_(number),
      deadline_(Clock::time_point::max()),
      incoming_(static_cast<size_t>(connections->processes())),
      outgoing_(incoming_.size()) {
  if (timeout_seconds > 0 && timeout_seconds < 1e9)
    deadline_ =
        Clock::now() + std::chrono::microseconds(static_cast<int64_t>(1e6 * timeout_seconds));
  for (Incoming& in : incoming_) in.pieces.Add(&in.header, sizeof(Header));
}

Status Round::Send(int process, Header header, std::vector<int64_t> words) {
  Outgoing& out = outgoing_[static_cast<size_t>(process)];
  out.words = std::move(words);
  out.header = header;
  out.header.round = number_;
  out.header.words = static_cast<int64_t>(out.words.size());
  Pieces head;
  head.Add(&out.header, sizeof(Header));
  head.Add(out.words.data(), static_cast<int64_t>(out.words.size() * sizeof(int64_t)));
  // Before items that are there already: one system call for all.
  for (; !out.pieces.empty(); out.pieces.Advance(out.pieces.data()->iov_len))
    head.Add(out.pieces.data()->iov_base, static_cast<int64_t>(out.pieces.data()->iov_len));
  out.pieces = std::move(head);
  ++sent_messages_;
  return Move(process);
}

void Round::Receive(int process, void* items, int64_t bytes) {
  Incoming& in = incoming_[static_cast<size_t>(process)];
  in.pieces.Add(items, bytes);
  in.rest -= bytes;
}

void Round::DropRest(int process) {
  Incoming& in = incoming_[static_cast<size_t>(process)];
  if (in.rest > 0 && dropped_.empty()) dropped_.resize(1 << 16);
  while (in.rest > 0)
    Receive(process, dropped_.data(),
            std::min<int64_t>(in.rest, static_cast<int64_t>(dropped_.size())));
}

Status Round::AwaitHead(int process) {
  // What came during the round before, the epoll has told that one.
  if (!has_head(process)) DYNEMB_RETURN_IF_ERROR(Move(process));
  while (!has_head(process)) DYNEMB_RETURN_IF_ERROR(MoveWhatIsReady(deadline_));
  return Status();
}

Status Round::AwaitItems(int process) {
  const Pieces& pieces = incoming_[static_cast<size_t>(process)].pieces;
  while (!pieces.empty()) DYNEMB_RETURN_IF_ERROR(MoveWhatIsReady(Clock::time_point::max()));
  return Status();
}

Status Round::AwaitSent(int process) {
  const Pieces& pieces = outgoing_[static_cast<size_t>(process)].pieces;
  while (!pieces.empty()) DYNEMB_RETURN_IF_ERROR(MoveWhatIsReady(Clock::time_point::max()));
  return Status();
}

Status Round::Gone(int process, const std::string& why) const {
  return Unavailable("process ", connections_.index(), " has lost process ", process, " at ",
                     connections_.address(process), ": ", why,
                     "; start the processes anew, from what was saved last");
}

Status Round::Closed(int process) const {
  const std::string how = "it closed the connection";
  std::string others;
  size_t count = 0;
  for (int p = 0; p < connections_.processes(); ++p) {
    const Channel& channel = connections_.channel(p);
    if (p == process || !channel.socket().is_open() || !channel.is_closed()) continue;
    if (++count <= kMostNamed) others += StrCat(count == 1 ? "" : ", ", p);
  }
  if (count == 0) return Gone(process, how);
  if (count > kMostNamed) others += StrCat(" and ", count - kMostNamed, " more");
  return Gone(process,
              StrCat(how, ", and so did ", count == 1 ? "process " : "the processes ", others,
                     "; one that loses another closes all of its own, so that the "
                     "first error of all processes names the one that is gone"));
}

Status Round::MoveWhatIsReady(Clock::time_point deadline) {
  constexpr int kMostEvents = 256;
  constexpr int64_t kLookAfter = 10000;
  epoll_event ready[kMostEvents];
  int64_t wait = moving_.empty() ? kLookAfter : 0;
  if (deadline != Clock::time_point::max()) {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
    wait = std::clamp<int64_t>(left + 1, 0, wait);
  }
  const int count = epoll_wait(events_.descriptor(), ready, kMostEvents, static_cast<int>(wait));
  if (count < 0 && errno != EINTR) return Unavailable(strerror(errno));
  const bool is_idle = count == 0 && moving_.empty();
  for (const int process : std::exchange(moving_, {})) DYNEMB_RETURN_IF_ERROR(Move(process));
  for (int e = 0; e < count; ++e) DYNEMB_RETURN_IF_ERROR(Move(static_cast<int>(ready[e].data.u32)));
  if (!is_idle) return Status();
  if (Clock::now() >= deadline) return Status(Code::kDeadlineExceeded, "");
  DYNEMB_RETURN_IF_ERROR(CheckSilence());
  // An event that was missed costs ten seconds, not a job that hangs.
  for (size_t p = 0; p < incoming_.size(); ++p) {
    if (!outgoing_[p].pieces.empty() ||
        (connections_.channel(static_cast<int>(p)).socket().is_open() &&
         !incoming_[p].pieces.empty()))
      DYNEMB_RETURN_IF_ERROR(Move(static_cast<int>(p)));
  }
  return Status();
}

Status Round::CheckSilence() {
  for (int p = 0; p < connections_.processes(); ++p) {
    if (!connections_.channel(p).socket().is_open()) continue;
    tcp_info info = {};
    socklen_t size = sizeof(info);
    if (getsockopt(connections_.channel(p).socket().descriptor(), IPPROTO_TCP, TCP_INFO, &info,
                   &size) != 0)
      continue;
    if ((info.tcpi_unacked > 0 || info.tcpi_probes > 0) &&
        info.tcpi_last_ack_recv > kSilentMilliseconds) {
      return Gone(p, "its machine does not answer");
    }
  }
  return Status();
}

Status Round::Move(int process) {
  const auto is_closing = [](int error) { return error == EPIPE || error == ECONNRESET; };
  Channel& channel = connections_.channel(process);
  Pieces& out = outgoing_[static_cast<size_t>(process)].pieces;
  Incoming& in = incoming_[static_cast<size_t>(process)];
  size_t sent_now = 0;
  while (!out.empty() && sent_now < kBytesOfTurn) {
    const ssize_t sent = channel.Send(out.data(), out.size());
    if (sent >= 0) {
      out.Advance(static_cast<size_t>(sent));
      sent_now += static_cast<size_t>(sent);
      sent_bytes_ += sent;
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      break;
    } else if (errno != EINTR) {
      return is_closing(errno) ? Closed(process) : Gone(process, strerror(errno));
    }
  }
  size_t got_now = 0;
  while (!in.pieces.empty() && got_now < kBytesOfTurn) {
    const ssize_t got = channel.Receive(in.pieces.data(), in.pieces.size());
    if (got > 0) {
      in.pieces.Advance(static_cast<size_t>(got));
      got_now += static_cast<size_t>(got);
      if (in.pieces.empty()) DYNEMB_RETURN_IF_ERROR(EndStage(process, &in));
    } else if (got == 0) {
      return Closed(process);
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      break;
    } else if (errno != EINTR) {
      return is_closing(errno) ? Closed(process) : Gone(process, strerror(errno));
    }
  }
  // An edge of the epoll may be over: it says nothing more of what is left here.
  const bool has_more = (sent_now >= kBytesOfTurn && !out.empty()) ||
                        (got_now >= kBytesOfTurn && !in.pieces.empty()) ||
                        channel.has_more(!out.empty(), !in.pieces.empty());
  if (has_more && std::find(moving_.begin(), moving_.end(), process) == moving_.end())
    moving_.push_back(process);
  return Status();
}

Status Round::EndStage(int process, Incoming* in) {
  const Header& header = in->header;
  if (in->stage == Incoming::Stage::kHeader) {
    if (header.magic != kMessageMagic || header.round != number_ || header.words < 0 ||
        header.words > kMostWords || header.bytes < 0 || header.bytes > kMostItemBytes) {
      return Gone(process, "it sent what is no message of this exchange");
    }
    in->words.resize(static_cast<size_t>(header.words));
    in->pieces.Add(in->words.data(), header.words * static_cast<int64_t>(sizeof(int64_t)));
    in->stage = Incoming::Stage::kWords;
  }
  if (in->stage == Incoming::Stage::kWords && in->pieces.empty()) {
    in->rest = header.bytes;
    in->stage = Incoming::Stage::kItems;
  }
  return Status();
}

}  // namespace dynemb

// Round: at most one message from this process to each other, and one back.
//
// A message is a header, then words, then items, which are bytes. The receiver says where items go
// when it has the words, so it takes whatever size comes, and no message is put together anywhere.
#ifndef TF_DYNEMB_CC_CORE_SHARD_ROUND_H_
#define TF_DYNEMB_CC_CORE_SHARD_ROUND_H_

#include <sys/uio.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "cc/core/base/status.h"
#include "cc/core/shard/connections.h"

namespace dynemb {

constexpr uint64_t kMessageMagic = 0x32676e6168637865;
constexpr int64_t kMostItemBytes = int64_t{1} << 47;  // of a message

struct Header {
  uint64_t magic = kMessageMagic;
  uint64_t round = 0;    // its number
  uint64_t program = 0;  // its fingerprint
  // Whether a process that the message speaks for refuses, or has another program.
  int32_t refuses = 0;
  int32_t differs = 0;
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
  // As many as one system call takes.
  iovec* data() { return pieces_.data() + next_; }
  size_t size() const;
  void Advance(size_t bytes);

 private:
  std::vector<iovec> pieces_;
  size_t next_ = 0;
};

// The errors of all calls: kUnavailable if a process is gone.
class Round {
 public:
  // `events`: an epoll that has all sockets, edge-triggered, by the number of the process.
  Round(Connections* connections, const Socket& events, uint64_t number, double timeout_seconds);

  // Sends a header, whose number of words is set here, and words. Items of header.bytes follow.
  Status Send(int process, Header header, std::vector<int64_t> words);
  // Says where items lie. Start moves them.
  void SendItems(int process, const void* items, int64_t bytes) {
    outgoing_[static_cast<size_t>(process)].pieces.Add(items, bytes);
  }
  // Says where items go. Start moves them.
  void Receive(int process, void* items, int64_t bytes);
  // Receives what Receive has not been told of, to no place.
  void DropRest(int process);
  Status Start(int process) { return Move(process); }

  // Waits for a header and words. Errors: kDeadlineExceeded, if they do not come in time.
  Status AwaitHead(int process);
  bool has_head(int process) const {
    return incoming_[static_cast<size_t>(process)].stage == Incoming::Stage::kItems;
  }
  const Header& header(int process) const { return incoming_[static_cast<size_t>(process)].header; }
  const std::vector<int64_t>& words(int process) const {
    return incoming_[static_cast<size_t>(process)].words;
  }
  // Waits until all that Receive was told of is here.
  Status AwaitItems(int process);
  // Waits until all that is for it has gone.
  Status AwaitSent(int process);

  int64_t sent_bytes() const { return sent_bytes_; }
  int64_t sent_messages() const { return sent_messages_; }

 private:
  static constexpr size_t kMostNamed = 8;  // in an error

  struct Incoming {
    enum class Stage { kHeader, kWords, kItems };
    Stage stage = Stage::kHeader;
    Header header;
    std::vector<int64_t> words;
    int64_t rest = 0;  // bytes of items of which it is not said where they go
    Pieces pieces;     // of this stage
  };
  struct Outgoing {
    Header header;
    std::vector<int64_t> words;
    Pieces pieces;
  };

  Status Gone(int process, const std::string& why) const;
  // The same of one that closed the connection, as a process does that is gone or has lost another.
  Status Closed(int process) const;
  // Waits for something that can be moved, and moves it; kDeadlineExceeded after the deadline.
  Status MoveWhatIsReady(std::chrono::steady_clock::time_point deadline);
  // A machine that is gone answers no more. Where nothing was sent to it, keepalive notices.
  Status CheckSilence();
  // What can be moved to and from a process now.
  Status Move(int process);
  Status EndStage(int process, Incoming* in);

  Connections& connections_;
  const Socket& events_;
  const uint64_t number_;
  std::chrono::steady_clock::time_point deadline_;  // of heads
  std::vector<Incoming> incoming_;
  std::vector<Outgoing> outgoing_;
  std::vector<char> dropped_;
  std::vector<int> moving_;  // processes of which more could be moved at once
  int64_t sent_bytes_ = 0;
  int64_t sent_messages_ = 0;
};

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_CORE_SHARD_ROUND_H_

// Channel, by a socket and through shared memory: sends and receives end with EAGAIN, and then an
// event comes, or has_more says that none will; what was sent before the end is received.
#include "cc/core/shard/channel.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <memory>
#include <string>
#include <utility>

namespace dynemb {
namespace {

// Two sockets that are connected over the loopback.
void Connect(Socket* one, Socket* other) {
  const Socket listener(socket(AF_INET, SOCK_STREAM, 0));
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  auto* const at = reinterpret_cast<sockaddr*>(&address);
  ASSERT_EQ(bind(listener.descriptor(), at, size), 0);
  ASSERT_EQ(listen(listener.descriptor(), 1), 0);
  ASSERT_EQ(getsockname(listener.descriptor(), at, &size), 0);
  *one = Socket(socket(AF_INET, SOCK_STREAM, 0));
  ASSERT_EQ(connect(one->descriptor(), at, size), 0);
  *other = Socket(accept(listener.descriptor(), nullptr, nullptr));
  for (const Socket* each : {one, other}) {
    const int on = 1;
    ASSERT_EQ(setsockopt(each->descriptor(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)), 0);
    ASSERT_EQ(fcntl(each->descriptor(), F_SETFL, O_NONBLOCK), 0);
  }
}

class ChannelOf : public testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    Socket one, other;
    Connect(&one, &other);
    std::unique_ptr<SharedRings> made, opened;
    if (GetParam()) {
      made = SharedRings::Make();
      ASSERT_NE(made, nullptr);
      opened = SharedRings::Open(made->offer());
      ASSERT_NE(opened, nullptr);
    }
    one_ = Channel(std::move(one), std::move(made));
    other_ = Channel(std::move(other), std::move(opened));
    events_ = Socket(epoll_create1(0));
    Watch(one_);
  }

  // Whose events are looked at: those that come from now on.
  void Watch(const Channel& channel) {
    epoll_event event = {};
    event.events = EPOLLIN | EPOLLRDHUP | EPOLLET;
    ASSERT_EQ(epoll_ctl(events_.descriptor(), EPOLL_CTL_ADD, channel.socket().descriptor(), &event),
              0);
  }
  // Waits for an event, which must come, or looks whether there is one.
  bool HasEvent(bool must_come = false) {
    epoll_event event;
    return epoll_wait(events_.descriptor(), &event, 1, must_come ? 60000 : 0) == 1;
  }

  // What was moved until errno said why no more: 0 for the end.
  static ssize_t SendAll(Channel* channel, size_t size, int* why) {
    std::string bytes(size, 'x');
    size_t done = 0;
    while (done < size) {
      iovec piece = {bytes.data() + done, size - done};
      const ssize_t sent = channel->Send(&piece, 1);
      *why = errno;
      if (sent < 0) break;
      done += static_cast<size_t>(sent);
    }
    return static_cast<ssize_t>(done);
  }
  static ssize_t ReceiveAll(Channel* channel, size_t size, int* why) {
    std::string bytes(size, ' ');
    size_t done = 0;
    while (done < size) {
      iovec piece = {bytes.data() + done, size - done};
      const ssize_t got = channel->Receive(&piece, 1);
      *why = got == 0 ? 0 : errno;
      if (got <= 0) break;
      done += static_cast<size_t>(got);
    }
    return static_cast<ssize_t>(done);
  }
  static constexpr size_t kMuch = size_t{1} << 24;
  Channel one_, other_;
  Socket events_;
  int why_ = 0;
};
INSTANTIATE_TEST_SUITE_P(SharedMemory, ChannelOf, testing::Bool());

TEST_P(ChannelOf, WhoWaitsForBytesGetsAnEvent) {
  EXPECT_EQ(ReceiveAll(&one_, 10, &why_), 0);
  EXPECT_EQ(why_, EAGAIN);
  EXPECT_FALSE(HasEvent());
  EXPECT_EQ(SendAll(&other_, 10, &why_), 10);
  EXPECT_TRUE(HasEvent(true));
  EXPECT_EQ(ReceiveAll(&one_, 10, &why_), 10);
}

TEST_P(ChannelOf, WhatWasSentBeforeTheEndIsReceived) {
  const ssize_t sent = SendAll(&one_, kMuch, &why_);
  EXPECT_EQ(why_, EAGAIN);
  EXPECT_GT(sent, 1000);
  one_ = Channel();
  EXPECT_EQ(ReceiveAll(&other_, kMuch, &why_), sent);
  EXPECT_EQ(why_, 0);
}

TEST_P(ChannelOf, WhoHasNoRoomLearnsThatTheOtherIsGone) {
  SendAll(&one_, kMuch, &why_);
  EXPECT_EQ(why_, EAGAIN);
  EXPECT_FALSE(HasEvent());
  other_ = Channel();
  EXPECT_TRUE(HasEvent(true));
  EXPECT_EQ(SendAll(&one_, 1, &why_), 0);
  EXPECT_TRUE(why_ == EPIPE || why_ == ECONNRESET) << why_;
}

class ChannelOfRings : public ChannelOf {};
INSTANTIATE_TEST_SUITE_P(SharedMemory, ChannelOfRings, testing::Values(true));

// A socket that is closed with a wake in it is reset, and not ended.
TEST_P(ChannelOfRings, WhatWasSentBeforeAResetIsReceived) {
  const ssize_t sent = SendAll(&other_, kMuch, &why_);
  EXPECT_EQ(ReceiveAll(&one_, sent, &why_), sent);  // wakes the other one
  EXPECT_EQ(ReceiveAll(&one_, 1, &why_), 0);
  EXPECT_EQ(why_, EAGAIN);
  EXPECT_EQ(SendAll(&other_, 10, &why_), 10);  // and takes no wake
  EXPECT_TRUE(HasEvent(true));
  other_ = Channel();
  EXPECT_TRUE(HasEvent(true));
  EXPECT_EQ(ReceiveAll(&one_, 100, &why_), 10);
  EXPECT_EQ(why_, 0);
}

// Wakes say that there are bytes or room, and not which.
TEST_P(ChannelOfRings, WhatReceivesTakesNoWakeFromWhatSends) {
  SendAll(&one_, kMuch, &why_);
  EXPECT_FALSE(one_.has_more(true, true));
  ReceiveAll(&other_, kRingBytes, &why_);
  EXPECT_TRUE(HasEvent(true));
  EXPECT_EQ(ReceiveAll(&one_, 1, &why_), 0);
  EXPECT_EQ(why_, EAGAIN);
  EXPECT_FALSE(HasEvent());
  EXPECT_TRUE(one_.has_more(true, false));
  EXPECT_FALSE(one_.has_more(false, true));
}

TEST_P(ChannelOfRings, WhatSendsTakesNoWakeFromWhatReceives) {
  SendAll(&one_, kMuch, &why_);
  EXPECT_EQ(ReceiveAll(&one_, 1, &why_), 0);
  SendAll(&other_, 1, &why_);
  EXPECT_TRUE(HasEvent(true));
  EXPECT_EQ(SendAll(&one_, 1, &why_), 0);
  EXPECT_EQ(why_, EAGAIN);
  EXPECT_FALSE(HasEvent());
  EXPECT_TRUE(one_.has_more(false, true));
  EXPECT_FALSE(one_.has_more(true, false));
}

TEST_P(ChannelOfRings, APeerThatBreaksTheMemoryIsAnError) {
  auto rings = SharedRings::Make();
  ASSERT_NE(rings, nullptr);
  const std::string garbage(2 * kRingBytes, 'G');
  ASSERT_EQ(pwrite(static_cast<int>(rings->offer().descriptor), garbage.data(), garbage.size(), 0),
            static_cast<ssize_t>(garbage.size()));
  Socket one, other;
  Connect(&one, &other);
  Channel channel(std::move(one), std::move(rings));
  EXPECT_EQ(SendAll(&channel, 1, &why_), 0);
  EXPECT_EQ(why_, EBADMSG);
  EXPECT_EQ(ReceiveAll(&channel, 1, &why_), 0);
  EXPECT_EQ(why_, EBADMSG);
}

}  // namespace
}  // namespace dynemb

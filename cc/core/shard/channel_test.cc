// Channel through shared memory: as a socket's, sends and receives end with EAGAIN, and then an
// event comes, or has_more says that none will; what was sent before the end is received.
#include "cc/core/shard/channel.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <memory>
#include <string>
#include <utility>

namespace dynemb {
namespace {

class ChannelOf : public testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    int sockets[2];
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, sockets), 0);
    std::unique_ptr<SharedMemory> made, opened;
    if (GetParam()) {
      made = SharedMemory::Make();
      opened = SharedMemory::Open(made->name());
    }
    one_ = Channel(Socket(sockets[0]), std::move(made));
    other_ = Channel(Socket(sockets[1]), std::move(opened));
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
  static bool HasEvent(const Channel& channel) {
    pollfd one = {channel.socket().descriptor(), POLLIN, 0};
    return poll(&one, 1, 0) == 1;
  }

  static constexpr size_t kMuch = size_t{1} << 24;
  Channel one_, other_;
  int why_ = 0;
};
INSTANTIATE_TEST_SUITE_P(SharedMemory, ChannelOf, testing::Bool());

TEST_P(ChannelOf, WhoWaitsForBytesGetsAnEvent) {
  EXPECT_EQ(ReceiveAll(&other_, 10, &why_), 0);
  EXPECT_EQ(why_, EAGAIN);
  EXPECT_FALSE(HasEvent(other_));
  EXPECT_EQ(SendAll(&one_, 10, &why_), 10);
  EXPECT_TRUE(HasEvent(other_));
  EXPECT_EQ(ReceiveAll(&other_, 10, &why_), 10);
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
  other_ = Channel();
  EXPECT_TRUE(HasEvent(one_));
  EXPECT_EQ(SendAll(&one_, 1, &why_), 0);
  EXPECT_TRUE(why_ == EPIPE || why_ == ECONNRESET) << why_;
}

class SharedChannel : public ChannelOf {};
INSTANTIATE_TEST_SUITE_P(SharedMemory, SharedChannel, testing::Values(true));

// Wakes say that there are bytes or room, and not which.
TEST_P(SharedChannel, WhatReceivesTakesNoWakeFromWhatSends) {
  SendAll(&one_, kMuch, &why_);
  EXPECT_FALSE(one_.has_more(true, true));
  ReceiveAll(&other_, kRingBytes, &why_);
  EXPECT_TRUE(HasEvent(one_));
  EXPECT_EQ(ReceiveAll(&one_, 1, &why_), 0);
  EXPECT_EQ(why_, EAGAIN);
  EXPECT_FALSE(HasEvent(one_));
  EXPECT_TRUE(one_.has_more(true, false));
  EXPECT_FALSE(one_.has_more(false, true));
}

TEST_P(SharedChannel, WhatSendsTakesNoWakeFromWhatReceives) {
  SendAll(&one_, kMuch, &why_);
  EXPECT_EQ(ReceiveAll(&one_, 1, &why_), 0);
  SendAll(&other_, 1, &why_);
  EXPECT_TRUE(HasEvent(one_));
  EXPECT_EQ(SendAll(&one_, 1, &why_), 0);
  EXPECT_EQ(why_, EAGAIN);
  EXPECT_FALSE(HasEvent(one_));
  EXPECT_TRUE(one_.has_more(false, true));
  EXPECT_FALSE(one_.has_more(true, false));
}

}  // namespace
}  // namespace dynemb

// SharedRings: what one end writes is what the other end reads, in pieces of any sizes; nobody
// sleeps while there is something to do; also between two processes; and nothing else is opened.
#include "cc/core/shard/shared_rings.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

namespace dynemb {
namespace {

class SharedRingsTest : public testing::Test {
 protected:
  void SetUp() override {
    maker_ = SharedRings::Make();
    ASSERT_NE(maker_, nullptr);
    opener_ = SharedRings::Open(maker_->offer());
    ASSERT_NE(opener_, nullptr);
  }
  std::unique_ptr<SharedRings> maker_, opener_;
};

iovec Piece(std::string* bytes) { return {bytes->data(), bytes->size()}; }

std::string SomeBytes(std::mt19937* random, size_t size) {
  std::string bytes(size, ' ');
  for (char& c : bytes) c = static_cast<char>((*random)());
  return bytes;
}

// Against a string: bytes that were written and not read.
TEST_F(SharedRingsTest, AreTwoQueuesOfBytes) {
  std::mt19937 random(1);
  for (int way = 0; way < 2; ++way) {
    SharedRings& writer = way == 0 ? *maker_ : *opener_;
    SharedRings& reader = way == 0 ? *opener_ : *maker_;
    std::string queue;
    for (int step = 0; step < 300; ++step) {
      const size_t most = step % 3 == 0 ? 3 * kRingBytes / 2 : kRingBytes / 5;
      std::vector<std::string> given(random() % 4), got(random() % 4);
      std::vector<iovec> pieces;
      std::string all;
      for (std::string& one : given) {
        all += one = SomeBytes(&random, random() % most);
        pieces.push_back(Piece(&one));
      }
      bool wake_peer;
      const ssize_t written = writer.Write(pieces.data(), pieces.size(), &wake_peer);
      ASSERT_EQ(written, static_cast<ssize_t>(std::min(all.size(), kRingBytes - queue.size())));
      queue += all.substr(0, static_cast<size_t>(written));
      EXPECT_EQ(writer.has_room(), queue.size() <= kRingBytes / 2);
      EXPECT_EQ(reader.has_bytes(), !queue.empty());
      pieces.clear();
      size_t wanted = 0;
      for (std::string& one : got) {
        one.resize(random() % most);
        wanted += one.size();
        pieces.push_back(Piece(&one));
      }
      const ssize_t read = reader.Read(pieces.data(), pieces.size(), &wake_peer);
      ASSERT_EQ(read, static_cast<ssize_t>(std::min(wanted, queue.size())));
      std::string taken;
      for (const std::string& one : got) taken += one;
      ASSERT_TRUE(taken.substr(0, static_cast<size_t>(read)) ==
                  queue.substr(0, static_cast<size_t>(read)));
      queue.erase(0, static_cast<size_t>(read));
    }
  }
}

TEST_F(SharedRingsTest, WhoWaitsIsWoken) {
  std::string bytes(kRingBytes, 'x'), one(1, 'y'), half(kRingBytes / 2, ' ');
  const iovec all = Piece(&bytes), some = Piece(&one), most = Piece(&half);
  bool wake_peer = true;
  // Nobody waits.
  ASSERT_EQ(maker_->Write(&some, 1, &wake_peer), 1);
  EXPECT_FALSE(wake_peer);
  ASSERT_EQ(opener_->Read(&some, 1, &wake_peer), 1);
  EXPECT_FALSE(wake_peer);
  // For bytes: once.
  ASSERT_EQ(opener_->Read(&some, 1, &wake_peer), 0);
  ASSERT_EQ(maker_->Write(&some, 1, &wake_peer), 1);
  EXPECT_TRUE(wake_peer);
  ASSERT_EQ(maker_->Write(&some, 1, &wake_peer), 1);
  EXPECT_FALSE(wake_peer);
  // For room: when half of it is free.
  ASSERT_EQ(maker_->Write(&all, 1, &wake_peer), static_cast<ssize_t>(kRingBytes - 2));
  ASSERT_EQ(maker_->Write(&some, 1, &wake_peer), 0);
  ASSERT_EQ(opener_->Read(&some, 1, &wake_peer), 1);
  EXPECT_FALSE(wake_peer);
  ASSERT_EQ(opener_->Read(&most, 1, &wake_peer), static_cast<ssize_t>(kRingBytes / 2));
  EXPECT_TRUE(wake_peer);
  ASSERT_EQ(opener_->Read(&some, 1, &wake_peer), 1);
  EXPECT_FALSE(wake_peer);
}

// A pipe: its wakes.
class Wakes {
 public:
  Wakes() { EXPECT_EQ(pipe(ends_), 0); }
  ~Wakes() {
    for (const int end : ends_) close(end);
  }
  bool Wait() {
    char byte;
    return read(ends_[0], &byte, 1) == 1;
  }
  bool Wake() { return write(ends_[1], "x", 1) == 1; }

 private:
  int ends_[2];
};

constexpr int64_t kBytes = int64_t{1} << 27;

// Writes or reads bytes that a random generator says, in pieces of random sizes, and does nothing
// but what wakes tell. False: something is not as it must be.
bool Stream(SharedRings* end, bool writes, Wakes* own, Wakes* peer) {
  std::mt19937 sizes(1);
  std::string bytes(kRingBytes, ' ');
  const auto byte_at = [](int64_t at) {
    return static_cast<char>((at * 0x9e3779b97f4a7c15) >> 56);
  };
  for (int64_t at = 0; at < kBytes;) {
    const auto size = std::min<int64_t>(sizes() % bytes.size() + 1, kBytes - at);
    if (writes)
      for (int64_t i = 0; i < size; ++i) bytes[static_cast<size_t>(i)] = byte_at(at + i);
    for (int64_t done = 0; done < size;) {
      const iovec piece = {bytes.data() + done, static_cast<size_t>(size - done)};
      bool wake_peer;
      const ssize_t moved =
          writes ? end->Write(&piece, 1, &wake_peer) : end->Read(&piece, 1, &wake_peer);
      if (moved < 0 || (wake_peer && !peer->Wake()) || (moved == 0 && !own->Wait())) return false;
      done += moved;
    }
    for (int64_t i = 0; i < size; ++i)
      if (bytes[static_cast<size_t>(i)] != byte_at(at + i)) return false;
    at += size;
  }
  return true;
}

// In one mapping, which ThreadSanitizer sees.
TEST_F(SharedRingsTest, NobodySleepsWhileThereIsSomethingToDo) {
  const auto other = maker_->OtherEnd();
  Wakes of_writer, of_reader;
  bool written = false;
  std::thread writer([&] { written = Stream(maker_.get(), true, &of_writer, &of_reader); });
  EXPECT_TRUE(Stream(other.get(), false, &of_reader, &of_writer));
  writer.join();
  EXPECT_TRUE(written);
}

TEST_F(SharedRingsTest, AreOfTwoProcesses) {
  Wakes of_writer, of_reader;
  const pid_t child = fork();
  if (child == 0) {
    const auto opened = SharedRings::Open(maker_->offer());
    _exit(opened != nullptr && Stream(opened.get(), true, &of_writer, &of_reader) ? 0 : 1);
  }
  EXPECT_TRUE(Stream(maker_.get(), false, &of_reader, &of_writer));
  int status = 1;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST_F(SharedRingsTest, OpenNothingElse) {
  RingsOffer offer = maker_->offer();
  EXPECT_NE(SharedRings::Open(offer), nullptr);
  for (const int64_t process : {int64_t{0}, int64_t{-1}, int64_t{1} << 40}) {
    RingsOffer other = offer;
    other.process = process;
    EXPECT_EQ(SharedRings::Open(other), nullptr);
  }
  RingsOffer other = offer;
  other.stamp[1] ^= 1;
  EXPECT_EQ(SharedRings::Open(other), nullptr);
  // A pipe, and a file of another size.
  int pipes[2];
  ASSERT_EQ(pipe(pipes), 0);
  const int file = open((testing::TempDir() + "/file").c_str(), O_RDWR | O_CREAT, 0600);
  ASSERT_GE(file, 0);
  for (const int descriptor : {pipes[0], pipes[1], file, 1 << 20, -1}) {
    other = offer;
    other.descriptor = descriptor;
    EXPECT_EQ(SharedRings::Open(other), nullptr);
  }
  for (const int descriptor : {pipes[0], pipes[1], file}) close(descriptor);
  // What is offered no more.
  maker_->EndOffer();
  EXPECT_EQ(SharedRings::Open(offer), nullptr);
}

// A peer that writes over the counts.
TEST_F(SharedRingsTest, CountsThatCannotBeAreAnError) {
  const std::string garbage(sizeof(RingsOffer) + kRingBytes, 'G');
  // All of the memory, by the descriptor that is offered.
  for (off_t at = 0; at < off_t{2 * kRingBytes}; at += off_t{kRingBytes})
    ASSERT_EQ(pwrite(static_cast<int>(maker_->offer().descriptor), garbage.data(), kRingBytes, at),
              static_cast<ssize_t>(kRingBytes));
  std::string bytes(100, ' ');
  const iovec piece = Piece(&bytes);
  bool wake_peer;
  for (SharedRings* end : {maker_.get(), opener_.get()}) {
    EXPECT_EQ(end->Read(&piece, 1, &wake_peer), -1);
    EXPECT_EQ(end->Write(&piece, 1, &wake_peer), -1);
  }
}

}  // namespace
}  // namespace dynemb

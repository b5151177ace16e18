// SharedMemory: what one process writes is what the other one reads, in pieces of any sizes; nobody
// sleeps while there is something to do; and names are gone when both have the memory.
#include "cc/core/shard/shared_memory.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
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

struct Ends {
  std::unique_ptr<SharedMemory> maker = SharedMemory::Make();
  std::unique_ptr<SharedMemory> opener = SharedMemory::Open(maker->name());
};

iovec Piece(std::string* bytes) { return {bytes->data(), bytes->size()}; }

std::string SomeBytes(std::mt19937* random, size_t size) {
  std::string bytes(size, ' ');
  for (char& c : bytes) c = static_cast<char>((*random)());
  return bytes;
}

// Against a string: bytes that were written and not read.
TEST(SharedMemory, IsTwoQueuesOfBytes) {
  Ends ends;
  std::mt19937 random(1);
  for (int way = 0; way < 2; ++way) {
    SharedMemory& writer = way == 0 ? *ends.maker : *ends.opener;
    SharedMemory& reader = way == 0 ? *ends.opener : *ends.maker;
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
      bool wake;
      const ssize_t written = writer.Write(pieces.data(), pieces.size(), &wake);
      ASSERT_EQ(written, static_cast<ssize_t>(std::min(all.size(), kRingBytes - queue.size())));
      queue += all.substr(0, static_cast<size_t>(written));
      EXPECT_EQ(writer.has_room(), queue.size() < kRingBytes);
      EXPECT_EQ(reader.has_bytes(), !queue.empty());
      pieces.clear();
      size_t wanted = 0;
      for (std::string& one : got) {
        one.resize(random() % most);
        wanted += one.size();
        pieces.push_back(Piece(&one));
      }
      const ssize_t read = reader.Read(pieces.data(), pieces.size(), &wake);
      ASSERT_EQ(read, static_cast<ssize_t>(std::min(wanted, queue.size())));
      std::string taken;
      for (const std::string& one : got) taken += one;
      ASSERT_TRUE(taken.substr(0, static_cast<size_t>(read)) ==
                  queue.substr(0, static_cast<size_t>(read)));
      queue.erase(0, static_cast<size_t>(read));
    }
  }
}

TEST(SharedMemory, WhoWaitsIsWoken) {
  Ends ends;
  std::string bytes(kRingBytes, 'x'), one(1, 'y'), half(kRingBytes / 2, ' ');
  const iovec all = Piece(&bytes), some = Piece(&one), most = Piece(&half);
  bool wake = true;
  // Nobody waits.
  ASSERT_EQ(ends.maker->Write(&some, 1, &wake), 1);
  EXPECT_FALSE(wake);
  ASSERT_EQ(ends.opener->Read(&some, 1, &wake), 1);
  EXPECT_FALSE(wake);
  // For bytes: once.
  ASSERT_EQ(ends.opener->Read(&some, 1, &wake), 0);
  ASSERT_EQ(ends.maker->Write(&some, 1, &wake), 1);
  EXPECT_TRUE(wake);
  ASSERT_EQ(ends.maker->Write(&some, 1, &wake), 1);
  EXPECT_FALSE(wake);
  // For room: when half of it is free.
  ASSERT_EQ(ends.maker->Write(&all, 1, &wake), static_cast<ssize_t>(kRingBytes - 2));
  ASSERT_EQ(ends.maker->Write(&some, 1, &wake), 0);
  ASSERT_EQ(ends.opener->Read(&some, 1, &wake), 1);
  EXPECT_FALSE(wake);
  ASSERT_EQ(ends.opener->Read(&most, 1, &wake), static_cast<ssize_t>(kRingBytes / 2));
  EXPECT_TRUE(wake);
  ASSERT_EQ(ends.opener->Read(&some, 1, &wake), 1);
  EXPECT_FALSE(wake);
}

// Two processes, each of which does nothing but what the other one's wakes tell.
TEST(SharedMemory, NobodySleepsWhileThereIsSomethingToDo) {
  constexpr int64_t kBytes = int64_t{1} << 28;
  Ends ends;
  int wakes[2][2];  // to the maker, to the opener
  for (auto& one : wakes) ASSERT_EQ(pipe(one), 0);
  const auto wait = [&](int end) {
    char byte;
    ASSERT_EQ(read(wakes[end][0], &byte, 1), 1);
  };
  const auto tell = [&](int end) { ASSERT_EQ(write(wakes[end][1], "x", 1), 1); };
  std::thread writer([&] {
    std::mt19937 random(1);
    std::string bytes(kRingBytes, ' ');
    for (int64_t at = 0; at < kBytes;) {
      const auto size = std::min<int64_t>(random() % bytes.size() + 1, kBytes - at);
      for (int64_t i = 0; i < std::min<int64_t>(size, 8); ++i)
        bytes[static_cast<size_t>(i)] = static_cast<char>(at + i);
      for (int64_t done = 0; done < size;) {
        const iovec piece = {bytes.data() + done, static_cast<size_t>(size - done)};
        bool wake;
        const ssize_t written = ends.maker->Write(&piece, 1, &wake);
        ASSERT_GE(written, 0);
        if (wake) tell(1);
        if (written == 0) wait(0);
        done += written;
      }
      at += size;
    }
  });
  std::mt19937 random(1);
  std::string bytes(kRingBytes, ' ');
  for (int64_t at = 0; at < kBytes;) {
    const auto size = std::min<int64_t>(random() % bytes.size() + 1, kBytes - at);
    for (int64_t done = 0; done < size;) {
      const iovec piece = {bytes.data() + done, static_cast<size_t>(size - done)};
      bool wake;
      const ssize_t got = ends.opener->Read(&piece, 1, &wake);
      ASSERT_GE(got, 0);
      if (wake) tell(0);
      if (got == 0) wait(1);
      done += got;
    }
    for (int64_t i = 0; i < std::min<int64_t>(size, 8); ++i)
      ASSERT_EQ(bytes[static_cast<size_t>(i)], static_cast<char>(at + i));
    at += size;
  }
  writer.join();
  for (auto& one : wakes)
    for (const int descriptor : one) close(descriptor);
}

TEST(SharedMemory, ItsNameGoes) {
  std::string name;
  {
    const auto maker = SharedMemory::Make();
    name = maker->name();
    const auto opener = SharedMemory::Open(name);
    ASSERT_NE(opener, nullptr);
    opener->RemoveName();
    EXPECT_EQ(SharedMemory::Open(name), nullptr);
    const auto other = SharedMemory::Make();
    EXPECT_NE(other->name(), name);
    name = other->name();
  }
  EXPECT_EQ(SharedMemory::Open(name), nullptr);
}

TEST(SharedMemory, OpensNothingElse) {
  const auto maker = SharedMemory::Make();
  std::string name = maker->name();
  for (const std::string& other :
       std::vector<std::string>{"", "/etc/passwd", name + "0",
                                "/tf_dynemb-../../../../../../../etc/passwd", name.substr(1)})
    EXPECT_EQ(SharedMemory::Open(other), nullptr) << other;
  maker->RemoveName();
  // Of another size.
  const int descriptor = shm_open(name.c_str(), O_RDWR | O_CREAT | O_EXCL, 0600);
  ASSERT_GE(descriptor, 0);
  ASSERT_EQ(ftruncate(descriptor, 4096), 0);
  EXPECT_EQ(SharedMemory::Open(name), nullptr);
  shm_unlink(name.c_str());
  close(descriptor);
}

// A process that writes over the counts is told apart from one that has written much.
TEST(SharedMemory, CountsThatCannotBeAreAnError) {
  const auto maker = SharedMemory::Make();
  const int descriptor = shm_open(maker->name().c_str(), O_RDWR, 0);
  const auto opener = SharedMemory::Open(maker->name());
  const std::string garbage(512, 'G');
  ASSERT_GE(descriptor, 0);
  for (const off_t ring : {off_t{0}, static_cast<off_t>(4 * 64 + kRingBytes)})
    ASSERT_EQ(pwrite(descriptor, garbage.data(), 64, ring), 64);  // how much was written
  close(descriptor);
  std::string bytes(100, ' ');
  const iovec piece = Piece(&bytes);
  bool wake;
  EXPECT_EQ(maker->Read(&piece, 1, &wake), -1);
  EXPECT_EQ(opener->Read(&piece, 1, &wake), -1);
  EXPECT_EQ(maker->Write(&piece, 1, &wake), -1);
  EXPECT_EQ(opener->Write(&piece, 1, &wake), -1);
}

}  // namespace
}  // namespace dynemb

// FairSharedMutex: exclusion, and that neither readers nor writers are kept out for ever. What
// std:: shared_mutex does not promise is shown without a clock: by who gets in while who waits.
#include "cc/core/base/fair_shared_mutex.h"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <mutex>
#include <shared_mutex>
#include <thread>
#include <vector>

namespace dynemb {
namespace {

// Starts a writer that notes when it has been in, and returns when it keeps new readers out.
std::thread WaitingWriter(FairSharedMutex* mutex, std::atomic<bool>* was_in) {
  std::thread writer([=] {
    std::unique_lock<FairSharedMutex> lock(*mutex);
    *was_in = true;
  });
  while (!*was_in && mutex->try_lock_shared()) {
    mutex->unlock_shared();
    std::this_thread::yield();
  }
  return writer;
}

TEST(FairSharedMutex, AWriterThatWaitsKeepsNewReadersOut) {
  FairSharedMutex mutex;
  std::atomic<bool> was_in{false};
  mutex.lock_shared();
  std::thread writer = WaitingWriter(&mutex, &was_in);
  EXPECT_FALSE(mutex.try_lock_shared());
  EXPECT_FALSE(mutex.try_lock());
  EXPECT_FALSE(was_in) << "a reader has the lock";
  mutex.unlock_shared();
  writer.join();
  EXPECT_TRUE(was_in);
  EXPECT_TRUE(mutex.try_lock());
  EXPECT_FALSE(mutex.try_lock_shared());
  mutex.unlock();
}

// Readers that overlap all the time, each of which leaves when the next one is in: a lock that
// prefers readers lets no writer in.
TEST(FairSharedMutex, AWriterGetsInBetweenReadersThatOverlap) {
  FairSharedMutex mutex;
  std::atomic<bool> was_in{false};
  std::atomic<int64_t> reads{0};
  std::vector<std::thread> readers;
  std::atomic<int> inside{0};
  for (int r = 0; r < 3; ++r) {
    readers.emplace_back([&] {
      while (!was_in) {
        std::shared_lock<FairSharedMutex> lock(mutex);
        ++inside;
        // Until another one is in, or none comes because the writer keeps it out.
        while (inside < 2 && !was_in && mutex.try_lock_shared()) {
          mutex.unlock_shared();
          std::this_thread::yield();
        }
        --inside;
        ++reads;
      }
    });
  }
  while (reads < 100) std::this_thread::yield();
  std::thread writer([&] {
    std::unique_lock<FairSharedMutex> lock(mutex);
    was_in = true;
  });
  writer.join();
  for (std::thread& reader : readers) reader.join();
}

// Writers that come one after the other without a pause: readers get in between two of them.
TEST(FairSharedMutex, AReaderGetsInBetweenWritersThatQueue) {
  FairSharedMutex mutex;
  std::atomic<bool> stop{false};
  std::atomic<int64_t> writes{0};
  std::vector<std::thread> writers;
  for (int w = 0; w < 3; ++w) {
    writers.emplace_back([&] {
      while (!stop) {
        std::unique_lock<FairSharedMutex> lock(mutex);
        ++writes;
      }
    });
  }
  while (writes < 100) std::this_thread::yield();
  for (int read = 0; read < 100; ++read) {
    std::shared_lock<FairSharedMutex> lock(mutex);
    const int64_t before = writes;
    std::this_thread::yield();
    EXPECT_EQ(writes, before) << "nobody writes while somebody reads";
  }
  stop = true;
  for (std::thread& writer : writers) writer.join();
}

TEST(FairSharedMutex, ReadersAndWritersExcludeEachOther) {
  constexpr int kThreads = 8, kRounds = 4000;
  FairSharedMutex mutex;
  std::array<int64_t, 16> numbers = {};  // all equal, but while somebody writes
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int round = 0; round < kRounds; ++round) {
        if ((round + t) % 4 == 0) {
          std::unique_lock<FairSharedMutex> lock(mutex, std::defer_lock);
          if (round % 3 != 0 || !lock.try_lock()) lock.lock();
          for (int64_t& number : numbers) ++number;
        } else {
          std::shared_lock<FairSharedMutex> lock(mutex, std::defer_lock);
          if (round % 3 != 0 || !lock.try_lock()) lock.lock();
          for (const int64_t number : numbers) ASSERT_EQ(number, numbers[0]);
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(numbers[0], kThreads * kRounds / 4);
}

}  // namespace
}  // namespace dynemb

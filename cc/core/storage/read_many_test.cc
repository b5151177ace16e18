// ReadMany: both ways against the bytes of a file, errors, and many threads.
#include "cc/core/storage/read_many.h"

#if defined(__linux__)
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#endif

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "cc/core/testing/memory_file_system.h"
#include "gtest/gtest.h"

namespace dynemb {
namespace {

constexpr int64_t kFileBytes = 1 << 20;

class File {
 public:
  // One that is read past the page cache, as far as there are such reads.
  explicit File(const char* name, bool is_direct = false)
      : path_(JoinPath(::testing::TempDir(), name)) {
    std::mt19937_64 random(7);
    for (int64_t i = 0; i < kFileBytes; ++i) text_.push_back(static_cast<char>(random()));
    std::unique_ptr<WritableFile> writer;
    EXPECT_TRUE(PosixFileSystem()->NewWritableFile(path_, &writer).ok());
    EXPECT_TRUE(writer->Append(text_).ok());
    if (!is_direct || !DirectFileSystem()->NewReadableFile(path_, &file_).ok()) {
      EXPECT_TRUE(PosixFileSystem()->NewReadableFile(path_, &file_).ok());
    }
  }
  ~File() { EXPECT_TRUE(PosixFileSystem()->Remove(path_).ok()); }
  const std::string& path() const { return path_; }
  const ReadableFile* get() const { return file_.get(); }
  // Whether these are its bytes.
  bool IsAt(const FileRead& read, const char* bytes) const {
    return text_.compare(static_cast<size_t>(read.offset), static_cast<size_t>(read.bytes), bytes,
                         static_cast<size_t>(read.bytes)) == 0;
  }
  std::vector<FileRead> Draw(int64_t count, int64_t most_bytes, uint64_t seed) const {
    std::mt19937_64 random(seed);
    std::vector<FileRead> reads;
    for (int64_t i = 0; i < count; ++i) {
      const int64_t bytes = 1 + static_cast<int64_t>(random() % most_bytes);
      reads.push_back({get(), static_cast<int64_t>(random() % (kFileBytes - bytes + 1)), bytes});
    }
    return reads;
  }

 private:
  const std::string path_;
  std::string text_;
  std::unique_ptr<ReadableFile> file_;
};

using Way = std::function<Status(Span<const FileRead>, const ReadDone&)>;

Status ByIoUring(Span<const FileRead> reads, const ReadDone& done) {
  bool possible;
  std::atomic<int> calls{0};
  const Status status = ReadByIoUring(
      reads,
      [&](int64_t i, const char* bytes) {
        ++calls;
        return done(i, bytes);
      },
      &possible);
  if (possible) return status;
  EXPECT_EQ(calls, 0);
  return ReadMany(reads, done);  // a system without it
}

class ReadManyTest : public ::testing::TestWithParam<std::pair<const char*, Way>> {
 protected:
  Status Run(Span<const FileRead> reads, const ReadDone& done) {
    return GetParam().second(reads, done);
  }
};

INSTANTIATE_TEST_SUITE_P(Ways, ReadManyTest,
                         ::testing::Values(std::make_pair("Threads", Way(ReadByThreads)),
                                           std::make_pair("IoUring", Way(ByIoUring)),
                                           std::make_pair("Any", Way(ReadMany))),
                         [](const auto& info) { return info.param.first; });

TEST_P(ReadManyTest, GivesTheBytesOfEachReadOnce) {
  const File buffered("buffered"), direct("direct", true);
  for (const File* const of : {&buffered, &direct}) {
    const File& file = *of;
    for (const int64_t count : {0, 1, 63, 64, 65, 5000}) {
      for (const int64_t most_bytes : {1, 300, 200'000}) {
        if (count * most_bytes > 100'000'000) continue;
        const std::vector<FileRead> reads = file.Draw(count, most_bytes, 1);
        std::vector<std::atomic<int>> times(reads.size());
        const Status status = Run(reads, [&](int64_t i, const char* bytes) {
          EXPECT_TRUE(file.IsAt(reads[static_cast<size_t>(i)], bytes));
          ++times[static_cast<size_t>(i)];
          return Status();
        });
        EXPECT_TRUE(status.ok()) << status.message();
        for (const auto& time : times) ASSERT_EQ(time, 1);
      }
    }
  }
}

TEST_P(ReadManyTest, SaysWhichFileIsCutOff) {
  for (const int64_t at : {0, 200, 499}) {
    const File file("cut_off", at == 200);
    std::vector<FileRead> reads = file.Draw(500, 300, 2);
    reads[static_cast<size_t>(at)] = {file.get(), kFileBytes - 10, 20};
    const Status status = Run(reads, [&](int64_t i, const char* bytes) {
      EXPECT_NE(i, at);
      EXPECT_TRUE(file.IsAt(reads[static_cast<size_t>(i)], bytes));
      return Status();
    });
    EXPECT_EQ(status.code(), Code::kDataLoss);
    EXPECT_NE(status.message().find(file.path()), std::string::npos) << status.message();
  }
}

TEST_P(ReadManyTest, StopsAtAnError) {
  const File file("stops");
  const std::vector<FileRead> reads = file.Draw(100'000, 8, 3);
  std::atomic<int> calls{0};
  const Status status = Run(reads, [&](int64_t, const char*) {
    return ++calls == 10 ? Status(Code::kDataLoss, "the tenth") : Status();
  });
  EXPECT_EQ(status.message(), "the tenth");
  EXPECT_LT(calls, 100'000);
  // And goes on after it.
  EXPECT_TRUE(Run(reads, [](int64_t, const char*) { return Status(); }).ok());
}

TEST_P(ReadManyTest, ManyThreadsAtOnce) {
  const File file("threads");
  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < 8; ++t) {
    threads.emplace_back([&, t] {
      for (uint64_t round = 0; round < 20; ++round) {
        const std::vector<FileRead> reads = file.Draw(700, 400, 100 * t + round);
        std::atomic<int> right{0};
        const Status status = Run(reads, [&](int64_t i, const char* bytes) {
          right += file.IsAt(reads[static_cast<size_t>(i)], bytes);
          return Status();
        });
        EXPECT_TRUE(status.ok());
        EXPECT_EQ(right, 700);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(ReadByIoUringTest, FilesThatAreNotOfTheSystemAreLeft) {
  MemoryFileSystem files;
  ASSERT_TRUE(files.CreateFolder("/folder").ok());
  files.Put("/folder/file", "some bytes");
  std::unique_ptr<ReadableFile> file;
  ASSERT_TRUE(files.NewReadableFile("/folder/file", &file).ok());
  const std::vector<FileRead> reads = {{file.get(), 5, 5}};
  const auto done = [](int64_t, const char* bytes) {
    return std::string(bytes, 5) == "bytes" ? Status() : Status(Code::kDataLoss, "other bytes");
  };
  bool possible;
  EXPECT_TRUE(ReadByIoUring(reads, done, &possible).ok());
  EXPECT_FALSE(possible);
  EXPECT_TRUE(ReadMany(reads, done).ok());
}

#if defined(__linux__) && defined(__NR_io_uring_setup)
// As in a container that lets nobody use it. In a process of its own, since it cannot be undone.
void ReadWithoutIoUring() {
  sock_filter filter[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_io_uring_setup, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  sock_fprog program = {sizeof(filter) / sizeof(filter[0]), filter};
  bool ok = ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
            ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
  const File file("without");
  const std::vector<FileRead> reads = file.Draw(300, 300, 4);
  bool possible = true;
  const auto done = [&](int64_t i, const char* bytes) {
    return file.IsAt(reads[static_cast<size_t>(i)], bytes) ? Status()
                                                           : Status(Code::kDataLoss, "other bytes");
  };
  ok = ok && ReadByIoUring(reads, done, &possible).ok() && !possible && ReadMany(reads, done).ok();
  std::_Exit(ok ? 0 : 1);
}

TEST(ReadByIoUringDeathTest, WhereTheSystemRefusesItThreadsRead) {
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_EXIT(ReadWithoutIoUring(), ::testing::ExitedWithCode(0), "");
}
#endif

}  // namespace
}  // namespace dynemb

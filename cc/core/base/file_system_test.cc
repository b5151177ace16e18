// PosixFileSystem on real files: what is written is read, every promise and every error code of
// file_system.h, with the disk's errors made by limits of the process and by an fsync of our own.
#include "cc/core/base/file_system.h"

#include <fcntl.h>
#include <linux/capability.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace {

// What the next calls of fsync do instead of syncing, and the inodes that were synced.
std::atomic<int> sync_errno{0};
std::atomic<int> sync_failures{0};
std::vector<ino_t>* synced = nullptr;

}  // namespace

// The program's own fsync stands before the C library's.
extern "C" __attribute__((visibility("default"))) int fsync(int fd) {
  if (sync_failures > 0) {
    --sync_failures;
    errno = sync_errno;
    return -1;
  }
  struct stat info;
  if (::fstat(fd, &info) != 0) return -1;
  if (synced != nullptr) synced->push_back(info.st_ino);
  return 0;
}

namespace dynemb {
namespace {

void FailSync(int error, int times = 1) {
  sync_errno = error;
  sync_failures = times;
}

ino_t InodeOf(const std::string& path) {
  struct stat info;
  return ::stat(path.c_str(), &info) == 0 ? info.st_ino : 0;
}

// Runs it in a process of its own; its result is the exit status.
int InChild(const std::function<int()>& run) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(run());
  int status = -1;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

class PosixFileSystemTest : public ::testing::Test {
 protected:
  PosixFileSystemTest() {
    std::string made = ::testing::TempDir() + "/file_system_test.XXXXXX";
    folder_ = ::mkdtemp(made.data());
  }
  ~PosixFileSystemTest() override {
    synced = nullptr;
    sync_failures = 0;
    EXPECT_EQ(std::system(("rm -rf '" + folder_ + "'").c_str()), 0);
  }

  std::string Path(const std::string& name) const { return JoinPath(folder_, name); }
  Status Write(const std::string& name, const std::string& data) {
    std::unique_ptr<WritableFile> file;
    DYNEMB_RETURN_IF_ERROR(files_->NewWritableFile(Path(name), &file));
    DYNEMB_RETURN_IF_ERROR(file->Append(data));
    return file->Close();
  }
  std::string Read(const std::string& name) {
    std::string data;
    const Status read = ReadFile(files_, Path(name), 1 << 20, &data);
    return read.ok() ? data : "error: " + read.message();
  }
  std::vector<std::string> Names() {
    std::vector<std::string> names = {"must not stay"};
    EXPECT_TRUE(files_->List(folder_, &names).ok());
    std::sort(names.begin(), names.end());
    return names;
  }

  FileSystem* const files_ = PosixFileSystem();
  std::string folder_;
};

TEST_F(PosixFileSystemTest, OfTheUnsyncedOneNothingIsSynced) {
  FileSystem* const unsynced = UnsyncedFileSystem();
  std::vector<ino_t> found;
  synced = &found;
  std::unique_ptr<WritableFile> file;
  EXPECT_TRUE(unsynced->CreateFolder(Path("b")).ok());
  EXPECT_TRUE(unsynced->NewWritableFile(Path("b/a"), &file).ok());
  EXPECT_TRUE(file->Append("data").ok());
  EXPECT_TRUE(file->Sync().ok());
  EXPECT_TRUE(file->Close().ok());
  EXPECT_TRUE(unsynced->SyncFolder(Path("b")).ok());
  synced = nullptr;
  EXPECT_TRUE(found.empty());
  EXPECT_EQ(Read("b/a"), "data");
}

TEST_F(PosixFileSystemTest, ReadsWhatWasAppended) {
  std::unique_ptr<WritableFile> file;
  ASSERT_TRUE(files_->NewWritableFile(Path("a"), &file).ok());
  std::string want;
  for (const size_t size : {0, 1, 100'000, 7}) {
    const std::string data(size, static_cast<char>('a' + size % 20));
    ASSERT_TRUE(file->Append(data).ok());
    want += data;
  }
  EXPECT_EQ(Read("a"), want) << "before it is closed: a crash of the process loses nothing";
  ASSERT_TRUE(file->Sync().ok());
  ASSERT_TRUE(file->Close().ok());
  EXPECT_FALSE(file->Append("x").ok()) << "after Close";

  std::unique_ptr<ReadableFile> read;
  int64_t bytes = 0;
  ASSERT_TRUE(files_->NewReadableFile(Path("a"), &read).ok());
  ASSERT_TRUE(read->Size(&bytes).ok());
  EXPECT_EQ(bytes, 100'008);
  std::string part(8, '?');
  ASSERT_TRUE(read->Read(100'000, 8, part.data()).ok());
  EXPECT_EQ(part, want.substr(100'000));
  ASSERT_TRUE(read->Read(100'008, 0, part.data()).ok()) << "nothing, at the end";
  const Status cut = read->Read(100'001, 8, part.data());
  EXPECT_EQ(cut.code(), Code::kDataLoss);
  EXPECT_NE(cut.message().find(Path("a") + ": got 100008 bytes in all, want 100009"),
            std::string::npos)
      << cut.message();

  ASSERT_TRUE(Write("a", "short").ok());
  EXPECT_EQ(Read("a"), "short") << "a new file is empty";
}

TEST_F(PosixFileSystemTest, TheDirectOneReadsAnyBytes) {
  FileSystem* const direct = DirectFileSystem();
  std::unique_ptr<WritableFile> writer;
  ASSERT_TRUE(direct->NewWritableFile(Path("a"), &writer).ok());
  std::string want;
  for (int i = 0; i < 30'000; ++i) want.push_back(static_cast<char>(i * 31 + i / 256));
  ASSERT_TRUE(writer->Append(want.substr(0, 10'001)).ok());
  std::unique_ptr<ReadableFile> file;
  const Status opened = direct->NewReadableFile(Path("a"), &file);
  if (!opened.ok()) {  // as of a tmpfs
    EXPECT_EQ(opened.code(), Code::kFailedPrecondition);
    EXPECT_NE(opened.message().find("no direct reads (O_DIRECT)"), std::string::npos);
    return;
  }
  ASSERT_TRUE(writer->Append(want.substr(10'001)).ok());  // to the middle of a block
  int64_t size;
  ASSERT_TRUE(file->Size(&size).ok());
  EXPECT_EQ(size, 30'000);
  for (const auto& [offset, bytes] : std::vector<std::pair<int64_t, int64_t>>{{0, 30'000},
                                                                              {0, 0},
                                                                              {0, 1},
                                                                              {1, 4096},
                                                                              {4095, 2},
                                                                              {4096, 4096},
                                                                              {10'000, 3},
                                                                              {29'999, 1},
                                                                              {28'672, 1328},
                                                                              {12'345, 10'000}}) {
    std::string got(static_cast<size_t>(bytes), '\0');
    const Status read = file->Read(offset, bytes, got.data());
    EXPECT_TRUE(read.ok()) << read.message();
    EXPECT_EQ(got, want.substr(static_cast<size_t>(offset), static_cast<size_t>(bytes))) << offset;
  }
  for (const auto& [offset, bytes] : std::vector<std::pair<int64_t, int64_t>>{
           {29'999, 2}, {30'000, 1}, {40'000, 10}, {0, 30'001}}) {
    std::string got(static_cast<size_t>(bytes), '\0');
    const Status read = file->Read(offset, bytes, got.data());
    EXPECT_EQ(read.code(), Code::kDataLoss) << offset;
    EXPECT_NE(read.message().find("the file is cut off"), std::string::npos) << read.message();
  }
}

TEST_F(PosixFileSystemTest, ReadFileKeepsItsLimit) {
  ASSERT_TRUE(Write("a", "12345").ok());
  std::string data;
  EXPECT_TRUE(ReadFile(files_, Path("a"), 5, &data).ok());
  EXPECT_EQ(data, "12345");
  EXPECT_EQ(ReadFile(files_, Path("a"), 4, &data).code(), Code::kDataLoss);
}

TEST_F(PosixFileSystemTest, SaysWhatIsNotThere) {
  std::unique_ptr<ReadableFile> readable;
  std::unique_ptr<WritableFile> writable;
  std::unique_ptr<FileLock> lock;
  std::vector<std::string> names;
  const Status statuses[] = {files_->NewReadableFile(Path("no"), &readable),
                             files_->NewWritableFile(Path("no/a"), &writable),
                             files_->List(Path("no"), &names),
                             files_->Remove(Path("no")),
                             files_->Rename(Path("no"), Path("a")),
                             files_->SyncFolder(Path("no")),
                             files_->Lock(Path("no/LOCK"), &lock)};
  for (const Status& status : statuses) {
    EXPECT_EQ(status.code(), Code::kNotFound) << status.message();
    EXPECT_NE(status.message().find(Path("no")), std::string::npos) << status.message();
  }
  EXPECT_EQ(Names(), std::vector<std::string>());
}

// What is there and is something else.
TEST_F(PosixFileSystemTest, TellsFilesFromFolders) {
  std::unique_ptr<ReadableFile> readable;
  std::unique_ptr<WritableFile> writable;
  std::vector<std::string> names;
  ASSERT_TRUE(files_->CreateFolder(Path("folder")).ok());
  ASSERT_TRUE(Write("file", "x").ok());
  EXPECT_EQ(files_->NewWritableFile(Path("folder"), &writable).code(), Code::kFailedPrecondition);
  EXPECT_EQ(files_->NewReadableFile(Path("folder"), &readable).code(), Code::kFailedPrecondition);
  EXPECT_EQ(files_->Remove(Path("folder")).code(), Code::kFailedPrecondition);
  EXPECT_EQ(files_->List(Path("file"), &names).code(), Code::kNotFound);
  EXPECT_EQ(files_->CreateFolder(Path("file")).code(), Code::kNotFound);
  EXPECT_EQ(files_->CreateFolder(Path("file/below")).code(), Code::kNotFound);
  EXPECT_EQ(Read("file"), "x");
}

// A pipe without a writer would wait for one for ever.
TEST_F(PosixFileSystemTest, DoesNotWaitForAPipe) {
  std::unique_ptr<ReadableFile> readable;
  ASSERT_EQ(::mkfifo(Path("pipe").c_str(), 0666), 0);
  EXPECT_EQ(files_->NewReadableFile(Path("pipe"), &readable).code(), Code::kFailedPrecondition);
}

TEST_F(PosixFileSystemTest, MakesFolders) {
  for (const char* name : {"a/b/c", "a/b", "a//d/", "e"}) {
    for (int again = 0; again < 2; ++again) {
      const Status made = files_->CreateFolder(Path(name));
      EXPECT_TRUE(made.ok()) << made.message();
    }
  }
  EXPECT_TRUE(files_->CreateFolder("/").ok());
  EXPECT_EQ(Names(), (std::vector<std::string>{"a", "e"}));
  ASSERT_TRUE(Write("a/b/c/file", "x").ok());
  ASSERT_TRUE(Write("a/d/file", "x").ok());
}

// The folder may have been made a moment ago by somebody who was killed before syncing it.
TEST_F(PosixFileSystemTest, AFolderSurvivesWhoeverMadeIt) {
  for (int again = 0; again < 2; ++again) {
    std::vector<ino_t> inodes;
    synced = &inodes;
    ASSERT_TRUE(files_->CreateFolder(Path("a/b")).ok());
    synced = nullptr;
    for (const std::string& above : {folder_, Path("a")}) {
      EXPECT_EQ(std::count(inodes.begin(), inodes.end(), InodeOf(above)), 1) << above << again;
    }
  }
}

TEST_F(PosixFileSystemTest, ListsAllButItself) {
  ASSERT_TRUE(Write("b", "").ok());
  ASSERT_TRUE(Write(".hidden", "").ok());
  ASSERT_TRUE(files_->CreateFolder(Path("a")).ok());
  EXPECT_EQ(Names(), (std::vector<std::string>{".hidden", "a", "b"}));
}

TEST_F(PosixFileSystemTest, RenameReplacesAndRemoveRemoves) {
  ASSERT_TRUE(Write("new", "new").ok());
  ASSERT_TRUE(Write("old", "old").ok());
  std::unique_ptr<ReadableFile> open;
  ASSERT_TRUE(files_->NewReadableFile(Path("old"), &open).ok());
  ASSERT_TRUE(files_->Rename(Path("new"), Path("old")).ok());
  EXPECT_EQ(Names(), std::vector<std::string>{"old"});
  EXPECT_EQ(Read("old"), "new");
  ASSERT_TRUE(files_->Remove(Path("old")).ok());
  EXPECT_EQ(Names(), std::vector<std::string>());
  std::string data(3, '?');
  ASSERT_TRUE(open->Read(0, 3, data.data()).ok());
  EXPECT_EQ(data, "old") << "who has it open reads on";
}

TEST_F(PosixFileSystemTest, SyncsTheFileAndTheFolder) {
  std::vector<ino_t> inodes;
  std::unique_ptr<WritableFile> file;
  ASSERT_TRUE(files_->NewWritableFile(Path("a"), &file).ok());
  synced = &inodes;
  ASSERT_TRUE(file->Sync().ok());
  ASSERT_TRUE(files_->SyncFolder(folder_).ok());
  synced = nullptr;
  EXPECT_EQ(inodes, (std::vector<ino_t>{InodeOf(Path("a")), InodeOf(folder_)}));
}

TEST_F(PosixFileSystemTest, ReportsWhatSyncReports) {
  std::unique_ptr<WritableFile> file;
  ASSERT_TRUE(files_->NewWritableFile(Path("a"), &file).ok());
  const auto sync_file = [&] { return file->Sync(); };
  const auto sync_folder = [&] { return files_->SyncFolder(folder_); };
  for (const std::function<Status()>& sync : {std::function<Status()>(sync_file), {sync_folder}}) {
    FailSync(EIO);
    EXPECT_EQ(sync().code(), Code::kDataLoss);
    FailSync(ENOSPC);
    EXPECT_EQ(sync().code(), Code::kResourceExhausted);
    FailSync(EINTR, 3);
    EXPECT_TRUE(sync().ok()) << "a signal came in between";
  }
  FailSync(EINVAL);
  EXPECT_TRUE(files_->SyncFolder(folder_).ok()) << "a file system that need not sync folders";
  FailSync(EINVAL);
  EXPECT_FALSE(file->Sync().ok());
  FailSync(EIO, 100);
  EXPECT_EQ(files_->CreateFolder(Path("b")).code(), Code::kDataLoss);
  EXPECT_TRUE(files_->CreateFolder("/").ok()) << "not made here";
}

// The limit cuts a write into a short one and an error, as a full disk does.
TEST_F(PosixFileSystemTest, AWriteThatFailsHalfWayIsAnError) {
  const auto write = [&] {
    ::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit = {1000, 1000};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    std::unique_ptr<WritableFile> file;
    if (!files_->NewWritableFile(Path("a"), &file).ok()) return 1;
    if (!file->Append(std::string(600, 'a')).ok()) return 2;
    const Status full = file->Append(std::string(600, 'b'));
    if (full.code() != Code::kResourceExhausted) return 3;
    return full.message().find(Path("a")) == std::string::npos ? 4 : 0;
  };
  EXPECT_EQ(InChild(write), 0);
  EXPECT_EQ(Read("a"), std::string(600, 'a') + std::string(400, 'b')) << "a part of the data";
}

TEST_F(PosixFileSystemTest, TooManyOpenFilesAreAnError) {
  const auto open = [files = files_, path = Path("a")] {
    const rlimit limit = {3, 3};
    ::setrlimit(RLIMIT_NOFILE, &limit);
    std::unique_ptr<WritableFile> file;
    return static_cast<int>(files->NewWritableFile(path, &file).code());
  };
  EXPECT_EQ(InChild(open), static_cast<int>(Code::kResourceExhausted));
}

TEST_F(PosixFileSystemTest, OneHoldsALock) {
  const auto code = [&] {
    std::unique_ptr<FileLock> lock;
    return static_cast<int>(files_->Lock(Path("LOCK"), &lock).code());
  };
  const int kHeld = static_cast<int>(Code::kFailedPrecondition);
  std::unique_ptr<FileLock> lock;
  ASSERT_TRUE(files_->Lock(Path("LOCK"), &lock).ok());
  EXPECT_EQ(code(), kHeld) << "in the same process";
  EXPECT_EQ(InChild(code), kHeld) << "in another one";
  lock.reset();
  EXPECT_EQ(InChild(code), 0);
  EXPECT_EQ(code(), 0) << "the other one has ended";
  EXPECT_EQ(Names(), std::vector<std::string>{"LOCK"});
}

TEST_F(PosixFileSystemTest, AKillFreesTheLock) {
  int pipe[2];
  ASSERT_EQ(::pipe(pipe), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    std::unique_ptr<FileLock> lock;
    const bool locked = files_->Lock(Path("LOCK"), &lock).ok();
    if (::write(pipe[1], locked ? "1" : "0", 1) != 1) ::_exit(1);
    for (;;) ::pause();
  }
  char locked = '?';
  ASSERT_EQ(::read(pipe[0], &locked, 1), 1);
  EXPECT_EQ(locked, '1');
  std::unique_ptr<FileLock> lock;
  EXPECT_EQ(files_->Lock(Path("LOCK"), &lock).code(), Code::kFailedPrecondition);
  ::kill(child, SIGKILL);
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
  EXPECT_TRUE(files_->Lock(Path("LOCK"), &lock).ok());
  ::close(pipe[0]);
  ::close(pipe[1]);
}

// A process that was forked meanwhile has a copy of the descriptor and lives on.
TEST_F(PosixFileSystemTest, AForkDoesNotKeepTheLock) {
  std::unique_ptr<FileLock> lock;
  ASSERT_TRUE(files_->Lock(Path("LOCK"), &lock).ok());
  const pid_t child = ::fork();
  if (child == 0) {
    for (;;) ::pause();
  }
  lock.reset();
  EXPECT_TRUE(files_->Lock(Path("LOCK"), &lock).ok());
  ::kill(child, SIGKILL);
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
}

TEST_F(PosixFileSystemTest, RefusesWhatItMayNotDo) {
  ASSERT_TRUE(files_->CreateFolder(Path("closed")).ok());
  ASSERT_TRUE(Write("closed/a", "x").ok());
  ASSERT_EQ(::chmod(Path("closed").c_str(), 0), 0);
  const auto open = [&] {
    // Root may do everything, until it gives its capabilities up.
    __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
    __user_cap_data_struct none[2] = {};
    if (::syscall(SYS_capset, &header, none) != 0) return -1;
    std::unique_ptr<ReadableFile> file;
    return static_cast<int>(files_->NewReadableFile(Path("closed/a"), &file).code());
  };
  EXPECT_EQ(InChild(open), static_cast<int>(Code::kFailedPrecondition));
  ASSERT_EQ(::chmod(Path("closed").c_str(), 0755), 0);
}

TEST(JoinPathTest, PutsOneSlashBetween) {
  EXPECT_EQ(JoinPath("a", "b"), "a/b");
  EXPECT_EQ(JoinPath("a/", "b"), "a/b");
  EXPECT_EQ(JoinPath("", "b"), "b");
}

}  // namespace
}  // namespace dynemb

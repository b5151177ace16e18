// The file system in memory: what it keeps and loses, so that the tests that stand on it mean
// something.
#include "cc/core/testing/memory_file_system.h"

#include <set>

#include "gtest/gtest.h"

namespace dynemb {
namespace {

class MemoryFileSystemTest : public ::testing::Test {
 protected:
  MemoryFileSystemTest() { EXPECT_TRUE(files_.CreateFolder("/a/b").ok()); }
  std::unique_ptr<WritableFile> Write(const std::string& path, const std::string& data) {
    std::unique_ptr<WritableFile> file;
    EXPECT_TRUE(files_.NewWritableFile(path, &file).ok());
    EXPECT_TRUE(file->Append(data).ok());
    return file;
  }

  MemoryFileSystem files_;
};

TEST_F(MemoryFileSystemTest, IsAFileSystem) {
  std::string data;
  const auto file = Write("/a/b/x", "12");
  EXPECT_TRUE(file->Append("345").ok());
  EXPECT_TRUE(ReadFile(&files_, "/a/b/x", 5, &data).ok());
  EXPECT_EQ(data, "12345");
  EXPECT_TRUE(files_.Rename("/a/b/x", "/a/b/y").ok());
  EXPECT_TRUE(file->Append("6").ok()) << "who has it open writes on";
  EXPECT_EQ(files_.Get("/a/b/y"), "123456");
  EXPECT_EQ(files_.Names("/a/b"), std::vector<std::string>{"y"});
  EXPECT_EQ(files_.Rename("/a/b/x", "/a/b/y").code(), Code::kNotFound);
  Write("/a/b/y", "new");
  EXPECT_EQ(files_.Get("/a/b/y"), "new");
  EXPECT_TRUE(file->Close().ok());
  EXPECT_FALSE(file->Append("7").ok());
  EXPECT_TRUE(files_.Remove("/a/b/y").ok());
  EXPECT_EQ(files_.Remove("/a/b/y").code(), Code::kNotFound);
  std::unique_ptr<WritableFile> none;
  std::unique_ptr<ReadableFile> read;
  EXPECT_EQ(files_.NewWritableFile("/c/x", &none).code(), Code::kNotFound);
  EXPECT_EQ(files_.NewReadableFile("/a/b/y", &read).code(), Code::kNotFound);
  std::vector<std::string> names;
  EXPECT_EQ(files_.List("/c", &names).code(), Code::kNotFound);
  EXPECT_EQ(files_.SyncFolder("/c").code(), Code::kNotFound);
  std::unique_ptr<FileLock> lock, second;
  EXPECT_TRUE(files_.Lock("/a/LOCK", &lock).ok());
  EXPECT_EQ(files_.Lock("/a/LOCK", &second).code(), Code::kFailedPrecondition);
  lock.reset();
  EXPECT_TRUE(files_.Lock("/a/LOCK", &second).ok());
}

TEST_F(MemoryFileSystemTest, FaultsHitTheirOperation) {
  const auto file = Write("/a/b/x", "");
  files_.Inject(1, {Fault::kHalfWay, Code::kResourceExhausted});
  EXPECT_TRUE(file->Append("ab").ok());
  EXPECT_EQ(file->Append("cdef").code(), Code::kResourceExhausted);
  EXPECT_EQ(files_.Get("/a/b/x"), "abcd");
  EXPECT_TRUE(file->Append("g").ok());
  files_.Inject(0, {Fault::kAfter, Code::kDataLoss});
  EXPECT_EQ(files_.Rename("/a/b/x", "/a/b/y").code(), Code::kDataLoss);
  EXPECT_EQ(files_.Get("/a/b/y"), "abcdg");
  files_.Inject(0, {Fault::kBefore, Code::kDataLoss, true});
  EXPECT_EQ(files_.Remove("/a/b/y").code(), Code::kDataLoss);
  EXPECT_FALSE(file->Append("h").ok()) << "dead";
  files_.Heal();
  EXPECT_TRUE(file->Append("i").ok());
  EXPECT_EQ(files_.Get("/a/b/y"), "abcdgi");
}

TEST_F(MemoryFileSystemTest, AKillKeepsDataAndFreesLocks) {
  std::unique_ptr<FileLock> lock, second;
  const auto file = Write("/a/b/x", "ab");
  EXPECT_TRUE(files_.Lock("/a/LOCK", &lock).ok());
  files_.Kill();
  EXPECT_EQ(files_.Get("/a/b/x"), "ab");
  EXPECT_FALSE(file->Append("c").ok());
  EXPECT_TRUE(files_.Lock("/a/LOCK", &second).ok());
  lock.reset();
  EXPECT_EQ(files_.Lock("/a/LOCK", &lock).code(), Code::kFailedPrecondition) << "the second's";
}

// Over many seeds, everything that may be left is, and nothing else.
TEST_F(MemoryFileSystemTest, APowerCutForgetsWhatWasNotSynced) {
  std::set<std::string> data, names;
  for (uint64_t seed = 0; seed < 2000; ++seed) {
    MemoryFileSystem files;
    EXPECT_TRUE(files.CreateFolder("/a").ok());
    std::unique_ptr<WritableFile> file;
    EXPECT_TRUE(files.NewWritableFile("/a/sure", &file).ok());
    EXPECT_TRUE(file->Append("12").ok());
    EXPECT_TRUE(file->Sync().ok());
    EXPECT_TRUE(files.NewWritableFile("/a/moved", &file).ok());
    EXPECT_TRUE(files.SyncFolder("/a").ok());
    EXPECT_TRUE(files.NewWritableFile("/a/sure", &file).ok());
    EXPECT_TRUE(file->Append("12").ok());
    EXPECT_TRUE(file->Sync().ok());
    EXPECT_TRUE(file->Append("34").ok());
    EXPECT_TRUE(files.NewWritableFile("/a/new", &file).ok());
    EXPECT_TRUE(files.Rename("/a/moved", "/a/to").ok());
    files.CutPower(seed);
    data.insert(files.Get("/a/sure"));
    std::string all;
    for (const std::string& name : files.Names("/a")) all += name + " ";
    names.insert(all);
  }
  const std::string zeros("\0\0", 2);
  EXPECT_EQ(data,
            (std::set<std::string>{"12", "123", "1234", "12" + zeros, "123" + zeros.substr(1)}));
  EXPECT_EQ(names,
            (std::set<std::string>{"moved sure ", "moved new sure ", "new sure to ", "sure to "}));
}

}  // namespace
}  // namespace dynemb

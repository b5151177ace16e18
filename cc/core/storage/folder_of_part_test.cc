#include "cc/core/storage/folder_of_part.h"

#include <memory>
#include <string>
#include <vector>

#include "cc/core/storage/storage_options.h"
#include "cc/core/testing/harness.h"
#include "gtest/gtest.h"

namespace dynemb {
namespace {

class FolderOfPartTest : public ::testing::Test {
 protected:
  void Flush(const std::string& folder) {
    ASSERT_OK(files_->CreateFolder(folder));
    std::unique_ptr<WritableFile> file;
    ASSERT_OK(files_->NewWritableFile(JoinPath(folder, "FLUSHED"), &file));
    ASSERT_OK(file->Close());
  }
  std::string Refusal(const std::string& part) {
    std::vector<std::string> folders = paths_;
    const Status used = UseFoldersOfPart(files_, part, &folders, &others_flushed_);
    EXPECT_FALSE(used.ok());
    EXPECT_EQ(folders, paths_);
    return used.message();
  }
  std::vector<std::string> Folders(const std::string& part) {
    std::vector<std::string> folders = paths_;
    EXPECT_TRUE(UseFoldersOfPart(files_, part, &folders, &others_flushed_).ok());
    return folders;
  }

  bool others_flushed_ = false;
  FileSystem* const files_ = PosixFileSystem();
  const std::string a_ = JoinPath(::testing::TempDir(),
                                  ::testing::UnitTest::GetInstance()->current_test_info()->name());
  const std::string b_ = a_ + "_2";
  const std::vector<std::string> paths_ = {a_, b_};
};

TEST_F(FolderOfPartTest, APartHasAFolderInEach) {
  EXPECT_EQ(Folders("-"), paths_);
  EXPECT_EQ(Folders("server-1-of-3"),
            (std::vector<std::string>{a_ + "/server-1-of-3", b_ + "/server-1-of-3"}));
}

TEST_F(FolderOfPartTest, RowsOfOtherPartsAreNotOverlooked) {
  Flush(a_ + "/process-1-of-2-by-hash");
  EXPECT_EQ(Folders("process-1-of-2-by-hash")[0], a_ + "/process-1-of-2-by-hash");
  EXPECT_FALSE(others_flushed_);
  EXPECT_EQ(Folders("process-0-of-2-by-hash")[0], a_ + "/process-0-of-2-by-hash");
  EXPECT_TRUE(others_flushed_);
  EXPECT_EQ(
      Refusal("process-0-of-2"),
      a_ + ": it has the rows of a table that was sharded across 2 processes by hash, got 2 "
           "processes; open it in the same way and save a snapshot, which any table can load, or "
           "remove the folder");
  EXPECT_NE(Refusal("-").find("got 1 process;"), std::string::npos);
  EXPECT_NE(Refusal("server-0-of-2-by-hash").find("got 2 servers by hash;"), std::string::npos);
  EXPECT_NE(Refusal("process-0-of-3-by-hash").find("got 3 processes by hash;"), std::string::npos);
}

TEST_F(FolderOfPartTest, APartWithoutRowsIsNotOpenedWhereOthersHaveSome) {
  Flush(a_ + "/server-1-of-2");
  const auto open = [&](int reopen) {
    StorageOptions storage;
    return StorageOptions::Parse(StrCat("host 100000 owner x reopen ", reopen,
                                        " keep_seed 0 direct 0 key_mod 1 part server-0-of-2\n", a_),
                                 "", -1, &storage);
  };
  const Status opened = open(1);
  EXPECT_EQ(opened.code(), Code::kFailedPrecondition);
  EXPECT_EQ(opened.message().substr(0, a_.size() + 69),
            a_ + ": it has rows of other parts of the table, and none of server-0-of-2;");
  EXPECT_TRUE(open(0).ok());
}

TEST_F(FolderOfPartTest, RowsOfAWholeTableAreNotOverlooked) {
  Flush(a_);
  EXPECT_EQ(Folders("-")[0], a_);
  EXPECT_NE(Refusal("server-0-of-2").find("sharded across 1 process, got 2 servers;"),
            std::string::npos);
}

TEST_F(FolderOfPartTest, OtherNamesAreLeftAlone) {
  for (const char* const name : {"process-x-of-2", "process-0-in-2", "processes", "my-0-of-2"}) {
    Flush(JoinPath(a_, name));
    EXPECT_NE(Refusal(name).find("got the part"), std::string::npos);
  }
  ASSERT_OK(files_->CreateFolder(a_ + "/process-0-of-4"));  // where nothing was flushed
  EXPECT_EQ(Folders("-")[0], a_);
}

}  // namespace
}  // namespace dynemb

// Folders that no table need have: what is in them, damage, compaction, kills.
#include "cc/core/storage/flushed_folders.h"

#include <algorithm>
#include <map>
#include <string>

#include "cc/core/base/fingerprint.h"
#include "cc/core/storage/compact.h"
#include "cc/core/storage/index_file.h"
#include "cc/core/storage/testing/opened.h"
#include "cc/core/storage/testing/twins.h"
#include "cc/core/testing/caller.h"
#include "gtest/gtest.h"

namespace dynemb {
namespace {

constexpr int64_t kShards = 2;
constexpr int64_t kLeastFileBytes = 4'000;
const DiskFolder::Options kFolders = {{"/a", "/b"}};

// The bytes of all files.
std::map<std::string, std::string> BytesOf(const MemoryFileSystem& files) {
  std::map<std::string, std::string> bytes;
  for (const std::string& folder : kFolders.paths) {
    for (const std::string& name : files.Names(folder)) {
      bytes[folder + "/" + name] = files.Get(folder + "/" + name);
    }
  }
  return bytes;
}

Keys KeysOf(int64_t shard, int64_t n) {
  Keys keys;
  for (Key key = 0; key < n; ++key) keys.push_back(kShards * key + shard);
  return keys;
}

// Two shards in two folders, of which all rows are written `rounds` times, and a flush of step 7.
std::vector<TableContent> Write(MemoryFileSystem* files, int rounds, int64_t rows) {
  const TableSchema schema = TwinSchema(2, "adam");
  std::vector<TableContent> content;
  Opened opened;
  EXPECT_TRUE(Open(files, schema, 20, &opened, kShards, kFolders).ok());
  for (size_t s = 0; s < kShards; ++s) {
    const Caller call(opened.shards[s].get(), HostTestMemory());
    const Keys keys = KeysOf(static_cast<int64_t>(s), rows);
    for (int round = 0; round < rounds; ++round) {
      EXPECT_TRUE(call.Upsert(keys, Floats(2 * keys.size(), static_cast<float>(round))).ok());
    }
    content.push_back(ContentOf(opened, s));
  }
  EXPECT_TRUE(opened.Flush(7).ok());
  return content;
}

std::unique_ptr<FlushedFolders> Verified(MemoryFileSystem* files) {
  std::unique_ptr<FlushedFolders> folders;
  const Status opened = FlushedFolders::Open(files, kFolders.paths, &folders);
  EXPECT_TRUE(opened.ok()) << opened.message();
  for (size_t f = 0; opened.ok() && f < folders->files().size(); ++f) folders->Verify(f);
  return folders;
}

int64_t DeadRecords(const FlushedFolders& folders) {
  int64_t dead = 0;
  for (const FlushedFolders::File& file : folders.files()) dead += file.records - file.rows;
  return dead;
}

TEST(FlushedFoldersTest, SaysWhatThereIsAndChangesNothing) {
  MemoryFileSystem files;
  Write(&files, 1, 300);
  Opened opened;
  ASSERT_OK(Open(&files, TwinSchema(2, "adam"), 20, &opened, kShards, kFolders));
  for (size_t s = 0; s < kShards; ++s) {  // which the flush has not
    ASSERT_OK(Caller(opened.shards[s].get(), HostTestMemory())
                  .Upsert(KeysOf(static_cast<int64_t>(s), 500), Floats(1'000, 5)));
  }
  const auto before = BytesOf(files);
  {
    const auto folders = Verified(&files);
    EXPECT_TRUE(folders->damages().empty());
    EXPECT_EQ(folders->manifest().step, 7);
    std::map<size_t, int64_t> rows[2];  // of each shard, by the index and in files of rows
    for (const FlushedFolders::File& file : folders->files()) {
      const bool is_index = file.kind == DiskFolder::Kind::kIndex;
      rows[is_index ? 0 : 1][file.shard] += file.rows;
      EXPECT_LE(file.bytes, static_cast<int64_t>(files.Get(file.path).size()));
      EXPECT_LE(file.records * file.record_bytes, file.bytes);
    }
    const std::map<size_t, int64_t> want = {{0, 300}, {1, 300}};
    EXPECT_EQ(rows[0], want);
    EXPECT_EQ(rows[1], want);
  }
  EXPECT_EQ(BytesOf(files), before);
  for (size_t s = 0; s < kShards; ++s) EXPECT_EQ(ContentOf(opened, s).size(), 500u);
}

// Whichever byte of whichever file is another one.
TEST(FlushedFoldersTest, FindsEveryDamagedByteInItsFile) {
  MemoryFileSystem files;
  Write(&files, 2, 40);
  EXPECT_TRUE(Verified(&files)->damages().empty());
  for (const auto& [path, bytes] : BytesOf(files)) {
    if (path.find("LOCK") != std::string::npos) continue;
    for (size_t at = 0; at < bytes.size(); ++at) {
      std::string damaged = bytes;
      damaged[at] = static_cast<char>(damaged[at] ^ (1 << at % 8));
      files.Put(path, damaged);
      std::unique_ptr<FlushedFolders> folders;
      const Status opened = FlushedFolders::Open(&files, kFolders.paths, &folders);
      if (path == "/a/FLUSHED") {
        EXPECT_TRUE(opened.code() == Code::kDataLoss || opened.code() == Code::kUnimplemented);
        EXPECT_EQ(opened.message().find("/a/FLUSHED: "), 0u) << opened.message();
        continue;
      }
      ASSERT_OK(opened);
      for (size_t f = 0; f < folders->files().size(); ++f) folders->Verify(f);
      ASSERT_EQ(folders->damages().size(), 1u) << path << " at byte " << at;
      const FlushedFolders::Damage& damage = folders->damages()[0];
      EXPECT_EQ(damage.path, path) << damage.what;
      EXPECT_LE(damage.offset, static_cast<int64_t>(at)) << damage.what;
    }
    files.Put(path, bytes);
  }
}

TEST(FlushedFoldersTest, FindsFilesThatAreCutOffOrMissing) {
  MemoryFileSystem files;
  Write(&files, 2, 40);
  for (const auto& [path, bytes] : BytesOf(files)) {
    if (path.find("/tier-") == std::string::npos) continue;
    for (size_t size = 0; size < bytes.size(); ++size) {
      files.Put(path, bytes.substr(0, size));
      const auto folders = Verified(&files);
      ASSERT_EQ(folders->damages().size(), 1u) << path << " of " << size << " bytes";
      EXPECT_EQ(folders->damages()[0].path, path);
    }
    ASSERT_OK(files.Remove(path));
    const auto folders = Verified(&files);
    ASSERT_EQ(folders->damages().size(), 1u) << path;
    EXPECT_EQ(folders->damages()[0].path, path);
    EXPECT_EQ(folders->damages()[0].what, "it is missing");
    files.Put(path, bytes);
  }
}

// Too many open files are no damage.
TEST(FlushedFoldersTest, WhatTheSystemRefusesIsAnError) {
  MemoryFileSystem files;
  Write(&files, 2, 40);
  const auto open = [&] {
    std::unique_ptr<FlushedFolders> folders;
    return FlushedFolders::Open(&files, kFolders.paths, &folders);
  };
  const int64_t before = files.operations();
  ASSERT_OK(open());
  const int64_t operations = files.operations() - before;
  EXPECT_GT(operations, 10);
  for (int64_t n = 0; n < operations; ++n) {
    files.Inject(n, {Fault::kBefore, Code::kResourceExhausted});
    EXPECT_EQ(open().code(), Code::kResourceExhausted) << n;
    files.Heal();
  }
}

// Of one file a thousand damages are told, so that a large one full of zeros takes no memory.
TEST(FlushedFoldersTest, TellsAThousandDamagesOfAFile) {
  MemoryFileSystem files;
  Write(&files, 1, 1'500);
  const auto before = Verified(&files);
  const FlushedFolders::File of_index = before->files()[0];
  const uint64_t number = before->manifest().shards[0].index;
  IndexEntries elsewhere;
  ASSERT_OK(
      ReadIndexFile(&files, of_index.path, number, of_index.rows, [&](const IndexEntries& entries) {
        elsewhere.keys.insert(elsewhere.keys.end(), entries.keys.begin(), entries.keys.end());
        for (const Location at : entries.locations) {
          elsewhere.locations.push_back(at ^ Location{1} << 40);  // of no file, or behind its end
        }
        return Status();
      }));
  IndexFileWriter writer;
  ASSERT_OK(writer.Open(&files, of_index.path, number));
  ASSERT_OK(writer.Append(elsewhere));
  ASSERT_OK(writer.Finish());
  const auto folders = Verified(&files);
  ASSERT_EQ(folders->damages().size(), 1u + FlushedFolders::kMostDamages);
  EXPECT_EQ(folders->damages().back().what, "there is more, which is not told");
}

TEST(FlushedFoldersTest, NoTableHasFoldersWithoutNumber) {
  MemoryFileSystem files;
  Write(&files, 1, 40);
  FlushManifest manifest = Verified(&files)->manifest();
  manifest.folders = int64_t{1} << 40;
  files.Put("/a/FLUSHED", manifest.ToText());
  std::unique_ptr<FlushedFolders> folders;
  EXPECT_EQ(FlushedFolders::Open(&files, kFolders.paths, &folders).code(), Code::kDataLoss);
}

// A folder whose name is mistyped is not made.
TEST(CompactTest, WantsFoldersThatAreThere) {
  MemoryFileSystem files;
  Write(&files, 2, 40);
  EXPECT_EQ(CompactFolders(&files, {"/a", "/typo"}).code(), Code::kNotFound);
  std::vector<std::string> names;
  EXPECT_EQ(files.List("/typo", &names).code(), Code::kNotFound);
}

// Checksums that are right, of an index that is not.
TEST(FlushedFoldersTest, ComparesTheIndexWithTheRows) {
  MemoryFileSystem files;
  Write(&files, 1, 40);
  const auto before = Verified(&files);
  const FlushedFolders::File of_index = before->files()[0];
  const uint64_t number = before->manifest().shards[0].index;
  IndexEntries written;
  ASSERT_OK(
      ReadIndexFile(&files, of_index.path, number, of_index.rows, [&](const IndexEntries& entries) {
        for (const Key key : entries.keys) written.keys.push_back(key);
        for (const Location at : entries.locations) {
          written.locations.push_back(at);
        }
        return Status();
      }));
  const auto damages_of = [&](const auto& change) {
    IndexEntries entries = written;
    change(&entries);
    IndexFileWriter writer;
    EXPECT_TRUE(writer.Open(&files, of_index.path, number).ok());
    EXPECT_TRUE(writer.Append(entries).ok());
    EXPECT_TRUE(writer.Finish().ok());
    std::string all;
    const auto folders = Verified(&files);
    for (const FlushedFolders::Damage& damage : folders->damages()) {
      all += damage.what + "\n";
    }
    return all;
  };
  EXPECT_EQ(damages_of([](IndexEntries*) {}), "");
  const std::string swapped =
      damages_of([](IndexEntries* entries) { std::swap(entries->keys[0], entries->keys[1]); });
  EXPECT_EQ(std::count(swapped.begin(), swapped.end(), '\n'), 2) << swapped;
  EXPECT_NE(swapped.find("should be"), std::string::npos) << swapped;
  EXPECT_NE(damages_of([](IndexEntries* entries) {
              entries->keys[0] = entries->keys[1];
            }).find("is there twice"),
            std::string::npos);
  EXPECT_NE(damages_of([](IndexEntries* entries) {
              entries->locations[0] += 1;
            }).find("is in no file of rows"),
            std::string::npos);
  EXPECT_NE(damages_of([](IndexEntries* entries) {
              entries->locations[0] = entries->locations[1];
            }).find("has the row of another key"),
            std::string::npos);
}

TEST(FlushedFoldersTest, SaysWhereThereIsNoFlush) {
  MemoryFileSystem files;
  Write(&files, 1, 40);
  std::unique_ptr<FlushedFolders> folders;
  const auto refused = [&](const std::vector<std::string>& paths, Code code,
                           const std::string& text) {
    for (const Status& status :
         {FlushedFolders::Open(&files, paths, &folders), CompactFolders(&files, paths)}) {
      EXPECT_EQ(status.code(), code) << status.message();
      EXPECT_NE(status.message().find(text), std::string::npos) << status.message();
    }
  };
  refused({"/none"}, Code::kNotFound, "/none: there is no flush in it");
  refused({"/b"}, Code::kNotFound, "/b: it is not the first folder of its table");
  refused({"/a", "/b", "/c"}, Code::kInvalidArgument, "got 3 folders, and /a is the first of 2");
  std::vector<std::string> names;
  EXPECT_EQ(files.List("/none", &names).code(), Code::kNotFound);
  // One of the folders says what there is, and what cannot be known.
  ASSERT_OK(FlushedFolders::Open(&files, {"/a"}, &folders));
  EXPECT_FALSE(folders->damages().empty());
  for (const FlushedFolders::Damage& damage : folders->damages()) {
    EXPECT_EQ(damage.path.find("<folder 2 of 2, not given>/tier-"), 0u) << damage.path;
  }
}

TEST(CompactTest, LeavesTheRowsAndNothingElse) {
  MemoryFileSystem files;
  const std::vector<TableContent> want = Write(&files, 10, 300);
  EXPECT_GT(DeadRecords(*Verified(&files)), 0);
  ASSERT_OK(CompactFolders(&files, kFolders.paths, kLeastFileBytes));
  const auto folders = Verified(&files);
  EXPECT_TRUE(folders->damages().empty());
  EXPECT_EQ(DeadRecords(*folders), 0);
  EXPECT_EQ(folders->manifest().step, 7);
  size_t tier_files = 0;
  for (const auto& [path, bytes] : BytesOf(files)) {
    tier_files += path.find("/tier-") != std::string::npos;
  }
  EXPECT_EQ(tier_files, folders->files().size());
  Opened opened;
  ASSERT_OK(Open(&files, TwinSchema(2, "adam"), 20, &opened, kShards, kFolders));
  for (size_t s = 0; s < kShards; ++s) EXPECT_EQ(Difference(want[s], ContentOf(opened, s)), "");
  const auto before = BytesOf(files);
  const Status refused = CompactFolders(&files, kFolders.paths, kLeastFileBytes);
  EXPECT_EQ(refused.code(), Code::kFailedPrecondition);
  EXPECT_NE(refused.message().find("another table has its rows in /a"), std::string::npos);
  EXPECT_EQ(BytesOf(files), before);
}

TEST(CompactTest, LeavesDamagedFoldersAlone) {
  MemoryFileSystem files;
  Write(&files, 10, 300);
  const auto folders = Verified(&files);
  const FlushedFolders::File rows =
      *std::find_if(folders->files().begin(), folders->files().end(),
                    [](const auto& file) { return file.rows > 0 && file.rows < file.records; });
  std::string bytes = files.Get(rows.path);
  for (int64_t at = rows.bytes - rows.records * rows.record_bytes; at < rows.bytes;
       at += rows.record_bytes) {
    bytes[static_cast<size_t>(at + 20)] ^= 1;
  }
  files.Put(rows.path, bytes);
  const Status status = CompactFolders(&files, kFolders.paths, kLeastFileBytes);
  EXPECT_EQ(status.code(), Code::kDataLoss);
  EXPECT_NE(status.message().find(rows.path), std::string::npos) << status.message();
  EXPECT_EQ(static_cast<int64_t>(Verified(&files)->damages().size()), rows.records);
}

// At each operation the disk fails, the process ends or the machine does.
TEST(CompactTest, LosesNothingByFaults) {
  enum End { kFails, kKilled, kPowerCut };
  int64_t compacted = 0, faults = 0;
  for (const Fault::When when : {Fault::kBefore, Fault::kHalfWay, Fault::kAfter}) {
    for (const End end : {kFails, kKilled, kPowerCut}) {
      bool met = true;
      for (int64_t nth = 0; met; ++nth) {
        SCOPED_TRACE(StrCat("operation ", nth, ", ", static_cast<int>(when), ", end ",
                            static_cast<int>(end)));
        MemoryFileSystem files;
        const std::vector<TableContent> want = Write(&files, 4, 60);
        const int64_t before = files.operations();
        files.Inject(nth, {when, Code::kResourceExhausted, end != kFails});
        const Status status = CompactFolders(&files, kFolders.paths, kLeastFileBytes);
        met = files.operations() - before > nth;
        files.Heal();
        files.Kill();
        if (end == kPowerCut) files.CutPower(static_cast<uint64_t>(nth));
        const auto folders = Verified(&files);
        ASSERT_NE(folders, nullptr);
        EXPECT_TRUE(folders->damages().empty());
        const bool is_compact = DeadRecords(*folders) == 0;
        EXPECT_TRUE(is_compact || !status.ok());
        compacted += is_compact;
        ++faults;
        Opened opened;
        ASSERT_OK(Open(&files, TwinSchema(2, "adam"), 20, &opened, kShards, kFolders));
        EXPECT_EQ(opened.storage.disk->flushed_step(), 7);
        for (size_t s = 0; s < kShards; ++s) {
          ASSERT_EQ(Difference(want[s], ContentOf(opened, s)), "");
        }
      }
    }
  }
  EXPECT_GT(compacted, 9);
  EXPECT_GT(faults - compacted, 100);
}

TEST(CompactTest, KeepsStrings) {
  MemoryFileSystem files;
  TableSchema schema = TwinSchema(1, "");
  schema.key = "string";
  schema.strings = true;
  std::map<Key, std::string> want;
  for (int i = 0; i < 300; ++i) {
    const std::string string = StrCat("string ", i);
    want[static_cast<Key>(Fingerprint(string))] = string;
  }
  {
    Opened opened;
    ASSERT_OK(Open(&files, schema, 20, &opened, 1, kFolders));
    KeyStrings strings;
    Keys keys;
    std::vector<std::string_view> views;
    for (const auto& [key, string] : want) keys.push_back(key), views.push_back(string);
    ASSERT_OK(strings.Record(keys, views));
    const Caller call(opened.shards[0].get(), HostTestMemory());
    for (int round = 0; round < 5; ++round) ASSERT_OK(call.Upsert(keys, Floats(300, 1)));
    ASSERT_OK(opened.Flush(7, &strings));
  }
  ASSERT_OK(CompactFolders(&files, kFolders.paths, kLeastFileBytes));
  EXPECT_TRUE(Verified(&files)->damages().empty());
  Opened opened;
  KeyStrings strings;
  ASSERT_OK(Open(&files, schema, 20, &opened, 1, kFolders, {}, nullptr, &strings));
  std::map<Key, std::string> got;
  Keys keys;
  for (const auto& [key, string] : want) keys.push_back(key);
  ASSERT_OK(strings.Get(keys, [&](int64_t i, std::string_view string) {
    got[keys[static_cast<size_t>(i)]] = string;
  }));
  EXPECT_EQ(got, want);
}

}  // namespace
}  // namespace dynemb

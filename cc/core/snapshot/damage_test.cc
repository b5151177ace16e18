// Reading what is damaged: every bit of a small snapshot flipped, every length, every block moved,
// doubled, left out or taken from another snapshot, and random damage to a large one. It is always
// an error, and the rows that come before it are right.
#include <algorithm>
#include <functional>
#include <map>
#include <random>
#include <utility>

#include "cc/core/base/fingerprint.h"
#include "cc/core/snapshot/reader.h"
#include "cc/core/snapshot/writer.h"
#include "cc/core/testing/memory_file_system.h"
#include "cc/core/testing/snapshots.h"
#include "gtest/gtest.h"

namespace dynemb {
namespace {

// The keys of the table that keeps their strings.
const std::map<Key, std::string>& Tags() {
  static const auto* const tags = [] {
    auto* made = new std::map<Key, std::string>;
    for (const char* tag : {"", "tag", "a longer tag"}) {
      (*made)[static_cast<Key>(Fingerprint(tag))] = tag;
    }
    return made;
  }();
  return *tags;
}

// Tables of 2 + 1 + 1 files with 3 blocks of rows each, one row in each: small blocks, many bounds.
std::vector<TestTable> SmallTables() {
  const TableSchema users = MakeSchema(DType::kFloat32, 3, "adagrad", {MetaField::kLastWriteTime});
  const TableSchema items = MakeSchema(DType::kInt8, 5);
  TableSchema tags = items;
  tags.key = "string";
  tags.strings = true;
  TableContent rows;
  for (const auto& [key, tag] : Tags()) rows[key] = {"value", "", ""};
  return {{"users", users, RandomRows(users, 6, 1), 2},
          {"items", items, RandomRows(items, 3, 2), 1},
          {"tags", tags, rows, 1}};
}

void WriteSmallBlocks(FileSystem* files, const std::string& folder,
                      const std::vector<TestTable>& tables) {
  std::unique_ptr<SnapshotWriter> writer;
  ASSERT_TRUE(SnapshotWriter::Open(files, folder, &writer).ok());
  for (const TestTable& table : tables) {
    int64_t number;
    ASSERT_TRUE(writer->AddTable(table.name, table.schema, &number).ok());
    auto row = table.rows.begin();
    for (int64_t shard = 0; shard < table.shards; ++shard) {
      std::unique_ptr<RowsFile> file;
      ASSERT_TRUE(writer->NewFile(number, &file).ok());
      for (int block = 0; block < 3; ++block, ++row) {
        const RowBytes& bytes = row->second;
        if (table.schema.strings) {
          const std::vector<std::string_view> strings = {Tags().at(row->first)};
          ConstRowParts rows;
          rows.keys = {&row->first, 1};
          rows.values = ConstRows(bytes.value.data(), 1, table.schema.dim);
          ASSERT_TRUE(file->Add(rows, strings).ok());
          continue;
        }
        file->room().keys[0] = row->first;
        bytes.value.copy(file->room().values[0], bytes.value.size());
        bytes.slots.copy(file->room().slots[0], bytes.slots.size());
        bytes.meta.copy(file->room().meta[0], bytes.meta.size());
        ASSERT_TRUE(file->Write(1).ok());
      }
      ASSERT_TRUE(file->Finish().ok());
    }
  }
  ASSERT_TRUE(writer->Commit(0).ok());
}

// A rows file's blocks, headers included.
std::vector<std::string> BlocksOf(const std::string& file) {
  std::vector<std::string> blocks;
  for (size_t at = 0; at < file.size(); at += blocks.back().size()) {
    uint64_t payload = 0;
    for (size_t i = 8; i-- > 0;)
      payload = payload << 8 | static_cast<unsigned char>(file[at + 32 + i]);
    blocks.push_back(file.substr(at, 48 + payload));
  }
  return blocks;
}
std::string Joined(const std::vector<std::string>& blocks) {
  std::string file;
  for (const std::string& block : blocks) file += block;
  return file;
}

class DamageTest : public ::testing::Test {
 protected:
  DamageTest() {
    WriteSmallBlocks(&files_, "/s", SmallTables());
    EXPECT_EQ(Read(), Code::kOk);
    std::unique_ptr<SnapshotReader> reader;
    EXPECT_TRUE(SnapshotReader::Open(&files_, "/s", &reader).ok());
    for (const SnapshotFile& file : reader->manifest().files) rows_files_.push_back(file.name);
    EXPECT_EQ(rows_files_.size(), 4u);
  }

  // Reads it in the way that a restore does, without Verify: block by block, to the first error.
  // Rows that it gets must be right.
  Code Read() {
    std::unique_ptr<SnapshotReader> reader;
    Status status = SnapshotReader::Open(&files_, "/s", &reader);
    SnapshotPlace place;
    SnapshotBlock block;
    int64_t rows = 0;
    for (bool done = false; status.ok();) {
      status = reader->Next(-1, &place, &block, &done);
      if (done) break;
      if (!status.ok()) continue;
      for (int64_t i = 0; i < block.rows.keys.size; ++i, ++rows) CheckRow(*reader, block, i);
    }
    if (status.ok()) {
      EXPECT_EQ(rows, 12);
    }
    return status.code();
  }
  void CheckRow(const SnapshotReader& reader, const SnapshotBlock& block, int64_t i) {
    const std::string& name = reader.manifest().tables[static_cast<size_t>(block.table)].name;
    const TableContent& rows = want_[name];
    const auto row = rows.find(block.rows.keys[i]);
    ASSERT_NE(row, rows.end());
    const auto equal = [&](const std::string& want, const ConstRows& got) {
      return want == std::string(got[i], want.size());
    };
    EXPECT_TRUE(equal(row->second.value, block.rows.values));
    EXPECT_TRUE(equal(row->second.slots, block.rows.slots));
    EXPECT_TRUE(equal(row->second.meta, block.rows.meta));
    if (name != "tags") return;
    ASSERT_EQ(block.rows.keys.size, static_cast<int64_t>(block.strings.size()));
    EXPECT_EQ(block.strings[static_cast<size_t>(i)], Tags().at(row->first));
  }
  // With these bytes in the file, reading and verifying are errors; then the file is as it was.
  void ExpectError(const std::string& name, const std::string& bytes, const std::string& what) {
    const std::string path = "/s/" + name, before = files_.Get(path);
    ASSERT_NE(bytes, before) << what;
    files_.Put(path, bytes);
    const Code code = Read();
    const bool version = name == "MANIFEST" && code == Code::kUnimplemented;
    EXPECT_TRUE(code == Code::kDataLoss || version) << name << " " << what;
    SnapshotContent got;
    const Status verified = Load(&files_, "/s", &got);
    EXPECT_FALSE(verified.ok()) << name << " " << what;
    EXPECT_NE(verified.message().find("/s"), std::string::npos) << verified.message();
    files_.Put(path, before);
  }
  std::vector<std::string> AllFiles() const {
    std::vector<std::string> names = rows_files_;
    names.push_back("MANIFEST");
    return names;
  }

  MemoryFileSystem files_;
  std::vector<std::string> rows_files_;
  SnapshotContent want_ = ContentOf(SmallTables());
};

TEST_F(DamageTest, EveryBit) {
  for (const std::string& name : AllFiles()) {
    const std::string good = files_.Get("/s/" + name);
    for (size_t at = 0; at < good.size(); ++at) {
      for (int bit = 0; bit < 8; ++bit) {
        std::string bad = good;
        bad[at] = static_cast<char>(bad[at] ^ 1 << bit);
        ExpectError(name, bad, StrCat("byte ", at, " bit ", bit));
      }
    }
  }
  EXPECT_EQ(Read(), Code::kOk);
}

TEST_F(DamageTest, EveryByteAndLength) {
  std::mt19937_64 random(1);
  for (const std::string& name : AllFiles()) {
    const std::string good = files_.Get("/s/" + name);
    for (size_t at = 0; at < good.size(); ++at) {
      std::string bad = good;
      bad[at] = static_cast<char>(bad[at] ^ (1 + random() % 255));
      ExpectError(name, bad, StrCat("byte ", at));
      ExpectError(name, good.substr(0, at), StrCat("cut at ", at));
      if (at > 0) ExpectError(name, good.substr(at), StrCat("without the first ", at));
      // As many zeros, as file systems leave them.
      bad = good.substr(0, at) + std::string(good.size() - at, '\0');
      if (bad != good) ExpectError(name, bad, StrCat("zeros from ", at));
      ExpectError(name, good + good.substr(0, at + 1), StrCat(at + 1, " bytes too many"));
    }
  }
}

TEST_F(DamageTest, BlocksMovedDoubledAndLeftOut) {
  // Another snapshot of the same rows.
  WriteSmallBlocks(&files_, "/other", SmallTables());
  std::vector<std::string> others = files_.Names("/other");
  for (size_t f = 0; f < rows_files_.size(); ++f) {
    const std::string& name = rows_files_[f];
    const std::vector<std::string> blocks = BlocksOf(files_.Get("/s/" + name));
    const size_t n = blocks.size();
    ASSERT_EQ(n, f == 3 ? 7u : 4u);
    for (size_t a = 0; a < n; ++a) {
      std::vector<std::string> bad = blocks;
      bad.erase(bad.begin() + static_cast<std::ptrdiff_t>(a));
      ExpectError(name, Joined(bad), StrCat("block ", a, " left out"));
      for (size_t b = 0; b < n; ++b) {
        const std::string at = StrCat("blocks ", a, " and ", b);
        bad = blocks;
        bad.insert(bad.begin() + static_cast<std::ptrdiff_t>(b), blocks[a]);
        ExpectError(name, Joined(bad), at + " doubled");
        if (a == b) continue;
        bad = blocks;
        bad[b] = blocks[a];
        ExpectError(name, Joined(bad), at + " replaced");
        std::swap(bad[a], bad[b] = blocks[b]);
        ExpectError(name, Joined(bad), at + " swapped");
      }
      for (const std::string& other : rows_files_) {
        if (other == name) continue;
        bad = blocks;
        const std::vector<std::string> from = BlocksOf(files_.Get("/s/" + other));
        bad[a] = from[a % from.size()];
        ExpectError(name, Joined(bad), StrCat("block ", a, " of ", other));
      }
      bad = blocks;
      bad[a] = BlocksOf(files_.Get("/other/" + others[f + 2]))[a];
      ExpectError(name, Joined(bad), StrCat("block ", a, " of another snapshot"));
    }
  }
}

TEST_F(DamageTest, FilesMixedAndMissing) {
  WriteSmallBlocks(&files_, "/other", SmallTables());
  const std::vector<std::string> others = files_.Names("/other");
  for (size_t f = 0; f < rows_files_.size(); ++f) {
    for (const std::string& other : rows_files_) {
      if (other != rows_files_[f]) ExpectError(rows_files_[f], files_.Get("/s/" + other), other);
    }
    ExpectError(rows_files_[f], files_.Get("/other/" + others[f + 2]), "of another snapshot");
    const std::string path = "/s/" + rows_files_[f], bytes = files_.Get(path);
    ASSERT_TRUE(files_.Remove(path).ok());
    EXPECT_EQ(Read(), Code::kDataLoss) << "missing, which is not the same as no snapshot";
    files_.Put(path, bytes);
  }
  ExpectError("MANIFEST", files_.Get("/other/MANIFEST"), "of another snapshot");
  EXPECT_EQ(Read(), Code::kOk);
}

// Blocks of a MiB, damaged in a few bytes anywhere.
TEST(LargeDamageTest, RandomBytes) {
  const TableSchema schema = MakeSchema(DType::kFloat32, 16, "adagrad");
  const std::vector<TestTable> tables = {{"t", schema, RandomRows(schema, 20'000, 3)}};
  MemoryFileSystem files;
  ASSERT_TRUE(Save(&files, "/s", Shards(tables)).ok());
  std::unique_ptr<SnapshotReader> reader;
  ASSERT_TRUE(SnapshotReader::Open(&files, "/s", &reader).ok());
  const std::string path = "/s/" + reader->manifest().files[0].name, good = files.Get(path);
  std::mt19937_64 random(4);
  for (int64_t round = 0; round < 100 * SoakFactor(); ++round) {
    std::string bad = good;
    const uint64_t first = random() % bad.size();
    for (uint64_t n = 1 + random() % 8; n > 0; --n) {
      const uint64_t at =
          std::min<uint64_t>(first + random() % (1 << random() % 20), bad.size() - 1);
      bad[at] = static_cast<char>(bad[at] ^ (1 + random() % 255));
    }
    if (bad == good) continue;
    files.Put(path, bad);
    EXPECT_EQ(reader->Verify(OneThread()).code(), Code::kDataLoss) << round;
  }
}

}  // namespace
}  // namespace dynemb

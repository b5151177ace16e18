// The strings of keys in snapshots: as FORMAT.md has them, saved with the rows and put back with
// them, and an error wherever they are not those of the rows. Flipped bits are in damage_test.cc,
// made-up files in fuzz_test.cc.
#include <algorithm>
#include <limits>
#include <map>

#include "cc/core/base/fingerprint.h"
#include "cc/core/snapshot/loader.h"
#include "cc/core/snapshot/writer.h"
#include "cc/core/table/host_table.h"
#include "cc/core/testing/memory_file_system.h"
#include "cc/core/testing/snapshots.h"
#include "gtest/gtest.h"

namespace dynemb {
namespace {

using Strings = std::vector<std::string>;

TableSchema StringsSchema() {
  TableSchema schema = MakeSchema(DType::kInt8, 1);
  schema.key = "string";
  schema.strings = true;
  return schema;
}

Key KeyOf(const std::string& string) { return static_cast<Key>(Fingerprint(string)); }

std::string Bytes(int64_t number) {
  std::string bytes;
  for (int i = 0; i < 8; ++i) bytes.push_back(static_cast<char>(number >> 8 * i & 0xff));
  return bytes;
}
std::string Filled(std::string bytes) { return bytes + std::string((8 - bytes.size() % 8) % 8, 0); }

// Blocks of file 0 as FORMAT.md has them; a row's value is the first letter of its string.
RawBlock RowsOf(uint32_t sequence, const Strings& strings) {
  std::string keys, values;
  for (const std::string& string : strings) {
    keys += Bytes(KeyOf(string));
    values.push_back(string.empty() ? 0 : string[0]);
  }
  return {1, 1, 0xabc, 0, sequence, static_cast<int64_t>(strings.size()), keys + Filled(values)};
}
RawBlock StringsOf(uint32_t sequence, const Strings& strings) {
  std::string lengths, text;
  for (const std::string& string : strings) {
    lengths += Bytes(static_cast<int64_t>(string.size()));
    text += string;
  }
  return {3, 1, 0xabc, 0, sequence, static_cast<int64_t>(strings.size()), Filled(lengths + text)};
}
RawBlock End(uint32_t sequence) { return {255, 1, 0xabc, 0, sequence, sequence, ""}; }

class StringsTest : public ::testing::Test {
 protected:
  // Reads a snapshot of one file of these blocks; "string string ..." or the error.
  std::string Read(const std::vector<RawBlock>& blocks, int64_t rows) {
    std::string bytes, schema = StringsSchema().ToText();
    for (const RawBlock& block : blocks) bytes += Encode(block);
    files_.Put("/s/f", bytes);
    files_.Put("/s/MANIFEST",
               Sealed(StrCat("dynemb-snapshot 1\nid 0000000000000abc\ncreated 0\ntable t\nschema ",
                             std::count(schema.begin(), schema.end(), '\n'), "\n", schema,
                             "file f 0 ", bytes.size(), " ", rows, " 0\n")));
    std::unique_ptr<SnapshotReader> reader;
    Status status = SnapshotReader::Open(&files_, "/s", &reader);
    SnapshotPlace place;
    SnapshotBlock block;
    std::string text;
    for (bool done = false; status.ok();) {
      status = reader->Next(-1, &place, &block, &done);
      if (done || !status.ok()) break;
      for (const std::string_view string : block.strings) text += std::string(string) + " ";
    }
    const Status verified = reader->Verify(OneThread());
    EXPECT_EQ(verified.code(), status.code()) << verified.message();
    code_ = status.code();
    return status.ok() ? text : status.message();
  }
  void ExpectDamage(const std::vector<RawBlock>& blocks, const std::string& says) {
    const std::string message = Read(blocks, 2);
    EXPECT_EQ(code_, Code::kDataLoss) << message;
    EXPECT_NE(message.find(says), std::string::npos) << message;
    EXPECT_EQ(message.rfind("snapshot /s, f, byte ", 0), 0u) << message;
  }

  MemoryFileSystem files_;
  Code code_ = Code::kOk;
};

TEST_F(StringsTest, AreReadAsTheFormatSays) {
  const Strings ab = {"a", "bcdefghij"}, c = {"c"}, none = {""};
  EXPECT_EQ(Read({RowsOf(0, ab), StringsOf(1, ab), End(2)}, 2), "a bcdefghij ");
  EXPECT_EQ(Read({RowsOf(0, c), StringsOf(1, c), RowsOf(2, ab), StringsOf(3, ab), End(4)}, 3),
            "c a bcdefghij ");
  // The value of the empty string is 0.
  EXPECT_EQ(Read({RowsOf(0, none), StringsOf(1, none), End(2)}, 1), " ");
  EXPECT_EQ(Read({End(0)}, 0), "");
}

TEST_F(StringsTest, OtherStringsThanTheRowsAreDamage) {
  const Strings ab = {"a", "bc"};
  const RawBlock rows = RowsOf(0, ab), strings = StringsOf(1, ab), end = End(2);
  ExpectDamage({rows, StringsOf(1, {"a", "bd"}), end}, StrCat("key ", KeyOf("bc"), ": its string"));
  ExpectDamage({rows, StringsOf(1, {"bc", "a"}), end}, "fingerprint");
  ExpectDamage({rows, StringsOf(1, {"a"}), end}, "of 1 records, want the strings of 2 rows");
  ExpectDamage({rows, StringsOf(1, {"a", "bc", "d"}), end}, "of 3 records");
  ExpectDamage({rows, End(1)}, "kind 255 of 1 records, want the strings of 2 rows");
  ExpectDamage({rows, RowsOf(1, {"d"}), end}, "kind 1 ");
  ExpectDamage({StringsOf(0, ab), RowsOf(1, ab), end}, "strings without rows");
  ExpectDamage({rows, strings, StringsOf(2, ab), End(3)}, "strings without rows");
  RawBlock other = strings;
  other.payload += std::string(8, '\0');
  ExpectDamage({rows, other, end}, "lengths of 2 strings");
  other.payload = strings.payload.substr(0, 16);
  ExpectDamage({rows, other, end}, "lengths of 2 strings");
  other.payload = "";
  ExpectDamage({rows, other, end}, "got 0 bytes for 2 records");
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  for (const int64_t length : {int64_t{-1}, int64_t{4}, int64_t{20}, kMax, -kMax}) {
    other.payload = strings.payload;
    other.payload.replace(8, 8, Bytes(length));
    ExpectDamage({rows, other, end}, length == 4 ? "fingerprint" : "lengths of 2 strings");
  }
}

// A snapshot that was saved when the format got strings must be readable for ever.
TEST_F(StringsTest, AreReadFromAnEarlierSnapshot) {
  std::unique_ptr<SnapshotReader> reader;
  ASSERT_OK(SnapshotReader::Open(PosixFileSystem(), "cc/core/snapshot/testdata/version1/strings",
                                 &reader));
  ASSERT_OK(reader->Verify(OneThread()));
  EXPECT_EQ(reader->manifest().files.size(), 2u);
  std::map<std::string, std::string> rows, want;
  SnapshotPlace place;
  SnapshotBlock block;
  for (bool done = false;;) {
    ASSERT_OK(reader->Next(-1, &place, &block, &done));
    if (done) break;
    for (size_t i = 0; i < block.strings.size(); ++i) {
      rows[std::string(block.strings[i])] =
          std::string(block.rows.values[static_cast<int64_t>(i)], 3);
    }
  }
  std::string lengthy;
  for (int i = 0; i < 100; ++i) lengthy += "long";
  for (const std::string& string : {std::string(), std::string("drama"), std::string("\0", 1),
                                    std::string("\xc3\xa4"), lengthy}) {
    const char n = static_cast<char>(string.size() % 100);
    want[string] = {n, static_cast<char>(-n), 7};
  }
  EXPECT_EQ(rows, want);
}

// Tables of random strings, through KeyStrings on both sides.
TEST_F(StringsTest, AreSavedAndLoadedWithTheRows) {
  Strings strings = {std::string(3 << 20, 'l'), "", std::string("\0\0", 2)};
  for (int i = 0; i < 200'000; ++i) strings.push_back(StrCat(i, std::string(i % 100, 's')));
  std::vector<std::unique_ptr<Table>> owned;
  const auto make = [&] {
    owned.emplace_back();
    EXPECT_TRUE(MakeHostTable(StringsSchema(), &owned.back()).ok());
    return owned.back().get();
  };
  KeyStrings kept;
  std::vector<Key> keys;
  std::string values;
  for (const std::string& string : strings) {
    keys.push_back(KeyOf(string));
    values.push_back(static_cast<char>(string.size()));
  }
  const std::vector<std::string_view> views(strings.begin(), strings.end());
  ASSERT_OK(kept.Record(keys, views));
  Table* const table = make();
  ConstRowParts rows;
  rows.keys = keys;
  rows.values = ConstRows(values.data(), static_cast<int64_t>(keys.size()), 1);
  Batch batch;
  batch.keys = keys;
  ASSERT_OK(table->InsertRows(OneThread(), batch, rows, RowParts(), Report()));
  Manifest manifest;
  TableToSave to_save{"t", {table}};
  to_save.strings = &kept;
  ASSERT_OK(SaveTables(OneThread(), &files_, "/s", {to_save}, 0, &manifest));

  std::unique_ptr<SnapshotReader> reader;
  ASSERT_OK(SnapshotReader::Open(&files_, "/s", &reader));
  SnapshotPlace place;
  std::vector<BlockEntry> blocks;
  ASSERT_OK(reader->List(0, std::numeric_limits<int64_t>::max(), &place, &blocks));
  EXPECT_GT(blocks.size(), 10u) << "of 10 MiB of strings and as much more";
  KeyStrings loaded;
  const std::vector<Table*> shards = {make(), make()};
  Context threads = HostTestMemory()->context();
  if (threads.executor->concurrency() == 1) threads = HostTestMemory()->context();
  ASSERT_OK(LoadRows(threads, *reader, blocks, nullptr, shards, &loaded));
  TableContent got = ExportAll(*shards[0], HostTestMemory(), 1000);
  got.merge(ExportAll(*shards[1], HostTestMemory(), 1000));
  EXPECT_EQ(Difference(ExportAll(*table, HostTestMemory(), 1000), got), "");
  EXPECT_EQ(loaded.size(), static_cast<int64_t>(strings.size()));
  std::vector<int64_t> missing;
  ASSERT_OK(loaded.Check(keys, views, &missing));
  EXPECT_TRUE(missing.empty());
  ASSERT_OK(loaded.Get(keys, [&](int64_t i, std::string_view s) { EXPECT_EQ(s, strings[i]); }));

  // A row without a string cannot be, and is not saved; the earlier snapshot stays.
  KeyStrings other;
  ASSERT_OK(other.Record({keys.data(), 5}, {views.data(), 5}));
  to_save.strings = &other;
  const Status saved = SaveTables(OneThread(), &files_, "/s", {to_save}, 0, &manifest);
  EXPECT_EQ(saved.code(), Code::kInternal);
  EXPECT_NE(saved.message().find("has a row and no string"), std::string::npos);
  ASSERT_OK(reader->Verify(OneThread()));
}

TEST_F(StringsTest, TheWriterWantsThoseOfTheKeys) {
  std::unique_ptr<SnapshotWriter> writer;
  std::unique_ptr<RowsFile> file;
  int64_t number;
  ASSERT_OK(SnapshotWriter::Open(&files_, "/s", &writer));
  ASSERT_OK(writer->AddTable("t", StringsSchema(), &number));
  ASSERT_OK(writer->NewFile(number, &file));
  const std::vector<Key> keys = {KeyOf("a"), KeyOf("b")};
  ConstRowParts rows;
  rows.keys = keys;
  rows.values = ConstRows("ab", 2, 1);
  const std::vector<std::string_view> good = {"a", "b"}, few = {"a"}, wrong = {"a", "c"};
  EXPECT_EQ(file->Write(1).message(), "strings: got none, want one per key");
  EXPECT_EQ(file->Add(rows).message(), "strings: got 0, want one per key, 2");
  EXPECT_EQ(file->Add(rows, few).code(), Code::kInvalidArgument);
  EXPECT_EQ(file->Add(rows, wrong).code(), Code::kInvalidArgument);
  ASSERT_OK(file->Add(rows, good));
  ASSERT_OK(file->Finish());
  ASSERT_OK(writer->Commit(0));
  std::unique_ptr<SnapshotReader> reader;
  ASSERT_OK(SnapshotReader::Open(&files_, "/s", &reader));
  ASSERT_OK(reader->Verify(OneThread()));
  EXPECT_EQ(reader->manifest().files[0].rows, 2);
}

}  // namespace
}  // namespace dynemb

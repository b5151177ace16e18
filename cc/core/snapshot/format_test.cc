// The snapshot format: what the writer writes is what FORMAT.md says, read by a decoder made from
// it alone; what FORMAT.md allows is read, and what it does not allow is refused; and snapshots
// written by version 1 (testdata/version1) are read for ever.
#include <algorithm>
#include <fstream>
#include <functional>
#include <iterator>
#include <limits>

#include "cc/core/snapshot/reader.h"
#include "cc/core/snapshot/writer.h"
#include "cc/core/testing/caller.h"
#include "cc/core/testing/memory_file_system.h"
#include "cc/core/testing/snapshots.h"
#include "gtest/gtest.h"

namespace dynemb {
namespace {

// ---- A decoder from FORMAT.md ------------------------------------------------------------------

uint64_t Number(const std::string& bytes, size_t at, size_t size) {
  uint64_t number = 0;
  for (size_t i = size; i-- > 0;) number = number << 8 | static_cast<unsigned char>(bytes[at + i]);
  return number;
}

std::vector<std::string> Split(const std::string& text, char separator) {
  std::vector<std::string> parts(1);
  for (const char c : text) {
    if (c == separator) parts.emplace_back();
    if (c != separator) parts.back().push_back(c);
  }
  return parts;
}

struct Widths {
  size_t value = 0, slots = 0, meta = 0;
};

// Of the lines of a schema.
Widths WidthsOf(const std::vector<std::string>& lines) {
  const std::map<std::string, size_t> sizes = {{"float32", 4},  {"float64", 8}, {"float16", 2},
                                               {"bfloat16", 2}, {"int8", 1},    {"int32", 4},
                                               {"int64", 8}};
  Widths widths;
  size_t dim = 0, slot_size = 0;
  for (const std::string& line : lines) {
    const std::vector<std::string> words = Split(line, ' ');
    if (words[0] == "value") {
      dim = std::stoul(words[2]);
      widths.value = dim * sizes.at(words[1]);
      slot_size = std::max<size_t>(sizes.at(words[1]), 4);
    }
    if (words[0] == "slot") widths.slots += slot_size * (words[2] == "row" ? 1 : dim);
    if (words[0] == "meta") widths.meta = 8 * (words.size() - 1);
  }
  return widths;
}

// The rows of one file; fails the test on whatever is not as FORMAT.md says.
void DecodeFile(const std::string& bytes, uint64_t id, uint64_t file, const Widths& widths,
                uint64_t want_rows, TableContent* rows) {
  size_t at = 0;
  uint64_t sequence = 0, row_count = 0;
  for (uint64_t kind = 0; kind != 255; ++sequence) {
    ASSERT_LE(at + 48, bytes.size());
    ASSERT_EQ(bytes.substr(at, 4), "DYB1");
    kind = Number(bytes, at + 4, 2);
    EXPECT_EQ(Number(bytes, at + 6, 2), 1u) << "required";
    EXPECT_EQ(Number(bytes, at + 8, 8), id);
    EXPECT_EQ(Number(bytes, at + 16, 4), file);
    EXPECT_EQ(Number(bytes, at + 20, 4), sequence);
    const size_t n = Number(bytes, at + 24, 8), size = Number(bytes, at + 32, 8);
    const std::string header = bytes.substr(at, 44), payload = bytes.substr(at + 48, size);
    ASSERT_EQ(payload.size(), size);
    ASSERT_TRUE(size <= 64 << 20 || n == 1);
    char text[16];
    std::snprintf(text, sizeof(text), "%08x", static_cast<unsigned>(Number(bytes, at + 40, 4)));
    EXPECT_EQ(text, ChecksumText(payload));
    std::snprintf(text, sizeof(text), "%08x", static_cast<unsigned>(Number(bytes, at + 44, 4)));
    EXPECT_EQ(text, ChecksumText(header));
    at += 48 + size;
    if (kind == 255) {
      EXPECT_EQ(n, sequence);
      EXPECT_EQ(size, 0u);
      continue;
    }
    ASSERT_EQ(kind, 1u);
    size_t part = 0;
    const auto take = [&](size_t width) {
      const size_t from = part, end = from + n * width;
      part = (end + 7) / 8 * 8;
      EXPECT_EQ(payload.substr(end, part - end), std::string(part - end, '\0'));
      return from;
    };
    const size_t keys = take(8), values = take(widths.value), slots = take(widths.slots),
                 meta = take(widths.meta);
    ASSERT_EQ(part, size);
    for (size_t i = 0; i < n; ++i) {
      const Key key = static_cast<Key>(Number(payload, keys + 8 * i, 8));
      const RowBytes row = {payload.substr(values + i * widths.value, widths.value),
                            payload.substr(slots + i * widths.slots, widths.slots),
                            payload.substr(meta + i * widths.meta, widths.meta)};
      EXPECT_TRUE(rows->emplace(key, row).second) << "key " << key << " twice";
    }
    row_count += n;
  }
  EXPECT_EQ(at, bytes.size()) << "after the last block";
  EXPECT_EQ(row_count, want_rows);
}

SnapshotContent Decode(const MemoryFileSystem& files, const std::string& folder) {
  SnapshotContent content;
  const std::string text = files.Get(folder + "/MANIFEST");
  EXPECT_EQ(text, Sealed(text.substr(0, text.rfind("crc32c "))));
  std::vector<std::string> lines = Split(text, '\n');
  EXPECT_EQ(lines.back(), "");
  EXPECT_EQ(lines[0], "dynemb-snapshot 1");
  EXPECT_EQ(lines[1].substr(0, 3), "id ");
  const uint64_t id = std::stoull(lines[1].substr(3), nullptr, 16);
  EXPECT_EQ(lines[2].substr(0, 8), "created ");
  std::vector<std::string> names;
  std::vector<Widths> widths;
  size_t at = 3;
  while (lines[at].rfind("table ", 0) == 0) {
    names.push_back(lines[at].substr(6));
    content[names.back()];
    const std::vector<std::string> words = Split(lines[at + 1], ' ');
    EXPECT_EQ(words[0], "schema");
    const size_t count = std::stoul(words[1]);
    const auto first = lines.begin() + static_cast<std::ptrdiff_t>(at) + 2;
    widths.push_back(WidthsOf({first, first + static_cast<std::ptrdiff_t>(count)}));
    at += 2 + count;
  }
  for (uint64_t file = 0; lines[at].rfind("file ", 0) == 0; ++at, ++file) {
    const std::vector<std::string> words = Split(lines[at], ' ');
    const std::string bytes = files.Get(folder + "/" + words[1]);
    const size_t table = std::stoul(words[2]);
    EXPECT_EQ(std::to_string(bytes.size()), words[3]);
    EXPECT_EQ(words[5], "0");
    DecodeFile(bytes, id, file, widths[table], std::stoul(words[4]), &content[names[table]]);
  }
  EXPECT_EQ(lines[at].rfind("crc32c ", 0), 0u);
  EXPECT_EQ(at + 2, lines.size());
  return content;
}

TEST(FormatTest, TheWriterWritesWhatItSays) {
  const std::vector<TestTable> tables = {
      {"a", MakeSchema(DType::kFloat32, 5, "adam", {MetaField::kLastWriteTime}), {}, 2},
      {"b b",
       MakeSchema(DType::kInt8, 3, "", {MetaField::kLastWriteTime, MetaField::kScore}),
       {},
       1},
      {"c", MakeSchema(DType::kBFloat16, 7, "rowwise_adagrad"), {}, 3},
      {"d", MakeSchema(DType::kFloat64, 100, "ftrl"), {}, 1},
      {"e", MakeSchema(DType::kFloat16, 1), {}, 1}};
  std::vector<TestTable> filled = tables;
  for (size_t t = 0; t < filled.size(); ++t) {
    filled[t].rows = RandomRows(filled[t].schema, t == 3 ? 2000 : static_cast<int64_t>(t) * 37, t);
  }
  MemoryFileSystem files;
  ASSERT_TRUE(Save(&files, "/s", Shards(filled)).ok());
  EXPECT_EQ(Difference(ContentOf(filled), Decode(files, "/s")), "");
  std::vector<TestTable> empty = tables;  // for a second writer, who has no rows and one file more
  empty[1].shards = 2;
  std::unique_ptr<SnapshotSave> save;
  std::vector<Manifest> parts(2);
  ASSERT_OK(SnapshotSave::Begin(&files, "/t", &save));
  ASSERT_OK(WriteTables(OneThread(), &files, "/t", {save->id(), 0, 2}, Shards(filled).named(), 0,
                        &parts[0]));
  ASSERT_OK(WriteTables(OneThread(), &files, "/t", {save->id(), 1, 2}, Shards(empty).named(), 0,
                        &parts[1]));
  Manifest all;  // 8 files, 9, and one that is empty
  ASSERT_OK(save->Commit(parts, &all));
  EXPECT_EQ(all.files.size(), 18u);
  EXPECT_EQ(Difference(ContentOf(filled), Decode(files, "/t")), "");
}

// ---- Snapshots made by hand --------------------------------------------------------------------

constexpr uint64_t kId = 0x00c0ffee00c0ffee;
const char kFirstLines[] = "dynemb-snapshot 1\nid 00c0ffee00c0ffee\ncreated 0\n";
const char kTableLines[] =
    "table t\nschema 4\ndynemb-table 1\nvalue int8 8\ninitializer constant 0\nseed 0\n";

// Rows of a table of int8 8: key, then 8 times the byte.
std::string RowsPayloadOf(const std::string& bytes) {
  std::string keys, values;
  for (const char byte : bytes) {
    keys += std::string(1, byte) + std::string(7, '\0');
    values += std::string(8, byte);
  }
  return keys + values;
}
RawBlock RowsBlock(uint32_t sequence, const std::string& bytes) {
  return {1, 1, kId, 0, sequence, static_cast<int64_t>(bytes.size()), RowsPayloadOf(bytes)};
}
RawBlock EndBlock(uint32_t blocks) { return {255, 1, kId, 0, blocks, blocks, ""}; }

class HandmadeTest : public ::testing::Test {
 protected:
  // The snapshot of one file of these blocks, and what reading it gives: the keys, as bytes, or the
  // error.
  std::string Read(const std::vector<RawBlock>& blocks, int64_t rows = 2) {
    std::string bytes;
    for (const RawBlock& block : blocks) bytes += Encode(block);
    return ReadBytes(bytes, rows);
  }
  std::string ReadBytes(const std::string& bytes, int64_t rows = 2, int64_t erased = 0) {
    files_.Put("/s/f", bytes);
    return ReadManifest(
        StrCat(kFirstLines, kTableLines, "file f 0 ", bytes.size(), " ", rows, " ", erased, "\n"));
  }
  std::string ReadManifest(const std::string& lines) { return ReadText(Sealed(lines)); }
  std::string ReadText(const std::string& text) {
    files_.Put("/s/MANIFEST", text);
    SnapshotContent content;
    const Status loaded = Load(&files_, "/s", &content);
    code_ = loaded.code();
    if (!loaded.ok()) return loaded.message();
    std::string keys;
    for (const auto& [key, row] : content["t"]) {
      EXPECT_EQ(row.value, std::string(8, static_cast<char>(key)));
      keys.push_back(static_cast<char>(key));
    }
    return keys;
  }

  MemoryFileSystem files_;
  Code code_ = Code::kOk;
};

#define EXPECT_HAS(text, part) EXPECT_NE((text).find(part), std::string::npos) << (text)

TEST_F(HandmadeTest, ReadsWhatTheFormatAllows) {
  EXPECT_EQ(Read({RowsBlock(0, "ab"), EndBlock(1)}), "ab");
  EXPECT_EQ(Read({RowsBlock(0, "b"), RowsBlock(1, ""), RowsBlock(2, "a"), EndBlock(3)}), "ab");
  EXPECT_EQ(Read({EndBlock(0)}, 0), "");
  EXPECT_EQ(ReadManifest(kFirstLines), "") << "no table";
  EXPECT_EQ(ReadManifest(StrCat(kFirstLines, kTableLines)), "") << "no file";
}

TEST_F(HandmadeTest, SkipsOptionalBlocksAndRefusesRequiredOnes) {
  for (const uint16_t kind : {3, 5, 77, 254, 256, 65535}) {
    RawBlock unknown = {kind, 0, kId, 0, 1, 3, std::string(1001, 'x')};
    const auto read = [&] {
      return Read({RowsBlock(0, "a"), unknown, RowsBlock(2, "b"), EndBlock(3)});
    };
    EXPECT_EQ(read(), "ab") << kind;
    unknown.payload = std::string(3 << 20, 'x');
    EXPECT_EQ(read(), "ab") << "in pieces";
    unknown.flags = 2;
    EXPECT_EQ(read(), "ab") << "of the flags, only the first bit is required";
    unknown.flags = 1;
    EXPECT_HAS(read(), StrCat("kind ", kind, ", which this reader does not know"));
    EXPECT_EQ(code_, Code::kUnimplemented);
    // What is skipped is still checked.
    unknown.flags = 0;
    std::string bytes = Encode(RowsBlock(0, "ab")) + Encode(unknown) + Encode(EndBlock(2));
    bytes[bytes.size() - 60] ^= 1;
    EXPECT_HAS(ReadBytes(bytes), "checksum");
    EXPECT_EQ(code_, Code::kDataLoss);
  }
}

// Rows of 8-bit numbers with a scale: what the format says of their bytes, decoded by hand.
TEST_F(HandmadeTest, ReadsQuantizedRows) {
  const char kHalf[] =
      "table t\nschema 4\ndynemb-table 1\nvalue float32 3\ninitializer constant 0\nseed 0\n";
  const auto number = [](auto value) {
    return std::string(reinterpret_cast<const char*>(&value), sizeof(value));
  };
  const auto payload = [&](float scale) {
    return number(int64_t{-7}) + number(int64_t{8}) + number(scale) + number(0.25f) +
           std::string("\x01\xff\x7f\x02\x81\x00\0\0", 8);
  };
  const auto read = [&](const char* quantized, uint16_t kind, const std::string& bytes,
                        SnapshotContent* content) {
    const RawBlock block = {kind, 1, kId, 0, 0, 2, bytes};
    const std::string file = Encode(block) + Encode(EndBlock(1));
    files_.Put("/s/f", file);
    files_.Put("/s/MANIFEST",
               Sealed(StrCat(kFirstLines, kHalf, quantized, "file f 0 ", file.size(), " 2 0\n")));
    return Load(&files_, "/s", content);
  };
  SnapshotContent got;
  ASSERT_OK(read("quantized\n", 4, payload(2.0f), &got));
  EXPECT_EQ(got["t"][-7].value, number(2.0f) + number(-2.0f) + number(254.0f));
  EXPECT_EQ(got["t"][8].value, number(0.5f) + number(-31.75f) + number(0.0f));
  EXPECT_EQ(got["t"][8].slots + got["t"][8].meta, "");
  for (const float scale : {-1.0f, std::numeric_limits<float>::infinity()}) {
    EXPECT_EQ(read("quantized\n", 4, payload(scale), &got).code(), Code::kDataLoss) << scale;
  }
  EXPECT_EQ(read("quantized\n", 4, payload(1) + std::string(8, '\0'), &got).code(),
            Code::kDataLoss);
  // Blocks of the other kind.
  EXPECT_EQ(read("", 4, payload(1), &got).code(), Code::kDataLoss);
  EXPECT_EQ(read("quantized\n", 1, std::string(16 + 24, 'x'), &got).code(), Code::kDataLoss);
  EXPECT_TRUE(read("", 1, std::string(8, 'x') + std::string(8 + 24, 'y'), &got).ok());
  // Lines that cannot be.
  for (const char* line : {"quantized 4\n", "quantized\nquantized\n"}) {
    EXPECT_EQ(read(line, 4, payload(1), &got).code(), Code::kDataLoss) << line;
  }
  for (const char* more : {"meta used\n", "rule adagrad\nslot accumulator column 0\n"}) {
    const std::string lines = more;
    const std::string schema =
        StrCat("table t\nschema ", 4 + std::count(lines.begin(), lines.end(), '\n'),
               "\ndynemb-table 1\nvalue float32 3\ninitializer constant 0\nseed 0\n", lines,
               "quantized\n");
    EXPECT_HAS(ReadManifest(StrCat(kFirstLines, schema)), "without slots and meta");
  }
  EXPECT_HAS(ReadManifest(StrCat(kFirstLines, kTableLines, "quantized\n")), "of a table of floats");
}

TEST_F(HandmadeTest, RefusesBlocksThatDoNotBelong) {
  RawBlock other = RowsBlock(0, "ab");
  const auto refused = [&](const RawBlock& first, int64_t rows = 2) {
    Read({first, EndBlock(1)}, rows);
    return code_ == Code::kDataLoss;
  };
  EXPECT_FALSE(refused(other));
  other.snapshot ^= 1;
  EXPECT_TRUE(refused(other)) << "of another snapshot";
  other = RowsBlock(0, "ab"), other.file = 1;
  EXPECT_TRUE(refused(other)) << "of another file";
  EXPECT_TRUE(refused(RowsBlock(1, "ab"))) << "out of order";
  EXPECT_TRUE(refused(RowsBlock(0, "ab"), 3)) << "more rows in the manifest";
  EXPECT_TRUE(refused(RowsBlock(0, "ab"), 1)) << "fewer rows in the manifest";
  Read({EndBlock(0), RowsBlock(1, "ab")});
  EXPECT_EQ(code_, Code::kDataLoss) << "after the end";
  Read({RowsBlock(0, "ab")});
  EXPECT_EQ(code_, Code::kDataLoss) << "no end";
  Read({RowsBlock(0, "ab"), EndBlock(1), EndBlock(2)});
  EXPECT_EQ(code_, Code::kDataLoss) << "two ends";
  RawBlock end = EndBlock(1);
  end.records = 2;
  Read({RowsBlock(0, "ab"), end});
  EXPECT_EQ(code_, Code::kDataLoss) << "an end of another file";
  end = EndBlock(1), end.payload = "12345678";
  Read({RowsBlock(0, "ab"), end});
  EXPECT_EQ(code_, Code::kDataLoss) << "an end with something in it";
}

// Numbers that are damaged on purpose, with right checksums: an error, and no memory for what is
// not there.
TEST_F(HandmadeTest, RefusesSizesThatDoNotFit) {
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  for (const uint16_t kind : {1, 2, 3, 4, 255}) {
    for (const int64_t number : {int64_t{-1}, int64_t{0}, int64_t{1}, int64_t{3}, int64_t{1} << 31,
                                 kMax / 16, kMax / 16 + 1, kMax / 8 + 3, kMax, -kMax - 1}) {
      RawBlock block = RowsBlock(0, "ab");
      block.kind = kind;
      block.records = number;
      Read({block, EndBlock(1)});
      const bool fine = kind == 3 && number >= 0;
      EXPECT_EQ(code_, fine ? Code::kUnimplemented : Code::kDataLoss) << kind << " " << number;
      // Payload sizes: the header alone says so, its checksum is right.
      std::string header = Encode(block).substr(0, 40);
      for (int i = 0; i < 8; ++i) header[32 + i] = static_cast<char>(number >> 8 * i & 0xff);
      header += std::string(4, '\0');
      const uint32_t crc = static_cast<uint32_t>(std::stoul(ChecksumText(header), nullptr, 16));
      for (int i = 0; i < 4; ++i) header.push_back(static_cast<char>(crc >> 8 * i & 0xff));
      ReadBytes(header + RowsPayloadOf("ab") + Encode(EndBlock(1)));
      EXPECT_NE(code_, Code::kOk) << kind << " " << number;
    }
  }
}

// A file of any size that has no bytes of its own, as a sparse one, and how much it is asked for at
// once.
class SparseFiles : public MemoryFileSystem {
 public:
  std::string head;
  int64_t size = 0;
  mutable int64_t largest_read = 0;

  Status NewReadableFile(const std::string& path, std::unique_ptr<ReadableFile>* file) override {
    if (path != "/s/f") return MemoryFileSystem::NewReadableFile(path, file);
    *file = std::make_unique<File>(this);
    return Status();
  }

 private:
  struct File : ReadableFile {
    explicit File(const SparseFiles* files) : files(files) {}
    Status Size(int64_t* bytes) const override {
      *bytes = files->size;
      return Status();
    }
    Status Read(int64_t offset, int64_t bytes, char* out) const override {
      files->largest_read = std::max(files->largest_read, bytes);
      std::fill_n(out, bytes, '\0');
      const int64_t head = static_cast<int64_t>(files->head.size());
      if (offset < head)
        files->head.copy(out, static_cast<size_t>(bytes), static_cast<size_t>(offset));
      return Status();
    }
    const SparseFiles* const files;
  };
};

TEST(SparseTest, AHugeBlockTakesNoMemory) {
  for (const uint16_t flags : {0, 1}) {
    SparseFiles files;
    RawBlock huge = {77, flags, kId, 0, 0, 1, std::string(100 << 20, '\0')};
    files.head = Encode(huge).substr(0, 48);
    files.size = (100 << 20) + 48;
    files.Put("/s/MANIFEST",
              Sealed(StrCat(kFirstLines, kTableLines, "file f 0 ", files.size, " 0 0\n")));
    SnapshotContent content;
    const Status loaded = Load(&files, "/s", &content);
    EXPECT_EQ(loaded.code(), flags == 0 ? Code::kDataLoss : Code::kUnimplemented);
    EXPECT_LE(files.largest_read, 1 << 20);
  }
}

// ---- Manifests made by hand --------------------------------------------------------------------

TEST_F(HandmadeTest, SkipsWordsWithAPlusAndRefusesOthers) {
  const std::string bytes = Encode(RowsBlock(0, "ab")) + Encode(EndBlock(1));
  files_.Put("/s/f", bytes);
  const std::string file = StrCat("file f 0 ", bytes.size(), " 2 0\n");
  const std::string first = kFirstLines, table = kTableLines;
  EXPECT_EQ(ReadManifest(first + "+new x\n+\n" + table + "+file g 0 0 0 0\n" + file + "+x\n"),
            "ab");
  for (const std::string line : {"new x\n", "\n", " file\n", "File\n", "\t+x\n"}) {
    EXPECT_HAS(ReadManifest(first + table + line + file), "which this reader does not know");
    EXPECT_EQ(code_, Code::kUnimplemented) << line;
  }
  EXPECT_HAS(ReadManifest(first + table + std::string(1000, '\xff') + "\n"),
             "got line '" + std::string(80, '?') + "', which");
}

// The engine would take any 64 bits, and TensorFlow cast them to a key that is another one.
TEST_F(HandmadeTest, RefusesKeysThatTheKeyDtypeDoesNotHave) {
  const std::string table =
      "table t\nschema 5\ndynemb-table 1\nvalue int8 8\nkey int32\ninitializer constant 0\n"
      "seed 0\n";
  const std::string ones(8, '\xff');
  for (const bool erased : {false, true}) {
    const auto read = [&](const std::string& key) {  // its 8 bytes
      const RawBlock block = {static_cast<uint16_t>(erased ? 2 : 1),      1, kId, 0, 0, 1,
                              erased ? key : key + std::string(8, key[0])};
      const std::string bytes = Encode(block) + Encode(EndBlock(1));
      files_.Put("/s/f", bytes);
      return ReadManifest(StrCat(kFirstLines, erased ? "base 0000000000000001\n" : "", table,
                                 "file f 0 ", bytes.size(), erased ? " 0 1\n" : " 1 0\n"));
    };
    const auto good = [&](const std::string& key) {
      EXPECT_EQ(read(key), erased ? "" : key.substr(0, 1));
      EXPECT_EQ(code_, Code::kOk);
    };
    const auto bad = [&](const std::string& key, const std::string& number) {
      EXPECT_HAS(read(key), "key " + number + ": it is beyond int32");
      EXPECT_EQ(code_, Code::kDataLoss);
    };
    good("\xff\xff\xff\x7f" + std::string(4, '\0'));      // the largest
    good(std::string("\0\0\0\x80", 4) + ones.substr(4));  // the smallest
    bad(std::string("\0\0\0\x80\0\0\0\0", 8), "2147483648");
    bad("\xff\xff\xff\x7f" + ones.substr(4), "-2147483649");
    bad(std::string("\5\0\0\0\0\1\0\0", 8), "1099511627781");
  }
}

TEST_F(HandmadeTest, RefusesOtherVersions) {
  for (const std::string version : {"0", "2", "10", "999999999999999999"}) {
    // What comes after the first line is that version's own matter.
    EXPECT_EQ(ReadText("dynemb-snapshot " + version + "\nanything"),
              "snapshot /s: manifest: got format version " + version +
                  ", this reader knows 1; read it with the version of tf_dynemb that wrote it or a "
                  "later one");
    EXPECT_EQ(code_, Code::kUnimplemented);
  }
  for (const std::string line :
       {"dynemb-snapshot", "dynemb-snapshot ", "dynemb-snapshot one", "dynemb-snapshot 1 ",
        "dynemb-snapshot -1", "", "DYNEMB-SNAPSHOT 1", "dynemb-snapshot 99999999999999999999"}) {
    ReadText(Sealed(line + "\nid 00c0ffee00c0ffee\ncreated 0\n"));
    EXPECT_EQ(code_, Code::kDataLoss) << line;
  }
}

TEST_F(HandmadeTest, RefusesManifestsThatAreNotWhole) {
  const std::string first = "dynemb-snapshot 1\n", id = "id 00c0ffee00c0ffee\n";
  const std::string created = "created 0\n", base = "base 0000000000000001\n", table = kTableLines;
  const std::string bytes = Encode(EndBlock(0)), file = "file f 0 48 0 0\n";
  files_.Put("/s/f", bytes);
  const std::string good = first + id + created + base + table + file;
  EXPECT_EQ(ReadManifest(good), "");
  EXPECT_EQ(code_, Code::kOk);
  const std::string bad[] = {
      first,
      first + created,
      first + id,
      first + created + id,
      first + id + id + created,
      first + id + created + created,
      first + id + base + created,
      first + id + created + base + base,
      first + id + created + table + base,
      first + id + created + file,
      first + id + created + file + table,
      first + id + created + table + file + base,
      first + id + created + table + table,
      first + id + created + table + "table u\n",
      first + id + created + "table u\n" + table,
      first + id + created + table.substr(table.find("schema")),
      first + id + created + table + table.substr(table.find("schema")) + file,
      good + "crc32c 00000000\n",
      Sealed(good)};
  for (const std::string& lines : bad) {
    ReadManifest(lines);
    EXPECT_EQ(code_, Code::kDataLoss) << lines;
  }
  EXPECT_EQ(ReadText(Sealed(good).substr(0, Sealed(good).size() - 1)),
            "snapshot /s: manifest: its last line is not the checksum of those before it; the file "
            "is damaged or cut off");
}

TEST_F(HandmadeTest, RefusesLinesThatAreWrong) {
  const std::string first = "dynemb-snapshot 1\n", table = kTableLines;
  const auto lines = [&](const std::string& id, const std::string& created,
                         const std::string& tables, const std::string& file) {
    return first + id + "\n" + created + "\n" + tables + file + "\n";
  };
  const std::string id = "id 00c0ffee00c0ffee", created = "created 0", file = "file f 0 48 0 0";
  files_.Put("/s/f", Encode(EndBlock(0)));
  files_.Put("/x", Encode(EndBlock(0)));
  ReadManifest(lines(id, created, table, file));
  EXPECT_EQ(code_, Code::kOk);
  const auto refused = [&](const std::string& text) {
    ReadManifest(text);
    EXPECT_EQ(code_, Code::kDataLoss) << text;
  };
  for (const std::string bad :
       {"id", "id ", "id 0000000000000000", "id c0ffee", "id -0c0ffee00c0ffee",
        "id 00C0FFEE00C0FFEE", "id 00c0ffee00c0ffee ", "id 0x00ffee00c0ffee"}) {
    refused(lines(bad, created, table, file));
  }
  for (const std::string bad : {"created", "created ", "created -1", "created 1.5", "created 0x1",
                                "created 9223372036854775808", "created 18446744073709551616"}) {
    refused(lines(id, bad, table, file));
  }
  for (const std::string bad :
       {"file", "file f", "file f 0 48 0", "file f 0 48 0 0 ", "file f 0 48 0 0 0",
        "file f 1 48 0 0", "file f -1 48 0 0", "file f 0 48 -1 0",
        "file f 0 9223372036854775808 0 0", "file f 18446744073709551615 48 0 0", "file  0 48 0 0",
        "file ../x 0 48 0 0", "file /x 0 48 0 0", "file .. 0 48 0 0", "file . 0 48 0 0",
        "file .f 0 48 0 0", "file f/../f 0 48 0 0", "file f\\ 0 48 0 0",
        "file \xc3\xa4 0 48 0 0"}) {
    refused(lines(id, created, table, bad));
  }
  // A table that is not there, where there is none at all.
  for (const std::string number : {"0", "1", "7"}) {
    refused(lines(id, created, "", "file f " + number + " 48 0 0"));
  }
  for (const std::string name : {"", "a\tb", "\x7f", "\xc0\xaf", "\xff"}) {
    refused(lines(id, created, "table " + name + table.substr(7), file));
  }
  for (const std::string schema :
       {"", "schema\n", "schema 0\n", "schema -1\n", "schema 1\ndynemb-table 1\n",
        "schema 9999999\ndynemb-table 1\n", "schema 2\ndynemb-table 1\nvalue int8 0\n",
        "schema 2\ndynemb-table 1\nvalue int8 1048577\n",
        "schema 2\ndynemb-table 1\nvalue int8 1e30\n",
        "schema 2\ndynemb-table 1\nvalue float32 nan\n", "schema 2\ntable 1\nvalue int8 1\n",
        "schema 3\ndynemb-table 1\nvalue float32 1\nslot m column 0\n",
        "schema 4\ndynemb-table 1\nvalue float32 1\nrule adam\nslot m column 0\n"}) {
    refused(lines(id, created, "table t\n" + schema, file));
  }
  const std::string message =
      ReadManifest(lines(id, created, "table t\nschema 2\ndynemb-table 1\n\xff\xff\n", file));
  EXPECT_HAS(message, "got line '\?\?'") << "messages are text, whatever the bytes are";
  ReadManifest(lines(id, created, "table t\nschema 2\ndynemb-table 2\nvalue int8 1\n", file));
  EXPECT_EQ(code_, Code::kUnimplemented);
}

// ---- Version 1 for ever ------------------------------------------------------------------------

// A file of the source tree; the test runs in its root.
std::string Testdata(const std::string& name) {
  std::ifstream file("cc/core/snapshot/testdata/version1/" + name, std::ios::binary);
  EXPECT_TRUE(file.good()) << name;
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

// What testdata/version1/<folder> was written with.
TableContent GoldenUsers(Key first, Key last) {
  TableContent rows;
  for (Key i = first; i < last; ++i) {
    const float x = static_cast<float>(i);
    const Key key = i % 2 == 0 ? i : std::numeric_limits<Key>::min() + i;
    rows[key] = {Bytes<float>({x, x / 2, -x}), Bytes<float>({x, 1, 2, 3, x * x, 0.5f}),
                 Bytes<int64_t>({i + 1, 1'700'000'000 + i})};
  }
  return rows;
}
TableContent GoldenItems() {
  TableContent rows;
  for (Key i = 0; i < 21; ++i) {
    rows[i * i * i - 100] = {{static_cast<char>(i), static_cast<char>(-i), 7, 0, 127}, "", ""};
  }
  return rows;
}

class GoldenTest : public ::testing::Test {
 protected:
  // Loads testdata/version1/<folder>.
  SnapshotContent Read(const std::string& folder) {
    const std::string path = "cc/core/snapshot/testdata/version1/" + folder;
    SnapshotContent content;
    const Status loaded = Load(PosixFileSystem(), path, &content, &erased_);
    EXPECT_TRUE(loaded.ok()) << loaded.message();
    const Status opened = SnapshotReader::Open(PosixFileSystem(), path, &reader_);
    EXPECT_TRUE(opened.ok()) << opened.message();
    return content;
  }

  std::map<std::string, std::vector<Key>> erased_;
  std::unique_ptr<SnapshotReader> reader_;
};

TEST_F(GoldenTest, ReadsASnapshotOfVersion1) {
  const SnapshotContent content = Read("full");
  ASSERT_NE(reader_, nullptr);
  const Manifest& manifest = reader_->manifest();
  EXPECT_EQ(Difference({{"users", GoldenUsers(0, 30)}, {"items \xc3\xa4", GoldenItems()}}, content),
            "");
  EXPECT_EQ(manifest.tables[0].schema.ToText(),
            "dynemb-table 1\nvalue float32 3\ninitializer uniform -0.5 0.25\nseed 42\n"
            "meta used count\nrule adam\nslot momentum column 0\nslot velocity column 0\n");
  EXPECT_EQ(manifest.tables[1].schema.ToText(),
            "dynemb-table 1\nvalue int8 5\ninitializer constant 0\nseed 0\nkey string\n");
  EXPECT_EQ(manifest.base, 0u);
  ASSERT_EQ(manifest.files.size(), 3u);
  EXPECT_EQ(manifest.ToText(), Testdata("full/MANIFEST")) << "this writer would write the same";
  EXPECT_TRUE(erased_["users"].empty());
}

TEST_F(GoldenTest, ReadsADeltaOfVersion1) {
  Read("full");
  ASSERT_NE(reader_, nullptr);
  const uint64_t base = reader_->manifest().id;
  EXPECT_EQ(Difference({{"users", GoldenUsers(28, 33)}, {"items \xc3\xa4", {}}}, Read("delta")),
            "");
  EXPECT_EQ(reader_->manifest().base, base);
  EXPECT_EQ(erased_["users"], (std::vector<Key>{0, 2, 4}));
  EXPECT_TRUE(erased_["items \xc3\xa4"].empty());
}

}  // namespace
}  // namespace dynemb

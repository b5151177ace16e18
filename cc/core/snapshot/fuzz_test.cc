// Files that somebody made up: random mutants of good ones, with checksums and sizes put right so
// that the checks behind them are reached. Whatever they hold, reading them gives rows or an error,
// touches no memory that is not its own (run it under AddressSanitizer: make cc_asan), and takes no
// more memory than the files explain.
//
// A mutant whose answer is of a new kind joins the pool that further mutants are made of. Quick
// runs are the same each time; with TF_DYNEMB_SOAK=1 each test runs for 10 minutes times
// SOAK_SHARE, from a seed that it prints and that DYNEMB_FUZZ_SEED sets.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <limits>
#include <new>
#include <random>
#include <set>

#include "cc/core/base/crc32c.h"
#include "cc/core/base/fingerprint.h"
#include "cc/core/snapshot/loader.h"
#include "cc/core/snapshot/reader.h"
#include "cc/core/snapshot/writer.h"
#include "cc/core/table/host_table.h"
#include "cc/core/table/key_strings.h"
#include "cc/core/testing/memory_file_system.h"
#include "cc/core/testing/snapshots.h"
#include "gtest/gtest.h"

namespace {
size_t largest_allocation = 0;
}  // namespace

// The program's own, which knows how much is asked for at once. Containers take no other way.
void* operator new(size_t bytes) {
  largest_allocation = std::max(largest_allocation, bytes);
  void* const data = std::malloc(bytes + (bytes == 0));
  if (data == nullptr) throw std::bad_alloc();
  return data;
}
void operator delete(void* data) noexcept { std::free(data); }
void operator delete(void* data, size_t) noexcept { std::free(data); }

namespace dynemb {
namespace {

using Random = std::mt19937_64;

uint64_t Below(Random* random, uint64_t bound) { return bound == 0 ? 0 : (*random)() % bound; }

// A part of the text, of any place and mostly short.
std::pair<size_t, size_t> Part(const std::string& text, Random* random) {
  const size_t at = Below(random, text.size() + 1);
  const size_t longest = std::min<size_t>(text.size() - at, size_t{1} << Below(random, 10));
  return {at, Below(random, longest + 1)};
}

int64_t InterestingNumber(Random* random) {
  const int64_t max = std::numeric_limits<int64_t>::max();
  const int64_t numbers[] = {0,
                             1,
                             -1,
                             2,
                             7,
                             8,
                             48,
                             255,
                             256,
                             65535,
                             1 << 20,
                             (1 << 20) + 1,
                             64 << 20,
                             int64_t{1} << 31,
                             int64_t{1} << 32,
                             int64_t{1} << 60,
                             max,
                             max - 47,
                             -max};
  const int64_t number = numbers[Below(random, std::size(numbers))];
  if (Below(random, 4) != 0) return number;
  return static_cast<int64_t>(static_cast<uint64_t>(number) + Below(random, 17) - 8);
}

std::string RandomText(Random* random, const std::vector<std::string>& words) {
  switch (Below(random, 4)) {
    case 0:
      return std::to_string(InterestingNumber(random));
    case 1:
      return std::string(1 + Below(random, 8), static_cast<char>((*random)()));
    default:
      return words[Below(random, words.size())];
  }
}

// Changes a text in one place, or in a few more.
std::string Mutant(std::string text, const std::vector<std::string>& pool,
                   const std::vector<std::string>& words, Random* random) {
  for (bool more = true; more; more = Below(random, 2) == 0) {
    const auto [at, size] = Part(text, random);
    switch (Below(random, 8)) {
      case 0:
        if (at < text.size()) text[at] = static_cast<char>(text[at] ^ 1 << Below(random, 8));
        break;
      case 1:
        if (at < text.size()) text[at] = static_cast<char>((*random)());
        break;
      case 2:
        text.erase(at, size);
        break;
      case 3:
        text.insert(Below(random, text.size() + 1), text.substr(at, size));
        break;
      case 4: {
        const int64_t number = InterestingNumber(random);
        const size_t width = size_t{1} << Below(random, 4);
        for (size_t i = 0; i < width && at + i < text.size(); ++i) {
          text[at + i] = static_cast<char>(static_cast<uint64_t>(number) >> 8 * i);
        }
        break;
      }
      case 5:
        text.insert(at, RandomText(random, words));
        break;
      case 6:
        text.replace(at, size, RandomText(random, words));
        break;
      default: {
        const std::string& other = pool[Below(random, pool.size())];
        const auto [from, length] = Part(other, random);
        text.replace(at, size, other.substr(from, length));
      }
    }
  }
  return text.substr(0, 20'000);
}

// The kind of an answer: its letters, without what is quoted.
std::string Kind(const Status& status) {
  std::string message = status.message();
  const size_t first = message.find('\''), last = message.rfind('\'');
  if (first != message.npos) message.erase(first, first == last ? message.npos : last - first);
  std::string kind = std::to_string(static_cast<int>(status.code()));
  for (const char c : message) {
    if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z')) kind.push_back(c);
  }
  return kind;
}

// Gives mutants of the pool to `target`, which fails the test itself or answers.
void Fuzz(std::vector<std::string> pool, const std::vector<std::string>& words, int64_t quick_runs,
          const std::function<Status(std::string*, Random*)>& target) {
  using Clock = std::chrono::steady_clock;
  const bool soak = SoakFactor() > 1;
  const char* const given = std::getenv("DYNEMB_FUZZ_SEED");
  const uint64_t seed = given != nullptr ? std::strtoull(given, nullptr, 10)
                        : soak           ? std::random_device()()
                                         : 1;
  std::printf("DYNEMB_FUZZ_SEED=%llu\n", static_cast<unsigned long long>(seed));
  std::fflush(stdout);
  Random random(seed);
  std::set<std::string> kinds;
  std::vector<std::string> bad_pool;
  int64_t runs = 0, good = 0;
  const auto end = Clock::now() + std::chrono::seconds(30 * SoakFactor());
  while (soak ? Clock::now() < end : runs < quick_runs) {
    const auto& from = bad_pool.empty() || Below(&random, 4) != 0 ? pool : bad_pool;
    std::string text = Mutant(from[Below(&random, from.size())], pool, words, &random);
    largest_allocation = 0;
    const Status answer = target(&text, &random);
    const size_t allowed = (size_t{1} << 20) + 64 * text.size();
    ASSERT_LE(largest_allocation, allowed) << "run " << runs << " for " << text.size() << " bytes";
    ASSERT_FALSE(::testing::Test::HasFailure()) << "run " << runs << ": " << text;
    ++runs;
    good += answer.ok();
    if (answer.ok()) {
      if (Below(&random, 1 + static_cast<uint64_t>(good)) < 50) pool.push_back(text);
    } else if (kinds.insert(Kind(answer)).second) {
      bad_pool.push_back(text);
    }
  }
  std::printf("%lld runs, %lld without an error, %zu kinds of errors\n",
              static_cast<long long>(runs), static_cast<long long>(good), kinds.size());
  EXPECT_GT(good, 0);
  EXPECT_GT(kinds.size(), 5u);
}

// ---- The parsers of text -----------------------------------------------------------------------

const std::vector<std::string>& Words() {
  static const auto* const words = new std::vector<std::string>{"dynemb-snapshot ",
                                                                "dynemb-table ",
                                                                "\nid ",
                                                                "\ncreated ",
                                                                "\nbase ",
                                                                "\ntable ",
                                                                "\nschema ",
                                                                "\nfile ",
                                                                "\ncrc32c ",
                                                                "\n+",
                                                                "\nvalue ",
                                                                "\ninitializer ",
                                                                "constant ",
                                                                "uniform ",
                                                                "truncated_normal ",
                                                                "\nseed ",
                                                                "\nmeta ",
                                                                "used",
                                                                " count",
                                                                " score",
                                                                "\nrule ",
                                                                "adam",
                                                                "ftrl",
                                                                "\nslot ",
                                                                "momentum",
                                                                " column ",
                                                                " row ",
                                                                "\nkey ",
                                                                "\nstrings",
                                                                "\nquantized\n",
                                                                "string",
                                                                "float32 ",
                                                                "float64 ",
                                                                "int8 ",
                                                                "bfloat16 ",
                                                                "../",
                                                                "/",
                                                                ".",
                                                                " ",
                                                                "\n",
                                                                "\r",
                                                                std::string("\0", 1),
                                                                "\xff",
                                                                "\xc3\xa4",
                                                                "1e308",
                                                                "1e-320",
                                                                "nan",
                                                                "inf",
                                                                "0x10",
                                                                "1048576",
                                                                "00c0ffee00c0ffee",
                                                                "f0",
                                                                "f1"};
  return *words;
}

const char kAdamSchema[] =
    "dynemb-table 1\nvalue float32 3\ninitializer uniform -0.5 0.25\nseed 42\nmeta used count\n"
    "rule adam\nslot momentum column 0\nslot velocity column 0\n";
const char kInt8Schema[] =
    "dynemb-table 1\nvalue int8 4\ninitializer constant 1 2 3 4\nseed 0\nkey string\n";
const char kHalfSchema[] =
    "dynemb-table 1\nvalue float16 2\ninitializer truncated_normal 0 1\nseed 7\nmeta score\n";
const char kHalfWithoutMeta[] = "dynemb-table 1\nvalue float16 2\ninitializer constant 0\nseed 7\n";

TEST(FuzzTest, Schemas) {
  Fuzz({kAdamSchema, kInt8Schema, kHalfSchema}, Words(), 30'000, [](std::string* text, Random*) {
    TableSchema schema;
    const Status parsed = TableSchema::Parse(*text, &schema);
    if (!parsed.ok()) return parsed;
    EXPECT_TRUE(schema.Validate().ok());
    const RowLayout layout(schema);
    // At most 2^20 numbers of 8 bytes, four times: a value and three slots of that width.
    EXPECT_GE(layout.value_bytes, 1);
    EXPECT_LE(layout.value_bytes, int64_t{8} << 20);
    EXPECT_GE(layout.slots_bytes, 0);
    EXPECT_LE(layout.slots_bytes, int64_t{24} << 20);
    EXPECT_GE(layout.row_bytes, layout.value_bytes + layout.slots_bytes + layout.meta_bytes);
    TableSchema again;
    EXPECT_TRUE(TableSchema::Parse(schema.ToText(), &again).ok());
    EXPECT_EQ(again.ToText(), schema.ToText());
    return parsed;
  });
}

std::string ManifestOf(const std::vector<std::string>& schemas, const std::string& files) {
  std::string text = "dynemb-snapshot 1\nid 00c0ffee00c0ffee\ncreated 1700000000\n";
  for (size_t t = 0; t < schemas.size(); ++t) {
    const auto lines = std::count(schemas[t].begin(), schemas[t].end(), '\n');
    text += StrCat("table t", t, "\nschema ", lines, "\n", schemas[t]);
  }
  return text + files;
}

// A manifest without its last line, which is made for it.
TEST(FuzzTest, Manifests) {
  const std::vector<std::string> pool = {
      ManifestOf({}, ""), ManifestOf({kInt8Schema}, "file f0 0 48 0 0\n"),
      ManifestOf({kAdamSchema, kHalfWithoutMeta}, "quantized\nfile f0 1 48 0 0\n"),
      ManifestOf({kAdamSchema, kHalfSchema}, "+x y\nfile f0 0 96 1 0\nfile f1 1 100 2 3\n"),
      "dynemb-snapshot 1\nid 0000000000000001\ncreated 0\nbase 0000000000000002\n",
      // What was found and mended: a file of a table where there is none, a table without a schema.
      "dynemb-snapshot 1\nid 0000000000000001\ncreated 0\nfile f0 5 0 0 0\n",
      "dynemb-snapshot 1\nid 0000000000000001\ncreated 0\ntable a\nfile f0 0 48 0 0\n"};
  Fuzz(pool, Words(), 30'000, [](std::string* text, Random* random) {
    Manifest manifest;
    if (Below(random, 20) == 0) return Manifest::Parse(*text, &manifest);
    const Status parsed = Manifest::Parse(Sealed(*text), &manifest);
    if (!parsed.ok()) return parsed;
    EXPECT_NE(manifest.id, 0u);
    for (const SnapshotTable& table : manifest.tables) {
      EXPECT_TRUE(table.schema.Validate().ok());
      EXPECT_TRUE(!table.quantized || IsFloating(table.schema.value_dtype));
      EXPECT_TRUE(CheckTableName(table.name).ok());
    }
    for (const SnapshotFile& file : manifest.files) {
      EXPECT_LT(static_cast<uint64_t>(file.table), manifest.tables.size());
      EXPECT_EQ(file.name.find_first_of("/\\\n"), std::string::npos);
      EXPECT_NE(file.name.substr(0, 1), ".");
      EXPECT_TRUE(file.bytes >= 0 && file.rows >= 0 && file.erased >= 0);
    }
    Manifest again;
    EXPECT_TRUE(Manifest::Parse(manifest.ToText(), &again).ok());
    EXPECT_EQ(again.ToText(), manifest.ToText());
    return parsed;
  });
}

// ---- Whole snapshots ---------------------------------------------------------------------------

// A snapshot as one text: the manifest without its last line, then its files, called f0, f1, ...
const std::string& Separator() {
  static const auto* const text = new std::string("\x01\x02--file--\x03");
  return *text;
}

std::vector<std::string> SplitFiles(const std::string& text) {
  std::vector<std::string> files;
  for (size_t at = 0, end; at != text.npos;
       at = end == text.npos ? end : end + Separator().size()) {
    end = text.find(Separator(), at);
    files.push_back(text.substr(at, end == text.npos ? end : end - at));
  }
  return files;
}

template <typename T>
void PutNumber(T number, size_t at, std::string* bytes) {
  std::memcpy(bytes->data() + at, &number, sizeof(number));
}

// Makes the checksums right, and mostly also what says which block it is.
void RepairBlocks(uint32_t file, Random* random, std::string* bytes) {
  const bool whole = Below(random, 8) != 0;
  uint32_t sequence = 0;
  for (size_t at = 0; at + 48 <= bytes->size(); ++sequence) {
    if (whole) {
      bytes->replace(at, 4, "DYB1");
      PutNumber(uint64_t{0x00c0ffee00c0ffee}, at + 8, bytes);
      PutNumber(file, at + 16, bytes);
      PutNumber(sequence, at + 20, bytes);
    }
    uint64_t size;
    std::memcpy(&size, bytes->data() + at + 32, sizeof(size));
    const uint64_t rest = bytes->size() - at - 48;
    if (size > rest && Below(random, 2) == 0) PutNumber(size = rest, at + 32, bytes);
    const std::string_view view = *bytes;
    if (size <= rest) PutNumber(Crc32c(view.substr(at + 48, size)), at + 40, bytes);
    PutNumber(Crc32c(view.substr(at, 44)), at + 44, bytes);
    if (size > rest) return;
    at += 48 + size;
  }
}

// Gives each file line the size that its file has.
std::string RepairSizes(const std::string& manifest, const std::vector<std::string>& files) {
  std::string text;
  for (size_t at = 0; at < manifest.size();) {
    const size_t end = std::min(manifest.find('\n', at), manifest.size() - 1) + 1;
    std::string line = manifest.substr(at, end - at);
    at = end;
    unsigned file = 0, table = 0;
    long long bytes = 0, rows = 0, erased = 0;
    if (std::sscanf(line.c_str(), "file f%u %u %lld %lld %lld", &file, &table, &bytes, &rows,
                    &erased) == 5 &&
        file + 1 < files.size()) {
      line = StrCat("file f", file, " ", table, " ", files[file + 1].size(), " ", rows, " ", erased,
                    "\n");
    }
    text += line;
  }
  return text;
}

const char kStringsSchema[] =
    "dynemb-table 1\nvalue int8 1\ninitializer constant 0\nseed 0\nkey string\nstrings\n";

// Keys of two strings, and the strings.
std::pair<std::string, std::string> TwoStrings() {
  std::string keys(16, '\0'), strings(16, '\0');
  const std::string texts[] = {"tag", "another tag"};
  for (size_t i = 0; i < 2; ++i) {
    PutNumber(Fingerprint(texts[i]), 8 * i, &keys);
    PutNumber(uint64_t{texts[i].size()}, 8 * i, &strings);
    strings += texts[i];
  }
  return {keys + std::string(8, 'v'), strings + std::string(2, '\0')};
}

std::string SeedSnapshot() {
  std::string text =
      ManifestOf({kAdamSchema, kInt8Schema, kStringsSchema, kHalfWithoutMeta},
                 "quantized\nfile f0 0 0 3 0\nfile f1 1 0 2 2\nfile f2 0 0 0 0\nfile f3 2 0 2 0\n"
                 "file f4 3 0 3 1\n");
  const auto block = [](uint16_t kind, uint16_t flags, int64_t records, size_t size) {
    return Encode({kind, flags, 0, 0, 0, records, std::string(size, 'k')});
  };
  // Widths: 8 + 12 + 24 + 16 in t0, 8 + 4 in t1.
  text += Separator() + block(1, 1, 2, 16 + 24 + 48 + 32) + block(77, 0, 5, 9) +
          block(1, 1, 1, 8 + 16 + 24 + 16) + block(255, 1, 3, 0);
  text += Separator() + block(2, 1, 2, 16) + block(1, 1, 2, 16 + 8) + block(255, 1, 2, 0);
  const auto [keys, strings] = TwoStrings();
  text += Separator() + block(255, 1, 0, 0);
  text += Separator() + Encode({1, 1, 0, 0, 0, 2, keys}) + Encode({3, 1, 0, 0, 0, 2, strings}) +
          block(255, 1, 2, 0);
  // Widths: 8 + 4 + 2 in t3.
  return text + Separator() + block(2, 1, 1, 8) + block(4, 1, 3, 24 + 16 + 8) + block(255, 1, 2, 0);
}

// Loads it as a follower does, into tables.
Status Restore(const SnapshotReader& reader) {
  const Manifest& manifest = reader.manifest();
  for (size_t t = 0; t < manifest.tables.size(); ++t) {
    const TableSchema& schema = manifest.tables[t].schema;
    const int64_t number = static_cast<int64_t>(t);
    std::unique_ptr<Table> made;
    DYNEMB_RETURN_IF_ERROR(MakeHostTable(schema, &made));
    const std::vector<Table*> shards = {made.get()};
    KeyStrings strings;
    SnapshotPlace place;
    std::vector<BlockEntry> blocks;
    TableChanges changes;
    DYNEMB_RETURN_IF_ERROR(changes.ReadErased(OneThread(), reader, number));
    DYNEMB_RETURN_IF_ERROR(reader.List(number, int64_t{1} << 40, &place, &blocks));
    DYNEMB_RETURN_IF_ERROR(changes.ReadRows(OneThread(), reader, blocks));
    DYNEMB_RETURN_IF_ERROR(changes.Apply(OneThread(), shards, schema.strings ? &strings : nullptr));
  }
  return Status();
}

// Reads it block by block, then restores it.
Status ReadAll(FileSystem* files) {
  std::unique_ptr<SnapshotReader> reader;
  DYNEMB_RETURN_IF_ERROR(SnapshotReader::Open(files, "/s", &reader));
  const Status restored = Restore(*reader);
  SnapshotPlace place;
  SnapshotBlock block;
  for (bool done = false;;) {
    DYNEMB_RETURN_IF_ERROR(reader->Next(-1, &place, &block, &done));
    if (done) break;
    const size_t table = static_cast<size_t>(block.table);
    // The erased keys' last byte is read, and the rows' all.
    if (block.erased.size > 0 && block.erased[block.erased.size - 1] == 42) continue;
    if (block.rows.keys.size == 0) continue;
    if (reader->manifest().tables[table].schema.strings) {
      // Whatever a reader gives, a writer takes.
      EXPECT_TRUE(CheckFingerprints(block.rows.keys, block.strings).ok());
    }
  }
  DYNEMB_RETURN_IF_ERROR(reader->Verify(OneThread()));
  const auto tables = static_cast<int64_t>(reader->manifest().tables.size());
  for (int64_t t = 0; t < tables; ++t) {
    TableSchema wider = reader->manifest().tables[static_cast<size_t>(t)].schema;
    wider.value_dtype = DType::kFloat64;
    static_cast<void>(reader->FitTo(wider, t));
  }
  DYNEMB_RETURN_IF_ERROR(reader->Verify(OneThread()));
  return restored;
}

TEST(FuzzTest, Snapshots) {
  std::vector<std::string> words = Words();
  words.push_back(Separator());
  words.push_back(Encode({1, 1, 0, 0, 0, 0, ""}));
  words.push_back(Encode({3, 0, 0, 0, 0, 1, "12345678"}));
  Fuzz({SeedSnapshot()}, words, 15'000, [](std::string* text, Random* random) {
    std::vector<std::string> files = SplitFiles(*text);
    const bool repair = Below(random, 10) != 0;
    MemoryFileSystem memory;
    for (size_t f = 1; f < files.size(); ++f) {
      if (repair) RepairBlocks(static_cast<uint32_t>(f - 1), random, &files[f]);
      memory.Put(StrCat("/s/f", f - 1), files[f]);
    }
    memory.Put("/s/MANIFEST", Sealed(repair ? RepairSizes(files[0], files) : files[0]));
    return ReadAll(&memory);
  });
}

}  // namespace
}  // namespace dynemb

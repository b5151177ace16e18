// Snapshots of tables: what is saved is what is read, bit for bit, whatever the tables are made of
// and whoever writes to them meanwhile; and what the writer refuses and removes. FORMAT.md's bytes
// are in format_test.cc, faults in fault_test.cc and damage_test.cc.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <iterator>
#include <random>
#include <thread>

#include "cc/core/snapshot/reader.h"
#include "cc/core/snapshot/writer.h"
#include "cc/core/table/host_table.h"
#include "cc/core/testing/caller.h"
#include "cc/core/testing/executors.h"
#include "cc/core/testing/memory_file_system.h"
#include "cc/core/testing/snapshots.h"
#include "gtest/gtest.h"

namespace dynemb {
namespace {

constexpr MetaField kLastWriteTime = MetaField::kLastWriteTime, kCount = MetaField::kCount,
                    kScore = MetaField::kScore;

class SnapshotTest : public ::testing::Test {
 protected:
  // Saves the tables and expects to read the same.
  void RoundTrip(const std::vector<TestTable>& tables) {
    SnapshotContent got;
    ASSERT_OK(Save(&files_, "/s", Shards(tables)));
    ASSERT_OK(Load(&files_, "/s", &got));
    EXPECT_EQ(Difference(ContentOf(tables), got), "");
  }
  std::unique_ptr<SnapshotReader> Open() {
    std::unique_ptr<SnapshotReader> reader;
    const Status opened = SnapshotReader::Open(&files_, "/s", &reader);
    EXPECT_TRUE(opened.ok()) << opened.message();
    return reader;
  }

  MemoryFileSystem files_;
};

std::vector<TableSchema> Schemas() {
  return {MakeSchema(DType::kFloat32, 8, "adam", {kLastWriteTime, kCount}),
          MakeSchema(DType::kFloat32, 1),
          MakeSchema(DType::kFloat64, 3, "adagrad", {kCount}),
          MakeSchema(DType::kFloat16, 5, "rowwise_adagrad", {kScore}),
          MakeSchema(DType::kBFloat16, 1, "ftrl"),
          MakeSchema(DType::kInt8, 3, "", {kLastWriteTime, kCount, kScore}),
          MakeSchema(DType::kInt32, 7),
          MakeSchema(DType::kInt64, 2, "", {kLastWriteTime})};
}

TEST_F(SnapshotTest, KeepsRowsOfEveryKind) {
  uint64_t seed = 0;
  for (const TableSchema& schema : Schemas()) {
    SCOPED_TRACE(schema.ToText());
    RoundTrip({{"table", schema, RandomRows(schema, 1000, ++seed)}});
    EXPECT_EQ(Open()->manifest().tables[0].schema.ToText(), schema.ToText());
  }
}

TEST_F(SnapshotTest, KeepsAnyNumberOfTablesAndShards) {
  const std::vector<TableSchema> schemas = Schemas();
  for (size_t seed = 0; seed < 20; ++seed) {
    SCOPED_TRACE(seed);
    std::vector<TestTable> tables;
    for (size_t t = 0; t < seed % 4; ++t) {
      const TableSchema& schema = schemas[(seed + t) % schemas.size()];
      const int64_t rows = static_cast<int64_t>(seed * (t + 1) * 7 % 50);
      tables.push_back({StrCat("a table/", t, " \xc3\xa4"), schema, RandomRows(schema, rows, seed),
                        static_cast<int64_t>(1 + (seed + t) % 3)});
    }
    RoundTrip(tables);
  }
}

// Each shard's rows read one by one, into a table with another number of shards.
TEST_F(SnapshotTest, RestoresIntoTables) {
  const TableSchema schema = MakeSchema(DType::kFloat32, 6, "adam", {kLastWriteTime});
  const std::vector<TestTable> saved = {{"other", schema, RandomRows(schema, 50, 1)},
                                        {"table", schema, RandomRows(schema, 3000, 2), 3}};
  ASSERT_OK(Save(&files_, "/s", Shards(saved)));
  const auto reader = Open();
  int64_t number = -1;
  ASSERT_OK(reader->FindTable("table", &number));
  EXPECT_EQ(number, 1);
  std::unique_ptr<Table> table;
  ASSERT_OK(MakeHostTable(schema, &table));
  SnapshotPlace place;
  SnapshotBlock block;
  for (bool done = false;;) {
    ASSERT_OK(reader->Next(number, &place, &block, &done));
    if (done) break;
    EXPECT_EQ(block.table, number);
    Batch batch;
    batch.keys = block.rows.keys;
    ASSERT_OK(table->InsertRows(OneThread(), batch, block.rows, RowParts(), Report()));
  }
  EXPECT_EQ(Difference(saved[1].rows, ExportAll(*table, HostTestMemory(), 100)), "");
  const Status none = reader->FindTable("tabel", &number);
  EXPECT_EQ(none.code(), Code::kNotFound);
  EXPECT_EQ(none.message(), "snapshot /s: got table 'tabel', it has 'other', 'table'");
}

TEST_F(SnapshotTest, KeepsRowsLargerThanABlockAndManyBlocks) {
  const TableSchema large = MakeSchema(DType::kFloat32, 1 << 18, "adam");
  const TableSchema small = MakeSchema(DType::kFloat32, 16, "adagrad", {kLastWriteTime});
  RoundTrip(
      {{"large", large, RandomRows(large, 3, 1)}, {"small", small, RandomRows(small, 20'000, 2)}});
  // 3 rows of 3 MiB are a block each; 20,000 of 144 bytes are 2.75 MiB.
  const auto reader = Open();
  SnapshotPlace place;
  SnapshotBlock block;
  std::vector<int64_t> sizes;
  for (bool done = false;;) {
    ASSERT_OK(reader->Next(-1, &place, &block, &done));
    if (done) break;
    sizes.push_back(block.rows.keys.size);
  }
  ASSERT_EQ(sizes.size(), 6u);
  EXPECT_EQ(std::vector<int64_t>(sizes.begin(), sizes.begin() + 3),
            (std::vector<int64_t>{1, 1, 1}));
  EXPECT_EQ(sizes[3] + sizes[4] + sizes[5], 20'000);
}

// A manifest says how many rows and bytes there are.
TEST_F(SnapshotTest, TheManifestCounts) {
  const TableSchema schema = MakeSchema(DType::kFloat32, 2);
  Manifest manifest;
  const Shards shards({{"table", schema, RandomRows(schema, 100, 1), 2}});
  ASSERT_OK(SaveTables(OneThread(), &files_, "/s", shards.named(), 0, &manifest));
  EXPECT_EQ(manifest.ToText(), files_.Get("/s/MANIFEST"));
  EXPECT_EQ(manifest.base, 0u);
  ASSERT_EQ(manifest.files.size(), 2u);
  EXPECT_EQ(manifest.files[0].rows + manifest.files[1].rows, 100);
  for (const SnapshotFile& file : manifest.files) {
    EXPECT_EQ(file.bytes, static_cast<int64_t>(files_.Get("/s/" + file.name).size()));
  }
}

TEST_F(SnapshotTest, WithoutMemoryThereIsNoSnapshot) {
  const TableSchema schema = MakeSchema(DType::kFloat32, 2);
  const Shards shards({{"table", schema, RandomRows(schema, 100, 1)}});
  NoMemoryExecutor executor;
  Context context;
  context.executor = &executor;
  Manifest manifest;
  EXPECT_EQ(SaveTables(context, &files_, "/s", shards.named(), 0, &manifest).code(),
            Code::kResourceExhausted);
  std::unique_ptr<SnapshotReader> reader;
  EXPECT_EQ(SnapshotReader::Open(&files_, "/s", &reader).code(), Code::kNotFound);
  ASSERT_OK(SaveTables(OneThread(), &files_, "/s", shards.named(), 0, &manifest));
  ASSERT_OK(SnapshotReader::Open(&files_, "/s", &reader));
  EXPECT_EQ(reader->Verify(context).code(), Code::kResourceExhausted);
  ASSERT_OK(reader->Verify(OneThread()));
}

// A large shard is saved by all threads, each to a file of its own; what was erased is in one.
TEST_F(SnapshotTest, LargeShardsAreSavedInParts) {
  const TableSchema schema = MakeSchema(DType::kInt32, 1);
  TableContent rows;
  for (Key key = 0; key < 200'000; ++key) rows[key * 7919].value = std::string(4, 'a');
  const Shards shards({{"table", schema, rows}});
  std::vector<TableToSave> tables = shards.named();
  const Caller table(tables[0].shards[0], HostTestMemory());
  Context threads = HostTestMemory()->context();
  if (threads.executor->concurrency() == 1) threads = HostTestMemory()->context();
  ASSERT_GE(threads.executor->concurrency(), 2);
  ASSERT_OK(BeginEpoch(threads, tables[0].shards, &tables[0].since_epoch));
  Manifest full, delta;
  tables[0].since_epoch = -1;
  ASSERT_OK(SaveTables(threads, &files_, "/s", tables, 0, &full));
  EXPECT_EQ(static_cast<int64_t>(full.files.size()),
            std::min<int64_t>(3, threads.executor->concurrency()));
  SnapshotContent got;
  ASSERT_OK(Load(&files_, "/s", &got));
  EXPECT_EQ(Difference({{"table", rows}}, got), "");

  ASSERT_OK(BeginEpoch(threads, tables[0].shards, &tables[0].since_epoch));
  TableContent written;
  Keys gone;
  for (auto row = rows.begin(); row != rows.end(); std::advance(row, 2)) {
    (row->first % 4 == 0 ? gone.push_back(row->first)
                         : void(written[row->first].value = std::string(4, 'b')));
  }
  ASSERT_OK(table.InsertRows(written));
  ASSERT_OK(table.Erase(gone));
  ASSERT_OK(SaveTables(threads, &files_, "/d", tables, full.id, &delta));
  std::map<std::string, std::vector<Key>> erased;
  ASSERT_OK(Load(&files_, "/d", &got, &erased));
  EXPECT_EQ(Difference({{"table", written}}, got), "");
  std::sort(erased["table"].begin(), erased["table"].end());
  EXPECT_EQ(erased["table"], gone);
}

// What a server needs: no slots, no meta, and numbers of fewer bits.
TEST_F(SnapshotTest, ValuesAloneAreSavedNarrow) {
  const TableSchema schema = MakeSchema(DType::kFloat32, 3, "adagrad", {kLastWriteTime});
  TableContent rows = RandomRows(schema, 5'000, 1), values, narrow;
  const float numbers[] = {1.0f, 1.00390625f, 1.01171875f};  // 1, 1 + 2^-8, 1 + 3 2^-8
  const uint16_t rounded[] = {0x3f80, 0x3f80, 0x3f82};       // ties go to the even one
  for (auto& [key, row] : rows) {
    row.value.assign(reinterpret_cast<const char*>(numbers), sizeof(numbers));
    values[key].value = row.value;
    narrow[key].value.assign(reinterpret_cast<const char*>(rounded), sizeof(rounded));
  }
  const Shards shards({{"table", schema, rows, 2}});
  std::vector<TableToSave> tables = shards.named();
  Manifest manifest;
  for (const DType dtype : {DType::kFloat64, DType::kFloat32, DType::kBFloat16}) {
    tables[0].values_as = dtype;
    ASSERT_OK(SaveTables(OneThread(), &files_, "/s", tables, 0, &manifest));
    const TableSchema& saved = manifest.tables[0].schema;
    EXPECT_EQ(saved.value_dtype, dtype == DType::kBFloat16 ? dtype : DType::kFloat32);
    EXPECT_EQ(RowLayout(saved).slots_bytes + RowLayout(saved).meta_bytes, 0);
    SnapshotContent got;
    ASSERT_OK(Load(&files_, "/s", &got));
    EXPECT_EQ(Difference({{"table", dtype == DType::kBFloat16 ? narrow : values}}, got), "");
  }
  // A number that float16 cannot hold: nothing is saved, and the earlier snapshot stays.
  const float large = 1e6f;
  std::memcpy(&rows.begin()->second.value[0], &large, sizeof(large));
  const Shards others({{"table", schema, rows}});
  tables = others.named();
  tables[0].values_as = DType::kFloat16;
  EXPECT_EQ(SaveTables(OneThread(), &files_, "/s", tables, 0, &manifest).code(),
            Code::kInvalidArgument);
  SnapshotContent got;
  ASSERT_OK(Load(&files_, "/s", &got));
  EXPECT_EQ(Difference({{"table", narrow}}, got), "");
}

// 8-bit numbers with a scale: whole snapshots and deltas, into tables of any floating dtype; tables
// of whole numbers stay as they are.
TEST_F(SnapshotTest, ValuesAloneAreSavedQuantized) {
  const TableSchema schema = MakeSchema(DType::kFloat32, 4, "adagrad", {kLastWriteTime});
  const TableSchema whole = MakeSchema(DType::kInt32, 2);
  TableContent rows = RandomRows(schema, 90'000, 1);  // several blocks
  for (auto& [key, row] : rows) {
    for (int64_t i = 0; i < 4; ++i) {  // numbers of 8 bits, with a scale of few digits
      const auto q = static_cast<float>(i == 0 ? 127 : (key * 31 + i * 57) % 128);
      const float value = q * static_cast<float>(1 + std::abs(key) % 1000) / 64;
      std::memcpy(&row.value[static_cast<size_t>(4 * i)], &value, sizeof(value));
    }
  }
  const TableContent numbers = RandomRows(whole, 100, 2);
  const Shards shards({{"table", schema, rows, 2}, {"whole", whole, numbers}});
  std::vector<TableToSave> tables = shards.named();
  for (TableToSave& table : tables) table.values_as = DType::kInt8;
  Manifest manifest;
  ASSERT_OK(SaveTables(OneThread(), &files_, "/s", tables, 0, &manifest));
  EXPECT_TRUE(manifest.tables[0].quantized && !manifest.tables[1].quantized);
  EXPECT_EQ(manifest.tables[0].schema.value_dtype, DType::kFloat32);
  int64_t bytes = 0;
  for (const SnapshotFile& file : manifest.files) bytes += file.table == 0 ? file.bytes : 0;
  EXPECT_LE(bytes, 90'000 * (8 + 4 + 4) + 48 * 20);
  TableContent values = rows;
  for (auto& [key, row] : values) row.slots = row.meta = "";
  SnapshotContent got;
  ASSERT_OK(Load(&files_, "/s", &got));
  EXPECT_EQ(Difference({{"table", values}, {"whole", numbers}}, got), "");
  // Into a table of wider numbers, and one of none that fit.
  std::unique_ptr<SnapshotReader> reader;
  ASSERT_OK(SnapshotReader::Open(&files_, "/s", &reader));
  ASSERT_OK(reader->FitTo(MakeSchema(DType::kFloat64, 4), 0));
  SnapshotPlace place;
  SnapshotBlock block;
  bool done;
  ASSERT_OK(reader->Next(0, &place, &block, &done));
  double wide;
  float same;
  std::memcpy(&wide, block.rows.values[5] + 8 * 3, sizeof(wide));
  std::memcpy(&same, &values[block.rows.keys[5]].value[12], sizeof(same));
  EXPECT_EQ(wide, static_cast<double>(same));
  EXPECT_EQ(reader->FitTo(MakeSchema(DType::kInt32, 4), 0).code(), Code::kFailedPrecondition);
  EXPECT_EQ(reader->FitTo(MakeSchema(DType::kFloat32, 5), 0).code(), Code::kFailedPrecondition);
  EXPECT_EQ(reader->FitTo(MakeSchema(DType::kFloat64, 2), 1).code(), Code::kFailedPrecondition);
  // A scale beyond float32: nothing is saved, and the earlier snapshot stays.
  const TableSchema doubles = MakeSchema(DType::kFloat64, 1);
  const double large = 1e45;
  const Shards others(
      {{"table", doubles, {{1, {std::string(reinterpret_cast<const char*>(&large), 8), "", ""}}}}});
  tables = others.named();
  tables[0].values_as = DType::kInt8;
  EXPECT_EQ(SaveTables(OneThread(), &files_, "/s", tables, 0, &manifest).code(),
            Code::kInvalidArgument);
  ASSERT_OK(Load(&files_, "/s", &got));
  EXPECT_EQ(Difference({{"table", values}, {"whole", numbers}}, got), "");
}

// Rows from anywhere, in pieces of any size, from buffers with any stride.
TEST_F(SnapshotTest, WritesArbitraryRows) {
  const TableSchema schema = MakeSchema(DType::kFloat32, 1000, "adagrad", {kLastWriteTime});
  const TableContent rows = RandomRows(schema, 500, 1);  // 4 MB, so several blocks
  const int64_t value_bytes = 4000, stride = 4008;
  std::unique_ptr<SnapshotWriter> writer;
  ASSERT_OK(SnapshotWriter::Open(&files_, "/s", &writer));
  int64_t number;
  ASSERT_OK(writer->AddTable("table", schema, &number));
  std::unique_ptr<RowsFile> file;
  ASSERT_OK(writer->NewFile(number, &file));
  auto next = rows.begin();
  for (size_t piece = 0; next != rows.end(); piece = (piece * 7 + 3) % 300) {
    std::vector<Key> keys;
    std::string values, slots, meta;
    for (; keys.size() < piece && next != rows.end(); ++next) {
      keys.push_back(next->first);
      values += next->second.value + std::string(stride - value_bytes, 'x');
      slots += next->second.slots;
      meta += next->second.meta;
    }
    const int64_t n = static_cast<int64_t>(keys.size());
    ConstRowParts parts;
    parts.keys = keys;
    parts.values = {values.data(), n, stride};
    parts.slots = {slots.data(), n, value_bytes};
    parts.meta = {meta.data(), n, 8};
    ASSERT_OK(file->Add(parts));
  }
  ASSERT_OK(file->Finish());
  ASSERT_OK(writer->Commit(0));
  writer.reset();
  SnapshotContent got;
  ASSERT_OK(Load(&files_, "/s", &got));
  EXPECT_EQ(Difference({{"table", rows}}, got), "");
}

TEST_F(SnapshotTest, KeepsErasedKeysAndTheBase) {
  const TableSchema schema = MakeSchema(DType::kInt8, 1);
  std::vector<Key> erased(200'000);  // two blocks
  for (size_t i = 0; i < erased.size(); ++i) erased[i] = static_cast<Key>(i * i) - 1000;
  std::unique_ptr<SnapshotWriter> writer;
  ASSERT_OK(SnapshotWriter::Open(&files_, "/s", &writer));
  int64_t number;
  ASSERT_OK(writer->AddTable("table", schema, &number));
  std::unique_ptr<RowsFile> file;
  ASSERT_OK(writer->NewFile(number, &file));
  ASSERT_OK(file->AddErased(erased));
  ASSERT_OK(file->AddErased({}));
  file->room().keys[0] = 7;
  file->room().values[0][0] = 42;
  ASSERT_OK(file->Write(1));
  ASSERT_OK(file->Finish());
  ASSERT_OK(writer->Commit(0x123));
  writer.reset();
  SnapshotContent got;
  std::map<std::string, std::vector<Key>> got_erased;
  ASSERT_OK(Load(&files_, "/s", &got, &got_erased));
  EXPECT_EQ(got_erased["table"], erased);
  EXPECT_EQ(Difference({{"table", {{7, {"*", "", ""}}}}}, got), "");
  const auto reader = Open();
  EXPECT_EQ(reader->manifest().base, 0x123u);
  EXPECT_EQ(reader->manifest().files[0].erased, 200'000);
}

TEST_F(SnapshotTest, RefusesNamesThatDoNotFit) {
  const TableSchema schema = MakeSchema(DType::kFloat32, 1);
  std::unique_ptr<SnapshotWriter> writer;
  ASSERT_OK(SnapshotWriter::Open(&files_, "/s", &writer));
  int64_t number;
  for (const std::string& name :
       {std::string(), std::string("a\nb"), std::string("\0", 1), std::string("a\x7f"),
        std::string("\xff"), std::string("\xc3"), std::string("\xed\xa0\x80")}) {
    EXPECT_EQ(writer->AddTable(name, schema, &number).code(), Code::kInvalidArgument) << name;
  }
  ASSERT_OK(writer->AddTable(" a ", schema, &number));
  const Status twice = writer->AddTable(" a ", schema, &number);
  EXPECT_EQ(twice.code(), Code::kInvalidArgument);
  EXPECT_EQ(twice.message(), "table name: got ' a ' twice; give each table its own");
  writer.reset();
  const Shards same({{"a", schema, {}}, {"a", schema, {}}});
  EXPECT_EQ(Save(&files_, "/s", same).code(), Code::kInvalidArgument);
  Manifest manifest;
  EXPECT_EQ(SaveTables(OneThread(), &files_, "/s", {{"a", {}}}, 0, &manifest).code(),
            Code::kInvalidArgument)
      << "a table of no shards";
  EXPECT_EQ(files_.Names("/s"), std::vector<std::string>{"LOCK"}) << "nothing is left of it";
}

TEST_F(SnapshotTest, RefusesWhatIsNotFinishedOrHasFailed) {
  const TableSchema schema = MakeSchema(DType::kFloat32, 1);
  std::unique_ptr<SnapshotWriter> writer;
  ASSERT_OK(SnapshotWriter::Open(&files_, "/s", &writer));
  int64_t number;
  ASSERT_OK(writer->AddTable("a", schema, &number));
  std::unique_ptr<RowsFile> file;
  EXPECT_EQ(writer->NewFile(1, &file).code(), Code::kInvalidArgument);
  EXPECT_EQ(writer->NewFile(-1, &file).code(), Code::kInvalidArgument);
  ASSERT_OK(writer->NewFile(number, &file));
  EXPECT_EQ(writer->Commit(0).code(), Code::kFailedPrecondition);
  // Rows that were lost on the way must not be taken for a whole file, whoever looks away.
  file->room().keys[0] = 1;
  files_.Inject(0, {Fault::kHalfWay, Code::kResourceExhausted});
  EXPECT_EQ(file->Write(1).code(), Code::kResourceExhausted);
  EXPECT_EQ(file->Write(1).code(), Code::kResourceExhausted);
  EXPECT_EQ(file->Finish().code(), Code::kResourceExhausted);
  EXPECT_EQ(writer->Commit(0).code(), Code::kFailedPrecondition);
  writer.reset();
  EXPECT_EQ(files_.Names("/s"), std::vector<std::string>{"LOCK"});
}

TEST_F(SnapshotTest, OneSavesAtATime) {
  const TableSchema schema = MakeSchema(DType::kFloat32, 1);
  const Shards shards({{"a", schema, RandomRows(schema, 10, 1)}});
  ASSERT_OK(Save(&files_, "/s", shards));
  std::unique_ptr<SnapshotWriter> writer;
  ASSERT_OK(SnapshotWriter::Open(&files_, "/s", &writer));
  const Status second = Save(&files_, "/s", shards);
  EXPECT_EQ(second.code(), Code::kFailedPrecondition);
  EXPECT_NE(second.message().find("is another snapshot being saved into /s?"), std::string::npos);
  ASSERT_OK(Save(&files_, "/t", shards));
  writer.reset();
  ASSERT_OK(Save(&files_, "/s", shards));
}

TEST_F(SnapshotTest, RemovesLeftoversAndNothingElse) {
  const TableSchema schema = MakeSchema(DType::kFloat32, 1);
  const Shards shards({{"a", schema, RandomRows(schema, 10, 1), 2}});
  ASSERT_OK(Save(&files_, "/s", shards));
  const std::vector<std::string> first = files_.Names("/s");
  for (const char* name : {"MANIFEST-00000000000000aa", "rows-00000000000000aa-0.dynemb", "rows-",
                           "notes.txt", "rows.dynemb"}) {
    files_.Put(JoinPath("/s", name), "x");
  }
  ASSERT_OK(Save(&files_, "/s", shards));
  const std::vector<std::string> names = files_.Names("/s");
  EXPECT_EQ(names.size(), 7u);
  for (const char* name : {"LOCK", "MANIFEST", "notes.txt", "rows-", "rows.dynemb"}) {
    EXPECT_EQ(std::count(names.begin(), names.end(), name), 1) << name;
  }
  for (const std::string& name : first) {
    const bool stays = name == "LOCK" || name == "MANIFEST";
    EXPECT_EQ(std::count(names.begin(), names.end(), name), stays) << name;
  }
}

TEST_F(SnapshotTest, AFolderWithoutASnapshotIsNotFound) {
  SnapshotContent got;
  for (const char* folder : {"/no", "/s"}) {
    const Status none = Load(&files_, folder, &got);
    EXPECT_EQ(none.code(), Code::kNotFound);
    EXPECT_NE(none.message().find(StrCat("there is no snapshot in ", folder)), std::string::npos);
    ASSERT_OK(files_.CreateFolder("/s"));
  }
}

// Runs something when the given operation of a save comes.
class InterruptedFiles : public MemoryFileSystem {
 public:
  std::function<void()> on_new_file, on_append;
  Status NewWritableFile(const std::string& path, std::unique_ptr<WritableFile>* file) override {
    if (on_new_file) on_new_file();
    std::unique_ptr<WritableFile> made;
    DYNEMB_RETURN_IF_ERROR(MemoryFileSystem::NewWritableFile(path, &made));
    *file = std::make_unique<File>(this, std::move(made));
    return Status();
  }

 private:
  class File : public WritableFile {
   public:
    File(InterruptedFiles* files, std::unique_ptr<WritableFile> file)
        : files_(files), file_(std::move(file)) {}
    Status Append(std::string_view data) override {
      if (files_->on_append) files_->on_append();
      return file_->Append(data);
    }
    Status Sync() override { return file_->Sync(); }
    Status Close() override { return file_->Close(); }

   private:
    InterruptedFiles* const files_;
    const std::unique_ptr<WritableFile> file_;
  };
};

// A delta of a table that is cleared while it is saved, before its keys are asked for or between
// two blocks, is refused: it would keep rows of the base. So is the next one.
TEST_F(SnapshotTest, ADeltaOfATableThatIsClearedMeanwhile) {
  const TableSchema schema = MakeSchema(DType::kInt32, 64);
  TableContent rows, changed;
  for (Key key = 0; key < 10'000; ++key) {  // 3 blocks
    rows[key].value = std::string(256, '1');
    if (key % 2 == 0) changed[key].value = std::string(256, '2');
  }
  for (const bool before_rows_are_read : {true, false}) {
    const Shards shards({{"a", schema, rows}});
    std::vector<TableToSave> tables = shards.named();
    const Caller table(tables[0].shards[0], HostTestMemory());
    InterruptedFiles files;
    Manifest base, delta;
    int64_t full_epoch, delta_epoch;
    ASSERT_OK(BeginEpoch(OneThread(), tables[0].shards, &full_epoch));
    ASSERT_OK(SaveTables(OneThread(), &files, "/base", tables, 0, &base));
    ASSERT_OK(table.InsertRows(changed));
    ASSERT_OK(BeginEpoch(OneThread(), tables[0].shards, &delta_epoch));
    auto& hook = before_rows_are_read ? files.on_new_file : files.on_append;
    hook = [&] { ASSERT_OK(table.Clear()); };
    tables[0].since_epoch = full_epoch;
    const Status saved = SaveTables(OneThread(), &files, "/delta", tables, base.id, &delta);
    hook = nullptr;
    EXPECT_EQ(saved.code(), Code::kFailedPrecondition) << saved.message();
    EXPECT_EQ(table.table()->size(), 0);  // which the hook has made so
    tables[0].since_epoch = delta_epoch;
    EXPECT_EQ(SaveTables(OneThread(), &files, "/next", tables, base.id, &delta).code(),
              Code::kFailedPrecondition);
  }
}

// From the moment when a clear can be seen, what has changed since before is not known.
TEST_F(SnapshotTest, AClearIsNeverSeenWithoutItsChanges) {
  const TableSchema schema = MakeSchema(DType::kInt32, 1);
  for (int round = 0; round < 200; ++round) {
    const Shards shards({{"a", schema, RandomRows(schema, 100, 1)}});
    Table* const table = shards.named()[0].shards[0];
    ASSERT_OK(table->BeginEpoch(OneThread(), 1));
    std::thread clear([&] { EXPECT_TRUE(table->Clear(OneThread()).ok()); });
    while (table->size() > 0) std::this_thread::yield();
    std::vector<Key> keys;
    EXPECT_EQ(table->ChangedKeys(OneThread(), 0, {}, &keys).code(), Code::kFailedPrecondition);
    clear.join();
  }
}

// What is erased while a delta is saved is saved as it was during the call, or as erased; not as it
// was in the base.
TEST_F(SnapshotTest, WhatIsErasedDuringADeltaIsNotOfBefore) {
  const TableSchema schema = MakeSchema(DType::kInt32, 64);
  TableContent ones, twos;
  for (Key key = 0; key < 20'000; ++key) {  // 5 blocks
    ones[key].value = std::string(256, '1');
    twos[key].value = std::string(256, '2');
  }
  const Shards shards({{"a", schema, ones}});
  std::vector<TableToSave> tables = shards.named();
  const Caller table(tables[0].shards[0], HostTestMemory());
  InterruptedFiles files;
  Manifest base, delta;
  int64_t ended;
  ASSERT_OK(BeginEpoch(OneThread(), tables[0].shards, &ended));
  ASSERT_OK(SaveTables(OneThread(), &files, "/base", tables, 0, &base));
  ASSERT_OK(table.InsertRows(twos));
  Keys gone;
  for (Key key = 0; key < 20'000; key += 2) gone.push_back(key);
  files.on_append = [&] { ASSERT_OK(table.Erase(gone)); };
  tables[0].since_epoch = ended;
  ASSERT_OK(BeginEpoch(OneThread(), tables[0].shards, &ended));
  ASSERT_OK(SaveTables(OneThread(), &files, "/delta", tables, base.id, &delta));
  files.on_append = nullptr;
  SnapshotContent content, changes;
  std::map<std::string, std::vector<Key>> erased;
  ASSERT_OK(Load(&files, "/base", &content));
  ASSERT_OK(Load(&files, "/delta", &changes, &erased));
  for (const Key key : erased["a"]) content["a"].erase(key);
  for (const auto& [key, row] : changes["a"]) content["a"][key] = row;
  EXPECT_GE(content["a"].size(), 10'000u);
  EXPECT_LT(content["a"].size(), 20'000u) << "nothing was erased in time";
  for (const auto& [key, row] : content["a"]) EXPECT_EQ(row.value[0], '2') << key;
}

// While rows are written, inserted and erased, each saved row is of one moment: its value, slot and
// meta were written equal. Rows that nobody erases are all there.
TEST_F(SnapshotTest, SavesRowsOfOneMomentWhileOthersWrite) {
  const TableSchema schema = MakeSchema(DType::kFloat64, 32, "adagrad", {kLastWriteTime});
  constexpr int64_t kKeys = 3000;
  const auto rows_of = [](Key first, Key last, int64_t number) {
    TableContent rows;
    const std::string word(reinterpret_cast<const char*>(&number), 8);
    std::string value;
    for (int i = 0; i < 32; ++i) value += word;
    for (Key key = first; key < last; ++key) rows[key] = {value, value, word};
    return rows;
  };
  const Shards shards({{"a", schema, rows_of(0, kKeys, 0)}});
  Table* const table = shards.named()[0].shards[0];
  std::atomic<bool> stop{false};
  struct Threads : std::vector<std::thread> {
    std::atomic<bool>* stop;
    ~Threads() {
      *stop = true;
      for (std::thread& thread : *this) thread.join();
    }
  } writers;
  writers.stop = &stop;
  for (int64_t w = 0; w < 2; ++w) {
    writers.emplace_back([&, w] {
      const Caller call(table, HostTestMemory());
      std::vector<Key> guests;
      for (Key key = kKeys; key < kKeys + 500; ++key) guests.push_back(key * 2 + w);
      for (int64_t number = 1; !stop; ++number) {
        EXPECT_TRUE(call.InsertRows(rows_of(w * 500, w * 500 + 1000, number * 2 + w)).ok());
        EXPECT_TRUE(call.InsertRows(rows_of(kKeys * 2 + w, kKeys * 2 + w + 700, number)).ok());
        EXPECT_TRUE(call.Erase(guests).ok());
      }
    });
  }
  for (int64_t save = 0; save < 8 * SoakFactor(); ++save) {
    SnapshotContent got;
    Manifest manifest;
    ASSERT_OK(SaveTables(HostTestMemory()->context(), &files_, "/s", shards.named(), 0, &manifest));
    ASSERT_OK(Load(&files_, "/s", &got));
    for (Key key = 0; key < kKeys; ++key) ASSERT_EQ(got["a"].count(key), 1u) << key;
    for (const auto& [key, row] : got["a"]) {
      std::string value;
      for (int i = 0; i < 32; ++i) value += row.meta;
      ASSERT_EQ(row.value, value) << key;
      ASSERT_EQ(row.slots, value) << key;
    }
  }
}

}  // namespace
}  // namespace dynemb

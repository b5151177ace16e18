// Loading: what a snapshot holds is in the shards afterwards, each row in the one that it belongs
// to, whatever the shards and threads were on either side; and what is damaged is an error.
#include "cc/core/snapshot/loader.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "cc/core/snapshot/writer.h"
#include "cc/core/table/host_table.h"
#include "cc/core/testing/memory_file_system.h"
#include "cc/core/testing/snapshots.h"
#include "gtest/gtest.h"

namespace dynemb {
namespace {

constexpr int64_t kAll = std::numeric_limits<int64_t>::max();

// Whether rows are all read before the first is put in place.
class LoaderTest : public ::testing::TestWithParam<bool> {
 protected:
  std::unique_ptr<SnapshotReader> Open() {
    std::unique_ptr<SnapshotReader> reader;
    const Status opened = SnapshotReader::Open(&files_, "/s", &reader);
    EXPECT_TRUE(opened.ok()) << opened.message();
    return reader;
  }
  // All of the snapshot's first table, on several threads.
  Status LoadAll(const Shards& shards, const Span<const int32_t>* shard_ids = nullptr) {
    const auto reader = Open();
    const std::vector<Table*>& to = shards.named()[0].shards;
    SnapshotPlace place;
    std::vector<BlockEntry> blocks;
    // Every other context of the test memory has threads.
    Context context = HostTestMemory()->context();
    if (context.executor->concurrency() == 1) context = HostTestMemory()->context();
    DYNEMB_RETURN_IF_ERROR(reader->List(0, kAll, &place, &blocks));
    if (GetParam() && shard_ids == nullptr) {
      TableChanges changes;
      DYNEMB_RETURN_IF_ERROR(changes.ReadErased(context, *reader, 0));
      const int64_t half = static_cast<int64_t>(blocks.size()) / 2;
      DYNEMB_RETURN_IF_ERROR(changes.ReadRows(context, *reader, {blocks.data(), half}));
      DYNEMB_RETURN_IF_ERROR(changes.ReadRows(
          context, *reader, {blocks.data() + half, static_cast<int64_t>(blocks.size()) - half}));
      return changes.Apply(context, to, nullptr);
    }
    DYNEMB_RETURN_IF_ERROR(LoadErased(context, *reader, 0, to));
    return LoadRows(context, *reader, blocks, shard_ids, to, nullptr);
  }
  // A writer of one table with one file, and what to call to make a snapshot of it.
  std::unique_ptr<RowsFile> NewFile(const TableSchema& schema) {
    int64_t number;
    std::unique_ptr<RowsFile> file;
    EXPECT_TRUE(SnapshotWriter::Open(&files_, "/s", &writer_).ok());
    EXPECT_TRUE(writer_->AddTable("t", schema, &number).ok());
    EXPECT_TRUE(writer_->NewFile(number, &file).ok());
    return file;
  }

  MemoryFileSystem files_;
  std::unique_ptr<SnapshotWriter> writer_;
};

INSTANTIATE_TEST_SUITE_P(ReadBefore, LoaderTest, ::testing::Bool());

TableContent ContentOf(const Table& shard) { return ExportAll(shard, HostTestMemory(), 1000); }

TEST_P(LoaderTest, RowsGoToTheirShards) {
  const TableSchema schema =
      MakeSchema(DType::kFloat32, 64, "adagrad", {MetaField::kLastWriteTime});
  const TableContent rows = RandomRows(schema, 10'000, 1);  // 5 blocks
  for (const auto& [before, after] :
       std::vector<std::pair<int64_t, int64_t>>{{1, 1}, {1, 3}, {3, 1}, {2, 5}}) {
    SCOPED_TRACE(StrCat(before, " to ", after));
    ASSERT_OK(Save(&files_, "/s", Shards({{"t", schema, rows, before}})));
    const Shards loaded({{"t", schema, {}, after}});
    ASSERT_OK(LoadAll(loaded));
    for (int64_t s = 0; s < after; ++s) {
      TableContent want;
      for (const auto& [key, row] : rows) {
        if (((key % after) + after) % after == s) want[key] = row;
      }
      const Table& shard = *loaded.named()[0].shards[static_cast<size_t>(s)];
      EXPECT_EQ(Difference(want, ContentOf(shard)), "");
    }
  }
}

// Shard ids are of the keys in the order of the blocks, which ReadKeys gives; pieces of any size
// are together the whole.
TEST_P(LoaderTest, RowsGoToTheShardsThatACallerSays) {
  const TableSchema schema = MakeSchema(DType::kFloat32, 16);
  const TableContent rows = RandomRows(schema, 50'000, 2);  // about 4 blocks in 2 files
  ASSERT_OK(Save(&files_, "/s", Shards({{"t", schema, rows, 2}})));
  const auto reader = Open();
  const auto shard_id = [](Key key) { return static_cast<int32_t>((key >> 3) & 1); };
  for (const int64_t limit : {int64_t{1}, int64_t{20'000}, kAll}) {
    SCOPED_TRACE(limit);
    const Shards loaded({{"t", schema, {}, 2}});
    int64_t pieces = 0;
    for (SnapshotPlace place;; ++pieces) {
      std::vector<BlockEntry> blocks;
      std::vector<int32_t> shard_ids;
      ASSERT_OK(reader->List(0, limit, &place, &blocks));
      if (blocks.empty()) break;
      for (const BlockEntry& block : blocks) {
        std::vector<Key> keys(static_cast<size_t>(block.records));
        ASSERT_OK(reader->ReadKeys(block, keys.data()));
        for (const Key key : keys) shard_ids.push_back(shard_id(key));
      }
      const Span<const int32_t> span = shard_ids;
      ASSERT_OK(LoadRows(OneThread(), *reader, blocks, &span, loaded.named()[0].shards, nullptr));
    }
    EXPECT_EQ(pieces, limit == 1 ? 4 : limit == kAll ? 1 : 2);
    for (int32_t s = 0; s < 2; ++s) {
      TableContent want;
      for (const auto& [key, row] : rows) {
        if (shard_id(key) == s) want[key] = row;
      }
      const Table& shard = *loaded.named()[0].shards[static_cast<size_t>(s)];
      EXPECT_EQ(Difference(want, ContentOf(shard)), "");
    }
  }
  const Shards untouched({{"t", schema, {}, 2}});
  const std::vector<int32_t> few(49'999), wrong(50'000, 2);
  for (const auto& [shard_ids, why] :
       {std::make_pair(&few, "shard_ids: got 49999, want one per row"),
        std::make_pair(&wrong, "partitioner: got shard 2 for key")}) {
    const Span<const int32_t> span = *shard_ids;
    const Status refused = LoadAll(untouched, &span);
    EXPECT_EQ(refused.code(), Code::kInvalidArgument);
    EXPECT_EQ(refused.message().rfind(why, 0), 0u) << refused.message();
  }
  for (const Table* shard : untouched.named()[0].shards) EXPECT_EQ(shard->size(), 0);
}

// FORMAT.md: erased keys go before the rows of the delta come, wherever their blocks stand.
TEST_P(LoaderTest, KeysAreErasedBeforeRowsCome) {
  const TableSchema schema = MakeSchema(DType::kInt8, 1);
  const Shards table(
      {{"t", schema, {{1, {"a", "", ""}}, {2, {"b", "", ""}}, {3, {"c", "", ""}}}, 2}});
  const auto file = NewFile(schema);
  file->room().keys[0] = 2;
  file->room().values[0][0] = 'B';
  ASSERT_OK(file->Write(1));
  const std::vector<Key> erased = {2, 3, 9, 3};
  ASSERT_OK(file->AddErased(erased));
  ASSERT_OK(file->Finish());
  ASSERT_OK(writer_->Commit(7));
  const auto reader = Open();
  ASSERT_OK(LoadErased(OneThread(), *reader, 0, table.named()[0].shards));
  EXPECT_EQ(Difference({{2, {"b", "", ""}}}, ContentOf(*table.named()[0].shards[0])), "")
      << "one that comes again is never missing";
  EXPECT_EQ(Difference({{1, {"a", "", ""}}}, ContentOf(*table.named()[0].shards[1])), "");
  ASSERT_OK(LoadAll(table));
  EXPECT_EQ(Difference({{2, {"B", "", ""}}}, ContentOf(*table.named()[0].shards[0])), "");
  EXPECT_EQ(Difference({{1, {"a", "", ""}}}, ContentOf(*table.named()[0].shards[1])), "");
}

// What a follower is sent: rows of values alone, keys that are erased, in any shard; of no folder.
TEST(ApplyBlockTest, ErasesKeysAndPutsRowsIn) {
  const TableSchema schema = MakeSchema(DType::kFloat32, 2, "adagrad", {MetaField::kLastWriteTime});
  const TableSchema of_values = MakeSchema(DType::kFloat32, 2);
  const TableContent before = RandomRows(schema, 300, 5);
  TableContent sent = RandomRows(of_values, 200, 6), want = before;
  const TableContent another = RandomRows(of_values, 1, 7);
  sent[before.begin()->first] = another.begin()->second;  // erased, and comes again
  std::vector<Key> keys, erased = {before.begin()->first, 1'000'000, 1'000'000};
  std::string values, initial(8, '\0');
  FillInitialSlots(schema, initial.data());
  for (const auto& [key, row] : before) {
    if (key % 3 == 0) erased.push_back(key);
  }
  for (const Key key : erased) want.erase(key);
  for (const auto& [key, row] : sent) {
    keys.push_back(key);
    values += row.value;
    want[key] = {row.value, initial, ""};
  }
  ChangeBlock block;
  block.schema = &of_values;
  block.rows.keys = keys;
  block.rows.values = {values.data(), static_cast<int64_t>(keys.size()), 8};
  block.erased = erased;
  for (const int64_t shards : {1, 3}) {
    MemoryFileSystem files;
    std::unique_ptr<SnapshotReader> reader;
    SnapshotPlace place;
    std::vector<BlockEntry> blocks;
    const Shards table({{"t", schema, {}, shards}});
    const std::vector<Table*>& to = table.named()[0].shards;
    ASSERT_OK(Save(&files, "/s", Shards({{"t", schema, before}})));
    ASSERT_OK(SnapshotReader::Open(&files, "/s", &reader));
    ASSERT_OK(reader->List(0, kAll, &place, &blocks));
    ASSERT_OK(LoadRows(OneThread(), *reader, blocks, nullptr, to, nullptr));
    ASSERT_OK(ApplyBlock(HostTestMemory()->context(), block, nullptr, to, nullptr));
    TableContent got;
    for (const Table* shard : to) got.merge(ContentOf(*shard));
    for (const auto& [key, row] : sent) got[key].meta.clear();  // as in a new row
    EXPECT_EQ(Difference(want, got), "");
  }
}

TEST_P(LoaderTest, SlotsAreAsTheTableHasThem) {
  const TableSchema with = MakeSchema(DType::kFloat32, 2, "adagrad"),
                    without = MakeSchema(DType::kFloat32, 2);
  const TableContent rows = RandomRows(with, 100, 3);
  TableContent bare = rows, fresh = rows;
  std::string initial(8, '\0');
  FillInitialSlots(with, initial.data());
  for (auto& [key, row] : bare) row.slots.clear();
  for (auto& [key, row] : fresh) row.slots = initial;
  ASSERT_OK(Save(&files_, "/s", Shards({{"t", with, rows}})));
  const Shards left_out({{"t", without, {}}});
  ASSERT_OK(LoadAll(left_out));
  EXPECT_EQ(Difference(bare, ContentOf(*left_out.named()[0].shards[0])), "");
  ASSERT_OK(Save(&files_, "/s", left_out));
  const Shards made({{"t", with, {}}});
  ASSERT_OK(LoadAll(made));
  EXPECT_EQ(Difference(fresh, ContentOf(*made.named()[0].shards[0])), "");
  const Shards other({{"t", MakeSchema(DType::kFloat32, 3), {}}});
  EXPECT_EQ(LoadAll(other).code(), Code::kFailedPrecondition);
}

// A flipped bit of a header, of rows, of the block that ends a file.
TEST_P(LoaderTest, DamageIsAnError) {
  const TableSchema schema = MakeSchema(DType::kFloat32, 64);
  ASSERT_OK(Save(&files_, "/s", Shards({{"t", schema, RandomRows(schema, 10'000, 4), 2}})));
  const auto reader = Open();
  for (const SnapshotFile& file : reader->manifest().files) {
    const std::string path = JoinPath("/s", file.name), good = files_.Get(path);
    for (size_t byte :
         {size_t{0}, size_t{50}, good.size() / 2, good.size() - 50, good.size() - 1}) {
      std::string bad = good;
      bad[byte] = static_cast<char>(bad[byte] ^ 4);
      files_.Put(path, bad);
      const Status loaded = LoadAll(Shards({{"t", schema, {}, 3}}));
      EXPECT_EQ(loaded.code(), Code::kDataLoss) << byte;
      EXPECT_NE(loaded.message().find(file.name), std::string::npos) << loaded.message();
    }
    files_.Put(path, good);
  }
  ASSERT_OK(LoadAll(Shards({{"t", schema, {}, 3}})));
}

}  // namespace
}  // namespace dynemb

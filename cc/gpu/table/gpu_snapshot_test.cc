// Snapshots of GPU tables are those of tables in host memory: each reads what the other has saved,
// to the last bit. On the GPU, if there is one, and on the host.
#include <memory>
#include <string>
#include <vector>

#include "cc/core/snapshot/loader.h"
#include "cc/core/snapshot/reader.h"
#include "cc/core/snapshot/writer.h"
#include "cc/core/table/host_table.h"
#include "cc/core/testing/caller.h"
#include "cc/core/testing/memory_file_system.h"
#include "cc/core/testing/snapshots.h"
#include "cc/gpu/table/testing/gpu_harness.h"
#include "gtest/gtest.h"

namespace dynemb {
namespace {

class GpuSnapshotTest : public testing::TestWithParam<MemorySpace> {
 protected:
  void SetUp() override {
    if (GetParam() == MemorySpace::kHost) return;
    // For want of a GPU; the message says why there is none.
    if (const Status status = GpuForTests(); !status.ok()) GTEST_SKIP() << status.message();
  }
  TableHarness gpu() const {
    return GetParam() == MemorySpace::kHost ? GpuOnHostThroughHostHarness()
                                            : GpuThroughHostHarness();
  }

  static std::unique_ptr<Table> MakeHost(const TableSchema& schema) {
    std::unique_ptr<Table> table;
    const Status status = MakeHostTable(schema, &table);
    EXPECT_TRUE(status.ok()) << status.message();
    return table;
  }

  void Save(const std::string& folder, const std::vector<Table*>& shards, int64_t since = -1,
            uint64_t base = 0) {
    TableToSave table = {"t", shards};
    table.since_epoch = since;
    ASSERT_OK(SaveTables(OneThread(), &files_, folder, {table}, base, &manifest_));
  }
  void Restore(const std::string& folder, const std::vector<Table*>& shards) {
    std::unique_ptr<SnapshotReader> reader;
    ASSERT_OK(SnapshotReader::Open(&files_, folder, &reader));
    ASSERT_OK(LoadErased(OneThread(), *reader, 0, shards));
    SnapshotPlace place;
    std::vector<BlockEntry> blocks;
    do {
      ASSERT_OK(reader->List(0, 1000, &place, &blocks));
      ASSERT_OK(LoadRows(OneThread(), *reader, blocks, nullptr, shards, nullptr));
    } while (!blocks.empty());
  }
  static TableContent Content(const std::vector<Table*>& shards) {
    TableContent all;
    for (const Table* shard : shards) {
      for (auto& row : ExportAll(*shard, HostTestMemory(), 700)) all.insert(row);
    }
    return all;
  }

  MemoryFileSystem files_;
  Manifest manifest_;
};

INSTANTIATE_TEST_SUITE_P(Spaces, GpuSnapshotTest,
                         testing::Values(MemorySpace::kHost, MemorySpace::kDevice),
                         [](const auto& info) {
                           return info.param == MemorySpace::kHost ? "host" : "device";
                         });

TEST_P(GpuSnapshotTest, EitherRestoresTheOther) {
  for (const TableSchema& schema :
       {MakeSchema(DType::kFloat32, 8, "adam", {MetaField::kLastWriteTime, MetaField::kScore}),
        MakeSchema(DType::kBFloat16, 3, "rowwise_adagrad"), MakeSchema(DType::kInt64, 5),
        MakeSchema(DType::kFloat16, 1, "adagrad", {MetaField::kCount})}) {
    SCOPED_TRACE(schema.ToText());
    const std::unique_ptr<Table> host = MakeHost(schema);
    const TableContent rows = RandomRows(schema, 5000, 17);
    ASSERT_OK(Caller(host.get(), HostTestMemory()).InsertRows(rows));
    // To two shards on the GPU, and from there to three in host memory.
    Save("/host", {host.get()});
    const std::unique_ptr<Table> a = gpu().Make(schema), b = gpu().Make(schema);
    Restore("/host", {a.get(), b.get()});
    EXPECT_EQ(Difference(rows, Content({a.get(), b.get()})), "");
    EXPECT_GT(a->size(), 2000);
    Save("/gpu", {a.get(), b.get()});
    std::vector<std::unique_ptr<Table>> back;
    for (int i = 0; i < 3; ++i) back.push_back(MakeHost(schema));
    const std::vector<Table*> shards = {back[0].get(), back[1].get(), back[2].get()};
    Restore("/gpu", shards);
    EXPECT_EQ(Difference(rows, Content(shards)), "");
  }
}

TEST_P(GpuSnapshotTest, DeltasHaveWhatHasChanged) {
  const TableSchema schema = MakeSchema(DType::kFloat32, 4, "sgd", {MetaField::kLastWriteTime});
  const std::unique_ptr<Table> table = gpu().Make(schema);
  const Caller call(table.get(), HostTestMemory());
  ASSERT_OK(call.InsertRows(RandomRows(schema, 3000, 5)));
  ASSERT_OK(table->BeginEpoch(HostTestMemory()->context(), 1));
  Save("/base", {table.get()});
  ASSERT_OK(table->BeginEpoch(HostTestMemory()->context(), 2));
  Keys changed, gone;
  for (const auto& [key, row] : Content({table.get()})) {
    if (key % 10 == 0) changed.push_back(key);
    if (key % 10 == 1) gone.push_back(key);
  }
  changed.push_back(1'000'000);
  ASSERT_OK(call.Apply(changed, Floats(changed.size() * 4, 1.0f), schema.rule, {0.5, 1, 0}, {9}));
  ASSERT_OK(call.Erase(gone));
  const uint64_t base = manifest_.id;
  Save("/delta", {table.get()}, 1, base);
  SnapshotContent content;
  std::map<std::string, std::vector<Key>> erased;
  ASSERT_OK(Load(&files_, "/delta", &content, &erased));
  EXPECT_EQ(content["t"].size(), changed.size());
  EXPECT_EQ(erased["t"].size(), gone.size());
  const std::unique_ptr<Table> host = MakeHost(schema);
  Restore("/base", {host.get()});
  Restore("/delta", {host.get()});
  EXPECT_EQ(Difference(Content({table.get()}), Content({host.get()})), "");
}

}  // namespace
}  // namespace dynemb

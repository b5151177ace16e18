// The bound of the bytes of a table's files on disk, beside tables in memory.
#include <algorithm>
#include <string>

#include "cc/core/storage/testing/opened.h"
#include "cc/core/storage/testing/twins.h"
#include "cc/core/testing/caller.h"
#include "gtest/gtest.h"

namespace dynemb {
namespace {

constexpr int64_t kMaxBytes = 400'000;

TableOptions Bounded(const std::string& policy, int64_t max_bytes = kMaxBytes) {
  TableOptions options;
  options.max_bytes = max_bytes;
  EXPECT_TRUE(EvictionPolicy::Parse(policy, &options.eviction).ok());
  return options;
}

DiskFolder::Options Folders(int64_t max_bytes = kMaxBytes) {
  DiskFolder::Options folders = {{"/a", "/b"}};
  folders.max_bytes = max_bytes;
  return folders;
}

int64_t BytesOnDisk(const MemoryFileSystem& files) {
  int64_t bytes = 0;
  for (const std::string folder : {"/a", "/b"}) {
    for (const std::string& name : files.Names(folder)) {
      if (name.find("tier-") != 0) continue;
      bytes += static_cast<int64_t>(files.Get(folder + "/" + name).size());
    }
  }
  return bytes;
}

Keys KeysFrom(Key first, int64_t n) {
  Keys keys;
  for (Key key = first; key < first + n; ++key) keys.push_back(key);
  return keys;
}

// How many rows of TwinSchema(dim, rule) there may be.
int64_t RowsOf(const TableSchema& schema) {
  return kMaxBytes / (4 * (24 + RowLayout(schema).row_bytes));
}

// Whatever is written, erased and flushed, before and after openings: rows leave as they do of a
// table in memory of so many rows, and no call is an error.
TEST(DiskBoundTest, RowsLeaveSoThatItHolds) {
  for (const std::string policy : {"lru", "lfu"}) {
    const TableOptions options = Bounded(policy);
    const TableSchema schema = TwinSchema(2, "adam", options);
    TableOptions in_memory = options;
    in_memory.max_bytes = -1;
    in_memory.max_rows = RowsOf(schema);
    ASSERT_GT(in_memory.max_rows, 1'000);
    ASSERT_LT(in_memory.max_rows, 2'048);  // the same rows leave
    MemoryFileSystem files;
    int64_t step = 0;
    for (int round = 0; round < 4; ++round) {
      SCOPED_TRACE(StrCat(policy, ", round ", round));
      Opened opened;
      ASSERT_OK(Open(&files, schema, 150, &opened, 1, Folders(), options));
      TieredTable* const tiered = opened.tiered();
      EXPECT_EQ(tiered->max_rows(), in_memory.max_rows);
      Twins twins(std::move(opened.shards[0]), static_cast<uint64_t>(round), in_memory, step);
      int64_t most = 0;
      for (int i = 0; i < 250; ++i) {
        ASSERT_OK(twins.Call(4'000, 200));
        most = std::max(most, BytesOnDisk(files));
        ASSERT_LE(most, kMaxBytes);
        if (i % 50 == 49) {
          ASSERT_OK(Flush({tiered}, nullptr, opened.storage.disk.get(), i));
          twins.Compare();
        }
      }
      EXPECT_GT(most, kMaxBytes / 3) << "too low a limit of rows";
      EXPECT_GT(tiered->counters().evicted, 1'000);
      step = twins.step();
    }
  }
}

// Without a policy a call that needs more room is an error that changes nothing; the rows that
// there are can be trained for ever, and new ones come when others have gone.
TEST(DiskBoundTest, ACallWithoutRoomIsAnError) {
  const TableOptions options = Bounded("");
  const TableSchema schema = TwinSchema(2, "adam", options);
  const int64_t most = RowsOf(schema);
  MemoryFileSystem files;
  Opened opened;
  ASSERT_OK(Open(&files, schema, 150, &opened, 1, Folders(), options));
  const Caller call(opened.tiered(), HostTestMemory());
  ASSERT_OK(call.Upsert(KeysFrom(0, most), Floats(static_cast<size_t>(2 * most), 1)));
  const TableContent before = call.Export();
  const Status full = call.Upsert(KeysFrom(most - 5, 6), Floats(12, 2));
  EXPECT_EQ(full.code(), Code::kResourceExhausted);
  EXPECT_EQ(full.message(),
            StrCat("Disk(max_bytes): got 1 keys without a row, for ", most, " rows of at most ",
                   most, "; want a larger Disk(max_bytes), or an eviction policy"));
  EXPECT_EQ(Difference(before, call.Export()), "");
  for (int i = 0; i < 60; ++i) {
    const Keys keys = KeysFrom(most * (i % 7) / 8, most / 8);
    ASSERT_OK(call.Apply(keys, Floats(2 * keys.size(), 1), schema.rule, UsualHyper("adam", i + 1)));
    ASSERT_LE(BytesOnDisk(files), kMaxBytes);
    if (i % 10 == 9) ASSERT_OK(opened.Flush(i));
    ASSERT_LE(BytesOnDisk(files), kMaxBytes);
  }
  ASSERT_OK(call.Erase(KeysFrom(0, 100)));
  ASSERT_OK(call.Upsert(KeysFrom(most, 100), Floats(200, 2)));
  EXPECT_EQ(opened.tiered()->size(), most);
}

// Rows get slots: those for which there is room then, or none does.
TEST(DiskBoundTest, ALargerSchemaHasFewerRows) {
  for (const std::string policy : {"", "lru"}) {
    const TableOptions options = Bounded(policy);
    const TableSchema plain = TwinSchema(2, "", options), adam = TwinSchema(2, "adam", options);
    MemoryFileSystem files;
    Opened opened;
    ASSERT_OK(Open(&files, plain, 150, &opened, 1, Folders(), options));
    {
      const Caller call(opened.tiered(), HostTestMemory());
      for (Key key = 0; key < RowsOf(plain); ++key) ASSERT_OK(call.Upsert({key}, {1, 2}, {key}));
    }
    std::unique_ptr<RowMove> move;
    const Status prepared = opened.shards[0]->PrepareMove(OneThread(), adam, &move);
    if (policy.empty()) {
      EXPECT_EQ(prepared.code(), Code::kResourceExhausted);
      EXPECT_EQ(prepared.message().find("Disk(max_bytes): got "), 0u) << prepared.message();
      EXPECT_EQ(opened.tiered()->size(), RowsOf(plain));
      continue;
    }
    ASSERT_OK(prepared);
    opened.shards[0] = move->Run(OneThread());
    EXPECT_EQ(opened.tiered()->size(), RowsOf(adam));
    EXPECT_EQ(opened.tiered()->max_rows(), RowsOf(adam));
    EXPECT_LE(BytesOnDisk(files), kMaxBytes);
  }
}

// The bytes that are written are bounded too, here of a table whose limit of rows is far away.
TEST(DiskBoundTest, NoFileHasMoreThanThereMayBe) {
  constexpr int64_t kLittle = 30'000;
  const TableSchema schema = TwinSchema(2, "");
  MemoryFileSystem files;
  Opened opened;
  ASSERT_OK(Open(&files, schema, 150, &opened, 1, Folders(kLittle)));
  const Caller call(opened.tiered(), HostTestMemory());
  ASSERT_OK(call.Upsert(KeysFrom(0, 300), Floats(600, 1)));
  ASSERT_OK(opened.Flush(1));
  const auto bounded = [&] { return BytesOnDisk(files) <= kLittle; };
  Status status;
  int64_t rows = 300;
  for (; status.ok(); rows += 50) {
    ASSERT_LT(rows, 5'000);
    status = call.Upsert(KeysFrom(rows, 50), Floats(100, static_cast<float>(rows)));
    ASSERT_TRUE(bounded());
  }
  EXPECT_EQ(status.code(), Code::kResourceExhausted);
  EXPECT_NE(status.message().find("in files of at most Disk(max_bytes=30000)"), std::string::npos)
      << status.message();
  const TableContent content = call.Export();
  EXPECT_GE(static_cast<int64_t>(content.size()), rows - 50);
  EXPECT_EQ(opened.Flush(2).code(), Code::kResourceExhausted);
  EXPECT_TRUE(bounded());
  EXPECT_EQ(Difference(content, call.Export()), "");
  EXPECT_EQ(opened.storage.disk->flushed_step(), 1);
  ASSERT_OK(call.Erase(KeysFrom(100, rows)));
  ASSERT_OK(opened.Flush(3));
  ASSERT_OK(call.Upsert(KeysFrom(0, 300), Floats(600, 9)));
  ASSERT_OK(opened.Flush(4));
  EXPECT_TRUE(bounded());
}

TEST(DiskBoundTest, AFolderOfMoreBytesIsNotOpened) {
  const TableSchema schema = TwinSchema(2, "");
  MemoryFileSystem files;
  Opened opened;
  ASSERT_OK(Open(&files, schema, 150, &opened, 1, Folders()));
  ASSERT_OK(Caller(opened.tiered(), HostTestMemory()).Upsert(KeysFrom(0, 500), Floats(1000, 1)));
  ASSERT_OK(opened.Flush(1));
  opened = Opened();
  const int64_t bytes = BytesOnDisk(files);
  const Status more = Open(&files, schema, 150, &opened, 1, Folders(bytes - 1));
  EXPECT_EQ(more.code(), Code::kFailedPrecondition);
  EXPECT_NE(
      more.message().find(StrCat("the last flush has ", bytes, " bytes, got Disk(max_bytes=")),
      std::string::npos)
      << more.message();
  ASSERT_OK(Open(&files, schema, 150, &opened, 1, Folders(bytes)));
  EXPECT_EQ(ContentOf(opened).size(), 500u);
}

}  // namespace
}  // namespace dynemb

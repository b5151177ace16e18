// What tables over files do beyond the contract: counters, space, faults, damage, who has a folder;
// and the index alone.
#include <algorithm>
#include <fstream>
#include <map>
#include <numeric>
#include <random>
#include <string>

#include "cc/core/storage/disk_index.h"
#include "cc/core/storage/testing/tiered_harness.h"
#include "cc/core/storage/testing/twins.h"
#include "cc/core/storage/tiers.h"
#include "cc/core/table/host_table.h"
#include "cc/core/testing/caller.h"
#include "gtest/gtest.h"

namespace dynemb {
namespace {

TEST(DiskIndexTest, AgreesWithAMap) {
  std::mt19937_64 random(1);
  // Hashes that agree in their high bits lie in one place; the ends of the range are ends here too.
  std::vector<uint64_t> hashes = {0, 1, ~uint64_t{0}, ~uint64_t{1}, uint64_t{1} << 58};
  for (int i = 0; i < 300; ++i) hashes.push_back(~uint64_t{0} - static_cast<uint64_t>(i));
  for (int i = 0; i < 300; ++i) hashes.push_back((uint64_t{7} << 40) + static_cast<uint64_t>(i));
  while (hashes.size() < 3000) hashes.push_back(random());
  DiskIndex index(2);
  std::map<uint64_t, Location> want;
  const auto numbers_of = [](Location location) {
    const int64_t number = static_cast<int64_t>(location);
    return std::vector<int64_t>{3 * number, -number};
  };
  for (int i = 0; i < 100'000; ++i) {
    const uint64_t hash = hashes[random() % hashes.size()];
    const auto found = want.find(hash);
    const DiskIndex::Entry entry = index.FindEntry(hash);
    ASSERT_EQ(entry.location, found == want.end() ? kNowhere : found->second);
    if (found != want.end()) {
      ASSERT_EQ(std::vector<int64_t>(entry.numbers, entry.numbers + 2), numbers_of(found->second));
    }
    if (random() % 2 == 0) {
      const Location location = random() % kNowhere;
      Location before;
      ASSERT_TRUE(index.Put(hash, location, numbers_of(location).data(), &before));
      ASSERT_EQ(before, found == want.end() ? kNowhere : found->second);
      want[hash] = location;
    } else {
      ASSERT_EQ(index.Remove(hash), found == want.end() ? kNowhere : found->second);
      want.erase(hash);
    }
    ASSERT_EQ(index.size(), static_cast<int64_t>(want.size()));
    if (i % 5000 != 0) continue;
    for (const uint64_t from : {uint64_t{0}, hashes[random() % hashes.size()]}) {
      std::vector<std::pair<uint64_t, Location>> got;
      for (int part = DiskIndex::PartOf(from); part < DiskIndex::kParts; ++part) {
        index.ForEach(part, std::max(from, static_cast<uint64_t>(part) << 58),
                      [&](const DiskIndex::Entry& entry) {
                        got.emplace_back(entry.hash, entry.location);
                        EXPECT_EQ(entry.numbers[0], numbers_of(entry.location)[0]);
                        EXPECT_EQ(entry.numbers[1], numbers_of(entry.location)[1]);
                        return true;
                      });
      }
      ASSERT_EQ(got,
                (std::vector<std::pair<uint64_t, Location>>(want.lower_bound(from), want.end())));
    }
  }
  index.Clear();
  EXPECT_EQ(index.size(), 0);
  EXPECT_EQ(index.Find(hashes[0]), kNowhere);
}

// As a folder that is opened again has them. A linear search takes minutes for this.
TEST(DiskIndexTest, TakesEntriesInAscendingOrder) {
  std::mt19937_64 random(4);
  std::vector<uint64_t> hashes(2'000'000);
  for (uint64_t& hash : hashes) hash = random();
  std::sort(hashes.begin(), hashes.end());
  for (const int64_t reserved : {0, 1'000'000, 2'000'000}) {
    DiskIndex index;
    ASSERT_TRUE(index.Reserve(reserved));
    for (size_t i = 0; i < hashes.size(); ++i) ASSERT_TRUE(index.Put(hashes[i], i));
    for (size_t i = 0; i < hashes.size(); ++i) ASSERT_EQ(index.Find(hashes[i]), i);
    EXPECT_EQ(index.size(), 2'000'000);
    EXPECT_LE(index.memory_bytes(), 18 * index.size());
  }
}

TEST(DiskIndexTest, HashesAreOfOneKeyEach) {
  std::mt19937_64 random(5);
  for (int i = 0; i < 1000; ++i) {
    const Key key = i < 64 ? static_cast<Key>(uint64_t{1} << i) : static_cast<Key>(random());
    EXPECT_EQ(KeyOfDiskHash(DiskHash(key)), key);
    EXPECT_EQ(DiskIndex::PartOf(DiskHash(key)),
              static_cast<int>(Mix64(static_cast<uint64_t>(key)) >> 58));
  }
}

TEST(DiskIndexTest, TakesAtMost18BytesARow) {
  std::mt19937_64 random(2);
  DiskIndex index;
  for (int i = 1; i <= 400'000; ++i) {
    ASSERT_TRUE(index.Put(random(), 1));
    if (i > 200'000 && i % 10'000 == 0) {
      EXPECT_LE(index.memory_bytes(), 18 * index.size());
    }
  }
}

TEST(TieredTableTest, CountsWhatATableInMemoryCounts) {
  for (const uint64_t seed : {1, 2, 3}) {
    const auto files = std::make_shared<MemoryFileSystem>();
    const TableSchema schema = TwinSchema(3, "adam");
    std::unique_ptr<Table> table;
    ASSERT_OK(MakeTieredTableOn(files, schema, 30, &table));
    Twins twins(std::move(table), seed);
    for (int i = 0; i < 600; ++i) ASSERT_OK(twins.Call(500, 60));
    twins.Compare();
    twins.CompareCounters();
    const TierStats stats = twins.tiered()->tier_stats();
    EXPECT_LE(stats.rows_above, 30);
    EXPECT_EQ(stats.rows_above + stats.rows_below, twins.tiered()->size());
    EXPECT_GT(stats.misses, 0);
    EXPECT_GT(stats.hits, 0);
    EXPECT_GT(stats.rows_read, 0);
    EXPECT_GT(stats.rows_written, 0);
  }
}

// A lookup has read a row, and before it is brought up another comes to be at its place on disk.
TEST(TiersTest, ARowIsNotBroughtUpOverANewerOneAtItsPlace) {
  const auto files = std::make_shared<MemoryFileSystem>();
  StorageOptions storage;
  storage.max_rows = 10;
  ASSERT_OK(DiskFolder::Open(files.get(), {{"/tiers"}}, &storage.disk));
  std::unique_ptr<Tiers> tiers;
  ASSERT_OK(Tiers::Make(TwinSchema(1, ""), TableOptions(), storage, &tiers));
  const uint64_t hash = DiskHash(7);
  const auto put_below = [&](float value) {
    EXPECT_TRUE(Caller(tiers->above(), HostTestMemory()).Upsert({7}, {value}).ok());
    EXPECT_TRUE(tiers->AllDown().ok());
    return tiers->below()->Find(hash);
  };
  const Location location = put_below(1);
  const uint64_t number = tiers->below()->NumberOf(location);
  std::vector<char> row(static_cast<size_t>(tiers->layout().row_bytes));
  ASSERT_OK(tiers->below()->Read({&location, 1}, row.data()));
  ASSERT_OK(tiers->Clear(OneThread()));
  ASSERT_EQ(put_below(2), location);
  std::vector<Key> keys = {7};
  ASSERT_OK(tiers->BringUp({location}, {number}, &keys, &row));
  EXPECT_EQ(tiers->above()->size(), 0);
  ASSERT_OK(tiers->BringUp({location}, {tiers->below()->NumberOf(location)}, &keys, &row));
  EXPECT_EQ(tiers->above()->size(), 1);
}

// Rows that come and leave in the order of their segments would make the memory of each as large as
// the most rows that it ever had, twice its share.
TEST(TieredTableTest, KeysWithoutEndKeepWithinTheBytesOfMemory) {
  constexpr int64_t kMaxBytes = 8 << 20, kBatch = 3000;
  MemoryFileSystem files;
  StorageOptions storage;
  storage.max_bytes = kMaxBytes;
  ASSERT_OK(DiskFolder::Open(&files, {{"tiers"}}, &storage.disk));
  std::unique_ptr<Table> table;
  const TableSchema schema = TwinSchema(16, "");
  ASSERT_OK(MakeTieredTable(schema, TableOptions(), storage, &table));
  const int64_t value_bytes = RowLayout(schema).value_bytes;
  const std::vector<char> rows(static_cast<size_t>(kBatch * value_bytes));
  int64_t most_rows = 0;
  for (Key first = 0; first < 100 * kBatch; first += kBatch) {
    std::vector<Key> keys(kBatch);
    std::iota(keys.begin(), keys.end(), first);
    Batch batch;
    batch.keys = keys;
    ASSERT_OK(table->Upsert(OneThread(), batch, ConstRows(rows.data(), kBatch, value_bytes),
                            Stamp(), Report()));
    const TierStats stats = static_cast<TieredTable*>(table.get())->tier_stats();
    ASSERT_LE(stats.bytes_above, kMaxBytes) << first;
    most_rows = std::max(most_rows, stats.rows_above);
  }
  // Most of the memory is for rows: 64 bytes of value and 8 of the key each.
  EXPECT_GE(most_rows * 72, kMaxBytes / 2);
}

// By bytes, on this machine's files: memory and disk stay within what is said of them.
TEST(TieredTableTest, KeepsWithinItsBytes) {
  const std::string path = JoinPath(::testing::TempDir(), "tiers");
  const TableSchema schema = TwinSchema(16, "adam");
  constexpr int64_t kMaxBytes = 2 << 20, kKeys = 60'000;
  StorageOptions storage;
  storage.max_bytes = kMaxBytes;
  storage.least_file_bytes = 256 << 10;
  ASSERT_OK(DiskFolder::Open(UnsyncedFileSystem(), {{path}}, &storage.disk));
  std::unique_ptr<Table> table;
  ASSERT_OK(MakeTieredTable(schema, TableOptions(), storage, &table));
  storage.disk.reset();
  {
    Twins twins(std::move(table), 4);
    for (int i = 0; i < 150; ++i) {
      ASSERT_OK(twins.Call(kKeys, 4000));
      const TierStats stats = twins.tiered()->tier_stats();
      EXPECT_LE(stats.bytes_above, kMaxBytes);
      const int64_t record = 16 + RowLayout(schema).row_bytes;
      const int64_t most_live = (stats.rows_below + stats.rows_above) * record;
      EXPECT_LE(stats.bytes_below, most_live * 3 / 2 + 5 * storage.least_file_bytes);
    }
    EXPECT_GT(twins.tiered()->tier_stats().rows_below, 10'000);
    twins.Compare();
  }
  std::vector<std::string> names;
  ASSERT_OK(PosixFileSystem()->List(path, &names));
  EXPECT_EQ(names, std::vector<std::string>{"LOCK"}) << "a table that is gone has no files";
}

// Past the page cache, where the file system has that, and with all that is done in the background.
TEST(TieredTableTest, ReadsDirectly) {
  const std::string path = JoinPath(::testing::TempDir(), "direct");
  const auto text = [&](int direct) {
    return StrCat("host 100000 owner direct reopen 1 keep_seed 0 direct ", direct,
                  " key_mod 1 part -\n", path);
  };
  StorageOptions storage;
  const Status parsed = StorageOptions::Parse(text(1), "", -1, &storage);
  if (!parsed.ok()) {
    EXPECT_NE(parsed.message().find("leave direct_io of Disk out"), std::string::npos);
    GTEST_SKIP() << parsed.message();  // a file system without direct reads, as tmpfs may be
  }
  EXPECT_EQ(storage.disk->files(), DirectFileSystem());
  EXPECT_TRUE(storage.in_background);
  storage.least_file_bytes = 100'000;
  std::unique_ptr<Table> table;
  ASSERT_OK(MakeTieredTable(TwinSchema(8, "adam"), TableOptions(), storage, &table));
  storage = StorageOptions();
  {
    Twins twins(std::move(table), 8);
    for (int i = 0; i < 150; ++i) ASSERT_OK(twins.Call(5000, 300));
    twins.Compare();
    EXPECT_GT(twins.tiered()->tier_stats().rows_read, 1000);
  }
  ASSERT_OK(StorageOptions::Parse(text(0), "", -1, &storage));
  EXPECT_EQ(storage.disk->files(), PosixFileSystem());
}

// A call of one slice either does everything or nothing, whatever operation fails.
TEST(TieredTableTest, LosesNothingByFaults) {
  const TableSchema schema = TwinSchema(3, "adam");
  for (const Fault::When when : {Fault::kBefore, Fault::kHalfWay, Fault::kAfter}) {
    for (int64_t nth = 0; nth < 25; ++nth) {
      SCOPED_TRACE(StrCat("operation ", nth, ", ", static_cast<int>(when)));
      const auto files = std::make_shared<MemoryFileSystem>();
      std::unique_ptr<Table> table;
      ASSERT_OK(MakeTieredTableOn(files, schema, 30, &table));
      Twins twins(std::move(table), 5);
      for (int i = 0; i < 60; ++i) ASSERT_OK(twins.Call(200, 25));
      Fault fault;
      fault.when = when;
      fault.code = Code::kResourceExhausted;
      files->Inject(nth, fault);
      for (int i = 0; i < 30; ++i) {
        const Status status = twins.Call(200, 25);
        if (!status.ok()) {
          EXPECT_NE(status.message().find("/tiers"), std::string::npos) << status.message();
        }
      }
      files->Heal();
      twins.Compare();
      for (int i = 0; i < 30; ++i) ASSERT_OK(twins.Call(200, 25));
      twins.Compare();
    }
  }
}

// However much a call writes, and with nobody else to compact files.
TEST(TieredTableTest, FilesDoNotGrowUnderLargeCalls) {
  constexpr int64_t kKeys = 4000, kCall = 1000, kDim = 200, kLeastFileBytes = 64 << 10;
  MemoryFileSystem files;
  StorageOptions storage;
  storage.max_rows = 1200;
  storage.least_file_bytes = kLeastFileBytes;
  ASSERT_OK(DiskFolder::Open(&files, {{"tiers"}}, &storage.disk));
  std::unique_ptr<Table> table;
  const TableSchema schema = TwinSchema(kDim, "");
  ASSERT_OK(MakeTieredTable(schema, TableOptions(), storage, &table));
  const int64_t record = RowLog::kRecordHeaderBytes + RowLayout(schema).row_bytes;
  const Caller call(table.get(), HostTestMemory());
  std::mt19937_64 random(1);
  for (int i = 0; i < 150; ++i) {
    Keys keys;
    while (static_cast<int64_t>(keys.size()) < kCall) {
      keys.push_back(static_cast<Key>(random() % kKeys));
    }
    ASSERT_OK(call.Upsert(keys, Floats(static_cast<size_t>(kCall * kDim), 1)));
    const TierStats stats = static_cast<TieredTable*>(table.get())->tier_stats();
    // The file that is compacted, a sixteenth of all or the least, is there until its end.
    const int64_t most_live = (stats.rows_below + stats.rows_above) * record;
    ASSERT_LE(stats.bytes_below, most_live * 25 / 16 + 4 * kLeastFileBytes) << i;
  }
}

// What the thread has moved is no reason for a call to move more.
TEST(DiskRowsTest, ACallPaysForItself) {
  const auto files = std::make_shared<MemoryFileSystem>();
  StorageOptions storage;
  storage.max_rows = 10'000;
  storage.least_file_bytes = 64 << 10;
  ASSERT_OK(DiskFolder::Open(files.get(), {{"/tiers"}}, &storage.disk));
  std::unique_ptr<Tiers> tiers;
  ASSERT_OK(Tiers::Make(TwinSchema(64, ""), TableOptions(), storage, &tiers));
  const Caller above(tiers->above(), HostTestMemory());
  Keys keys(10'000);
  for (Key first = 0; first < 150'000; first += 10'000) {
    std::iota(keys.begin(), keys.end(), first);
    ASSERT_OK(above.Upsert(keys, Floats(keys.size() * 64, 1)));
    ASSERT_OK(tiers->AllDown());
  }
  DiskRows* const below = tiers->below();
  static_cast<void>(below->Compact());  // for what was put
  for (Key key = 0; key < 150'000; ++key) {
    ASSERT_TRUE(key % 4 == 0 || below->Remove(DiskHash(key)));
  }
  RowLog::Block block;
  for (int moved = 0; moved < 60; ++moved) {
    ASSERT_TRUE(below->NextToMove(&block));
    ASSERT_OK(below->Move(block, block.Read()));
  }
  const int64_t written = below->rows_written();
  ASSERT_TRUE(below->HasMoreBytesThan(DiskRows::kMostBytes));
  ASSERT_OK(below->Compact());
  const int64_t row_bytes = RowLog::kRecordHeaderBytes + tiers->layout().row_bytes;
  // Of the 16 blocks that a call moves a quarter is live.
  EXPECT_LE((below->rows_written() - written) * row_bytes, 6 * RowLog::kBlockBytes);
}

// Bytes that cannot be won back must not have other files rewritten without end.
TEST(TieredTableTest, DamagedFilesAreLeft) {
  const std::string folder = JoinPath(::testing::TempDir(), "damaged_files");
  StorageOptions storage;
  storage.max_rows = 100;
  storage.least_file_bytes = 20'000;
  storage.in_background = true;
  ASSERT_OK(DiskFolder::Open(UnsyncedFileSystem(), {{folder}}, &storage.disk));
  std::unique_ptr<Table> table;
  ASSERT_OK(MakeTieredTable(TwinSchema(8, ""), TableOptions(), storage, &table));
  const auto* const tiered = static_cast<TieredTable*>(table.get());
  const Caller call(table.get(), HostTestMemory());
  Keys keys, gone, all(10'000);
  std::iota(all.begin(), all.end(), 0);
  for (const Key key : all) (key % 10 == 0 ? keys : gone).push_back(key);
  ASSERT_OK(call.Upsert(all, Floats(all.size() * 8, 1)));
  std::vector<std::string> names;
  ASSERT_OK(PosixFileSystem()->List(folder, &names));
  int damaged = 0;
  for (const std::string& name : names) {
    if (name == "LOCK" || damaged == 10) continue;
    std::fstream file(JoinPath(folder, name), std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(10'000);
    file << std::string(8'000, 'x');
    ASSERT_TRUE(file.good());
    ++damaged;
  }
  ASSERT_EQ(damaged, 10);
  ASSERT_OK(call.Erase(gone));
  static_cast<TieredTable*>(table.get())->WaitForUpkeep();
  const int64_t written = tiered->tier_stats().rows_written;
  EXPECT_LT(written, 3 * 10'000);
  Floats values;
  int64_t read = 0;
  for (const Key key : keys) read += call.Find({key}, &values).ok();
  EXPECT_LT(read, 1000) << "what is damaged is said by who reads it";
  EXPECT_GT(read, 500);
}

// A file of which nothing is live, since the call that wrote it has failed.
TEST(TieredTableTest, FilesOfFailedCallsAreRemoved) {
  constexpr int64_t kDim = 200, kLeastFileBytes = 20'000;
  const auto files = std::make_shared<MemoryFileSystem>();
  const TableSchema schema = TwinSchema(kDim, "");
  std::unique_ptr<Table> table;
  ASSERT_OK(MakeTieredTableOn(files, schema, 1000, &table));
  const Caller call(table.get(), HostTestMemory());
  const auto upsert = [&](Key first, int64_t count) {
    Keys keys;
    for (Key key = first; key < first + count; ++key) keys.push_back(key);
    return call.Upsert(keys, Floats(static_cast<size_t>(kDim * count), 1));
  };
  ASSERT_OK(upsert(0, 900));
  // Rows that leave are blocks of several files, of which the second one fails.
  int failed = 0;
  for (int round = 0; round < 20; ++round) {
    Fault fault;
    fault.code = Code::kResourceExhausted;
    files->Inject(5, fault);
    failed += !upsert(10'000, 900).ok();
    files->Heal();
  }
  EXPECT_GE(failed, 10);
  for (int round = 0; round < 4; ++round) {
    for (Key key = 2000; key < 6000; key += 400) ASSERT_OK(upsert(key, 400));
  }
  const TierStats stats = static_cast<TieredTable*>(table.get())->tier_stats();
  const int64_t record = RowLog::kRecordHeaderBytes + RowLayout(schema).row_bytes;
  EXPECT_LE(stats.bytes_below,
            (stats.rows_below + stats.rows_above) * record * 25 / 16 + 4 * kLeastFileBytes);
}

// Room and space are made between calls, and no row is another one for it.
TEST(TieredTableTest, WorksInTheBackground) {
  const TableSchema schema = TwinSchema(8, "adam");
  constexpr int64_t kMost = 400, kKeys = 20'000, kCall = 60, kLeastFileBytes = 20'000;
  const int64_t record = RowLog::kRecordHeaderBytes + RowLayout(schema).row_bytes;
  for (const uint64_t seed : {1, 2, 3}) {
    const auto files = std::make_shared<MemoryFileSystem>();
    std::unique_ptr<Table> table;
    ASSERT_OK(MakeTieredTableOn(files, schema, kMost, &table, {}, true));
    Twins twins(std::move(table), seed);
    for (int i = 0; i < 1500; ++i) {
      ASSERT_OK(twins.Call(kKeys, kCall));
      if (i % 100 != 99) continue;
      twins.tiered()->WaitForUpkeep();
      const TierStats stats = twins.tiered()->tier_stats();
      EXPECT_LT(stats.rows_above, kMost) << "room for the next call";
      // Rows above may have a copy below. Of 4 files one is written, and of the others each may
      // have the share that is just not too much.
      const int64_t most_live = (stats.rows_below + stats.rows_above) * record;
      EXPECT_LE(stats.bytes_below, most_live * 11 / 8 + 4 * kLeastFileBytes);
    }
    EXPECT_GT(twins.tiered()->tier_stats().rows_below, 1000);
    twins.Compare();
    twins.CompareCounters();
  }
}

// What fails in the background fails no call, and is done when it can be.
TEST(TieredTableTest, LosesNothingByFaultsInTheBackground) {
  const TableSchema schema = TwinSchema(3, "adam");
  for (const Fault::When when : {Fault::kBefore, Fault::kHalfWay, Fault::kAfter}) {
    for (int64_t nth = 0; nth < 40; nth += 3) {
      SCOPED_TRACE(StrCat("operation ", nth, ", ", static_cast<int>(when)));
      const auto files = std::make_shared<MemoryFileSystem>();
      std::unique_ptr<Table> table;
      ASSERT_OK(MakeTieredTableOn(files, schema, 100, &table, {}, true));
      Twins twins(std::move(table), 6);
      for (int i = 0; i < 200; ++i) ASSERT_OK(twins.Call(1000, 25));
      Fault fault;
      fault.when = when;
      fault.code = Code::kResourceExhausted;
      fault.dies = nth % 2 == 0;
      files->Inject(nth, fault);
      for (int i = 0; i < 40; ++i) static_cast<void>(twins.Call(1000, 25));
      files->Heal();
      twins.Compare();
      for (int i = 0; i < 200; ++i) ASSERT_OK(twins.Call(1000, 25));
      twins.tiered()->WaitForUpkeep();
      twins.Compare();
    }
  }
}

// A disk that is full for long: what is above is read and trained.
TEST(TieredTableTest, GoesOnAboveWithoutADisk) {
  const TableSchema schema = TwinSchema(2, "sgd");
  const auto files = std::make_shared<MemoryFileSystem>();
  std::unique_ptr<Table> table;
  ASSERT_OK(MakeTieredTableOn(files, schema, 100, &table));
  const Caller call(table.get(), HostTestMemory());
  Keys keys, others;
  for (Key key = 0; key < 50; ++key) keys.push_back(key), others.push_back(key + 1000);
  for (Key key = 0; key < 150; ++key) others.push_back(key + 2000);
  ASSERT_OK(call.Upsert(keys, Floats(100, 1)));
  Fault fault;
  fault.code = Code::kResourceExhausted;
  fault.dies = true;
  files->Inject(0, fault);
  const Status full = call.Upsert(others, Floats(400, 2));
  EXPECT_EQ(full.code(), Code::kResourceExhausted);
  EXPECT_NE(full.message().find("/tiers/tier-"), std::string::npos) << full.message();
  ASSERT_OK(call.Apply(keys, Floats(100, 1), schema.rule, UsualHyper("sgd", 1)));
  Floats values;
  ASSERT_OK(call.Find(keys, &values));
  files->Heal();
  ASSERT_OK(call.Upsert(others, Floats(400, 2)));
  Floats again;
  ASSERT_OK(call.Find(keys, &again));
  EXPECT_EQ(values, again);
  EXPECT_EQ(table->size(), 250);
}

TEST(TieredTableTest, SaysWhichRowIsDamaged) {
  const TableSchema schema = TwinSchema(4, "");
  const std::string folder = JoinPath(::testing::TempDir(), "damaged");
  StorageOptions storage;
  storage.max_rows = 10;
  ASSERT_OK(DiskFolder::Open(UnsyncedFileSystem(), {{folder}}, &storage.disk));
  std::unique_ptr<Table> table;
  ASSERT_OK(MakeTieredTable(schema, TableOptions(), storage, &table));
  const Caller call(table.get(), HostTestMemory());
  Keys keys;
  for (Key key = 0; key < 100; ++key) keys.push_back(key);
  ASSERT_OK(call.Upsert(keys, Floats(400, 3)));
  const std::string path = JoinPath(folder, "tier-1.rows");
  {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(-20, std::ios::end);  // in the last record
    const char byte = static_cast<char>(file.get());
    ASSERT_TRUE(file.good());
    file.seekp(-20, std::ios::end);
    file.put(static_cast<char>(byte ^ 0x10));
    ASSERT_TRUE(file.good());
  }
  int damaged = 0;
  Key which = -1;
  for (const Key key : keys) {
    Floats values;
    TableContent rows;
    const Status status = call.ReadRows({key}, &rows);
    if (status.ok()) {
      EXPECT_EQ(Numbers<float>(rows.at(key).value), Floats(4, 3)) << key;
      continue;
    }
    ++damaged;
    which = key;
    EXPECT_EQ(status.code(), Code::kDataLoss);
    EXPECT_NE(status.message().find(path), std::string::npos) << status.message();
    EXPECT_EQ(call.Find({key}, &values).code(), Code::kDataLoss);
    EXPECT_EQ(call.Upsert({key}, Floats(4, 1)).code(), Code::kDataLoss);
  }
  ASSERT_EQ(damaged, 1);
  int64_t erased;
  const Status scan = call.EraseBelow(MetaField::kCount, {INT64_MIN, 0}, &erased);
  EXPECT_EQ(scan.code(), Code::kDataLoss);
  EXPECT_NE(scan.message().find(path), std::string::npos) << scan.message();
  // It can be erased, and then all is well.
  ASSERT_OK(call.Erase({which}));
  EXPECT_EQ(call.Export().size(), 99u);
  ASSERT_OK(call.EraseBelow(MetaField::kCount, {INT64_MIN, 0}, &erased));
}

TEST(DiskFolderTest, BelongsToOneTable) {
  MemoryFileSystem files;
  ASSERT_OK(files.CreateFolder("/tiers"));
  files.Put("/tiers/tier-7.rows", "left behind");
  files.Put("/tiers/tier-x.rows", "not ours");
  files.Put("/tiers/notes", "not ours");
  std::shared_ptr<DiskFolder> one, other;
  ASSERT_OK(DiskFolder::Open(&files, {{"/tiers"}}, &one));
  EXPECT_EQ(files.Names("/tiers"), (std::vector<std::string>{"LOCK", "notes", "tier-x.rows"}));
  const Status taken = DiskFolder::Open(&files, {{"/tiers"}}, &other);
  EXPECT_EQ(taken.code(), Code::kFailedPrecondition);
  EXPECT_NE(taken.message().find("another table has its rows in /tiers"), std::string::npos);
  one.reset();
  ASSERT_OK(DiskFolder::Open(&files, {{"/tiers"}}, &other));
}

TEST(TieredTableTest, RefusesWhatItCannot) {
  MemoryFileSystem files;
  StorageOptions storage;
  std::unique_ptr<Table> table;
  const auto make = [&](const TableOptions& options) {
    return MakeTieredTable(TwinSchema(4, ""), options, storage, &table).code();
  };
  EXPECT_EQ(make({}), Code::kInvalidArgument) << "no limit";
  storage.max_bytes = 1 << 20;
  EXPECT_EQ(make({}), Code::kInvalidArgument) << "no disk";
  ASSERT_OK(DiskFolder::Open(&files, {{"/tiers"}}, &storage.disk));
  TableOptions bounded;
  bounded.max_bytes = 100;  // on disk
  EXPECT_EQ(make(bounded), Code::kInvalidArgument);
  storage.max_bytes = 100;
  EXPECT_EQ(make({}), Code::kInvalidArgument) << "no room for a row";
  storage.max_bytes = 1 << 20;
  EXPECT_EQ(make({}), Code::kOk);
}

}  // namespace
}  // namespace dynemb

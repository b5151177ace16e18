// Folders that are opened again by tables of other shards, beside one host table that has all rows:
// rows, schemas and policies, faults, kills, power cuts, space, damage, names and earlier formats.
#include "cc/core/storage/reopening.h"

#include <algorithm>
#include <map>
#include <random>
#include <string>
#include <utility>

#include "cc/core/base/line_text.h"
#include "cc/core/storage/compact.h"
#include "cc/core/storage/flushed_folders.h"
#include "cc/core/storage/index_file.h"
#include "cc/core/storage/testing/opened.h"
#include "cc/core/storage/testing/twins.h"
#include "cc/core/table/host_table.h"
#include "cc/core/testing/caller.h"
#include "gtest/gtest.h"

namespace dynemb {
namespace {

// A partitioner of the user.
std::vector<int32_t> HighKeysFirst(Span<const Key> keys, int64_t shards) {
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < keys.size; ++i) {
    ids.push_back(static_cast<int32_t>(keys[i] % 7 == 0 ? 0 : shards - 1 - keys[i] / 3 % shards));
  }
  return ids;
}

// A table of several shards, and what it should have.
class Sharded {
 public:
  explicit Sharded(const TableSchema& schema) {
    EXPECT_TRUE(MakeHostTable(schema, {}, &host_).ok());
  }
  Status Reopen(MemoryFileSystem* files, const TableSchema& schema, int64_t shards,
                bool key_mod = true) {
    shard_ids_ = [shards, key_mod](Span<const Key> keys) {
      return key_mod ? KeyMod(keys, shards) : HighKeysFirst(keys, shards);
    };
    return Open(files, schema, 30 * shards, &opened_, shards, {{"/tiers"}}, {}, shard_ids_);
  }
  void Close() { opened_ = Opened(); }
  // The same random calls on both.
  Status Write(int calls, uint64_t seed, int64_t keys_of_table = 500) {
    std::mt19937_64 random(seed);
    const TableSchema& schema = host_->schema();
    for (int i = 0; i < calls; ++i) {
      Keys keys;
      for (int k = 0; k < 40; ++k) {
        keys.push_back(static_cast<Key>(random() % static_cast<uint64_t>(keys_of_table)));
      }
      const std::vector<int32_t> shard_ids = shard_ids_(keys);
      Floats values(keys.size() * static_cast<size_t>(schema.dim));
      for (float& value : values) value = static_cast<float>(random() % 1000) / 64;
      const uint64_t dice = random() % 10;
      const auto call = [&](Table* table, const Keys& of_table, const Floats& numbers) {
        const Caller on(table, HostTestMemory());
        if (dice == 0) return on.Erase(of_table);
        if (dice < 4 || schema.rule.name.empty()) return on.Upsert(of_table, numbers, {++step_});
        return on.Apply(of_table, numbers, schema.rule,
                        UsualHyper(schema.rule.name, static_cast<double>(i + 1)), {step_});
      };
      for (size_t s = 0; s < opened_.shards.size(); ++s) {
        Keys own;
        Floats numbers;
        for (size_t k = 0; k < keys.size(); ++k) {
          if (shard_ids[k] != static_cast<int32_t>(s)) continue;
          own.push_back(keys[k]);
          const auto first = values.begin() + static_cast<std::ptrdiff_t>(k) * schema.dim;
          numbers.insert(numbers.end(), first, first + schema.dim);
        }
        step_ = i;
        DYNEMB_RETURN_IF_ERROR(call(opened_.shards[s].get(), own, numbers));
      }
      step_ = i;
      DYNEMB_RETURN_IF_ERROR(call(host_.get(), keys, values));
    }
    return Status();
  }
  TableContent Want() const { return ExportAll(*host_, HostTestMemory(), 1000); }
  // That each row is where it should be, and no other.
  void Compare(const TableContent& want) const {
    TableContent all;
    for (size_t s = 0; s < opened_.shards.size(); ++s) {
      const TableContent of_shard = ContentOf(opened_, s);
      Keys keys;
      for (const auto& [key, row] : of_shard) keys.push_back(key);
      for (const int32_t shard : shard_ids_(keys)) ASSERT_EQ(shard, static_cast<int32_t>(s));
      all.insert(of_shard.begin(), of_shard.end());
    }
    ASSERT_EQ(Difference(want, all), "");
  }
  // What was never flushed is forgotten.
  void Forget(const TableContent& want) {
    const Caller call(host_.get(), HostTestMemory());
    ASSERT_OK(call.Clear());
    if (!want.empty()) ASSERT_OK(call.InsertRows(want));
  }
  void MoveTo(const TableSchema& schema) {
    std::vector<std::unique_ptr<Table>*> all = {&host_};
    for (auto& shard : opened_.shards) all.push_back(&shard);
    for (std::unique_ptr<Table>* const table : all) {
      std::unique_ptr<RowMove> move;
      ASSERT_OK((*table)->PrepareMove(OneThread(), schema, &move));
      *table = move->Run(OneThread());
    }
  }
  const Opened& opened() const { return opened_; }

 private:
  Opened opened_;
  std::unique_ptr<Table> host_;
  ShardIdsOf shard_ids_;
  int64_t step_ = 0;
};

int64_t BytesOnDisk(const MemoryFileSystem& files) {
  int64_t bytes = 0;
  for (const std::string& name : files.Names("/tiers")) {
    if (name.find("tier-") == 0) bytes += static_cast<int64_t>(files.Get("/tiers/" + name).size());
  }
  return bytes;
}

int64_t BytesBelow(const Opened& opened) {
  int64_t bytes = opened.storage.disk->bytes_kept() - opened.storage.disk->bytes_shared();
  for (const TieredTable* const shard : opened.all()) bytes += shard->tier_stats().bytes_below;
  return bytes;
}

// With other numbers of shards and another partitioner each time, with an optimizer from the third
// time on, and ends of the process; the rows are those of the last flush, each in its shard.
TEST(ReopeningTest, GivesRowsToTheirShardsOfNow) {
  MemoryFileSystem files;
  const TableSchema plain = TwinSchema(3, ""), adam = TwinSchema(3, "adam");
  Sharded table(plain);
  TableContent want;
  int64_t step = -1, round = 0;
  for (const int64_t shards : {1, 2, 3, 3, 2, 5, 1, 4, 4, 1}) {
    SCOPED_TRACE(StrCat("after step ", step, ", with ", shards, " shards"));
    ASSERT_OK(table.Reopen(&files, plain, shards, round % 3 != 1));
    EXPECT_EQ(table.opened().storage.disk->flushed_step(), step);
    table.Forget(want);
    table.Compare(want);
    EXPECT_EQ(BytesBelow(table.opened()), BytesOnDisk(files));
    if (round == 2) table.MoveTo(adam);
    for (int64_t flushes = 0; flushes <= round % 2; ++flushes) {
      ASSERT_OK(table.Write(30, static_cast<uint64_t>(step + 5)));
      ASSERT_OK(table.opened().Flush(++step));
      want = table.Want();
      table.Compare(want);
      EXPECT_EQ(BytesBelow(table.opened()), BytesOnDisk(files));
    }
    ASSERT_OK(table.Write(20, 99));
    table.Compare(table.Want());
    EXPECT_EQ(BytesBelow(table.opened()), BytesOnDisk(files));
    if (round % 4 < 2) {
      files.Kill();
    } else {
      table.Close();
    }
    ++round;
  }
  EXPECT_GT(want.size(), 300u);
}

// A file of several shards goes when none of them has a row of it any more.
TEST(ReopeningTest, CompactionPartsTheFiles) {
  MemoryFileSystem files;
  const TableSchema schema = TwinSchema(2, "adam");
  Sharded table(schema);
  ASSERT_OK(table.Reopen(&files, schema, 1));
  ASSERT_OK(table.Write(100, 1));
  ASSERT_OK(table.opened().Flush(1));
  table.Close();
  ASSERT_OK(table.Reopen(&files, schema, 4));
  EXPECT_GT(table.opened().storage.disk->bytes_shared(), 20'000);
  // The others stay where they are, but for compaction.
  for (int i = 0; i < 30; ++i) ASSERT_OK(table.Write(20, static_cast<uint64_t>(i), 250));
  ASSERT_OK(table.opened().Flush(2));
  table.Compare(table.Want());
  EXPECT_LT(table.opened().storage.disk->bytes_shared(), 5'000);
  EXPECT_EQ(BytesBelow(table.opened()), BytesOnDisk(files));
  int64_t rows = 0;
  for (TieredTable* const shard : table.opened().all()) rows += shard->size();
  const int64_t live = rows * (16 + 8 + 16 + 8);
  EXPECT_LT(BytesOnDisk(files), 2 * live + 4 * 5 * table.opened().storage.least_file_bytes);
}

// The command looks at files of several shards, and parts them at once.
TEST(ReopeningTest, TheCommandKnowsSharedFiles) {
  MemoryFileSystem files;
  const TableSchema schema = TwinSchema(2, "");
  Sharded table(schema);
  ASSERT_OK(table.Reopen(&files, schema, 1));
  ASSERT_OK(table.Write(100, 1));
  ASSERT_OK(table.opened().Flush(1));
  ASSERT_OK(table.Reopen(&files, schema, 3, false));
  ASSERT_OK(table.opened().Flush(2));
  const TableContent want = table.Want();
  table.Close();
  const auto shared_files = [&] {
    std::unique_ptr<FlushedFolders> folders;
    const Status opened = FlushedFolders::Open(&files, {"/tiers"}, &folders);
    EXPECT_TRUE(opened.ok()) << opened.message();
    std::map<std::string, int> shards;
    int64_t rows = 0;
    for (size_t f = 0; f < folders->files().size(); ++f) {
      folders->Verify(f);
      ++shards[folders->files()[f].path];
      if (folders->files()[f].kind == DiskFolder::Kind::kRows) rows += folders->files()[f].rows;
    }
    EXPECT_EQ(rows, static_cast<int64_t>(want.size()));
    EXPECT_TRUE(folders->damages().empty());
    return std::count_if(shards.begin(), shards.end(),
                         [](const auto& file) { return file.second > 1; });
  };
  EXPECT_GT(shared_files(), 0);
  {  // A row of one shard is damaged; to the others it is none.
    std::unique_ptr<FlushedFolders> folders;
    ASSERT_OK(FlushedFolders::Open(&files, {"/tiers"}, &folders));
    const FlushedFolders::File file = folders->files()[1];
    const std::string whole = files.Get(file.path);
    std::string bytes = whole;
    bytes[static_cast<size_t>(file.bytes - 3)] ^= 1;  // in the last record
    files.Put(file.path, bytes);
    ASSERT_OK(FlushedFolders::Open(&files, {"/tiers"}, &folders));
    for (size_t f = 0; f < folders->files().size(); ++f) folders->Verify(f);
    EXPECT_GT(folders->damages().size(), 1u);
    for (const FlushedFolders::Damage& damage : folders->damages()) {
      EXPECT_EQ(damage.what.find("no row is lost"), std::string::npos) << damage.what;
    }
    files.Put(file.path, whole);
  }
  ASSERT_OK(CompactFolders(&files, {"/tiers"}, 4'000));
  EXPECT_EQ(shared_files(), 0);
  // It has left each row in the shard that had it, whatever the partitioner.
  FlushManifest manifest;
  ASSERT_OK(FlushManifest::Parse(files.Get("/tiers/FLUSHED"), &manifest));
  ASSERT_EQ(manifest.shards.size(), 3u);
  for (size_t s = 0; s < 3; ++s) {
    const FlushedShard& shard = manifest.shards[s];
    ASSERT_OK(ReadIndexFile(&files, StrCat("/tiers/tier-", shard.index, ".index"), shard.index,
                            shard.rows, [&](const IndexEntries& entries) {
                              for (const int32_t shard : HighKeysFirst(entries.keys, 3)) {
                                EXPECT_EQ(shard, static_cast<int32_t>(s));
                              }
                              return Status();
                            }));
  }
  ASSERT_OK(table.Reopen(&files, schema, 2));
  table.Compare(want);
}

// A fault at each operation of the opening, of calls and of the flush after it; then the process or
// the machine ends. What is opened again, with yet another number of shards, are the rows of the
// flush before or of this one.
TEST(ReopeningTest, LosesNothingByFaults) {
  const TableSchema schema = TwinSchema(2, "adam");
  int firsts = 0, seconds = 0, not_opened = 0;
  for (const Fault::When when : {Fault::kBefore, Fault::kHalfWay, Fault::kAfter}) {
    for (const bool power_cut : {false, true}) {
      bool met = true;
      for (int64_t nth = 0; met; ++nth) {
        SCOPED_TRACE(StrCat("operation ", nth, ", ", static_cast<int>(when), ", ", power_cut));
        MemoryFileSystem files;
        Sharded table(schema);
        ASSERT_OK(table.Reopen(&files, schema, 2));
        ASSERT_OK(table.Write(8, 5, 150));
        ASSERT_OK(table.opened().Flush(1));
        const TableContent first = table.Want();
        table.Close();
        Fault fault;
        fault.when = when;
        fault.code = Code::kResourceExhausted;
        fault.dies = true;
        const int64_t before = files.operations();
        files.Inject(nth, fault);
        Status status = table.Reopen(&files, schema, 3);
        not_opened += !status.ok();
        if (status.ok()) status = table.Write(4, 6, 150);
        if (status.ok()) status = table.opened().Flush(2);
        met = files.operations() - before > nth;
        const TableContent second = table.Want();
        files.Heal();
        files.Kill();
        if (power_cut) files.CutPower(static_cast<uint64_t>(nth));
        files.Inject(0, {Fault::kBefore, Code::kInternal, true});  // nothing happens to files
        table.Close();
        files.Heal();
        files.Kill();
        ASSERT_OK(table.Reopen(&files, schema, 1 + nth % 3, nth % 2 == 0));
        const int64_t step = table.opened().storage.disk->flushed_step();
        ASSERT_TRUE(step == 1 || step == 2) << step;
        if (status.ok()) {
          EXPECT_EQ(step, 2);
        }
        table.Compare(step == 1 ? first : second);
        ++(step == 1 ? firsts : seconds);
        table.Forget(step == 1 ? first : second);
        ASSERT_OK(table.Write(5, 7, 150));
        ASSERT_OK(table.opened().Flush(3));
        table.Compare(table.Want());
      }
    }
  }
  EXPECT_GT(not_opened, 20);
  EXPECT_GT(firsts, 100);
  EXPECT_GT(seconds, 10);
}

// What the policy asks is read from the rows, each by the shard that has it.
TEST(ReopeningTest, PoliciesGoOn) {
  TableOptions options;
  options.max_rows = 100;  // of each shard, as it is made here
  ASSERT_OK(EvictionPolicy::Parse("lru", &options.eviction));
  const TableSchema schema = TwinSchema(1, "", options);
  MemoryFileSystem files;
  Opened opened;
  ASSERT_OK(Open(&files, schema, 20, &opened, 1, {{"/tiers"}}, options));
  for (int64_t i = 0; i < 100; ++i) {
    ASSERT_OK(Caller(opened.shards[0].get(), HostTestMemory()).Upsert({i * 37 % 100}, {1}, {i}));
  }
  ASSERT_OK(opened.Flush(1));
  options.max_rows = 50;
  ASSERT_OK(Open(&files, schema, 20, &opened, 2, {{"/tiers"}}, options));
  for (Key s = 0; s < 2; ++s) {
    const Caller call(opened.shards[static_cast<size_t>(s)].get(), HostTestMemory());
    EXPECT_EQ(call.table()->size(), 50);
    Keys more;
    for (Key key = 0; key < 20; ++key) more.push_back(1000 + 2 * key + s);
    ASSERT_OK(call.Upsert(more, Floats(20, 1), {100}));
    EXPECT_EQ(call.table()->size(), 50);
    // Of every other time there is a row in this shard; the earliest 20 have left.
    for (const auto& [key, row] : call.Export()) {
      EXPECT_TRUE(key >= 1000 || key * 73 % 100 >= 40) << key;
    }
  }
}

TEST(ReopeningTest, RefusesShardsThatAreNone) {
  MemoryFileSystem files;
  const TableSchema schema = TwinSchema(1, "");
  Opened opened;
  ASSERT_OK(Open(&files, schema, 20, &opened));
  ASSERT_OK(Caller(opened.shards[0].get(), HostTestMemory()).Upsert({5, 6}, {1, 2}));
  ASSERT_OK(opened.Flush(1));
  const auto message = [&](const std::vector<int32_t>& ids) {
    const Status status = Open(&files, schema, 20, &opened, 2, {{"/tiers"}}, {},
                               [&](Span<const Key>) { return ids; });
    EXPECT_EQ(status.code(), Code::kInvalidArgument);
    return status.message();
  };
  // Rows of two 64ths of the hashes, which come one after the other.
  EXPECT_EQ(message({0, 1}), "shard_ids: got 2, want one for each of 1 keys");
  EXPECT_NE(message({2}).find("shard_ids: got 2 for key "), std::string::npos);
  EXPECT_NE(message({-1}).find("want shards from 0 to 1"), std::string::npos);
  ASSERT_OK(Open(&files, schema, 20, &opened, 2));
  EXPECT_EQ(ContentOf(opened, 0).size() + ContentOf(opened, 1).size(), 2u);
}

// A key that two shards have is in none of the tables that could have been flushed.
TEST(ReopeningTest, NoticesAKeyOfTwoShards) {
  MemoryFileSystem files;
  const TableSchema schema = TwinSchema(1, "");
  Opened opened;
  ASSERT_OK(Open(&files, schema, 20, &opened));
  ASSERT_OK(Caller(opened.shards[0].get(), HostTestMemory()).Upsert({5, 6}, {1, 2}));
  ASSERT_OK(opened.Flush(1));
  opened = Opened();
  FlushManifest manifest;
  ASSERT_OK(FlushManifest::Parse(files.Get("/tiers/FLUSHED"), &manifest));
  manifest.shards.push_back(manifest.shards[0]);
  files.Put("/tiers/FLUSHED", manifest.ToText());
  const Status twice = Open(&files, schema, 20, &opened, 2);
  EXPECT_EQ(twice.code(), Code::kDataLoss);
  EXPECT_NE(twice.message().find(".index: key "), std::string::npos) << twice.message();
  manifest.shards[1].files.begin()->second.bytes -= 8;
  files.Put("/tiers/FLUSHED", manifest.ToText());
  const Status other = Open(&files, schema, 20, &opened, 2);
  EXPECT_EQ(other.code(), Code::kDataLoss);
  EXPECT_NE(other.message().find("two shards say different things"), std::string::npos);
}

TEST(ReopeningTest, KnowsTheNameOfTheTable) {
  MemoryFileSystem files;
  const TableSchema schema = TwinSchema(1, "");
  Opened opened;
  const auto open = [&](const std::string& name, bool reopen = true) {
    return Open(&files, schema, 20, &opened, 1, {{"/tiers"}, reopen, name});
  };
  ASSERT_OK(open("users\n\xc3\xa4"));
  ASSERT_OK(Caller(opened.shards[0].get(), HostTestMemory()).Upsert({5, 6}, {1, 2}));
  ASSERT_OK(opened.Flush(1));
  const std::string flushed = files.Get("/tiers/FLUSHED");
  EXPECT_NE(flushed.find("\nname users?\xc3\xa4\n"), std::string::npos);
  const Status other = open("items");
  EXPECT_EQ(other.code(), Code::kFailedPrecondition);
  EXPECT_EQ(
      other.message().find("/tiers: it has the rows of the table 'users?\xc3\xa4', got 'items'"),
      0u)
      << other.message();
  ASSERT_OK(open("users\n\xc3\xa4"));
  EXPECT_EQ(ContentOf(opened).size(), 2u);
  opened = Opened();
  // The command keeps it.
  ASSERT_OK(CompactFolders(&files, {"/tiers"}));
  EXPECT_NE(files.Get("/tiers/FLUSHED").find("\nname users?"), std::string::npos);
  ASSERT_OK(open("items", false));
  EXPECT_TRUE(ContentOf(opened).empty());
}

// Folders of before there were names.
TEST(ReopeningTest, OpensTheFirstFormat) {
  MemoryFileSystem files;
  const TableSchema schema = TwinSchema(1, "");
  Opened opened;
  const DiskFolder::Options folders = {{"/tiers"}, true, "users"};
  ASSERT_OK(Open(&files, schema, 20, &opened, 2, folders));
  for (Key s = 0; s < 2; ++s) {
    ASSERT_OK(Caller(opened.shards[static_cast<size_t>(s)].get(), HostTestMemory())
                  .Upsert({s, s + 2}, {1, 2}));
  }
  ASSERT_OK(opened.Flush(6));
  opened = Opened();
  std::string text = files.Get("/tiers/FLUSHED");
  const auto replace = [&](const std::string& from, const std::string& to) {
    ASSERT_NE(text.find(from), std::string::npos);
    text.replace(text.find(from), from.size(), to);
  };
  replace("dynemb-tier 2\n", "dynemb-tier 1\n");
  replace("name users\n", "");
  text.resize(text.size() - 16);
  files.Put("/tiers/FLUSHED", text + ChecksumLine(text));
  ASSERT_OK(Open(&files, schema, 20, &opened, 1, folders));
  EXPECT_EQ(opened.storage.disk->flushed_step(), 6);
  EXPECT_EQ(ContentOf(opened).size(), 4u);
  ASSERT_OK(opened.Flush(7));
  EXPECT_NE(files.Get("/tiers/FLUSHED").find("name users\n"), std::string::npos);
  text.replace(text.find("tier 1"), 6, "tier 9");
  files.Put("/tiers/FLUSHED", text + ChecksumLine(text));
  const Status later = Open(&files, schema, 20, &opened, 1, folders);
  EXPECT_EQ(later.code(), Code::kUnimplemented);
  EXPECT_NE(later.message().find("format version 9, this reader knows up to 2"), std::string::npos);
}

}  // namespace
}  // namespace dynemb

// Flushes and what is opened again after them: faults, kills, power cuts, damage, other schemas,
// shards and folders, strings.
#include "cc/core/storage/flush.h"

#include <map>
#include <random>
#include <string>
#include <utility>

#include "cc/core/storage/testing/opened.h"
#include "cc/core/storage/testing/twins.h"
#include "cc/core/testing/caller.h"
#include "gtest/gtest.h"

namespace dynemb {
namespace {

// Whatever is done after it and never flushed, what is opened again are the rows of the flush.
TEST(FlushTest, OpensAgainAsOfTheLastFlush) {
  for (const std::string rule : {"", "adam"}) {
    MemoryFileSystem files;
    TableContent want;
    int64_t step = 0;
    for (int round = 0; round < 8; ++round) {
      SCOPED_TRACE(StrCat("rule '", rule, "', round ", round));
      Opened opened;
      ASSERT_OK(Open(&files, TwinSchema(3, rule), 30 + 200 * (round % 2), &opened));
      EXPECT_EQ(opened.was_flushed, round > 0);
      EXPECT_EQ(opened.storage.disk->flushed_step(), round > 0 ? step : -1);
      EXPECT_EQ(opened.shards[0]->size(), static_cast<int64_t>(want.size()));
      ASSERT_EQ(Difference(want, ContentOf(opened)), "");
      TieredTable* const tiered = opened.tiered();
      Twins twins(std::move(opened.shards[0]), static_cast<uint64_t>(round));
      for (int i = 0; i < 100; ++i) ASSERT_OK(twins.Call(500, 60));
      const auto flush = [&](int64_t as) {
        return Flush({tiered}, nullptr, opened.storage.disk.get(), as);
      };
      for (int flushes = 0; flushes <= round % 3; ++flushes) {
        ASSERT_OK(flush(++step));
        EXPECT_EQ(opened.storage.disk->flushed_step(), step);
        twins.Compare();
        want = twins.Content();
        for (int i = 0; i < 100; ++i) ASSERT_OK(twins.Call(500, 60));
        twins.Compare();
      }
      if (round % 4 == 3) {
        ASSERT_OK(tiered->Clear(OneThread()));
      }
      if (round % 2 == 1) files.Kill();
    }
  }
}

// Space on disk stays bounded, and what only an old flush names goes with the next.
TEST(FlushTest, RemovesTheFilesOfEarlierFlushes) {
  MemoryFileSystem files;
  Opened opened;
  ASSERT_OK(Open(&files, TwinSchema(3, "adam"), 30, &opened));
  DiskFolder* const disk = opened.storage.disk.get();
  TieredTable* const tiered = opened.tiered();
  Twins twins(std::move(opened.shards[0]), 1);
  size_t most = 0;
  for (int round = 0; round < 30; ++round) {
    for (int i = 0; i < 60; ++i) ASSERT_OK(twins.Call(500, 60));
    ASSERT_OK(Flush({tiered}, nullptr, disk, round));
    if (round < 10) {
      most = std::max(most, files.Names("/tiers").size());
    } else {
      EXPECT_LE(files.Names("/tiers").size(), 2 * most);
    }
    int64_t bytes = 0;
    for (const std::string& name : files.Names("/tiers")) {
      if (name.find("tier-") == 0)
        bytes += static_cast<int64_t>(files.Get("/tiers/" + name).size());
    }
    EXPECT_EQ(bytes, tiered->tier_stats().bytes_below + disk->bytes_kept());
  }
  opened = Opened();
}

TEST(FlushTest, RemovesTheFilesOfTheFlushThatWasOpened) {
  MemoryFileSystem files;
  const TableSchema schema = TwinSchema(3, "");
  Keys keys;
  for (Key key = 0; key < 300; ++key) keys.push_back(key);
  for (int round = 0; round < 3; ++round) {
    Opened opened;
    ASSERT_OK(Open(&files, schema, 30, &opened));
    const Caller call(opened.shards[0].get(), HostTestMemory());
    ASSERT_OK(call.Upsert(keys, Floats(900, static_cast<float>(round))));
    ASSERT_OK(opened.Flush(round));
    const std::vector<std::string> names = files.Names("/tiers");
    EXPECT_EQ(std::count_if(
                  names.begin(), names.end(),
                  [](const std::string& name) { return name.find(".index") != std::string::npos; }),
              1);
    int64_t bytes = 0;
    for (const std::string& name : names) {
      if (name.find("tier-") == 0) {
        bytes += static_cast<int64_t>(files.Get("/tiers/" + name).size());
      }
    }
    EXPECT_EQ(bytes, opened.tiered()->tier_stats().bytes_below + opened.storage.disk->bytes_kept());
    if (round < 2) continue;
    ASSERT_OK(call.Clear());
    ASSERT_OK(opened.Flush(99));
    EXPECT_EQ(files.Names("/tiers").size(), 3u) << "LOCK, FLUSHED and an index of nothing";
  }
}

// A fault at each operation of calls and a flush; then the table goes on, or the process or the
// machine ends. The rows that are opened again are those of one of the two flushes, and those of
// the second if it has said so.
TEST(FlushTest, LosesNothingOfAFlushByFaults) {
  const TableSchema schema = TwinSchema(2, "adam");
  enum End { kGoesOn, kKilled, kPowerCut };
  int seconds = 0, firsts = 0;
  for (const Fault::When when : {Fault::kBefore, Fault::kHalfWay, Fault::kAfter}) {
    for (const End end : {kGoesOn, kKilled, kPowerCut}) {
      bool met = true;
      for (int64_t nth = 0; met; ++nth) {
        SCOPED_TRACE(StrCat("operation ", nth, ", ", static_cast<int>(when), ", end ",
                            static_cast<int>(end)));
        MemoryFileSystem files;
        TableContent first, second;
        Status flushed;
        {
          Opened opened;
          ASSERT_OK(Open(&files, schema, 20, &opened));
          TieredTable* const tiered = opened.tiered();
          Twins twins(std::move(opened.shards[0]), 7);
          const auto flush = [&](int64_t as) {
            return Flush({tiered}, nullptr, opened.storage.disk.get(), as);
          };
          for (int i = 0; i < 25; ++i) ASSERT_OK(twins.Call(100, 15));
          ASSERT_OK(flush(1));
          first = twins.Content();
          Fault fault;
          fault.when = when;
          fault.code = Code::kResourceExhausted;
          fault.dies = end != kGoesOn;
          const int64_t before = files.operations();
          files.Inject(nth, fault);
          for (int i = 0; i < 6; ++i) {
            const Status status = twins.Call(100, 15);
            if (fault.dies && !status.ok()) break;
          }
          flushed = flush(2);
          met = files.operations() - before > nth;
          if (!flushed.ok()) {
            EXPECT_NE(flushed.message().find("/tiers"), std::string::npos) << flushed.message();
          }
          if (end == kGoesOn) {
            files.Heal();
            twins.Compare();
            for (int i = 0; i < 6; ++i) ASSERT_OK(twins.Call(100, 15));
            ASSERT_OK(flush(2));
            flushed = Status();
            second = twins.Content();
            for (int i = 0; i < 6; ++i) ASSERT_OK(twins.Call(100, 15));
            files.Kill();
          } else {
            files.Heal();
            second = twins.Content();  // what the rows would have been
            files.Kill();
            if (end == kPowerCut) files.CutPower(static_cast<uint64_t>(nth));
            // What is destroyed here does nothing to the files any more.
            files.Inject(0, {Fault::kBefore, Code::kInternal, true});
          }
        }
        files.Heal();
        files.Kill();
        Opened again;
        ASSERT_OK(Open(&files, schema, 20, &again));
        ASSERT_TRUE(again.was_flushed);
        const int64_t step = again.storage.disk->flushed_step();
        if (flushed.ok()) {
          EXPECT_EQ(step, 2);
        }
        ASSERT_EQ(Difference(step == 1 ? first : second, ContentOf(again)), "");
        ++(step == 1 ? firsts : seconds);
        TieredTable* const tiered = again.tiered();
        Twins twins(std::move(again.shards[0]), 8);
        for (int i = 0; i < 20; ++i) ASSERT_OK(twins.Call(100, 15));
        twins.Compare();
        ASSERT_OK(Flush({tiered}, nullptr, again.storage.disk.get(), 3));
      }
    }
  }
  EXPECT_GT(firsts, 100);
  EXPECT_GT(seconds, 100);
}

// A copy in a file that could not be synced saves no row from being written when it leaves.
TEST(FlushTest, DoesNotTrustCopiesThatCouldNotBeSynced) {
  const Keys keys = {1, 2, 3, 4, 5};
  bool met = false;
  for (int64_t nth = 0; !met; ++nth) {
    MemoryFileSystem files;
    Opened opened;
    ASSERT_OK(Open(&files, TwinSchema(1, ""), 20, &opened));
    const Caller call(opened.shards[0].get(), HostTestMemory());
    ASSERT_OK(call.Upsert(keys, Floats(5, 7)));
    files.Inject(nth, Fault());
    const Status status = opened.Flush(1);
    files.Heal();
    ASSERT_FALSE(status.ok()) << "no sync was met";
    met = status.message().find("SyncFile") != std::string::npos;
    if (!met) continue;
    const int64_t written = opened.tiered()->tier_stats().rows_written;
    Keys others;
    for (Key key = 100; key < 200; ++key) others.push_back(key);
    ASSERT_OK(call.Upsert(others, Floats(100, 8)));
    const TierStats stats = opened.tiered()->tier_stats();
    EXPECT_GT(stats.rows_left, 80);
    EXPECT_GE(stats.rows_written - written, stats.rows_left);
    Floats values;
    ASSERT_OK(call.Find(keys, &values));
    EXPECT_EQ(values, Floats(5, 7));
  }
}

// Bytes that nobody has written, with a checksum that is right.
TEST(FlushTest, RefusesSchemasThatAreNotOfOneTable) {
  MemoryFileSystem files;
  const TableSchema schema = TwinSchema(2, "");
  {
    Opened opened;
    ASSERT_OK(Open(&files, schema, 20, &opened));
    ASSERT_OK(Caller(opened.shards[0].get(), HostTestMemory()).Upsert({1}, Floats(2, 1)));
    ASSERT_OK(opened.Flush(1));
  }
  FlushManifest written;
  ASSERT_OK(FlushManifest::Parse(files.Get("/tiers/FLUSHED"), &written));
  const auto code_of = [&](const auto& change) {
    FlushManifest manifest = written;
    change(&manifest);
    files.Put("/tiers/FLUSHED", manifest.ToText());
    Opened opened;
    return Open(&files, schema, 20, &opened, static_cast<int64_t>(manifest.shards.size())).code();
  };
  EXPECT_EQ(code_of([](FlushManifest*) {}), Code::kOk);
  EXPECT_EQ(code_of([](FlushManifest* manifest) {
              std::vector<TableSchema>& schemas = manifest->shards[0].schemas;
              schemas.push_back(schemas.back());
            }),
            Code::kDataLoss);
  EXPECT_EQ(code_of([](FlushManifest* manifest) {
              std::vector<TableSchema>& schemas = manifest->shards[0].schemas;
              schemas.insert(schemas.begin(), TwinSchema(1, ""));
            }),
            Code::kDataLoss);
  EXPECT_EQ(code_of([](FlushManifest* manifest) {
              manifest->shards.push_back(manifest->shards[0]);
              manifest->shards[1].schemas.back().dim = 3;
            }),
            Code::kDataLoss);
  EXPECT_EQ(code_of([](FlushManifest* manifest) { manifest->shards[0].rows = int64_t{1} << 47; }),
            Code::kDataLoss);
  EXPECT_EQ(code_of([](FlushManifest* manifest) { manifest->shards[0].files.clear(); }),
            Code::kDataLoss);
  const auto missing = [&](const std::string& suffix) {
    return code_of([&](FlushManifest* manifest) {
      for (const std::string& name : files.Names("/tiers")) {
        if (name.find(suffix) != std::string::npos) {
          EXPECT_TRUE(files.Remove("/tiers/" + name).ok());
        }
      }
      static_cast<void>(manifest);
    });
  };
  EXPECT_EQ(missing(".index"), Code::kDataLoss);
  EXPECT_EQ(missing(".rows"), Code::kDataLoss);
}

// The process ends when the flush is in place and that is not synced; the next one opens the
// folder, and then the machine ends.
TEST(FlushTest, OpeningAFlushSyncsIt) {
  const TableSchema schema = TwinSchema(1, "");
  int met = 0;
  for (int64_t nth = 0; nth < 40; ++nth) {
    for (uint64_t seed = 0; seed < 12; ++seed) {
      MemoryFileSystem files;
      Opened opened;
      ASSERT_OK(Open(&files, schema, 20, &opened));
      const Caller call(opened.shards[0].get(), HostTestMemory());
      ASSERT_OK(call.Upsert({1, 2}, Floats(2, 1)));
      ASSERT_OK(opened.Flush(1));
      ASSERT_OK(call.Upsert({1, 2}, Floats(2, 2)));
      files.Inject(nth, {Fault::kAfter, Code::kInternal, true});
      if (opened.Flush(2).ok()) break;
      const bool in_place = files.Get("/tiers/FLUSHED").find("step 2") != std::string::npos;
      if (!in_place) break;
      ++met;
      files.Kill();
      files.Inject(0, {Fault::kBefore, Code::kInternal, true});
      opened = Opened();
      files.Kill();
      ASSERT_OK(Open(&files, schema, 20, &opened));
      files.CutPower(seed);
      files.Inject(0, {Fault::kBefore, Code::kInternal, true});
      opened = Opened();
      files.Kill();
      ASSERT_OK(Open(&files, schema, 20, &opened));
      EXPECT_EQ(opened.storage.disk->flushed_step(), 2);
      Floats values;
      ASSERT_OK(Caller(opened.shards[0].get(), HostTestMemory()).Find({1, 2}, &values));
      EXPECT_EQ(values, Floats(2, 2));
    }
  }
  EXPECT_GT(met, 0);
}

TEST(FlushTest, KeepsEarlierSchemas) {
  MemoryFileSystem files;
  const TableSchema plain = TwinSchema(3, "");
  TableSchema adam = plain, timed = plain;
  adam.rule = UsualRule("adam");
  timed.rule = UsualRule("adam");
  timed.meta.add(MetaField::kLastWriteTime);
  TableContent want;
  int step = 0;
  for (const TableSchema& next : {plain, adam, timed, plain, timed}) {
    SCOPED_TRACE(step);
    Opened opened;
    ASSERT_OK(Open(&files, plain, 30, &opened));
    ASSERT_EQ(Difference(want, ContentOf(opened)), "");
    if (next.ToText() != opened.schema.ToText()) {
      std::unique_ptr<RowMove> move;
      ASSERT_OK(opened.shards[0]->PrepareMove(OneThread(), next, &move));
      opened.shards[0] = move->Run(OneThread());
    }
    TieredTable* const tiered = opened.tiered();
    Twins twins(std::move(opened.shards[0]), 9);
    for (int i = 0; i < 40; ++i) ASSERT_OK(twins.Call(2000, 60));
    ASSERT_OK(Flush({tiered}, nullptr, opened.storage.disk.get(), ++step));
    want = twins.Content();
  }
}

TEST(FlushTest, HasShardsAndFolders) {
  MemoryFileSystem files;
  const TableSchema schema = TwinSchema(2, "");
  const DiskFolder::Options folders = {{"/a", "/b/c"}};
  TableContent want[2];
  {
    Opened opened;
    ASSERT_OK(Open(&files, schema, 20, &opened, 2, folders));
    for (size_t s = 0; s < 2; ++s) {
      const Caller call(opened.shards[s].get(), HostTestMemory());
      Keys keys;
      for (Key key = 0; key < 1500; ++key) keys.push_back(2 * key + static_cast<Key>(s));
      ASSERT_OK(call.Upsert(keys, Floats(3000, static_cast<float>(s))));
      want[s] = ContentOf(opened, s);
    }
    ASSERT_OK(opened.Flush(5));
  }
  EXPECT_GT(files.Names("/a").size(), 3u);
  EXPECT_GT(files.Names("/b/c").size(), 3u);
  const std::vector<std::string> names = files.Names("/a");
  Opened opened;
  const auto refused = [&](const TableSchema& with, int64_t shards, const DiskFolder::Options& on,
                           const std::string& text) {
    const Status status = Open(&files, with, 20, &opened, shards, on);
    EXPECT_EQ(status.code(), Code::kFailedPrecondition) << status.message();
    EXPECT_NE(status.message().find(text), std::string::npos) << status.message();
    opened = Opened();
    EXPECT_EQ(files.Names("/a"), names);
  };
  refused(schema, 2, {{"/a"}}, "got 1 folders");
  refused(schema, 2, {{"/b/c", "/a"}}, "same order");
  refused(schema, 2, {{"/b/c"}}, "/b/c has a part of a flush");
  refused(schema, 2, {{"/elsewhere", "/b/c"}}, "/b/c has a part of a flush");
  const std::vector<std::string> second = files.Names("/b/c");
  EXPECT_EQ(Open(&files, schema, 20, &opened, 2, {{"/a", "/elsewhere"}}).code(), Code::kDataLoss);
  opened = Opened();
  EXPECT_EQ(files.Names("/a"), names);
  EXPECT_EQ(files.Names("/b/c"), second);
  refused(TwinSchema(3, ""), 2, folders, "rows of another kind of table");
  ASSERT_OK(Open(&files, schema, 20, &opened, 2, folders));
  for (size_t s = 0; s < 2; ++s) EXPECT_EQ(Difference(want[s], ContentOf(opened, s)), "");
  opened = Opened();
  ASSERT_OK(Open(&files, schema, 20, &opened, 1, {folders.paths, false}));
  EXPECT_FALSE(opened.was_flushed);
  EXPECT_EQ(files.Names("/a"), std::vector<std::string>{"LOCK"});
  EXPECT_EQ(files.Names("/b/c"), std::vector<std::string>{"LOCK"});
}

TEST(FlushTest, KeepsStrings) {
  MemoryFileSystem files;
  const TableSchema schema = TwinSchema(1, "");
  std::map<Key, std::string> want;
  {
    Opened opened;
    ASSERT_OK(Open(&files, schema, 20, &opened));
    KeyStrings strings;
    for (Key key = 0; key < 300; ++key) want[key] = std::string(static_cast<size_t>(key % 90), 'x');
    Keys keys;
    std::vector<std::string_view> views;
    for (const auto& [key, string] : want) keys.push_back(key), views.push_back(string);
    ASSERT_OK(strings.Record(keys, views));
    ASSERT_OK(Caller(opened.shards[0].get(), HostTestMemory()).Upsert(keys, Floats(300, 1)));
    ASSERT_OK(opened.Flush(1, &strings));
  }
  Opened opened;
  KeyStrings strings;
  ASSERT_OK(Open(&files, schema, 20, &opened, 1, {{"/tiers"}}, {}, nullptr, &strings));
  EXPECT_TRUE(opened.was_flushed);
  EXPECT_EQ(opened.storage.disk->TakeFlushed(), nullptr);
  Keys keys;
  for (const auto& [key, string] : want) keys.push_back(key);
  std::map<Key, std::string> got;
  ASSERT_OK(strings.Get(keys, [&](int64_t i, std::string_view string) {
    got[keys[static_cast<size_t>(i)]] = string;
  }));
  EXPECT_EQ(got, want);
  EXPECT_EQ(strings.size(), 300);
}

// Damage is an error that names the file, at the latest when the row is read; never another row.
TEST(FlushTest, NoticesDamage) {
  MemoryFileSystem files;
  const TableSchema schema = TwinSchema(2, "");
  TableContent want;
  {
    Opened opened;
    ASSERT_OK(Open(&files, schema, 20, &opened));
    Keys keys;
    for (Key key = 0; key < 200; ++key) keys.push_back(key);
    ASSERT_OK(Caller(opened.shards[0].get(), HostTestMemory()).Upsert(keys, Floats(400, 1)));
    ASSERT_OK(opened.Flush(1));
    want = ContentOf(opened);
  }
  std::mt19937_64 random(3);
  for (const std::string& name : files.Names("/tiers")) {
    if (name == "LOCK") continue;
    const std::string path = "/tiers/" + name, whole = files.Get(path);
    const auto look = [&](const std::string& what) {
      SCOPED_TRACE(StrCat(path, ": ", what));
      Opened opened;
      const Status status = Open(&files, schema, 20, &opened);
      if (!status.ok()) {
        EXPECT_TRUE(status.code() == Code::kDataLoss || status.code() == Code::kUnimplemented)
            << status.message();
        EXPECT_NE(status.message().find(path), std::string::npos) << status.message();
        return;
      }
      int damaged = 0;
      const Caller call(opened.shards[0].get(), HostTestMemory());
      for (const auto& [key, row] : want) {
        TableContent rows;
        const Status read = call.ReadRows({key}, &rows);
        if (!read.ok()) {
          EXPECT_EQ(read.code(), Code::kDataLoss);
          EXPECT_NE(read.message().find(path), std::string::npos) << read.message();
          ++damaged;
        } else {
          ASSERT_EQ(Difference({{key, row}}, rows), "");
        }
      }
      EXPECT_EQ(damaged, name.find(".rows") == std::string::npos ? 0 : 1);
    };
    for (int i = 0; i < 60; ++i) {
      const size_t at = i < 10 ? static_cast<size_t>(i) : random() % whole.size();
      std::string bytes = whole;
      bytes[at] = static_cast<char>(bytes[at] ^ (1 << random() % 8));
      files.Put(path, bytes);
      look(StrCat("byte ", at));
    }
    for (const size_t size : {size_t{0}, size_t{20}, whole.size() / 2, whole.size() - 1}) {
      files.Put(path, whole.substr(0, size));
      Opened opened;
      const Status status = Open(&files, schema, 20, &opened);
      EXPECT_EQ(status.code(), Code::kDataLoss) << path << " of " << size << " bytes";
      EXPECT_NE(status.message().find(path), std::string::npos) << status.message();
    }
    files.Put(path, whole);
  }
  Opened opened;
  ASSERT_OK(Open(&files, schema, 20, &opened));
  EXPECT_EQ(Difference(want, ContentOf(opened)), "");
}

// A file that could not be synced once is not trusted when a later sync succeeds.
TEST(FlushTest, WritesRowsOfAFileThatCouldNotBeSyncedAnew) {
  MemoryFileSystem files;
  Opened opened;
  ASSERT_OK(Open(&files, TwinSchema(2, ""), 20, &opened));
  Keys keys;
  for (Key key = 0; key < 100; ++key) keys.push_back(key);
  const Caller call(opened.shards[0].get(), HostTestMemory());
  ASSERT_OK(call.Upsert(keys, Floats(200, 1)));
  bool failed = false;
  for (int64_t nth = 0; !failed; ++nth) {
    const std::vector<std::string> before = files.Names("/tiers");
    files.Inject(nth, Fault());
    const Status status = opened.Flush(1);
    files.Heal();
    ASSERT_FALSE(status.ok()) << "no sync was met";
    if (status.message().find("SyncFile") == std::string::npos) continue;
    failed = true;
    const size_t begin = status.message().find("tier-");
    const std::string name =
        status.message().substr(begin, status.message().find(".rows") + 5 - begin);
    ASSERT_OK(opened.Flush(2));
    const std::vector<std::string> names = files.Names("/tiers");
    EXPECT_EQ(std::count(names.begin(), names.end(), name), 0) << name;
  }
  EXPECT_EQ(call.Export().size(), 100u);
}

}  // namespace
}  // namespace dynemb

// A snapshot that several processes write: whatever fails or dies in any of them, at any operation,
// leaves exactly the earlier snapshot or exactly the new one, and the next save works and tidies
// up. The processes are played one after the other, in different orders, over one file system.
#include <algorithm>
#include <cstdio>
#include <functional>
#include <set>
#include <utility>

#include "cc/core/snapshot/loader.h"
#include "cc/core/snapshot/reader.h"
#include "cc/core/snapshot/writer.h"
#include "cc/core/testing/caller.h"
#include "cc/core/testing/memory_file_system.h"
#include "cc/core/testing/snapshots.h"
#include "gtest/gtest.h"

namespace dynemb {
namespace {

const char kFolder[] = "/folder/s";
constexpr int64_t kPowerCuts = kUnderAddressSanitizer ? 0 : 1;

std::vector<TestTable> Tables(uint64_t seed) {
  const TableSchema users = MakeSchema(DType::kFloat32, 3, "adam", {MetaField::kLastWriteTime});
  const TableSchema items = MakeSchema(DType::kInt8, 5);
  return {{"users", users, RandomRows(users, 20, seed)},
          {"items", items, RandomRows(items, 9, seed)}};
}

// What processes hold together of Tables(seed), each the keys that are its number modulo theirs.
// Process p has p + 1 shards, so that no two write as many files.
std::vector<std::unique_ptr<Shards>> Held(uint64_t seed, int64_t processes) {
  std::vector<std::unique_ptr<Shards>> held;
  for (int64_t p = 0; p < processes; ++p) {
    const KeyPart part = {p, processes, seed % 2 == 1};
    std::vector<TestTable> mine = Tables(seed);
    for (TestTable& table : mine) {
      table.shards = p + 1;
      for (auto row = table.rows.begin(); row != table.rows.end();) {
        row = part.has(row->first) ? std::next(row) : table.rows.erase(row);
      }
    }
    held.push_back(std::make_unique<Shards>(mine));
  }
  return held;
}

class Job {
 public:
  Job(MemoryFileSystem* files, uint64_t seed, int64_t processes) : files_(files) {
    static auto* const all = new std::map<std::pair<uint64_t, int64_t>, decltype(Held(0, 0))>;
    auto& held = (*all)[{seed, processes}];
    if (held.empty()) held = Held(seed, processes);
    for (const auto& shards : held) tables_.push_back(shards->named());
  }
  size_t processes() const { return tables_.size(); }
  std::vector<TableToSave>& tables(size_t process) { return tables_[process]; }

  Status Begin() { return SnapshotSave::Begin(files_, kFolder, &save_); }
  Status Write(size_t process, uint64_t base = 0) {
    const WriterPlace place = {id(), static_cast<int64_t>(process),
                               static_cast<int64_t>(processes())};
    parts_.resize(processes());
    return WriteTables(OneThread(), files_, kFolder, place, tables_[process], base,
                       &parts_[process]);
  }
  Status Commit() {
    Manifest manifest;
    return save_->Commit(parts_, &manifest);
  }
  // The first process gives up, or is dead.
  void End() { save_.reset(); }
  uint64_t id() {
    if (save_ != nullptr) id_ = save_->id();
    return id_;
  }
  std::vector<Manifest>& parts() { return parts_; }

  Status Save(uint64_t base = 0) {
    Status status = Begin();
    for (size_t p = 0; status.ok() && p < processes(); ++p) status = Write(p, base);
    if (status.ok()) status = Commit();
    End();
    return status;
  }

 private:
  MemoryFileSystem* const files_;
  std::vector<std::vector<TableToSave>> tables_;
  std::unique_ptr<SnapshotSave> save_;
  uint64_t id_ = 0;
  std::vector<Manifest> parts_;
};

// Which of the contents is in the folder; 0 for none; -1 for something else.
int Which(MemoryFileSystem* files, const std::vector<SnapshotContent>& contents) {
  SnapshotContent got;
  const Status loaded = Load(files, kFolder, &got);
  if (loaded.code() == Code::kNotFound) return 0;
  for (size_t c = 0; loaded.ok() && c < contents.size(); ++c) {
    if (Difference(contents[c], got).empty()) return static_cast<int>(c) + 1;
  }
  ADD_FAILURE() << "none of them: " << loaded.message();
  return -1;
}

// The folder has the files of its snapshot and nothing else.
void ExpectNoObsoleteFiles(MemoryFileSystem* files) {
  std::vector<std::string> want = {"LOCK"};
  std::unique_ptr<SnapshotReader> reader;
  if (SnapshotReader::Open(files, kFolder, &reader).ok()) {
    want.push_back("MANIFEST");
    for (const SnapshotFile& file : reader->manifest().files) want.push_back(file.name);
  }
  std::sort(want.begin(), want.end());
  EXPECT_EQ(files->Names(kFolder), want);
}

TEST(SeveralWritersTest, AnyNumberOfPartsIsReadByAnyOther) {
  const std::vector<TestTable> tables = Tables(7);
  for (const int64_t writers : {1, 2, 3, 5}) {
    MemoryFileSystem files;
    ASSERT_OK(Job(&files, 7, writers).Save());
    EXPECT_EQ(Which(&files, {ContentOf(tables)}), 1);
    ExpectNoObsoleteFiles(&files);
    std::unique_ptr<SnapshotReader> reader;
    ASSERT_OK(SnapshotReader::Open(&files, kFolder, &reader));
    for (const int64_t readers : {1, 2, 3, 4}) {
      SCOPED_TRACE(StrCat(writers, " to ", readers));
      for (int64_t r = 0; r < readers; ++r) {
        std::vector<TestTable> empty = tables;
        for (TestTable& table : empty) table.rows.clear(), table.shards = 1 + r % 2;
        const Shards loaded(empty);
        for (int64_t t = 0; t < 2; ++t) {
          const std::vector<Table*>& to = loaded.named()[static_cast<size_t>(t)].shards;
          SnapshotPlace place;
          std::vector<BlockEntry> blocks;
          ASSERT_OK(reader->List(t, 1000, &place, &blocks));
          ASSERT_OK(LoadRows(OneThread(), *reader, blocks, nullptr, to, nullptr, {r, readers}));
          TableContent want, got;
          for (const auto& [key, row] : tables[static_cast<size_t>(t)].rows) {
            if (((key % readers) + readers) % readers == r) want[key] = row;
          }
          for (const Table* shard : to) got.merge(ExportAll(*shard, HostTestMemory(), 100));
          EXPECT_EQ(Difference(want, got), "");
        }
      }
    }
  }
}

// Erased keys and changes that only some of the processes have.
TEST(SeveralWritersTest, Deltas) {
  MemoryFileSystem files;
  Job job(&files, 11, 3);
  int64_t ended[3][2];
  for (size_t p = 0; p < 3; ++p) {
    for (size_t t = 0; t < 2; ++t) {
      ASSERT_OK(BeginEpoch(OneThread(), job.tables(p)[t].shards, &ended[p][t]));
    }
  }
  ASSERT_OK(job.Save());
  SnapshotContent rows, changed;
  std::map<std::string, std::vector<Key>> erased;
  ASSERT_OK(Load(&files, kFolder, &rows));
  const uint64_t base = job.id();
  // Users of process 1 lose a row and get new ones; items of process 2 get one.
  const TableSchema users = Tables(11)[0].schema, items = Tables(11)[1].schema;
  const Caller call(job.tables(1)[0].shards[0], HostTestMemory());
  const Key gone = call.Export().begin()->first;
  ASSERT_OK(call.Erase({gone}));
  ASSERT_OK(call.InsertRows({{1 - 3'000'000, RandomRows(users, 1, 2).begin()->second}}));
  ASSERT_OK(Caller(job.tables(2)[1].shards[0], HostTestMemory())
                .InsertRows({{2 + 3'000'000, RandomRows(items, 1, 2).begin()->second}}));
  for (size_t p = 0; p < 3; ++p) {
    for (size_t t = 0; t < 2; ++t) job.tables(p)[t].since_epoch = ended[p][t];
  }
  ASSERT_OK(job.Save(base));
  ASSERT_OK(Load(&files, kFolder, &changed, &erased));
  EXPECT_EQ(erased["users"], std::vector<Key>{gone});
  EXPECT_TRUE(erased["items"].empty());
  ASSERT_EQ(changed["users"].size(), 1u);
  EXPECT_EQ(changed["users"].begin()->first, 1 - 3'000'000);
  ASSERT_EQ(changed["items"].size(), 1u);
  EXPECT_EQ(changed["items"].begin()->first, 2 + 3'000'000);
}

TEST(SeveralWritersTest, PartsThatAreNotOfTheSnapshotAreRefused) {
  MemoryFileSystem files;
  Job old(&files, 1, 3), job(&files, 2, 3), other(&files, 2, 3);
  ASSERT_OK(old.Save());
  ASSERT_OK(job.Begin());
  for (size_t p = 0; p < 3; ++p) ASSERT_OK(job.Write(p));
  const std::vector<Manifest> good = job.parts();
  const auto refused = [&](const std::function<void(std::vector<Manifest>*)>& change, Code code,
                           const std::string& why) {
    job.parts() = good;
    change(&job.parts());
    const Status status = job.Commit();
    EXPECT_EQ(status.code(), code) << why;
    EXPECT_NE(status.message().find(why), std::string::npos) << status.message();
    EXPECT_EQ(Which(&files, {ContentOf(Tables(1))}), 1) << why;
  };
  using Parts = std::vector<Manifest>;
  refused([](Parts* parts) { parts->clear(); }, Code::kInvalidArgument, "parts: got none");
  refused([](Parts* parts) { parts->pop_back(); }, Code::kInvalidArgument, "part 0 of 2: got file");
  refused([](Parts* parts) { std::swap((*parts)[1], (*parts)[2]); }, Code::kInvalidArgument,
          "part 1 of 3: got file");
  refused([&](Parts* parts) { (*parts)[1] = old.parts()[1]; }, Code::kInvalidArgument,
          "part 1: got one of snapshot " + IdText(old.id()));
  refused([](Parts* parts) { (*parts)[2].base = 5; }, Code::kFailedPrecondition,
          "writer 2 saves other tables, or a delta of another base");
  refused([](Parts* parts) { (*parts)[1].tables.pop_back(); }, Code::kFailedPrecondition,
          "writer 1 saves other tables");
  refused([](Parts* parts) { (*parts)[1].tables[0].schema = (*parts)[1].tables[1].schema; },
          Code::kFailedPrecondition, "writer 1 saves other tables");
  refused([](Parts* parts) { (*parts)[1].files[0].bytes += 1; }, Code::kFailedPrecondition,
          "writer 1 has written it: do all writers save into one folder?");
  ASSERT_OK(files.Remove(JoinPath(kFolder, good[2].files[1].name)));
  refused([](Parts*) {}, Code::kFailedPrecondition, "writer 2 has written it: do all writers");
  job.End();
  ExpectNoObsoleteFiles(&files);
  ASSERT_OK(job.Save());
  EXPECT_EQ(Which(&files, {ContentOf(Tables(2))}), 1);
}

// Two jobs that take each other for dead: the folder belongs to who has the lock, and what the
// other still writes is in nobody's way.
TEST(SeveralWritersTest, AJobThatIsThoughtDeadWritesOn) {
  MemoryFileSystem files;
  Job dead(&files, 1, 3), job(&files, 2, 2);
  ASSERT_OK(dead.Begin());
  const Status second = job.Save();
  EXPECT_EQ(second.code(), Code::kFailedPrecondition);
  EXPECT_NE(second.message().find("is another snapshot being saved into"), std::string::npos);
  ASSERT_OK(dead.Write(1));
  files.Kill();  // its first process
  ASSERT_OK(job.Begin());
  ASSERT_OK(job.Write(0));
  ASSERT_OK(dead.Write(2));
  ASSERT_OK(job.Write(1));
  ASSERT_OK(job.Commit());
  job.End();
  ASSERT_OK(dead.Write(0));
  EXPECT_EQ(Which(&files, {ContentOf(Tables(2))}), 1);
  ASSERT_OK(job.Save());
  EXPECT_EQ(Which(&files, {ContentOf(Tables(2))}), 1);
  ExpectNoObsoleteFiles(&files);
}

// Over an earlier snapshot (1) and into an empty folder (0).
class WritersFaultTest : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(From, WritersFaultTest, ::testing::Values(0, 1));

// The first process begins, all write in some order, the first one commits unless somebody failed.
// One that dies has no effect any more; the others learn of it when they have written.
TEST_P(WritersFaultTest, EveryFaultAtEveryOperationOfEveryWriter) {
  const std::vector<SnapshotContent> contents = {ContentOf(Tables(1)), ContentOf(Tables(2)),
                                                 ContentOf(Tables(3))};
  const std::vector<std::vector<size_t>> orders = {{0, 1, 2}, {2, 1, 0}};
  int64_t runs = 0, ended[3] = {};
  std::set<size_t> hit;  // who met a fault
  const auto run = [&](const std::vector<size_t>& order, int64_t n, const Fault& fault,
                       int64_t power_cut) {
    MemoryFileSystem files;
    if (GetParam() == 1) ASSERT_OK(Job(&files, 1, 2).Save());
    Job job(&files, 2, 3);
    SCOPED_TRACE(StrCat("operation ", n, ", when ", fault.when, ", dies ", fault.dies, ", from ",
                        order[0], ", power cut ", power_cut));
    files.Inject(n, fault);
    bool first_lives = true, all_wrote = true;
    const auto did = [&](size_t process, const Status& status) {
      if (status.ok()) return true;
      hit.insert(process);
      if (process == 0 && fault.dies) {
        job.End();  // without effect
        first_lives = false;
        files.Kill();
      } else {
        files.Heal();
      }
      return false;
    };
    Status status = job.Begin();
    bool begun = did(0, status);
    for (const size_t process : order) {
      if (begun && !did(process, job.Write(process))) all_wrote = false;
    }
    if (begun && all_wrote) {
      status = job.Commit();
      did(0, status);
    }
    const bool saved = begun && all_wrote && status.ok();
    job.End();
    files.Heal();
    if (power_cut >= 0) files.CutPower(static_cast<uint64_t>(power_cut * 1000 + n));
    const int now = Which(&files, contents);
    ASSERT_TRUE(now == GetParam() || now == 2) << now;
    if (saved) {
      ASSERT_EQ(now, 2) << "it was reported as saved";
    } else if (!begun || !all_wrote) {
      ASSERT_EQ(now, GetParam()) << "a writer was missing";
    } else if (!fault.dies && power_cut < 0 &&
               status.message().find("is in place but may") == std::string::npos) {
      ASSERT_EQ(now, GetParam()) << "it was reported as failed: " << status.message();
    }
    if (begun && first_lives && power_cut < 0 && now != 2) ExpectNoObsoleteFiles(&files);
    ++ended[now];
    ++runs;
    const Status next = Job(&files, 3, 1 + n % 4).Save();
    ASSERT_TRUE(next.ok()) << next.message();
    ASSERT_EQ(Which(&files, contents), 3);
    ExpectNoObsoleteFiles(&files);
  };
  MemoryFileSystem probe;
  if (GetParam() == 1) ASSERT_OK(Job(&probe, 1, 2).Save());
  const int64_t before = probe.operations();
  ASSERT_OK(Job(&probe, 2, 3).Save());
  const int64_t operations = probe.operations() - before;
  for (const std::vector<size_t>& order : orders) {
    for (int64_t n = 0; n < operations; ++n) {
      for (const Fault::When when : {Fault::kBefore, Fault::kHalfWay, Fault::kAfter}) {
        for (const bool dies : {false, true}) {
          for (int64_t cut = -1; cut < kPowerCuts * SoakFactor(); ++cut) {
            run(order, n, {when, Code::kResourceExhausted, dies}, cut);
            if (HasFatalFailure() || HasFailure()) return;
          }
        }
      }
    }
  }
  EXPECT_EQ(hit.size(), 3u);
  EXPECT_GT(ended[GetParam()], runs / 2);
  EXPECT_GT(ended[2], runs / 100);
  std::printf("%lld runs, %lld operations\n", static_cast<long long>(runs),
              static_cast<long long>(operations));
}

}  // namespace
}  // namespace dynemb

// Saving while the disk fails, the process is killed or the power is cut, at every operation of a
// save in turn: afterwards there is exactly the earlier snapshot or exactly the new one, what was
// reported is what is there, and the next save works and tidies up. The faults are those of
// testing/memory_file_system.h; kill_test.cc kills real processes.
#include <algorithm>
#include <cstdio>
#include <random>
#include <set>
#include <utility>

#include "cc/core/snapshot/reader.h"
#include "cc/core/snapshot/writer.h"
#include "cc/core/testing/caller.h"
#include "cc/core/testing/memory_file_system.h"
#include "cc/core/testing/snapshots.h"
#include "gtest/gtest.h"

namespace dynemb {
namespace {

const char kFolder[] = "/folder/s";

// AddressSanitizer makes each save some 30 times slower.
constexpr int64_t kSeeds = kUnderAddressSanitizer ? 1 : 4;
constexpr int64_t kHistory = kUnderAddressSanitizer ? 200 : 2000;

// What comes after the fault.
struct Aftermath {
  enum Kind { kGoOn, kKill, kPowerCut } kind = kGoOn;
  uint64_t seed = 0;
};

std::vector<TestTable> Tables(uint64_t seed) {
  const TableSchema users = MakeSchema(DType::kFloat32, 3, "adam", {MetaField::kLastWriteTime});
  const TableSchema items = MakeSchema(DType::kInt8, 5);
  const int64_t rows = static_cast<int64_t>(seed) * 5;
  return {{"users", users, RandomRows(users, rows, seed), 2},
          {"items", items, RandomRows(items, 9, seed)}};
}

// A state that a folder may be in: the n-th save's, or none for 0.
class States {
 public:
  States() {
    for (uint64_t n = 1; n < 6; ++n) {
      content_.push_back(ContentOf(Tables(n)));
      shards_.push_back(std::make_unique<Shards>(Tables(n)));
    }
  }
  static constexpr int kCount = 5;
  const Shards& shards(int n) const { return *shards_[static_cast<size_t>(n) - 1]; }

  // Which of the states is in the folder? -1 and a failure of the test if none of them.
  int Which(MemoryFileSystem* files, const std::set<int>& candidates) const {
    SnapshotContent got;
    const Status loaded = Load(files, kFolder, &got);
    std::string names;
    for (const int n : candidates) {
      if (n == 0 ? loaded.code() == Code::kNotFound
                 : loaded.ok() && Difference(content_[static_cast<size_t>(n) - 1], got).empty()) {
        return n;
      }
      names += StrCat(" ", n);
    }
    ADD_FAILURE() << "none of" << names << ": " << loaded.message();
    return -1;
  }

 private:
  std::vector<SnapshotContent> content_;
  std::vector<std::unique_ptr<Shards>> shards_;
};

const States& AllStates() {
  static const States* const states = new States;
  return *states;
}

// A folder with what has been saved into it.
struct Folder {
  MemoryFileSystem files;
  int now = 0;
  // The states that a power cut may bring back: a name that was given and not synced may be lost.
  std::set<int> maybe = {0};

  Status Save(int next) {
    const Status saved = dynemb::Save(&files, kFolder, AllStates().shards(next));
    if (saved.ok()) now = next, maybe = {next};
    return saved;
  }
  void Happen(const Aftermath& aftermath) {
    if (aftermath.kind == Aftermath::kGoOn) files.Heal();
    if (aftermath.kind == Aftermath::kKill) files.Kill();
    if (aftermath.kind == Aftermath::kPowerCut) files.CutPower(aftermath.seed);
  }
  void SaveWithFault(int next, int64_t n, const Fault& fault, const Aftermath& aftermath);
};

// Saves `next` over `now` with a fault at the n-th operation, and looks at what is there then.
void Folder::SaveWithFault(int next, int64_t n, const Fault& fault, const Aftermath& aftermath) {
  const bool power_cut = aftermath.kind == Aftermath::kPowerCut;
  const int before = now;
  const bool may_come_back = power_cut && maybe.count(next) > 0;
  files.Inject(n, fault);
  const Status saved = Save(next);
  SCOPED_TRACE(StrCat("operation ", n, " of the save: ", saved.message(), "; when ", fault.when,
                      ", code ", static_cast<int>(fault.code), ", dies ", fault.dies, ", then ",
                      aftermath.kind, " seed ", aftermath.seed));
  Happen(aftermath);
  std::set<int> candidates = {before};
  if (power_cut) candidates = maybe;
  candidates.insert(next);
  now = AllStates().Which(&files, candidates);
  maybe.insert(now);
  if (power_cut) maybe = {now};
  const auto says = [&](const char* what) {
    return saved.message().find(what) != std::string::npos;
  };
  if (saved.ok()) {
    EXPECT_EQ(now, next) << "it was reported as saved";
  } else if (says("is in place but may not survive")) {
    EXPECT_TRUE(power_cut || now == next);
  } else if (!says("may be in place or not")) {
    EXPECT_TRUE(now == before || power_cut) << "it was reported as failed";
    EXPECT_TRUE(now != next || before == next || may_come_back) << "it was reported as failed";
  } else {
    EXPECT_TRUE(fault.dies) << "it can be known";
  }
}

// The folder has a snapshot's files and nothing else.
void ExpectNoObsoleteFiles(MemoryFileSystem* files) {
  std::unique_ptr<SnapshotReader> reader;
  ASSERT_TRUE(SnapshotReader::Open(files, kFolder, &reader).ok());
  std::vector<std::string> want = {"LOCK", "MANIFEST"};
  for (const SnapshotFile& file : reader->manifest().files) want.push_back(file.name);
  std::sort(want.begin(), want.end());
  EXPECT_EQ(files->Names(kFolder), want);
}

void ExpectNextSaveWorks(Folder* folder, int next) {
  const Status saved = folder->Save(next);
  ASSERT_TRUE(saved.ok()) << saved.message();
  EXPECT_EQ(AllStates().Which(&folder->files, {next}), next);
  ExpectNoObsoleteFiles(&folder->files);
}

std::vector<Fault> Faults() {
  std::vector<Fault> faults = {{Fault::kBefore, Code::kDataLoss, false},
                               {Fault::kBefore, Code::kNotFound, false}};
  for (const Fault::When when : {Fault::kBefore, Fault::kHalfWay, Fault::kAfter}) {
    faults.push_back({when, Code::kInternal, false});
    faults.push_back({when, Code::kInternal, true});
    faults.push_back({when, Code::kResourceExhausted, false});
  }
  return faults;
}

// Over an earlier snapshot (1) and into an empty folder (0).
class SaveFaultTest : public ::testing::TestWithParam<int> {
 protected:
  static std::unique_ptr<Folder> Begin() {
    auto folder = std::make_unique<Folder>();
    EXPECT_TRUE(GetParam() == 0 || folder->Save(GetParam()).ok());
    return folder;
  }
};
INSTANTIATE_TEST_SUITE_P(From, SaveFaultTest, ::testing::Values(0, 1));

TEST_P(SaveFaultTest, EveryFaultAtEveryOperation) {
  const auto probe = Begin();
  const int64_t before = probe->files.operations();
  ASSERT_TRUE(probe->Save(2).ok());
  const int64_t operations = probe->files.operations() - before;
  int64_t runs = 0, ended[3] = {};
  for (int64_t n = 0; n < operations; ++n) {
    for (const Fault& fault : Faults()) {
      std::vector<Aftermath> aftermaths = {{Aftermath::kKill, 0}};
      if (!fault.dies) aftermaths.push_back({Aftermath::kGoOn, 0});
      for (int64_t seed = 0; seed < kSeeds * SoakFactor(); ++seed) {
        aftermaths.push_back({Aftermath::kPowerCut, static_cast<uint64_t>(seed * 1000 + n)});
      }
      for (const Aftermath& aftermath : aftermaths) {
        const auto folder = Begin();
        folder->SaveWithFault(2, n, fault, aftermath);
        if (HasFailure()) return;
        ++ended[folder->now];
        ++runs;
        ExpectNextSaveWorks(folder.get(), 3);
      }
    }
  }
  // Both ends do come, so that the above says something.
  EXPECT_GT(ended[GetParam()], runs / 4);
  EXPECT_GT(ended[2], runs / 20);
  std::printf("%lld runs, %lld operations\n", static_cast<long long>(runs),
              static_cast<long long>(operations));
}

// A save that was reported as done survives any power cut after it.
TEST_P(SaveFaultTest, WhatIsSavedSurvivesAPowerCut) {
  for (uint64_t seed = 0; seed < 75 * static_cast<uint64_t>(kSeeds); ++seed) {
    const auto folder = Begin();
    ASSERT_TRUE(folder->Save(2).ok());
    folder->files.CutPower(seed);
    ASSERT_EQ(AllStates().Which(&folder->files, {2}), 2) << seed;
    ExpectNextSaveWorks(folder.get(), 3);
  }
}

// Many saves in the same folder, each with its fault, what is left of each meeting the next.
TEST(FaultHistoryTest, NeverAMixture) {
  const std::vector<Fault> faults = Faults();
  Folder folder;
  std::mt19937_64 random(20240607);
  for (int64_t round = 0; round < kHistory * SoakFactor(); ++round) {
    const int next = 1 + static_cast<int>(random() % States::kCount);
    const Aftermath aftermath = {static_cast<Aftermath::Kind>(random() % 3), random()};
    Fault fault = faults[random() % faults.size()];
    if (aftermath.kind == Aftermath::kGoOn) fault.dies = false;
    folder.SaveWithFault(next, static_cast<int64_t>(random() % 45), fault, aftermath);
    ASSERT_FALSE(::testing::Test::HasFailure()) << "round " << round;
  }
  ExpectNextSaveWorks(&folder, 1);
}

// The files of a snapshot that failed are removed at once where the process lives.
TEST(FailedSaveTest, LeavesNothing) {
  Folder folder;
  ASSERT_TRUE(folder.Save(1).ok());
  for (int64_t n = 2; n < 20; ++n) {
    folder.files.Inject(n, {Fault::kHalfWay, Code::kResourceExhausted});
    EXPECT_EQ(folder.Save(2).code(), Code::kResourceExhausted) << n;
    ExpectNoObsoleteFiles(&folder.files);
  }
}

// A delta that could not be saved loses nothing: the next one of the same base has what has changed
// in all. One fault at each operation of the first.
TEST(DeltaFaultTest, AFailedDeltaLosesNothing) {
  const TableSchema schema = MakeSchema(DType::kFloat32, 2, "adagrad");
  int64_t failed = 0;
  for (int64_t n = 0; n < 30; ++n) {
    SCOPED_TRACE(n);
    MemoryFileSystem files;
    const Shards shards({{"t", schema, RandomRows(schema, 100, 1)}});
    std::vector<TableToSave> tables = shards.named();
    const Caller call(tables[0].shards[0], HostTestMemory());
    Manifest full, delta;
    ASSERT_TRUE(BeginEpoch(OneThread(), tables[0].shards, &tables[0].since_epoch).ok());
    const int64_t since = std::exchange(tables[0].since_epoch, -1);
    ASSERT_TRUE(SaveTables(OneThread(), &files, "/full", tables, 0, &full).ok());
    tables[0].since_epoch = since;
    for (uint64_t round = 0; round < 2; ++round) {
      TableContent all = call.Export();
      ASSERT_TRUE(call.Erase({all.begin()->first, std::next(all.begin())->first}).ok());
      ASSERT_TRUE(call.InsertRows(RandomRows(schema, 5, 10 + round)).ok());
      int64_t ended;
      ASSERT_TRUE(BeginEpoch(OneThread(), tables[0].shards, &ended).ok());
      if (round == 0) files.Inject(n, {Fault::kHalfWay, Code::kResourceExhausted});
      const Status saved = SaveTables(OneThread(), &files, "/delta", tables, full.id, &delta);
      ASSERT_TRUE(saved.ok() || round == 0) << saved.message();
      failed += !saved.ok();
      files.Heal();
    }
    SnapshotContent rows, changed;
    std::map<std::string, std::vector<Key>> erased;
    ASSERT_TRUE(Load(&files, "/full", &rows).ok());
    ASSERT_TRUE(Load(&files, "/delta", &changed, &erased).ok());
    for (const Key key : erased["t"]) rows["t"].erase(key);
    for (const auto& [key, row] : changed["t"]) rows["t"][key] = row;
    EXPECT_EQ(Difference(call.Export(), rows["t"]), "");
    EXPECT_LT(changed["t"].size(), 20u);
  }
  EXPECT_GT(failed, 10);
}

// A read that fails is an error that says so, and the next one works.
TEST(LoadFaultTest, AFaultAtEveryRead) {
  Folder folder;
  MemoryFileSystem& files = folder.files;
  ASSERT_TRUE(folder.Save(1).ok());
  const int64_t before = files.operations();
  ASSERT_EQ(AllStates().Which(&files, {1}), 1);
  const int64_t operations = files.operations() - before;
  EXPECT_GT(operations, 20);
  SnapshotContent got;
  for (int64_t n = 0; n < operations; ++n) {
    for (const Fault& fault : Faults()) {
      files.Inject(n, fault);
      const Status loaded = Load(&files, kFolder, &got);
      EXPECT_FALSE(loaded.ok()) << n;
      EXPECT_NE(loaded.message().find(kFolder), std::string::npos) << loaded.message();
      files.Heal();
    }
  }
  EXPECT_EQ(AllStates().Which(&files, {1}), 1);
}

}  // namespace
}  // namespace dynemb

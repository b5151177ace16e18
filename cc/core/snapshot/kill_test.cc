// A trainer that is killed at random moments and resumed from its last snapshot, on real files:
// after every kill the snapshot is one of those that an undisturbed run makes, and at the end the
// table is that run's, bit for bit.
//
// The trainer knows nothing of being killed. A life that is too short to reach the next snapshot
// makes the following lives longer, so that the test ends on any machine. 25 kills, and 1000 with
// TF_DYNEMB_SOAK=1.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <random>
#include <set>

#include "cc/core/snapshot/reader.h"
#include "cc/core/snapshot/writer.h"
#include "cc/core/table/host_table.h"
#include "cc/core/testing/caller.h"
#include "cc/core/testing/snapshots.h"
#include "gtest/gtest.h"

namespace dynemb {
namespace {

constexpr int64_t kSteps = 100, kSaveEvery = 4, kKeys = 2000, kBatch = 300;

// The state of training: a table of two shards, and the number of steps in a table of its own.
class Trainer {
 public:
  Trainer() {
    TableSchema schema = MakeSchema(DType::kFloat32, 8, "adam", {MetaField::kCount});
    schema.initializer.distribution = {Distribution::Kind::kUniform, -1, 1};
    const TableSchema number = MakeSchema(DType::kInt64, 1);
    shards_.resize(3);
    Status made;
    for (size_t s = 0; s < 3 && made.ok(); ++s) {
      made = MakeHostTable(s < 2 ? schema : number, &shards_[s]);
    }
    Check(made);
    tables_ = {{"rows", {shards_[0].get(), shards_[1].get()}}, {"step", {shards_[2].get()}}};
  }

  // Goes on from the snapshot in the folder, if there is one, to the end, saving into
  // folder_of(step) on the way.
  void Run(const std::string& from, const std::function<std::string(int64_t)>& folder_of) {
    for (int64_t step = Restore(from) + 1; step <= kSteps; ++step) {
      Train(step);
      if (step % kSaveEvery != 0) continue;
      Manifest manifest;
      Check(Upsert(step));
      Check(SaveTables(HostTestMemory()->context(), PosixFileSystem(), folder_of(step), tables_, 0,
                       &manifest));
    }
  }

 private:
  // Whatever goes wrong ends the process, which the test sees.
  static void Check(const Status& status) {
    if (status.ok()) return;
    std::fprintf(stderr, "trainer: %s\n", status.message().c_str());
    std::_Exit(1);
  }

  int64_t Restore(const std::string& folder) {
    std::unique_ptr<SnapshotReader> reader;
    const Status opened = SnapshotReader::Open(PosixFileSystem(), folder, &reader);
    if (opened.code() == Code::kNotFound) return 0;
    Check(opened);
    SnapshotPlace place;
    SnapshotBlock block;
    int64_t step = 0;
    for (bool done = false;;) {
      Check(reader->Next(-1, &place, &block, &done));
      if (done) return step;
      if (block.table == 1) std::copy_n(block.rows.values[0], 8, reinterpret_cast<char*>(&step));
      for (int64_t i = 0; i < block.rows.keys.size; ++i) {
        const auto row = [&](const ConstRows& part) {
          return ConstRows(part[i], 1, part.stride_bytes);
        };
        const int64_t shard = block.table == 1 ? 2 : block.rows.keys[i] % 2;
        Batch batch;
        batch.keys = {&block.rows.keys[i], 1};
        Check(shards_[static_cast<size_t>(shard)]->InsertRows(
            OneThread(), batch,
            {{}, row(block.rows.values), row(block.rows.slots), row(block.rows.meta)}, RowParts(),
            Report()));
      }
    }
  }

  // A function of the step alone: some keys are updated, and some erased.
  void Train(int64_t step) {
    std::mt19937_64 random(static_cast<uint64_t>(step));
    std::set<Key> batch[2];
    for (int64_t i = 0; i < kBatch; ++i) {
      const Key key = static_cast<Key>(random() % kKeys);
      batch[key % 2].insert(key);
    }
    for (size_t s = 0; s < 2; ++s) {
      const Caller call(shards_[s].get(), HostTestMemory());
      const Keys keys(batch[s].begin(), batch[s].end());
      Floats gradients;
      for (size_t i = 0; i < keys.size() * 8; ++i) {
        gradients.push_back(static_cast<float>(random() % 200) / 100 - 1);
      }
      Check(call.Apply(keys, gradients, UsualRule("adam"),
                       UsualHyper("adam", static_cast<double>(step))));
      if (step % 3 == 0) Check(call.Erase(Keys(keys.begin(), keys.begin() + 10)));
    }
  }
  Status Upsert(int64_t step) {
    const Key key = 0;
    return shards_[2]->Upsert(OneThread(), {{&key, 1}},
                              {reinterpret_cast<const char*>(&step), 1, 8}, {}, {});
  }

  std::vector<std::unique_ptr<Table>> shards_;
  std::vector<TableToSave> tables_;
};

class KillTest : public ::testing::Test {
 protected:
  KillTest() {
    std::string made = ::testing::TempDir() + "/kill_test.XXXXXX";
    folder_ = ::mkdtemp(made.data());
  }
  ~KillTest() override { EXPECT_EQ(std::system(("rm -rf '" + folder_ + "'").c_str()), 0); }

  // Runs it in a process of its own, which has no thread of this one.
  static pid_t Start(const std::function<void()>& run) {
    const pid_t child = ::fork();
    if (child != 0) return child;
    run();
    std::_Exit(0);
  }
  std::string Folder(const std::string& name) const { return JoinPath(folder_, name); }
  std::string Undisturbed(int64_t step) const { return Folder(StrCat("undisturbed-", step)); }

  static SnapshotContent Read(const std::string& folder) {
    SnapshotContent content;
    const Status loaded = Load(PosixFileSystem(), folder, &content);
    EXPECT_TRUE(loaded.ok() || loaded.code() == Code::kNotFound) << loaded.message();
    return content;
  }
  // The step of the snapshot in a folder, which must be what the undisturbed run had then.
  int64_t CheckStep(const std::string& folder) {
    SnapshotContent content = Read(folder);
    if (content.empty()) return 0;
    const int64_t step = Numbers<int64_t>(content["step"][0].value)[0];
    EXPECT_EQ(Difference(Read(Undisturbed(step)), content), "") << "after step " << step;
    return step;
  }
  // Does the folder hold files that its manifest does not name? Then the kill came into a save.
  static bool HasLeftovers(const std::string& folder) {
    std::vector<std::string> names;
    std::unique_ptr<SnapshotReader> reader;
    if (!PosixFileSystem()->List(folder, &names).ok()) return false;
    if (!SnapshotReader::Open(PosixFileSystem(), folder, &reader).ok()) return names.size() > 1;
    return names.size() > reader->manifest().files.size() + 2;
  }

  std::string folder_;
};

TEST_F(KillTest, ResumesAsIfNothingHadHappened) {
  int status = -1;
  const pid_t undisturbed =
      Start([&] { Trainer().Run("", [&](int64_t step) { return Undisturbed(step); }); });
  ASSERT_EQ(::waitpid(undisturbed, &status, 0), undisturbed);
  ASSERT_EQ(status, 0);

  const int64_t want_kills = SoakFactor() == 1 ? 25 : 50 * SoakFactor();
  int64_t kills = 0, within_saves = 0, runs = 0;
  std::mt19937_64 random(11);
  for (; kills < want_kills; ++runs) {
    const std::string folder = Folder(StrCat("run-", runs));
    uint64_t longest_us = 20'000;
    int64_t step = 0;
    while (step < kSteps) {
      const pid_t child = Start([&] { Trainer().Run(folder, [&](int64_t) { return folder; }); });
      ::usleep(static_cast<useconds_t>(random() % longest_us));
      ::kill(child, SIGKILL);
      ASSERT_EQ(::waitpid(child, &status, 0), child);
      ASSERT_TRUE(WIFSIGNALED(status) || WEXITSTATUS(status) == 0) << "see its message";
      kills += WIFSIGNALED(status);
      within_saves += HasLeftovers(folder);
      const int64_t reached = CheckStep(folder);
      ASSERT_GE(reached, step) << "what was saved once is not lost";
      if (reached == step) longest_us = std::min<uint64_t>(longest_us * 2, 500'000'000);
      step = reached;
      ASSERT_FALSE(HasFailure());
    }
    EXPECT_EQ(Difference(Read(Undisturbed(kSteps)), Read(folder)), "");
  }
  std::printf("%lld kills, %lld of them within a save, in %lld runs of %lld steps\n",
              static_cast<long long>(kills), static_cast<long long>(within_saves),
              static_cast<long long>(runs), static_cast<long long>(kSteps));
}

}  // namespace
}  // namespace dynemb

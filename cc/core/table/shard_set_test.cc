// ShardSet: a change of schema moves the rows of all shards or of none, and nobody sees shards of
// two schemas, or rows that are missing, while others look, export and train.
#include "cc/core/table/shard_set.h"

#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <map>
#include <memory>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include "cc/core/table/host_table.h"
#include "cc/core/testing/caller.h"
#include "cc/core/testing/failing_allocations.h"
#include "cc/core/testing/harness.h"

namespace dynemb {
namespace {

Shards MakeShards(int count, int64_t rows) {
  Shards shards;
  for (int s = 0; s < count; ++s) {
    std::unique_ptr<Table> made;
    EXPECT_TRUE(MakeHostTable(TableSchema(), &made).ok());
    shards.push_back(std::move(made));
  }
  for (Key key = 0; key < rows; ++key) {
    const Caller call(shards[static_cast<size_t>(key % count)].get(), HostTestMemory());
    EXPECT_TRUE(call.Upsert({key}, {static_cast<float>(key)}).ok());
  }
  return shards;
}

std::map<Key, float> Values(const Shards& shards) {
  std::map<Key, float> values;
  for (const auto& shard : shards) {
    for (const auto& [key, row] : ExportAll(*shard, HostTestMemory(), 100)) {
      values[key] = Numbers<float>(row.value)[0];
    }
  }
  return values;
}

// Whether a thread of this process sleeps: proc(5), the field after the name in parentheses.
bool IsAsleep(pid_t thread) {
  std::ifstream file("/proc/self/task/" + std::to_string(thread) + "/stat");
  std::string stat;
  std::getline(file, stat);
  const size_t name_end = stat.rfind(')');
  return name_end != std::string::npos && stat.compare(name_end, 3, ") S") == 0;
}

// A table that has no memory for a move.
class NoMemory final : public Table {
 public:
  explicit NoMemory(std::shared_ptr<Table> table) : table_(std::move(table)) {}
  Status PrepareMove(const Context&, const TableSchema&, std::unique_ptr<RowMove>*) override {
    return ResourceExhausted("no memory");
  }

  MemorySpace space() const override { return table_->space(); }
  const TableSchema& schema() const override { return table_->schema(); }
  Status Find(const Context& context, const Batch& batch, Rows values,
              const Report& report) const override {
    return table_->Find(context, batch, values, report);
  }
  Status ReadRows(const Context& context, const Batch& batch, const RowParts& rows,
                  const Report& report) const override {
    return table_->ReadRows(context, batch, rows, report);
  }
  Status Apply(const Context& context, const Batch& batch, ConstRows gradients,
               const Update& update, const Stamp& stamp, const Report& report) override {
    return table_->Apply(context, batch, gradients, update, stamp, report);
  }
  Status Upsert(const Context& context, const Batch& batch, ConstRows values, const Stamp& stamp,
                const Report& report) override {
    return table_->Upsert(context, batch, values, stamp, report);
  }
  Status Accumulate(const Context& context, const Batch& batch, ConstRows rows,
                    Span<const bool> exists, const Stamp& stamp, const Report& report) override {
    return table_->Accumulate(context, batch, rows, exists, stamp, report);
  }
  Status Erase(const Context& context, const Batch& batch, const Report& report) override {
    return table_->Erase(context, batch, report);
  }
  Status InsertRows(const Context& context, const Batch& batch, const ConstRowParts& rows,
                    const RowParts& displaced, const Report& report) override {
    return table_->InsertRows(context, batch, rows, displaced, report);
  }
  Status Export(const Context& context, Cursor* cursor, const RowParts& out,
                int64_t* rows) const override {
    return table_->Export(context, cursor, out, rows);
  }
  Status Histogram(const Context& context, MetaField field, const RowOrder& prefix, int prefix_bits,
                   Span<int64_t> counts) const override {
    return table_->Histogram(context, field, prefix, prefix_bits, counts);
  }
  Status EraseBelow(const Context& context, MetaField field, const RowOrder& bound,
                    int64_t* erased) override {
    return table_->EraseBelow(context, field, bound, erased);
  }
  Status BeginEpoch(const Context& context, int64_t epoch) override {
    return table_->BeginEpoch(context, epoch);
  }
  int64_t epoch() const override { return table_->epoch(); }
  Status ChangedKeys(const Context& context, int64_t since, const TablePart& part,
                     std::vector<Key>* keys) const override {
    return table_->ChangedKeys(context, since, part, keys);
  }
  void TrimChanges(const std::vector<int64_t>& positions) override {
    table_->TrimChanges(positions);
  }
  Status Clear(const Context& context) override { return table_->Clear(context); }
  Status Reserve(const Context& context, int64_t rows) override {
    return table_->Reserve(context, rows);
  }
  int64_t size() const override { return table_->size(); }
  int64_t memory_bytes() const override { return table_->memory_bytes(); }

 private:
  const std::shared_ptr<Table> table_;
};

TEST(ShardSet, SetOptimizerMovesTheRowsOfAllShards) {
  ShardSet set({MakeShards(3, 1000), nullptr});
  const std::map<Key, float> before = Values(set.Acquire()->shards);
  ASSERT_EQ(before.size(), 1000u);
  ASSERT_OK(set.SetOptimizer(HostTestMemory()->context(), UsualRule("adam")));
  const ShardSet::Lease lease = set.Acquire();
  EXPECT_EQ(Values(lease->shards), before);
  for (const auto& shard : lease->shards) EXPECT_EQ(shard->schema().rule, UsualRule("adam"));
}

TEST(ShardSet, AnotherOptimizerIsRefusedAndTheSameIsNoChange) {
  ShardSet set({MakeShards(2, 10), nullptr});
  const Context context = HostTestMemory()->context();
  ASSERT_OK(set.SetOptimizer(context, UsualRule("adam")));
  const Shards before = set.Acquire()->shards;
  ASSERT_OK(set.SetOptimizer(context, UsualRule("adam")));
  EXPECT_EQ(set.SetOptimizer(context, UsualRule("sgd")).code(), Code::kFailedPrecondition);
  EXPECT_TRUE(set.Has(before));
}

TEST(ShardSet, AnotherOptimizerMayComeAfterAReset) {
  ShardSet set({MakeShards(2, 500), nullptr});
  const Context context = HostTestMemory()->context();
  ASSERT_OK(set.SetOptimizer(context, UsualRule("adam")));
  const std::map<Key, float> before = Values(set.Acquire()->shards);
  ASSERT_OK(set.ResetOptimizer(context));
  for (const auto& shard : set.shards()) EXPECT_EQ(shard->schema().rule.name, "");
  EXPECT_EQ(Values(set.Acquire()->shards), before);
  ASSERT_OK(set.SetOptimizer(context, UsualRule("sgd")));
  EXPECT_EQ(Values(set.Acquire()->shards), before);
}

// The second shard has no memory: the first one keeps its rows and its schema.
TEST(ShardSet, AMoveThatFailsHalfWayLeavesAllAsItWas) {
  Shards shards = MakeShards(2, 500);
  shards[1] = std::make_shared<NoMemory>(shards[1]);
  ShardSet set({shards, nullptr});
  const std::map<Key, float> before = Values(shards);
  const Status status = set.SetOptimizer(HostTestMemory()->context(), UsualRule("adam"));
  EXPECT_EQ(status.code(), Code::kResourceExhausted);
  EXPECT_TRUE(set.Has(shards));
  EXPECT_EQ(Values(shards), before);
  for (const auto& shard : shards) EXPECT_TRUE(shard->schema().rule.name.empty());
  const Caller call(shards[0].get(), HostTestMemory());
  ASSERT_OK(call.Upsert({2}, {7}));
  EXPECT_EQ(Values(shards)[2], 7);
}

// Memory ends at each of the allocations in turn: all rows are there, in tables of one schema.
TEST(ShardSet, AnAllocationThatFailsLosesNoRows) {
  bool has_failed = true;
  for (int allocation = 0; has_failed; ++allocation) {
    SCOPED_TRACE(allocation);
    ShardSet set({MakeShards(2, 500), nullptr});
    const std::map<Key, float> before = Values(set.shards());
    const OptimizerSpec adam = UsualRule("adam");
    const Context context = HostTestMemory()->context();
    bool is_set = false;
    allocations_left = allocation;
    try {
      is_set = set.SetOptimizer(context, adam).ok();
    } catch (const std::bad_alloc&) {
    }
    has_failed = allocations_left == 0;
    allocations_left = -1;
    ASSERT_EQ(Values(set.shards()), before);
    for (const auto& shard : set.shards()) {
      ASSERT_EQ(shard->schema().rule.name, is_set ? "adam" : "");
    }
  }
}

TEST(ShardSet, AMetaFieldIsAddedBesideTheOthers) {
  ShardSet set({MakeShards(2, 20), nullptr});
  ASSERT_OK(set.ChangeSchema(HostTestMemory()->context(), [](TableSchema* schema) {
    schema->meta.add(MetaField::kCount);
    return Status();
  }));
  const ShardSet::Lease lease = set.Acquire();
  const Caller call(lease->shards[0].get(), HostTestMemory());
  ASSERT_OK(call.Upsert({0}, {5}));
  const TableContent rows = call.Export();
  EXPECT_EQ(Numbers<int64_t>(rows.at(0).meta), std::vector<int64_t>{1});
  EXPECT_EQ(Numbers<int64_t>(rows.at(2).meta), std::vector<int64_t>{0});
}

// Several sets, some more than once, in opposite orders, while their schemas change.
TEST(ShardSet, LeasesOfSeveralSetsDoNotBlockEachOther) {
  for (int round = 0; round < 20; ++round) {
    ShardSet a({MakeShards(1, 5), nullptr}), b({MakeShards(2, 5), nullptr});
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&, t] {
        for (int i = 0; i < 100; ++i) {
          const auto sets = t % 2 == 0 ? std::vector<const ShardSet*>{&a, &b, &a}
                                       : std::vector<const ShardSet*>{&b, &a, &b};
          const auto leases = ShardSet::Acquire(sets);
          EXPECT_EQ(leases[0]->shards.size(), leases[2]->shards.size());
        }
      });
    }
    for (ShardSet* set : {&a, &b}) {
      threads.emplace_back(
          [set] { EXPECT_TRUE(set->SetOptimizer(OneThread(), UsualRule("adam")).ok()); });
    }
    for (std::thread& thread : threads) thread.join();
  }
}

// A save, say, is under way, and then the first step of an optimizer comes, which waits for it:
// what is looked up meanwhile does not wait. The state of its thread says when it waits.
TEST(ShardSet, ShortCallsGoOnWhileAChangeWaitsForALongOne) {
  ShardSet set({MakeShards(2, 100), nullptr});
  ShardSet::Lease save = set.Acquire(CallLength::kLong);
  std::atomic<pid_t> changes{0};
  std::atomic<bool> has_changed{false};
  std::thread step([&] {
    changes = static_cast<pid_t>(syscall(SYS_gettid));
    EXPECT_TRUE(set.SetOptimizer(OneThread(), UsualRule("adam")).ok());
    has_changed = true;
  });
  while (changes == 0 || !IsAsleep(changes)) std::this_thread::yield();
  std::thread lookup([&] {
    const auto leases = ShardSet::Acquire({&set});
    EXPECT_EQ(Values(leases[0]->shards).size(), 100u);
  });
  lookup.join();
  EXPECT_FALSE(has_changed) << "the save goes on";
  EXPECT_EQ(save->schema().rule.name, "");
  save = ShardSet::Lease();
  step.join();
  EXPECT_EQ(set.Acquire(CallLength::kLong)->schema().rule.name, "adam");
}

// What was seen to go wrong where shards got their slots one after the other, and rows were laid
// out anew under their readers: exports with slots of nothing, inserts of rows without slots. Slots
// of Adam begin with zeros, as fresh memory does, those of Adagrad with another number.
TEST(ShardSet, OthersExportInsertAndTrainWhileTheOptimizerIsSet) {
  for (int round = 0; round < 30; ++round) {
    const OptimizerSpec rule = UsualRule(round % 2 == 0 ? "adam" : "adagrad");
    ShardSet set({MakeShards(3, 300), nullptr});
    std::atomic<bool> done{false};
    std::vector<std::thread> threads;
    threads.emplace_back([&] {
      do {
        const ShardSet::Lease lease = set.Acquire();
        const TableSchema& schema = lease->schema();
        for (const auto& shard : lease->shards) {
          EXPECT_EQ(shard->schema().ToText(), schema.ToText());
          const int64_t slots_bytes = RowLayout(schema).slots_bytes;
          for (const auto& [key, row] : ExportAll(*shard, HostTestMemory(), 50)) {
            for (const float slot : Numbers<float>(row.slots)) {
              ASSERT_EQ(slot, schema.rule.slots[0].initial);  // Adam's second is the same
            }
            EXPECT_EQ(static_cast<int64_t>(row.slots.size()), slots_bytes);
          }
        }
        EXPECT_EQ(Values(lease->shards).size(), 300u);
      } while (!done);
    });
    threads.emplace_back([&] {
      do {
        const ShardSet::Lease lease = set.Acquire();
        const Caller call(lease->shards[0].get(), HostTestMemory());
        TableContent rows = call.Export();
        EXPECT_TRUE(call.InsertRows(rows).ok());
      } while (!done);
    });
    EXPECT_TRUE(set.SetOptimizer(HostTestMemory()->context(), rule).ok());
    done = true;
    for (std::thread& thread : threads) thread.join();
  }
}

// What has changed is known across a change of schema.
TEST(ShardSet, ChangesAreKnownAcrossAMove) {
  ShardSet set({MakeShards(1, 10), nullptr});
  const Context context = HostTestMemory()->context();
  {
    const ShardSet::Lease lease = set.Acquire();
    ASSERT_OK(lease->shards[0]->BeginEpoch(context, 1));
    ASSERT_OK(Caller(lease->shards[0].get(), HostTestMemory()).Upsert({3}, {1}));
  }
  ASSERT_OK(set.SetOptimizer(context, UsualRule("adam")));
  const ShardSet::Lease lease = set.Acquire();
  EXPECT_EQ(lease->shards[0]->epoch(), 1);
  const Caller call(lease->shards[0].get(), HostTestMemory());
  ASSERT_OK(call.Upsert({3, 4}, {1, 1}));
  std::vector<Key> keys;
  ASSERT_OK(lease->shards[0]->ChangedKeys(context, 0, {}, &keys));
  EXPECT_EQ(keys, (std::vector<Key>{3, 4}));
}

}  // namespace
}  // namespace dynemb

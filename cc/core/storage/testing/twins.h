// Twins: one call after the other on a tiered table and a host table, for tests.
#ifndef TF_DYNEMB_CC_CORE_STORAGE_TESTING_TWINS_H_
#define TF_DYNEMB_CC_CORE_STORAGE_TESTING_TWINS_H_

#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "cc/core/storage/tiered_table.h"
#include "cc/core/table/host_table.h"
#include "cc/core/testing/caller.h"
#include "gtest/gtest.h"

namespace dynemb {

inline TableSchema TwinSchema(int64_t dim, const std::string& rule,
                              const TableOptions& options = TableOptions()) {
  TableSchema schema;
  schema.dim = dim;
  schema.initializer.distribution = {Distribution::Kind::kUniform, -1, 1};
  schema.meta = options.eviction.meta();
  schema.meta.add(MetaField::kCount);
  if (!rule.empty()) schema.rule = UsualRule(rule);
  return schema;
}

class Twins {
 public:
  // Both have the rows of the tiered table, and these options. `memory`: of its calls.
  Twins(std::unique_ptr<Table> tiered, uint64_t seed, const TableOptions& options = TableOptions(),
        int64_t step = 0, TestMemory* memory = HostTestMemory())
      : memory_(memory), random_(seed), tiered_(std::move(tiered)), step_(step) {
    EXPECT_TRUE(MakeHostTable(tiered_->schema(), options, &host_).ok());
    const TableContent rows = Content();
    const Caller call(host_.get(), HostTestMemory());
    EXPECT_TRUE(rows.empty() || call.InsertRows(rows, nullptr, nullptr).ok());
  }
  // A random call; its status on the tiered table. One that fails is not made on the other, unless
  // the table is full.
  Status Call(int64_t keys_of_table, int64_t keys_of_call) {
    Keys keys;
    for (int64_t n = 1 + Below(keys_of_call); n > 0; --n) keys.push_back(Below(keys_of_table));
    const TableSchema& schema = host_->schema();
    Floats values(keys.size() * static_cast<size_t>(schema.dim));
    for (float& value : values) value = static_cast<float>(Below(1000)) / 64;
    std::vector<bool> exists;
    for (size_t i = 0; i < keys.size(); ++i) exists.push_back(Below(2) == 0);
    std::vector<int64_t> scores;
    ++step_;
    for (const Key key : keys) {
      scores.push_back(static_cast<int64_t>(Mix64(static_cast<uint64_t>(key * 997 + step_)) % 99));
    }
    const Stamp stamp = {step_, scores};
    const int64_t dice = Below(100);
    const auto call = [&](const Caller& on, Floats* found, Outcomes* outcomes) {
      if (dice < 30) return on.Find(keys, found, outcomes);
      if (dice < 65 && !schema.rule.name.empty()) {
        return on.Apply(keys, values, schema.rule,
                        UsualHyper(schema.rule.name, static_cast<double>(step_)), stamp, outcomes);
      }
      if (dice < 75) return on.Upsert(keys, values, stamp, outcomes);
      if (dice < 85) return on.Accumulate(keys, values, exists, stamp, outcomes);
      if (dice < 92) return on.Erase(keys, outcomes);
      TableContent rows;
      const Status read = on.ReadRows(keys, &rows, outcomes);
      if (!read.ok() || rows.empty()) return read;
      for (auto& row : rows) row.second.value[0] ^= 1;
      return on.InsertRows(rows, nullptr, nullptr);
    };
    Floats found[2];
    Outcomes outcomes[2];
    const Status status = call(Caller(tiered_.get(), memory_), &found[0], &outcomes[0]);
    const bool is_full = status.message().find("max_rows: got ") == 0;
    if (!status.ok() && !is_full) return status;
    const Status other = call(Caller(host_.get(), HostTestMemory()), &found[1], &outcomes[1]);
    if (is_full) {
      EXPECT_EQ(other.message(), status.message()) << "step " << step_;
      return Status();
    }
    EXPECT_TRUE(other.ok()) << other.message();
    EXPECT_EQ(found[0], found[1]) << "step " << step_;
    EXPECT_EQ(outcomes[0], outcomes[1]) << "step " << step_ << ", " << dice;
    return status;
  }
  TableContent Content() const { return ExportAll(*tiered_, memory_, 333); }
  void Compare() const {
    EXPECT_EQ(tiered_->size(), host_->size());
    EXPECT_EQ(Difference(ExportAll(*host_, HostTestMemory(), 1000), Content()), "");
  }
  void CompareCounters() const {
    const TableCounters got = tiered_->counters(), want = host_->counters();
    TableCounters::ForEach([&](const char* name, int64_t TableCounters::* what) {
      EXPECT_EQ(got.*what, want.*what) << name;
    });
  }
  // Both get this schema.
  void MoveTo(const TableSchema& schema) {
    Move(memory_->context(), schema, &tiered_);
    Move(OneThread(), schema, &host_);
  }
  Table* table() const { return tiered_.get(); }
  TieredTable* tiered() const { return static_cast<TieredTable*>(tiered_.get()); }
  Table* host() const { return host_.get(); }
  int64_t step() const { return step_; }
  int64_t Below(int64_t n) { return static_cast<int64_t>(random_() % static_cast<uint64_t>(n)); }

 private:
  static void Move(const Context& context, const TableSchema& schema,
                   std::unique_ptr<Table>* table) {
    std::unique_ptr<RowMove> move;
    ASSERT_TRUE((*table)->PrepareMove(context, schema, &move).ok());
    *table = move->Run(context);
  }

  TestMemory* const memory_;
  std::mt19937_64 random_;
  std::unique_ptr<Table> tiered_, host_;
  int64_t step_;
};

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_CORE_STORAGE_TESTING_TWINS_H_

// Admission of keys to tables on a GPU: what ApplyAdmitted does in host memory.
#include <algorithm>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cc/core/policy/admission.h"
#include "cc/core/table/host_table.h"
#include "cc/gpu/table/testing/gpu_table_fixture.h"
#include "gtest/gtest.h"

namespace dynemb {
namespace {

DYNEMB_INSTANTIATE_GPU_TABLE_TESTS();

TableSchema CandidateSchema(const TableOptions& options) {
  TableSchema schema;
  schema.dim = 1;
  schema.rule = CandidateOptimizer();
  schema.meta = options.eviction.meta();
  return schema;
}

// One update of a table in host memory, and of one on a GPU with equal rows.
struct Updates {
  Update update;
  Admission admission;
  Keys keys;
  Floats gradients;
  std::vector<char> given;

  Status OfHost(Table* table, Table* candidates, int64_t* declined) {
    Admission of_call = admission;
    of_call.candidates = candidates;
    of_call.given = {reinterpret_cast<const bool*>(given.data()),
                     static_cast<int64_t>(given.size())};
    const int64_t n = static_cast<int64_t>(keys.size());
    const ConstRows rows = {reinterpret_cast<const char*>(gradients.data()), n,
                            static_cast<int64_t>(sizeof(float)) * table->schema().dim};
    return ApplyAdmitted(OneThread(), table, {keys}, rows, update, Stamp{admission.step}, of_call,
                         declined);
  }
  // Of the keys at these positions, or of all.
  Status OfGpu(GpuTable* table, Table* candidates, TestMemory* memory, int64_t* declined,
               const std::vector<int64_t>* positions = nullptr) {
    const Mirror<Key> there(memory, keys);
    const Mirror<float> rows(memory, gradients);
    Mirror<bool> flags(memory, static_cast<int64_t>(given.size()));
    std::copy(given.begin(), given.end(), flags.host());
    flags.Push();
    Admission of_call = admission;
    of_call.candidates = candidates;
    of_call.given = {flags.there(), flags.size(), memory->space()};
    const int64_t n = there.size(), dim = table->schema().dim;
    const Context context = memory->context();
    if (positions == nullptr) {
      return table->ApplyAdmitted(context, {there.span()}, rows.rows(n, dim), update,
                                  Stamp{admission.step}, of_call, declined);
    }
    Mirror<int64_t> at(memory, *positions), count(memory, 1);
    *count.host() = at.size();
    count.Push();
    const Positions select = {at.span(), count.there()};
    return table->ApplyAdmitted(context, {there.span(), &select}, rows.rows(n, dim), update,
                                Stamp{admission.step}, of_call, declined);
  }
};

TEST_P(GpuTableTest, AdmissionIsThatOfTheHost) {
  for (const char* policy :
       {"min_count 1", "min_count 3", "probability 0.3 seed 5", "given", "min_count 300"}) {
    for (const int64_t max_rows : {-1, 20}) {
      SCOPED_TRACE(StrCat(policy, ", ", max_rows, " rows"));
      const TableOptions options = Bounded(max_rows, "", OnFull::kDecline);
      const TableOptions of_candidates = Bounded(60, "lru", OnFull::kDecline);
      const TableSchema schema = Schema(3, "adagrad"), counting = CandidateSchema(of_candidates);
      std::unique_ptr<GpuTable> table, candidates;
      ASSERT_OK(MakeGpuTable(schema, options, device_memory(), &table));
      ASSERT_OK(MakeGpuTable(counting, of_candidates, device_memory(), &candidates));
      std::unique_ptr<Table> of_host, candidates_of_host;
      ASSERT_OK(MakeHostTable(schema, options, &of_host));
      ASSERT_OK(MakeHostTable(counting, of_candidates, &candidates_of_host));
      const std::vector<double> hyper = UsualHyper("adagrad", 1);
      Updates step;
      step.update.rule = &schema.rule;
      step.update.hyper = {hyper.data(), static_cast<int64_t>(hyper.size())};
      ASSERT_OK(AdmissionPolicy::Parse(policy, &step.admission.policy));
      std::mt19937_64 random(7);
      int64_t all_declined = 0;
      for (int64_t now = 1; now <= 40; ++now) {
        step.admission.step = now;
        step.keys.assign(random() % 50, 0);
        for (Key& key : step.keys) key = static_cast<Key>(random() % (now % 5 == 0 ? 10 : 200));
        step.gradients.clear();
        step.given.clear();
        for (const Key key : step.keys) {
          for (int i = 0; i < 3; ++i) step.gradients.push_back(static_cast<float>(random() % 9));
          if (std::string(policy) == "given") step.given.push_back((key + now) % 3 == 0);
        }
        int64_t declined = -1, want = -1;
        ASSERT_OK(step.OfGpu(table.get(), candidates.get(), memory(), &declined));
        ASSERT_OK(step.OfHost(of_host.get(), candidates_of_host.get(), &want));
        ASSERT_EQ(declined, want) << now;
        all_declined += declined;
        const auto difference = [&](Table* gpu, Table* host) {
          return Difference(Caller(host, HostTestMemory()).Export(),
                            Caller(gpu, memory()).Export());
        };
        ASSERT_EQ(difference(table.get(), of_host.get()), "") << now;
        ASSERT_EQ(difference(candidates.get(), candidates_of_host.get()), "") << now;
      }
      if (std::string(policy) != "min_count 1") {
        EXPECT_GT(all_declined, 0);
      }
    }
  }
}

TEST_P(GpuTableTest, AdmissionOfAllAndWhatItWants) {
  std::unique_ptr<GpuTable> table;
  ASSERT_OK(MakeGpuTable(Schema(1, "sgd"), device_memory(), &table));
  const std::vector<double> hyper = UsualHyper("sgd", 1);
  const OptimizerSpec rule = UsualRule("sgd");
  Updates step;
  step.update.rule = &rule;
  step.update.hyper = {hyper.data(), static_cast<int64_t>(hyper.size())};
  step.keys = {1, 2};
  step.gradients = {1, 1};
  int64_t declined = -1;
  ASSERT_OK(step.OfGpu(table.get(), nullptr, memory(), &declined));
  EXPECT_EQ(table->size(), 2);
  EXPECT_EQ(declined, 0);
  for (const char* policy : {"min_count 2", "given"}) {  // without candidates, without flags
    ASSERT_OK(AdmissionPolicy::Parse(policy, &step.admission.policy));
    EXPECT_EQ(step.OfGpu(table.get(), nullptr, memory(), &declined).code(), Code::kInvalidArgument);
  }
}

// Positions that take no part are not looked at.
TEST_P(GpuTableTest, AdmissionOfAPartOfABatch) {
  const TableOptions none = Bounded(-1, "", OnFull::kError);
  std::unique_ptr<GpuTable> table, candidates;
  ASSERT_OK(MakeGpuTable(Schema(1, "sgd"), none, device_memory(), &table));
  ASSERT_OK(MakeGpuTable(CandidateSchema(none), none, device_memory(), &candidates));
  const std::vector<double> hyper = UsualHyper("sgd", 1);
  const OptimizerSpec rule = UsualRule("sgd");
  Updates step;
  step.update.rule = &rule;
  step.update.hyper = {hyper.data(), static_cast<int64_t>(hyper.size())};
  ASSERT_OK(AdmissionPolicy::Parse("min_count 2", &step.admission.policy));
  step.keys = {1, 2, 1, 2, 3};
  step.gradients = {1, 1, 1, 1, 1};
  const std::vector<int64_t> positions = {0, 2, 3, 4};
  int64_t declined = -1;
  ASSERT_OK(step.OfGpu(table.get(), candidates.get(), memory(), &declined, &positions));
  EXPECT_EQ(declined, 2);
  std::map<Key, float> counts;
  for (const auto& [key, row] : Caller(candidates.get(), memory()).Export()) {
    counts[key] = Numbers<float>(row.value)[0];
  }
  EXPECT_EQ(counts, (std::map<Key, float>{{2, 1}, {3, 1}}));
  EXPECT_EQ(table->size(), 1);
}

}  // namespace
}  // namespace dynemb

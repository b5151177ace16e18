// What a host table's calls cost per key, without TensorFlow: one million rows, dim 32, one thread,
// batches of 65,536 uniform keys.
//
//   bazel run -c opt //benchmarks:table_benchmark
#include <benchmark/benchmark.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>
#include <vector>

#include "cc/core/base/hash.h"
#include "cc/core/table/host_table.h"

namespace dynemb {
namespace {

constexpr int64_t kRows = 1'000'000, kDim = 32, kBatch = 65536, kBatches = 16;
constexpr int64_t kValueBytes = kDim * sizeof(float);

// Keys are Mix64 of row numbers: distinct without a search, and like fingerprints.
Key KeyOf(uint64_t row) { return static_cast<Key>(Mix64(row)); }

void Check(const Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", status.message().c_str());
  std::exit(1);
}

class TableBenchmark : public benchmark::Fixture {
 public:
  void SetUp(const benchmark::State&) override {
    context_.executor = &executor_;
    Check(MakeRuleSpec("adam", 0, &rule_));
    update_.rule = &rule_;
    update_.hyper = hyper_;
    table_ = Make();
    for (int64_t row = 0; row < kRows; row += kBatch) Apply(table_.get(), Consecutive(row));
    // Distinct keys of one batch: a stride that has no factor in common with the number of rows.
    for (int64_t b = 0; b < kBatches; ++b) {
      present_.emplace_back(kBatch);
      for (int64_t i = 0; i < kBatch; ++i) {
        present_[b][i] = KeyOf(static_cast<uint64_t>((b * kBatch + i) * 7919 % kRows));
      }
    }
  }

  void TearDown(const benchmark::State&) override {
    table_.reset();
    present_.clear();
  }

 protected:
  static std::unique_ptr<Table> Make() {
    TableSchema schema;
    schema.dim = kDim;
    schema.initializer.distribution = {Distribution::Kind::kUniform, -0.05f, 0.05f};
    std::unique_ptr<Table> table;
    Check(MakeHostTable(schema, &table));
    return table;
  }
  static std::vector<Key> Consecutive(int64_t first) {
    std::vector<Key> keys(kBatch);
    for (int64_t i = 0; i < kBatch; ++i) keys[i] = KeyOf(static_cast<uint64_t>(first + i));
    return keys;
  }
  Rows Buffer() { return {reinterpret_cast<char*>(values_.data()), kBatch, kValueBytes}; }
  void Find(const std::vector<Key>& keys) {
    Batch batch;
    batch.keys = keys;
    Check(table_->Find(context_, batch, IfMissing::kInitialValue, Buffer(), Report()));
  }
  void Apply(Table* table, const std::vector<Key>& keys) {
    Check(table->Attach(context_, rule_));
    Batch batch;
    batch.keys = keys;
    Check(table->Apply(context_, batch, Buffer(), update_, Stamp(), Report()));
  }

  InlineExecutor executor_;
  Context context_;
  RuleSpec rule_;
  std::vector<double> hyper_ = {1e-3, 1, 0, 0.9, 0.999, 1e-7};
  Update update_;
  std::unique_ptr<Table> table_;
  std::vector<std::vector<Key>> present_;
  std::vector<float> values_ = std::vector<float>(kBatch * kDim, 0.01f);
};

BENCHMARK_F(TableBenchmark, FindPresent)(benchmark::State& state) {
  int64_t b = 0;
  for (auto _ : state) Find(present_[b++ % kBatches]);
  state.SetItemsProcessed(state.iterations() * kBatch);
}

BENCHMARK_F(TableBenchmark, FindMissing)(benchmark::State& state) {
  int64_t b = 0;
  for (auto _ : state) Find(Consecutive((1 << 30) + kBatch * b++));
  state.SetItemsProcessed(state.iterations() * kBatch);
}

BENCHMARK_F(TableBenchmark, ApplyAdam)(benchmark::State& state) {
  int64_t b = 0;
  for (auto _ : state) Apply(table_.get(), present_[b++ % kBatches]);
  state.SetItemsProcessed(state.iterations() * kBatch);
}

BENCHMARK_F(TableBenchmark, ApplyAdamToNewKeys)(benchmark::State& state) {
  std::unique_ptr<Table> table = Make();
  int64_t b = 0;
  for (auto _ : state) Apply(table.get(), Consecutive(kBatch * b++));
  state.SetItemsProcessed(state.iterations() * kBatch);
  state.counters["bytes_per_row"] =
      static_cast<double>(table->memory_bytes()) / static_cast<double>(table->size());
}

}  // namespace
}  // namespace dynemb

// What calls of a table in a GPU's memory over the host's cost, by how many of its keys are above.
//
//   gpu_tiers_benchmark [--case=find,step] [--rows_log2=23] [--rounds=7]
//
// "find": 1,048,576 distinct keys, dim 64, room for half of the rows on the GPU. "step": the step
// that dynamicemb publishes, a lookup and Adam of 1,048,576 ids of which a third are distinct, dim
// 128, with room for a quarter of the rows. A line has the share of the distinct keys that were
// above, as the table counted it; the median time of the rounds with the least and the most, by the
// host's clock from the call until the stream is done; and that of a table that is on the GPU
// alone, which takes turns.
//
// Of each batch some keys are of a set that all batches use, an eighth of the rows, and others have
// been used longest ago: those have gone below.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "benchmarks/gpu_bench.cu.h"
#include "benchmarks/threads_executor.h"
#include "cc/core/table/host_table.h"
#include "cc/gpu/table/gpu_tiered_table.h"

namespace dynemb {
namespace {

struct TiersOptions {
  std::string cases = "find,step";
  int rows_log2 = 23, rounds = 7;
};

// A table, its batches and what it reads and writes: numbers of the same buffer each time.
class Caller {
 public:
  Caller(const Bench& bench, int64_t rows, int64_t n, const TableSchema& schema)
      : rows_(rows),
        n_(n),
        dim_(schema.dim),
        context_(bench.context),
        numbers_(Numbers(bench, n * schema.dim * 4)) {
    context_.executor = &threads_;
  }

  void Fill(Table* table) {
    const DeviceArray<Key> keys = Allocate<Key>(kMillion);
    for (int64_t row = 0, n; row < rows_; row += n) {
      n = std::min({kMillion, rows_ - row, n_});
      Check(ForEach(context_, n, FillKeys{row, keys.get()}));
      Check(table->Upsert(context_, {{keys.get(), n, kDevice}}, Values(n), Stamp(), NoReport()));
    }
    Sync();
  }

  // A batch of which a share of the distinct rows are of the set that all batches use. `repeats`:
  // how often each is in it.
  void NextBatch(double share, int64_t repeats) {
    const int64_t distinct = n_ / repeats, often = rows_ / 8, rest = rows_ - often;
    const auto of_often = static_cast<int64_t>(share * static_cast<double>(distinct));
    std::vector<int64_t> rows(distinct);
    for (int64_t i = 0; i < distinct; ++i) {
      rows[i] = i < of_often ? (next_often_ + i) % often : often + (next_rest_ + i) % rest;
    }
    next_often_ = (next_often_ + of_often) % often;
    next_rest_ = (next_rest_ + distinct) % rest;
    std::vector<Key> keys(n_);
    for (int64_t i = 0; i < n_; ++i) keys[i] = KeyOf(rows[Permuted(i, n_) % distinct]);
    keys_ = Upload(keys);
  }
  // The rows that all batches use are the ones that have been used last.
  void UseOften(Table* table) {
    const DeviceArray<Key> keys = Allocate<Key>(n_);
    for (int64_t row = 0, n; row < rows_ / 8; row += n) {
      n = std::min(n_, rows_ / 8 - row);
      Check(ForEach(context_, n, FillKeys{row, keys.get()}));
      Check(table->Find(context_, {{keys.get(), n, kDevice}}, Values(n), NoReport()));
    }
    Sync();
  }

  double Milliseconds(Table* table, const Training* training) {
    const Batch batch{{keys_.get(), n_, kDevice}};
    const auto begin = std::chrono::steady_clock::now();
    Check(table->Find(context_, batch, Values(n_), NoReport()));
    if (training != nullptr) {
      Check(table->Apply(context_, batch, Values(n_), training->update(kDevice), Stamp(),
                         NoReport()));
    }
    Sync();
    return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin)
        .count();
  }

 private:
  Rows Values(int64_t n) { return OnDevice(numbers_.get(), n, 4 * dim_); }
  void Sync() {
    Check(cudaStreamSynchronize(static_cast<cudaStream_t>(context_.stream)), "synchronizing");
  }

  const int64_t rows_, n_, dim_;
  ThreadsExecutor threads_{16};
  Context context_;
  const DeviceArray<char> numbers_;
  DeviceArray<Key> keys_;
  int64_t next_often_ = 0, next_rest_ = 0;
};

std::string Times(const std::vector<double>& ms) {
  return Format("%8.2f ms (%.2f to %.2f)", Median(ms), Quantile(ms, 0), Quantile(ms, 1));
}

void RunCase(const Bench& bench, const TiersOptions& options, const char* name, int64_t dim,
             const Training* training, int64_t repeats, int64_t rows_above_in) {
  const int64_t n = kMillion / repeats * repeats, rows = int64_t{1} << options.rows_log2;
  const TableSchema schema = SchemaOf(dim, training);
  std::unique_ptr<GpuTable> alone;
  Check(MakeGpuTable(schema, CudaMemory(), &alone));
  Check(alone->Reserve(bench.context, rows));
  std::unique_ptr<Table> host;
  Check(MakeHostTable(schema, TableOptions(), &host));
  std::unique_ptr<GpuTieredTable> tiers;
  GpuBudget budget;
  budget.max_rows = rows / rows_above_in;
  Check(MakeGpuTieredTable(schema, TableOptions(), budget, CudaMemory(), std::move(host), &tiers));
  Caller caller(bench, rows, n, schema);
  caller.Fill(alone.get());
  caller.Fill(tiers.get());
  for (const double share : {1.0, 0.99, 0.95, 0.9, 0.8, 0.5, 0.0}) {
    std::vector<double> of_tiers, of_alone;
    caller.UseOften(tiers.get());
    int64_t missed = 0;
    for (int round = -kWarmUp; round < options.rounds; ++round) {
      caller.NextBatch(share, repeats);
      const int64_t before = tiers->gpu_tier_stats().device_misses;
      const double ms = caller.Milliseconds(tiers.get(), training);
      const double ms_alone = caller.Milliseconds(alone.get(), training);
      if (round < 0) continue;
      missed += tiers->gpu_tier_stats().device_misses - before;
      of_tiers.push_back(ms);
      of_alone.push_back(ms_alone);
    }
    const double hits =
        1 - static_cast<double>(missed) / static_cast<double>(options.rounds * (n / repeats));
    std::printf("%s dim %lld: hits %.3f: %s, %.1f M ids/s; GPU alone %s; ratio %.3f\n", name,
                static_cast<long long>(dim), hits, Times(of_tiers).c_str(),
                static_cast<double>(n) / Median(of_tiers) / 1e3, Times(of_alone).c_str(),
                Median(of_alone) / Median(of_tiers));
  }
}

int Main(int argc, char** argv) {
  std::setvbuf(stdout, nullptr, _IOLBF, BUFSIZ);
  TiersOptions options;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i], name = argument.substr(0, argument.find('='));
    const std::string value = argument.substr(std::min(name.size() + 1, argument.size()));
    if (name == "--case") {
      options.cases = value;
    } else if (name == "--rows_log2" && std::atoi(value.c_str()) >= 22) {
      options.rows_log2 = std::atoi(value.c_str());
    } else if (name == "--rounds" && std::atoi(value.c_str()) > 0) {
      options.rounds = std::atoi(value.c_str());
    } else {
      Check(InvalidArgument(argument,
                            ": want --case=find,step, --rows_log2=N of at least 22 or --rounds=N"));
    }
  }
  const Options bench_options;
  const Bench bench(bench_options);
  const Training adam("adam");
  if (options.cases.find("find") != std::string::npos) {
    RunCase(bench, options, "find", 64, nullptr, 1, 2);
  }
  if (options.cases.find("step") != std::string::npos) {
    RunCase(bench, options, "step", 128, &adam, 3, 4);
  }
  return 0;
}

}  // namespace
}  // namespace dynemb

int main(int argc, char** argv) { return dynemb::Main(argc, argv); }

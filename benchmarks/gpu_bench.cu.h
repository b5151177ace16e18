// What the benchmark of the GPU table times: inputs, and a table with a flat array of the same
// rows, whose limits it is timed beside. For one source file.
#ifndef TF_DYNEMB_BENCHMARKS_GPU_BENCH_CU_H_
#define TF_DYNEMB_BENCHMARKS_GPU_BENCH_CU_H_

#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "benchmarks/gpu_timing.cu.h"
#include "benchmarks/threads_executor.h"
#include "cc/core/base/hash.h"
#include "cc/core/optimizer/rule.h"
#include "cc/core/table/row_layout.h"
#include "cc/gpu/for_each.cu.h"
#include "cc/gpu/table/gpu_table.h"

namespace dynemb {
namespace {

constexpr int kBatches = 8;             // that take turns
constexpr int64_t kUnit = 16;           // bytes that a thread of a limit reads at once
constexpr int64_t kIndexBytes = 32;     // of a row in the index, at most
constexpr int64_t kAbsent = 1ll << 40;  // the first of the rows that no table has
constexpr auto kFloat = DType::kFloat32;

// --- keys and values

// Keys are Mix64 of row numbers: distinct without a search.
DYNEMB_HOST_DEVICE inline Key KeyOf(int64_t row) {
  return static_cast<Key>(Mix64(static_cast<uint64_t>(row)));
}
// What the row of a key holds: numbers in [0, 1) without rounding.
DYNEMB_HOST_DEVICE inline float ValueOf(Key key, int64_t column) {
  const uint64_t bits = Mix64(static_cast<uint64_t>(key) + static_cast<uint64_t>(column));
  return static_cast<float>(bits >> 40) * 0x1p-24f;
}

struct FillKeys {
  int64_t first_row;
  Key* keys;
  DYNEMB_HOST_DEVICE void operator()(int64_t i) const { keys[i] = KeyOf(first_row + i); }
};
template <typename V>
struct FillValues {
  int64_t first_row, dim;
  V* values;
  DYNEMB_HOST_DEVICE void operator()(int64_t i) const {
    values[i] = static_cast<V>(ValueOf(KeyOf(first_row + i / dim), i % dim));
  }
};

// --- limits

__device__ inline float4 Sum(float4 a, float4 b) {
  return {a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w};
}

// What a limit does with packed[i] and rows[index[i]]: reads the row into it, writes it to the row,
// or adds it to all parts of the row. Where more are packed than rows are updated, a row has
// several added.
enum class Access { kGather, kScatter, kUpdate };
struct AccessedRows {
  float4* rows;
  const int64_t* index;
  int64_t n;
  int64_t units;  // of a row
  float4* packed;
  int64_t packed_rows;
  int lanes_log2;  // threads of a row, one for each unit of a packed one
};

template <Access kAccess, int kParts, int kInFlight>
__global__ void AccessKernel(AccessedRows a) {
  const int groups = kThreads >> a.lanes_log2, lanes = 1 << a.lanes_log2;
  const int64_t lane = threadIdx.x & (lanes - 1), group = threadIdx.x >> a.lanes_log2;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * groups * kInFlight + group;
  float4 *row[kInFlight], old[kInFlight][kParts] = {}, packed[kInFlight] = {};
#pragma unroll
  for (int j = 0; j < kInFlight; ++j) {
    const int64_t i = first + j * groups;
    row[j] = a.rows + a.index[i < a.n ? i : 0] * a.units;
  }
#pragma unroll
  for (int j = 0; j < kInFlight; ++j) {
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      const int64_t unit = part * lanes + lane;
      if (kAccess != Access::kScatter && unit < a.units) old[j][part] = row[j][unit];
    }
  }
  for (int64_t more = 0; kAccess != Access::kGather && more < a.packed_rows; more += a.n) {
    bool takes[kInFlight];
    float4 next[kInFlight];
#pragma unroll
    for (int j = 0; j < kInFlight; ++j) {
      const int64_t i = first + j * groups;
      takes[j] = i < a.n && i + more < a.packed_rows;
      next[j] = a.packed[((takes[j] ? i + more : 0) << a.lanes_log2) + lane];
    }
#pragma unroll
    for (int j = 0; j < kInFlight; ++j) {
      if (takes[j]) packed[j] = Sum(packed[j], next[j]);
    }
  }
#pragma unroll
  for (int j = 0; j < kInFlight; ++j) {
    const int64_t i = first + j * groups;
    if (i >= a.n) continue;
    if (kAccess == Access::kGather) a.packed[(i << a.lanes_log2) + lane] = old[j][0];
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      const int64_t unit = part * lanes + lane;
      if (kAccess != Access::kGather && unit < a.units) row[j][unit] = Sum(old[j][part], packed[j]);
    }
  }
}

// The sum of `length` rows for each of n packed ones, kInFlight, which divides it, at once.
template <int kInFlight>
__global__ void PoolKernel(AccessedRows a, int64_t length) {
  const int64_t thread = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const int64_t bag = thread >> a.lanes_log2, lane = thread & ((1 << a.lanes_log2) - 1);
  if (bag >= a.n) return;
  float4 sum = {};
  for (int64_t id = bag * length; id < (bag + 1) * length; id += kInFlight) {
    float4 row[kInFlight];
#pragma unroll
    for (int j = 0; j < kInFlight; ++j) row[j] = a.rows[a.index[id + j] * a.units + lane];
#pragma unroll
    for (int j = 0; j < kInFlight; ++j) sum = Sum(sum, row[j]);
  }
  a.packed[(bag << a.lanes_log2) + lane] = sum;
}

// --- inputs

// Device memory with numbers in [0, 1).
DeviceArray<char> Numbers(const Bench& bench, int64_t bytes) {
  DeviceArray<char> memory = Allocate<char>(bytes);
  auto* const numbers = reinterpret_cast<float*>(memory.get());
  Check(ForEach(bench.context, bytes / 4, FillValues<float>{0, bytes / 4, numbers}));
  bench.Sync();
  return memory;
}

// Buffers that take turns; together they are larger than the caches.
class Ring {
 public:
  Ring(const Bench& bench, int64_t bytes)
      : bytes_(bytes),
        pieces_(std::max<int64_t>(2, kGiB / 4 / bytes + 1)),
        memory_(Numbers(bench, pieces_ * bytes)) {}
  char* Next() { return memory_.get() + turn_++ % pieces_ * bytes_; }

 private:
  const int64_t bytes_, pieces_;
  const DeviceArray<char> memory_;
  int64_t turn_ = 0;
};

// A place of [0, n) for each i of it, in no order; for each seed another. Each step is a bijection
// of the numbers below a power of two, and those that are not below n go on.
int64_t Permuted(int64_t i, int64_t n, uint64_t seed = 0) {
  int bits = 1;
  while (int64_t{1} << bits < n) ++bits;
  const uint64_t mask = (uint64_t{1} << bits) - 1, more = Mix64(seed);
  auto x = static_cast<uint64_t>(i);
  do {
    for (int step = 0; step < 3; ++step) {
      x = (x * 0x9e3779b97f4a7c15ull + more) & mask;
      x ^= x >> (bits / 2 + 1);
    }
  } while (x >= static_cast<uint64_t>(n));
  return static_cast<int64_t>(x);
}

// Keys of `rows` rows, and the rows' numbers. `row(batch, i)` says which row a position has.
class Batches {
 public:
  Batches(int64_t n, int64_t rows, const std::function<int64_t(int64_t, int64_t)>& row)
      : n_(n), host_keys_(n * kBatches) {
    std::vector<int64_t> index(n * kBatches);
    Check(ThreadsExecutor(kBatches).Run(kBatches, 0, [&](int64_t batch) {
      for (int64_t i = 0; i < n; ++i) {
        const int64_t number = row(batch, i);
        host_keys_[batch * n + i] = KeyOf(number);
        index[batch * n + i] = number % rows;  // limits have a row also for keys without one
      }
    }));
    keys_ = Upload(host_keys_);
    index_ = Upload(index);
  }

  int64_t size() const { return n_; }
  const int64_t* index(int round) const { return index_.get() + round % kBatches * n_; }
  Batch device(int round) const { return {{keys_.get() + round % kBatches * n_, n_, kDevice}}; }
  Batch host(int round) const { return {{host_keys_.data() + round % kBatches * n_, n_}}; }

  // How many different keys a batch has: the mean.
  int64_t Distinct() const {
    int64_t distinct = 0;
    for (int b = 0; b < kBatches; ++b) {
      const Span<const Key> keys = host(b).keys;
      std::vector<Key> sorted(keys.begin(), keys.end());
      std::sort(sorted.begin(), sorted.end());
      distinct += std::unique(sorted.begin(), sorted.end()) - sorted.begin();
    }
    return distinct / kBatches;
  }

 private:
  const int64_t n_;
  std::vector<Key> host_keys_;
  DeviceArray<Key> keys_;
  DeviceArray<int64_t> index_;
};

// Rows by chance; with `some_absent`, each tenth key has none.
Batches AnyRows(int64_t n, int64_t rows, bool some_absent = false) {
  return Batches(n, rows, [=](int64_t batch, int64_t i) {
    if (some_absent && i % 10 == 0) return kAbsent + batch * n + i;
    return static_cast<int64_t>(Mix64((1ull << 50) + batch * n + i) % static_cast<uint64_t>(rows));
  });
}
Batches DistinctRows(int64_t n, int64_t rows) {
  return Batches(n, rows, [=](int64_t b, int64_t i) { return Permuted((b * n + i) % rows, rows); });
}
// Each row of a batch is so often in it.
Batches RepeatedRows(int64_t n, int64_t rows, int64_t times) {
  const int64_t distinct = n / times;
  return Batches(n, rows, [=](int64_t batch, int64_t i) {
    return Permuted((batch * distinct + Permuted(i, n, batch) % distinct) % rows, rows);
  });
}
// Rows whose density is rank^-1.05, by the inverse of its integral.
Batches ZipfRows(int64_t n, int64_t rows) {
  constexpr double kPower = 1 - 1.05;
  const double last = std::pow(static_cast<double>(rows), kPower);
  return Batches(n, rows, [=](int64_t batch, int64_t i) {
    const double u = static_cast<double>(Mix64((1ull << 51) + batch * n + i) >> 11) * 0x1p-53;
    const auto rank = static_cast<int64_t>(std::pow(1 + u * (last - 1), 1 / kPower));
    return Permuted(std::clamp<int64_t>(rank - 1, 0, rows - 1), rows);
  });
}

Rows OnDevice(void* data, int64_t n, int64_t bytes) {
  return {static_cast<char*>(data), n, bytes, kDevice};
}
Report Into(Outcome* outcomes, int64_t n) { return {{outcomes, n, kDevice}, nullptr}; }
Report NoReport() { return Into(nullptr, 0); }

// A rule and its hyper-parameters.
struct Training {
  explicit Training(const std::string& rule) {
    Check(MakeOptimizerSpec(rule, 0.1, &spec));
    const std::pair<const char*, double> values[] = {{"learning_rate", 0.01}, {"step", 1},
                                                     {"beta_1", 0.9},         {"beta_2", 0.999},
                                                     {"epsilon", 1e-7},       {"momentum", 0.9}};
    for (const std::string& name : HyperNames(rule)) {
      hyper.push_back(0);
      for (const auto& [known, value] : values) {
        if (name == known) hyper.back() = value;
      }
    }
  }
  Update update(MemorySpace space) const { return {&spec, hyper, {nullptr, 0, space}}; }

  OptimizerSpec spec;
  std::vector<double> hyper;
};

TableSchema SchemaOf(int64_t dim, const Training* training = nullptr, DType dtype = kFloat) {
  TableSchema schema;
  schema.dim = dim;
  schema.value_dtype = dtype;
  schema.initializer.distribution = {Distribution::Kind::kUniform, -0.05f, 0.05f};
  if (training != nullptr) schema.rule = training->spec;
  return schema;
}

// A table, a flat array of as many and as wide rows for its limits, and buffers for calls of `n`
// keys that read or write numbers of GradientDType: float32. Calls that might insert need `spare`
// in the index, or it would grow while they are timed: the host does not know that all keys are
// there.
class Subject {
 public:
  Subject(const Bench& bench, const TableSchema& schema, int64_t rows, int64_t n, int64_t spare = 0,
          const TableOptions& options = TableOptions())
      : bench(bench),
        dim(schema.dim),
        row_bytes(RowLayout(schema).row_bytes),
        units((row_bytes + kUnit - 1) / kUnit),
        schema_(schema),
        array_(Numbers(bench, rows * units * kUnit)),
        buffers_(bench, n * dim * 4) {
    Check(MakeGpuTable(schema, options, CudaMemory(), &table));
    Check(table->Reserve(bench.context, rows + spare));
  }

  // Upserts the rows from size() to `rows`, with the values of their keys.
  void Fill(int64_t rows) {
    const DeviceArray<Key> keys = Allocate<Key>(kMillion);
    const DeviceArray<float> values = Allocate<float>(kMillion * dim);
    const bool half = schema_.value_dtype == DType::kFloat16;
    for (int64_t row = table->size(), n; row < rows; row += n) {
      n = std::min(kMillion, rows - row);
      auto* const halves = reinterpret_cast<Float16*>(values.get());
      Check(ForEach(bench.context, n, FillKeys{row, keys.get()}));
      Check(half ? ForEach(bench.context, n * dim, FillValues<Float16>{row, dim, halves})
                 : ForEach(bench.context, n * dim, FillValues<float>{row, dim, values.get()}));
      Check(table->Upsert(bench.context, {{keys.get(), n, kDevice}},
                          OnDevice(values.get(), n, dim * (half ? 2 : 4)), Stamp(), NoReport()));
    }
    bench.Sync();
  }

  // Upserts as many rows as the table has, and may have, so that those leave.
  void Churn(int64_t rows) {
    const int64_t chunk = kMillion / 4;
    const DeviceArray<Key> keys = Allocate<Key>(chunk);
    for (int64_t row = rows, n; row < 2 * rows; row += n) {
      n = std::min(chunk, 2 * rows - row);
      Check(ForEach(bench.context, n, FillKeys{row, keys.get()}));
      Check(table->Upsert(bench.context, {{keys.get(), n, kDevice}}, Values(n),
                          Stamp{row / chunk, {}}, NoReport()));
    }
    bench.Sync();
  }

  // The values of a call, or the room for them.
  Rows Values(int64_t n) { return OnDevice(buffers_.Next(), n, 4 * dim); }

  // With `fill_missing` missing keys read their initial values, otherwise nothing.
  Timed Find(const Batches& batches, bool fill_missing, Outcome* outcomes) {
    return {"find", [=, &batches](int round) {
              const int64_t n = batches.size();
              const Report report = Into(outcomes, outcomes == nullptr ? 0 : n);
              RowParts rows;
              rows.values = Values(n);
              Check(fill_missing
                        ? table->Find(bench.context, batches.device(round), rows.values, report)
                        : table->ReadRows(bench.context, batches.device(round), rows, report));
            }};
  }
  void Upsert(const Batch& batch) {
    Check(table->Upsert(bench.context, batch, Values(batch.keys.size), Stamp(), NoReport()));
  }
  void Apply(const Batch& batch, const Training& training) {
    Check(table->Apply(bench.context, batch, Values(batch.keys.size), training.update(kDevice),
                       Stamp(), NoReport()));
  }

  // The rows of the first n keys of each batch, for a limit.
  AccessedRows Accessed(const Batches& batches, int round, int64_t n, char* packed) const {
    int lanes_log2 = 0;
    while (4 << lanes_log2 < dim) ++lanes_log2;
    return {reinterpret_cast<float4*>(array_.get()), batches.index(round), n,         units,
            reinterpret_cast<float4*>(packed),       batches.size(),       lanes_log2};
  }
  // Of the limit of an access, with 1, 2 and 4 rows in flight.
  std::vector<Timed> Variants(Access access, const Batches& batches, int64_t n) {
    const int64_t lanes = dim / 4, parts = (units + lanes - 1) / lanes;
    if (access == Access::kGather) return VariantsOf<Access::kGather, 1>("gather", batches, n);
    if (access == Access::kScatter) return VariantsOf<Access::kScatter, 1>("scatter", batches, n);
    if (parts == 1) return VariantsOf<Access::kUpdate, 1>("update", batches, n);
    if (parts == 2) return VariantsOf<Access::kUpdate, 2>("update", batches, n);
    if (parts > 3) Check(InvalidArgument("limit of updates: got rows of ", row_bytes, " bytes"));
    return VariantsOf<Access::kUpdate, 3>("update", batches, n);
  }
  Timed Limit(Access access, const Batches& batches) {
    return bench.Fastest(Variants(access, batches, batches.size()));
  }

  const Bench& bench;
  const int64_t dim, row_bytes, units;
  std::unique_ptr<GpuTable> table;

 private:
  template <Access kAccess, int kParts>
  std::vector<Timed> VariantsOf(const std::string& name, const Batches& batches, int64_t n) {
    return {VariantOf<kAccess, kParts, 1>(name, batches, n),
            VariantOf<kAccess, kParts, 2>(name, batches, n),
            VariantOf<kAccess, kParts, 4>(name, batches, n)};
  }
  template <Access kAccess, int kParts, int kInFlight>
  Timed VariantOf(const std::string& name, const Batches& batches, int64_t n) {
    return {name + "_of_" + std::to_string(kInFlight), [=, &batches](int round) {
              const AccessedRows rows = Accessed(batches, round, n, buffers_.Next());
              const int64_t of_block = (kThreads >> rows.lanes_log2) * kInFlight;
              Launch(AccessKernel<kAccess, kParts, kInFlight>, (n + of_block - 1) / of_block,
                     bench.stream, rows);
            }};
  }

  const TableSchema schema_;
  const DeviceArray<char> array_;
  Ring buffers_;
};

// The device's own copy, whose bytes are those that it reads and those that it writes.
class Copy {
 public:
  explicit Copy(const Bench& bench)
      : stream_(bench.stream),
        bytes_(bench.Scaled(2 * kGiB)),
        from_(Numbers(bench, bytes_)),
        to_(Numbers(bench, bytes_)) {}
  int64_t moved() const { return 2 * bytes_; }
  // Its time for so many bytes.
  Timed Of(int64_t bytes) const {
    const auto run = [this](int) {
      Check(cudaMemcpyAsync(to_.get(), from_.get(), bytes_, cudaMemcpyDeviceToDevice, stream_),
            "cudaMemcpyAsync");
    };
    return {"copy", run, nullptr, static_cast<double>(bytes) / static_cast<double>(moved())};
  }

 private:
  const cudaStream_t stream_;
  const int64_t bytes_;
  const DeviceArray<char> from_, to_;
};

}  // namespace
}  // namespace dynemb

#endif  // TF_DYNEMB_BENCHMARKS_GPU_BENCH_CU_H_

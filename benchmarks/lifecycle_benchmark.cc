// What happens to a large table over its life, and what the steps beside it feel, without
// TensorFlow.
//
//   bazel run -c opt //benchmarks:lifecycle_benchmark -- WHAT ROWS [FOLDER]
//
// WHAT is one of
//   tracking   an Adam step of a table that tracks changes beside one that does not, in turns
//   delta      a snapshot of all rows, and deltas of 1 % and 0.1 % of them
//   restore    a snapshot of all rows, read twice: checked alone, and put into a new table
//   eviction   an Adam step with 20 % new keys at the limit of a table, beside one that has none,
//              in turns; a step of a table that has a policy and room; memory under churn
//   restrict   RestrictTo half, 90 % and 99.9 % of the rows
//   move       SetOptimizer of a table with rows: time and peak memory
//   growth     the slowest call over growth from nothing, of rows without slots
//   beside     steps beside a first tracked save, and beside a restrict
// Rows are of dim 32, float32, with Adam's slots. A step is one Apply of 16,384 keys: by one thread
// in tracking, eviction and beside, by two in the others.
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "benchmarks/threads_executor.h"
#include "cc/core/base/file_system.h"
#include "cc/core/base/hash.h"
#include "cc/core/base/io_threads.h"
#include "cc/core/optimizer/rule.h"
#include "cc/core/policy/restrict.h"
#include "cc/core/snapshot/loader.h"
#include "cc/core/snapshot/reader.h"
#include "cc/core/snapshot/writer.h"
#include "cc/core/table/host_table.h"
#include "cc/core/table/schema_change.h"

namespace dynemb {
namespace {

constexpr int64_t kDim = 32, kStep = 16384, kFill = 65536;

void Check(const Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", status.message().c_str());
  std::exit(1);
}

double Seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double SecondsOf(const std::function<void()>& call) {
  const double begin = Seconds();
  call();
  return Seconds() - begin;
}

int64_t ResidentBytes() {
  int64_t pages = 0;
  std::FILE* file = std::fopen("/proc/self/statm", "r");
  if (file == nullptr || std::fscanf(file, "%*d %ld", &pages) != 1) std::exit(1);
  std::fclose(file);
  return pages * 4096;
}

double Quantile(std::vector<double> numbers, double q) {
  std::sort(numbers.begin(), numbers.end());
  return numbers.empty() ? 0 : numbers[static_cast<size_t>(q * (numbers.size() - 1))];
}

struct Threads : Context {
  explicit Threads(int count) : pool(count) { executor = &pool; }
  ThreadsExecutor pool;
};

class Subject {
 public:
  explicit Subject(const TableOptions& options = {}, bool trained = true) {
    Check(MakeOptimizerSpec("adam", 0, &adam));
    TableSchema schema;
    schema.value_dtype = DType::kFloat32;
    schema.dim = kDim;
    schema.meta = options.eviction.meta();
    schema.meta.add(MetaField::kLastWriteTime);
    if (trained) schema.rule = adam;
    std::unique_ptr<Table> made;
    Check(MakeHostTable(schema, options, &made));
    table = std::move(made);
    for (const std::string& name : HyperNames("adam")) {
      hyper.push_back(name == "step" ? 1 : name == "epsilon" ? 1e-7 : 0.9);
    }
  }

  // One update of rows, numbered from 0, at a time that is their number at first.
  void Apply(const Context& context, const std::vector<int64_t>& numbers, int64_t now) {
    keys.resize(numbers.size());
    values.resize(numbers.size() * kDim, 0.01f);
    for (size_t i = 0; i < keys.size(); ++i) keys[i] = static_cast<Key>(Mix64(numbers[i]));
    Batch batch;
    batch.keys = keys;
    Stamp stamp;
    stamp.now = now;
    const ConstRows rows = {reinterpret_cast<const char*>(values.data()),
                            static_cast<int64_t>(keys.size()), kDim * 4, MemorySpace::kHost};
    if (table->schema().rule.name.empty()) {
      Check(table->Upsert(context, batch, rows, stamp, Report()));
    } else {
      const Update update = {&adam, hyper, {}};
      Check(table->Apply(context, batch, rows, update, stamp, Report()));
    }
  }

  void Fill(const Context& context, int64_t rows) {
    std::vector<int64_t> numbers;
    for (int64_t row = 0; row < rows; row += kFill) {
      numbers.resize(std::min(kFill, rows - row));
      for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = row + i;
      Apply(context, numbers, row);
    }
  }

  OptimizerSpec adam;
  std::shared_ptr<Table> table;
  std::vector<double> hyper;
  std::vector<Key> keys;
  std::vector<float> values;
};

std::vector<int64_t> Random(std::mt19937_64* random, int64_t rows, int64_t n) {
  std::vector<int64_t> numbers(n);
  for (int64_t& number : numbers) number = static_cast<int64_t>((*random)() % rows);
  return numbers;
}

void Tracking(int64_t rows) {
  Threads context(1);
  TableOptions options;
  options.track_changes = true;
  Subject tracked(options), plain;
  plain.Fill(context, rows);
  tracked.Fill(context, rows);
  std::mt19937_64 random(1);
  for (const int steps_per_epoch : {1, 10, 100, 1000}) {
    std::vector<double> ratios;
    double total[2] = {0, 0};
    for (int step = 0; step < 1000; ++step) {
      if (step % steps_per_epoch == 0) {
        const int64_t epoch = tracked.table->epoch();
        Check(tracked.table->BeginEpoch(context, epoch + 1));
        tracked.table->TrimChanges({epoch});
      }
      const std::vector<int64_t> numbers = Random(&random, rows, kStep);
      double seconds[2];
      for (const int k : {step % 2, 1 - step % 2}) {
        Subject* const subject = k == 0 ? &plain : &tracked;
        seconds[k] = SecondsOf([&] { subject->Apply(context, numbers, step); });
        total[k] += seconds[k];
      }
      ratios.push_back(seconds[1] / seconds[0]);
    }
    std::printf(
        "%lld rows, %d steps an epoch: a tracked step takes %.3f of another (quartiles %.3f, "
        "%.3f); of the sums %.3f; %.0f us\n",
        static_cast<long long>(rows), steps_per_epoch, Quantile(ratios, 0.5),
        Quantile(ratios, 0.25), Quantile(ratios, 0.75), total[1] / total[0], total[0] / 1000 * 1e6);
  }
}

TableOptions Bounded(int64_t max_rows, const char* eviction) {
  TableOptions options;
  options.max_rows = max_rows;
  Check(EvictionPolicy::Parse(eviction, &options.eviction));
  return options;
}

// Steps of two tables in turns: the ratio of all their time, the median of the steps' ratios, and
// the tails.
void Compare(const char* what, const Context& context, Subject* plain, Subject* other, int steps,
             const std::function<std::vector<int64_t>(int step)>& numbers_of) {
  std::vector<double> ratios, seconds[2];
  for (int step = 0; step < steps; ++step) {
    const std::vector<int64_t> numbers = numbers_of(step);
    for (const int k : {step % 2, 1 - step % 2}) {
      Subject* const subject = k == 0 ? plain : other;
      seconds[k].push_back(
          SecondsOf([&] { subject->Apply(context, numbers, 1'000'000'000 + step); }));
    }
    ratios.push_back(seconds[1].back() / seconds[0].back());
  }
  const auto sum = [](const std::vector<double>& of) {
    return std::accumulate(of.begin(), of.end(), 0.0);
  };
  std::printf(
      "%s: %.3f of the other's time; of its steps %.3f (quartiles %.3f, %.3f); p50 %.2f ms, p99 "
      "%.2f ms: %.2f; the other's p50 %.2f, p99 %.2f\n",
      what, sum(seconds[1]) / sum(seconds[0]), Quantile(ratios, 0.5), Quantile(ratios, 0.25),
      Quantile(ratios, 0.75), 1e3 * Quantile(seconds[1], 0.5), 1e3 * Quantile(seconds[1], 0.99),
      Quantile(seconds[1], 0.99) / Quantile(seconds[1], 0.5), 1e3 * Quantile(seconds[0], 0.5),
      1e3 * Quantile(seconds[0], 0.99));
}

void Eviction(int64_t rows) {
  Threads context(1);
  std::mt19937_64 random(1);
  for (const char* policy :
       {"lru", "lfu", "lfu half_life 1000", "lfu lru", "norm", "lru ttl 1000000000000"}) {
    {
      Subject plain, bounded(Bounded(2 * rows, policy));
      plain.Fill(context, rows);
      bounded.Fill(context, rows);
      Compare((std::string(policy) + ", with room, no new keys").c_str(), context, &plain, &bounded,
              400, [&](int) { return Random(&random, rows, kStep); });
    }
    Subject plain, bounded(Bounded(rows, policy));
    plain.Fill(context, rows);
    bounded.Fill(context, rows);
    int64_t next = rows;
    // The others are of half of the rows, which are written so often that they stay.
    const auto with_new_ones = [&](int) {
      std::vector<int64_t> numbers = Random(&random, rows / 2, kStep);
      for (int64_t i = 0; i < kStep / 5; ++i) numbers[static_cast<size_t>(i)] = next++;
      return numbers;
    };
    const int64_t before = bounded.table->memory_bytes();
    Compare((std::string(policy) + ", at the limit, 20 % new keys").c_str(), context, &plain,
            &bounded, 400, with_new_ones);
    const int64_t then = bounded.table->memory_bytes();
    std::vector<double> seconds;
    for (int step = 0; step < 4000; ++step) {
      const std::vector<int64_t> numbers = with_new_ones(step);
      seconds.push_back(SecondsOf([&] { bounded.Apply(context, numbers, 2'000'000'000 + step); }));
    }
    std::printf(
        "%s: %.1f MiB at the limit, %.1f after 1.3 million evictions, %.1f after 14.4 million; "
        "p50 of the last 4000 steps %.2f ms, p99 %.2f\n",
        policy, before / 1048576.0, then / 1048576.0, bounded.table->memory_bytes() / 1048576.0,
        1e3 * Quantile(seconds, 0.5), 1e3 * Quantile(seconds, 0.99));
  }
}

// Saves what has changed since an epoch, or all.
void Save(const std::vector<Table*>& shards, const std::string& folder, int64_t since,
          int64_t* ended) {
  const IoContext context;
  Check(BeginEpoch(context, shards, ended));
  TableToSave save;
  save.name = "t";
  save.shards = shards;
  save.since_epoch = since;
  Manifest manifest;
  std::filesystem::create_directories(folder);
  Check(SaveTables(context, PosixFileSystem(), folder, {save}, since < 0 ? 0 : 1, &manifest));
}

void Delta(int64_t rows, const std::string& folder) {
  Threads context(2);
  TableOptions options;
  options.track_changes = true;
  Subject subject(options);
  subject.Fill(context, rows);
  const std::vector<Table*> shards = {subject.table.get()};
  std::mt19937_64 random(1);
  std::vector<double> full;
  std::vector<double> deltas[2];
  for (int round = 0; round < 5; ++round) {
    int64_t epoch;
    full.push_back(SecondsOf([&] { Save(shards, folder + "/full", -1, &epoch); }));
    for (int k = 0; k < 2; ++k) {
      subject.Apply(context, Random(&random, rows, rows / (k == 0 ? 100 : 1000)), round);
      int64_t next;
      deltas[k].push_back(SecondsOf([&] { Save(shards, folder + "/delta", epoch, &next); }));
      epoch = next;
      subject.table->TrimChanges({epoch});
    }
    std::filesystem::remove_all(folder + "/full");
    std::filesystem::remove_all(folder + "/delta");
  }
  const double all = Quantile(full, 0.5);
  std::printf(
      "%lld rows: all %.2f s (%.2f to %.2f); 1 %% changed %.3f s, %.2f %%; 0.1 %% %.3f s, "
      "%.2f %%\n",
      static_cast<long long>(rows), all, Quantile(full, 0), Quantile(full, 1),
      Quantile(deltas[0], 0.5), 100 * Quantile(deltas[0], 0.5) / all, Quantile(deltas[1], 0.5),
      100 * Quantile(deltas[1], 0.5) / all);
}

void Restore(int64_t rows, const std::string& folder) {
  Threads context(2);
  TableSchema schema;
  {
    Subject subject;
    subject.Fill(context, rows);
    schema = subject.table->schema();
    int64_t epoch;
    Save({subject.table.get()}, folder + "/full", -1, &epoch);
  }
  const IoContext io;
  for (int round = 0; round < 3; ++round) {
    std::unique_ptr<SnapshotReader> reader;
    Check(SnapshotReader::Open(PosixFileSystem(), folder + "/full", &reader));
    const double read = SecondsOf([&] { Check(reader->Verify(io)); });
    std::unique_ptr<Table> table;
    Check(MakeHostTable(schema, &table));
    const double loaded = SecondsOf([&] {
      SnapshotPlace place;
      std::vector<BlockEntry> blocks;
      Check(reader->List(0, rows, &place, &blocks));
      Check(table->Reserve(io, rows));
      Check(LoadRows(io, *reader, blocks, nullptr, {table.get()}, nullptr));
    });
    std::printf("%lld rows: checked in %.2f s, loaded in %.2f s\n",
                static_cast<long long>(table->size()), read, loaded);
  }
  std::filesystem::remove_all(folder + "/full");
}

void Restrict(int64_t rows) {
  Threads context(2);
  for (const double stays : {0.999, 0.9, 0.5}) {
    Subject subject;
    subject.Fill(context, rows);
    int64_t erased;
    const double seconds = SecondsOf([&] {
      Check(RestrictTo(context, {subject.table}, MetaField::kLastWriteTime,
                       static_cast<int64_t>(stays * rows), &erased));
    });
    std::printf("%lld rows to %.1f %%: %.3f s, %lld erased\n", static_cast<long long>(rows),
                100 * stays, seconds, static_cast<long long>(erased));
  }
}

void Move(int64_t rows) {
  Threads context(2);
  Subject subject({}, false);
  subject.Fill(context, rows);
  TableSchema schema = subject.table->schema();
  Check(SetOptimizer(subject.adam, &schema));
  std::vector<std::shared_ptr<Table>> shards = {subject.table};
  subject.table.reset();
  const int64_t before = ResidentBytes();
  std::atomic<bool> done{false};
  std::atomic<int64_t> peak{0};
  std::thread watch([&] {
    while (!done) {
      peak = std::max<int64_t>(peak, ResidentBytes());
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  });
  const double seconds = SecondsOf([&] { Check(MoveRows(context, schema, &shards)); });
  done = true;
  watch.join();
  const double mib = 1 << 20;
  std::printf("%lld rows: %.3f s; %.0f MiB before, %.0f at the peak, %.0f after\n",
              static_cast<long long>(rows), seconds, before / mib, peak / mib,
              ResidentBytes() / mib);
}

void Growth(int64_t rows) {
  Threads context(2);
  // The first time the machine itself may have to find memory.
  for (int round = 0; round < 3; ++round) {
    Subject subject({}, false);
    std::vector<double> seconds;
    std::vector<int64_t> numbers(kStep);
    int64_t slowest_at = 0;
    for (int64_t row = 0; row < rows; row += kStep) {
      for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = row + i;
      seconds.push_back(SecondsOf([&] { subject.Apply(context, numbers, row); }));
      if (seconds.back() == *std::max_element(seconds.begin(), seconds.end())) slowest_at = row;
    }
    std::printf(
        "%lld rows, %lld at a time: median %.2f ms, p99 %.2f ms, p99.9 %.2f ms, slowest "
        "%.2f ms at %lld rows\n",
        static_cast<long long>(rows), static_cast<long long>(kStep), 1e3 * Quantile(seconds, 0.5),
        1e3 * Quantile(seconds, 0.99), 1e3 * Quantile(seconds, 0.999), 1e3 * Quantile(seconds, 1),
        static_cast<long long>(slowest_at));
  }
}

void Beside(int64_t rows, const std::string& folder) {
  Threads context(1), other(1);
  Subject subject;
  subject.Fill(context, rows);
  const std::vector<Table*> shards = {subject.table.get()};
  std::mt19937_64 random(1);
  int64_t now = rows;
  // Steps until `end`, at least 200.
  const auto steps = [&](const std::function<bool()>& end) {
    std::vector<double> seconds;
    while (seconds.size() < 200 || !end()) {
      const std::vector<int64_t> numbers = Random(&random, rows, kStep);
      seconds.push_back(SecondsOf([&] { subject.Apply(context, numbers, ++now); }));
    }
    return seconds;
  };
  const auto measure = [&](const char* what, const std::function<void()>& call) {
    const std::vector<double> quiet = steps([] { return true; });
    std::atomic<bool> done{false};
    double lasted = 0;
    std::thread thread([&] {
      lasted = SecondsOf(call);
      done = true;
    });
    const std::vector<double> beside = steps([&] { return done.load(); });
    thread.join();
    std::printf(
        "%s, %.2f s: a step's p50 %.2f ms, quiet %.2f; p99 %.2f, quiet %.2f: %.2f; slowest %.2f, "
        "quiet %.2f\n",
        what, lasted, 1e3 * Quantile(beside, 0.5), 1e3 * Quantile(quiet, 0.5),
        1e3 * Quantile(beside, 0.99), 1e3 * Quantile(quiet, 0.99),
        Quantile(beside, 0.99) / Quantile(quiet, 0.99), 1e3 * Quantile(beside, 1),
        1e3 * Quantile(quiet, 1));
  };
  int64_t epoch;
  measure("first tracked save", [&] { Save(shards, folder + "/full", -1, &epoch); });
  std::filesystem::remove_all(folder + "/full");
  measure("restrict to 90 %", [&] {
    int64_t erased;
    Check(RestrictTo(other, {subject.table}, MetaField::kLastWriteTime, rows * 9 / 10, &erased));
  });
}

int Run(int count, char** arguments) {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);  // some take minutes for each line
  const std::string what = count > 1 ? arguments[1] : "";
  const int64_t rows = count > 2 ? std::atoll(arguments[2]) : 1'000'000;
  const std::string folder = count > 3 ? arguments[3] : "/tmp/lifecycle_benchmark";
  if (what == "tracking") {
    Tracking(rows);
  } else if (what == "eviction") {
    Eviction(rows);
  } else if (what == "delta") {
    Delta(rows, folder);
  } else if (what == "restore") {
    Restore(rows, folder);
  } else if (what == "restrict") {
    Restrict(rows);
  } else if (what == "move") {
    Move(rows);
  } else if (what == "growth") {
    Growth(rows);
  } else if (what == "beside") {
    Beside(rows, folder);
  } else {
    std::fprintf(stderr,
                 "what: got '%s', want tracking, delta, restore, eviction, restrict, move, growth "
                 "or beside\n",
                 what.c_str());
    return 1;
  }
  return 0;
}

}  // namespace
}  // namespace dynemb

int main(int count, char** arguments) { return dynemb::Run(count, arguments); }

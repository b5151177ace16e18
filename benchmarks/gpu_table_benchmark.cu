// What the GPU table's calls cost beside what the card itself allows.
//
//   gpu_table_benchmark [--case=limits,find,bounded,insert,step,bags,tables,growth,cpu]
//                       [--json=FILE] [--quick] [--rounds=N]
//
// A line says the case and its numbers, the median time of all rounds with the least and the most,
// keys per second, the bytes that must be moved per second, and for each limit its time and the
// share of it that the call reaches: the median over the rounds of limit / call, which are timed
// one after the other in each round. --json appends an object per line to a file. --quick makes
// tables and batches ten times smaller, for a smoke run.
//
// Limits read or write rows of a flat array by row number, as wide and as many as the table's; of
// several kernels, which differ in how many rows a thread has in flight, the fastest is taken. Keys
// lie all over the 64-bit integers and, as all inputs, on the device. Batches take turns.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "benchmarks/gpu_bench.cu.h"
#include "benchmarks/threads_executor.h"
#include "cc/core/table/host_table.h"
#include "cc/gpu/kernel_starts.h"

namespace dynemb {
namespace {

int64_t RowsOfFind(int64_t dim) { return kMillion << (dim <= 8 ? 6 : dim <= 32 ? 5 : 4); }

// The limits of rows that are as wide as those that a rule trains.
void LimitsOf(const Bench& bench, const Copy& copy, Access access, int64_t dim,
              const Training& training) {
  const TableSchema schema = SchemaOf(dim, &training);
  const int64_t n = bench.Scaled(kMillion), row_bytes = RowLayout(schema).row_bytes;
  const int64_t rows = bench.Fit(RowsOfFind(dim), 2 * row_bytes + kIndexBytes);
  Subject subject(bench, schema, rows, n);
  const Batches batches = access == Access::kUpdate ? DistinctRows(n, rows) : AnyRows(n, rows);
  const int64_t moved = n * (8 + 4 * dim + row_bytes * (access == Access::kUpdate ? 2 : 1));
  for (const Timed& limit : subject.Variants(access, batches, n)) {
    bench.Measure("limits/" + limit.name, {{"row_bytes", row_bytes}, {"rows", rows}, {"batch", n}},
                  n, moved, limit, {copy.Of(moved)});
  }
}

void LimitsCase(const Bench& bench) {
  const Copy copy(bench);
  bench.Measure("limits/copy", {{"bytes", copy.moved() / 2}}, 0, copy.moved(),
                copy.Of(copy.moved()), {});
  for (const Access access : {Access::kGather, Access::kScatter}) {
    for (const int64_t dim : {8, 32, 64, 128}) LimitsOf(bench, copy, access, dim, Training("sgd"));
  }
  for (const char* rule : {"sgd", "adagrad", "adam"}) {
    LimitsOf(bench, copy, Access::kUpdate, 128, Training(rule));
  }
}

// Ends the program if rows of a table are not as Subject::Fill wrote them.
void Verify(const Subject& subject) {
  const int64_t n = 1000, dim = subject.dim, rows = subject.table->size();
  std::vector<Key> keys(n);
  for (int64_t i = 0; i < n; ++i) keys[i] = KeyOf(Permuted(i % rows, rows));
  const auto on_device = Upload(keys);
  const auto values = Upload(std::vector<float>(n * dim, -1));
  const auto outcomes = Upload(std::vector<Outcome>(n, Outcome::kMissing));
  RowParts rows_read;
  rows_read.values = OnDevice(values.get(), n, 4 * dim);
  Check(subject.table->ReadRows(subject.bench.context, {{on_device.get(), n, kDevice}}, rows_read,
                                Into(outcomes.get(), n)));
  subject.bench.Sync();
  const std::vector<float> got = Download(values, n * dim);
  const std::vector<Outcome> became = Download(outcomes, n);
  for (int64_t i = 0; i < n * dim; ++i) {
    const float want = ValueOf(keys[i / dim], i % dim);
    if (got[i] == want && became[i / dim] == Outcome::kFound) continue;
    Check(Status(Code::kInternal,
                 StrCat("find: got ", got[i], " in column ", i % dim, " of key ", keys[i / dim],
                        ", want ", want, "; its outcome is ", static_cast<int>(became[i / dim]))));
  }
}

void FindPoint(const char* name, int64_t n, bool some_absent, bool fill_missing, bool report,
               Subject* subject) {
  const int64_t rows = subject->table->size(), dim = subject->dim;
  const double load =
      static_cast<double>(rows) / static_cast<double>(subject->table->index_cells());
  const Batches batches = AnyRows(n, rows, some_absent);
  const auto outcomes = Allocate<Outcome>(n);
  subject->bench.Measure(
      std::string("find/") + name,
      {{"dim", dim}, {"load", std::round(load * 1000) / 1000}, {"rows", rows}, {"batch", n}}, n,
      n * (8 + 2 * 4 * dim + report),
      subject->Find(batches, fill_missing, report ? outcomes.get() : nullptr),
      {subject->Limit(Access::kGather, batches)});
}

void FindCase(const Bench& bench) {
  constexpr bool kInitial = true, kLeave = false;  // what missing keys read
  const int64_t n = bench.Scaled(kMillion), large = bench.Scaled(4 * kMillion);
  for (const int64_t dim : {8, 32, 64, 128}) {
    const int64_t rows = bench.Fit(RowsOfFind(dim), 8 * dim + kIndexBytes);
    Subject subject(bench, SchemaOf(dim), rows, large);
    const int64_t cells = subject.table->index_cells();
    for (const int64_t percent : {50, 70, 80, 90}) {
      subject.Fill(std::min(rows, cells * percent / 100));
      Verify(subject);
      FindPoint("present", n, false, kInitial, true, &subject);
      if (percent != 80) continue;
      FindPoint("present", large, false, kInitial, true, &subject);
      FindPoint("tenth_absent", n, true, kInitial, true, &subject);
      FindPoint("leave_no_outcomes", n, false, kLeave, false, &subject);
    }
  }
}

// Finds in a table with a limit, by the share of the rows that it may have. The last share is of a
// table that has evicted as many rows as it has.
void BoundedCase(const Bench& bench) {
  const int64_t n = bench.Scaled(kMillion);
  for (const int64_t dim : {8, 64}) {
    const int64_t rows = bench.Fit(RowsOfFind(dim), 8 * dim + kIndexBytes);
    TableOptions options;
    options.max_rows = rows;
    Check(EvictionPolicy::Parse("lru", &options.eviction));
    TableSchema schema = SchemaOf(dim);
    schema.meta = options.eviction.meta();
    Subject subject(bench, schema, rows, n, 0, options);
    for (const int64_t percent : {50, 75, 100}) {
      subject.Fill(rows / 100 * percent);
      FindPoint("bounded", n, false, true, true, &subject);
    }
    subject.Churn(rows);
    const Batches batches(n, rows, [=](int64_t batch, int64_t i) {
      const uint64_t any = Mix64((1ull << 52) + batch * n + i);
      return rows + static_cast<int64_t>(any % static_cast<uint64_t>(rows));
    });
    const auto outcomes = Allocate<Outcome>(n);
    bench.Measure("find/bounded_after_eviction", {{"dim", dim}, {"rows", rows}, {"batch", n}}, n,
                  n * (9 + 2 * 4 * dim), subject.Find(batches, true, outcomes.get()),
                  {subject.Limit(Access::kGather, batches)});
  }
}

// Upserts of new rows and then of those rows; with `train`, updates of new rows. When there is no
// memory for more, all rows are erased and are new again.
void InsertInto(const Bench& bench, int64_t dim, int64_t wanted_batch, bool train) {
  const Training sgd("sgd");
  const int64_t wanted = (kWarmUp + bench.options.rounds) * wanted_batch;
  const int64_t rows = bench.Fit(wanted, 8 * dim + kIndexBytes + 8);
  const int64_t n = std::min(bench.Scaled(wanted_batch), rows);
  Subject subject(bench, SchemaOf(dim, train ? &sgd : nullptr), rows, n, 2 * n);
  const auto keys = Allocate<Key>(rows);
  Check(ForEach(bench.context, rows, FillKeys{0, keys.get()}));
  int64_t present = 0;
  const auto make_room = [&](int) {
    if (present + n <= rows) return;
    for (; present > 0; present -= n) {
      const Batch last{{keys.get() + present - n, n, kDevice}};
      Check(subject.table->Erase(bench.context, last, NoReport()));
    }
    bench.Sync();
  };
  const auto insert = [&](int) {
    const Batch batch{{keys.get() + present, n, kDevice}};
    if (train) {
      subject.Apply(batch, sgd);
    } else {
      subject.Upsert(batch);
    }
    present += n;
  };
  // Memory for the rows is taken before: what that costs is in the case of growth.
  while (present + n <= rows) insert(0);
  make_room(0);
  const auto measure = [&](const char* name, const Batches& batches, const Timed& call) {
    bench.Measure(std::string("insert/") + name, {{"dim", dim}, {"rows", rows}, {"batch", n}}, n,
                  n * (8 + 2 * 4 * dim), call, {subject.Limit(Access::kScatter, batches)});
  };
  measure(train ? "apply_sgd_new" : "upsert_new", DistinctRows(n, rows), {"", insert, make_room});
  if (train) return;
  const Batches again = DistinctRows(n, present);
  measure("upsert_present", again, {"", [&](int round) { subject.Upsert(again.device(round)); }});
}

void InsertCase(const Bench& bench) {
  for (const int64_t dim : {8, 32, 64, 128}) {
    InsertInto(bench, dim, kMillion, false);
    InsertInto(bench, dim, 4 * kMillion, false);
    InsertInto(bench, dim, kMillion, true);
  }
}

struct StepBatches {
  const char* name;
  Batches batches;
  int64_t distinct;
};

// The limit of updates takes `distinct` rows.
void StepsOf(const Bench& bench, const std::string& rule, int64_t dim, DType dtype, int64_t rows,
             const Copy& copy, const std::vector<StepBatches>& all, const Batches& distinct) {
  const Training training(rule);
  const int64_t n = distinct.size();
  Subject subject(bench, SchemaOf(dim, &training, dtype), rows, n, 2 * n);
  subject.Fill(rows);
  for (const StepBatches& some : all) {
    const int64_t bytes = n * (8 + 4 * dim) + 2 * some.distinct * subject.row_bytes;
    const auto apply = [&](int round) { subject.Apply(some.batches.device(round), training); };
    bench.Measure(StrCat("step/", rule, "/", Name(dtype), "/", some.name),
                  {{"dim", dim}, {"rows", rows}, {"batch", n}, {"distinct", some.distinct}}, n,
                  bytes, {"", apply},
                  {copy.Of(bytes),
                   bench.Fastest(subject.Variants(Access::kUpdate, distinct, some.distinct))});
  }
}

// The step that dynamicemb publishes times of (docs/gpu.md): a lookup and the training of its rows.
void LookUpAndTrain(const Bench& bench, int64_t rows, const Copy& copy) {
  const Training adam("adam");
  const int64_t dim = 128, n = bench.Scaled(kMillion);
  const Batches batches = RepeatedRows(n, rows, 3);
  const int64_t distinct = batches.Distinct();
  Subject subject(bench, SchemaOf(dim, &adam), rows, n, 2 * n);
  subject.Fill(rows);
  const Timed find = subject.Find(batches, true, nullptr);
  const auto step = [&](int round) {
    find.run(round);
    subject.Apply(batches.device(round), adam);
  };
  const int64_t bytes = 2 * n * (8 + 4 * dim) + distinct * (4 * dim + 2 * subject.row_bytes);
  bench.Measure("step/find_and_adam/float32/thrice",
                {{"dim", dim}, {"rows", rows}, {"batch", n}, {"distinct", distinct}}, n, bytes,
                {"", step}, {copy.Of(bytes)});
}

void StepCase(const Bench& bench) {
  const Copy copy(bench);
  const int64_t n = bench.Scaled(kMillion), adam_row = 3 * 4 * 128;
  const int64_t rows = bench.Fit(16 * kMillion, 2 * adam_row + kIndexBytes);
  std::vector<StepBatches> all;
  all.push_back({"pairs", RepeatedRows(n, rows, 2), 0});
  all.push_back({"zipf", ZipfRows(n, rows), 0});
  all.push_back({"distinct", DistinctRows(n, rows), 0});
  for (StepBatches& some : all) some.distinct = some.batches.Distinct();
  const Batches& distinct = all.back().batches;
  for (const char* rule : {"adam", "adagrad", "sgd", "rowwise_adagrad"}) {
    StepsOf(bench, rule, 128, kFloat, rows, copy, all, distinct);
  }
  for (const int64_t dim : {16, 64}) {
    StepsOf(bench, "adam", dim, kFloat, rows, copy, all, distinct);
  }
  StepsOf(bench, "adam", 128, DType::kFloat16, rows, copy, all, distinct);
  LookUpAndTrain(bench, rows, copy);
}

template <int kInFlight>
Timed PoolOf(const Subject& subject, const Batches& ids, int64_t bags, Ring* pooled) {
  return {"gather_of_" + std::to_string(kInFlight), [=, &subject, &ids](int round) {
            const AccessedRows rows = subject.Accessed(ids, round, bags, pooled->Next());
            const int64_t threads = bags << rows.lanes_log2;
            Launch(PoolKernel<kInFlight>, (threads + kThreads - 1) / kThreads, subject.bench.stream,
                   rows, ids.size() / bags);
          }};
}

void BagsCase(const Bench& bench) {
  const int64_t dim = 64, length = 20, bags = bench.Scaled(65536), n = bags * length;
  const int64_t rows = bench.Fit(RowsOfFind(dim), 8 * dim + kIndexBytes);
  Subject subject(bench, SchemaOf(dim), rows, n);
  subject.Fill(rows);
  const Batches ids = AnyRows(n, rows);
  std::vector<int64_t> ends(bags + 1);
  for (int64_t b = 0; b <= bags; ++b) ends[b] = b * length;
  const auto begins = Upload(ends);
  Ring pooled(bench, bags * dim * 4);
  const Timed limit = bench.Fastest({PoolOf<4>(subject, ids, bags, &pooled),
                                     PoolOf<10>(subject, ids, bags, &pooled),
                                     PoolOf<20>(subject, ids, bags, &pooled)});
  for (const Pooling pooling : {Pooling::kSum, Pooling::kMean}) {
    const auto find_bags = [&](int round) {
      const DeviceBags of_round{
          ids.device(round).keys, {begins.get(), bags + 1, kDevice}, pooling, nullptr};
      const Rows out = OnDevice(pooled.Next(), bags, dim * 4);
      Check(subject.table->FindBags(bench.context, of_round, out));
    };
    bench.Measure(pooling == Pooling::kSum ? "bags/sum" : "bags/mean",
                  {{"dim", dim}, {"rows", rows}, {"bags", bags}, {"ids", n}}, n,
                  (n + bags) * (8 + dim * 4), {"", find_bags},
                  {limit, subject.Find(ids, true, nullptr)});
  }
}

// Many tables of a model, each with a batch of its own, whose bags have one id: as one call and as
// a call for each. By the host's clock, for what counts is how soon the next call can be made: the
// host's work and the device's go on side by side.
class ManyTables {
 public:
  ManyTables(const Bench& bench, int64_t tables, int64_t n)
      : bench_(bench),
        training_("adagrad"),
        tables_(tables),
        n_(n),
        batches_(AnyRows(tables * n, kRows)),
        begins_(Upload(Ends(n))),
        numbers_(Numbers(bench, tables * n * kDim * 4)) {
    const DeviceArray<Key> keys = Allocate<Key>(kRows);
    Check(ForEach(bench.context, kRows, FillKeys{0, keys.get()}));
    const DeviceArray<char> values = Numbers(bench, kRows * kDim * 4);
    const TableSchema schema = SchemaOf(kDim, &training_);
    for (int64_t t = 0; t < tables; ++t) {
      made_.emplace_back();
      Check(MakeGpuTable(schema, CudaMemory(), &made_.back()));
      Check(made_.back()->Reserve(bench.context, kRows + 16 * n));
      Check(made_.back()->Upsert(bench.context, {{keys.get(), kRows, kDevice}},
                                 OnDevice(values.get(), kRows, kDim * 4), Stamp(), NoReport()));
    }
    bench.Sync();
  }

  void FindBags(int round, bool together) const {
    std::vector<BagsOfTable> calls;
    for (int64_t t = 0; t < tables_; ++t) {
      calls.push_back(
          {made_[t].get(), {KeysOf(round, t), {begins_.get(), n_ + 1, kDevice}}, NumbersOf(t)});
    }
    if (together) return Check(FindBagsOfTables(bench_.context, calls));
    for (const BagsOfTable& call : calls) {
      Check(call.table->FindBags(bench_.context, call.bags, call.out));
    }
  }
  void Apply(int round, bool together) const {
    std::vector<ApplyOfTable> calls;
    for (int64_t t = 0; t < tables_; ++t) {
      calls.push_back(
          {made_[t].get(), {KeysOf(round, t)}, NumbersOf(t), training_.update(kDevice), Stamp()});
    }
    if (together) return Check(ApplyToTables(bench_.context, calls));
    for (const ApplyOfTable& call : calls) {
      Check(call.table->Apply(bench_.context, call.batch, call.gradients, call.update, call.stamp,
                              NoReport()));
    }
  }

  // Microseconds of a call, where one follows the other.
  template <typename F>
  double Time(const F& call) const {
    constexpr int kCalls = 10;
    bench_.Sync();
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < kCalls; ++i) call(i);
    bench_.Sync();
    const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - begin;
    return took.count() / kCalls;
  }

 private:
  static constexpr int64_t kRows = 1 << 16, kDim = 16;
  static std::vector<int64_t> Ends(int64_t bags) {
    std::vector<int64_t> ends(bags + 1);
    for (int64_t b = 0; b <= bags; ++b) ends[b] = b;
    return ends;
  }
  Span<const Key> KeysOf(int round, int64_t t) const {
    return {batches_.device(round).keys.data + t * n_, n_, kDevice};
  }
  Rows NumbersOf(int64_t t) const {
    return OnDevice(numbers_.get() + t * n_ * kDim * 4, n_, kDim * 4);
  }

  const Bench& bench_;
  const Training training_;
  const int64_t tables_, n_;
  const Batches batches_;
  const DeviceArray<int64_t> begins_;
  const DeviceArray<char> numbers_;
  std::vector<std::unique_ptr<GpuTable>> made_;
};

void TablesCase(const Bench& bench) {
  for (const int64_t count : {26, 104}) {
    for (const int64_t n : {2048, 16384}) {
      const ManyTables tables(bench, count, n);
      for (const bool trains : {false, true}) {
        std::vector<double> together, alone, ratios;
        const auto call = [&](bool at_once) {
          return [&, at_once](int round) {
            trains ? tables.Apply(round, at_once) : tables.FindBags(round, at_once);
          };
        };
        for (int round = 0; round < kWarmUp + bench.options.rounds; ++round) {
          const double one = tables.Time(call(true)), each = tables.Time(call(false));
          if (round < kWarmUp) continue;
          together.push_back(one);
          alone.push_back(each);
          ratios.push_back(each / one);
        }
        const int64_t before = kernel_starts;
        call(true)(0);
        const int64_t starts = kernel_starts - before;
        call(false)(0);
        const int64_t starts_alone = kernel_starts - before - starts;
        bench.Emit(trains ? "tables/apply" : "tables/bags", {{"tables", count}, {"batch", n}},
                   {{"us", Median(together)},
                    {"us_alone", Median(alone)},
                    {"ratio", Median(ratios)},
                    {"starts", starts},
                    {"starts_alone", starts_alone}},
                   Format("%9.1f us [%9.1f %9.1f], one after the other %9.1f us, ratio %.2f [%.2f "
                          "%.2f], %lld starts, one after the other %lld",
                          Median(together), Quantile(together, 0), Quantile(together, 1),
                          Median(alone), Median(ratios), Quantile(ratios, 0), Quantile(ratios, 1),
                          static_cast<long long>(starts), static_cast<long long>(starts_alone)));
      }
    }
  }
}

// Upserts of new rows into a table for which nothing was reserved, each from an idle device.
void Grow(const Bench& bench, int64_t dim, int64_t wanted_rows) {
  using Clock = std::chrono::steady_clock;
  const int64_t most = bench.Scaled(kMillion);
  const int64_t rows = bench.Fit(wanted_rows, 2 * (4 * dim + kIndexBytes));
  std::unique_ptr<GpuTable> table;
  Check(MakeGpuTable(SchemaOf(dim), CudaMemory(), &table));
  const auto keys = Allocate<Key>(most);
  const auto values = Numbers(bench, most * dim * 4);
  std::vector<double> device, wall;
  for (int64_t row = 0, n; row < rows; row += n) {
    n = std::min(most, rows - row);
    Check(ForEach(bench.context, n, FillKeys{row, keys.get()}));
    bench.Sync();
    const Batch batch{{keys.get(), n, kDevice}};
    const auto begin = Clock::now();
    device.push_back(bench.TimeNow([&] {
      Check(table->Upsert(bench.context, batch, OnDevice(values.get(), n, dim * 4), Stamp(),
                          NoReport()));
    }));
    wall.push_back(std::chrono::duration<double, std::micro>(Clock::now() - begin).count());
  }
  double seconds = 0;
  for (const double us : wall) seconds += us / 1e6;
  const double bytes = static_cast<double>(table->memory_bytes()) / static_cast<double>(rows);
  std::string text = Format("%.3f s, %.1f bytes/row", seconds, bytes);
  Fields fields = {{"seconds", seconds}, {"bytes_per_row", bytes}};
  for (const bool host : {false, true}) {
    const std::vector<double>& times = host ? wall : device;
    const std::string name = host ? "wall_us" : "us";
    const double median = Median(times), p99 = Quantile(times, 0.99), last = Quantile(times, 1);
    text += Format("  %s %.1f, p99 %.1f, slowest %.1f, %.1f times the median", name.c_str(), median,
                   p99, last, last / median);
    fields.emplace_back(name, median);
    fields.emplace_back(name + "_p99", p99);
    fields.emplace_back(name + "_max", last);
    fields.emplace_back(name + "_max_over_median", last / median);
  }
  bench.Emit("growth", {{"dim", dim}, {"rows", table->size()}, {"batch", most}}, fields, text);
}

void GrowthCase(const Bench& bench) {
  // The first start of a kernel takes long.
  Subject(bench, SchemaOf(16), 1024, 64).Fill(bench.Scaled(4 * kMillion));
  Grow(bench, 16, 100'000'000);
  Grow(bench, 128, 20'000'000);
}

// The table in host memory, on all cores, does the same with its keys and values in host memory:
// ratios are how many times faster the device is.
void BesideHost(const Bench& bench, int64_t dim, bool train) {
  const Training adam("adam");
  const TableSchema schema = SchemaOf(dim, train ? &adam : nullptr);
  const int64_t n = bench.Scaled(kMillion), row_bytes = RowLayout(schema).row_bytes;
  const int64_t rows = bench.Fit(4 * kMillion, 2 * row_bytes + kIndexBytes);
  Subject subject(bench, schema, rows, n, 2 * n);
  subject.Fill(rows);

  ThreadsExecutor executor(std::max(1, static_cast<int>(std::thread::hardware_concurrency())));
  Context context;
  context.executor = &executor;
  std::unique_ptr<Table> table;
  Check(MakeHostTable(schema, &table));
  std::vector<float> numbers(n * dim, 0.01f);
  Rows values(reinterpret_cast<char*>(numbers.data()), n, dim * 4);
  for (int64_t row = 0; row < rows; row += n) {
    std::vector<Key> keys(std::min(n, rows - row));
    for (size_t i = 0; i < keys.size(); ++i) keys[i] = KeyOf(row + static_cast<int64_t>(i));
    values.count = static_cast<int64_t>(keys.size());
    Check(table->Upsert(context, {keys}, values, Stamp(), Report()));
  }
  values.count = n;

  const Batches batches = train ? RepeatedRows(n, rows, 2) : AnyRows(n, rows);
  const auto on_host = [&](int round) {
    const Batch batch = batches.host(round);
    const Update update = adam.update(MemorySpace::kHost);
    Check(train ? table->Apply(context, batch, values, update, Stamp(), Report())
                : table->Find(context, batch, values, Report()));
  };
  const auto step = [&](int round) { subject.Apply(batches.device(round), adam); };
  bench.Measure(train ? "cpu/step/adam/pairs" : "cpu/find",
                {{"dim", dim}, {"rows", rows}, {"batch", n}, {"threads", executor.concurrency()}},
                n, n * (8 + 4 * dim + row_bytes),
                train ? Timed{"", step} : subject.Find(batches, true, nullptr),
                {{"host_table", on_host}});
}

void CpuCase(const Bench& bench) {
  for (const int64_t dim : {32, 128}) BesideHost(bench, dim, false);
  BesideHost(bench, 128, true);
}

// --- the program

void DescribeDevice(const Bench& bench) {
  int device = 0, driver = 0, runtime = 0;
  cudaDeviceProp properties;
  size_t free = 0, total = 0;
  Check(cudaGetDevice(&device), "cudaGetDevice");
  Check(cudaGetDeviceProperties(&properties, device), "cudaGetDeviceProperties");
  Check(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
  Check(cudaDriverGetVersion(&driver), "cudaDriverGetVersion");
  Check(cudaRuntimeGetVersion(&runtime), "cudaRuntimeGetVersion");
  const Fields fields = {{"device", std::string(properties.name)},
                         {"memory_bytes", total},
                         {"free_bytes", free},
                         {"multiprocessors", properties.multiProcessorCount},
                         {"l2_bytes", properties.l2CacheSize},
                         {"cuda_of_driver", driver},
                         {"cuda_of_runtime", runtime}};
  std::string text;
  for (const auto& [name, value] : fields) text += StrCat(name, " ", value.text, "  ");
  bench.Emit("device", {}, fields, text);
}

Status ParseOptions(int argc, char** argv, Options* options) {
  const std::set<std::string> known = options->cases;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i], name = argument.substr(0, argument.find('='));
    const std::string value = argument.substr(std::min(name.size() + 1, argument.size()));
    if (argument == "--quick") {
      options->quick = true;
    } else if (name == "--json" && !value.empty()) {
      options->json = value;
    } else if (name == "--rounds" && std::atoi(value.c_str()) > 0) {
      options->rounds = std::atoi(value.c_str());
    } else if (name == "--case") {
      options->cases.clear();
      std::istringstream names(value);
      for (std::string one; std::getline(names, one, ',');) {
        if (known.count(one) == 0) return InvalidArgument("--case: there is no ", one);
        options->cases.insert(one);
      }
    } else {
      return InvalidArgument(
          argument, ": want --case=limits,find,bounded,insert,step,bags,tables,growth,cpu, ",
          "--json=FILE, --quick or --rounds=N");
    }
  }
  if (options->rounds == 0) options->rounds = options->quick ? 3 : 15;
  return {};
}

int Main(int argc, char** argv) {
  std::setvbuf(stdout, nullptr, _IOLBF, BUFSIZ);
  Options options;
  Check(ParseOptions(argc, argv, &options));
  const Bench bench(options);
  DescribeDevice(bench);
  const std::pair<const char*, void (*)(const Bench&)> cases[] = {
      {"limits", LimitsCase}, {"find", FindCase},     {"bounded", BoundedCase},
      {"insert", InsertCase}, {"step", StepCase},     {"bags", BagsCase},
      {"tables", TablesCase}, {"growth", GrowthCase}, {"cpu", CpuCase}};
  for (const auto& [name, run] : cases) {
    if (options.cases.count(name) == 0) continue;
    const auto begin = std::chrono::steady_clock::now();
    run(bench);
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    std::printf("# %s took %.1f s\n", name, took.count());
  }
  return 0;
}

}  // namespace
}  // namespace dynemb

int main(int argc, char** argv) { return dynemb::Main(argc, argv); }

// What a host table's calls cost per key without TensorFlow, and what the machine allows.
//
//   bazel run -c opt //benchmarks:table_benchmark -- --benchmark_filter='Find.*dim:32'
//
// Names say the operation, the rule of the rows or the kind of keys, then dim, rows and threads. A
// batch is 65,536 keys that lie all over the 64-bit integers. Limit/... are what a call without
// keys would cost on one thread: a flat array gathered or updated by row number with prefetch, the
// same where each number is read from an index first, a chain of dependent reads of a cache line
// each, near each other or on pages of their own, a copy, and memory that is touched for the first
// time. Strings/... are what a table that keeps the strings of its keys does beside that: it
// records the strings of a batch, checks them for a lookup, and pins them for an update; Step/...
// are all calls of a training step, of integer keys and of strings.
#include <benchmark/benchmark.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "benchmarks/threads_executor.h"
#include "cc/core/base/copy_bytes.h"
#include "cc/core/base/hash.h"
#include "cc/core/lookup/sum_by_key.h"
#include "cc/core/optimizer/rule.h"
#include "cc/core/table/batch_order.h"
#include "cc/core/table/host_table.h"
#include "cc/core/table/key_strings.h"

namespace dynemb {
namespace {

constexpr int64_t kBatch = 65536, kBatches = 16, kRows = 1'000'000;
constexpr int64_t kAhead = 16;  // rows that the limits prefetch
constexpr int64_t kLine = 64;   // bytes of the cache

using benchmark::State;

void Check(const Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", status.message().c_str());
  std::exit(1);
}

// The first place from there on that is aligned as TensorFlow's tensors are.
char* Aligned(char* memory) { return memory + (-reinterpret_cast<intptr_t>(memory) & (kLine - 1)); }

// Keys are Mix64 of row numbers: distinct without a search, and like fingerprints.
Key KeyOf(int64_t row) { return static_cast<Key>(Mix64(static_cast<uint64_t>(row))); }

std::vector<Key> Consecutive(int64_t first, int64_t n = kBatch) {
  std::vector<Key> keys(n);
  for (int64_t i = 0; i < n; ++i) keys[i] = KeyOf(first + i);
  return keys;
}

// Batches of numbers below `rows` in no order, distinct within a batch where rows >= kBatch.
std::vector<std::vector<int64_t>> Shuffled(int64_t rows) {
  std::vector<int64_t> numbers(rows);
  std::iota(numbers.begin(), numbers.end(), 0);
  std::shuffle(numbers.begin(), numbers.end(), std::mt19937_64(1));
  std::vector<std::vector<int64_t>> batches(kBatches, std::vector<int64_t>(kBatch));
  for (int64_t i = 0; i < kBatches * kBatch; ++i) {
    batches[i / kBatch][i % kBatch] = numbers[i % rows];
  }
  return batches;
}

// Hyper-parameters of a rule at the values that Keras gives them; weight decay and penalties are 0.
std::vector<double> HyperOf(const std::string& rule) {
  const std::vector<std::pair<std::string, double>> values = {
      {"learning_rate", 1e-3}, {"step", 1},   {"beta_1", 0.9},   {"beta_2", 0.999},
      {"epsilon", 1e-7},       {"rho", 0.95}, {"momentum", 0.9}, {"learning_rate_power", -0.5}};
  std::vector<double> hyper;
  for (const std::string& name : HyperNames(rule)) {
    hyper.push_back(0);
    for (const auto& [known, value] : values) {
      if (name == known) hyper.back() = value;
    }
  }
  return hyper;
}

struct Shape {
  std::string rule;  // empty: the rows have no slots
  int64_t dim;
  int64_t rows;
  bool tracked = false;  // whether changes are tracked
  bool operator==(const Shape& o) const {
    return rule == o.rule && dim == o.dim && rows == o.rows && tracked == o.tracked;
  }
};

// A table with rows, and the calls of it that are measured.
class Subject {
 public:
  // The one of this shape, which lives until another shape is asked for.
  static Subject& Of(const Shape& shape, int threads) {
    static std::unique_ptr<Subject> last;
    if (!last || !(last->shape_ == shape)) {
      last.reset();
      last = std::make_unique<Subject>(shape);
    }
    last->executor_ = std::make_unique<ThreadsExecutor>(threads);
    last->context_.executor = last->executor_.get();
    return *last;
  }

  explicit Subject(const Shape& shape)
      : shape_(shape), hyper_(HyperOf(shape.rule)), values_(kBatch * shape.dim + kLine, 0.01f) {
    context_.executor = &inline_executor_;
    table_ = Make();
    for (int64_t row = 0; row < shape.rows; row += kBatch) {
      Write(table_.get(), Consecutive(row, std::min(kBatch, shape.rows - row)));
    }
  }

  std::unique_ptr<Table> Make() {
    TableSchema schema;
    schema.dim = shape_.dim;
    schema.initializer.distribution = {Distribution::Kind::kUniform, -0.05f, 0.05f};
    if (!shape_.rule.empty()) {
      Check(MakeOptimizerSpec(shape_.rule, 0.1, &rule_));
      schema.rule = rule_;
    }
    std::unique_ptr<Table> table;
    TableOptions options;
    options.track_changes = shape_.tracked;
    Check(MakeHostTable(schema, options, &table));
    return table;
  }

  void Find(const std::vector<Key>& keys) {
    Batch batch;
    batch.keys = keys;
    Check(table_->Find(context_, batch, Values(batch.keys.size), Report()));
  }
  // An update by the rule; without one an upsert.
  void Write(Table* table, const std::vector<Key>& keys) {
    Batch batch;
    batch.keys = keys;
    if (shape_.rule.empty()) {
      Check(table->Upsert(context_, batch, Values(batch.keys.size), Stamp(), Report()));
    } else {
      Update update;
      update.rule = &rule_;
      update.hyper = hyper_;
      Check(table->Apply(context_, batch, Values(batch.keys.size), update, Stamp(), Report()));
    }
  }
  void Erase(const std::vector<Key>& keys) {
    Batch batch;
    batch.keys = keys;
    Check(table_->Erase(context_, batch, Report()));
  }
  // All rows with their slots; how many there were.
  int64_t Export() {
    const RowLayout layout(table_->schema());
    std::vector<Key> keys(kBatch);
    std::vector<char> slots(kBatch * layout.slots_bytes);
    RowParts parts{keys, Values(kBatch), {slots.data(), kBatch, layout.slots_bytes}, {}};
    int64_t all = 0, rows = 0;
    for (Cursor cursor; !cursor.done; all += rows) {
      Check(table_->Export(context_, &cursor, parts, &rows));
    }
    return all;
  }

  Table* table() { return table_.get(); }
  const Context& context() const { return context_; }

 private:
  Rows Values(int64_t n) {
    const int64_t bytes = shape_.dim * static_cast<int64_t>(sizeof(float));
    return {Aligned(reinterpret_cast<char*>(values_.data())), n, bytes};
  }

  const Shape shape_;
  InlineExecutor inline_executor_;
  std::unique_ptr<ThreadsExecutor> executor_;
  Context context_;
  OptimizerSpec rule_;
  std::vector<double> hyper_;
  std::vector<float> values_;
  std::unique_ptr<Table> table_;
};

void PerKey(State& state, int64_t keys_per_iteration = kBatch) {
  state.SetItemsProcessed(state.iterations() * keys_per_iteration);
}

std::vector<std::vector<Key>> Present(int64_t rows) {
  std::vector<std::vector<Key>> batches = Shuffled(rows);
  for (auto& batch : batches) {
    for (Key& key : batch) key = KeyOf(key);
  }
  return batches;
}

void CountBytes(State& state, const Table& table) {
  state.counters["bytes_per_row"] =
      static_cast<double>(table.memory_bytes()) / static_cast<double>(table.size());
}

void Find(State& state, const Shape& shape, int threads, bool half_absent) {
  Subject& subject = Subject::Of(shape, threads);
  auto batches = Present(shape.rows);
  for (int64_t i = 1; half_absent && i < kBatches * kBatch; i += 2) {
    batches[i / kBatch][i % kBatch] = KeyOf((int64_t{1} << 40) + i);
  }
  int64_t b = 0;
  for (auto _ : state) subject.Find(batches[b++ % kBatches]);
  PerKey(state);
  CountBytes(state, *subject.table());
}

void Write(State& state, const Shape& shape, int threads) {
  Subject& subject = Subject::Of(shape, threads);
  const auto batches = Present(shape.rows);
  int64_t b = 0;
  for (auto _ : state) subject.Write(subject.table(), batches[b++ % kBatches]);
  PerKey(state);
}

// New rows, in a table that starts empty again after five million.
void WriteNew(State& state, const Shape& shape, int threads) {
  Subject& subject = Subject::Of(shape, threads);
  std::unique_ptr<Table> table = subject.Make();
  int64_t row = 0;
  for (auto _ : state) {
    state.PauseTiming();
    if (row >= 5'000'000) {
      table = subject.Make();
      row = 0;
    }
    const auto keys = Consecutive(row);
    row += kBatch;
    state.ResumeTiming();
    subject.Write(table.get(), keys);
  }
  PerKey(state);
  CountBytes(state, *table);
}

void Erase(State& state, const Shape& shape, int threads) {
  Subject& subject = Subject::Of(shape, threads);
  const auto batches = Present(shape.rows);
  int64_t b = 0;
  for (auto _ : state) {
    const auto& keys = batches[b++ % kBatches];
    subject.Erase(keys);
    state.PauseTiming();
    subject.Write(subject.table(), keys);
    state.ResumeTiming();
  }
  PerKey(state);
}

void Export(State& state, const Shape& shape, int threads) {
  Subject& subject = Subject::Of(shape, threads);
  for (auto _ : state) subject.Export();
  PerKey(state, shape.rows);
}

// What every call that changes rows does first: keys by segment, and equal ones together.
void SortAndGroup(State& state) {
  InlineExecutor executor;
  Context context;
  context.executor = &executor;
  const auto batches = Present(kRows);
  BatchOrder::Scratch scratch;
  int64_t b = 0, distinct = 0;
  for (auto _ : state) {
    Batch batch;
    batch.keys = batches[b++ % kBatches];
    BatchOrder order(context, batch);
    for (int s = 0; s < BatchOrder::kSegments; ++s) distinct += order.Group(s, &scratch);
  }
  benchmark::DoNotOptimize(distinct);
  PerKey(state);
}

// The sum of the gradients of equal keys, where a batch has kBatch * percent / 100 distinct ones.
void SumByKey(State& state, int64_t dim, int64_t percent) {
  InlineExecutor executor;
  Context context;
  context.executor = &executor;
  const int64_t distinct = kBatch * percent / 100;
  auto batches = Present(kRows);
  for (auto& batch : batches) {
    for (int64_t i = distinct; i < kBatch; ++i) batch[i] = batch[i * 7919 % distinct];
  }
  std::vector<float> rows(kBatch * dim, 0.01f), sums(kBatch * dim);
  const auto view = [dim](std::vector<float>& numbers) {
    return Rows(reinterpret_cast<char*>(numbers.data()), kBatch, dim * sizeof(float));
  };
  int64_t b = 0;
  for (auto _ : state) {
    const DistinctKeys keys(batches[b++ % kBatches]);
    Check(SumByKey(context, keys, DType::kFloat32, dim, view(rows), {}, view(sums)));
    benchmark::DoNotOptimize(sums.data());
  }
  PerKey(state);
}

// --- the strings of keys

// Like the values of a categorical feature: 12 to 18 bytes.
std::string StringOf(int64_t row) { return "feature=" + std::to_string(1000 + row * 7919); }

// The strings of batches of rows, in an order of their own, as those of a batch that was just read.
struct StringBatches {
  explicit StringBatches(const std::vector<std::vector<int64_t>>& rows) {
    for (const auto& batch : rows) {
      keys.emplace_back();
      texts.emplace_back();
      views.emplace_back();
      for (const int64_t row : batch) {
        keys.back().push_back(KeyOf(row));
        texts.back().push_back(StringOf(row));
      }
      views.back().assign(texts.back().begin(), texts.back().end());
    }
  }
  std::vector<std::vector<Key>> keys;
  std::vector<std::vector<std::string>> texts;
  std::vector<std::vector<std::string_view>> views;
};

// The rows of a whole table in a random order, whose strings are kept.
struct KeptStrings {
  KeptStrings() : batches(Shuffled(kRows)) {
    for (int64_t first = 0; first < kRows; first += kBatch) {
      std::vector<int64_t> rows(std::min(kBatch, kRows - first));
      std::iota(rows.begin(), rows.end(), first);
      const StringBatches more({rows});
      Check(kept.Record(more.keys[0], more.views[0]));
    }
  }
  static KeptStrings& Get() {
    static KeptStrings one;
    return one;
  }
  StringBatches batches;
  KeyStrings kept;
};

void Pin(KeyStrings* strings, const std::vector<Key>& keys, const Context& context = OneThread()) {
  KeyStrings::PinGuard guard;
  Check(KeyStrings::PinGuard::Begin(strings, keys, &guard, context));
}

enum class StringsCall { kRecord, kCheck, kPin };

// Each of `threads` threads makes the call, for batches of its own.
void CallStrings(State& state, StringsCall call) {
  KeptStrings& subject = KeptStrings::Get();
  int64_t b = state.thread_index() * (kBatches / state.threads());
  for (auto _ : state) {
    const int64_t at = b++ % kBatches;
    const auto& keys = subject.batches.keys[at];
    if (call == StringsCall::kRecord) Check(subject.kept.Record(keys, subject.batches.views[at]));
    if (call == StringsCall::kCheck) {
      std::vector<int64_t> missing;
      Check(subject.kept.Check(keys, subject.batches.views[at], &missing));
    }
    if (call == StringsCall::kPin) Pin(&subject.kept, keys);
  }
  PerKey(state);
}

// New strings, beside at most five million.
void RecordNew(State& state) {
  auto kept = std::make_unique<KeyStrings>();
  int64_t first = 0;
  for (auto _ : state) {
    state.PauseTiming();
    if (first >= 5'000'000) {
      kept = std::make_unique<KeyStrings>();
      first = 0;
    }
    std::vector<int64_t> rows(kBatch);
    std::iota(rows.begin(), rows.end(), first);
    auto batch = std::make_unique<StringBatches>(std::vector<std::vector<int64_t>>{rows});
    first += kBatch;
    state.ResumeTiming();
    Check(kept->Record(batch->keys[0], batch->views[0]));
    state.PauseTiming();
    batch.reset();
    state.ResumeTiming();
  }
  PerKey(state);
}

// What a training step does in the table: a lookup, and an update; of strings also what keeps them.
void Step(State& state, const Shape& shape, int threads, bool strings) {
  Subject& subject = Subject::Of(shape, threads);
  KeptStrings& kept = KeptStrings::Get();
  int64_t b = 0;
  for (auto _ : state) {
    const int64_t at = b++ % kBatches;
    const auto& keys = kept.batches.keys[at];
    std::vector<int64_t> missing;  // stays empty, and so does what the gradient records
    if (strings) Check(kept.kept.Check(keys, kept.batches.views[at], &missing, subject.context()));
    subject.Find(keys);
    if (strings) Pin(&kept.kept, keys, subject.context());
    subject.Write(subject.table(), keys);
  }
  PerKey(state);
}

// --- the machine

// Memory of huge pages, where they are given on request, which has been touched.
class Pages {
 public:
  explicit Pages(int64_t bytes, bool huge = true) : bytes_(bytes) {
    void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data == MAP_FAILED) std::abort();
    madvise(data, bytes, huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
    data_ = static_cast<char*>(data);
    std::memset(data_, 1, bytes);
  }
  ~Pages() { munmap(data_, bytes_); }
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;
  char* data() const { return data_; }

 private:
  char* data_;
  int64_t bytes_;
};

// Rows of a flat array into one buffer, by row number; with `index_bytes` each number, in truth 0
// more, is read from some line of as much memory first.
void Gather(State& state, int64_t dim, int64_t row_count, int64_t index_bytes) {
  const int64_t bytes = dim * static_cast<int64_t>(sizeof(float));
  const Pages rows(row_count * bytes), index(std::max<int64_t>(64, index_bytes));
  std::memset(index.data(), 0, std::max<int64_t>(64, index_bytes));
  std::vector<char> memory(kBatch * bytes + kLine);
  char* const out = Aligned(memory.data());
  const auto batches = Shuffled(row_count);
  int64_t b = 0;
  for (auto _ : state) {
    const auto& numbers = batches[b++ % kBatches];
    const auto number = [&](int64_t i) { return numbers[std::min(i, kBatch - 1)]; };
    const auto line = [&](int64_t i) {
      const uint64_t hash = Mix64(static_cast<uint64_t>(number(i))) >> 32;
      return index.data() + (hash * (index_bytes / 64) >> 32) * 64;
    };
    const auto row = [&](int64_t i) {
      int64_t more = 0;
      if (index_bytes > 0) std::memcpy(&more, line(i), sizeof(more));
      return rows.data() + (number(i) + more) * bytes;
    };
    for (int64_t i = 0; i < kBatch; ++i) {
      if (index_bytes > 0) __builtin_prefetch(line(i + 2 * kAhead));
      const char* ahead = row(i + kAhead);
      for (int64_t at = 0; at < bytes; at += 64) __builtin_prefetch(ahead + at);
      CopyBytes(out + i * bytes, row(i), bytes);
    }
    benchmark::DoNotOptimize(out);
  }
  PerKey(state);
}

// A sum into each row of a flat array, in place: rows as wide as value and slots of a trained one,
// and a gradient as wide as the value that is read for each.
void UpdateInPlace(State& state, int64_t dim, int64_t slots) {
  const int64_t width = dim * (1 + slots);
  const Pages pages(kRows * width * static_cast<int64_t>(sizeof(float)));
  auto* const rows = reinterpret_cast<float*>(pages.data());
  const std::vector<float> gradients(kBatch * dim, 1e-3f);
  const auto batches = Shuffled(kRows);
  int64_t b = 0;
  for (auto _ : state) {
    const auto& numbers = batches[b++ % kBatches];
    for (int64_t i = 0; i < kBatch; ++i) {
      const float* ahead = rows + numbers[std::min(i + kAhead, kBatch - 1)] * width;
      for (int64_t line = 0; line < width; line += 16) __builtin_prefetch(ahead + line, 1);
      float* const row = rows + numbers[i] * width;
      const float* const gradient = gradients.data() + i * dim;
      for (int64_t part = 0; part <= slots; ++part) {
        for (int64_t c = 0; c < dim; ++c) row[part * dim + c] += gradient[c];
      }
    }
    benchmark::ClobberMemory();
  }
  PerKey(state);
}

// Each read tells where the next one is: items are cache misses, one after the other. `lines`, a
// power of two, lie so many bytes apart.
void Chain(State& state, int64_t lines, int64_t apart, bool huge) {
  const Pages pages(lines * apart, huge);
  const auto line = [&](int64_t i) { return reinterpret_cast<int64_t*>(pages.data() + i * apart); };
  // A full cycle (Hull and Dobell 1962: odd increment, multiplier 1 modulo 4).
  for (int64_t i = 0; i < lines; ++i) *line(i) = (i * 1'664'525 + 1'013'904'223) % lines;
  int64_t at = 0;
  for (auto _ : state) benchmark::DoNotOptimize(at = *line(at));
  PerKey(state, 1);
}

void Copy(State& state) {
  constexpr int64_t kBytes = 256 << 20;
  const Pages from(kBytes), to(kBytes);
  for (auto _ : state) {
    std::memcpy(to.data(), from.data(), kBytes);
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(state.iterations() * kBytes);
}

void FreshPages(State& state) {
  constexpr int64_t kBytes = 256 << 20;
  for (auto _ : state) benchmark::DoNotOptimize(Pages(kBytes).data());
  state.SetBytesProcessed(state.iterations() * kBytes);
}

// --- what there is to run

template <typename F>
void Add(const std::string& name, const Shape& shape, int threads, F&& f) {
  const std::string full = name + "/dim:" + std::to_string(shape.dim) +
                           "/rows:" + std::to_string(shape.rows) +
                           "/threads:" + std::to_string(threads);
  auto* const added = benchmark::RegisterBenchmark(full.c_str(), f);
  added->Unit(benchmark::kMillisecond);
  // One thread's own time, which others on the machine prolong less; of several, the clock's.
  if (threads > 1) added->UseRealTime();
}

void AddFind(const Shape& shape, int threads) {
  for (const bool half_absent : {false, true}) {
    Add(half_absent ? "Find/half_absent" : "Find/present", shape, threads,
        [=](State& state) { Find(state, shape, threads, half_absent); });
  }
}

void AddWrites(const Shape& shape, int threads) {
  std::string name = shape.rule.empty() ? "Upsert" : "Apply/" + shape.rule;
  if (shape.tracked) name += "/tracked";
  Add(name, shape, threads, [=](State& state) { Write(state, shape, threads); });
}

template <typename... Rules>
std::vector<std::string> Names(RuleList<Rules...>) {
  return {Rules::kName...};
}

bool AddAll() {
  // Shapes that follow each other share their table.
  for (const int64_t dim : {8, 32, 128}) {
    const Shape plain{"", dim, kRows};
    for (const int threads : {1, 2}) AddFind(plain, threads);
    for (const int threads : {1, 2}) AddWrites(plain, threads);
  }
  const Shape plain{"", 32, kRows}, adam{"adam", 32, kRows};
  for (const int threads : {1, 2}) {
    Add("Upsert_new", plain, threads, [=](State& s) { WriteNew(s, plain, threads); });
    Add("Erase", plain, threads, [=](State& s) { Erase(s, plain, threads); });
  }
  Add("Export", plain, 1, [=](State& s) { Export(s, plain, 1); });
  Add("Export/adam", adam, 1, [=](State& s) { Export(s, adam, 1); });
  for (const std::string& rule : Names(AllRules())) {
    const bool common = rule == "sgd" || rule == "adagrad" || rule == "adam";
    for (const int64_t dim : common ? std::vector<int64_t>{8, 32, 128} : std::vector<int64_t>{32}) {
      for (const int threads : {1, 2}) AddWrites({rule, dim, kRows}, threads);
    }
  }
  for (const int threads : {1, 2}) {
    Add("Apply_new/adam", adam, threads, [=](State& s) { WriteNew(s, adam, threads); });
  }
  for (const int threads : {1, 2}) AddWrites({"adam", 32, kRows, true}, threads);
  // The indexes of a table's segments grow at different sizes: it has all load factors at once, and
  // at any number of rows the same ones.
  for (const int64_t rows : {10'000, 100'000, 1'250'000, 1'500'000, 1'750'000, 10'000'000}) {
    AddFind({"", 32, rows}, 1);
  }
  const std::pair<const char*, StringsCall> calls[] = {
      {"Strings/record_present", StringsCall::kRecord},
      {"Strings/check", StringsCall::kCheck},
      {"Strings/pin", StringsCall::kPin}};
  for (const auto& [name, call] : calls) {
    for (const int threads : {1, 2}) {
      auto* const added =
          benchmark::RegisterBenchmark(name, [call = call](State& s) { CallStrings(s, call); });
      added->Unit(benchmark::kMillisecond)->Threads(threads);
      if (threads > 1) added->UseRealTime();
    }
  }
  benchmark::RegisterBenchmark("Strings/record_new", RecordNew)->Unit(benchmark::kMillisecond);
  for (const int threads : {1, 2}) {
    for (const bool strings : {false, true}) {
      Add(strings ? "Step/adam/strings" : "Step/adam/integers", adam, threads,
          [=](State& s) { Step(s, adam, threads, strings); });
    }
  }
  benchmark::RegisterBenchmark("SortAndGroup", SortAndGroup);
  for (const int percent : {100, 50, 10, 1}) {
    const std::string name = "SumByKey/distinct_percent:" + std::to_string(percent) + "/dim:32";
    benchmark::RegisterBenchmark(name.c_str(), [=](State& s) { SumByKey(s, 32, percent); });
  }
  const std::pair<int64_t, int64_t> dims_and_rows[] = {
      {8, kRows}, {32, kRows}, {128, kRows}, {32, 10 * kRows}};
  for (const auto& [dim, rows] : dims_and_rows) {
    std::string name = "gather/dim:" + std::to_string(dim);
    if (rows != kRows) name += "/rows:" + std::to_string(rows);
    const auto add = [](const std::string& full, int64_t dim, int64_t rows, int64_t index_bytes) {
      benchmark::RegisterBenchmark(full.c_str(),
                                   [=](State& s) { Gather(s, dim, rows, index_bytes); });
    };
    add("Limit/" + name, dim, rows, 0);
    add("Limit/index_and_" + name, dim, rows, rows * 20);  // of the size of a table's index
  }
  for (const int64_t slots : {0, 1, 2}) {
    const std::string name = "Limit/update/dim:32/slots:" + std::to_string(slots);
    benchmark::RegisterBenchmark(name.c_str(), [=](State& s) { UpdateInPlace(s, 32, slots); });
  }
  for (const int64_t mebibytes : {1, 16, 256, 1024}) {
    const std::string name = "Limit/dependent_read/MiB:" + std::to_string(mebibytes);
    const int64_t lines = (mebibytes << 20) / kLine;
    benchmark::RegisterBenchmark(name.c_str(), [=](State& s) { Chain(s, lines, kLine, true); });
  }
  for (const bool huge : {false, true}) {  // a MiB of lines, each in another 4 KiB
    const std::string name = "Limit/dependent_read/pages:16384/huge:" + std::to_string(huge);
    benchmark::RegisterBenchmark(name.c_str(),
                                 [=](State& s) { Chain(s, 16384, 4096 + kLine, huge); });
  }
  benchmark::RegisterBenchmark("Limit/copy", Copy);
  benchmark::RegisterBenchmark("Limit/fresh_pages", FreshPages);
  return true;
}

[[maybe_unused]] const bool added = AddAll();

}  // namespace
}  // namespace dynemb

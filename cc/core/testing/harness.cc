#include "cc/core/testing/harness.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <mutex>
#include <thread>
#include <type_traits>
#include <utility>

#include "cc/core/base/hash.h"
#include "cc/core/optimizer/rule.h"
#include "cc/core/table/host_table.h"

namespace dynemb {
namespace {

// The message and the end of the test program: for what makes all further testing meaningless.
void CheckOk(const Status& status, const char* what) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s: %s\n", what, status.message().c_str());
  std::abort();
}

// A few threads that live for ever. A caller works on its own tasks too, so that it never waits for
// a thread that is busy with somebody else's.
class ThreadsExecutor : public Executor {
 public:
  explicit ThreadsExecutor(int threads) : threads_(threads) {
    for (int i = 0; i < threads; ++i) std::thread([this] { Serve(); }).detach();
  }
  int concurrency() const override { return threads_ + 1; }
  void RunEach(int64_t tasks, int64_t, const std::function<void(int64_t)>& task) override {
    const auto job = std::make_shared<Job>();
    job->tasks = tasks;
    job->task = &task;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      for (int i = 0; i < threads_; ++i) queue_.push_back(job);
    }
    wake_.notify_all();
    Work(job.get());
    std::unique_lock<std::mutex> lock(job->mutex);
    job->finished.wait(lock, [&] { return job->done == tasks; });
  }

 private:
  struct Job {
    int64_t tasks = 0;
    const std::function<void(int64_t)>* task = nullptr;  // dead when all tasks are done
    std::atomic<int64_t> next{0};
    std::mutex mutex;
    std::condition_variable finished;
    int64_t done = 0;
  };

  static void Work(Job* job) {
    int64_t ran = 0;
    for (int64_t i; (i = job->next.fetch_add(1)) < job->tasks; ++ran) (*job->task)(i);
    std::lock_guard<std::mutex> lock(job->mutex);
    job->done += ran;
    if (job->done == job->tasks) job->finished.notify_all();
  }

  void Serve() {
    for (;;) {
      std::shared_ptr<Job> job;
      {
        std::unique_lock<std::mutex> lock(mutex_);
        wake_.wait(lock, [this] { return !queue_.empty(); });
        job = std::move(queue_.front());
        queue_.pop_front();
      }
      Work(job.get());
    }
  }

  const int threads_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::shared_ptr<Job>> queue_;
};

class HostMemory : public TestMemory {
 public:
  MemorySpace space() const override { return MemorySpace::kHost; }
  Context context() override {
    Context context;
    const bool alone = calls_.fetch_add(1, std::memory_order_relaxed) % 2 == 0;
    context.executor = alone ? static_cast<Executor*>(&alone_) : &threads_;
    return context;
  }
  char* Allocate(int64_t bytes) override { return static_cast<char*>(std::malloc(bytes + 1)); }
  void Free(char* data) override { std::free(data); }
  void CopyIn(char* to, const char* from, int64_t bytes) override {
    if (bytes > 0) std::memcpy(to, from, bytes);
  }
  void CopyOut(char* to, const char* from, int64_t bytes) override { CopyIn(to, from, bytes); }

 private:
  std::atomic<uint64_t> calls_{0};
  InlineExecutor alone_;
  ThreadsExecutor threads_{2};
};

class SimulatedDeviceMemory : public TestMemory {
 public:
  SimulatedDevice* device() { return &device_; }
  MemorySpace space() const override { return MemorySpace::kSimulatedDevice; }
  Context context() override { return device_.context(); }
  char* Allocate(int64_t bytes) override {
    char* data = device_.Allocate(bytes);
    if (data == nullptr) CheckOk(ResourceExhausted("out of memory"), "simulated device");
    return data;
  }
  void Free(char* data) override { device_.Free(data); }
  void CopyIn(char* to, const char* from, int64_t bytes) override {
    device_.CopyIn(to, from, bytes);
  }
  void CopyOut(char* to, const char* from, int64_t bytes) override {
    device_.CopyOut(to, from, bytes);
  }

 private:
  SimulatedDevice device_{int64_t{1} << 30};
};

SimulatedDeviceMemory* TheSimulatedDevice() {
  static SimulatedDeviceMemory* const memory = new SimulatedDeviceMemory;
  return memory;
}

}  // namespace

TestMemory* HostTestMemory() {
  static TestMemory* const memory = new HostMemory;
  return memory;
}

TestMemory* SimulatedDeviceTestMemory() { return TheSimulatedDevice(); }

std::unique_ptr<Table> TableHarness::Make(const TableSchema& schema) const {
  std::unique_ptr<Table> table;
  CheckOk(make(schema, &table), "making a table");
  return table;
}

TableHarness HostHarness(const std::string& name, MakeTable make) {
  return {name, std::move(make), HostTestMemory()};
}

TableHarness SimulatedDeviceHarness(const std::string& name, MakeTable make) {
  const auto make_behind = [make](const TableSchema& schema, std::unique_ptr<Table>* table) {
    std::unique_ptr<Table> host;
    DYNEMB_RETURN_IF_ERROR(make(schema, &host));
    *table = MakeSimulatedDeviceTable(TheSimulatedDevice()->device(), std::move(host));
    return Status();
  };
  return {name, make_behind, SimulatedDeviceTestMemory()};
}

TableHarness HostTableHarness() {
  return HostHarness("HostTable", [](const TableSchema& schema, std::unique_ptr<Table>* table) {
    return MakeHostTable(schema, table);
  });
}

TableHarness HostTableOnSimulatedDeviceHarness() {
  return SimulatedDeviceHarness("HostTableOnSimulatedDevice", HostTableHarness().make);
}

std::vector<std::pair<Key, RowBytes>> ExportSome(const Table& table, TestMemory* memory,
                                                 int64_t chunk, bool parts, Cursor* cursor) {
  PartBuffers buffers(memory, table.schema(), chunk);
  RowParts out = buffers.parts();
  if (!parts) out.slots = out.meta = Rows();
  int64_t rows = -1;
  CheckOk(table.Export(memory->context(), cursor, out, &rows), "export");
  if (rows < 0 || rows > chunk) CheckOk(InvalidArgument("got ", rows, " rows"), "export");
  buffers.Pull();
  std::vector<std::pair<Key, RowBytes>> result;
  for (int64_t i = 0; i < rows; ++i) {
    result.emplace_back(buffers.key(i), buffers.row(i));
    if (!parts) result.back().second.slots = result.back().second.meta = std::string();
  }
  return result;
}

TableContent ExportAll(const Table& table, TestMemory* memory, int64_t chunk) {
  TableContent content;
  Cursor cursor;
  for (int64_t empty_calls = 0; !cursor.done;) {
    const auto rows = ExportSome(table, memory, chunk, true, &cursor);
    empty_calls = rows.empty() ? empty_calls + 1 : 0;
    if (empty_calls > 100'000) CheckOk(InvalidArgument("it does not end"), "export");
    for (const auto& [key, row] : rows) {
      if (!content.emplace(key, row).second) {
        CheckOk(InvalidArgument("key ", key, " appears twice"), "export");
      }
    }
  }
  return content;
}

std::string TableHarness::Comparable(DType dtype, std::string numbers) const {
  if (same_nans) return numbers;
  VisitDType(dtype, [&](auto tag) {
    using V = typename decltype(tag)::type;
    if constexpr (!std::is_integral_v<V>) {
      for (size_t at = 0; at + sizeof(V) <= numbers.size(); at += sizeof(V)) {
        V number;
        std::memcpy(&number, &numbers[at], sizeof(V));
        const auto wide = static_cast<ComputeType<V>>(number);
        if (wide != wide) std::memset(&numbers[at], 0xff, sizeof(V));
      }
    }
  });
  return numbers;
}

TableContent TableHarness::Comparable(const TableSchema& schema, TableContent content) const {
  for (auto& [key, row] : content) {
    row.value = Comparable(schema.value_dtype, std::move(row.value));
    if (!IsFloating(schema.value_dtype)) continue;
    row.slots = Comparable(SlotDType(schema.value_dtype), std::move(row.slots));
  }
  return content;
}

std::string Difference(const TableContent& want, const TableContent& got) {
  const auto hex = [](const std::string& bytes) {
    std::string text;
    for (const char byte : bytes.substr(0, 64)) {
      char digits[4];
      std::snprintf(digits, sizeof(digits), "%02x", static_cast<unsigned char>(byte));
      text += digits;
    }
    return text;
  };
  const auto first_difference = [&](const char* part, const std::string& a, const std::string& b) {
    size_t at = 0;
    while (at < a.size() && at < b.size() && a[at] == b[at]) ++at;
    return StrCat(part, " from byte ", at, ": want ", hex(a.substr(at)), ", got ",
                  hex(b.substr(at)));
  };
  for (const auto& [key, row] : want) {
    const auto other = got.find(key);
    if (other == got.end()) return StrCat("key ", key, " is missing");
    if (row.value != other->second.value) {
      return StrCat("key ", key, " ", first_difference("value", row.value, other->second.value));
    }
    if (row.slots != other->second.slots) {
      return StrCat("key ", key, " ", first_difference("slots", row.slots, other->second.slots));
    }
    if (row.meta != other->second.meta) {
      return StrCat("key ", key, " ", first_difference("meta", row.meta, other->second.meta));
    }
  }
  for (const auto& [key, row] : got) {
    if (want.count(key) == 0) return StrCat("key ", key, " should not be there");
  }
  return "";
}

int64_t SoakFactor() {
  const char* soak = std::getenv("TF_DYNEMB_SOAK");
  if (soak == nullptr || *soak == '\0' || *soak == '0') return 1;
  const char* share = std::getenv("SOAK_SHARE");
  return std::max<int64_t>(1, static_cast<int64_t>(20 * (share == nullptr ? 1 : std::atof(share))));
}

Key KeyOfHash(uint64_t hash) { return static_cast<Key>(Unmix64(hash)); }

std::vector<double> UsualHyper(const std::string& rule, double step) {
  const std::map<std::string, double> usual = {{"learning_rate", 0.05},
                                               {"step", step},
                                               {"weight_decay", 0.01},
                                               {"momentum", 0.9},
                                               {"rho", 0.9},
                                               {"beta_1", 0.9},
                                               {"beta_2", 0.99},
                                               {"epsilon", 1e-7},
                                               {"learning_rate_power", -0.5},
                                               {"l1_regularization_strength", 0.001},
                                               {"l2_regularization_strength", 0.01},
                                               {"l2_shrinkage_regularization_strength", 0.01},
                                               {"beta", 0.1}};
  std::vector<double> hyper;
  for (const std::string& name : HyperNames(rule)) {
    const auto value = usual.find(name);
    if (value == usual.end()) CheckOk(InvalidArgument(name, ": add it to UsualHyper"), "rule");
    hyper.push_back(value->second);
  }
  return hyper;
}

OptimizerSpec UsualRule(const std::string& name) {
  OptimizerSpec spec;
  if (!name.empty()) CheckOk(MakeOptimizerSpec(name, 0.1, &spec), "rule");
  return spec;
}

namespace {
template <typename... Rules>
std::vector<std::string> NamesOf(RuleList<Rules...>) {
  return {Rules::kName...};
}
}  // namespace

std::vector<std::string> AllRuleNames() { return NamesOf(AllRules()); }

}  // namespace dynemb

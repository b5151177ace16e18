#include "cc/kernels/monitoring.h"

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "cc/core/base/status.h"
#include "cc/kernels/table_resource.h"
#include "tensorflow/core/lib/monitoring/collection_registry.h"
#include "tensorflow/core/lib/monitoring/counter.h"
#include "tensorflow/core/lib/monitoring/metric_def.h"

namespace dynemb {
namespace {

using tensorflow::core::RefCountPtr;
using tensorflow::monitoring::CollectionRegistry;
using tensorflow::monitoring::MetricCollectorGetter;
using tensorflow::monitoring::MetricDef;
using tensorflow::monitoring::MetricKind;

using ByName = NumbersByLabel;

template <MetricKind kind>
void Register(const std::string& metric, const std::string& description, const char* label,
              const std::function<NumbersByLabel()>& read) {
  const auto* const definition = new MetricDef<kind, int64_t, 1>(metric, description, label);
  // Never freed: a registration ends with its handle.
  static std::mutex mutex;
  static auto* const handles =
      new std::vector<std::unique_ptr<CollectionRegistry::RegistrationHandle>>();
  auto handle = CollectionRegistry::Default()->Register(
      definition, [definition, read](MetricCollectorGetter getter) {
        auto collector = getter.Get(definition);
        for (const auto& [value, number] : read()) collector.CollectValue({value}, number);
      });
  std::lock_guard<std::mutex> lock(mutex);
  handles->push_back(std::move(handle));
}

// The tables of this process.
class Tables {
 public:
  // Never destroyed, as the registry, which calls it.
  static Tables& Get() {
    static Tables* const tables = new Tables();
    return *tables;
  }

  void Add(const TableResource* table) {
    std::lock_guard<std::mutex> lock(mutex_);
    tables_.insert(table);
  }
  void Remove(const TableResource* table) {
    std::lock_guard<std::mutex> lock(mutex_);
    tables_.erase(table);
    gone_[table->name()].Add(table->counters());
  }

 private:
  Tables() {
    const auto about = [](const char* name) {
      return StrCat("See tf_dynemb.Variable.metrics: ", name);
    };
    TableCounters::ForEach([&](const char* name, int64_t TableCounters::* what) {
      RegisterCounter(StrCat("/tf_dynemb/table/", name), about(name), "table",
                      [this, what] { return Counted(what); });
    });
    RegisterGauge("/tf_dynemb/table/rows", about("rows"), "table",
                  [this] { return Sums([](const TableResource& table) { return table.rows(); }); });
    RegisterGauge("/tf_dynemb/table/bytes", about("bytes"), "table", [this] {
      return Sums([](const TableResource& table) { return table.MemoryUsed(); });
    });
  }

  ByName Counted(int64_t TableCounters::* what) {
    std::lock_guard<std::mutex> lock(mutex_);
    ByName sums;
    for (const auto& [name, counters] : gone_) sums[name] = counters.*what;
    for (const TableResource* table : tables_) sums[table->name()] += table->counters().*what;
    return sums;
  }
  template <typename Number>
  ByName Sums(const Number& number) {
    ByName sums;
    for (const auto& table : Existing()) sums[table->name()] += number(*table);
    return sums;
  }

  // The tables, which exist for as long as what is returned. So calls that wait for leases are made
  // without the mutex, which a table's destructor takes, maybe on a thread that has such a lease.
  std::vector<RefCountPtr<const TableResource>> Existing() {
    std::vector<RefCountPtr<const TableResource>> tables;  // which goes after the lock
    std::lock_guard<std::mutex> lock(mutex_);
    for (const TableResource* table : tables_) {
      RefCountPtr<const TableResource> existing = table->IfExists();
      if (existing != nullptr) tables.push_back(std::move(existing));
    }
    return tables;
  }

  std::mutex mutex_;                           // of what follows
  std::set<const TableResource*> tables_;      // some of which may be about to go
  std::map<std::string, TableCounters> gone_;  // of tables that are no more, by their names
};

}  // namespace

void RegisterCounter(const std::string& metric, const std::string& description, const char* label,
                     const std::function<NumbersByLabel()>& read) {
  Register<MetricKind::kCumulative>(metric, description, label, read);
}

void RegisterGauge(const std::string& metric, const std::string& description, const char* label,
                   const std::function<NumbersByLabel()>& read) {
  Register<MetricKind::kGauge>(metric, description, label, read);
}

void AddToMonitoring(const TableResource* table) { Tables::Get().Add(table); }

void RemoveFromMonitoring(const TableResource* table) { Tables::Get().Remove(table); }

void AddAllToAllBytes(int64_t bytes) {
  static auto* const counter = tensorflow::monitoring::Counter<0>::New(
      "/tf_dynemb/all_to_all_bytes", "Bytes sent to other processes");
  counter->GetCell()->IncrementBy(bytes);
}

}  // namespace dynemb

// Caller: a table of float32 values, called with vectors. It puts the arguments into the table's
// memory and fetches the results, so that a test can be written as plain facts. Tested: a table
// with its caller, through moves of its rows into tables of other schemas.
#ifndef TF_DYNEMB_CC_CORE_TESTING_CALLER_H_
#define TF_DYNEMB_CC_CORE_TESTING_CALLER_H_

#include <memory>
#include <string>
#include <vector>

#include "cc/core/table/table.h"
#include "cc/core/testing/harness.h"

namespace dynemb {

using Keys = std::vector<Key>;
using Floats = std::vector<float>;
using Outcomes = std::vector<Outcome>;

class Caller {
 public:
  Caller(Table* table, TestMemory* memory);

  // Each as in Table, for all keys of a batch; scores of a stamp are in the host's memory.
  // `outcomes` may be null.
  Status Find(const Keys& keys, Floats* values, Outcomes* outcomes = nullptr) const;
  // The rows that there are.
  Status ReadRows(const Keys& keys, TableContent* rows, Outcomes* outcomes = nullptr) const;
  Status Apply(const Keys& keys, const Floats& gradients, const OptimizerSpec& rule,
               const std::vector<double>& hyper, const Stamp& stamp = {},
               Outcomes* outcomes = nullptr, IfMissing if_missing = IfMissing::kInsert) const;
  Status Upsert(const Keys& keys, const Floats& values, const Stamp& stamp = {},
                Outcomes* outcomes = nullptr) const;
  Status Accumulate(const Keys& keys, const Floats& deltas, const std::vector<bool>& exists,
                    const Stamp& stamp = {}, Outcomes* outcomes = nullptr) const;
  Status Erase(const Keys& keys, Outcomes* outcomes = nullptr) const;
  // `displaced` receives the rows that were there; it may be null.
  Status InsertRows(const TableContent& rows, TableContent* displaced = nullptr,
                    Outcomes* outcomes = nullptr) const;
  Status Reserve(int64_t rows) const;
  Status Clear() const;
  Status EraseBelow(MetaField field, const RowOrder& bound, int64_t* erased) const;
  TableContent Export(int64_t chunk = 100) const;
  Status BeginEpoch(int64_t epoch) const;
  Status ChangedKeys(int64_t since, Keys* keys, const TablePart& part = {}) const;

  Table* table() const { return table_; }
  TestMemory* memory() const { return memory_; }

 private:
  Table* table_;
  TestMemory* memory_;
  int64_t dim_;
};

struct Tested {
  Tested(const TableHarness& harness, const TableSchema& schema)
      : table(harness.Make(schema)), call(table.get(), harness.memory) {}

  // Moves the rows into a table of this schema, which is the tested one from then on. An error
  // leaves everything as it was.
  Status Move(const TableSchema& schema);
  // The same with another optimizer.
  Status SetOptimizer(const OptimizerSpec& optimizer);

  std::unique_ptr<Table> table;
  Caller call;
};

// The bytes of numbers, as an export has them, and back.
template <typename T>
std::string Bytes(const std::vector<T>& numbers) {
  return std::string(reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(T));
}
template <typename T>
std::vector<T> Numbers(const std::string& bytes) {
  std::vector<T> numbers(bytes.size() / sizeof(T));
  if (!bytes.empty()) std::memcpy(numbers.data(), bytes.data(), bytes.size());
  return numbers;
}

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_CORE_TESTING_CALLER_H_

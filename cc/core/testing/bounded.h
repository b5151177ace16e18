// Bounded: a table with limits, for tests. Which one, the program of the test says.
#ifndef TF_DYNEMB_CC_CORE_TESTING_BOUNDED_H_
#define TF_DYNEMB_CC_CORE_TESTING_BOUNDED_H_

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "cc/core/base/hash.h"
#include "cc/core/table/table.h"
#include "cc/core/table/table_options.h"
#include "cc/core/testing/caller.h"
#include "gtest/gtest.h"

namespace dynemb {

inline EvictionPolicy Policy(const std::string& text) {
  EvictionPolicy policy;
  EXPECT_TRUE(EvictionPolicy::Parse(text, &policy).ok()) << text;
  return policy;
}

inline TableOptions Options(int64_t max_rows, const std::string& eviction = "",
                            OnFull on_full = OnFull::kError) {
  TableOptions options;
  options.max_rows = max_rows;
  options.eviction = Policy(eviction);
  options.on_full = on_full;
  return options;
}

inline TableOptions WithinBytes(int64_t max_bytes, const std::string& eviction = "",
                                OnFull on_full = OnFull::kError) {
  TableOptions options = Options(-1, eviction, on_full);
  options.max_bytes = max_bytes;
  return options;
}

inline TableSchema Schema(const TableOptions& options, const std::string& rule = "") {
  TableSchema schema;
  schema.dim = 2;
  schema.initializer.distribution = {Distribution::Kind::kUniform, -1, 1};
  schema.meta = options.eviction.meta();
  if (!rule.empty()) schema.rule = UsualRule(rule);
  return schema;
}

// What a caller may say of a key: some are worth more one day and less the next.
inline int64_t ScoreOf(Key key, int64_t now) {
  return static_cast<int64_t>(Mix64(static_cast<uint64_t>(key) ^ Mix64(now / 50)) % 41) - 20;
}
inline std::vector<int64_t> ScoresOf(const Keys& keys, int64_t now) {
  std::vector<int64_t> scores;
  for (const Key key : keys) scores.push_back(ScoreOf(key, now));
  return scores;
}

// A learning rate of 0.05, and no weight decay.
inline std::vector<double> PlainSgd() {
  std::vector<double> hyper = UsualHyper("sgd", 1);
  hyper[2] = 0;
  return hyper;
}

// Makes the table of the program: each has one of its own.
Status MakeBoundedTable(const TableSchema& schema, const TableOptions& options,
                        std::unique_ptr<Table>* table);

struct Bounded {
  explicit Bounded(const TableOptions& options, const std::string& rule = "") {
    const Status made = MakeBoundedTable(Schema(options, rule), options, &table);
    EXPECT_TRUE(made.ok()) << made.message();
    call = std::make_unique<Caller>(table.get(), HostTestMemory());
  }
  // Rows whose values are the keys, written `now`.
  Status Upsert(const Keys& keys, int64_t now = 0, Outcomes* outcomes = nullptr) const {
    Floats values;
    for (const Key key : keys) values.insert(values.end(), 2, static_cast<float>(key));
    const std::vector<int64_t> scores = ScoresOf(keys, now);
    return call->Upsert(keys, values, {now, scores}, outcomes);
  }
  std::set<Key> keys() const {
    std::set<Key> keys;
    for (const auto& [key, row] : call->Export()) keys.insert(key);
    return keys;
  }
  std::unique_ptr<Table> table;
  std::unique_ptr<Caller> call;
};

using Set = std::set<Key>;
inline constexpr Outcome kFound = Outcome::kFound, kInserted = Outcome::kInserted,
                         kDeclined = Outcome::kDeclined, kMissing = Outcome::kMissing;

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_CORE_TESTING_BOUNDED_H_

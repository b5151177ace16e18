// Model-based testing of a table: random operations are done to it and to the reference table, and
// after each the two must agree to the last bit: status, outputs (with what lies around them),
// outcomes, misses, sizes, what has changed, and at intervals all rows.
#ifndef TF_DYNEMB_CC_CORE_TESTING_MODEL_RUN_H_
#define TF_DYNEMB_CC_CORE_TESTING_MODEL_RUN_H_

#include <cstdint>
#include <ostream>
#include <random>
#include <string>
#include <vector>

#include "cc/core/table/table.h"
#include "cc/core/testing/harness.h"

namespace dynemb {

// A table to run the model on.
struct ModelCase {
  TableSchema schema;   // as the table is made
  OptimizerSpec rule;   // the optimizer that is set later, if the schema has none
  MetaFields add_meta;  // meta fields that are added later
  std::string Name() const;
};
inline void PrintTo(const ModelCase& model_case, std::ostream* out) { *out << model_case.Name(); }

// Cases in which each rule, dtype, dim, distribution and set of meta fields appears, and each pair
// of dtype and dim that should matter (a row shorter than 8 bytes, longer than a page, ...).
std::vector<ModelCase> ModelCases();

// Keys that are hard on a hash table: the ends of the range, runs, strides by powers of two, hashes
// that agree in many high or many low bits; and random ones. Distinct.
std::vector<Key> DifficultKeys(int64_t count, uint64_t seed);

// Writes a random number of the dtype: for floats small ones, now and then a special one.
void RandomNumber(DType dtype, std::mt19937_64* random, char* at);

// Reports the first disagreement as a failure of the running test, with the seed and the number of
// the operation, and stops there.
void RunModel(const TableHarness& harness, const ModelCase& model_case, uint64_t seed,
              int64_t operations);

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_CORE_TESTING_MODEL_RUN_H_

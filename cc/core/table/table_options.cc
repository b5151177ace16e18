#include "cc/core/table/table_options.h"

#include "cc/core/table/evicted_rows.h"

namespace dynemb {
namespace {

// The share of one of several; of any number, any number.
int64_t ShareOf(int64_t number, int part, int parts) {
  return number < 0 ? number : number / parts + (part < number % parts);
}

}  // namespace

std::vector<TableOptions> OptionsOfShards(const TableOptions& options, int shards) {
  std::vector<TableOptions> all(static_cast<size_t>(shards), options);
  if (options.keep_evicted > 0) {
    const auto evicted = std::make_shared<EvictedRows>(options.keep_evicted);
    for (TableOptions& one : all) one.evicted = evicted;
  }
  if (!options.is_bounded()) return all;
  if (options.have_one_budget()) {
    const auto together = std::make_shared<RowBudget>(options.max_rows);
    for (TableOptions& one : all) one.budget = together;
    return all;
  }
  for (int s = 0; s < shards; ++s) {
    TableOptions& one = all[static_cast<size_t>(s)];
    one.max_rows = ShareOf(options.max_rows, s, shards);
    one.max_bytes = ShareOf(options.max_bytes, s, shards);
  }
  return all;
}

}  // namespace dynemb

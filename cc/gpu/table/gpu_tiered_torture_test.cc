// GpuTieredTable over host memory and files under sixteen threads that do all at once, with few
// rows in each of the upper tiers: torture_suite.cc, evicting_torture_suite.cc.
#include <memory>
#include <utility>

#include "cc/core/storage/testing/tiered_harness.h"
#include "cc/core/testing/tortured.h"
#include "cc/gpu/table/gpu_tiered_table.h"
#include "cc/gpu/table/host_access.h"
#include "cc/gpu/table/testing/gpu_harness.h"

namespace dynemb {

const bool kTorturedHaveShares = true;
Status MakeTorturedShard(const TableSchema& schema, const TableOptions& options,
                         std::unique_ptr<Table>* shard) {
  TableOptions of_all = options;
  const TableOptions of_below = OptionsBelow(&of_all);
  std::unique_ptr<Table> below;
  DYNEMB_RETURN_IF_ERROR(
      MakeTieredTableOn(std::make_shared<MemoryFileSystem>(), schema, 40, &below, of_below));
  GpuBudget budget;
  budget.max_rows = 20;
  std::unique_ptr<GpuTieredTable> made;
  DYNEMB_RETURN_IF_ERROR(
      MakeGpuTieredTable(schema, of_all, budget, DeviceMemoryForTests(), std::move(below), &made));
  *shard = MakeHostAccess(std::move(made), DeviceMemoryForTests());
  return Status();
}

}  // namespace dynemb

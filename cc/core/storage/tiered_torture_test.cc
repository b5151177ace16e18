// TieredTable under sixteen threads that do all at once, with few rows in memory: torture_suite.cc,
// evicting_torture_suite.cc.
#include <atomic>

#include "cc/core/storage/testing/tiered_harness.h"
#include "cc/core/testing/tortured.h"

namespace dynemb {

const bool kTorturedHaveShares = true;
Status MakeTorturedShard(const TableSchema& schema, const TableOptions& options,
                         std::unique_ptr<Table>* shard) {
  // Every second table moves rows in the background.
  static std::atomic<int> made{0};
  return MakeTieredTableOn(std::make_shared<MemoryFileSystem>(), schema, 20, shard, options,
                           made++ % 2 == 1);
}

}  // namespace dynemb

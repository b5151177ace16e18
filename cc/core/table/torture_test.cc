// HostTable under sixteen threads that do all at once: torture_suite.cc, evicting_torture_suite.cc.
#include "cc/core/table/host_table.h"
#include "cc/core/testing/tortured.h"

namespace dynemb {

const bool kTorturedHaveShares = false;
Status MakeTorturedShard(const TableSchema& schema, const TableOptions& options,
                         std::unique_ptr<Table>* shard) {
  return MakeHostTable(schema, options, shard);
}

}  // namespace dynemb

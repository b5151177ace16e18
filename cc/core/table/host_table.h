// HostTable: the table in host memory.
//
// 64 segments by the top bits of the key's hash, each with a lock of its own and growing by itself
// (segment.h). A batch is first sorted by segment; then every segment's keys are worked off by one
// thread under one taking of the segment's lock, in groups whose chunks and rows are prefetched:
// readers share the lock. So one call takes each lock at most once, one key is always changed by
// one thread, and results do not depend on the number of threads.
#ifndef TF_DYNEMB_CC_CORE_TABLE_HOST_TABLE_H_
#define TF_DYNEMB_CC_CORE_TABLE_HOST_TABLE_H_

#include <memory>

#include "cc/core/base/status.h"
#include "cc/core/table/table.h"
#include "cc/core/table/table_options.h"

namespace dynemb {

// An empty table. Errors: a schema that is not valid.
Status MakeHostTable(const TableSchema& schema, const TableOptions& options,
                     std::unique_ptr<Table>* table);
inline Status MakeHostTable(const TableSchema& schema, std::unique_ptr<Table>* table) {
  return MakeHostTable(schema, TableOptions(), table);
}

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_CORE_TABLE_HOST_TABLE_H_

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
#include <vector>

#include "cc/core/base/status.h"
#include "cc/core/table/table.h"
#include "cc/core/table/table_options.h"

namespace dynemb {

// A host table whose rows may lie elsewhere too, as they are here: a cache. A row is dirty that a
// call other than InsertRows has written since it was inserted, or cleaned.
class CacheTable : public Table {
 public:
  // Appends the keys of a batch that have no dirty row, in no order and as often as they are there.
  virtual Status KeysNotDirty(const Context& context, const Batch& batch,
                              std::vector<Key>* keys) const = 0;
  // These keys, of which all have rows, have none that is dirty from here on.
  virtual void Clean(Span<const Key> keys) = 0;
};

// An empty table, of which TableOptions::marks_dirty is set and no changes are tracked; as
// MakeHostTable.
Status MakeCacheTable(const TableSchema& schema, TableOptions options,
                      std::unique_ptr<CacheTable>* table);

// An empty table. Errors: a schema that is not valid.
Status MakeHostTable(const TableSchema& schema, const TableOptions& options,
                     std::unique_ptr<Table>* table);
inline Status MakeHostTable(const TableSchema& schema, std::unique_ptr<Table>* table) {
  return MakeHostTable(schema, TableOptions(), table);
}

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_CORE_TABLE_HOST_TABLE_H_

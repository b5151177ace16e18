// HostTable: the table in host memory.
//
// Keys are divided into 64 segments by the top bits of their hash. Each segment has a lock, and
// grows independently (segment.h). A write first sorts its batch by segment. Then one thread writes
// all keys of a segment while it holds the segment's lock, in groups whose chunks and rows it
// prefetches. So a write takes each lock at most once, a key is always written by one thread, and
// results do not depend on the number of threads. Reads share the locks.
#ifndef TF_DYNEMB_CC_CORE_TABLE_HOST_TABLE_H_
#define TF_DYNEMB_CC_CORE_TABLE_HOST_TABLE_H_

#include <memory>
#include <vector>

#include "cc/core/base/status.h"
#include "cc/core/table/table.h"
#include "cc/core/table/table_options.h"

namespace dynemb {

// A host table that is a cache of rows that are stored elsewhere too. A row is dirty if a call
// other than InsertRows has written it since it was inserted or last cleaned.
class CacheTable : public Table {
 public:
  // Appends the keys of a batch that have no dirty row, in no order and as often as they are there.
  virtual Status KeysNotDirty(const Context& context, const Batch& batch,
                              std::vector<Key>* keys) const = 0;
  // Marks the rows of these keys as not dirty. All of them have rows.
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

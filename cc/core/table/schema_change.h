// Changes of a table's schema: its rows move into tables of another one, of all shards or of none.
#ifndef TF_DYNEMB_CC_CORE_TABLE_SCHEMA_CHANGE_H_
#define TF_DYNEMB_CC_CORE_TABLE_SCHEMA_CHANGE_H_

#include <memory>
#include <vector>

#include "cc/core/base/context.h"
#include "cc/core/base/status.h"
#include "cc/core/table/table.h"

namespace dynemb {

// The schema with this optimizer. kFailedPrecondition: it has another one.
Status SetOptimizer(const OptimizerSpec& optimizer, TableSchema* schema);

// Moves the rows of all shards into tables of `schema` (Table::PrepareMove), which take the places
// of the shards, or leaves everything as it was. Shards that have this schema stay. Nobody else may
// call the shards meanwhile.
Status MoveRows(const Context& context, const TableSchema& schema,
                std::vector<std::shared_ptr<Table>>* shards);

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_CORE_TABLE_SCHEMA_CHANGE_H_

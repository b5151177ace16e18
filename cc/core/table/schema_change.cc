#include "cc/core/table/schema_change.h"

#include <utility>

#include "cc/core/table/call_checks.h"

namespace dynemb {

Status SetOptimizer(const OptimizerSpec& optimizer, TableSchema* schema) {
  if (!schema->rule.name.empty() && schema->rule != optimizer) {
    return OtherRule(schema->rule, optimizer);
  }
  TableSchema changed = *schema;
  changed.rule = optimizer;
  DYNEMB_RETURN_IF_ERROR(changed.Validate());
  *schema = std::move(changed);
  return Status();
}

Status MoveRows(const Context& context, const TableSchema& schema,
                std::vector<std::shared_ptr<Table>>* shards) {
  std::vector<std::unique_ptr<RowMove>> moves(shards->size());
  for (size_t s = 0; s < shards->size(); ++s) {
    if ((*shards)[s]->schema().ToText() == schema.ToText()) continue;
    DYNEMB_RETURN_IF_ERROR((*shards)[s]->PrepareMove(context, schema, &moves[s]));
  }
  for (size_t s = 0; s < shards->size(); ++s) {
    if (moves[s] != nullptr) (*shards)[s] = moves[s]->Run(context);
  }
  return Status();
}

}  // namespace dynemb

#include "cc/core/table/schema_change.h"

#include <memory>
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
  // Where the moved tables go. Made before, for a shared pointer takes memory of its own, and when
  // rows have moved nothing may fail any more.
  std::vector<std::shared_ptr<std::unique_ptr<Table>>> moved(shards->size());
  for (size_t s = 0; s < shards->size(); ++s) {
    if ((*shards)[s]->schema().ToText() == schema.ToText()) continue;
    DYNEMB_RETURN_IF_ERROR((*shards)[s]->PrepareMove(context, schema, &moves[s]));
    moved[s] = std::make_shared<std::unique_ptr<Table>>();
  }
  for (size_t s = 0; s < shards->size(); ++s) {
    if (moves[s] == nullptr) continue;
    *moved[s] = moves[s]->Run(context);
    (*shards)[s] = std::shared_ptr<Table>(moved[s], moved[s]->get());
  }
  return Status();
}

}  // namespace dynemb

// RowAdapter: rows that were made under one schema, as a table of another one takes them.
#ifndef TF_DYNEMB_CC_CORE_TABLE_ROW_ADAPTER_H_
#define TF_DYNEMB_CC_CORE_TABLE_ROW_ADAPTER_H_

#include <cstdint>
#include <vector>

#include "cc/core/table/row_layout.h"
#include "cc/core/table/table.h"

namespace dynemb {

// What a row lacks it gets as a new row would have it: slots of the table's rule at their initial
// values, meta fields at 0. Meta fields that the table does not have are left out, and so are the
// slots of a rule if the table has none. The schemas must be compatible. Host memory.
class RowAdapter {
 public:
  RowAdapter(const TableSchema& from, const TableSchema& to);

  // The parts for Table::Import; they point into `rows` and, until the next call, into the adapter.
  ConstRowParts Adapt(const ConstRowParts& rows);

 private:
  const RowLayout from_;
  const RowLayout to_;
  std::vector<char> initial_slots_;  // of one row, where the rows have none
  std::vector<char> slots_;
  std::vector<char> meta_;
};

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_CORE_TABLE_ROW_ADAPTER_H_

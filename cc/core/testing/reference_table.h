// The reference Table: a map from key to row under one mutex, slow and obviously right. It says
// what the contract of table.h means; every other table is compared with it call by call
// (conformance.h).
//
// So that it does not repeat the mistakes of what it checks, it keeps rows in its own form (one
// vector per part of a row) and shares with the real tables only what is tested by itself: initial
// values, optimizer rules and the hash.
#ifndef TF_DYNEMB_CC_CORE_TESTING_REFERENCE_TABLE_H_
#define TF_DYNEMB_CC_CORE_TESTING_REFERENCE_TABLE_H_

#include <memory>

#include "cc/core/base/status.h"
#include "cc/core/table/table.h"

namespace dynemb {

// Error: the schema is not valid.
Status MakeReferenceTable(const TableSchema& schema, std::unique_ptr<Table>* table);

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_CORE_TESTING_REFERENCE_TABLE_H_

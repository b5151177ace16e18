// The parts of the conformance suite, each reporting failures to the running test. conformance.cc
// makes a test of each, and model_run.h has the random ones.
#ifndef TF_DYNEMB_CC_CORE_TESTING_CONFORMANCE_CHECKS_H_
#define TF_DYNEMB_CC_CORE_TESTING_CONFORMANCE_CHECKS_H_

#include <cstdint>
#include <initializer_list>
#include <string>

#include "cc/core/testing/harness.h"

namespace dynemb {

// Of float32 values, trained by UsualRule(rule), with these meta fields.
TableSchema FloatSchema(int64_t dim, const std::string& rule,
                        std::initializer_list<MetaField> meta);

// What the contract says, in examples with the answers written out; the reference table must pass
// them as well.
void CheckInitialValues(const TableHarness& harness);
void CheckAccumulateCells(const TableHarness& harness);
void CheckRepetitions(const TableHarness& harness);
void CheckMetaStamps(const TableHarness& harness);
void CheckSlotsBelongToRows(const TableHarness& harness);
void CheckEveryBitPattern(const TableHarness& harness);
void CheckRestrictByScore(const TableHarness& harness);
void CheckMissesGoToNextTier(const TableHarness& harness);
void CheckExportLeavesOut(const TableHarness& harness);
void CheckExportParts(const TableHarness& harness);
void CheckMemoryComesAndGoes(const TableHarness& harness);
void CheckManyRows(const TableHarness& harness);

// Whole rows: read and inserted by key, moved into tables of other schemas; changes.
void CheckReadRows(const TableHarness& harness);
void CheckInsertRows(const TableHarness& harness);
void CheckManyWholeRows(const TableHarness& harness);
void CheckTrainsOnlyFound(const TableHarness& harness);
void CheckMoves(const TableHarness& harness);
void CheckMovedChanges(const TableHarness& harness);
void CheckMovesUseErasedRows(const TableHarness& harness);
void CheckMovesThatAreNot(const TableHarness& harness);
void CheckChanges(const TableHarness& harness);
void CheckEpochs(const TableHarness& harness);
void CheckManyEpochs(const TableHarness& harness);

// Arguments that are wrong: an error with the right code, and nothing has changed.
void CheckBadSchemas(const TableHarness& harness);
void CheckBadBatches(const TableHarness& harness);
void CheckBadUpdates(const TableHarness& harness);
void CheckBadParts(const TableHarness& harness);
void CheckBadChanges(const TableHarness& harness);
void CheckBadHistograms(const TableHarness& harness);
void CheckForeignContext(const TableHarness& harness);

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_CORE_TESTING_CONFORMANCE_CHECKS_H_

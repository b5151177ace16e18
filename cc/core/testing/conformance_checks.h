// The parts of the conformance suite, each reporting failures to the running test. conformance.cc
// makes a test of each, and model_run.h has the random ones.
#ifndef TF_DYNEMB_CC_CORE_TESTING_CONFORMANCE_CHECKS_H_
#define TF_DYNEMB_CC_CORE_TESTING_CONFORMANCE_CHECKS_H_

#include "cc/core/testing/harness.h"

namespace dynemb {

// What the contract says, in examples with the answers written out; the reference table must pass
// them as well.
void CheckInitialValues(const TableHarness& harness);
void CheckAccumulateCells(const TableHarness& harness);
void CheckRepetitions(const TableHarness& harness);
void CheckMetaStamps(const TableHarness& harness);
void CheckSlotsBelongToRows(const TableHarness& harness);
void CheckAttach(const TableHarness& harness);
void CheckEveryBitPattern(const TableHarness& harness);
void CheckRestrictByScore(const TableHarness& harness);
void CheckMissesGoToNextTier(const TableHarness& harness);
void CheckExportLeavesOut(const TableHarness& harness);
void CheckExportParts(const TableHarness& harness);
void CheckMemoryComesAndGoes(const TableHarness& harness);
void CheckManyRows(const TableHarness& harness);
void CheckChanges(const TableHarness& harness);

// Arguments that are wrong: an error with the right code, and nothing has changed.
void CheckBadSchemas(const TableHarness& harness);
void CheckBadBatches(const TableHarness& harness);
void CheckBadUpdates(const TableHarness& harness);
void CheckBadParts(const TableHarness& harness);
void CheckBadHistograms(const TableHarness& harness);
void CheckForeignContext(const TableHarness& harness);

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_CORE_TESTING_CONFORMANCE_CHECKS_H_

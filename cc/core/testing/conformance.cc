#include "cc/core/testing/conformance.h"

#include "cc/core/testing/conformance_checks.h"

namespace dynemb {

// A test program may link the suites and use one of them.
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(TableConformance);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(TableModel);

// Out of line, so that instantiating a suite links this file, and with it the tests.
TableConformance::TableConformance() = default;
TableModel::TableModel() = default;

std::string TableModel::CaseName(const ::testing::TestParamInfo<ParamType>& info) {
  return std::get<1>(info.param).Name();
}

TEST_P(TableConformance, MissingKeysReadAndBecomeInitialValues) { CheckInitialValues(GetParam()); }
TEST_P(TableConformance, AccumulateHasFourCells) { CheckAccumulateCells(GetParam()); }
TEST_P(TableConformance, TouchesRepeatedKeysOnce) { CheckRepetitions(GetParam()); }
TEST_P(TableConformance, WritesStampMeta) { CheckMetaStamps(GetParam()); }
TEST_P(TableConformance, SlotsBelongToRows) { CheckSlotsBelongToRows(GetParam()); }
TEST_P(TableConformance, StoresEveryBitPattern) { CheckEveryBitPattern(GetParam()); }
TEST_P(TableConformance, RestrictsByScore) { CheckRestrictByScore(GetParam()); }
TEST_P(TableConformance, MissesGoToTheNextTier) { CheckMissesGoToNextTier(GetParam()); }
TEST_P(TableConformance, ExportLeavesOutWhatIsNotAskedFor) { CheckExportLeavesOut(GetParam()); }
TEST_P(TableConformance, PartsOfAnExportAreTheWhole) { CheckExportParts(GetParam()); }
TEST_P(TableConformance, MemoryComesAndGoes) { CheckMemoryComesAndGoes(GetParam()); }
TEST_P(TableConformance, HoldsManyRows) { CheckManyRows(GetParam()); }
TEST_P(TableConformance, ReadsWholeRows) { CheckReadRows(GetParam()); }
TEST_P(TableConformance, InsertsWholeRows) { CheckInsertRows(GetParam()); }
TEST_P(TableConformance, ReadsAndInsertsManyWholeRows) { CheckManyWholeRows(GetParam()); }
TEST_P(TableConformance, TrainsOnlyFoundRowsIfAskedTo) { CheckTrainsOnlyFound(GetParam()); }
TEST_P(TableConformance, MovesKeepRows) { CheckMoves(GetParam()); }
TEST_P(TableConformance, MovesKeepChanges) { CheckMovedChanges(GetParam()); }
TEST_P(TableConformance, MovesUseErasedRowsAgain) { CheckMovesUseErasedRows(GetParam()); }
TEST_P(TableConformance, MovesThatAreRefusedOrGivenUp) { CheckMovesThatAreNot(GetParam()); }
TEST_P(TableConformance, TellsWhatHasChanged) { CheckChanges(GetParam()); }
TEST_P(TableConformance, TellsWhichChangesItKnows) { CheckEpochs(GetParam()); }
TEST_P(TableConformance, TakesNoEpochForAnother) { CheckManyEpochs(GetParam()); }

TEST_P(TableConformance, RefusesBadSchemas) { CheckBadSchemas(GetParam()); }
TEST_P(TableConformance, RefusesBadBatches) { CheckBadBatches(GetParam()); }
TEST_P(TableConformance, RefusesBadUpdates) { CheckBadUpdates(GetParam()); }
TEST_P(TableConformance, RefusesBadParts) { CheckBadParts(GetParam()); }
TEST_P(TableConformance, RefusesBadEpochsAndParts) { CheckBadChanges(GetParam()); }
TEST_P(TableConformance, RefusesBadHistograms) { CheckBadHistograms(GetParam()); }
TEST_P(TableConformance, RefusesForeignContexts) { CheckForeignContext(GetParam()); }

TEST_P(TableModel, AgreesWithReference) {
  // The sanitizers make them 8 times as slow; half as many keep their run below five minutes.
  constexpr int64_t kOperations = kUnderAddressSanitizer || kUnderThreadSanitizer ? 5'000 : 10'000;
  const auto& [harness, model_case] = GetParam();
  uint64_t seed = 0;
  for (const char c : model_case.Name()) seed = seed * 31 + static_cast<unsigned char>(c);
  for (int64_t round = 0; round < SoakFactor() && !HasFailure(); ++round) {
    RunModel(harness, model_case, seed + static_cast<uint64_t>(round), kOperations);
  }
}

}  // namespace dynemb

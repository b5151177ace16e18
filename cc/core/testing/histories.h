// Recorded histories of one row under concurrent calls, and the question whether they can be
// explained.
//
// Each call is an interval of one clock. A history is linearizable (Herlihy and Wing, 1990) if
// every call can be given a moment inside its interval such that the calls, done one after the
// other at these moments, see what they saw. That is what table.h means by "atomic per key".
#ifndef TF_DYNEMB_CC_CORE_TESTING_HISTORIES_H_
#define TF_DYNEMB_CC_CORE_TESTING_HISTORIES_H_

#include <cstdint>
#include <string>
#include <tuple>
#include <vector>

#include "cc/core/table/table.h"

namespace dynemb {

// A row whose value, momentum slot and count are one number each: SGD with momentum 1 and learning
// rate 1 makes slot -= gradient, value += slot.
struct RowState {
  bool present = false;
  int64_t value = 0;
  int64_t slot = 0;
  int64_t count = 0;
  bool operator<(const RowState& o) const {
    return std::tie(present, value, slot, count) < std::tie(o.present, o.value, o.slot, o.count);
  }
};

// One call's part on one key.
struct Event {
  static constexpr int64_t kRowNumbers = 100;
  enum class Kind { kFind, kReadRows, kExport, kApply, kUpsert, kAccumulate, kErase, kInsertRows };
  Kind kind = Kind::kFind;
  // The gradient, value or delta; of InsertRows the value, the slot and the count being that modulo
  // kRowNumbers.
  int64_t argument = 0;
  bool exists = false;   // of Accumulate
  bool reports = false;  // of Apply: IfMissing::kReport
  uint64_t begin = 0;
  uint64_t end = 0;
  // What was seen: of Find the outcome and the value, of ReadRows the outcome and the row, of
  // InsertRows the outcome and the row that was displaced, of Export the row (it is recorded only
  // where there is one), of the others the outcome.
  Outcome outcome = Outcome::kMissing;
  RowState seen;
};

// "" if the events of one key, which began without a row, can be explained; else the event at which
// no explanation is left, with those around it. Begins and ends must be distinct. At most 64 calls
// may overlap. The search keeps all explanations up to a moment (Lowe, "Testing for
// Linearizability", 2017): cheap as long as few calls overlap.
std::string ExplainHistory(std::vector<Event> events);

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_CORE_TESTING_HISTORIES_H_

// Admission: which keys without a row get one when they are trained.
//
// A key that is not admitted keeps reading its initial value, and its gradient is dropped. Under
// kMinCount the keys that have occurred and have no row yet, the candidates, are a table as well:
// its rows are one float32, how often the key has occurred. So counts are saved, restored, sharded
// and bounded as any rows are, by the table that holds them. Counts that leave it when it is full
// may go into a sketch (count_sketch.h), with whose estimate a key begins when it becomes a
// candidate.
#ifndef TF_DYNEMB_CC_CORE_POLICY_ADMISSION_H_
#define TF_DYNEMB_CC_CORE_POLICY_ADMISSION_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string_view>
#include <vector>

#include "cc/core/base/context.h"
#include "cc/core/base/hash.h"
#include "cc/core/base/macros.h"
#include "cc/core/base/span.h"
#include "cc/core/base/status.h"
#include "cc/core/optimizer/optimizer_spec.h"
#include "cc/core/policy/count_sketch.h"
#include "cc/core/table/table.h"

namespace dynemb {

struct AdmissionPolicy {
  enum class Kind : uint8_t {
    kAll,          // every key
    kMinCount,     // those that have occurred so often
    kProbability,  // a share of them, drawn anew in each step
    kGiven,        // those that the caller of an update says
  };

  Kind kind = Kind::kAll;
  int64_t min_count = 1;
  SketchShape sketch;  // of the counts that leave the candidates
  double probability = 1;
  int64_t seed = 0;

  bool admits_all() const { return kind == Kind::kAll; }
  bool has_sketch() const { return sketch.blocks > 0; }

  // The text form: "", "min_count 3", "min_count 3 sketch 64 process 0 of 2" (64 blocks),
  // "probability 0.25 seed 7" or "given".
  static Status Parse(std::string_view text, AdmissionPolicy* policy);
};

// Whether kProbability admits a key in a step: a pure function of these.
DYNEMB_HOST_DEVICE inline bool IsDrawn(double probability, int64_t seed, Key key, int64_t step) {
  const uint64_t of_step = Mix64(static_cast<uint64_t>(seed) ^ Mix64(static_cast<uint64_t>(step)));
  const uint64_t number = Mix64(static_cast<uint64_t>(key) ^ of_step);
  constexpr double kUnit = 1.0 / static_cast<double>(uint64_t{1} << 53);
  return static_cast<double>(number >> 11) * kUnit < probability;
}

// The optimizer of a table of candidates, which adds occurrences up.
OptimizerSpec CandidateOptimizer();

// What the calls of kMinCount on one table share. They decide about missing keys one after the
// other, so that each sees the counts and the rows of those before it.
struct AdmissionCalls {
  std::mutex mutex;                  // held from the decision until the counts say so
  std::atomic<int64_t> inserted{0};  // how many calls have given keys rows
};

// What decides about the keys of one update.
struct Admission {
  AdmissionPolicy policy;
  Table* candidates = nullptr;  // of kMinCount; of float32, dim 1, with CandidateOptimizer
  // Of a policy with a sketch: the table of its counters. Both tables are called through the host,
  // and the candidates must keep the rows that leave (TableOptions::keep_evicted).
  Table* sketch = nullptr;
  AdmissionCalls* calls = nullptr;  // of kMinCount
  // Of kGiven: whether each key of the batch is admitted, in its memory. Equal keys must have the
  // same.
  Span<const bool> given;
  int64_t step = 0;  // of the optimizer
};

// table->Apply for the keys that have a row or are admitted. Under kMinCount each position of the
// batch counts as an occurrence, those of this batch too; a key that gets its row is no candidate
// any more. Tables in host memory; GpuTable::ApplyAdmitted is that of others. Errors: as of Apply;
// the keys that have rows may have been updated then. *declined: how many distinct keys had no
// row and got none.
Status ApplyAdmitted(const Context& context, Table* table, const Batch& batch, ConstRows gradients,
                     const Update& update, const Stamp& stamp, const Admission& admission,
                     int64_t* declined);

// What ApplyAdmitted does with keys of a batch that have no row: decides about those at these
// positions, calls insert(the positions, ascending, of those that are admitted) if there are any,
// and counts. All memory is the host's. Under kMinCount the caller holds admission.calls->mutex.
Status AdmitMissing(const Context& context, Span<const Key> keys, std::vector<int64_t> missing,
                    const Admission& admission,
                    const std::function<Status(std::vector<int64_t>)>& insert, int64_t* declined);

// Puts the counts into the sketch that have left the candidates, which a restore into fewer of them
// makes leave. ApplyAdmitted does so with those that leave in its call. For a policy with a sketch.
Status SketchCountsThatLeft(const Context& context, const Admission& admission);

// Appends the distinct keys that ApplyAdmitted would give rows.
Status AppendAdmitted(const Context& context, const Table& table, const Batch& batch,
                      const Admission& admission, std::vector<Key>* keys);

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_CORE_POLICY_ADMISSION_H_

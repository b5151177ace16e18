// CallInParts: a call of a GpuTieredTable that is done in parts, each of some of its distinct keys,
// at all positions of these: for there is no room for all of them above, or within the limit.
#ifndef TF_DYNEMB_CC_GPU_TABLE_CALL_IN_PARTS_H_
#define TF_DYNEMB_CC_GPU_TABLE_CALL_IN_PARTS_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "cc/core/base/context.h"
#include "cc/core/base/status.h"
#include "cc/core/table/distinct_keys.h"
#include "cc/core/table/table.h"
#include "cc/gpu/table/gpu_tiers.h"
#include "cc/gpu/table/scratch.h"

namespace dynemb {

inline bool IsDone(Outcome outcome) {
  return outcome == Outcome::kFound || outcome == Outcome::kInserted;
}

// How a call inserts rows.
struct RowInserts {
  bool missing_keys = false;
  // But not at positions where a key was seen.
  const std::vector<char>* unless_seen = nullptr;
  const ConstRowParts* whole_rows = nullptr;  // they come with scores
};

class CallInParts {
 public:
  // Does the call above, of a part of the batch.
  using Op = std::function<Status(const Batch& part, const Report& report)>;

  // All arguments outlive it. `scratch` is its own meanwhile.
  CallInParts(const Context& context, const Batch& batch, const Report& report,
              const RowInserts& inserts, const Op& op, GpuTiers* tiers, Scratch* scratch)
      : context_(context),
        batch_(batch),
        inserts_(inserts),
        op_(op),
        tiers_(tiers),
        scratch_(scratch),
        full_(report) {
    full_.misses = nullptr;
  }

  // These may throw std::bad_alloc. First Begin; after an error of it nothing has been done.
  Status Begin();
  // As many keys at a time as there is room for above.
  Status WriteAll() { return WriteKeys(AllNumbers()); }
  // First the keys that have rows, then room is made, then the others come, or as many as there is
  // room for.
  Status WriteWithinLimit();
  // Whether a part has been done, perhaps.
  bool has_begun() const { return has_begun_; }
  // With the outcomes of all positions, but those of keys that have been declined, and no misses.
  const Report& full_report() const { return full_; }
  Status ReportTo(const Report& report);

 private:
  int64_t number(size_t j) const { return distinct_->number(static_cast<int64_t>(j)); }
  std::vector<int64_t> AllNumbers() const;
  Status WriteKeys(const std::vector<int64_t>& numbers);
  // Numbers of the keys without a row that get one, and of the others.
  Status FindMissing(std::vector<int64_t>* others, std::vector<int64_t>* missing) const;
  // By the scores that whole rows come with, the lowest first; of several of a key the last counts.
  Status SortByScore(std::vector<int64_t>* numbers) const;
  // Where each record begins.
  Status OffsetsToHost(const ConstRows& rows, std::vector<int64_t>* offsets) const;
  Status ReportDeclined() const;
  Status ReportMisses(const Report& report) const;

  const Context& context_;
  const Batch& batch_;
  const RowInserts& inserts_;
  const Op& op_;
  GpuTiers* const tiers_;
  Scratch* const scratch_;
  Report full_;
  std::vector<Key> keys_;           // at the positions that take part
  std::vector<int64_t> positions_;  // these
  std::optional<DistinctKeys> distinct_;
  Positions part_;                 // of the call's memory
  std::vector<int64_t> declined_;  // numbers of keys
  bool has_begun_ = false;
};

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_GPU_TABLE_CALL_IN_PARTS_H_

// Evictor: makes room in a host table by removing the rows of lowest score among some candidates.
//
// A hand goes round the hashes of all segments at once. To evict n rows it passes over about
// kCandidates times as many, or kUnitRows if those are more, as many in each segment, and the n
// lowest of them leave. So a table of up to kUnitRows rows evicts exactly the lowest; in a larger
// one who leaves is among the lowest 1 / kCandidates of a random sample, at a cost that does not
// depend on the number of rows. Which rows leave depends on the table and on n, not on the number
// of threads. Since all segments give rows at the same time, none of them grows while others
// shrink.
//
// Expired rows (EvictionPolicy::ttl) are removed by a hand of their own, some at each call.
#ifndef TF_DYNEMB_CC_CORE_TABLE_EVICTOR_H_
#define TF_DYNEMB_CC_CORE_TABLE_EVICTOR_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "cc/core/base/context.h"
#include "cc/core/base/macros.h"
#include "cc/core/base/status.h"
#include "cc/core/policy/eviction.h"
#include "cc/core/table/evicted_rows.h"
#include "cc/core/table/locked_segment.h"
#include "cc/core/table/row_layout.h"
#include "cc/core/table/value_functions.h"

namespace dynemb {

// What ties are broken by: the lower half of the hash comes first, for the upper one says where the
// key lies. Otherwise some places of the index would empty and others be crowded.
DYNEMB_HOST_DEVICE inline uint64_t TieOfHash(uint64_t hash) { return hash << 32 | hash >> 32; }
DYNEMB_HOST_DEVICE inline uint64_t HashOfTie(uint64_t tie) { return tie << 32 | tie >> 32; }

class Evictor {
 public:
  static constexpr int64_t kCandidates = 4;
  static constexpr int64_t kUnitRows = 2048;

  // The segments must outlive it. Rows that it removes go to `evicted`, if that is not null.
  Evictor(const EvictionPolicy& policy, const RowLayout& layout, DType value_dtype,
          std::shared_ptr<EvictedRows> evicted, LockedSegments* segments);

  // Removes rows, `wanted` of them if the table has as many. Errors: no memory; *evicted tells how
  // many have been removed nevertheless. The caller holds no segment's lock.
  Status Evict(const Context& context, int64_t wanted, int64_t* evicted);

  // Looks at about so many rows and removes those that have expired; *removed tells how many.
  Status RemoveExpired(const Context& context, int64_t rows, int64_t* removed);

  // The score of a row with this value and meta: the lowest leave first. That of an expired row is
  // INT64_MIN.
  int64_t Score(const char* value, const char* meta) const;

  // Has a row expired at this moment?
  bool HasExpired(const char* row, int64_t clock) const {
    return MetaHasExpired(row + layout_.meta_offset, clock);
  }
  bool MetaHasExpired(const char* meta, int64_t clock) const {
    if (!policy_.expires()) return false;
    // A time that a file says may be anything.
    const int64_t written = ReadInt64(meta + last_write_);
    return written<clock&& static_cast<uint64_t>(clock) -
                   static_cast<uint64_t>(written)> static_cast<uint64_t>(policy_.ttl);
  }

  // The latest `now` of a write or of an inserted row, which never falls.
  int64_t clock() const { return clock_.load(std::memory_order_relaxed); }
  // Sets it, if it has not come so far, and returns it.
  int64_t AdvanceClock(int64_t now);

 private:
  struct Candidate {
    RowOrder order;
    Key key;
    bool operator<(const Candidate& o) const { return TieBroken() < o.TieBroken(); }
    RowOrder TieBroken() const { return {order.score, TieOfHash(order.hash)}; }
  };
  // The candidates of some segments, among which the lowest are chosen.
  struct Unit {
    int first_segment, end_segment;
    std::vector<Candidate> candidates;
    KeptRows erased;  // if they are kept
  };
  // What a hand passes over in each segment: hashes from `begin` on, which may begin anew.
  struct Range {
    uint64_t begin, size;
  };

  int64_t Score(const char* row) const { return Score(row, row + layout_.meta_offset); }
  int64_t rows() const;
  // Moves a hand over so many of the rows that there are.
  Range PassOver(int64_t wanted, int64_t rows, uint64_t* hand);
  static std::vector<Unit> UnitsFor(int64_t candidates);
  void Gather(const Range& range, Unit* unit);
  // Erases those candidates that are still as they were; returns how many.
  int64_t Erase(Unit* unit);
  // Gives away what has been erased, in the order of the units.
  void Keep(std::vector<Unit>* units);

  const EvictionPolicy policy_;
  const RowLayout layout_;
  const NormFunction norm_;
  // Offsets in the meta of a row, of fields that the policy reads.
  int64_t last_write_, score_;
  int64_t fetched_;  // of a row, ahead
  const std::shared_ptr<EvictedRows> evicted_;
  LockedSegments* const segments_;
  std::mutex mutex_;                      // of the hands
  uint64_t hand_ = 0, expired_hand_ = 0;  // hashes in a segment
  std::atomic<int64_t> clock_{INT64_MIN};
};

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_CORE_TABLE_EVICTOR_H_

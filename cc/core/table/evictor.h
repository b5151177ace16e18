// Evictor: makes room in a host table by removing the rows of lowest score among some candidates.
//
// Sampled eviction, as that of Redis: to evict n rows, it takes kCandidates * n rows as candidates,
// or kUnitRows if those are more, and removes the n candidates of lowest score. Candidates are the
// rows that follow in the order of their hashes, from where the last eviction ended (the hand, as
// in the CLOCK algorithm), as many in each segment. So a table of up to kUnitRows rows evicts
// exactly the lowest. In a larger one the rows that leave are the lowest 1 / kCandidates of a
// random sample, at a cost that does not depend on the number of rows. Which rows leave depends on
// the table and on n, not on the number of threads. All segments lose rows at the same rate.
//
// Expired rows are removed by a hand of their own, some at each call. After a lap, in which it has
// seen when the next row expires, it does nothing until then.
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
#include "cc/core/table/evicted_rows.h"
#include "cc/core/table/locked_segment.h"
#include "cc/core/table/row_layout.h"
#include "cc/core/table/row_scores.h"

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
  Evictor(RowScores scores, const RowLayout& layout, std::shared_ptr<EvictedRows> evicted,
          LockedSegments* segments);

  // Removes rows, `wanted` of them if the table has as many. Errors: no memory; *evicted tells how
  // many have been removed nevertheless. The caller holds no segment's lock.
  Status Evict(const Context& context, int64_t wanted, int64_t* evicted);

  // At how many rows a call looks that has written so many keys, and inserted some of them: at more
  // than it has inserted, so that expired rows leave as fast as others come.
  static int64_t RowsToLookAt(int64_t written, int64_t inserted) {
    return written / 4 + 2 * inserted + 64;
  }
  // Looks at about so many rows and removes those that have expired; *removed tells how many.
  Status RemoveExpired(const Context& context, int64_t rows, int64_t* removed);
  // False: no row has, as far as the last lap has seen.
  bool MayHaveExpired() const { return scores_.clock()->now() > rests_until_; }
  // A row has come with this time.
  void NoteTime(int64_t written);

  const RowScores& scores() const { return scores_; }
  bool HasExpired(const char* row) const { return scores_.HasExpired(row + layout_.meta_offset); }

 private:
  struct Candidate {
    RowOrder order;
    Key key;
    RowOrder TieBroken() const { return {order.score, TieOfHash(order.hash)}; }
  };
  // The candidates of some segments, among which the lowest are chosen.
  struct Unit {
    int first_segment, end_segment;
    std::vector<Candidate> candidates;
    KeptRows erased;                     // if they are kept
    int64_t earliest_write = INT64_MAX;  // of the rows that have not expired, where it is asked for
  };
  // What a hand passes over in each segment: hashes from `begin` on, which may begin anew.
  struct Range {
    uint64_t begin, size;
  };

  int64_t Score(const char* row) const { return scores_.Score(row, row + layout_.meta_offset); }
  int64_t rows() const;
  // Moves a hand over so many of the rows that there are.
  Range PassOver(int64_t wanted, int64_t rows, uint64_t* hand);
  static std::vector<Unit> UnitsFor(int64_t candidates);
  // Calls visit(entry, row) for the rows of a unit that a hand passes over, and fetch(row) before.
  template <typename Fetch, typename Visit>
  void ForEachOf(const Range& range, const Unit& unit, const Fetch& fetch, const Visit& visit);
  void Gather(const Range& range, Unit* unit);
  void GatherExpired(const Range& range, Unit* unit);
  // The hand has passed over a range whose rows were written at this time or later.
  void EndPass(const Range& range, int64_t earliest_write);
  // Leaves so many candidates, the lowest, in the order of their places in the index.
  static void KeepLowest(int64_t count, std::vector<Candidate>* candidates);
  // Erases those candidates that are still as they were; returns how many.
  int64_t Erase(Unit* unit);
  // Gives away what has been erased, in the order of the units.
  void Keep(std::vector<Unit>* units);

  const RowScores scores_;
  const RowLayout layout_;
  const std::shared_ptr<EvictedRows> evicted_;
  LockedSegments* const segments_;
  std::mutex mutex_;                      // of the hands
  uint64_t hand_ = 0, expired_hand_ = 0;  // hashes in a segment
  // Of a lap of the expired hand: the hashes passed over, and the earliest time of a row in it or
  // since.
  uint64_t passed_ = 0;
  int64_t earliest_write_ = INT64_MAX;
  std::atomic<int64_t> rests_until_{INT64_MIN};
};

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_CORE_TABLE_EVICTOR_H_

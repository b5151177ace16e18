#include "cc/core/table/evictor.h"

#include <algorithm>
#include <new>
#include <shared_mutex>
#include <utility>

#include "cc/core/table/for_each_key.h"

namespace dynemb {
namespace {

constexpr int64_t kNanosecondsPerUnit = 50'000;
constexpr int kHashBits = 64 - BatchOrder::kSegmentBits;  // of the hashes of a segment
constexpr uint64_t kHashes = uint64_t{1} << kHashBits;

__extension__ typedef unsigned __int128 Wide;

// a * b / c, whose product may be wider than 64 bits.
int64_t MulDiv(int64_t a, int64_t b, int64_t c) {
  return static_cast<int64_t>(static_cast<Wide>(a) * static_cast<Wide>(b) / static_cast<Wide>(c));
}

}  // namespace

Evictor::Evictor(RowScores scores, const RowLayout& layout, std::shared_ptr<EvictedRows> evicted,
                 LockedSegments* segments)
    : scores_(std::move(scores)),
      layout_(layout),
      evicted_(std::move(evicted)),
      segments_(segments) {}

int64_t Evictor::rows() const {
  int64_t rows = 0;
  for (const auto& part : *segments_) {
    const std::shared_lock<FairSharedMutex> lock(part->mutex);
    rows += part->segment.size();
  }
  return rows;
}

Evictor::Range Evictor::PassOver(int64_t wanted, int64_t rows, uint64_t* hand) {
  Range range;
  range.size = wanted >= rows
                   ? kHashes
                   : static_cast<uint64_t>(MulDiv(static_cast<int64_t>(kHashes), wanted, rows));
  const std::lock_guard<std::mutex> lock(mutex_);
  range.begin = *hand;
  *hand = (*hand + range.size) % kHashes;
  return range;
}

std::vector<Evictor::Unit> Evictor::UnitsFor(int64_t candidates) {
  int count = 1;
  while (count < BatchOrder::kSegments && candidates / (2 * count) >= kUnitRows) count *= 2;
  std::vector<Unit> units(static_cast<size_t>(count));
  const int segments = BatchOrder::kSegments / count;
  for (int u = 0; u < count; ++u)
    units[static_cast<size_t>(u)] = {u * segments, (u + 1) * segments, {}, {}};
  return units;
}

template <typename Fetch, typename Visit>
void Evictor::ForEachOf(const Range& range, const Unit& unit, const Fetch& fetch,
                        const Visit& visit) {
  for (int s = unit.first_segment; s < unit.end_segment; ++s) {
    LockedSegment& part = *(*segments_)[static_cast<size_t>(s)];
    const std::shared_lock<FairSharedMutex> lock(part.mutex);
    const uint64_t first = static_cast<uint64_t>(s) << kHashBits;
    const auto visit_range = [&](uint64_t begin, uint64_t end) {
      if (begin == end) return;
      part.segment.ForEachInRange(
          {first + begin, first + (end - 1)}, fetch,
          [&](const Segment::Entry& entry) { visit(entry, part.segment.row(entry.ref)); });
    };
    const uint64_t end = range.begin + range.size;
    visit_range(range.begin, std::min(end, kHashes));
    visit_range(0, end > kHashes ? end - kHashes : 0);
  }
}

void Evictor::Gather(const Range& range, Unit* unit) {
  const auto fetch = [&](const char* row) DYNEMB_INLINE_LAMBDA {
    PrefetchRow(row + scores_.first_byte(), scores_.bytes());
    if (scores_.policy().expires()) __builtin_prefetch(row + scores_.time_byte());
  };
  ForEachOf(range, *unit, fetch, [&](const Segment::Entry& entry, const char* row) {
    unit->candidates.push_back({{Score(row), entry.hash}, entry.key});
  });
}

void Evictor::GatherExpired(const Range& range, Unit* unit) {
  const auto fetch = [&](const char* row)
                         DYNEMB_INLINE_LAMBDA { __builtin_prefetch(row + scores_.time_byte()); };
  ForEachOf(range, *unit, fetch, [&](const Segment::Entry& entry, const char* row) {
    if (HasExpired(row)) {
      unit->candidates.push_back({{INT64_MIN, entry.hash}, entry.key});
    } else {
      const int64_t written = scores_.LastWrite(row + layout_.meta_offset);
      if (written == RowScores::kNoTime) return;
      unit->earliest_write = std::min(unit->earliest_write, written);
    }
  });
}

void Evictor::EndPass(const Range& range, int64_t earliest_write) {
  const std::lock_guard<std::mutex> lock(mutex_);
  // What is written to the rows passed over is written now or later.
  if (passed_ == 0) earliest_write_ = scores_.clock()->now();
  earliest_write_ = std::min(earliest_write_, earliest_write);
  passed_ += range.size;
  if (passed_ < kHashes) return;
  passed_ = 0;
  rests_until_ = scores_.LastMoment(earliest_write_);
}

void Evictor::NoteTime(int64_t written) {
  const int64_t last = scores_.LastMoment(written);
  int64_t until = rests_until_.load(std::memory_order_relaxed);
  while (last < until && !rests_until_.compare_exchange_weak(until, last)) {
  }
}

void Evictor::KeepLowest(int64_t count, std::vector<Candidate>* candidates) {
  if (count == static_cast<int64_t>(candidates->size())) return;
  std::vector<RowOrder> orders;
  orders.reserve(candidates->size());
  for (const Candidate& candidate : *candidates) orders.push_back(candidate.TieBroken());
  const auto first_to_stay = orders.begin() + count;
  std::nth_element(orders.begin(), first_to_stay, orders.end());
  const auto stays = [&](const Candidate& c) { return !(c.TieBroken() < *first_to_stay); };
  candidates->erase(std::remove_if(candidates->begin(), candidates->end(), stays),
                    candidates->end());
}

int64_t Evictor::Erase(Unit* unit) {
  std::vector<Candidate>& leaving = unit->candidates;
  bool keeps = evicted_ != nullptr;
  // Those that are kept longest do not depend on how the index came to be as it is.
  if (keeps) {
    std::sort(leaving.begin(), leaving.end(),
              [](const Candidate& a, const Candidate& b) { return a.order.hash < b.order.hash; });
  }
  try {
    if (keeps) unit->erased.Reserve(static_cast<int64_t>(leaving.size()), layout_.value_bytes);
  } catch (const std::bad_alloc&) {  // they leave nevertheless
    keeps = false;
    evicted_->AddDropped(static_cast<int64_t>(leaving.size()));
  }
  int64_t erased = 0;
  for (size_t i = 0; i < leaving.size();) {
    const int s = BatchOrder::SegmentOf(leaving[i].order.hash);
    LockedSegment& part = *(*segments_)[static_cast<size_t>(s)];
    const std::unique_lock<FairSharedMutex> lock(part.mutex);
    for (; i < leaving.size() && BatchOrder::SegmentOf(leaving[i].order.hash) == s; ++i) {
      const auto& [order, key] = leaving[i];
      bool beyond, marked;
      Segment::Ref ref = part.segment.FindAtHome(key, order.hash, &beyond, &marked);
      if (ref == Segment::kNone && beyond) ref = part.segment.FindBeyond(key, order.hash, &marked);
      // Others may have written or erased it meanwhile.
      if (ref == Segment::kNone || Score(part.segment.row(ref)) != order.score) continue;
      if (keeps) {
        unit->erased.Add(key, part.segment.row(ref), layout_.value_bytes);
      }
      part.EraseRow(key, order.hash);
      ++erased;
    }
  }
  return erased;
}

void Evictor::Keep(std::vector<Unit>* units) {
  if (evicted_ == nullptr) return;
  for (Unit& unit : *units) evicted_->Add(std::move(unit.erased));
}

Status Evictor::Evict(const Context& context, int64_t wanted, int64_t* evicted) {
  *evicted = 0;
  // Again where others were faster, and where the hashes that the hand passed over had fewer rows.
  for (int64_t passed = 0;;) {
    const int64_t left = wanted - *evicted, there = rows();
    if (left <= 0 || there == 0 || passed > 2 * there) return Status();
    const int64_t wanted_candidates = std::max(kUnitRows, std::min(left, there) * kCandidates);
    passed += wanted_candidates;
    const Range range = PassOver(wanted_candidates, there, &hand_);
    std::vector<Unit> units = UnitsFor(std::min(wanted_candidates, there));
    const int64_t count = static_cast<int64_t>(units.size());
    DYNEMB_RETURN_IF_ERROR(context.executor->Run(count, kNanosecondsPerUnit, [&](int64_t u) {
      Gather(range, &units[static_cast<size_t>(u)]);
    }));
    int64_t candidates = 0;
    for (const Unit& unit : units) candidates += static_cast<int64_t>(unit.candidates.size());
    if (candidates == 0) continue;
    // Each unit gives its share: of the first n candidates leave n * leaving / candidates.
    const int64_t leaving = std::min(left, candidates);
    std::vector<int64_t> leaves;
    int64_t before = 0;
    for (const Unit& unit : units) {
      const int64_t upto = before + static_cast<int64_t>(unit.candidates.size());
      leaves.push_back(MulDiv(leaving, upto, candidates) - MulDiv(leaving, before, candidates));
      before = upto;
    }
    std::atomic<int64_t> erased{0};
    const Status done = context.executor->Run(count, kNanosecondsPerUnit, [&](int64_t u) {
      Unit& unit = units[static_cast<size_t>(u)];
      KeepLowest(leaves[static_cast<size_t>(u)], &unit.candidates);
      erased += Erase(&unit);
    });
    *evicted += erased;
    Keep(&units);
    DYNEMB_RETURN_IF_ERROR(done);
  }
}

Status Evictor::RemoveExpired(const Context& context, int64_t rows_wanted, int64_t* removed) {
  *removed = 0;
  const int64_t there = rows();
  if (there == 0 || rows_wanted <= 0) return Status();
  const Range range = PassOver(rows_wanted, there, &expired_hand_);
  std::vector<Unit> units = UnitsFor(std::min(rows_wanted, there));
  std::atomic<int64_t> erased{0};
  const Status done = context.executor->Run(static_cast<int64_t>(units.size()), kNanosecondsPerUnit,
                                            [&](int64_t u) {
                                              Unit& unit = units[static_cast<size_t>(u)];
                                              GatherExpired(range, &unit);
                                              erased += Erase(&unit);
                                            });
  *removed = erased;
  int64_t earliest_write = INT64_MAX;
  for (const Unit& unit : units) earliest_write = std::min(earliest_write, unit.earliest_write);
  if (done.ok()) EndPass(range, earliest_write);
  Keep(&units);
  return done;
}

}  // namespace dynemb

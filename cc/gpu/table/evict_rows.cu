#include <cstring>

#include "cc/core/table/evictor.h"
#include "cc/core/table/value_functions.h"
#include "cc/gpu/for_each.cu.h"
#include "cc/gpu/table/evict_rows.h"
#include "cc/gpu/table/scan_rows.cu.h"
#include "cc/gpu/table/sort_pairs.h"

namespace dynemb {
namespace {

// In any order: each candidate's tie, score (as an unsigned number in its order) and number.
struct CollectCandidates {
  RowSlabs rows;
  RowScore score;
  int64_t room;
  uint64_t* ties;
  uint64_t* scores;
  uint32_t* numbers;
  int64_t* count;

  DYNEMB_HOST_DEVICE void operator()(Key, uint64_t hash, RowRef row, const IndexPart&, uint32_t,
                                     int) const {
    const int64_t at = AtomicAdd(count, int64_t{1});
    if (at >= room) return;
    ties[at] = TieOfHash(hash);
    scores[at] = static_cast<uint64_t>(score(rows[row])) ^ uint64_t { 1 } << 63;
    numbers[at] = static_cast<uint32_t>(at);
  }
};

// The scores of candidates that were sorted by their ties, to be sorted by them.
struct ScoresByTie {
  const uint64_t* scores;
  const uint32_t* numbers;
  uint64_t* by_tie;
  uint32_t* places;

  DYNEMB_HOST_DEVICE void operator()(int64_t i) const {
    by_tie[i] = scores[numbers[i]];
    places[i] = static_cast<uint32_t>(i);
  }
};

struct EraseCandidates {
  Index index;
  RowSlabs rows;
  const uint64_t* ties;
  const uint32_t* order;
  FreedRows freed;

  DYNEMB_HOST_DEVICE void operator()(int64_t i) const {
    const uint64_t hash = HashOfTie(ties[order[i]]);
    const Key key = static_cast<Key>(Unmix64(hash));
    const RowRef row = EraseKey(index.PartOf(hash), key, hash);
    freed.erased.Add(key);
    freed.leaving.Add(key, rows[row]);
    freed.Free(row);
  }
};

}  // namespace

RowScore::RowScore(const EvictionPolicy& policy, const TableSchema& schema, const RowLayout& layout,
                   const Expiry& expires)
    : dim(schema.dim), dtype(schema.value_dtype), expiry(expires) {
  if (policy.order == EvictionPolicy::Order::kNorm) return;
  meta_at = layout.meta_offset + layout.meta_field[static_cast<int>(policy.score_field())];
}

DYNEMB_HOST_DEVICE int64_t RowScore::operator()(const char* row) const {
  if (expiry.HasExpired(row)) return INT64_MIN;
  if (meta_at >= 0) {
    // Of a row that has not expired, whatever a caller has given.
    const int64_t score = ReadInt64(row + meta_at);
    return score == INT64_MIN ? INT64_MIN + 1 : score;
  }
  double square = 0;
  switch (dtype) {
    case DType::kFloat64:
      square = SquaredNorm<double>(dim, row);
      break;
    case DType::kFloat32:
      square = SquaredNorm<float>(dim, row);
      break;
    case DType::kFloat16:
      square = SquaredNorm<Float16>(dim, row);
      break;
    case DType::kBFloat16:
      square = SquaredNorm<BFloat16>(dim, row);
      break;
    case DType::kInt8:
      square = SquaredNorm<int8_t>(dim, row);
      break;
    case DType::kInt32:
      square = SquaredNorm<int32_t>(dim, row);
      break;
    case DType::kInt64:
      square = SquaredNorm<int64_t>(dim, row);
      break;
  }
  return NormScore(square);
}

Status CandidateRows::Collect(const Context& context, const Index& index, const RowSlabs& rows,
                              const RowScore& score, uint64_t first, uint64_t last,
                              int64_t expected, int64_t* count) {
  *count = expected + expected / 8 + 1024;
  int64_t temp_bytes;
  for (int64_t room = 0; *count > room;) {
    room = *count;
    DYNEMB_RETURN_IF_ERROR(SortTempBytes(context, room, &temp_bytes));
    DYNEMB_RETURN_IF_ERROR(scratch_.Begin(
        context, 4 * Scratch::Bytes<uint64_t>(room) + 3 * Scratch::Bytes<uint32_t>(room) +
                     Scratch::Bytes<int64_t>(1) + Scratch::Bytes<char>(temp_bytes)));
    int64_t* const there = scratch_.Take<int64_t>(1);
    uint64_t* const ties = scratch_.Take<uint64_t>(room);
    uint64_t* const scores = scratch_.Take<uint64_t>(room);
    uint32_t* const numbers = scratch_.Take<uint32_t>(room);
    const CollectCandidates collect = {rows, score, room, ties, scores, numbers, there};
    DYNEMB_RETURN_IF_ERROR(FillBytes(context, there, 0, sizeof(*there)));
    DYNEMB_RETURN_IF_ERROR(
        ForEachInRange(context, index, first, last < first ? ~uint64_t{0} : last, collect));
    if (last < first) DYNEMB_RETURN_IF_ERROR(ForEachInRange(context, index, 0, last, collect));
    DYNEMB_RETURN_IF_ERROR(CopyAny(context, count, there, sizeof(*count)));
    DYNEMB_RETURN_IF_ERROR(Wait(context));
    if (*count > room) continue;
    if (*count == 0) return {};
    ties_ = scratch_.Take<uint64_t>(room);
    uint64_t* const by_tie = scratch_.Take<uint64_t>(room);
    uint32_t* const sorted = scratch_.Take<uint32_t>(room);
    order_ = scratch_.Take<uint32_t>(room);
    char* const temp = scratch_.Take<char>(temp_bytes);
    DYNEMB_RETURN_IF_ERROR(
        SortPairs(context, *count, 64, Pairs64{ties, numbers, ties_, sorted}, temp, temp_bytes));
    DYNEMB_RETURN_IF_ERROR(ForEach(context, *count, ScoresByTie{scores, sorted, by_tie, numbers}));
    return SortPairs(context, *count, 64, Pairs64{by_tie, numbers, ties, order_}, temp, temp_bytes);
  }
  return {};
}

Status CandidateRows::Erase(const Context& context, const Index& index, const RowSlabs& rows,
                            int64_t n, const FreedRows& freed) {
  return ForEach(context, n, EraseCandidates{index, rows, ties_, order_, freed});
}

}  // namespace dynemb

#include <string_view>
#include <type_traits>
#include <vector>

#include "cc/core/optimizer/rule.h"
#include "cc/gpu/table/apply_rows.h"

namespace dynemb {
namespace {

// Long groups are added up in pieces, and these in larger ones: a piece of level k is 32^k places
// from a multiple of that, all of one group. Level 0 are the gradients themselves.
constexpr int kRadixBits = 5, kLevels = 4;
DYNEMB_HOST_DEVICE constexpr int64_t PlacesOf(int level) {
  return int64_t{1} << (kRadixBits * level);
}

// The gradients of a batch, and the sums of its pieces, which are made before: that of the piece of
// level k that begins at a place is in row place / PlacesOf(k) of pieces[k]; other rows of it hold
// anything.
template <typename T>
struct Gradients {
  static constexpr int kAtOnce = 2;

  ConstRows rows;
  const double* scales;  // or null
  int64_t dim;
  T* pieces[kLevels];

  DYNEMB_HOST_DEVICE static bool IsPiece(const GroupedBatch& batch, int64_t place, int level) {
    return (place & (PlacesOf(level) - 1)) == 0 &&
           batch.IsSameGroup(place, place + PlacesOf(level) - 1);
  }
  // Adds the pieces of a level from `place` to `end`, as far as they are of the group of `place`;
  // at most kAtOnce, which are waited for together. Returns how many.
  template <bool kOfGradients>
  DYNEMB_HOST_DEVICE int AddSome(const GroupedBatch& batch, int level, int64_t place, int64_t end,
                                 int64_t block, Block<T>* sum) const {
    Block<T> numbers[kAtOnce] = {};  // also those beyond the last column
    T scale[kAtOnce] = {};
    int count = 0;
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int64_t at = place + i * PlacesOf(level);
      if (at >= end || !batch.IsSameGroup(place, at + PlacesOf(level) - 1)) continue;
      const int64_t position = kOfGradients ? batch.position(at) : 0;
      const T* const row = kOfGradients ? reinterpret_cast<const T*>(rows[position])
                                        : pieces[level] + (at >> (kRadixBits * level)) * dim;
      LoadBlock(row, block, dim, IsAligned(row), &numbers[i]);
      scale[i] = kOfGradients && scales != nullptr ? static_cast<T>(scales[position]) : T(1);
      ++count;
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (i >= count) continue;
      for (int c = 0; c < kBlock; ++c) {
        sum->number[c] = sum->number[c] + scale[i] * numbers[i].number[c];
      }
    }
    return count;
  }
  // The sum of a group, which for one gradient is the gradient.
  DYNEMB_HOST_DEVICE Block<T> Sum(const GroupedBatch& batch, const Head& head,
                                  int64_t block) const {
    Block<T> sum = {};
    if (head.alone && scales == nullptr) {
      const T* const row = reinterpret_cast<const T*>(rows[head.position]);
      LoadBlock(row, block, dim, IsAligned(row), &sum);
      return sum;
    }
    const int64_t after = head.place + kAtOnce;
    AddSome<true>(batch, 0, head.place, after, block, &sum);
    return batch.IsSameGroup(head.place, after) ? AddRest(batch, after, block, sum) : sum;
  }
  // Adds the rest of a group from `place` on. Apart, so that it is not in every rule's kernel.
  DYNEMB_NOINLINE DYNEMB_HOST_DEVICE Block<T> AddRest(const GroupedBatch& batch, int64_t place,
                                                      int64_t block, Block<T> sum) const {
    const int64_t begin = place;
    do {
      // The largest piece that begins here; those that follow it up to where a larger one may
      // begin.
      int level = 0;
      while (level + 1 < kLevels && IsPiece(batch, place, level + 1)) ++level;
      const int64_t end = (place | (PlacesOf(level + 1) - 1)) + 1;
      place += level == 0 ? AddSome<true>(batch, 0, place, end, block, &sum)
                          : AddSome<false>(batch, level, place, end, block, &sum) * PlacesOf(level);
    } while (batch.IsSameGroup(begin, place));
    return sum;
  }
};

// Makes the sums of the pieces of a level, of those of the level below.
template <typename T>
struct SumPieces {
  GroupedBatch batch;
  Gradients<T> gradients;
  int level;

  DYNEMB_HOST_DEVICE void operator()(const Tile& tile, int64_t piece) const {
    const int64_t place = piece * PlacesOf(level), end = place + PlacesOf(level);
    if (!batch.IsEntry(place) || !gradients.IsPiece(batch, place, level)) return;
    T* const to = gradients.pieces[level] + piece * gradients.dim;
    for (int64_t block = tile.lane; block * kBlock < gradients.dim; block += tile.width) {
      Block<T> sum = {};
      for (int64_t at = place; at < end;) {
        at += level == 1
                  ? gradients.template AddSome<true>(batch, 0, at, end, block, &sum)
                  : gradients.template AddSome<false>(batch, level - 1, at, end, block, &sum) *
                        PlacesOf(level - 1);
      }
      StoreBlock(sum, block, gradients.dim, IsAligned(to), to);
    }
  }
};

template <typename Rule, typename V>
struct UpdateHead {
  using T = ComputeType<V>;
  static constexpr int kRowSlots = RowSlotCount<Rule>::value;
  static constexpr int kColumnSlots = Rule::kSlotCount - kRowSlots;

  GroupedBatch batch;
  Gradients<T> gradients;
  int64_t dim, slots_offset;
  RowStamp stamp;
  InitialValues initial;
  T initial_slots[Rule::kSlotCount + 1];  // no array is empty
  typename Rule::template Step<T> step;
  T decay;

  // A block of a row: its values, and the slots of each of its columns.
  struct Columns {
    Block<V> values;
    Block<T> slot[kColumnSlots + 1];
  };

  DYNEMB_HOST_DEVICE void operator()(const Tile& tile, const Head& head) const {
    if constexpr (kRowSlots == 0) {
      UpdateColumns(tile, head, step, nullptr, nullptr);
    } else {
      T* const slots = reinterpret_cast<T*>(head.row + slots_offset) + kColumnSlots * dim;
      // All that the lane reads of its first block, and of the row, is asked for before anything is
      // waited for.
      T row_slots[kRowSlots];
      for (int k = 0; k < kRowSlots; ++k) {
        row_slots[k] = head.is_new ? initial_slots[kColumnSlots + k] : slots[k];
      }
      Columns columns = {};
      Block<T> gradient = {};
      if (tile.lane * kBlock < dim) {
        columns = Load(head, tile.lane);
        gradient = gradients.Sum(batch, head, tile.lane);
      }
      const T mean_square = SumOfSquares(tile, head, gradient) / static_cast<T>(dim);
      tile.Sync();  // all have read
      const auto of_row = Rule::RowUpdate(step, mean_square, row_slots);
      for (int k = 0; tile.lane == 0 && k < kRowSlots; ++k) slots[k] = row_slots[k];
      UpdateColumns(tile, head, of_row, &columns, &gradient);
    }
    if (tile.lane == 0) stamp.Write(head.row, head.is_new, 1, head.position);
  }

  // What the row has in a block, or begins with.
  DYNEMB_HOST_DEVICE Columns Load(const Head& head, int64_t block) const {
    const T* const slots = reinterpret_cast<const T*>(head.row + slots_offset);
    const bool aligned = dim % kBlock == 0 && IsAligned(slots);
    Columns columns;
    if (head.is_new) {
      columns.values = initial.template Values<V>(batch.entries.keys[head.position], block);
      for (int k = 0; k < kColumnSlots; ++k) {
        for (T& number : columns.slot[k].number) number = initial_slots[k];
      }
      return columns;
    }
    LoadBlock(reinterpret_cast<const V*>(head.row), block, dim, aligned, &columns.values);
    for (int k = 0; k < kColumnSlots; ++k) {
      LoadBlock(slots + k * dim, block, dim, aligned, &columns.slot[k]);
    }
    return columns;
  }

  // `first`, `first_gradient`: of the lane's first block, if they are known.
  template <typename StepOrRow>
  DYNEMB_HOST_DEVICE void UpdateColumns(const Tile& tile, const Head& head, const StepOrRow& of,
                                        const Columns* first,
                                        const Block<T>* first_gradient) const {
    V* const value = reinterpret_cast<V*>(head.row);
    T* const slots = reinterpret_cast<T*>(head.row + slots_offset);
    const bool aligned = dim % kBlock == 0 && IsAligned(slots);
    for (int64_t block = tile.lane; block * kBlock < dim; block += tile.width) {
      const bool is_known = first != nullptr && block == tile.lane;
      Columns columns = is_known ? *first : Load(head, block);
      const Block<T> gradient = is_known ? *first_gradient : gradients.Sum(batch, head, block);
      for (int i = 0; i < kBlock; ++i) {
        T weight = static_cast<T>(columns.values.number[i]);
        T of_column[kColumnSlots + 1];
        for (int k = 0; k < kColumnSlots; ++k) of_column[k] = columns.slot[k].number[i];
        UpdateColumn<Rule>(of, decay, gradient.number[i], &weight, of_column);
        for (int k = 0; k < kColumnSlots; ++k) columns.slot[k].number[i] = of_column[k];
        columns.values.number[i] = static_cast<V>(weight);
      }
      StoreBlock(columns.values, block, dim, aligned, value);
      for (int k = 0; k < kColumnSlots; ++k) {
        StoreBlock(columns.slot[k], block, dim, aligned, slots + k * dim);
      }
    }
  }

  // As the host's, of the gradient's columns. `gradient`: the lane's first block.
  DYNEMB_HOST_DEVICE T SumOfSquares(const Tile& tile, const Head& head, Block<T> gradient) const {
    static_assert(kSquareParts == 32 * kBlock, "a part for each number of a block of each lane");
    if (tile.width == 1) return SumOfSquaresAlone(head);
    T parts[kBlock] = {};
    for (int64_t block = tile.lane; block * kBlock < dim; block += tile.width) {
      if (block != tile.lane) gradient = gradients.Sum(batch, head, block);
      for (int64_t i = 0; i < kBlock && block * kBlock + i < dim; ++i) {
        parts[i] += gradient.number[i] * gradient.number[i];
      }
    }
    T sum = LaneOfSquares(parts);
    for (int width = tile.width / 2; width > 0; width /= 2) sum += tile.FromXor(sum, width);
    return sum;
  }
  // By one lane, which has all columns.
  DYNEMB_NOINLINE DYNEMB_HOST_DEVICE T SumOfSquaresAlone(const Head& head) const {
    T parts[kSquareParts] = {};
    for (int64_t block = 0; block * kBlock < dim; ++block) {
      const Block<T> gradient = gradients.Sum(batch, head, block);
      for (int64_t i = 0; i < kBlock && block * kBlock + i < dim; ++i) {
        parts[(block * kBlock + i) % kSquareParts] += gradient.number[i] * gradient.number[i];
      }
    }
    for (int64_t lane = 0; lane < kSquareLanes; ++lane) {
      parts[lane] = LaneOfSquares(parts + 4 * lane);
    }
    for (int64_t width = kSquareLanes / 2; width > 0; width /= 2) {
      for (int64_t lane = 0; lane < width; ++lane) parts[lane] += parts[lane + width];
    }
    return parts[0];
  }
};

// Before a rule that catches up: the catch-up of the rows that were there.
template <typename V>
struct CatchUpHead {
  using T = ComputeType<V>;

  CatchUp catch_up;
  double step;
  int64_t dim, slots_offset;
  int column_slots;

  DYNEMB_HOST_DEVICE void operator()(const Tile& tile, const Head& head) const {
    T* const slots = reinterpret_cast<T*>(head.row + slots_offset);
    T* const last_step = slots + column_slots * dim;
    const double skipped = head.is_new ? 0 : SkippedSteps(step, last_step);
    tile.Sync();  // all have read
    if (tile.lane == 0) LastStep::Set(step, last_step);
    if (skipped == 0) return;
    CatchUpColumns(catch_up, skipped, tile.lane, tile.width, dim, column_slots,
                   reinterpret_cast<V*>(head.row), slots);
  }
};

// WorkOnHeads of all calls, each with its own of `work`.
template <typename Work>
Status WorkOnAll(const std::vector<ApplyCall>& calls, const std::vector<Work>& work, int width,
                 Launches* launches) {
  std::vector<WorkOnHeads<Work>> bodies;
  std::vector<int64_t> warps;
  for (size_t t = 0; t < calls.size(); ++t) {
    bodies.push_back({calls[t].batch, calls[t].rows, calls[t].marks, width, work[t]});
    warps.push_back(WarpsFor(launches->context(), calls[t].batch.size));
  }
  return launches->ForTiles<kWarp>(bodies, warps);
}

template <typename V>
Status CatchUpRows(const TableSchema& schema, std::string_view rule,
                   const std::vector<ApplyCall>& calls, Launches* launches) {
  std::vector<CatchUpHead<V>> work;
  for (const ApplyCall& call : calls) {
    const Span<const double> hyper = call.update.hyper;
    work.push_back({{}, hyper.data[Hyper::kStep], schema.dim, call.layout.slots_offset, 0});
    DYNEMB_RETURN_IF_ERROR(
        GetCatchUp(rule, hyper, &work.back().catch_up, &work.back().column_slots));
  }
  return WorkOnAll(calls, work, TileWidth(schema.dim), launches);
}

// The gradients of each call, the pieces of whose long groups are summed first.
template <typename T>
Status PrepareGradients(const std::vector<ApplyCall>& calls, int64_t dim, int width,
                        Launches* launches, Scratch* scratch,
                        std::vector<Gradients<T>>* gradients) {
  for (const ApplyCall& call : calls) {
    gradients->push_back({call.gradients, call.update.scales.data_or_null(), dim, {}});
  }
  for (int level = 1; level < kLevels; ++level) {
    std::vector<SumPieces<T>> bodies;
    std::vector<int64_t> pieces;
    for (size_t t = 0; t < calls.size(); ++t) {
      pieces.push_back(calls[t].batch.size / PlacesOf(level));
      (*gradients)[t].pieces[level] = scratch->Take<T>(pieces[t] * dim);
      bodies.push_back({calls[t].batch, (*gradients)[t], level});
    }
    DYNEMB_RETURN_IF_ERROR(launches->ForTiles<0>(bodies, pieces, width));
  }
  return {};
}

template <typename Rule, typename V>
Status Apply(const TableSchema& schema, const std::vector<ApplyCall>& calls, Launches* launches,
             Scratch* scratch) {
  using T = ComputeType<V>;
  const int64_t dim = schema.dim;
  const int width = TileWidth((dim + kBlock - 1) / kBlock);
  std::vector<Gradients<T>> gradients;
  DYNEMB_RETURN_IF_ERROR(PrepareGradients<T>(calls, dim, width, launches, scratch, &gradients));
  std::vector<UpdateHead<Rule, V>> updates;
  for (size_t t = 0; t < calls.size(); ++t) {
    const double* const hyper = calls[t].update.hyper.data;
    updates.push_back({calls[t].batch,
                       gradients[t],
                       dim,
                       calls[t].layout.slots_offset,
                       calls[t].stamp,
                       calls[t].initial,
                       {},
                       typename Rule::template Step<T>(hyper),
                       static_cast<T>(hyper[Hyper::kWeightDecay] * hyper[Hyper::kLearningRate])});
    for (int k = 0; k < Rule::kSlotCount; ++k) {
      updates[t].initial_slots[k] = static_cast<T>(schema.rule.slots[k].initial);
    }
  }
  return WorkOnAll(calls, updates, width, launches);
}

}  // namespace

int64_t ApplyScratchBytes(const TableSchema& schema, int64_t n) {
  const int64_t row_bytes = schema.dim * SizeOf(GradientDType(schema.value_dtype));
  int64_t bytes = 0;
  for (int level = 1; level < kLevels; ++level) {
    bytes += Scratch::Bytes<char>(n / PlacesOf(level) * row_bytes);
  }
  return bytes;
}

Status ApplyRows(const TableSchema& schema, const std::vector<ApplyCall>& calls, Launches* launches,
                 Scratch* scratch) {
  Status status = InvalidArgument("no rule ", schema.rule.name);
  const RuleName name(schema.rule.name);
  VisitDType(schema.value_dtype, [&](auto value_tag) {
    using V = typename decltype(value_tag)::type;
    if constexpr (!std::is_integral_v<V>) {
      if (name.catches_up) {
        status = CatchUpRows<V>(schema, name.rule, calls, launches);
        if (!status.ok()) return;
      }
      VisitRule(AllRules(), name.rule, [&](auto rule_tag) {
        using Rule = typename decltype(rule_tag)::type;
        status = Apply<Rule, V>(schema, calls, launches, scratch);
      });
    }
  });
  return status;
}

}  // namespace dynemb

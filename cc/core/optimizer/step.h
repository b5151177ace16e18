// What every optimizer rule shares: how a rule is written, and the loop that runs one over a row.
//
// A rule is a struct of pure functions, one file per rule:
//
//   struct Adagrad {
//     // Its name on every floor and in files.
//     static constexpr const char* kName = "adagrad";
//     static constexpr SlotDecl kSlots[] = {{"accumulator", SlotWidth::kColumn, true}};
//     // After the common ones.
//     static constexpr const char* kHyper[] = {"epsilon"};
//     template <typename T> struct Step {                 // numbers of one call, derived once
//       explicit Step(const double* h);                   // h[0] learning_rate, ... see Hyper
//     };
//     template <typename T>
//     static void Update(const Step<T>& step, T gradient, T* weight, T* slot);
//   };
//
// Update is given one column: the summed gradient, the weight and its slots, and changes weight and
// slots in place. T is double for float64 tables and float for all others; 16-bit values are
// widened before and rounded after. A rule with state that is one number per row declares slots of
// SlotWidth::kRow, behind those of columns, kRowSlotCount of them, and a function
// RowUpdate(step, mean_of_squared_gradients, row_slots), which runs once before the columns; Update
// is then given what it returns instead of the step.
//
// The formulas are those of Keras 3 (keras.optimizers), whose constants and epsilons differ from
// some papers; where one differs from its paper the rule says so. Rows that are not in the batch
// are not touched: momentum does not move them and moments do not decay ("lazy"). SmartDecayAdam,
// and rules that catch up (catch_up.h), make up for it when they are back.
#ifndef TF_DYNEMB_CC_CORE_OPTIMIZER_STEP_H_
#define TF_DYNEMB_CC_CORE_OPTIMIZER_STEP_H_

#include <cmath>
#include <cstdint>
#include <type_traits>

#include "cc/core/base/dtype.h"
#include "cc/core/base/macros.h"
#include "cc/core/optimizer/optimizer_spec.h"

namespace dynemb {

struct SlotDecl {
  const char* name;
  SlotWidth width;
  bool initial_is_given;  // starts at the rule's `slot_initial` instead of 0
};

// The hyper-parameters that every rule has, by their place in the vector. A rule's own follow.
struct Hyper {
  static constexpr int kLearningRate = 0;
  static constexpr int kStep = 1;  // number of this update, from 1 (Keras: iterations + 1)
  static constexpr int kWeightDecay = 2;
  static constexpr int kOwn = 3;
};
inline constexpr const char* kCommonHyper[] = {"learning_rate", "step", "weight_decay"};

// How many slots of a rule are one number per row.
template <typename Rule, typename = void>
struct RowSlotCount : std::integral_constant<int, 0> {};
template <typename Rule>
struct RowSlotCount<Rule, std::void_t<decltype(Rule::kRowSlotCount)>>
    : std::integral_constant<int, Rule::kRowSlotCount> {};

// One weight and its slots.
template <typename Rule, typename T, typename Step>
DYNEMB_HOST_DEVICE DYNEMB_ALWAYS_INLINE void UpdateColumn(const Step& step, T decay, T gradient,
                                                          T* weight, T* slot) {
  *weight -= *weight * decay;
  Rule::Update(step, gradient, weight, slot);
}

// The sum of the squares of a row's numbers is made in parts, so that vector units, and lanes of a
// GPU with four columns each, make the same one to the last bit: column c is added to part c mod
// kSquareParts, and then
//
//   lane l = (part 4l + part 4l+1) + (part 4l+2 + part 4l+3)
//   lane l += lane l+w, for l < w, with w = 16, 8, 4, 2, 1
//
// of which lanes beyond the row's columns, with sums of 0, can be left out.
inline constexpr int64_t kSquareLanes = 32, kSquareParts = 4 * kSquareLanes;
template <typename T>
DYNEMB_HOST_DEVICE inline T LaneOfSquares(const T* parts) {
  return (parts[0] + parts[1]) + (parts[2] + parts[3]);
}
template <typename T>
DYNEMB_HOST_DEVICE DYNEMB_ALWAYS_INLINE T SumOfSquares(int64_t dim, const T* __restrict__ numbers) {
  T parts[kSquareParts] = {};
  for (int64_t first = 0; first < dim; first += kSquareParts) {
    const int64_t columns = dim - first < kSquareParts ? dim - first : kSquareParts;
    for (int64_t c = 0; c < columns; ++c) parts[c] += numbers[first + c] * numbers[first + c];
  }
  int64_t lanes = 1;
  while (lanes < kSquareLanes && 4 * lanes < dim) lanes *= 2;
  T lane[kSquareLanes];
  for (int64_t l = 0; l < lanes; ++l) lane[l] = LaneOfSquares(parts + 4 * l);
  for (int64_t width = lanes / 2; width > 0; width /= 2) {
    for (int64_t l = 0; l < width; ++l) lane[l] += lane[l + width];
  }
  return lane[0];
}

namespace optimizer_internal {

// The weights and their slots of a row, by what Update takes first: `step`, of the call or the row.
template <typename Rule, typename V, typename Step>
DYNEMB_HOST_DEVICE DYNEMB_ALWAYS_INLINE void UpdateColumns(
    const Step& step, ComputeType<V> decay, int64_t dim, V* __restrict__ value,
    ComputeType<V>* __restrict__ slots, const ComputeType<V>* __restrict__ gradient) {
  using T = ComputeType<V>;
  constexpr int kSlots = Rule::kSlotCount - RowSlotCount<Rule>::value;
#pragma GCC ivdep
  for (int64_t c = 0; c < dim; ++c) {
    T weight = static_cast<T>(value[c]);
    T slot[kSlots + 1];  // no array is empty
    for (int k = 0; k < kSlots; ++k) slot[k] = slots[k * dim + c];
    UpdateColumn<Rule>(step, decay, gradient[c], &weight, slot);
    for (int k = 0; k < kSlots; ++k) slots[k * dim + c] = slot[k];
    value[c] = static_cast<V>(weight);
  }
}

}  // namespace optimizer_internal

// Updates one row. `value` is `dim` numbers of type V, `gradient` as many of its compute type,
// `slots` the slot variables one after the other. First the decoupled weight decay w -= w *
// weight_decay * learning_rate, as Keras does for all optimizers (Loshchilov and Hutter, "Decoupled
// Weight Decay Regularization", 2019).
template <typename Rule, typename V>
DYNEMB_HOST_DEVICE DYNEMB_ALWAYS_INLINE void UpdateRow(
    const typename Rule::template Step<ComputeType<V>>& step, ComputeType<V> decay, int64_t dim,
    V* __restrict__ value, ComputeType<V>* __restrict__ slots,
    const ComputeType<V>* __restrict__ gradient) {
  using T = ComputeType<V>;
  constexpr int kRowSlots = RowSlotCount<Rule>::value;
  if constexpr (kRowSlots == 0) {
    optimizer_internal::UpdateColumns<Rule, V>(step, decay, dim, value, slots, gradient);
  } else {
    const auto of_row = Rule::RowUpdate(step, SumOfSquares(dim, gradient) / static_cast<T>(dim),
                                        slots + (Rule::kSlotCount - kRowSlots) * dim);
    optimizer_internal::UpdateColumns<Rule, V>(of_row, decay, dim, value, slots, gradient);
  }
}

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_CORE_OPTIMIZER_STEP_H_

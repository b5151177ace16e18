// What every optimizer rule shares: how a rule is written, and the loop that runs one over a row.
//
// A rule is a struct of pure functions, one file per rule:
//
//   struct Adagrad {
//     static constexpr const char* kName = "adagrad";            // its name in every floor and
//     file static constexpr SlotDecl kSlots[] = {{"accumulator", SlotWidth::kColumn, true}}; static
//     constexpr const char* kHyper[] = {"epsilon"};       // after the common ones template
//     <typename T> struct Step {                        // numbers of one call, derived once
//       explicit Step(const double* h);                          // h[0] learning_rate, ... see
//       Hyper
//     };
//     template <typename T>
//     static void Update(const Step<T>& step, T gradient, T* weight, T* slot);
//   };
//
// Update is given one column: the summed gradient, the weight and its slots, and changes weight and
// slots in place. T is double for float64 tables and float for all others; 16-bit values are
// widened before and rounded after. A rule with state that is one number per row declares
// SlotWidth::kRow and a function RowUpdate(step, mean_of_squared_gradients, slot) that runs once
// before the columns.
//
// The formulas are those of Keras 3 (keras.optimizers), whose constants and epsilons differ from
// some papers; where one differs from its paper the rule says so. Rows that are not in the batch
// are not touched: momentum does not move them and moments do not decay ("lazy").
#ifndef TF_DYNEMB_CC_CORE_OPTIMIZER_STEP_H_
#define TF_DYNEMB_CC_CORE_OPTIMIZER_STEP_H_

#include <cmath>
#include <cstdint>

#include "cc/core/base/dtype.h"
#include "cc/core/base/macros.h"

namespace dynemb {

enum class SlotWidth : uint8_t { kColumn, kRow };  // one number per column, or one per row

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

namespace optimizer_internal {

template <typename Rule, typename = void>
struct HasRowUpdate : std::false_type {};
template <typename Rule>
struct HasRowUpdate<Rule, std::void_t<decltype(Rule::kHasRowUpdate)>> : std::true_type {};

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
  constexpr int kSlots = Rule::kSlotCount;
  if constexpr (optimizer_internal::HasRowUpdate<Rule>::value) {
    T sum = 0;
    for (int64_t c = 0; c < dim; ++c) {
      sum += gradient[c] * gradient[c];
    }
    Rule::RowUpdate(step, sum / static_cast<T>(dim), slots);
  }
#pragma GCC ivdep
  for (int64_t c = 0; c < dim; ++c) {
    T weight = static_cast<T>(value[c]);
    weight -= weight * decay;
    if constexpr (optimizer_internal::HasRowUpdate<Rule>::value || kSlots == 0) {
      Rule::Update(step, gradient[c], &weight, slots);
    } else {
      T slot[kSlots];
      for (int k = 0; k < kSlots; ++k) slot[k] = slots[k * dim + c];
      Rule::Update(step, gradient[c], &weight, slot);
      for (int k = 0; k < kSlots; ++k) slots[k * dim + c] = slot[k];
    }
    value[c] = static_cast<V>(weight);
  }
}

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_CORE_OPTIMIZER_STEP_H_

// CatchUp: what the steps in which a row was not in the batch would have done to it, had it had a
// gradient of zero in each of them, as every row has in a dense update. A rule whose name ends in
// "_catch_up" is the rule before that ending; each update of a row begins with the row's catch-up.
//
// A step without a gradient multiplies each slot of a column by a number, and moves the weight by
// its momentum. Of k such steps that is, with b = keep[momentum],
//
//   weight -= rate * (b + b^2 + ... + b^k) * slot[momentum] / divisor;   slot[i] *= keep[i]^k
//
// This is exactly what SGD with momentum, RMSprop, Adadelta and Lion do in k steps of one learning
// rate. For Adam and Adamax two things are approximated: the skipped steps are taken with the bias
// correction of this step, and the divisor is the one from before them, which in k steps would have
// shrunk by beta_2^(k/2) or beta_2^k (not AMSGrad's). The weight decay of skipped steps is left
// out: it acts once per update, as everywhere.
//
// A rule that can catch up has a function `static CatchUp CatchUpOf(const double* hyper)`. A rule
// that does nothing with a gradient of zero needs none.
#ifndef TF_DYNEMB_CC_CORE_OPTIMIZER_CATCH_UP_H_
#define TF_DYNEMB_CC_CORE_OPTIMIZER_CATCH_UP_H_

#include <cmath>
#include <cstdint>
#include <type_traits>

#include "cc/core/base/dtype.h"
#include "cc/core/base/macros.h"
#include "cc/core/optimizer/step.h"

namespace dynemb {

struct CatchUp {
  enum class Divisor : uint8_t {
    kNone,
    kRoot,       // sqrt(slot[divisor_slot]) + epsilon
    kSlot,       // slot[divisor_slot] + epsilon
    kMagnitude,  // |slot[momentum]|: only its sign counts, in each of the k steps alike
  };
  static constexpr int kMostSlots = 3;

  double keep[kMostSlots] = {1, 1, 1};
  int momentum = -1;  // the slot; -1: the weight does not move
  double rate = 0;
  Divisor divisor = Divisor::kNone;
  int divisor_slot = 0;
  double epsilon = 0;
};

// The step of a row's last update, in two slots of the row, as high * 2^24 + low: a float holds the
// integers up to 2^24. 0 if there was none.
struct LastStep {
  static constexpr int kSlotCount = 2;
  static constexpr SlotDecl kSlots[] = {{"last_step_high", SlotWidth::kRow, false},
                                        {"last_step_low", SlotWidth::kRow, false}};
  static constexpr double kLow = 16777216;  // 2^24

  template <typename T>
  DYNEMB_HOST_DEVICE static double Get(const T* slots) {
    return static_cast<double>(slots[0]) * kLow + static_cast<double>(slots[1]);
  }
  template <typename T>
  DYNEMB_HOST_DEVICE static void Set(double step, T* slots) {
    const double high = std::floor(step / kLow);
    slots[0] = static_cast<T>(high);
    slots[1] = static_cast<T>(step - high * kLow);
  }
};

// b + b^2 + ... + b^n.
DYNEMB_HOST_DEVICE inline double SumOfPowers(double b, double n) {
  return b == 1 ? n : b * (1 - std::pow(b, n)) / (1 - b);
}

// How many steps a row has to catch up with before step number `step`: none if it is new, or if the
// optimizer has begun to count anew.
template <typename T>
DYNEMB_HOST_DEVICE double SkippedSteps(double step, const T* last_step) {
  const double last = LastStep::Get(last_step);
  return last > 0 && step - last > 1 ? step - last - 1 : 0;
}

namespace optimizer_internal {

template <CatchUp::Divisor kDivisor, typename V, typename T = ComputeType<V>>
DYNEMB_HOST_DEVICE DYNEMB_ALWAYS_INLINE void MoveWeights(T way, T epsilon, int64_t first,
                                                         int64_t stride, int64_t dim,
                                                         V* __restrict__ value,
                                                         const T* __restrict__ momentum,
                                                         const T* __restrict__ divisor) {
  using Divisor = CatchUp::Divisor;
  for (int64_t c = first; c < dim; c += stride) {
    const T m = momentum[c];
    T move = m;
    if (kDivisor == Divisor::kRoot) move = m / (std::sqrt(divisor[c]) + epsilon);
    if (kDivisor == Divisor::kSlot) move = m / (divisor[c] + epsilon);
    // What is not a number shows, as everywhere.
    if (kDivisor == Divisor::kMagnitude) move = m != m ? m : static_cast<T>((m > 0) - (m < 0));
    value[c] = static_cast<V>(static_cast<T>(value[c]) - way * move);
  }
}

}  // namespace optimizer_internal

// Takes the columns first, first + stride, ... of a row through `steps` steps without a gradient.
// `slots`: column_slots numbers for each of dim columns, one slot after the other.
template <typename V>
DYNEMB_HOST_DEVICE DYNEMB_ALWAYS_INLINE void CatchUpColumns(const CatchUp& catch_up, double steps,
                                                            int64_t first, int64_t stride,
                                                            int64_t dim, int column_slots,
                                                            V* __restrict__ value,
                                                            ComputeType<V>* __restrict__ slots) {
  using T = ComputeType<V>;
  using Divisor = CatchUp::Divisor;
  using namespace optimizer_internal;
  if (catch_up.momentum >= 0) {
    const T* const momentum = slots + catch_up.momentum * dim;
    const T* const divisor = slots + catch_up.divisor_slot * dim;
    const double sum = catch_up.divisor == Divisor::kMagnitude
                           ? steps
                           : SumOfPowers(catch_up.keep[catch_up.momentum], steps);
    const T way = static_cast<T>(catch_up.rate * sum), epsilon = static_cast<T>(catch_up.epsilon);
    switch (catch_up.divisor) {
      case Divisor::kNone:
        MoveWeights<Divisor::kNone>(way, epsilon, first, stride, dim, value, momentum, divisor);
        break;
      case Divisor::kRoot:
        MoveWeights<Divisor::kRoot>(way, epsilon, first, stride, dim, value, momentum, divisor);
        break;
      case Divisor::kSlot:
        MoveWeights<Divisor::kSlot>(way, epsilon, first, stride, dim, value, momentum, divisor);
        break;
      case Divisor::kMagnitude:
        MoveWeights<Divisor::kMagnitude>(way, epsilon, first, stride, dim, value, momentum,
                                         divisor);
        break;
    }
  }
  for (int k = 0; k < column_slots; ++k) {
    if (catch_up.keep[k] == 1) continue;
    const T keep = static_cast<T>(std::pow(catch_up.keep[k], steps));
    for (int64_t c = first; c < dim; c += stride) slots[k * dim + c] *= keep;
  }
}

// Whether a rule has CatchUpOf.
template <typename Rule, typename = void>
struct CanCatchUp : std::false_type {};
template <typename Rule>
struct CanCatchUp<Rule, std::void_t<decltype(Rule::CatchUpOf(nullptr))>> : std::true_type {};

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_CORE_OPTIMIZER_CATCH_UP_H_

// FTRL-Proximal (McMahan et al.: "Ad Click Prediction: a View from the Trenches", 2013), with the
// l2 shrinkage and the power of keras.optimizers.Ftrl, whose beta is added to l2 as beta / (2 *
// learning_rate).
#ifndef TF_DYNEMB_CC_CORE_OPTIMIZER_FTRL_H_
#define TF_DYNEMB_CC_CORE_OPTIMIZER_FTRL_H_

#include "cc/core/optimizer/step.h"

namespace dynemb {

struct Ftrl {
  static constexpr const char* kName = "ftrl";
  static constexpr int kSlotCount = 2;
  static constexpr SlotDecl kSlots[] = {{"accumulator", SlotWidth::kColumn, true},
                                        {"linear", SlotWidth::kColumn, false}};
  static constexpr int kHyperCount = 5;
  static constexpr const char* kHyper[] = {"learning_rate_power", "l1_regularization_strength",
                                           "l2_regularization_strength",
                                           "l2_shrinkage_regularization_strength", "beta"};
  template <typename T>
  struct Step {
    T learning_rate, minus_power, l1, two_l2, two_shrinkage;
    DYNEMB_HOST_DEVICE explicit Step(const double* h)
        : learning_rate(static_cast<T>(h[Hyper::kLearningRate])),
          minus_power(static_cast<T>(-h[Hyper::kOwn])),
          l1(static_cast<T>(h[Hyper::kOwn + 1])),
          two_l2(static_cast<T>(
              2 * (h[Hyper::kOwn + 2] + h[Hyper::kOwn + 4] / (2 * h[Hyper::kLearningRate])))),
          two_shrinkage(static_cast<T>(2 * h[Hyper::kOwn + 3])) {}
  };
  template <typename T>
  DYNEMB_HOST_DEVICE static T Power(T x, T exponent) {
    return exponent == static_cast<T>(0.5) ? std::sqrt(x) : std::pow(x, exponent);
  }
  template <typename T>
  DYNEMB_HOST_DEVICE static void Update(const Step<T>& step, T gradient, T* weight, T* slot) {
    const T shrunk = gradient + step.two_shrinkage * *weight;
    const T accumulator = slot[0] + gradient * gradient;
    const T power = Power(accumulator, step.minus_power);
    slot[1] += shrunk - (power - Power(slot[0], step.minus_power)) / step.learning_rate * *weight;
    const T quadratic = power / step.learning_rate + step.two_l2;
    const T below = slot[1] < -step.l1 ? -step.l1 : slot[1];
    const T clipped = below > step.l1 ? step.l1 : below;
    *weight = (clipped - slot[1]) / quadratic;
    slot[0] = accumulator;
  }
};

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_CORE_OPTIMIZER_FTRL_H_

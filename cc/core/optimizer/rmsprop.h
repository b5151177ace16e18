// RMSprop (Hinton, Srivastava, Swersky: "Neural Networks for Machine Learning", lecture 6e, 2012),
// plain, centered (Graves: "Generating Sequences With Recurrent Neural Networks", 2013) and with
// momentum, as keras.optimizers.RMSprop: epsilon is added under the root.
#ifndef TF_DYNEMB_CC_CORE_OPTIMIZER_RMSPROP_H_
#define TF_DYNEMB_CC_CORE_OPTIMIZER_RMSPROP_H_

#include "cc/core/optimizer/catch_up.h"
#include "cc/core/optimizer/step.h"

namespace dynemb {

template <bool kCentered, bool kMomentum>
struct RmsProp {
  static constexpr const char* kName =
      kCentered ? (kMomentum ? "rmsprop_centered_momentum" : "rmsprop_centered")
                : (kMomentum ? "rmsprop_momentum" : "rmsprop");
  static constexpr int kSlotCount = 1 + kMomentum + kCentered;
  static constexpr SlotDecl kSlots[] = {
      {"velocity", SlotWidth::kColumn, false},
      {kMomentum ? "momentum" : "average_gradient", SlotWidth::kColumn, false},
      {"average_gradient", SlotWidth::kColumn, false}};
  static constexpr int kHyperCount = 3;
  static constexpr const char* kHyper[] = {"rho", "momentum", "epsilon"};
  template <typename T>
  struct Step {
    T learning_rate, rho, one_minus_rho, momentum, epsilon;
    DYNEMB_HOST_DEVICE explicit Step(const double* h)
        : learning_rate(static_cast<T>(h[Hyper::kLearningRate])),
          rho(static_cast<T>(h[Hyper::kOwn])),
          one_minus_rho(static_cast<T>(1 - h[Hyper::kOwn])),
          momentum(static_cast<T>(h[Hyper::kOwn + 1])),
          epsilon(static_cast<T>(h[Hyper::kOwn + 2])) {}
  };
  template <typename T>
  DYNEMB_HOST_DEVICE static void Update(const Step<T>& step, T gradient, T* weight, T* slot) {
    slot[0] = step.rho * slot[0] + step.one_minus_rho * (gradient * gradient);
    T denominator = slot[0] + step.epsilon;
    if constexpr (kCentered) {
      T& average = slot[1 + kMomentum];
      average = step.rho * average + step.one_minus_rho * gradient;
      denominator = slot[0] - average * average + step.epsilon;
    }
    const T increment = step.learning_rate * gradient / std::sqrt(denominator);
    if constexpr (kMomentum) {
      slot[1] = step.momentum * slot[1] + increment;
      *weight -= slot[1];
    } else {
      *weight -= increment;
    }
  }
  static CatchUp CatchUpOf(const double* h) {
    CatchUp c;
    c.keep[0] = h[Hyper::kOwn];
    if (kCentered) c.keep[1 + kMomentum] = h[Hyper::kOwn];
    if (kMomentum) {
      c.momentum = 1;
      c.keep[1] = h[Hyper::kOwn + 1];
      c.rate = 1;
    }
    return c;
  }
};

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_CORE_OPTIMIZER_RMSPROP_H_

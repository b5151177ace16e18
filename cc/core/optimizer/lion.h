// Lion (Chen et al.: "Symbolic Discovery of Optimization Algorithms", 2023), as
// keras.optimizers.Lion.
#ifndef TF_DYNEMB_CC_CORE_OPTIMIZER_LION_H_
#define TF_DYNEMB_CC_CORE_OPTIMIZER_LION_H_

#include "cc/core/optimizer/catch_up.h"
#include "cc/core/optimizer/step.h"

namespace dynemb {

struct Lion {
  static constexpr const char* kName = "lion";
  static constexpr int kSlotCount = 1;
  static constexpr SlotDecl kSlots[] = {{"momentum", SlotWidth::kColumn, false}};
  static constexpr int kHyperCount = 2;
  static constexpr const char* kHyper[] = {"beta_1", "beta_2"};
  template <typename T>
  struct Step {
    T learning_rate, beta_1, one_minus_beta_1, beta_2, one_minus_beta_2;
    DYNEMB_HOST_DEVICE explicit Step(const double* h)
        : learning_rate(static_cast<T>(h[Hyper::kLearningRate])),
          beta_1(static_cast<T>(h[Hyper::kOwn])),
          one_minus_beta_1(static_cast<T>(1 - h[Hyper::kOwn])),
          beta_2(static_cast<T>(h[Hyper::kOwn + 1])),
          one_minus_beta_2(static_cast<T>(1 - h[Hyper::kOwn + 1])) {}
  };
  template <typename T>
  DYNEMB_HOST_DEVICE static void Update(const Step<T>& step, T gradient, T* weight, T* slot) {
    const T direction = slot[0] * step.beta_1 + gradient * step.one_minus_beta_1;
    T sign = static_cast<T>((direction > 0) - (direction < 0));
    if (direction != direction) sign = direction;  // what is not a number shows, as everywhere
    *weight -= step.learning_rate * sign;
    slot[0] = slot[0] * step.beta_2 + gradient * step.one_minus_beta_2;
  }
  static CatchUp CatchUpOf(const double* h) {
    CatchUp c;
    c.momentum = 0;
    c.keep[0] = h[Hyper::kOwn + 1];
    c.rate = h[Hyper::kLearningRate];
    c.divisor = CatchUp::Divisor::kMagnitude;
    return c;
  }
};

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_CORE_OPTIMIZER_LION_H_

// Adadelta (Zeiler: "ADADELTA: An Adaptive Learning Rate Method", 2012), as
// keras.optimizers.Adadelta, which multiplies the paper's step by a learning rate.
#ifndef TF_DYNEMB_CC_CORE_OPTIMIZER_ADADELTA_H_
#define TF_DYNEMB_CC_CORE_OPTIMIZER_ADADELTA_H_

#include "cc/core/optimizer/catch_up.h"
#include "cc/core/optimizer/step.h"

namespace dynemb {

struct Adadelta {
  static constexpr const char* kName = "adadelta";
  static constexpr int kSlotCount = 2;
  static constexpr SlotDecl kSlots[] = {{"accumulated_gradient", SlotWidth::kColumn, false},
                                        {"accumulated_delta", SlotWidth::kColumn, false}};
  static constexpr int kHyperCount = 2;
  static constexpr const char* kHyper[] = {"rho", "epsilon"};
  template <typename T>
  struct Step {
    T learning_rate, rho, one_minus_rho, epsilon;
    DYNEMB_HOST_DEVICE explicit Step(const double* h)
        : learning_rate(static_cast<T>(h[Hyper::kLearningRate])),
          rho(static_cast<T>(h[Hyper::kOwn])),
          one_minus_rho(static_cast<T>(1 - h[Hyper::kOwn])),
          epsilon(static_cast<T>(h[Hyper::kOwn + 1])) {}
  };
  template <typename T>
  DYNEMB_HOST_DEVICE static void Update(const Step<T>& step, T gradient, T* weight, T* slot) {
    slot[0] = step.rho * slot[0] + step.one_minus_rho * (gradient * gradient);
    const T delta =
        -(std::sqrt(slot[1] + step.epsilon) * gradient / std::sqrt(slot[0] + step.epsilon));
    slot[1] = step.rho * slot[1] + step.one_minus_rho * (delta * delta);
    *weight += step.learning_rate * delta;
  }
  static CatchUp CatchUpOf(const double* h) {
    CatchUp c;
    c.keep[0] = c.keep[1] = h[Hyper::kOwn];
    return c;
  }
};

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_CORE_OPTIMIZER_ADADELTA_H_

// Adam (Kingma and Ba: "Adam: A Method for Stochastic Optimization", 2015, with the efficient order
// of section 2: epsilon outside the bias correction) and AMSGrad (Reddi, Kale, Kumar: "On the
// Convergence of Adam and Beyond", 2018), as keras.optimizers.Adam; with weight decay it is
// keras.optimizers.AdamW. The bias correction uses the number of the step, not the number of the
// row's updates.
#ifndef TF_DYNEMB_CC_CORE_OPTIMIZER_ADAM_H_
#define TF_DYNEMB_CC_CORE_OPTIMIZER_ADAM_H_

#include "cc/core/optimizer/catch_up.h"
#include "cc/core/optimizer/step.h"

namespace dynemb {

template <bool kAmsgrad>
struct Adam {
  static constexpr const char* kName = kAmsgrad ? "adam_amsgrad" : "adam";
  static constexpr int kSlotCount = 2 + kAmsgrad;
  static constexpr SlotDecl kSlots[] = {{"momentum", SlotWidth::kColumn, false},
                                        {"velocity", SlotWidth::kColumn, false},
                                        {"velocity_hat", SlotWidth::kColumn, false}};
  static constexpr int kHyperCount = 3;
  static constexpr const char* kHyper[] = {"beta_1", "beta_2", "epsilon"};
  template <typename T>
  struct Step {
    T alpha, one_minus_beta_1, one_minus_beta_2, epsilon;
    DYNEMB_HOST_DEVICE explicit Step(const double* h)
        : alpha(static_cast<T>(h[Hyper::kLearningRate] *
                               std::sqrt(1 - std::pow(h[Hyper::kOwn + 1], h[Hyper::kStep])) /
                               (1 - std::pow(h[Hyper::kOwn], h[Hyper::kStep])))),
          one_minus_beta_1(static_cast<T>(1 - h[Hyper::kOwn])),
          one_minus_beta_2(static_cast<T>(1 - h[Hyper::kOwn + 1])),
          epsilon(static_cast<T>(h[Hyper::kOwn + 2])) {}
  };
  template <typename T>
  DYNEMB_HOST_DEVICE static void Update(const Step<T>& step, T gradient, T* weight, T* slot) {
    slot[0] += (gradient - slot[0]) * step.one_minus_beta_1;
    slot[1] += (gradient * gradient - slot[1]) * step.one_minus_beta_2;
    T velocity = slot[1];
    if constexpr (kAmsgrad) {
      slot[2] = slot[2] > velocity ? slot[2] : velocity;
      velocity = slot[2];
    }
    *weight -= slot[0] * step.alpha / (std::sqrt(velocity) + step.epsilon);
  }
  static CatchUp CatchUpOf(const double* h) {
    CatchUp c;
    c.momentum = 0;
    c.keep[0] = h[Hyper::kOwn];
    c.keep[1] = h[Hyper::kOwn + 1];
    c.rate = Step<double>(h).alpha;
    c.divisor = CatchUp::Divisor::kRoot;
    c.divisor_slot = kAmsgrad ? 2 : 1;
    c.epsilon = h[Hyper::kOwn + 2];
    return c;
  }
};

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_CORE_OPTIMIZER_ADAM_H_

// Adamax (Kingma and Ba: "Adam: A Method for Stochastic Optimization", 2015, section 7.1), as
// keras.optimizers.Adamax: epsilon is added to the norm.
#ifndef TF_DYNEMB_CC_CORE_OPTIMIZER_ADAMAX_H_
#define TF_DYNEMB_CC_CORE_OPTIMIZER_ADAMAX_H_

#include "cc/core/optimizer/catch_up.h"
#include "cc/core/optimizer/step.h"

namespace dynemb {

struct Adamax {
  static constexpr const char* kName = "adamax";
  static constexpr int kSlotCount = 2;
  static constexpr SlotDecl kSlots[] = {{"momentum", SlotWidth::kColumn, false},
                                        {"norm", SlotWidth::kColumn, false}};
  static constexpr int kHyperCount = 3;
  static constexpr const char* kHyper[] = {"beta_1", "beta_2", "epsilon"};
  template <typename T>
  struct Step {
    T alpha, one_minus_beta_1, beta_2, epsilon;
    DYNEMB_HOST_DEVICE explicit Step(const double* h)
        : alpha(static_cast<T>(h[Hyper::kLearningRate] /
                               (1 - std::pow(h[Hyper::kOwn], h[Hyper::kStep])))),
          one_minus_beta_1(static_cast<T>(1 - h[Hyper::kOwn])),
          beta_2(static_cast<T>(h[Hyper::kOwn + 1])),
          epsilon(static_cast<T>(h[Hyper::kOwn + 2])) {}
  };
  template <typename T>
  DYNEMB_HOST_DEVICE static void Update(const Step<T>& step, T gradient, T* weight, T* slot) {
    slot[0] += (gradient - slot[0]) * step.one_minus_beta_1;
    const T decayed = step.beta_2 * slot[1];
    const T magnitude = std::fabs(gradient);
    slot[1] = decayed > magnitude ? decayed : magnitude;
    *weight -= step.alpha * slot[0] / (slot[1] + step.epsilon);
  }
  static CatchUp CatchUpOf(const double* h) {
    CatchUp c;
    c.momentum = 0;
    c.keep[0] = h[Hyper::kOwn];
    c.keep[1] = h[Hyper::kOwn + 1];
    c.rate = Step<double>(h).alpha;
    c.divisor = CatchUp::Divisor::kSlot;
    c.divisor_slot = 1;
    c.epsilon = h[Hyper::kOwn + 2];
    return c;
  }
};

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_CORE_OPTIMIZER_ADAMAX_H_

// Adam that catches up with the steps in which a row was absent, as OneFlow's
// one_embedding.SmartDecayAdam means it: a row that comes back k steps after its last update gets
// the moments that k - 1 gradients of zero would have left, and the way that its momentum would
// have taken it in them. Of moments m, v and the gradient g at step t
//
//   m' = beta_1^k m + (1 - beta_1) g,   v' = beta_2^k v + (1 - beta_2) g^2
//   w' = w - alpha_t (m' + m (beta_1 + beta_1^2 + ... + beta_1^(k-1))) / (sqrt(v') + epsilon)
//
// where the skipped steps are taken with this step's alpha_t and v'. alpha_t is Adam's (adam.h):
// the learning rate with the bias correction of step t, so that a row of every step is trained as
// by keras.optimizers.Adam. OneFlow's kernel demands the correction and leaves it out, and forgets
// the weight decay; here both are applied, weight decay as by every rule: once per update of the
// row, however long it was away.
#ifndef TF_DYNEMB_CC_CORE_OPTIMIZER_SMART_DECAY_ADAM_H_
#define TF_DYNEMB_CC_CORE_OPTIMIZER_SMART_DECAY_ADAM_H_

#include "cc/core/optimizer/adam.h"
#include "cc/core/optimizer/catch_up.h"
#include "cc/core/optimizer/step.h"

namespace dynemb {

struct SmartDecayAdam {
  static constexpr const char* kName = "smart_decay_adam";
  static constexpr int kSlotCount = 4;
  static constexpr int kRowSlotCount = LastStep::kSlotCount;
  // A new row's last step is 0; its moments are zeros, whatever has become of them.
  static constexpr SlotDecl kSlots[] = {{"momentum", SlotWidth::kColumn, false},
                                        {"velocity", SlotWidth::kColumn, false},
                                        LastStep::kSlots[0],
                                        LastStep::kSlots[1]};
  static constexpr int kHyperCount = 3;
  static constexpr const char* kHyper[] = {"beta_1", "beta_2", "epsilon"};
  template <typename T>
  struct Step : Adam<false>::Step<T> {
    double step, beta_1, beta_2;
    DYNEMB_HOST_DEVICE explicit Step(const double* h)
        : Adam<false>::Step<T>(h),
          step(h[Hyper::kStep]),
          beta_1(h[Hyper::kOwn]),
          beta_2(h[Hyper::kOwn + 1]) {}
  };
  template <typename T>
  struct OfRow {
    T alpha, one_minus_beta_1, one_minus_beta_2, epsilon;
    T left_of_momentum, left_of_velocity;  // beta^k
    T caught_up;                           // beta_1 + ... + beta_1^(k-1)
  };
  // A step that is not after the last one, of an optimizer that began to count anew, is one step
  // on.
  template <typename T>
  DYNEMB_HOST_DEVICE static OfRow<T> RowUpdate(const Step<T>& step, T, T* last) {
    const double before = LastStep::Get(last);
    LastStep::Set(step.step, last);
    double left_1 = step.beta_1, left_2 = step.beta_2, caught_up = 0;
    if (const double steps = step.step - before; steps > 1) {
      left_1 = std::pow(step.beta_1, steps);
      left_2 = std::pow(step.beta_2, steps);
      caught_up = (step.beta_1 - left_1) / (1 - step.beta_1);
    }
    return {step.alpha,
            step.one_minus_beta_1,
            step.one_minus_beta_2,
            step.epsilon,
            static_cast<T>(left_1),
            static_cast<T>(left_2),
            static_cast<T>(caught_up)};
  }
  template <typename T>
  DYNEMB_HOST_DEVICE static void Update(const OfRow<T>& row, T gradient, T* weight, T* slot) {
    const T skipped = slot[0] * row.caught_up;
    slot[0] = slot[0] * row.left_of_momentum + gradient * row.one_minus_beta_1;
    slot[1] = slot[1] * row.left_of_velocity + gradient * gradient * row.one_minus_beta_2;
    *weight -= (slot[0] + skipped) * row.alpha / (std::sqrt(slot[1]) + row.epsilon);
  }
};

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_CORE_OPTIMIZER_SMART_DECAY_ADAM_H_

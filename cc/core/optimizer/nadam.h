// Nadam (Dozat: "Incorporating Nesterov Momentum into Adam", 2016), as keras.optimizers.Nadam with
// its momentum schedule u_t = beta_1 * (1 - 0.5 * 0.96^t). Keras keeps the product u_1 ... u_t in a
// variable; it depends on t alone, so here it is computed.
#ifndef TF_DYNEMB_CC_CORE_OPTIMIZER_NADAM_H_
#define TF_DYNEMB_CC_CORE_OPTIMIZER_NADAM_H_

#include "cc/core/optimizer/step.h"

namespace dynemb {

struct Nadam {
  static constexpr const char* kName = "nadam";
  static constexpr int kSlotCount = 2;
  static constexpr SlotDecl kSlots[] = {{"momentum", SlotWidth::kColumn, false},
                                        {"velocity", SlotWidth::kColumn, false}};
  static constexpr int kHyperCount = 3;
  static constexpr const char* kHyper[] = {"beta_1", "beta_2", "epsilon"};

  DYNEMB_HOST_DEVICE static double Momentum(double beta_1, double t) {
    return beta_1 * (1 - 0.5 * std::pow(0.96, t));
  }
  // u_1 * ... * u_t. After 1,000 factors 0.96^t is below 2e-18 and every further factor is beta_1.
  DYNEMB_HOST_DEVICE static double MomentumProduct(double beta_1, double t) {
    const double counted = t < 1000 ? t : 1000;
    double product = 1, decay = 1;
    for (double i = 1; i <= counted; ++i) {
      decay *= 0.96;
      product *= beta_1 * (1 - 0.5 * decay);
    }
    return t > counted ? product * std::pow(beta_1, t - counted) : product;
  }

  template <typename T>
  struct Step {
    T learning_rate, one_minus_beta_1, one_minus_beta_2, momentum_scale, gradient_scale,
        velocity_scale, epsilon;
    DYNEMB_HOST_DEVICE explicit Step(const double* h) {
      const double beta_1 = h[Hyper::kOwn], beta_2 = h[Hyper::kOwn + 1], t = h[Hyper::kStep];
      const double product = MomentumProduct(beta_1, t);
      const double next = Momentum(beta_1, t + 1);
      learning_rate = static_cast<T>(h[Hyper::kLearningRate]);
      one_minus_beta_1 = static_cast<T>(1 - beta_1);
      one_minus_beta_2 = static_cast<T>(1 - beta_2);
      momentum_scale = static_cast<T>(next / (1 - product * next));
      gradient_scale = static_cast<T>((1 - Momentum(beta_1, t)) / (1 - product));
      velocity_scale = static_cast<T>(1 / (1 - std::pow(beta_2, t)));
      epsilon = static_cast<T>(h[Hyper::kOwn + 2]);
    }
  };
  template <typename T>
  DYNEMB_HOST_DEVICE static void Update(const Step<T>& step, T gradient, T* weight, T* slot) {
    slot[0] += (gradient - slot[0]) * step.one_minus_beta_1;
    slot[1] += (gradient * gradient - slot[1]) * step.one_minus_beta_2;
    const T momentum = step.momentum_scale * slot[0] + step.gradient_scale * gradient;
    *weight -=
        momentum * step.learning_rate / (std::sqrt(slot[1] * step.velocity_scale) + step.epsilon);
  }
};

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_CORE_OPTIMIZER_NADAM_H_

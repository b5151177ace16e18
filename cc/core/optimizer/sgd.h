// Stochastic gradient descent, with momentum and Nesterov's momentum (Sutskever, Martens, Dahl,
// Hinton: "On the importance of initialization and momentum in deep learning", 2013), as
// keras.optimizers.SGD.
#ifndef TF_DYNEMB_CC_CORE_OPTIMIZER_SGD_H_
#define TF_DYNEMB_CC_CORE_OPTIMIZER_SGD_H_

#include "cc/core/optimizer/catch_up.h"
#include "cc/core/optimizer/step.h"

namespace dynemb {

struct Sgd {
  static constexpr const char* kName = "sgd";
  static constexpr int kSlotCount = 0;
  static constexpr const SlotDecl* kSlots = nullptr;
  static constexpr int kHyperCount = 0;
  static constexpr const char* const* kHyper = nullptr;
  template <typename T>
  struct Step {
    T learning_rate;
    DYNEMB_HOST_DEVICE explicit Step(const double* h)
        : learning_rate(static_cast<T>(h[Hyper::kLearningRate])) {}
  };
  template <typename T>
  DYNEMB_HOST_DEVICE static void Update(const Step<T>& step, T gradient, T* weight, T*) {
    *weight -= gradient * step.learning_rate;
  }
};

// m = momentum * m - learning_rate * g; w += m, or with Nesterov w += momentum * m - learning_rate
// * g.
template <bool kNesterov>
struct SgdMomentum {
  static constexpr const char* kName = kNesterov ? "sgd_nesterov" : "sgd_momentum";
  static constexpr int kSlotCount = 1;
  static constexpr SlotDecl kSlots[] = {{"momentum", SlotWidth::kColumn, false}};
  static constexpr int kHyperCount = 1;
  static constexpr const char* kHyper[] = {"momentum"};
  template <typename T>
  struct Step {
    T learning_rate, momentum;
    DYNEMB_HOST_DEVICE explicit Step(const double* h)
        : learning_rate(static_cast<T>(h[Hyper::kLearningRate])),
          momentum(static_cast<T>(h[Hyper::kOwn])) {}
  };
  template <typename T>
  DYNEMB_HOST_DEVICE static void Update(const Step<T>& step, T gradient, T* weight, T* slot) {
    const T scaled = gradient * step.learning_rate;
    slot[0] = slot[0] * step.momentum - scaled;
    *weight += kNesterov ? slot[0] * step.momentum - scaled : slot[0];
  }
  static CatchUp CatchUpOf(const double* h) {
    CatchUp c;
    c.momentum = 0;
    c.keep[0] = h[Hyper::kOwn];
    c.rate = kNesterov ? -h[Hyper::kOwn] : -1;
    return c;
  }
};

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_CORE_OPTIMIZER_SGD_H_

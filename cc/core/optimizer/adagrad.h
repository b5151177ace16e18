// Adagrad (Duchi, Hazan, Singer: "Adaptive Subgradient Methods for Online Learning and Stochastic
// Optimization", 2011), as keras.optimizers.Adagrad: epsilon is added under the root. Beside it the
// row-wise form with one accumulator per row, the mean of the squared gradient's columns (Mudigere
// et al.: "Software-Hardware Co-design for Fast and Scalable Training of Deep Learning
// Recommendation Models", 2022, section 4.1.4), at a 1/dim of the memory; as TorchRec's
// EXACT_ROWWISE_ADAGRAD: epsilon is added to the root.
#ifndef TF_DYNEMB_CC_CORE_OPTIMIZER_ADAGRAD_H_
#define TF_DYNEMB_CC_CORE_OPTIMIZER_ADAGRAD_H_

#include "cc/core/optimizer/step.h"

namespace dynemb {

struct Adagrad {
  static constexpr const char* kName = "adagrad";
  static constexpr int kSlotCount = 1;
  static constexpr SlotDecl kSlots[] = {{"accumulator", SlotWidth::kColumn, true}};
  static constexpr int kHyperCount = 1;
  static constexpr const char* kHyper[] = {"epsilon"};
  template <typename T>
  struct Step {
    T learning_rate, epsilon;
    DYNEMB_HOST_DEVICE explicit Step(const double* h)
        : learning_rate(static_cast<T>(h[Hyper::kLearningRate])),
          epsilon(static_cast<T>(h[Hyper::kOwn])) {}
  };
  template <typename T>
  DYNEMB_HOST_DEVICE static void Update(const Step<T>& step, T gradient, T* weight, T* slot) {
    slot[0] += gradient * gradient;
    *weight -= step.learning_rate * gradient / std::sqrt(slot[0] + step.epsilon);
  }
};

struct RowwiseAdagrad {
  static constexpr const char* kName = "rowwise_adagrad";
  static constexpr int kSlotCount = 1;
  static constexpr SlotDecl kSlots[] = {{"accumulator", SlotWidth::kRow, true}};
  static constexpr int kHyperCount = 1;
  static constexpr const char* kHyper[] = {"epsilon"};
  static constexpr int kRowSlotCount = 1;
  template <typename T>
  using Step = Adagrad::Step<T>;
  template <typename T>
  struct OfRow {
    T learning_rate, divisor;
  };
  template <typename T>
  DYNEMB_HOST_DEVICE static OfRow<T> RowUpdate(const Step<T>& step, T mean_square, T* slot) {
    slot[0] += mean_square;
    return {step.learning_rate, std::sqrt(slot[0]) + step.epsilon};
  }
  template <typename T>
  DYNEMB_HOST_DEVICE static void Update(const OfRow<T>& row, T gradient, T* weight, const T*) {
    *weight -= row.learning_rate * gradient / row.divisor;
  }
};

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_CORE_OPTIMIZER_ADAGRAD_H_

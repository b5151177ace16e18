// Each rule against its formula as the papers and Keras state it, written out here once more in
// double precision and without the rules' rearrangements; and the names that other floors rely on.
#include "cc/core/optimizer/rule.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <random>

#include "gtest/gtest.h"

namespace dynemb {
namespace {

using Numbers = std::vector<double>;
using Named = std::map<std::string, double>;

// One step of a rule on one column: (gradient, weight, slots, hyper-parameters by name, step
// number).
using Formula = std::function<void(double g, double* w, double* s, const Named& h, double t)>;

// A rule with what it should be: hyper-parameters (after the common ones) with the values to test,
// and the slots with their starts, where 0.3 stands for the one that is given.
struct Expected {
  std::string name;
  std::vector<std::pair<std::string, double>> hyper;
  std::vector<std::pair<std::string, double>> slots;
  Formula formula;
};

double Sign(double x) { return x > 0 ? 1 : x < 0 ? -1 : 0; }

// RMSprop's slots in order, of which the ones that it has are given as pointers.
void RmsPropStep(double g, double* w, double* velocity, double* momentum, double* average,
                 const Named& h) {
  const double rho = h.at("rho");
  *velocity = rho * *velocity + (1 - rho) * g * g;
  double variance = *velocity;
  if (average != nullptr) {
    *average = rho * *average + (1 - rho) * g;
    variance -= *average * *average;
  }
  double change = h.at("learning_rate") * g / std::sqrt(variance + h.at("epsilon"));
  if (momentum != nullptr) change = *momentum = h.at("momentum") * *momentum + change;
  *w -= change;
}

// Kingma and Ba's algorithm 1 with the biased moments and the step size of section 2's last
// paragraph.
void AdamStep(double g, double* w, double* s, const Named& h, double t, bool amsgrad) {
  const double b1 = h.at("beta_1"), b2 = h.at("beta_2");
  s[0] = b1 * s[0] + (1 - b1) * g;
  s[1] = b2 * s[1] + (1 - b2) * g * g;
  if (amsgrad) s[2] = std::max(s[2], s[1]);
  const double rate =
      h.at("learning_rate") * std::sqrt(1 - std::pow(b2, t)) / (1 - std::pow(b1, t));
  *w -= rate * s[0] / (std::sqrt(amsgrad ? s[2] : s[1]) + h.at("epsilon"));
}

double NadamMomentum(double beta_1, double t) { return beta_1 * (1 - 0.5 * std::pow(0.96, t)); }

void NadamStep(double g, double* w, double* s, const Named& h, double t) {
  const double b1 = h.at("beta_1"), b2 = h.at("beta_2");
  double product = 1;
  for (double i = 1; i <= t; ++i) product *= NadamMomentum(b1, i);
  const double now = NadamMomentum(b1, t), next = NadamMomentum(b1, t + 1);
  s[0] = b1 * s[0] + (1 - b1) * g;
  s[1] = b2 * s[1] + (1 - b2) * g * g;
  const double m_hat = next * s[0] / (1 - product * next) + (1 - now) * g / (1 - product);
  const double v_hat = s[1] / (1 - std::pow(b2, t));
  *w -= h.at("learning_rate") * m_hat / (std::sqrt(v_hat) + h.at("epsilon"));
}

void FtrlStep(double g, double* w, double* s, const Named& h) {
  const double lr = h.at("learning_rate"), power = h.at("learning_rate_power");
  const double l1 = h.at("l1_regularization_strength");
  const double l2 = h.at("l2_regularization_strength") + h.at("beta") / (2 * lr);
  const double g_shrunk = g + 2 * h.at("l2_shrinkage_regularization_strength") * *w;
  const double n = s[0] + g * g;
  const double sigma = (std::pow(n, -power) - std::pow(s[0], -power)) / lr;
  s[1] += g_shrunk - sigma * *w;
  s[0] = n;
  *w = std::fabs(s[1]) <= l1 ? 0 : (Sign(s[1]) * l1 - s[1]) / (std::pow(n, -power) / lr + 2 * l2);
}

std::vector<Expected> AllExpected() {
  const std::pair<std::string, double> b1 = {"beta_1", 0.9}, b2 = {"beta_2", 0.95},
                                       epsilon = {"epsilon", 1e-3}, rho = {"rho", 0.8},
                                       momentum = {"momentum", 0.7};
  const std::vector<std::pair<std::string, double>> rms = {rho, momentum, epsilon};
  const std::vector<std::pair<std::string, double>> adam = {b1, b2, epsilon};
  const auto ftrl = [](double power, double l1) {
    return std::vector<std::pair<std::string, double>>{
        {"learning_rate_power", power},
        {"l1_regularization_strength", l1},
        {"l2_regularization_strength", 0.02},
        {"l2_shrinkage_regularization_strength", 0.03},
        {"beta", 0.05}};
  };
  return {
      {"sgd",
       {},
       {},
       [](double g, double* w, double*, const Named& h, double) {
         *w -= h.at("learning_rate") * g;
       }},
      {"sgd_momentum",
       {momentum},
       {{"momentum", 0}},
       [](double g, double* w, double* s, const Named& h, double) {
         s[0] = h.at("momentum") * s[0] - h.at("learning_rate") * g;
         *w += s[0];
       }},
      {"sgd_nesterov",
       {momentum},
       {{"momentum", 0}},
       [](double g, double* w, double* s, const Named& h, double) {
         s[0] = h.at("momentum") * s[0] - h.at("learning_rate") * g;
         *w += h.at("momentum") * s[0] - h.at("learning_rate") * g;
       }},
      {"rmsprop",
       rms,
       {{"velocity", 0}},
       [](double g, double* w, double* s, const Named& h, double) {
         RmsPropStep(g, w, &s[0], nullptr, nullptr, h);
       }},
      {"rmsprop_momentum",
       rms,
       {{"velocity", 0}, {"momentum", 0}},
       [](double g, double* w, double* s, const Named& h, double) {
         RmsPropStep(g, w, &s[0], &s[1], nullptr, h);
       }},
      {"rmsprop_centered",
       rms,
       {{"velocity", 0}, {"average_gradient", 0}},
       [](double g, double* w, double* s, const Named& h, double) {
         RmsPropStep(g, w, &s[0], nullptr, &s[1], h);
       }},
      {"rmsprop_centered_momentum",
       rms,
       {{"velocity", 0}, {"momentum", 0}, {"average_gradient", 0}},
       [](double g, double* w, double* s, const Named& h, double) {
         RmsPropStep(g, w, &s[0], &s[1], &s[2], h);
       }},
      {"adam",
       adam,
       {{"momentum", 0}, {"velocity", 0}},
       [](double g, double* w, double* s, const Named& h, double t) {
         AdamStep(g, w, s, h, t, false);
       }},
      {"adam_amsgrad",
       adam,
       {{"momentum", 0}, {"velocity", 0}, {"velocity_hat", 0}},
       [](double g, double* w, double* s, const Named& h, double t) {
         AdamStep(g, w, s, h, t, true);
       }},
      {"adamax",
       adam,
       {{"momentum", 0}, {"norm", 0}},
       [](double g, double* w, double* s, const Named& h, double t) {
         s[0] = h.at("beta_1") * s[0] + (1 - h.at("beta_1")) * g;
         s[1] = std::max(h.at("beta_2") * s[1], std::fabs(g));
         *w -= h.at("learning_rate") / (1 - std::pow(h.at("beta_1"), t)) * s[0] /
               (s[1] + h.at("epsilon"));
       }},
      {"nadam", adam, {{"momentum", 0}, {"velocity", 0}}, NadamStep},
      {"adadelta",
       {rho, epsilon},
       {{"accumulated_gradient", 0}, {"accumulated_delta", 0}},
       [](double g, double* w, double* s, const Named& h, double) {
         const double rho = h.at("rho"), epsilon = h.at("epsilon");
         s[0] = rho * s[0] + (1 - rho) * g * g;
         const double delta = -std::sqrt(s[1] + epsilon) / std::sqrt(s[0] + epsilon) * g;
         s[1] = rho * s[1] + (1 - rho) * delta * delta;
         *w += h.at("learning_rate") * delta;
       }},
      {"adagrad",
       {epsilon},
       {{"accumulator", 0.3}},
       [](double g, double* w, double* s, const Named& h, double) {
         s[0] += g * g;
         *w -= h.at("learning_rate") * g / std::sqrt(s[0] + h.at("epsilon"));
       }},
      {"ftrl",
       ftrl(-0.5, 0.1),
       {{"accumulator", 0.3}, {"linear", 0}},
       [](double g, double* w, double* s, const Named& h, double) { FtrlStep(g, w, s, h); }},
      {"ftrl",
       ftrl(-0.7, 0.4),
       {{"accumulator", 0.3}, {"linear", 0}},
       [](double g, double* w, double* s, const Named& h, double) { FtrlStep(g, w, s, h); }},
      {"lion",
       {b1, b2},
       {{"momentum", 0}},
       [](double g, double* w, double* s, const Named& h, double) {
         const double b1 = h.at("beta_1"), b2 = h.at("beta_2");
         *w -= h.at("learning_rate") * Sign(b1 * s[0] + (1 - b1) * g);
         s[0] = b2 * s[0] + (1 - b2) * g;
       }},
  };
}

constexpr double kLearningRate = 0.1;

Numbers HyperVector(const Expected& rule, double t, double weight_decay) {
  Numbers hyper = {kLearningRate, t, weight_decay};
  for (const auto& name_and_value : rule.hyper) hyper.push_back(name_and_value.second);
  return hyper;
}

Status MakeUpdater(const std::string& name, DType dtype, const Numbers& hyper,
                   std::unique_ptr<RowUpdater>* updater) {
  return MakeRowUpdater(name, dtype, hyper, updater);
}

// Gradients of a step: some columns get none, some the same every time.
Numbers Gradients(int step, int64_t dim) {
  std::mt19937 random(static_cast<uint32_t>(step));
  Numbers gradients;
  for (int64_t c = 0; c < dim; ++c) {
    const double g = static_cast<int>(random() % 4001 - 2000) / 1024.0;
    gradients.push_back(c % 4 == 3 ? 0 : c % 4 == 2 ? 0.5 : g);
  }
  return gradients;
}

// Runs the rule and the formula side by side for 100 steps.
template <typename T>
void FollowFormula(const Expected& rule, double weight_decay, double tolerance) {
  SCOPED_TRACE(rule.name);
  constexpr int64_t kDim = 9;
  const DType dtype = sizeof(T) == 4 ? DType::kFloat32 : DType::kFloat64;
  const size_t slot_count = rule.slots.size();
  std::vector<T> value(kDim), slots;
  Numbers want(kDim);
  std::vector<Numbers> want_slots(kDim);
  for (int64_t c = 0; c < kDim; ++c) {
    value[c] = static_cast<T>(want[c] = static_cast<double>(c - 4) / 4);
  }
  for (const auto& name_and_start : rule.slots) {
    // A slot starts as a float in the spec, whatever the row's dtype.
    const float start = static_cast<float>(name_and_start.second);
    slots.insert(slots.end(), kDim, static_cast<T>(start));
    for (Numbers& of_column : want_slots) of_column.push_back(start);
  }
  Named hyper = {{"learning_rate", kLearningRate}};
  hyper.insert(rule.hyper.begin(), rule.hyper.end());
  for (int t = 1; t <= 100; ++t) {
    const Numbers gradients = Gradients(t, kDim);
    std::vector<T> given(gradients.begin(), gradients.end());
    std::unique_ptr<RowUpdater> updater;
    const Status status =
        MakeUpdater(rule.name, dtype, HyperVector(rule, t, weight_decay), &updater);
    ASSERT_TRUE(status.ok()) << status.message();
    updater->Update(kDim,
                    {reinterpret_cast<char*>(value.data()), reinterpret_cast<char*>(slots.data()),
                     reinterpret_cast<const char*>(given.data())});
    for (int64_t c = 0; c < kDim; ++c) {
      want[c] *= 1 - weight_decay * kLearningRate;
      rule.formula(gradients[c], &want[c], want_slots[c].data(), hyper, t);
      ASSERT_NEAR(value[c], want[c], tolerance * std::max(1.0, std::fabs(want[c])))
          << "step " << t << ", column " << c;
      for (size_t k = 0; k < slot_count; ++k) {
        const double slot = want_slots[c][k];
        ASSERT_NEAR(slots[k * kDim + c], slot, tolerance * std::max(1.0, std::fabs(slot)))
            << "step " << t << ", column " << c << ", slot " << rule.slots[k].first;
      }
    }
  }
}

TEST(Rules, FollowTheirFormulas) {
  for (const Expected& rule : AllExpected()) {
    for (const double weight_decay : {0.0, 0.04}) {
      // Rounding alone: 100 steps of at most about 10 roundings, each relative to numbers of size
      // 1; the centered variance is a difference and loses more.
      const double digits = rule.name.find("centered") == std::string::npos ? 1 : 20;
      FollowFormula<double>(rule, weight_decay, 1e-13 * digits);
      FollowFormula<float>(rule, weight_decay, 5e-5 * digits);
    }
  }
}

// 16-bit rows: computed in float from the widened numbers, rounded once at the end; gradients and
// slots stay float.
template <typename V>
void TestRounding(DType dtype) {
  constexpr int64_t kDim = 7;
  for (const Expected& rule : AllExpected()) {
    SCOPED_TRACE(rule.name);
    std::vector<V> value(kDim);
    std::vector<float> slots, wide_slots;
    for (int64_t c = 0; c < kDim; ++c) value[c] = V(0.1f * static_cast<float>(c) - 0.3f);
    for (const auto& slot : rule.slots) {
      slots.insert(slots.end(), kDim, static_cast<float>(slot.second));
    }
    wide_slots = slots;
    for (int t = 1; t <= 20; ++t) {
      const Numbers gradients = Gradients(t, kDim);
      const std::vector<float> gradient(gradients.begin(), gradients.end());
      std::vector<float> wide;
      for (int64_t c = 0; c < kDim; ++c) {
        wide.push_back(static_cast<float>(value[c]));
      }
      std::unique_ptr<RowUpdater> narrow_updater, wide_updater;
      const Numbers hyper = HyperVector(rule, t, 0.01);
      ASSERT_TRUE(MakeUpdater(rule.name, dtype, hyper, &narrow_updater).ok());
      ASSERT_TRUE(MakeUpdater(rule.name, DType::kFloat32, hyper, &wide_updater).ok());
      narrow_updater->Update(
          kDim, {reinterpret_cast<char*>(value.data()), reinterpret_cast<char*>(slots.data()),
                 reinterpret_cast<const char*>(gradient.data())});
      wide_updater->Update(
          kDim, {reinterpret_cast<char*>(wide.data()), reinterpret_cast<char*>(wide_slots.data()),
                 reinterpret_cast<const char*>(gradient.data())});
      for (int64_t c = 0; c < kDim; ++c) ASSERT_EQ(value[c].bits, V(wide[c]).bits) << t;
      ASSERT_EQ(slots, wide_slots) << t;
    }
  }
}

TEST(Rules, RoundSixteenBitValuesOnce) {
  TestRounding<Float16>(DType::kFloat16);
  TestRounding<BFloat16>(DType::kBFloat16);
}

TEST(Rules, RowwiseAdagradHasOneNumberPerRow) {
  OptimizerSpec spec;
  ASSERT_TRUE(MakeOptimizerSpec("rowwise_adagrad", 0.25, &spec).ok());
  EXPECT_EQ(spec.slots, (std::vector<SlotSpec>{{"accumulator", SlotWidth::kRow, 0.25f}}));
  EXPECT_EQ(HyperNames("rowwise_adagrad"),
            (std::vector<std::string>{"learning_rate", "step", "weight_decay", "epsilon"}));
  constexpr int64_t kDim = 5;
  double value[kDim] = {1, 2, 3, 4, 5}, want[kDim] = {1, 2, 3, 4, 5};
  double slots[2] = {0.25, 99};  // the second is not its own
  double accumulator = 0.25;
  for (int t = 1; t <= 30; ++t) {
    const Numbers g = Gradients(t, kDim);
    std::unique_ptr<RowUpdater> updater;
    ASSERT_TRUE(
        MakeUpdater("rowwise_adagrad", DType::kFloat64, {0.5, double(t), 0.01, 1e-3}, &updater)
            .ok());
    updater->Update(kDim, {reinterpret_cast<char*>(value), reinterpret_cast<char*>(slots),
                           reinterpret_cast<const char*>(g.data())});
    for (const double x : g) accumulator += x * x / kDim;
    for (int64_t c = 0; c < kDim; ++c) {
      want[c] = want[c] * (1 - 0.01 * 0.5) - 0.5 * g[c] / (std::sqrt(accumulator) + 1e-3);
      ASSERT_NEAR(value[c], want[c], 1e-13) << t;
    }
    ASSERT_NEAR(slots[0], accumulator, 1e-12);
    ASSERT_EQ(slots[1], 99);
  }
}

// Beside a row that lives through every step, of which those without it have a gradient of zero: it
// notes how far momentum would have taken it, and goes there when it is back.
template <typename T>
void FollowSkippedSteps(double first_step, double tolerance) {
  constexpr int64_t kDim = 5;
  constexpr double b1 = 0.9, b2 = 0.95, kEpsilon = 1e-3, kDecay = 0.01;
  const DType dtype = sizeof(T) == 4 ? DType::kFloat32 : DType::kFloat64;
  std::vector<T> value(kDim), slots(2 * kDim + 2);
  Numbers want(kDim), m(kDim), v(kDim), skipped(kDim);
  for (int64_t c = 0; c < kDim; ++c) {
    value[c] = static_cast<T>(want[c] = static_cast<double>(c - 2) / 4);
  }
  std::mt19937 random(3);
  for (int i = 0; i < 200; ++i) {
    const double t = first_step + i;
    // Steps in a row, a few here and there, and none for a long time.
    const bool here = i < 20 || (i >= 100 && i < 110) || (random() % 4 == 0 && (i < 60 || i > 100));
    const Numbers gradients = Gradients(i, kDim);
    for (int64_t c = 0; c < kDim; ++c) {
      const double g = here ? gradients[c] : 0;
      m[c] = b1 * m[c] + (1 - b1) * g;
      v[c] = b2 * v[c] + (1 - b2) * g * g;
      skipped[c] += m[c];
      if (!here) continue;
      const double rate = 0.1 * std::sqrt(1 - std::pow(b2, t)) / (1 - std::pow(b1, t));
      want[c] *= 1 - 0.1 * kDecay;
      want[c] -= rate * skipped[c] / (std::sqrt(v[c]) + kEpsilon);
      skipped[c] = 0;
    }
    if (!here) continue;
    std::vector<T> given(gradients.begin(), gradients.end());
    std::unique_ptr<RowUpdater> updater;
    ASSERT_TRUE(
        MakeUpdater("smart_decay_adam", dtype, {0.1, t, kDecay, b1, b2, kEpsilon}, &updater).ok());
    updater->Update(kDim,
                    {reinterpret_cast<char*>(value.data()), reinterpret_cast<char*>(slots.data()),
                     reinterpret_cast<const char*>(given.data())});
    for (int64_t c = 0; c < kDim; ++c) {
      ASSERT_NEAR(value[c], want[c], tolerance * std::max(1.0, std::fabs(want[c]))) << t;
      ASSERT_NEAR(slots[c], m[c], tolerance) << t;
      ASSERT_NEAR(slots[kDim + c], v[c], tolerance) << t;
    }
    ASSERT_EQ(slots[2 * kDim] * 16777216.0 + slots[2 * kDim + 1], t);
  }
}

TEST(Rules, SmartDecayAdamCatchesUp) {
  OptimizerSpec spec;
  ASSERT_TRUE(MakeOptimizerSpec("smart_decay_adam", 0, &spec).ok());
  EXPECT_EQ(spec.slots, (std::vector<SlotSpec>{{"momentum", SlotWidth::kColumn, 0},
                                               {"velocity", SlotWidth::kColumn, 0},
                                               {"last_step_high", SlotWidth::kRow, 0},
                                               {"last_step_low", SlotWidth::kRow, 0}}));
  EXPECT_EQ(HyperNames("smart_decay_adam"), HyperNames("adam"));
  // The first step of a row is the first of all, one that floats still count, or one beyond those.
  for (const double first_step : {1.0, 1000.0, 16777116.0, 5e9}) {
    SCOPED_TRACE(first_step);
    FollowSkippedSteps<double>(first_step, 1e-12);
    FollowSkippedSteps<float>(first_step, 1e-4);
  }
}

// An optimizer that was made anew counts from 1, and the rows are older.
TEST(Rules, SmartDecayAdamWithOlderRowsIsAdam) {
  for (const double last : {7.0, 8.0, 1000.0}) {
    double value[2] = {1, -1}, slots[6] = {0.5, -0.25, 0.5, 0.125, 0, last};
    double adam_value[2] = {1, -1}, adam_slots[4] = {0.5, -0.25, 0.5, 0.125};
    const double gradient[2] = {0.5, 0.75};
    std::unique_ptr<RowUpdater> updater, adam;
    const Numbers hyper = {0.1, 7, 0, 0.9, 0.95, 1e-3};
    ASSERT_TRUE(MakeUpdater("smart_decay_adam", DType::kFloat64, hyper, &updater).ok());
    ASSERT_TRUE(MakeUpdater("adam", DType::kFloat64, hyper, &adam).ok());
    const char* const g = reinterpret_cast<const char*>(gradient);
    updater->Update(2, {reinterpret_cast<char*>(value), reinterpret_cast<char*>(slots), g});
    adam->Update(2, {reinterpret_cast<char*>(adam_value), reinterpret_cast<char*>(adam_slots), g});
    for (int c = 0; c < 2; ++c) EXPECT_NEAR(value[c], adam_value[c], 1e-15);
    EXPECT_EQ(slots[5], 7);
  }
}

// One step without a gradient of a row that is away: (weight, slots, the slots from before all such
// steps, hyper-parameters by name, number of the step in which the row is back).
using SkippedStep =
    std::function<void(double* w, double* s, const Numbers& before, const Named& h, double t)>;

// The rules that can catch up, with what they take such a step for.
std::map<std::string, SkippedStep> SkippedSteps() {
  std::map<std::string, SkippedStep> skipped;
  // What the rule does with a gradient of zero, exactly.
  for (const Expected& rule : AllExpected()) {
    if (rule.name.find("sgd_") == 0 || rule.name.find("rmsprop") == 0 || rule.name == "adadelta") {
      skipped[rule.name] = [formula = rule.formula](double* w, double* s, const Numbers&,
                                                    const Named& h,
                                                    double t) { formula(0, w, s, h, t); };
    }
  }
  // With the learning rate and the bias correction of the step in which the row is back, and the
  // divisor from before.
  const auto adam = [](int velocity) {
    return [velocity](double* w, double* s, const Numbers& before, const Named& h, double t) {
      const double b1 = h.at("beta_1"), b2 = h.at("beta_2");
      const double rate =
          h.at("learning_rate") * std::sqrt(1 - std::pow(b2, t)) / (1 - std::pow(b1, t));
      s[0] *= b1;
      s[1] *= b2;
      *w -= rate * s[0] / (std::sqrt(before[velocity]) + h.at("epsilon"));
    };
  };
  skipped["adam"] = adam(1);
  skipped["adam_amsgrad"] = adam(2);
  skipped["adamax"] = [](double* w, double* s, const Numbers& before, const Named& h, double t) {
    s[0] *= h.at("beta_1");
    s[1] *= h.at("beta_2");
    *w -= h.at("learning_rate") / (1 - std::pow(h.at("beta_1"), t)) * s[0] /
          (before[1] + h.at("epsilon"));
  };
  skipped["lion"] = [](double* w, double* s, const Numbers&, const Named& h, double) {
    *w -= h.at("learning_rate") * Sign(s[0]);
    s[0] *= h.at("beta_2");
  };
  return skipped;
}

// A row that is away now and then, for one step or many, beside one that goes through every step.
template <typename T>
void FollowCatchUp(const Expected& rule, const SkippedStep& skip, double first_step,
                   double tolerance) {
  SCOPED_TRACE(rule.name);
  constexpr int64_t kDim = 5;
  constexpr double kDecay = 0.01;
  const DType dtype = sizeof(T) == 4 ? DType::kFloat32 : DType::kFloat64;
  const size_t slot_count = rule.slots.size();
  std::vector<T> value(kDim), slots(slot_count * kDim + 2);
  Numbers want(kDim);
  std::vector<Numbers> want_slots(kDim, Numbers(slot_count));
  for (int64_t c = 0; c < kDim; ++c) {
    value[c] = static_cast<T>(want[c] = static_cast<double>(c - 2) / 4);
  }
  Named hyper = {{"learning_rate", kLearningRate}};
  hyper.insert(rule.hyper.begin(), rule.hyper.end());
  std::mt19937 random(3);
  int away = 0;
  for (int i = 0; i < 200; ++i) {
    const bool here = i < 20 || (i >= 100 && i < 110) || (random() % 4 == 0 && (i < 60 || i > 100));
    if (!here) {
      ++away;
      continue;
    }
    const double t = first_step + i;
    const Numbers gradients = Gradients(i, kDim);
    for (int64_t c = 0; c < kDim; ++c) {
      const Numbers before = want_slots[c];
      for (int k = 0; k < away; ++k) skip(&want[c], want_slots[c].data(), before, hyper, t);
      want[c] *= 1 - kLearningRate * kDecay;
      rule.formula(gradients[c], &want[c], want_slots[c].data(), hyper, t);
    }
    away = 0;
    std::vector<T> given(gradients.begin(), gradients.end());
    std::unique_ptr<RowUpdater> updater;
    ASSERT_TRUE(
        MakeUpdater(rule.name + "_catch_up", dtype, HyperVector(rule, t, kDecay), &updater).ok());
    updater->Update(kDim,
                    {reinterpret_cast<char*>(value.data()), reinterpret_cast<char*>(slots.data()),
                     reinterpret_cast<const char*>(given.data())});
    for (int64_t c = 0; c < kDim; ++c) {
      ASSERT_NEAR(value[c], want[c], tolerance * std::max(1.0, std::fabs(want[c]))) << t;
      for (size_t k = 0; k < slot_count; ++k) {
        const double slot = want_slots[c][k];
        ASSERT_NEAR(slots[k * kDim + c], slot, tolerance * std::max(1.0, std::fabs(slot)))
            << t << ", slot " << rule.slots[k].first;
      }
    }
    ASSERT_EQ(slots[slot_count * kDim] * 16777216.0 + slots[slot_count * kDim + 1], t);
  }
}

TEST(Rules, CatchUpWithTheStepsThatARowHasMissed) {
  const auto skipped = SkippedSteps();
  size_t seen = 0;
  for (const Expected& rule : AllExpected()) {
    OptimizerSpec plain, spec;
    ASSERT_TRUE(MakeOptimizerSpec(rule.name, 0.3, &plain).ok());
    const Status made = MakeOptimizerSpec(rule.name + "_catch_up", 0.3, &spec);
    const auto skip = skipped.find(rule.name);
    if (skip == skipped.end()) {
      EXPECT_EQ(made.code(), Code::kInvalidArgument) << rule.name;
      EXPECT_NE(made.message().find("no closed form"), std::string::npos) << made.message();
      EXPECT_EQ(spec, OptimizerSpec());
      continue;
    }
    ++seen;
    ASSERT_TRUE(made.ok()) << made.message();
    EXPECT_EQ(spec.name, rule.name + "_catch_up");
    plain.slots.push_back({"last_step_high", SlotWidth::kRow, 0});
    plain.slots.push_back({"last_step_low", SlotWidth::kRow, 0});
    EXPECT_EQ(spec.slots, plain.slots);
    EXPECT_EQ(HyperNames(spec.name), HyperNames(rule.name));
    // As in FollowTheirFormulas. The first step of a row is the first of all, or one beyond those
    // that floats count.
    const double digits = rule.name.find("centered") == std::string::npos ? 1 : 20;
    for (const double first_step : {1.0, 5e9}) {
      FollowCatchUp<double>(rule, skip->second, first_step, 1e-12 * digits);
      FollowCatchUp<float>(rule, skip->second, first_step, 1e-4 * digits);
    }
  }
  EXPECT_EQ(seen, skipped.size());
}

// A row without a last step is new, and one whose last step is not before this one was trained by
// an optimizer that has begun to count anew: nothing was missed.
TEST(Rules, NothingToCatchUpWith) {
  for (const double last : {0.0, 6.0, 7.0, 8.0, 1000.0}) {
    double value[2] = {1, -1}, slots[6] = {0.5, -0.25, 0.5, 0.125, 0, last};
    double plain_value[2] = {1, -1}, plain_slots[4] = {0.5, -0.25, 0.5, 0.125};
    const double gradient[2] = {0.5, 0.75};
    std::unique_ptr<RowUpdater> updater, plain;
    const Numbers hyper = {0.1, 7, 0, 0.9, 0.95, 1e-3};
    ASSERT_TRUE(MakeUpdater("adam_catch_up", DType::kFloat64, hyper, &updater).ok());
    ASSERT_TRUE(MakeUpdater("adam", DType::kFloat64, hyper, &plain).ok());
    const char* const g = reinterpret_cast<const char*>(gradient);
    updater->Update(2, {reinterpret_cast<char*>(value), reinterpret_cast<char*>(slots), g});
    plain->Update(2,
                  {reinterpret_cast<char*>(plain_value), reinterpret_cast<char*>(plain_slots), g});
    for (int c = 0; c < 2; ++c) EXPECT_EQ(value[c], plain_value[c]) << last;
    EXPECT_EQ(slots[5], 7);
  }
}

// Nadam's product of momenta is cut short after 1,000 factors, without anyone noticing.
TEST(Rules, NadamAtLateSteps) {
  for (const double t : {999.0, 1000.0, 1001.0, 5000.0}) {
    double product = 1;
    for (double i = 1; i <= t; ++i) product *= NadamMomentum(0.999, i);
    EXPECT_NEAR(Nadam::MomentumProduct(0.999, t) / product, 1, 1e-12) << t;
  }
  EXPECT_GE(Nadam::MomentumProduct(0.9, 1e15), 0.0);
}

TEST(Rules, NamesAndSlotsAreWhatOtherFloorsExpect) {
  std::vector<std::string> names;
  for (const Expected& rule : AllExpected()) {
    SCOPED_TRACE(rule.name);
    names.push_back(rule.name);
    std::vector<std::string> hyper = {"learning_rate", "step", "weight_decay"};
    for (const auto& name_and_value : rule.hyper) hyper.push_back(name_and_value.first);
    EXPECT_EQ(HyperNames(rule.name), hyper);
    OptimizerSpec spec;
    ASSERT_TRUE(MakeOptimizerSpec(rule.name, 0.3, &spec).ok());
    EXPECT_EQ(spec.name, rule.name);
    std::vector<SlotSpec> slots;
    for (const auto& [name, start] : rule.slots) {
      slots.push_back({name, SlotWidth::kColumn, static_cast<float>(start)});
    }
    EXPECT_EQ(spec.slots, slots) << spec.DebugString();
  }
  // There is no rule that this test does not know.
  names.insert(names.end(), {"rowwise_adagrad", "smart_decay_adam"});
  OptimizerSpec spec;
  const std::string all = MakeOptimizerSpec("?", 0, &spec).message();
  const size_t rules =
      1 + static_cast<size_t>(
              std::count(all.begin() + static_cast<int64_t>(all.find("one of")), all.end(), ','));
  std::sort(names.begin(), names.end());
  names.erase(std::unique(names.begin(), names.end()), names.end());
  EXPECT_EQ(names.size(), rules) << all;
  for (const std::string& name : names) EXPECT_NE(all.find(name), std::string::npos) << name;
}

TEST(OptimizerSpec, DescribesItself) {
  OptimizerSpec none, adagrad, other;
  EXPECT_EQ(none.DebugString(), "none");
  ASSERT_TRUE(MakeOptimizerSpec("adagrad", 0.1, &adagrad).ok());
  ASSERT_TRUE(MakeOptimizerSpec("adagrad", 0.2, &other).ok());
  EXPECT_EQ(adagrad.DebugString(), "adagrad(accumulator=0.1)");
  EXPECT_FALSE(adagrad == other);
  EXPECT_FALSE(adagrad == none);
  ASSERT_TRUE(MakeOptimizerSpec("adagrad", 0.1, &other).ok());
  EXPECT_TRUE(adagrad == other) << "a spec is filled anew";
}

TEST(OptimizerSpec, RefusesUnknownRulesAndBadStarts) {
  OptimizerSpec spec;
  const Status unknown = MakeOptimizerSpec("adamw", 0, &spec);
  EXPECT_EQ(unknown.code(), Code::kInvalidArgument);
  EXPECT_NE(unknown.message().find("'adamw'"), std::string::npos) << unknown.message();
  EXPECT_NE(unknown.message().find("sgd, "), std::string::npos) << unknown.message();
  for (const double start : {-0.1, std::nan(""), std::numeric_limits<double>::infinity()}) {
    EXPECT_EQ(MakeOptimizerSpec("adagrad", start, &spec).code(), Code::kInvalidArgument) << start;
  }
}

TEST(RowUpdater, RefusesWhatCannotBeRight) {
  const auto expect = [](const std::string& name, DType dtype, const Numbers& hyper,
                         const std::string& says) {
    std::unique_ptr<RowUpdater> updater;
    const Status status = MakeUpdater(name, dtype, hyper, &updater);
    EXPECT_EQ(status.code(), Code::kInvalidArgument) << says;
    EXPECT_NE(status.message().find(says), std::string::npos) << status.message();
    EXPECT_EQ(updater, nullptr);
  };
  const double nan = std::nan(""), infinity = std::numeric_limits<double>::infinity();
  const DType f32 = DType::kFloat32;
  expect("", f32, {}, "one of");
  expect("momentum", f32, {0.1, 1, 0}, "'momentum'");
  expect("sgd", f32, {0.1, 1}, "got 2 numbers, want 3 (learning_rate, step, weight_decay)");
  expect("adagrad", f32, {0.1, 1, 0, 1e-7, 5}, "got 5 numbers, want 4");
  for (const DType dtype : {DType::kInt8, DType::kInt32, DType::kInt64}) {
    expect("sgd", dtype, {0.1, 1, 0}, Name(dtype));
  }
  expect("sgd", f32, {nan, 1, 0}, "learning_rate");
  expect("sgd", f32, {infinity, 1, 0}, "learning_rate");
  expect("sgd", f32, {0.1, 0, 0}, "step");
  expect("sgd", f32, {0.1, nan, 0}, "step");
}

}  // namespace
}  // namespace dynemb

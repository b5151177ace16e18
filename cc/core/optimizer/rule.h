// The list of optimizer rules, and how a table names, describes and runs one.
//
// To add a rule: write its header as step.h says, and add it to AllRules.
#ifndef TF_DYNEMB_CC_CORE_OPTIMIZER_RULE_H_
#define TF_DYNEMB_CC_CORE_OPTIMIZER_RULE_H_

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "cc/core/base/dtype.h"
#include "cc/core/base/span.h"
#include "cc/core/base/status.h"
#include "cc/core/optimizer/adadelta.h"
#include "cc/core/optimizer/adagrad.h"
#include "cc/core/optimizer/adam.h"
#include "cc/core/optimizer/adamax.h"
#include "cc/core/optimizer/catch_up.h"
#include "cc/core/optimizer/ftrl.h"
#include "cc/core/optimizer/lion.h"
#include "cc/core/optimizer/nadam.h"
#include "cc/core/optimizer/optimizer_spec.h"
#include "cc/core/optimizer/rmsprop.h"
#include "cc/core/optimizer/sgd.h"
#include "cc/core/optimizer/smart_decay_adam.h"

namespace dynemb {

template <typename... Rules>
struct RuleList {};

using AllRules = RuleList<Sgd, SgdMomentum<false>, SgdMomentum<true>, RmsProp<false, false>,
                          RmsProp<false, true>, RmsProp<true, false>, RmsProp<true, true>,
                          Adam<false>, Adam<true>, SmartDecayAdam, Adamax, Nadam, Adadelta, Adagrad,
                          RowwiseAdagrad, Ftrl, Lion>;

// Calls f(TypeTag<Rule>()) for the rule of this name; false if there is none.
template <typename F, typename... Rules>
bool VisitRule(RuleList<Rules...>, std::string_view name, F&& f) {
  return ((name == Rules::kName && (f(TypeTag<Rules>()), true)) || ...);
}

// A name as it stands in an OptimizerSpec: a rule's, or that with "_catch_up" after it
// (catch_up.h).
struct RuleName {
  explicit RuleName(std::string_view name);
  std::string_view rule;
  bool catches_up;
};

// The catch-up of a rule with these hyper-parameters, and how many slots a column has.
// kInvalidArgument: the rule cannot catch up.
Status GetCatchUp(std::string_view rule, Span<const double> hyper, CatchUp* catch_up,
                  int* column_slots);

// The spec of a rule by name. `slot_initial` is the start of those slots that take it from the user
// (the accumulators of Adagrad and Ftrl). Errors: no rule of that name; a start that is not >= 0.
Status MakeOptimizerSpec(std::string_view name, double slot_initial, OptimizerSpec* spec);

// The names of a rule's hyper-parameters in the order of the vector that RowUpdater takes; empty
// for an unknown rule.
std::vector<std::string> HyperNames(std::string_view rule);

// A rule made ready for one call: hyper-parameters turned into the numbers of its step. Immutable,
// so that threads share it.
class RowUpdater {
 public:
  virtual ~RowUpdater() = default;
  // `value`: dim numbers of the value dtype. `slots`: the slots of the row, packed. `gradient`: dim
  // numbers of GradientDType(value dtype).
  struct Row {
    char* value;
    char* slots;
    const char* gradient;
  };
  // Several rows at a time: a call through a pointer for each would keep the processor from
  // fetching the next row while it waits for one.
  virtual void Update(int64_t dim, Span<const Row> rows) const = 0;
  void Update(int64_t dim, const Row& row) const { Update(dim, {&row, 1}); }
};

// Errors: unknown rule, wrong number of hyper-parameters, a dtype that cannot be trained, a
// learning rate or step that is not a number.
Status MakeRowUpdater(std::string_view rule, DType value_dtype, Span<const double> hyper,
                      std::unique_ptr<RowUpdater>* updater);

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_CORE_OPTIMIZER_RULE_H_

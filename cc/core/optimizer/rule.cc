#include "cc/core/optimizer/rule.h"

#include <cmath>
#include <type_traits>

#include "cc/core/base/vector_variants.h"

namespace dynemb {
namespace {

template <typename... Rules>
std::string NamesOf(RuleList<Rules...>) {
  std::string names;
  ((names += names.empty() ? Rules::kName : StrCat(", ", Rules::kName)), ...);
  return names;
}

Status UnknownRule(std::string_view name) {
  return InvalidArgument("optimizer rule: got '", name, "', want one of ", NamesOf(AllRules()));
}

template <typename Rule, typename V>
struct UpdateRows {
  using T = ComputeType<V>;
  static DYNEMB_ALWAYS_INLINE void Run(const typename Rule::template Step<T>& step, T decay,
                                       int64_t dim, Span<const RowUpdater::Row> rows) {
    for (const RowUpdater::Row& row : rows) {
      UpdateRow<Rule, V>(step, decay, dim, reinterpret_cast<V*>(row.value),
                         reinterpret_cast<T*>(row.slots), reinterpret_cast<const T*>(row.gradient));
    }
  }
};

template <typename Rule, typename V>
class RuleUpdater final : public RowUpdater {
  using T = ComputeType<V>;

 public:
  explicit RuleUpdater(const double* hyper)
      : step_(hyper),
        decay_(static_cast<T>(hyper[Hyper::kWeightDecay] * hyper[Hyper::kLearningRate])) {}

  void Update(int64_t dim, Span<const Row> rows) const override {
    update_rows_(step_, decay_, dim, rows);
  }

 private:
  const typename Rule::template Step<T> step_;
  const T decay_;
  decltype(&UpdateRows<Rule, V>::Run) const update_rows_ = FastestVariant<UpdateRows<Rule, V>>();
};

}  // namespace

std::string RuleSpec::DebugString() const {
  if (name.empty()) return "none";
  std::string text = name + "(";
  for (size_t i = 0; i < slots.size(); ++i) {
    text += StrCat(i ? ", " : "", slots[i].name, "=", slots[i].initial);
  }
  return text + ")";
}

Status MakeRuleSpec(std::string_view name, double slot_initial, RuleSpec* spec) {
  if (!(slot_initial >= 0) || !std::isfinite(slot_initial)) {
    return InvalidArgument("slot_initial: got ", slot_initial, ", want a finite number >= 0");
  }
  spec->slots.clear();
  const bool found = VisitRule(AllRules(), name, [&](auto tag) {
    using Rule = typename decltype(tag)::type;
    spec->name = Rule::kName;
    for (int k = 0; k < Rule::kSlotCount; ++k) {
      const SlotDecl& slot = Rule::kSlots[k];
      spec->slots.push_back(
          {slot.name, slot.width, slot.initial_is_given ? static_cast<float>(slot_initial) : 0.0f});
    }
  });
  return found ? Status() : UnknownRule(name);
}

std::vector<std::string> HyperNames(std::string_view rule) {
  std::vector<std::string> names;
  VisitRule(AllRules(), rule, [&](auto tag) {
    using Rule = typename decltype(tag)::type;
    names.assign(std::begin(kCommonHyper), std::end(kCommonHyper));
    for (int k = 0; k < Rule::kHyperCount; ++k) names.push_back(Rule::kHyper[k]);
  });
  return names;
}

Status MakeRowUpdater(std::string_view rule, DType value_dtype, Span<const double> hyper,
                      std::unique_ptr<RowUpdater>* updater) {
  const std::vector<std::string> names = HyperNames(rule);
  if (names.empty()) return UnknownRule(rule);
  if (static_cast<int64_t>(names.size()) != hyper.size) {
    std::string list;
    for (const std::string& name : names) list += (list.empty() ? "" : ", ") + name;
    return InvalidArgument("hyper-parameters of rule ", rule, ": got ", hyper.size,
                           " numbers, want ", names.size(), " (", list, ")");
  }
  if (!IsFloating(value_dtype)) {
    return InvalidArgument("a table of ", Name(value_dtype),
                           " cannot be trained; train a table of a floating value dtype, or change "
                           "this one by upsert and accum");
  }
  if (!std::isfinite(hyper[Hyper::kLearningRate])) {
    return InvalidArgument("learning_rate: got ", hyper[Hyper::kLearningRate],
                           ", want a finite number");
  }
  if (!(hyper[Hyper::kStep] >= 1)) {
    return InvalidArgument("step: got ", hyper[Hyper::kStep], ", want a number from 1 up");
  }
  VisitRule(AllRules(), rule, [&](auto rule_tag) {
    using Rule = typename decltype(rule_tag)::type;
    VisitDType(value_dtype, [&](auto value_tag) {
      using V = typename decltype(value_tag)::type;
      if constexpr (!std::is_integral_v<V>) {
        *updater = std::make_unique<RuleUpdater<Rule, V>>(hyper.data);
      }
    });
  });
  return Status();
}

}  // namespace dynemb

#include "cc/core/optimizer/rule.h"

#include <cmath>
#include <type_traits>
#include <utility>

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

Status CannotCatchUp(std::string_view rule) {
  return InvalidArgument("optimizer rule: got ", rule,
                         " with _catch_up, and it has no closed form for steps without a gradient; "
                         "use it without");
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

template <typename V>
struct CatchUpRows {
  static DYNEMB_ALWAYS_INLINE void Run(const CatchUp& catch_up, double step, int64_t dim,
                                       int column_slots, Span<const RowUpdater::Row> rows) {
    for (const RowUpdater::Row& row : rows) {
      auto* const slots = reinterpret_cast<ComputeType<V>*>(row.slots);
      auto* const last_step = slots + column_slots * dim;
      const double skipped = SkippedSteps(step, last_step);
      LastStep::Set(step, last_step);
      if (skipped == 0) continue;
      CatchUpColumns(catch_up, skipped, 0, 1, dim, column_slots, reinterpret_cast<V*>(row.value),
                     slots);
    }
  }
};

// Catches up with what rows have missed, and then updates them.
template <typename V>
class CatchingUp final : public RowUpdater {
 public:
  CatchingUp(const CatchUp& catch_up, double step, int column_slots,
             std::unique_ptr<RowUpdater> updater)
      : catch_up_(catch_up),
        step_(step),
        column_slots_(column_slots),
        updater_(std::move(updater)) {}

  void Update(int64_t dim, Span<const Row> rows) const override {
    catch_up_rows_(catch_up_, step_, dim, column_slots_, rows);
    updater_->Update(dim, rows);
  }

 private:
  const CatchUp catch_up_;
  const double step_;
  const int column_slots_;
  const std::unique_ptr<RowUpdater> updater_;
  decltype(&CatchUpRows<V>::Run) const catch_up_rows_ = FastestVariant<CatchUpRows<V>>();
};

}  // namespace

std::string OptimizerSpec::DebugString() const {
  if (name.empty()) return "none";
  std::string text = name + "(";
  for (size_t i = 0; i < slots.size(); ++i) {
    text += StrCat(i ? ", " : "", slots[i].name, "=", slots[i].initial);
  }
  return text + ")";
}

Status MakeOptimizerSpec(std::string_view name, double slot_initial, OptimizerSpec* spec) {
  if (!(slot_initial >= 0) || !std::isfinite(slot_initial)) {
    return InvalidArgument("slot_initial: got ", slot_initial, ", want a finite number >= 0");
  }
  const RuleName parsed(name);
  std::vector<SlotSpec> slots;
  const auto add = [&](const SlotDecl& slot) {
    slots.push_back(
        {slot.name, slot.width, slot.initial_is_given ? static_cast<float>(slot_initial) : 0.0f});
  };
  bool can_catch_up = false;
  const bool found = VisitRule(AllRules(), parsed.rule, [&](auto tag) {
    using Rule = typename decltype(tag)::type;
    can_catch_up = CanCatchUp<Rule>::value;
    for (int k = 0; k < Rule::kSlotCount; ++k) add(Rule::kSlots[k]);
  });
  if (!found) return UnknownRule(name);
  if (parsed.catches_up) {
    if (!can_catch_up) return CannotCatchUp(parsed.rule);
    for (const SlotDecl& slot : LastStep::kSlots) add(slot);
  }
  spec->name = name;
  spec->slots = std::move(slots);
  return Status();
}

RuleName::RuleName(std::string_view name) : rule(name), catches_up(false) {
  constexpr std::string_view kEnding = "_catch_up";
  if (name.size() <= kEnding.size() || name.substr(name.size() - kEnding.size()) != kEnding) return;
  rule.remove_suffix(kEnding.size());
  catches_up = true;
}

Status GetCatchUp(std::string_view rule, Span<const double> hyper, CatchUp* catch_up,
                  int* column_slots) {
  Status status = CannotCatchUp(rule);
  VisitRule(AllRules(), rule, [&](auto tag) {
    using Rule = typename decltype(tag)::type;
    if constexpr (CanCatchUp<Rule>::value) {
      static_assert(Rule::kSlotCount <= CatchUp::kMostSlots && RowSlotCount<Rule>::value == 0, "");
      *catch_up = Rule::CatchUpOf(hyper.data);
      *column_slots = Rule::kSlotCount;
      status = Status();
    }
  });
  return status;
}

std::vector<std::string> HyperNames(std::string_view rule) {
  std::vector<std::string> names;
  VisitRule(AllRules(), RuleName(rule).rule, [&](auto tag) {
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
  const RuleName parsed(rule);
  CatchUp catch_up;
  int column_slots = 0;
  if (parsed.catches_up) {
    DYNEMB_RETURN_IF_ERROR(GetCatchUp(parsed.rule, hyper, &catch_up, &column_slots));
  }
  VisitDType(value_dtype, [&](auto value_tag) {
    using V = typename decltype(value_tag)::type;
    if constexpr (!std::is_integral_v<V>) {
      VisitRule(AllRules(), parsed.rule, [&](auto rule_tag) {
        using Rule = typename decltype(rule_tag)::type;
        *updater = std::make_unique<RuleUpdater<Rule, V>>(hyper.data);
      });
      if (parsed.catches_up) {
        *updater = std::make_unique<CatchingUp<V>>(catch_up, hyper[Hyper::kStep], column_slots,
                                                   std::move(*updater));
      }
    }
  });
  return Status();
}

}  // namespace dynemb

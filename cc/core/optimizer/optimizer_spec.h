// OptimizerSpec: which update rule trains a table, and the slot variables that its rows carry for
// it. Part of a table's schema; rule.h has the rules themselves.
#ifndef TF_DYNEMB_CC_CORE_OPTIMIZER_OPTIMIZER_SPEC_H_
#define TF_DYNEMB_CC_CORE_OPTIMIZER_OPTIMIZER_SPEC_H_

#include <cstdint>
#include <string>
#include <vector>

namespace dynemb {

enum class SlotWidth : uint8_t { kColumn, kRow };  // one number per column, or one per row

// One slot variable of a row: `width` numbers, `initial` each when the row is inserted.
struct SlotSpec {
  std::string name;
  SlotWidth width = SlotWidth::kColumn;
  float initial = 0;

  bool operator==(const SlotSpec& o) const {
    return name == o.name && width == o.width && initial == o.initial;
  }
};

// An empty name means that the table is not trained (yet).
struct OptimizerSpec {
  std::string name;
  std::vector<SlotSpec> slots;

  bool operator==(const OptimizerSpec& o) const { return name == o.name && slots == o.slots; }
  bool operator!=(const OptimizerSpec& o) const { return !(*this == o); }
  // "adagrad(accumulator=0.1)".
  std::string DebugString() const;
};

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_CORE_OPTIMIZER_OPTIMIZER_SPEC_H_

// The core's functions in kernels.
#include "cc/core/base/hash.h"
#include "cc/core/optimizer/rule.h"
#include "cc/gpu/for_each.cu.h"
#include "cc/gpu/testing/core_on_device.h"

namespace dynemb {
namespace {

struct Hash {
  Span<const int64_t> keys;
  Span<uint64_t> hashes;
  DYNEMB_HOST_DEVICE void operator()(int64_t i) const {
    hashes[i] = Mix64(static_cast<uint64_t>(keys[i]));
  }
};

template <typename Rule, typename V>
struct UpdateOne {
  using T = ComputeType<V>;
  typename Rule::template Step<T> step;
  T decay;
  int64_t dim;
  Rows values, slots;
  ConstRows gradients;
  DYNEMB_HOST_DEVICE void operator()(int64_t i) const {
    UpdateRow<Rule, V>(step, decay, dim, reinterpret_cast<V*>(values[i]),
                       reinterpret_cast<T*>(slots[i]), reinterpret_cast<const T*>(gradients[i]));
  }
};

}  // namespace

Status HashKeys(const Context& context, const Span<const int64_t>& keys,
                const Span<uint64_t>& hashes) {
  return ForEach(context, keys.size, Hash{keys, hashes});
}

Status UpdateRows(const Context& context, std::string_view rule, DType value_dtype,
                  const double* hyper, int64_t dim, const Rows& values, const Rows& slots,
                  const ConstRows& gradients) {
  Status status = InvalidArgument("no rule ", rule, " for ", Name(value_dtype));
  VisitRule(AllRules(), rule, [&](auto rule_tag) {
    using Rule = typename decltype(rule_tag)::type;
    VisitDType(value_dtype, [&](auto value_tag) {
      using V = typename decltype(value_tag)::type;
      if constexpr (!std::is_integral_v<V>) {
        using T = ComputeType<V>;
        const T decay = static_cast<T>(hyper[Hyper::kWeightDecay] * hyper[Hyper::kLearningRate]);
        status = ForEach(context, values.count,
                         UpdateOne<Rule, V>{typename Rule::template Step<T>(hyper), decay, dim,
                                            values, slots, gradients});
      }
    });
  });
  return status;
}

}  // namespace dynemb

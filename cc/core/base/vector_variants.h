// Loops compiled more than once, for the vector instructions of the processor that runs them.
//
// A binary for any x86-64 processor may use SSE2 alone. A body of loops is written once:
//
//   struct AddRows {
//     static DYNEMB_ALWAYS_INLINE void Run(int64_t n, float* to, const float* from) { ... }
//   };
//   const auto add_rows = FastestVariant<AddRows>();  // once
//   add_rows(n, to, from);
//
// All variants give the same bits: lanes compute what the scalar code would, since no compilation
// of ours fuses or reorders floating-point operations. On other processors there is one variant,
// with what their base has (NEON).
#ifndef TF_DYNEMB_CC_CORE_BASE_VECTOR_VARIANTS_H_
#define TF_DYNEMB_CC_CORE_BASE_VECTOR_VARIANTS_H_

#include <cstdint>
#include <type_traits>

#include "cc/core/base/macros.h"

namespace dynemb {
namespace vector_variants_internal {

template <typename Body, typename Function>
struct Variants;

template <typename Body, typename Result, typename... Args>
struct Variants<Body, Result (*)(Args...)> {
  static Result Base(Args... args) { return Body::Run(args...); }
#if defined(__x86_64__)
  __attribute__((target("avx2"))) static Result Avx2(Args... args) { return Body::Run(args...); }
  __attribute__((target("avx512f,avx512vl,avx512dq,prefer-vector-width=512"))) static Result Avx512(
      Args... args) {
    return Body::Run(args...);
  }
#endif
};

}  // namespace vector_variants_internal

// The variant of Body::Run for this processor, a function pointer.
template <typename Body>
auto FastestVariant() {
  using Made = vector_variants_internal::Variants<Body, decltype(&Body::Run)>;
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
      __builtin_cpu_supports("avx512dq")) {
    return &Made::Avx512;
  }
  if (__builtin_cpu_supports("avx2")) return &Made::Avx2;
#endif
  return &Made::Base;
}

// Calls work(first, columns) for all of [0, n): blocks of 64 columns, then of 16, of which the
// compiler knows the number, so that totals of so many columns are kept in registers; and the rest.
// `work` is a lambda that is DYNEMB_INLINE_LAMBDA: compiled as what calls this.
constexpr int64_t kColumnsOfBlock = 64;  // at most
template <typename Work>
DYNEMB_ALWAYS_INLINE void ForColumnBlocks(int64_t n, const Work& work) {
  int64_t first = 0;
  for (; n - first >= 64; first += 64) work(first, std::integral_constant<int64_t, 64>());
  for (; n - first >= 16; first += 16) work(first, std::integral_constant<int64_t, 16>());
  if (first < n) work(first, n - first);
}

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_CORE_BASE_VECTOR_VARIANTS_H_

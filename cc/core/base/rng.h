// The counter-based random generator behind initial values.
//
// Philox4x32-10 of Salmon, Moraes, Dror, Shaw: "Parallel Random Numbers: As Easy as 1, 2, 3" (SC
// 2011). It has no state: the same (key, counter) gives the same 128 bits on every machine and
// device, in any order. Initial values are part of what a seed promises, so this function must
// never change.
#ifndef TF_DYNEMB_CC_CORE_BASE_RNG_H_
#define TF_DYNEMB_CC_CORE_BASE_RNG_H_

#include <cstdint>

#include "cc/core/base/macros.h"

namespace dynemb {

struct Random128 {
  uint32_t word[4];
};

DYNEMB_HOST_DEVICE inline Random128 Philox4x32(uint64_t key, uint64_t counter_low,
                                               uint64_t counter_high) {
  uint32_t k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
  uint32_t c0 = static_cast<uint32_t>(counter_low), c1 = static_cast<uint32_t>(counter_low >> 32);
  uint32_t c2 = static_cast<uint32_t>(counter_high), c3 = static_cast<uint32_t>(counter_high >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = static_cast<uint64_t>(0xd2511f53u) * c0;
    const uint64_t p1 = static_cast<uint64_t>(0xcd9e8d57u) * c2;
    c0 = static_cast<uint32_t>(p1 >> 32) ^ c1 ^ k0;
    c1 = static_cast<uint32_t>(p1);
    c2 = static_cast<uint32_t>(p0 >> 32) ^ c3 ^ k1;
    c3 = static_cast<uint32_t>(p0);
    k0 += 0x9e3779b9u;
    k1 += 0xbb67ae85u;
  }
  return {{c0, c1, c2, c3}};
}

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_CORE_BASE_RNG_H_

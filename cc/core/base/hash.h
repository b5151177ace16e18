// The hash of keys.
//
// All placement inside a table (segment, chunk, tag) reads bits of Mix64(key). It is a bijection,
// so distinct keys never share a hash. Which process has a row (ProcessOf) is by it too, and so is
// which folder of storage, so it never changes.
#ifndef TF_DYNEMB_CC_CORE_BASE_HASH_H_
#define TF_DYNEMB_CC_CORE_BASE_HASH_H_

#include <cstdint>

#include "cc/core/base/macros.h"

namespace dynemb {

// The finalizer of SplitMix64 (Steele, Lea, Flood: "Fast Splittable Pseudorandom Number
// Generators", OOPSLA 2014, variant 13 of David Stafford's mixers) after an odd offset, so that 0
// does not map to 0.
DYNEMB_HOST_DEVICE inline uint64_t Mix64(uint64_t x) {
  x += 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

// The number whose Mix64 is `hash`.
DYNEMB_HOST_DEVICE inline uint64_t Unmix64(uint64_t hash) {
  // The inverse of each line, from the last to the first.
  uint64_t x = hash ^ (hash >> 31) ^ (hash >> 62);
  x *= 0x319642b2d24d8ec3ull;
  x = x ^ (x >> 27) ^ (x >> 54);
  x *= 0x96de1b173f119089ull;
  x = x ^ (x >> 30) ^ (x >> 60);
  return x - 0x9e3779b97f4a7c15ull;
}

// Maps the 32 bits of `hash` evenly to [0, n) without a division (Lemire, "Fast Random Integer
// Generation in an Interval", 2019).
DYNEMB_HOST_DEVICE inline uint32_t ReduceRange(uint32_t hash, uint32_t n) {
  return static_cast<uint32_t>((static_cast<uint64_t>(hash) * n) >> 32);
}

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_CORE_BASE_HASH_H_

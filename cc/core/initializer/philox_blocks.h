// Random numbers of many columns at once, the bulk of the work of initial values.
#ifndef TF_DYNEMB_CC_CORE_INITIALIZER_PHILOX_BLOCKS_H_
#define TF_DYNEMB_CC_CORE_INITIALIZER_PHILOX_BLOCKS_H_

#include <cstdint>

namespace dynemb {

constexpr int64_t kPhiloxBlocks = 8;

// Writes the words of Philox4x32(seed, key, block) for the blocks first, first + 1, ..., first + 7,
// which must be below 2^32, one block after the other.
using PhiloxBlocksFunction = void (*)(uint64_t seed, uint64_t key, uint64_t first,
                                      uint32_t words[4 * kPhiloxBlocks]);

// The function for this processor. With AVX-512 it takes a third of the time of the others: they
// are what the compiler makes of a loop, and it does not find that the halves of 64-bit products
// need not be taken apart between rounds.
PhiloxBlocksFunction FastestPhiloxBlocks();
// The one for any processor.
void PhiloxBlocksAnywhere(uint64_t seed, uint64_t key, uint64_t first,
                          uint32_t words[4 * kPhiloxBlocks]);

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_CORE_INITIALIZER_PHILOX_BLOCKS_H_

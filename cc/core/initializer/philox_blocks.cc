#include "cc/core/initializer/philox_blocks.h"

#include "cc/core/base/rng.h"
#include "cc/core/base/vector_variants.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace dynemb {
namespace {

struct Blocks {
  static DYNEMB_ALWAYS_INLINE void Run(uint64_t seed, uint64_t key, uint64_t first,
                                       uint32_t* words) {
    uint32_t by_word[4][kPhiloxBlocks];
    for (int64_t block = 0; block < kPhiloxBlocks; ++block) {
      const Random128 random = Philox4x32(seed, key, first + static_cast<uint64_t>(block));
      for (int64_t word = 0; word < 4; ++word) by_word[word][block] = random.word[word];
    }
    for (int64_t i = 0; i < 4 * kPhiloxBlocks; ++i) words[i] = by_word[i % 4][i / 4];
  }
};

#if defined(__x86_64__)
// GCC 12 warns of the values that its own intrinsics leave undefined on purpose (its bug 105593).
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
// The rounds of Philox4x32 (rng.h), a block in each 64-bit lane. A word is in the low half of its
// lane; what is in the high half is not looked at.
__attribute__((target("avx512f"))) void BlocksAvx512(uint64_t seed, uint64_t key, uint64_t first,
                                                     uint32_t* words) {
  constexpr int kXorOfThree = 0x96;
  const __m512i multiplier0 = _mm512_set1_epi64(0xd2511f53);
  const __m512i multiplier1 = _mm512_set1_epi64(0xcd9e8d57);
  __m512i c0 = _mm512_set1_epi64(static_cast<int64_t>(key));
  __m512i c1 = _mm512_srli_epi64(c0, 32);
  __m512i c2 = _mm512_add_epi64(_mm512_set1_epi64(static_cast<int64_t>(first)),
                                _mm512_setr_epi64(0, 1, 2, 3, 4, 5, 6, 7));
  __m512i c3 = _mm512_setzero_si512();
  __m512i k0 = _mm512_set1_epi64(static_cast<int64_t>(seed));
  __m512i k1 = _mm512_srli_epi64(k0, 32);
  for (int round = 0; round < 10; ++round) {
    const __m512i p0 = _mm512_mul_epu32(multiplier0, c0);
    const __m512i p1 = _mm512_mul_epu32(multiplier1, c2);
    c0 = _mm512_ternarylogic_epi64(_mm512_srli_epi64(p1, 32), c1, k0, kXorOfThree);
    c2 = _mm512_ternarylogic_epi64(_mm512_srli_epi64(p0, 32), c3, k1, kXorOfThree);
    c1 = p1;
    c3 = p0;
    k0 = _mm512_add_epi64(k0, _mm512_set1_epi64(0x9e3779b9));
    k1 = _mm512_add_epi64(k1, _mm512_set1_epi64(0xbb67ae85));
  }
  // Words 0 and 1 of each block, 2 and 3, and all in the order of blocks.
  const __m512i front = _mm512_mask_mov_epi32(_mm512_slli_epi64(c1, 32), 0x5555, c0);
  const __m512i back = _mm512_mask_mov_epi32(_mm512_slli_epi64(c3, 32), 0x5555, c2);
  const __m512i order0 = _mm512_setr_epi64(0, 8, 1, 9, 2, 10, 3, 11);
  const __m512i order1 = _mm512_setr_epi64(4, 12, 5, 13, 6, 14, 7, 15);
  _mm512_storeu_si512(words, _mm512_permutex2var_epi64(front, order0, back));
  _mm512_storeu_si512(words + 16, _mm512_permutex2var_epi64(front, order1, back));
}
#pragma GCC diagnostic pop
#endif

}  // namespace

void PhiloxBlocksAnywhere(uint64_t seed, uint64_t key, uint64_t first, uint32_t* words) {
  Blocks::Run(seed, key, first, words);
}

PhiloxBlocksFunction FastestPhiloxBlocks() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f")) return &BlocksAvx512;
#endif
  return FastestVariant<Blocks>();
}

}  // namespace dynemb

// Sums by key, against plain loops.
#include "cc/core/lookup/sum_by_key.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "cc/core/testing/executors.h"

namespace dynemb {
namespace {

std::vector<Key> RandomKeys(int64_t n, uint64_t distinct, uint64_t seed) {
  const Key special[] = {std::numeric_limits<Key>::min(), -1, 0, 1,
                         std::numeric_limits<Key>::max()};
  std::mt19937_64 random(seed);
  std::vector<Key> keys(n);
  for (Key& key : keys) {
    const uint64_t draw = random() % distinct;
    key = draw < 5 ? special[draw] : static_cast<Key>(draw << 40);
  }
  return keys;
}

TEST(SumByKey, AddsInBatchOrderForAnyNumberOfThreads) {
  constexpr int64_t kRows = 30000, kDim = 3;  // of which several threads sort slices
  const std::vector<Key> keys = RandomKeys(kRows, 1200, 1);
  std::mt19937 random(2);
  std::normal_distribution<float> normal;
  std::vector<float> rows(kRows * kDim);
  for (float& x : rows) x = normal(random);
  const DistinctKeys distinct{Span<const Key>(keys)};
  std::vector<float> want(distinct.size() * kDim, 0.0f);
  for (int64_t i = 0; i < kRows; ++i) {
    for (int64_t c = 0; c < kDim; ++c) {
      want[distinct.numbers()[i] * kDim + c] += rows[i * kDim + c];
    }
  }
  InlineExecutor inline_executor;
  ThreadPerTask threads;
  for (Executor* executor :
       {static_cast<Executor*>(&inline_executor), static_cast<Executor*>(&threads)}) {
    Context context;
    context.executor = executor;
    std::vector<float> sums(want.size(), -1.0f);
    const std::vector<double> others(kRows, 2.0);  // where an empty span of scales may lie
    const Status summed =
        SumByKey(context, distinct, DType::kFloat32, kDim,
                 {reinterpret_cast<const char*>(rows.data()), kRows, kDim * 4}, {others.data(), 0},
                 {reinterpret_cast<char*>(sums.data()), distinct.size(), kDim * 4});
    EXPECT_TRUE(summed.ok());
    EXPECT_EQ(sums, want);  // bit for bit: the same additions in the same order
  }
}

TEST(SumByKey, RoundsSixteenBitSumsOnce) {
  // 256 + 256 * 1 in bfloat16 (8 bits of mantissa): added one by one, every 1 would be lost.
  const std::vector<Key> keys(257, 5);
  std::vector<BFloat16> rows(257, BFloat16(1.0f));
  rows[0] = BFloat16(256.0f);
  const DistinctKeys distinct{Span<const Key>(keys)};
  InlineExecutor executor;
  Context context;
  context.executor = &executor;
  BFloat16 sum;
  EXPECT_TRUE(SumByKey(context, distinct, DType::kBFloat16, 1,
                       {reinterpret_cast<const char*>(rows.data()), 257, 2}, {},
                       {reinterpret_cast<char*>(&sum), 1, 2})
                  .ok());
  EXPECT_EQ(static_cast<float>(sum), 512.0f);
}

}  // namespace
}  // namespace dynemb

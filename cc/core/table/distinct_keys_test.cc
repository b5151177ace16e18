// DistinctKeys against a map.
#include "cc/core/table/distinct_keys.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <map>
#include <random>
#include <vector>

namespace dynemb {
namespace {

std::vector<Key> RandomKeys(int64_t n, uint64_t distinct, uint64_t seed) {
  const Key special[] = {std::numeric_limits<Key>::min(), -1, 0, 1,
                         std::numeric_limits<Key>::max()};
  std::mt19937_64 random(seed);
  std::vector<Key> keys(static_cast<size_t>(n));
  for (Key& key : keys) {
    const uint64_t draw = random() % distinct;
    key = draw < 5 ? special[draw] : static_cast<Key>(draw << 40);
  }
  return keys;
}

void ExpectNumbersByFirstAppearance(const std::vector<Key>& keys, const DistinctKeys& distinct) {
  std::map<Key, int64_t> number_of;
  std::vector<Key> want;
  for (size_t i = 0; i < keys.size(); ++i) {
    const auto [at, is_new] = number_of.emplace(keys[i], static_cast<int64_t>(number_of.size()));
    if (is_new) want.push_back(keys[i]);
    EXPECT_EQ(distinct.numbers()[i], at->second);
    EXPECT_EQ(distinct.number(static_cast<int64_t>(i)), at->second);
    EXPECT_EQ(distinct.NumberOf(keys[i]), at->second);
  }
  EXPECT_EQ(distinct.keys(), want);
  EXPECT_EQ(distinct.NumberOf(7), -1);  // which no batch has
}

TEST(DistinctKeys, AreNumberedInTheOrderOfFirstAppearance) {
  for (const int64_t n : {0, 1, 7, 64, 65, 1000}) {  // 64 are fetched ahead at a time
    for (const uint64_t distinct : {1, 3, 100, 1000000}) {
      const std::vector<Key> keys = RandomKeys(n, distinct, static_cast<uint64_t>(n) + distinct);
      ExpectNumbersByFirstAppearance(keys, DistinctKeys(Span<const Key>(keys)));
    }
  }
}

TEST(DistinctKeys, OfABatchAreThoseThatTakePart) {
  const std::vector<Key> keys = RandomKeys(500, 100, 1);
  std::vector<int64_t> positions;
  for (int64_t i = 499; i >= 0; i -= 3) positions.push_back(i);
  auto count = static_cast<int64_t>(positions.size()) - 10;  // of those that there is room for
  const Positions select = {positions, &count};
  std::vector<Key> selected;
  for (int64_t j = 0; j < count; ++j) selected.push_back(keys[positions[j]]);
  ExpectNumbersByFirstAppearance(selected, DistinctKeys(Batch{keys, &select}));
}

}  // namespace
}  // namespace dynemb

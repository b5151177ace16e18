// GroupedKeys: keys are grouped by process, in their order, by remainder or by hash.
#include "cc/core/shard/grouped_keys.h"

#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "cc/core/shard/routing.h"

namespace dynemb {
namespace {

const Key kLeast = std::numeric_limits<Key>::min();

GroupedKeys Grouped(Span<const Key> keys, int64_t processes, bool by_hash) {
  GroupedKeys grouped;
  EXPECT_TRUE(GroupByProcess(OneThread(), keys, processes, by_hash, &grouped).ok());
  return grouped;
}

TEST(GroupByProcess, KeepsTheOrderOfEachProcessesKeysAndKnowsWhereEachIs) {
  const std::vector<Key> keys = {5, -1, kLeast, 3, 4, 5};
  const GroupedKeys grouped = Grouped(keys, 3, false);
  // By floor: -1 mod 3 is 2, and -2^63 mod 3 is 1.
  EXPECT_EQ(grouped.keys, (std::vector<Key>{3, kLeast, 4, 5, -1, 5}));
  EXPECT_EQ(grouped.counts, (std::vector<int64_t>{1, 2, 3}));
  for (size_t i = 0; i < keys.size(); ++i) EXPECT_EQ(grouped.keys[grouped.places[i]], keys[i]);
}

TEST(GroupByProcess, OneProcessAndNoKeys) {
  for (const bool by_hash : {false, true}) {
    EXPECT_EQ(Grouped(std::vector<Key>{9, 8}, 1, by_hash).keys, (std::vector<Key>{9, 8}));
    EXPECT_EQ(Grouped({}, 2, by_hash).counts, (std::vector<int64_t>{0, 0}));
  }
}

// 1,000 +- 100 of 3,000: seven standard deviations of a random choice.
TEST(GroupByProcess, KeysWithACommonFactorAreSpreadByTheirHash) {
  for (const Key factor : {Key{1}, Key{3}, Key{3} << 40}) {
    std::vector<Key> keys;
    for (Key i = -1500; i < 1500; ++i) keys.push_back(i * factor);
    const GroupedKeys grouped = Grouped(keys, 3, true);
    for (const int64_t count : grouped.counts) EXPECT_NEAR(count, 1000, 180);
    for (size_t i = 0; i < keys.size(); ++i) EXPECT_EQ(grouped.keys[grouped.places[i]], keys[i]);
  }
}

// Folders of storage depend on it. The numbers are those of another program of SplitMix64.
TEST(ProcessOf, NeverChanges) {
  std::vector<int32_t> by_hash;
  for (const Key key : {Key{0}, Key{1}, Key{2}, Key{3}, Key{-1}, Key{1} << 40, kLeast})
    by_hash.push_back(ProcessOf(key, 1000, true));
  EXPECT_EQ(by_hash, (std::vector<int32_t>{652, 368, 392, 737, 366, 199, 526}));
}

}  // namespace
}  // namespace dynemb

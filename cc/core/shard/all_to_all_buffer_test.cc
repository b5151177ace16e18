// AllToAllBuffer: keys are grouped by shard, parts come out as they went in, and counts that cannot
// be are refused.
#include "cc/core/shard/all_to_all_buffer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <random>
#include <string>
#include <vector>

namespace dynemb {
namespace {

TEST(GroupByShard, KeepsTheOrderOfEachShardsKeysAndKnowsWhereEachIs) {
  const Key least = std::numeric_limits<Key>::min();
  const std::vector<Key> keys = {5, -1, least, 3, 4, 5};
  GroupedKeys grouped;
  ASSERT_TRUE(GroupByShard(keys, {}, 3, &grouped).ok());
  // By floor: -1 mod 3 is 2, and -2^63 mod 3 is 1.
  EXPECT_EQ(grouped.keys, (std::vector<Key>{3, least, 4, 5, -1, 5}));
  EXPECT_EQ(grouped.counts, (std::vector<int64_t>{1, 2, 3}));
  for (size_t i = 0; i < keys.size(); ++i) EXPECT_EQ(grouped.keys[grouped.places[i]], keys[i]);
}

TEST(GroupByShard, TakesGivenShardsAndNamesTheKeyOfABadOne) {
  const std::vector<Key> keys = {5, -77};
  GroupedKeys grouped;
  ASSERT_TRUE(GroupByShard(keys, std::vector<int32_t>{1, 0}, 2, &grouped).ok());
  EXPECT_EQ(grouped.keys, (std::vector<Key>{-77, 5}));
  const Status status = GroupByShard(keys, std::vector<int32_t>{0, 2}, 2, &grouped);
  EXPECT_NE(status.message().find("key -77"), std::string::npos) << status.message();
  EXPECT_FALSE(GroupByShard(keys, std::vector<int32_t>{0}, 2, &grouped).ok());
}

TEST(GroupByShard, OneShardAndNoKeys) {
  GroupedKeys grouped;
  ASSERT_TRUE(GroupByShard(std::vector<Key>{9, 8}, {}, 1, &grouped).ok());
  EXPECT_EQ(grouped.keys, (std::vector<Key>{9, 8}));
  EXPECT_EQ(grouped.counts, std::vector<int64_t>{2});
  ASSERT_TRUE(GroupByShard({}, {}, 2, &grouped).ok());
  EXPECT_EQ(grouped.counts, (std::vector<int64_t>{0, 0}));
}

// What a process sends to each of `receivers` is what each gets from it, of any sizes.
TEST(AllToAllBuffer, EveryPartArrives) {
  const OneThread context;
  std::mt19937 random(7);
  for (int round = 0; round < 200; ++round) {
    AllToAllLayout layout;
    layout.receivers = 1 + random() % 4;
    const int64_t parts = 1 + random() % 4;
    std::vector<int64_t> counts;
    int64_t words = 0;
    for (int64_t p = 0; p < parts; ++p) layout.item_bytes.push_back(1 + random() % 20);
    for (int64_t r = 0; r < layout.receivers; ++r) {
      int64_t of_buffer = 0;
      for (int64_t p = 0; p < parts; ++p) {
        counts.push_back(random() % 5);
        of_buffer += (counts.back() * layout.item_bytes[p] + 7) / 8;
      }
      words = std::max(words, of_buffer);
    }
    layout.counts = counts;
    layout.words = words;
    ASSERT_TRUE(layout.Check().ok());
    std::vector<std::vector<char>> sent, received;
    std::vector<const char*> from;
    std::vector<char*> to;
    for (int64_t p = 0; p < parts; ++p) {
      sent.emplace_back(layout.total(p) * layout.item_bytes[p]);
      for (char& byte : sent.back()) byte = static_cast<char>(random());
      received.emplace_back(sent.back().size());
    }
    for (int64_t p = 0; p < parts; ++p) from.push_back(sent[p].data());
    for (int64_t p = 0; p < parts; ++p) to.push_back(received[p].data());
    std::vector<int64_t> buffers(layout.receivers * words, -1);
    EXPECT_TRUE(PackAllToAll(context, layout, from, buffers.data()).ok());
    EXPECT_TRUE(UnpackAllToAll(context, layout, buffers.data(), to).ok());
    EXPECT_EQ(received, sent);

    if (words == 0) continue;
    layout.words = words - 1;
    EXPECT_EQ(layout.Check().code(), Code::kInvalidArgument);
  }
}

TEST(AllToAllBuffer, CountsFromAnotherProcessAreChecked) {
  for (const int64_t count : {int64_t{-1}, int64_t{5}, std::numeric_limits<int64_t>::max(),
                              std::numeric_limits<int64_t>::min()}) {
    const std::vector<int64_t> counts = {count};
    AllToAllLayout layout;
    layout.receivers = 1;
    layout.words = 4;
    layout.item_bytes = {8};
    layout.counts = counts;
    EXPECT_EQ(layout.Check().code(), Code::kInvalidArgument) << count;
    layout.receivers = 2;
    EXPECT_EQ(layout.Check().code(), Code::kInvalidArgument);
  }
}

TEST(AllToAllBuffer, PaddingIsZeros) {
  const std::vector<int64_t> counts = {1};
  AllToAllLayout layout;
  layout.receivers = 1;
  layout.words = 3;
  layout.item_bytes = {3};
  layout.counts = counts;
  std::vector<int64_t> buffers(3, -1);
  EXPECT_TRUE(PackAllToAll(OneThread(), layout, {"abc"}, buffers.data()).ok());
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(buffers.data()), 24),
            std::string("abc") + std::string(21, '\0'));
}

}  // namespace
}  // namespace dynemb

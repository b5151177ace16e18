// Routing: every position goes to the shard of its id, and bad ids are named.
#include "cc/core/shard/routing.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

namespace dynemb {
namespace {

std::vector<int64_t> At(const Positions* positions) {
  return std::vector<int64_t>(positions->at.begin(), positions->at.begin() + *positions->count);
}

TEST(Routing, OneShardTakesTheBatchAsItIs) {
  const std::vector<Key> keys = {3, 4};
  Routing routing;
  ASSERT_TRUE(Routing::Make(OneThread(), keys, {}, 1, &routing).ok());
  EXPECT_EQ(routing.share(0), nullptr);
}

TEST(Routing, SplitsByShardInBatchOrder) {
  const std::vector<Key> keys = {10, 11, 12, 13, 14};
  const std::vector<int32_t> shard_ids = {2, 0, 2, 0, 2};
  Routing routing;
  ASSERT_TRUE(Routing::Make(OneThread(), keys, shard_ids, 3, &routing).ok());
  EXPECT_EQ(At(routing.share(0)), (std::vector<int64_t>{1, 3}));
  EXPECT_EQ(At(routing.share(1)), (std::vector<int64_t>{}));
  EXPECT_EQ(At(routing.share(2)), (std::vector<int64_t>{0, 2, 4}));
}

TEST(Routing, LeavesOutWhatIsOfOtherProcesses) {
  const std::vector<Key> keys = {10, 11, -1, -2, 14, 13};
  const std::vector<int32_t> shard_ids = {1, 1, 0, 1, 0, 1};
  const std::vector<std::vector<int64_t>> of_three = {{}, {0, 3, 5}, {1, 2, 4}};
  for (int64_t index = 0; index < 3; ++index) {
    Routing one, two;
    ASSERT_TRUE(Routing::Make(OneThread(), keys, {}, 1, &one, {index, 3}).ok());
    ASSERT_TRUE(Routing::Make(OneThread(), keys, shard_ids, 2, &two, {index, 3}).ok());
    EXPECT_EQ(At(one.share(0)), of_three[static_cast<size_t>(index)]);
    std::vector<int64_t> both = At(two.share(0)), other = At(two.share(1));
    for (const int64_t at : both) EXPECT_EQ(shard_ids[static_cast<size_t>(at)], 0);
    both.insert(both.end(), other.begin(), other.end());
    std::sort(both.begin(), both.end());
    EXPECT_EQ(both, of_three[static_cast<size_t>(index)]);
  }
  Routing routing;
  EXPECT_EQ(Routing::Make(OneThread(), keys, {}, 2, &routing, {0, 3}).code(),
            Code::kInvalidArgument);
}

TEST(Routing, LeavesOutWhatIdsSayIsOfOtherParts) {
  const std::vector<Key> keys = {10, 11, -1, -2, 14};
  const std::vector<int32_t> parts = {2, 0, 1, 2, 0};
  const std::vector<std::vector<int64_t>> of_three = {{1, 4}, {2}, {0, 3}};
  Routing routing;
  for (int64_t index = 0; index < 3; ++index) {
    ASSERT_TRUE(Routing::Make(OneThread(), keys, parts, 1, &routing, {index, 3}).ok());
    EXPECT_EQ(At(routing.share(0)), of_three[static_cast<size_t>(index)]);
  }
  EXPECT_EQ(Routing::Make(OneThread(), keys, parts, 1, &routing, {0, 2}).code(),
            Code::kInvalidArgument);
}

TEST(Routing, RefusesBadIdsAndNamesTheKey) {
  const std::vector<Key> keys = {10, -77};
  for (const int32_t shard_id : {-1, 2}) {
    const std::vector<int32_t> shard_ids = {0, shard_id};
    Routing routing;
    const Status status = Routing::Make(OneThread(), keys, shard_ids, 2, &routing);
    EXPECT_EQ(status.code(), Code::kInvalidArgument);
    EXPECT_NE(status.message().find("key -77"), std::string::npos) << status.message();
  }
  const std::vector<int32_t> short_shard_ids = {0};
  Routing routing;
  EXPECT_EQ(Routing::Make(OneThread(), keys, short_shard_ids, 2, &routing).code(),
            Code::kInvalidArgument);
}

}  // namespace
}  // namespace dynemb

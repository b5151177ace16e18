// Routing: every position goes to the shard of its owner, and bad owners are named.
#include "cc/core/shard/routing.h"

#include <gtest/gtest.h>

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
  ASSERT_TRUE(Routing::Make(keys, {}, 1, &routing).ok());
  EXPECT_EQ(routing.share(0), nullptr);
}

TEST(Routing, SplitsByOwnerInBatchOrder) {
  const std::vector<Key> keys = {10, 11, 12, 13, 14};
  const std::vector<int32_t> owners = {2, 0, 2, 0, 2};
  Routing routing;
  ASSERT_TRUE(Routing::Make(keys, owners, 3, &routing).ok());
  EXPECT_EQ(At(routing.share(0)), (std::vector<int64_t>{1, 3}));
  EXPECT_EQ(At(routing.share(1)), (std::vector<int64_t>{}));
  EXPECT_EQ(At(routing.share(2)), (std::vector<int64_t>{0, 2, 4}));
}

TEST(Routing, RefusesBadOwnersAndNamesTheKey) {
  const std::vector<Key> keys = {10, -77};
  for (const int32_t owner : {-1, 2}) {
    const std::vector<int32_t> owners = {0, owner};
    Routing routing;
    const Status status = Routing::Make(keys, owners, 2, &routing);
    EXPECT_EQ(status.code(), Code::kInvalidArgument);
    EXPECT_NE(status.message().find("key -77"), std::string::npos) << status.message();
  }
  const std::vector<int32_t> short_owners = {0};
  Routing routing;
  EXPECT_EQ(Routing::Make(keys, short_owners, 2, &routing).code(), Code::kInvalidArgument);
}

}  // namespace
}  // namespace dynemb

// Grid: every process reaches every other one in two stages, with few messages.
#include "cc/core/shard/grid.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

namespace dynemb {
namespace {

bool Has(const std::vector<int>& some, int process) {
  return std::find(some.begin(), some.end(), process) != some.end();
}

TEST(Grid, InOneStageEachSendsToEachOther) {
  const Grid grid(5, 1);
  EXPECT_EQ(grid.Via(1, 4), 4);
  EXPECT_EQ(grid.Row(2), (std::vector<int>{0, 1, 2, 3, 4}));
  EXPECT_EQ(grid.Senders(2), (std::vector<int>{0, 1, 2, 3, 4}));
  EXPECT_EQ(grid.Column(2), (std::vector<int>{2}));
  EXPECT_EQ(grid.Peers(2), (std::vector<int>{0, 1, 3, 4}));
}

// 0 1 2 3
// 4 5 6 7
// 8 9
TEST(Grid, InTwoStagesItemsGoAlongRowAndColumn) {
  const Grid grid(10, 2);
  EXPECT_EQ(grid.Via(1, 7), 3);
  EXPECT_EQ(grid.Via(1, 9), 1);
  EXPECT_EQ(grid.Via(9, 4), 8);
  EXPECT_EQ(grid.Column(5), (std::vector<int>{1, 9, 5}));
  EXPECT_EQ(grid.Row(5), (std::vector<int>{4, 5, 6, 7}));
  // The last row has no third and no fourth column of its own.
  EXPECT_EQ(grid.Via(9, 6), 2);
  EXPECT_EQ(grid.Via(9, 3), 7);
  EXPECT_EQ(grid.Row(9), (std::vector<int>{2, 7, 8, 9}));
  EXPECT_EQ(grid.Senders(7), (std::vector<int>{4, 5, 6, 7, 8, 9}));
}

TEST(Grid, OfAnyNumberOfProcesses) {
  for (int processes = 1; processes <= 50; ++processes) {
    const Grid grid(processes, 2);
    const double root = std::sqrt(processes);
    for (int p = 0; p < processes; ++p) {
      const std::vector<int> row = grid.Row(p), senders = grid.Senders(p);
      const std::vector<int> column = grid.Column(p), peers = grid.Peers(p);
      EXPECT_EQ(column.back(), p);
      for (int to = 0; to < processes; ++to) {
        const int via = grid.Via(p, to);
        EXPECT_TRUE(Has(row, via));
        EXPECT_TRUE(Has(grid.Senders(via), p));
        EXPECT_TRUE(Has(grid.Column(via), to));
      }
      for (const int peer : peers) {
        EXPECT_TRUE(Has(grid.Peers(peer), p));
        // One message each way at most, which is what a round has.
        EXPECT_LE(Has(row, peer) + Has(column, peer), 1) << processes << " " << p << " " << peer;
        EXPECT_LE(Has(senders, peer) + Has(column, peer), 1);
      }
      EXPECT_LT(row.size() + column.size(), 2 * root + 3);
      EXPECT_LT(senders.size() + column.size(), 3 * root + 3);
    }
  }
}

}  // namespace
}  // namespace dynemb

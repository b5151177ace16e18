// Lineage: which snapshots can be a base, and that their number is bounded.
#include "cc/core/snapshot/lineage.h"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

namespace dynemb {
namespace {

using Ids = std::vector<uint64_t>;
using Epochs = std::vector<int64_t>;

int64_t EpochOf(const Lineage& lineage, uint64_t snapshot) {
  int64_t epoch = -2;
  return lineage.EpochOf(snapshot, &epoch) ? epoch : -1;
}

TEST(Lineage, AChainKeepsItsLastTwo) {
  Lineage lineage;
  lineage.Tracked(100, 0, 0);
  for (uint64_t n = 1; n <= 1000; ++n) {
    lineage.Tracked(100 + n, 99 + n, static_cast<int64_t>(n));
    EXPECT_EQ(lineage.snapshots(), (Ids{99 + n, 100 + n}));
    EXPECT_EQ(EpochOf(lineage, 100 + n), static_cast<int64_t>(n));
    EXPECT_EQ(lineage.positions(), (Epochs{static_cast<int64_t>(n) - 1, static_cast<int64_t>(n)}));
  }
  EXPECT_EQ(EpochOf(lineage, 100), -1);
}

// Two that save deltas beside each other, each of its own last one.
TEST(Lineage, ChainsDoNotDisturbEachOther) {
  Lineage lineage;
  lineage.Tracked(1, 0, 0);
  lineage.Tracked(1001, 0, 1);
  for (uint64_t n = 1; n <= 100; ++n) {
    for (const uint64_t chain : {0, 1000}) {
      ASSERT_NE(EpochOf(lineage, chain + n), -1) << chain << " " << n;
      lineage.Tracked(chain + n + 1, chain + n, static_cast<int64_t>(2 * n + chain / 1000));
    }
    EXPECT_EQ(lineage.snapshots().size(), 4u);
  }
}

TEST(Lineage, DeltasOfOneBaseKeepIt) {
  Lineage lineage;
  lineage.Tracked(1, 0, 5);
  for (uint64_t n = 2; n <= 100; ++n) {
    lineage.Tracked(n, 1, static_cast<int64_t>(n + 4));
    EXPECT_EQ(EpochOf(lineage, 1), 5);
    EXPECT_EQ(lineage.snapshots().back(), n);
    EXPECT_LE(lineage.snapshots().size(), Lineage::kMost);
  }
  EXPECT_EQ(lineage.positions().front(), 5);
  EXPECT_EQ(lineage.positions().size(), Lineage::kMost);
}

// Chains of a full snapshot and one delta, one after the other: a full snapshot of which no delta
// has been saved yet is not what goes first.
TEST(Lineage, TheLeastRecentlyUsedGoFirst) {
  Lineage lineage;
  for (uint64_t n = 2; n <= 200; n += 2) {
    lineage.Tracked(n, 0, static_cast<int64_t>(n));
    lineage.Tracked(9999, 0, static_cast<int64_t>(n));  // another's
    ASSERT_EQ(EpochOf(lineage, n), static_cast<int64_t>(n));
    lineage.Tracked(n + 1, n, static_cast<int64_t>(n + 1));
    ASSERT_EQ(EpochOf(lineage, n + 1), static_cast<int64_t>(n + 1));
  }
  EXPECT_EQ(lineage.snapshots().size(), Lineage::kMost);
}

// A save that is being written keeps the changes since the epoch that it ended, though others of
// later epochs are done before it.
TEST(Lineage, AnEpochIsHeldWhileASaveIsUnderWay) {
  Lineage lineage;
  std::shared_ptr<const int64_t> slow = lineage.Hold(3);
  EXPECT_EQ(lineage.positions(), Epochs{3});
  {
    const auto failed = lineage.Hold(2);
    EXPECT_EQ(lineage.positions(), (Epochs{2, 3}));
  }
  lineage.Tracked(8, 0, 4);
  EXPECT_EQ(lineage.positions(), (Epochs{3, 4}));
  lineage.Tracked(7, 0, *slow);
  slow = nullptr;
  EXPECT_EQ(lineage.positions(), (Epochs{3, 4}));
  lineage.Loaded({});
  EXPECT_EQ(lineage.positions(), Epochs());
}

TEST(Lineage, OfFullSnapshotsTheLastAreKnown) {
  Lineage lineage;
  for (uint64_t n = 1; n <= 100; ++n) lineage.Tracked(n, 0, static_cast<int64_t>(n));
  EXPECT_EQ(lineage.snapshots().size(), Lineage::kMost);
  EXPECT_EQ(lineage.snapshots().front(), 100 - Lineage::kMost + 1);
}

TEST(Lineage, WhatWasLoadedIsNoBaseUntilItIsTracked) {
  Lineage lineage;
  EXPECT_EQ(lineage.positions(), Epochs());
  lineage.Tracked(9, 0, 3);
  lineage.Loaded({1, 2});
  EXPECT_EQ(lineage.snapshots(), (Ids{1, 2}));
  EXPECT_EQ(EpochOf(lineage, 2), -1);
  EXPECT_EQ(EpochOf(lineage, 9), -1);
  lineage.Tracked(2, 0, 7);
  EXPECT_EQ(lineage.snapshots(), (Ids{1, 2}));
  EXPECT_EQ(EpochOf(lineage, 2), 7);
  EXPECT_EQ(lineage.positions(), Epochs{7});
  Ids many;
  for (uint64_t n = 1; n <= 100; ++n) many.push_back(n);
  lineage.Loaded(many);
  EXPECT_EQ(lineage.snapshots().back(), 100u);
  EXPECT_EQ(lineage.snapshots().size(), Lineage::kMost);
}

}  // namespace
}  // namespace dynemb

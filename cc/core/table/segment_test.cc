// Segment: its index against a map while it grows, with keys that crowd the ends of the array.
#include "cc/core/table/segment.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

namespace dynemb {
namespace {

class SegmentTest : public ::testing::Test {
 protected:
  struct Known {
    Segment::Ref ref;
    bool marked;
  };

  // Hashes all over the index, or of which the upper bits are those of `crowd`.
  Key NewKey(uint64_t crowd_bits, int bits) {
    for (;;) {
      uint64_t hash = random_() & kHashes;
      if (bits > 0) hash = (hash >> bits | crowd_bits << (58 - bits)) & kHashes;
      const Key key = static_cast<Key>(Unmix64(hash));
      if (known_.count(key) == 0) return key;
    }
  }
  void Insert(Key key) {
    const Segment::Ref ref = segment_.Insert(key, Hash(key));
    ASSERT_NE(ref, Segment::kNone);
    known_[key] = {ref, false};
  }
  void EraseAny() {
    const auto at = known_.lower_bound(static_cast<Key>(random_()));
    if (at == known_.end()) return;
    EXPECT_EQ(segment_.Erase(at->first, Hash(at->first)), at->second.marked);
    known_.erase(at);
  }
  // The share of the keys that are not in the chunk they want.
  double ShareBeyond() const {
    int64_t beyond_home = 0;
    for (const auto& one : known_) {
      bool beyond, marked;
      const Segment::Ref ref = segment_.FindAtHome(one.first, Hash(one.first), &beyond, &marked);
      beyond_home += ref == Segment::kNone;
    }
    return static_cast<double>(beyond_home) / static_cast<double>(known_.size());
  }
  void MarkAny() {
    const auto at = known_.lower_bound(static_cast<Key>(random_()));
    if (at == known_.end()) return;
    EXPECT_EQ(segment_.Mark(at->first, Hash(at->first)), at->second.marked);
    at->second.marked = true;
  }
  void UnmarkAny() {
    const auto at = known_.lower_bound(static_cast<Key>(random_()));
    if (at == known_.end()) return;
    segment_.Unmark(at->first, Hash(at->first));
    at->second.marked = false;
  }
  void ClearMarks() {
    segment_.ClearMarks();
    for (auto& one : known_) one.second.marked = false;
  }

  // Everything that there is is found once, in every way, and nothing else is.
  void Compare() {
    ASSERT_EQ(segment_.size(), static_cast<int64_t>(known_.size()));
    std::set<Segment::Ref> refs;
    for (const auto& [key, want] : known_) {
      bool beyond, marked;
      Segment::Ref ref = segment_.FindAtHome(key, Hash(key), &beyond, &marked);
      if (ref == Segment::kNone && beyond) {
        ref = segment_.FindBeyond(key, Hash(key), &marked);
      }
      ASSERT_EQ(ref, want.ref) << key;
      ASSERT_EQ(marked, want.marked) << key;
      ASSERT_TRUE(refs.insert(ref).second);
    }
    for (int i = 0; i < 100; ++i) {
      const Key key = NewKey(0, 0);
      bool beyond, marked;
      ASSERT_EQ(segment_.FindAtHome(key, Hash(key), &beyond, &marked), Segment::kNone);
      ASSERT_TRUE(!beyond || segment_.FindBeyond(key, Hash(key), &marked) == Segment::kNone);
    }
    int64_t visited = 0;
    constexpr uint64_t kRanges = 32, kWidth = (kHashes + 1) / kRanges;
    for (uint64_t range = 0; range < kRanges; ++range) {
      const HashRange hashes = {range * kWidth, (range + 1) * kWidth - 1};
      segment_.ForEachInRange(
          hashes, [](const char*) {},
          [&](const Segment::Entry& entry) {
            EXPECT_TRUE(hashes.first <= entry.hash && entry.hash <= hashes.last);
            const auto at = known_.find(entry.key);
            ASSERT_NE(at, known_.end()) << entry.key;
            EXPECT_EQ(entry.ref, at->second.ref);
            ++visited;
          });
    }
    ASSERT_EQ(visited, segment_.size());
  }

  static uint64_t Hash(Key key) { return Mix64(static_cast<uint64_t>(key)); }

  // Of the hashes of segment 0.
  static constexpr uint64_t kHashes = (uint64_t{1} << 58) - 1;
  std::mt19937_64 random_{7};
  SlabArena rows_{int64_t{1} << 40}, indexes_{int64_t{1} << 40};
  Segment segment_{&rows_, &indexes_, RowLayout(TableSchema()), 0.5};
  std::map<Key, Known> known_;
};

TEST_F(SegmentTest, IsRightAtEveryMomentOfItsGrowth) {
  // Keys that want the last chunk, so that some lie in the first ones; the first; one in the
  // middle.
  for (int i = 0; i < 300; ++i) {
    Insert(NewKey(0xffffffff, 32));
    Insert(NewKey(0, 32));
    Insert(NewKey(0x87654321, 32));
  }
  while (segment_.size() < 60'000) {
    for (int i = 0; i < 60; ++i) Insert(NewKey(0, 0));
    for (int i = 0; i < 3; ++i) {
      Insert(NewKey(0xffffffff, 32));
      EraseAny();
    }
    for (int i = 0; i < 200; ++i) MarkAny();
    for (int i = 0; i < 20; ++i) UnmarkAny();
    if (random_() % 100 == 0) ClearMarks();
    // Often while there are two arrays, which each last for a 32nd of the keys.
    if (segment_.growing() || random_() % 50 == 0) Compare();
    if (HasFatalFailure()) return;
  }
}

// So many keys want the last chunks that moved and unmoved keys would meet there.
TEST_F(SegmentTest, GrowsWhereAllKeysCrowd) {
  for (int round = 0; segment_.size() < 40'000; ++round) {
    for (int i = 0; i < 50; ++i) Insert(NewKey(0x3fff, 14));
    for (int i = 0; i < 450; ++i) Insert(NewKey(0x2aa, 10));
    for (int i = 0; i < 100; ++i) MarkAny();
    for (int i = 0; i < 10; ++i) UnmarkAny();
    if (segment_.growing() || round % 8 == 0) Compare();
    if (HasFatalFailure()) return;
  }
}

// No insertion pays for the growth of the whole index: it ends after as many as it takes to move
// the chunks, one for each four keys, a few at a time. Another seed has other chunks that are full.
TEST_F(SegmentTest, GrowthIsSpreadOverManyInsertions) {
  constexpr int64_t kMovedAtOnce = 8, kKeysPerChunk = 4;
  for (int round = 0; round < 8; ++round) {
    segment_.Clear();
    int64_t rows_then = 0, insertions = 0, growths = 0;
    while (segment_.size() < 300'000) {
      const Key key = static_cast<Key>(Unmix64(random_() & kHashes));
      bool beyond, marked;
      const Segment::Ref ref = segment_.FindAtHome(key, Hash(key), &beyond, &marked);
      if (ref != Segment::kNone || beyond) continue;
      const bool before = segment_.growing();
      ASSERT_NE(segment_.Insert(key, Hash(key)), Segment::kNone);
      if (!before && segment_.growing()) rows_then = segment_.size(), insertions = 0;
      ++insertions;
      if (!before || segment_.growing()) continue;
      ++growths;
      // Runs of chunks that overflow are not divided, so that a few more move each time.
      EXPECT_GE(insertions, rows_then / kKeysPerChunk / (2 * kMovedAtOnce))
          << "round " << round << ", " << rows_then << " rows";
    }
    EXPECT_GE(growths, 5);
  }
}

// As in a cache, in which rows come and go for ever. Where cells of erased keys are not filled a
// fourth of the keys is beyond its chunk soon, and a search for them waits for memory twice.
TEST_F(SegmentTest, KeysStayInTheirChunksWhileOthersComeAndGo) {
  constexpr int64_t kRows = 20'000;
  ASSERT_TRUE(segment_.ReserveIndex(kRows));
  while (segment_.size() < kRows) Insert(NewKey(0, 0));
  const double before = ShareBeyond();
  for (int64_t i = 0; i < 10 * kRows; ++i) {
    EraseAny();
    if (i % 4 == 0) MarkAny();
    if (segment_.size() < kRows) Insert(NewKey(0, 0));
  }
  Compare();
  EXPECT_LT(ShareBeyond(), 1.5 * before) << before;
  EXPECT_FALSE(segment_.growing());
}

TEST_F(SegmentTest, AReservedIndexGrowsFromAnyState) {
  while (!segment_.growing()) Insert(NewKey(0, 0));
  Insert(NewKey(0, 0));
  ASSERT_TRUE(segment_.ReserveIndex(200'000));
  Compare();
  segment_.ContinueGrowth(1);
  Compare();
  while (segment_.growing()) segment_.ContinueGrowth(1000);
  Compare();
  const int64_t bytes = indexes_.memory_bytes();
  while (segment_.size() < 150'000) Insert(NewKey(0, 0));
  EXPECT_FALSE(segment_.growing());
  EXPECT_EQ(indexes_.memory_bytes(), bytes);
  Compare();
  segment_.Clear();
  known_.clear();
  Compare();
  EXPECT_EQ(indexes_.memory_bytes(), 0);
}

}  // namespace
}  // namespace dynemb

#include "cc/core/table/slab_arena.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

namespace dynemb {
namespace {

// Blocks as a table takes them, of all sizes, through regions that are closed and become huge
// pages: aligned, zeroed, each with what was written there, until it is freed.
TEST(SlabArena, KeepsWhatBlocksHold) {
  SlabArena arena(int64_t{4} << 20);
  std::vector<std::pair<char*, int64_t>> blocks;
  int64_t total = 0;
  const auto allocate = [&](int64_t bytes) {
    char* const block = static_cast<char*>(arena.Allocate(bytes));
    ASSERT_NE(block, nullptr);
    ASSERT_EQ(reinterpret_cast<uintptr_t>(block) % 64, 0u);
    ASSERT_EQ(std::count(block, block + bytes, 0), bytes);
    std::memset(block, static_cast<int>(1 + blocks.size() % 255), bytes);
    blocks.push_back({block, bytes});
    total += (bytes + 63) / 64 * 64;
  };
  for (int64_t i = 0; i < 300; ++i) allocate(1 + i * i % 90'000);        // 13 MB
  for (const int64_t mebibytes : {3, 1, 70}) allocate(mebibytes << 20);  // beyond a region
  EXPECT_EQ(arena.memory_bytes(), total);
  for (size_t b = 0; b < blocks.size(); ++b) {
    const auto& [block, bytes] = blocks[b];
    ASSERT_EQ(std::count(block, block + bytes, static_cast<char>(1 + b % 255)), bytes) << b;
    if (b % 2 == 0) arena.Free(block, bytes);
  }
  for (size_t b = 1; b < blocks.size(); b += 2) {
    const auto& [block, bytes] = blocks[b];
    ASSERT_EQ(std::count(block, block + bytes, static_cast<char>(1 + b % 255)), bytes) << b;
    arena.Free(block, bytes);
  }
  EXPECT_EQ(arena.memory_bytes(), 0);
  allocate(100'000);
}

}  // namespace
}  // namespace dynemb

// The arena on a system with pages of 64 KiB, as kernels for 64-bit ARM may have them. Calls of the
// system that know the size of a page are replaced by such a system's.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "cc/core/table/slab_arena.h"

namespace {

constexpr uintptr_t kPage = 65536;
uintptr_t given_back_bytes = 0;

}  // namespace

extern "C" int getpagesize() noexcept { return kPage; }

// What is given back is zero when it is read again: whole pages, from the beginning of one.
extern "C" int madvise(void* start, size_t bytes, int advice) noexcept {
  if (advice != MADV_DONTNEED) return 0;
  if (reinterpret_cast<uintptr_t>(start) % kPage != 0) return -1;
  const uintptr_t pages = (bytes + kPage - 1) / kPage * kPage;
  std::memset(start, 0, pages);
  given_back_bytes += pages;
  return 0;
}

namespace dynemb {
namespace {

TEST(SlabArena, GivesBackPagesOfTheSystem) {
  constexpr int64_t kPages = kPage;
  for (const int64_t bytes : {int64_t{36'864}, int64_t{100'032}, 3 * kPages}) {
    SCOPED_TRACE(bytes);
    SlabArena arena(int64_t{1} << 40);
    std::vector<char*> blocks;
    for (int i = 0; i < 100; ++i) {
      blocks.push_back(static_cast<char*>(arena.Allocate(bytes)));
      ASSERT_NE(blocks.back(), nullptr);
      std::memset(blocks.back(), 1 + i, static_cast<size_t>(bytes));
    }
    given_back_bytes = 0;
    for (size_t i = 0; i < blocks.size(); i += 2) arena.Free(blocks[i], bytes);
    for (size_t i = 1; i < blocks.size(); i += 2) {
      EXPECT_EQ(std::count(blocks[i], blocks[i] + bytes, static_cast<char>(1 + i)), bytes) << i;
    }
    EXPECT_EQ(given_back_bytes > 0, bytes > kPages);
  }
}

}  // namespace
}  // namespace dynemb

#include "cc/core/table/slab_arena.h"

#include <sys/mman.h>

#include <algorithm>
#include <iterator>

namespace dynemb {
namespace {

constexpr int64_t kPage = 4096;
constexpr int64_t kHugePage = int64_t{2} << 20;
constexpr int64_t kMaxRegion = int64_t{64} << 20;
constexpr int64_t kAlignment = 64;

// What is only advice to the system costs speed, not correctness, where it is refused. Known to
// Linux from 6.1 on, to the headers of the C library later.
constexpr int kAdviseCollapse = 25;

int64_t RoundUp(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }

// Zeroed memory aligned to huge pages, or nullptr.
char* Map(int64_t bytes) {
  // One huge page more than wanted, whose ends are given back, for the alignment.
  void* mapped =
      mmap(nullptr, bytes + kHugePage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) return nullptr;
  char* const pages = static_cast<char*>(mapped);
  const int64_t before = -reinterpret_cast<intptr_t>(pages) & (kHugePage - 1);
  if (before > 0) munmap(pages, before);
  if (before < kHugePage) munmap(pages + before + bytes, kHugePage - before);
  return pages + before;
}

}  // namespace

SlabArena::~SlabArena() {
  for (const auto& [start, region] : regions_) munmap(start, region.bytes);
}

void* SlabArena::Allocate(int64_t bytes) {
  bytes = RoundUp(bytes, kAlignment);
  std::lock_guard<std::mutex> lock(mutex_);
  auto it = regions_.find(current_);
  if (it == regions_.end() || it->second.bytes - it->second.used < bytes) {
    if (it != regions_.end()) Close(it->first, it->second);
    const int64_t live = std::max(live_, expected_);
    const int64_t size =
        RoundUp(std::max(std::clamp(live / 8, kHugePage, kMaxRegion), bytes), kHugePage);
    char* start = Map(size);
    if (start == nullptr) return nullptr;
    const bool huge = size > kHugePage || live >= 2 * kHugePage;
    madvise(start, size, huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
    it = regions_.emplace(start, Region{size, 0, 0, huge}).first;
    current_ = start;
  }
  char* block = it->first + it->second.used;
  it->second.used += bytes;
  it->second.live += bytes;
  live_ += bytes;
  return block;
}

void SlabArena::Close(char* start, const Region& region) {
  if (region.huge || region.live < region.bytes / 4 * 3) return;
  madvise(start, region.bytes, MADV_HUGEPAGE);
  madvise(start, region.bytes, kAdviseCollapse);
}

void SlabArena::Free(void* block, int64_t bytes) {
  bytes = RoundUp(bytes, kAlignment);
  std::lock_guard<std::mutex> lock(mutex_);
  auto it = std::prev(regions_.upper_bound(static_cast<char*>(block)));
  Region& region = it->second;
  region.live -= bytes;
  live_ -= bytes;
  if (region.live == 0) {
    if (it->first == current_) current_ = nullptr;
    munmap(it->first, region.bytes);
    regions_.erase(it);
    return;
  }
  const uintptr_t address = reinterpret_cast<uintptr_t>(block);
  const uintptr_t first = (address + kPage - 1) / kPage * kPage;
  const uintptr_t last = (address + bytes) / kPage * kPage;
  if (last > first) madvise(reinterpret_cast<void*>(first), last - first, MADV_DONTNEED);
}

void SlabArena::Expect(int64_t bytes) {
  std::lock_guard<std::mutex> lock(mutex_);
  expected_ = std::max(expected_, bytes);
}

int64_t SlabArena::memory_bytes() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return live_;
}

}  // namespace dynemb

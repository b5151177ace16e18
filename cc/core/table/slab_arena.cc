#include "cc/core/table/slab_arena.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <iterator>

namespace dynemb {
namespace {

constexpr int64_t kPage = 4096;
constexpr int64_t kHugePage = int64_t{2} << 20;
constexpr int64_t kMinRegion = int64_t{64} << 10;  // and least mapping: smaller ones use the heap
constexpr int64_t kMaxRegion = int64_t{64} << 20;
constexpr int64_t kAlignment = 64;

int64_t RoundUp(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }

}  // namespace

void* AllocateZeroed(int64_t bytes) {
  if (bytes < kMinRegion) {
    void* memory = std::aligned_alloc(kAlignment, RoundUp(bytes, kAlignment));
    if (memory != nullptr) std::memset(memory, 0, bytes);
    return memory;
  }
  bytes = RoundUp(bytes, kPage);
  if (bytes < kHugePage) {
    void* pages = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return pages == MAP_FAILED ? nullptr : pages;
  }
  // Map one huge page more than wanted and give the ends back, for the alignment.
  char* pages = static_cast<char*>(
      mmap(nullptr, bytes + kHugePage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  if (pages == MAP_FAILED) return nullptr;
  char* aligned = reinterpret_cast<char*>(
      RoundUp(static_cast<int64_t>(reinterpret_cast<uintptr_t>(pages)), kHugePage));
  if (aligned > pages) munmap(pages, aligned - pages);
  if (aligned - pages < kHugePage) munmap(aligned + bytes, kHugePage - (aligned - pages));
#ifdef MADV_HUGEPAGE
  madvise(aligned, bytes, MADV_HUGEPAGE);  // advice: a refusal costs speed only
#endif
  return aligned;
}

void FreeZeroed(void* memory, int64_t bytes) {
  if (bytes < kMinRegion) {
    std::free(memory);
  } else {
    munmap(memory, RoundUp(bytes, kPage));
  }
}

SlabArena::~SlabArena() {
  for (const auto& [start, region] : regions_) FreeZeroed(start, region.bytes);
}

void* SlabArena::Allocate(int64_t bytes) {
  bytes = RoundUp(bytes, kAlignment);
  std::lock_guard<std::mutex> lock(mutex_);
  auto it = regions_.find(current_);
  if (it == regions_.end() || it->second.bytes - it->second.used < bytes) {
    const int64_t live = std::max(live_, expected_);
    int64_t size = std::clamp(live / 8, kMinRegion, kMaxRegion);
    if (live >= 2 * kHugePage) size = std::max(size, kHugePage);
    size = RoundUp(std::max(size, bytes), size >= kHugePage ? kHugePage : kPage);
    char* start = static_cast<char*>(AllocateZeroed(size));
    if (start == nullptr) return nullptr;
    it = regions_.emplace(start, Region{size, 0, 0}).first;
    current_ = start;
  }
  char* block = it->first + it->second.used;
  it->second.used += bytes;
  it->second.live += bytes;
  live_ += bytes;
  return block;
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
    FreeZeroed(it->first, region.bytes);
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

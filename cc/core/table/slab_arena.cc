#include "cc/core/table/slab_arena.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <new>
#include <string>

namespace dynemb {
namespace {

constexpr int64_t kHugePage = int64_t{2} << 20;
constexpr int64_t kMaxRegion = int64_t{64} << 20;
constexpr int64_t kAlignment = 64;

// MADV_COLLAPSE: Linux knows it from 6.1 on, the headers of the C library later. All that this file
// advises costs speed alone where it is refused.
constexpr int kAdviseCollapse = 25;

// Whether who runs the machine lets programs have huge pages, which MADV_COLLAPSE does not ask.
bool MayHaveHugePages() {
  static const bool may = [] {
    std::ifstream file("/sys/kernel/mm/transparent_hugepage/enabled");
    const std::string modes{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
    return modes.find("[never]") == std::string::npos;
  }();
  return may;
}

int64_t RoundUp(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }

// Zeroed memory aligned to huge pages, or nullptr.
char* Map(int64_t bytes) {
  // One huge page more than wanted, for the alignment. What is kept ends as high as can be: the
  // next mapping, below it, then touches it, and the system counts both as one.
  void* const mapped =
      mmap(nullptr, bytes + kHugePage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) return nullptr;
  char* const pages = static_cast<char*>(mapped);
  char* const end = pages + bytes + kHugePage;
  const int64_t above = reinterpret_cast<intptr_t>(end) & (kHugePage - 1);
  if (above > 0) munmap(end - above, above);
  munmap(pages, kHugePage - above);
  return pages + kHugePage - above;
}

}  // namespace

SlabArena::~SlabArena() {
  for (const auto& [start, region] : regions_) munmap(start, region.bytes);
}

void* SlabArena::Allocate(int64_t bytes) {
  bytes = RoundUp(bytes, kAlignment);
  std::lock_guard<std::mutex> lock(mutex_);
  if (bytes > limit_ - live_) return nullptr;
  auto it = regions_.find(current_);
  if (it == regions_.end() || it->second.bytes - it->second.used < bytes) {
    const int64_t live = std::max(live_, expected_);
    const int64_t size =
        RoundUp(std::max(std::clamp(live / 8, kHugePage, kMaxRegion), bytes), kHugePage);
    char* start = Map(size);
    if (start == nullptr) return nullptr;
    if (it != regions_.end()) Close(it->first, &it->second);
    const bool huge = size > kHugePage || live >= huge_from_;
    madvise(start, size, huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
    try {
      it = regions_.emplace(start, Region{size, 0, 0, huge}).first;
    } catch (const std::bad_alloc&) {
      munmap(start, static_cast<size_t>(size));
      return nullptr;
    }
    current_ = start;
  }
  char* block = it->first + it->second.used;
  it->second.used += bytes;
  it->second.live += bytes;
  live_ += bytes;
  return block;
}

void SlabArena::Close(char* start, Region* region) {
  if (region->huge || region->live < region->bytes / 4 * 3 || !MayHaveHugePages()) return;
  madvise(start, region->bytes, MADV_HUGEPAGE);
  madvise(start, region->bytes, kAdviseCollapse);
  region->huge = true;
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
  // The system would take the rest of the last page too.
  static const uintptr_t page = static_cast<uintptr_t>(getpagesize());
  const uintptr_t address = reinterpret_cast<uintptr_t>(block);
  const uintptr_t first = (address + page - 1) / page * page;
  const uintptr_t last = (address + bytes) / page * page;
  if (last > first) madvise(reinterpret_cast<void*>(first), last - first, MADV_DONTNEED);
}

void SlabArena::Expect(int64_t bytes) {
  std::lock_guard<std::mutex> lock(mutex_);
  expected_ = std::max(expected_, bytes);
}

void SlabArena::SetLimit(int64_t bytes) {
  std::lock_guard<std::mutex> lock(mutex_);
  limit_ = bytes;
}

int64_t SlabArena::memory_bytes() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return live_;
}

}  // namespace dynemb

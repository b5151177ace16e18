// SlabArena: memory for blocks of rows.
//
// Blocks are carved one after the other from regions taken from the system. Regions grow with the
// arena; those of 2 MiB and more are aligned to it and ask for huge pages, with which this kind of
// random access is two to three times as fast. A freed block's whole pages go back to the system at
// once, a region when its last block is freed. Blocks are zeroed and never move. Thread-safe.
#ifndef TF_DYNEMB_CC_CORE_TABLE_SLAB_ARENA_H_
#define TF_DYNEMB_CC_CORE_TABLE_SLAB_ARENA_H_

#include <cstdint>
#include <map>
#include <mutex>

namespace dynemb {

// Zeroed memory aligned to a cache line: from the heap below 64 KiB, from the system from there on,
// in huge pages from 2 MiB on. nullptr when there is none. Free wants the same `bytes`.
void* AllocateZeroed(int64_t bytes);
void FreeZeroed(void* memory, int64_t bytes);

class SlabArena {
 public:
  SlabArena() = default;
  SlabArena(const SlabArena&) = delete;
  SlabArena& operator=(const SlabArena&) = delete;
  ~SlabArena();

  // A block aligned to 64 bytes, or nullptr when the system has no memory.
  void* Allocate(int64_t bytes);
  // `bytes` as in Allocate.
  void Free(void* block, int64_t bytes);

  // Makes regions as large from now on as if blocks of so many bytes were in use.
  void Expect(int64_t bytes);

  // Address space of the blocks that are in use.
  int64_t memory_bytes() const;

 private:
  struct Region {
    int64_t bytes;
    int64_t used;  // carved so far
    int64_t live;  // not yet freed
  };

  mutable std::mutex mutex_;
  std::map<char*, Region> regions_;  // by first address
  char* current_ = nullptr;          // the region that is being carved
  int64_t live_ = 0;
  int64_t expected_ = 0;
};

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_CORE_TABLE_SLAB_ARENA_H_

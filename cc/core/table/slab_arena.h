// SlabArena: memory for blocks of rows or of an index.
//
// Blocks are carved one after the other from regions of 2 MiB and more of address space, which grow
// with the arena; memory is taken when it is touched. Large arenas ask for huge pages, with which
// this kind of random access is two to three times as fast. In a small one that would take memory
// that it may never need: there a region becomes a huge page when it has been carved up, if three
// quarters of it are in use then. A freed block's whole pages are given back at once, those that
// are part of a huge page when the system wants them, a region when its last block is freed. Blocks
// are zeroed and never move. Thread-safe.
#ifndef TF_DYNEMB_CC_CORE_TABLE_SLAB_ARENA_H_
#define TF_DYNEMB_CC_CORE_TABLE_SLAB_ARENA_H_

#include <cstdint>
#include <map>
#include <mutex>

namespace dynemb {

class SlabArena {
 public:
  // `huge_from`: how many bytes of blocks make the arena a large one.
  explicit SlabArena(int64_t huge_from) : huge_from_(huge_from) {}
  SlabArena(const SlabArena&) = delete;
  SlabArena& operator=(const SlabArena&) = delete;
  ~SlabArena();

  // A block aligned to 64 bytes, or nullptr when the system has no memory, or beyond the limit.
  void* Allocate(int64_t bytes);
  // `bytes` as in Allocate.
  void Free(void* block, int64_t bytes);

  // Makes regions as large from now on as if blocks of so many bytes were in use.
  void Expect(int64_t bytes);

  // Refuses blocks with which more than so many bytes would be in use.
  void SetLimit(int64_t bytes);

  // Address space of the blocks that are in use.
  int64_t memory_bytes() const;

 private:
  struct Region {
    int64_t bytes;
    int64_t used;  // carved so far
    int64_t live;  // not yet freed
    bool huge;     // has asked for huge pages
  };

  // Makes a region that nothing more is carved from a huge page, if most of it is in use.
  static void Close(char* start, Region* region);

  const int64_t huge_from_;
  mutable std::mutex mutex_;
  std::map<char*, Region> regions_;  // by first address
  char* current_ = nullptr;          // the region that is being carved
  int64_t live_ = 0;
  int64_t expected_ = 0;
  int64_t limit_ = INT64_MAX;
};

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_CORE_TABLE_SLAB_ARENA_H_

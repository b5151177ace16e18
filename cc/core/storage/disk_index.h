// DiskIndex: where the rows on disk are, in memory.
//
// By DiskHash, which is a bijection, so that a key needs no further comparison. 64 parts by the top
// bits of the hash, each an array that is sorted by hash, with gaps: an entry lies at
// the place of its hash, in proportion, or behind it, where others are (linear probing, kept in
// order). So a search ends at the first larger hash, and the rows of a range of hashes lie side by
// side. 14 bytes an entry, in arrays that are 82 % to 92 % full: 15 to 17 bytes a row; and 8 for
// each number that is kept with an entry, of what an eviction policy asks (RowScores::Numbers).
#ifndef TF_DYNEMB_CC_CORE_STORAGE_DISK_INDEX_H_
#define TF_DYNEMB_CC_CORE_STORAGE_DISK_INDEX_H_

#include <algorithm>
#include <cstdint>

#include "cc/core/base/hash.h"
#include "cc/core/storage/page_array.h"
#include "cc/core/table/table.h"

namespace dynemb {

// The hash of the tiers. The top 6 bits are those of Mix64, so that the parts are those of a host
// table; the order within a part is another one than there. For what comes in the one order, such
// as an export, must not fill the other from one side: an array that grows would be full there.
inline uint64_t DiskHash(Key key) {
  constexpr uint64_t kLow58 = (uint64_t{1} << 58) - 1;
  const uint64_t hash = Mix64(static_cast<uint64_t>(key)), low = hash & kLow58;
  return (hash & ~kLow58) | ((low << 26 | low >> 32) & kLow58);
}
inline Key KeyOfDiskHash(uint64_t hash) {
  constexpr uint64_t kLow58 = (uint64_t{1} << 58) - 1;
  const uint64_t low = hash & kLow58;
  return static_cast<Key>(Unmix64((hash & ~kLow58) | ((low >> 26 | low << 32) & kLow58)));
}

// Where a record is: 48 bits. See row_log.h.
using Location = uint64_t;
inline constexpr Location kNowhere = (uint64_t{1} << 48) - 1;

// Reads from any number of threads; a change alone.
class DiskIndex {
 public:
  static constexpr int kMostNumbers = 2;
  // So many numbers are kept with an entry.
  explicit DiskIndex(int numbers = 0) : numbers_(numbers) { Clear(); }

  static constexpr int kPartBits = 6;
  static constexpr int kParts = 1 << kPartBits;
  static int PartOf(uint64_t hash) { return static_cast<int>(hash >> (64 - kPartBits)); }

  struct Entry {
    uint64_t hash;
    Location location;
    const int64_t* numbers;
  };
  // kNowhere: there is no such entry.
  Location Find(uint64_t hash) const { return FindEntry(hash).location; }
  Entry FindEntry(uint64_t hash) const;
  void PrefetchEntry(uint64_t hash) const;

  // Inserts or overwrites. False: no memory, and nothing has changed; an entry that is there is
  // always overwritten. *before: where it was; kNowhere: there was none.
  bool Put(uint64_t hash, Location location, const int64_t* numbers = nullptr,
           Location* before = nullptr);
  // Makes room for so many entries, which saves growing on the way. False: no memory.
  bool Reserve(int64_t entries);
  // Where the entry was; kNowhere: there was none.
  Location Remove(uint64_t hash);
  void Clear();

  int64_t size() const { return size_; }
  int64_t memory_bytes() const;

  // Calls visit(entry) for the entries of a part, from a hash on and in ascending order of hashes,
  // while it returns true.
  template <typename Visit>
  void ForEach(int part, uint64_t from, const Visit& visit) const {
    const Part& in = parts_[part];
    if (in.capacity > 0) {
      for (int64_t at = in.LowerBound(from); at < in.slots(); ++at) {
        if (in.hashes[at] != kEmpty && !visit(in.entry(at))) return;
      }
    }
    if (part == kParts - 1 && last_ != kNowhere) visit(last_entry());
  }

 private:
  static constexpr uint64_t kEmpty = ~uint64_t{0};  // an entry of this hash is last_
  static constexpr int64_t kSpill = 64;             // spare slots behind the last entry
  static constexpr int64_t kNextLine = 8;           // slots of a cache line of hashes

  struct Part {
    PageArray<uint64_t> hashes;  // ascending, but for empty ones; one empty one at the end
    PageArray<uint8_t> locations;
    PageArray<int64_t> numbers;
    int numbers_of_entry = 0;
    int64_t capacity = 0;  // places
    int64_t spill = 0;     // slots behind them
    int64_t size = 0;

    int64_t slots() const { return capacity + spill; }
    bool is_full() const { return 25 * (size + 1) > 23 * capacity; }
    int64_t Home(uint64_t hash) const {
      return static_cast<int64_t>(
          (static_cast<unsigned __int128>(hash << kPartBits) * static_cast<uint64_t>(capacity)) >>
          64);
    }
    // The first slot from the hash's place on that is empty or has no smaller hash. All slots
    // behind it are so, too: an entry behind an empty slot has its place there.
    int64_t LowerBound(uint64_t hash) const {
      constexpr int64_t kNear = 16;
      const int64_t home = Home(hash), near = std::min(home + kNear, slots());
      for (int64_t at = home; at < near; ++at) {
        if (hashes[at] >= hash) return at;
      }
      return FarLowerBound(near, hash);
    }
    int64_t FarLowerBound(int64_t from, uint64_t hash) const;
    Location location(int64_t at) const {
      const uint8_t* const bytes = &locations[at * 6];
      Location location = 0;
      for (int b = 0; b < 6; ++b) location |= static_cast<uint64_t>(bytes[b]) << (8 * b);
      return location;
    }
    void set_location(int64_t at, Location location) {
      for (int b = 0; b < 6; ++b) {
        locations[at * 6 + b] = static_cast<uint8_t>(location >> (8 * b));
      }
    }
    Entry entry(int64_t at) const {
      return {hashes[at], location(at), numbers.get() + at * numbers_of_entry};
    }
    void Set(int64_t at, Location location, const int64_t* of_entry) {
      set_location(at, location);
      std::copy_n(of_entry, numbers_of_entry, numbers.get() + at * numbers_of_entry);
    }
    void Move(int64_t from, int64_t to, int64_t entries);
    bool Grow(int64_t to_capacity);
  };

  Entry last_entry() const { return {kEmpty, last_, last_numbers_}; }

  Part parts_[kParts];
  Location last_ = kNowhere;
  int64_t last_numbers_[kMostNumbers] = {};
  int64_t size_ = 0;
  int numbers_;  // of an entry
};

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_CORE_STORAGE_DISK_INDEX_H_

#include "cc/core/storage/disk_index.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <utility>

namespace dynemb {

DiskIndex::Entry DiskIndex::FindEntry(uint64_t hash) const {
  constexpr Entry kNone = {0, kNowhere, nullptr};
  if (hash == kEmpty) return last_entry();
  const Part& part = parts_[PartOf(hash)];
  if (part.size == 0) return kNone;
  const int64_t at = part.LowerBound(hash);
  return part.hashes[at] == hash ? part.entry(at) : kNone;
}

// An entry lies some slots behind its place, half of them in the next cache line.
void DiskIndex::PrefetchEntry(uint64_t hash) const {
  const Part& part = parts_[PartOf(hash)];
  if (part.size == 0) return;
  const int64_t home = part.Home(hash);
  __builtin_prefetch(&part.hashes[home]);
  __builtin_prefetch(&part.hashes[home + kNextLine]);
  __builtin_prefetch(&part.locations[6 * (home + kNextLine / 2)]);
  if (numbers_ > 0) __builtin_prefetch(&part.numbers[home * numbers_]);
}

bool DiskIndex::Put(uint64_t hash, Location location, const int64_t* numbers, Location* before) {
  Location none;
  if (before == nullptr) before = &none;
  *before = kNowhere;
  if (hash == kEmpty) {
    size_ += last_ == kNowhere;
    *before = std::exchange(last_, location);
    std::copy_n(numbers, numbers_, last_numbers_);
    return true;
  }
  Part& part = parts_[PartOf(hash)];
  for (;;) {
    if (part.capacity > 0) {
      const int64_t at = part.LowerBound(hash);
      if (part.hashes[at] == hash) {
        *before = part.location(at);
        part.Set(at, location, numbers);
        return true;
      }
      int64_t end = at;  // of the entries that make way
      while (part.hashes[end] != kEmpty) ++end;
      // The last slot stays empty, for searches to end there.
      if (!part.is_full() && end + 1 < part.slots()) {
        part.Move(at, at + 1, end - at);
        part.hashes[at] = hash;
        part.Set(at, location, numbers);
        ++part.size;
        ++size_;
        return true;
      }
    }
    const int64_t larger = std::max<int64_t>(16, part.capacity + part.capacity / 8);
    if (!part.Grow(part.is_full() ? larger : part.capacity)) return false;
  }
}

bool DiskIndex::Reserve(int64_t entries) {
  // Hashes are spread evenly: a part has hardly more than its share.
  const int64_t capacity = 16 + entries * 25 / 22 / kParts;
  return std::all_of(std::begin(parts_), std::end(parts_),
                     [&](Part& part) { return part.capacity >= capacity || part.Grow(capacity); });
}

Location DiskIndex::Remove(uint64_t hash) {
  if (hash == kEmpty) {
    size_ -= last_ != kNowhere;
    return std::exchange(last_, kNowhere);
  }
  Part& part = parts_[PartOf(hash)];
  if (part.size == 0) return kNowhere;
  const int64_t at = part.LowerBound(hash);
  if (part.hashes[at] != hash) return kNowhere;
  const Location location = part.location(at);
  int64_t end = at + 1;  // of those behind it that come nearer to their places
  while (part.hashes[end] != kEmpty && part.Home(part.hashes[end]) < end) ++end;
  part.Move(at + 1, at, end - at - 1);
  part.hashes[end - 1] = kEmpty;
  --part.size;
  --size_;
  return location;
}

void DiskIndex::Clear() {
  for (Part& part : parts_) {
    part = Part();
    part.numbers_of_entry = numbers_;
  }
  last_ = kNowhere;
  size_ = 0;
}

int64_t DiskIndex::memory_bytes() const {
  int64_t bytes = 0;
  for (const Part& part : parts_) {
    bytes += part.capacity == 0 ? 0 : part.slots() * (14 + 8 * numbers_);
  }
  return bytes;
}

// Rows that come in the order of their hashes, as an export has them, lie in one run until the part
// grows, far from their places.
int64_t DiskIndex::Part::FarLowerBound(int64_t from, uint64_t hash) const {
  int64_t step = 1;
  while (from + step < slots() && hashes[from + step] < hash) step *= 2;
  return std::lower_bound(hashes.get() + from, hashes.get() + std::min(from + step, slots()),
                          hash) -
         hashes.get();
}

void DiskIndex::Part::Move(int64_t from, int64_t to, int64_t entries) {
  std::memmove(&hashes[to], &hashes[from], static_cast<size_t>(entries) * sizeof(uint64_t));
  std::memmove(&locations[to * 6], &locations[from * 6], static_cast<size_t>(entries) * 6);
  if (numbers_of_entry == 0) return;
  std::memmove(&numbers[to * numbers_of_entry], &numbers[from * numbers_of_entry],
               static_cast<size_t>(entries * numbers_of_entry) * sizeof(int64_t));
}

bool DiskIndex::Part::Grow(int64_t to_capacity) {
  Part larger;
  larger.capacity = to_capacity;
  larger.size = size;
  larger.numbers_of_entry = numbers_of_entry;
  const auto each = [&](const auto& visit) {
    int64_t next = 0;
    for (int64_t at = 0; at < slots(); ++at) {
      if (hashes[at] == kEmpty) continue;
      next = std::max(next, larger.Home(hashes[at]));
      visit(at, next++);
    }
    return next;
  };
  // Hashes that all lie in the last place need as many slots behind it.
  const int64_t end = each([](int64_t, int64_t) {});
  larger.spill = std::max<int64_t>(0, end - larger.capacity) + kSpill;
  if (!larger.hashes.Allocate(larger.slots()) || !larger.locations.Allocate(6 * larger.slots()) ||
      !larger.numbers.Allocate(larger.slots() * numbers_of_entry)) {
    return false;
  }
  std::fill_n(larger.hashes.get(), larger.slots(), kEmpty);
  each([&](int64_t from, int64_t to) {
    larger.hashes[to] = hashes[from];
    larger.Set(to, location(from), entry(from).numbers);
  });
  *this = std::move(larger);
  return true;
}

}  // namespace dynemb

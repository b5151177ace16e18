#include "cc/core/table/segment.h"

#include <algorithm>
#include <cmath>

namespace dynemb {
namespace {

constexpr double kMaxLoad = 0.8;
constexpr double kGrowth = 1.5;       // of the index
constexpr double kLeastGrowth = 1.2;  // where its size was reserved
constexpr int64_t kMaxBlockBytes = int64_t{2} << 20;
constexpr int64_t kMaxBlockRows = 1 << 16;
constexpr int64_t kMinBlockRows = 8;
constexpr size_t kMaxBlocks = (1 << 16) - 1;  // the last number would make kNone a reference

}  // namespace

Segment::Segment(SlabArena* row_arena, SlabArena* index_arena, const RowLayout& layout,
                 double phase)
    : row_arena_(row_arena), index_arena_(index_arena), layout_(layout), phase_(phase) {}

Segment::~Segment() { Clear(); }

char* Segment::FindBeyond(int64_t key, uint64_t hash) const {
  uint32_t at = Home(hash);
  for (uint32_t probes = 1; probes < chunk_count_; ++probes) {
    at = Next(at);
    if (const uint32_t mask = Match(chunks_[at], key)) {
      return row(chunks_[at].refs[__builtin_ctz(mask)]);
    }
    if (chunks_[at].overflow == 0) break;
  }
  return nullptr;
}

char* Segment::Insert(int64_t key, uint64_t hash) {
  if (size_ + 1 > max_rows_ && !GrowIndex()) return nullptr;
  const Ref ref = AllocateRow();
  if (ref == kNone) return nullptr;
  Link(key, hash, ref);
  ++size_;
  return row(ref);
}

void Segment::Link(int64_t key, uint64_t hash, Ref ref) {
  uint32_t at = Home(hash);
  for (;; at = Next(at)) {
    Chunk& chunk = chunks_[at];
    const int cell = __builtin_ctz(~uint32_t{chunk.used});
    if (cell < kCells) {
      chunk.keys[cell] = key;
      chunk.refs[cell] = ref;
      chunk.used |= static_cast<uint8_t>(1u << cell);
      return;
    }
    if (chunk.overflow != 255) ++chunk.overflow;
  }
}

void Segment::Erase(int64_t key, uint64_t hash) {
  uint32_t at = Home(hash);
  uint32_t mask;
  while ((mask = Match(chunks_[at], key)) == 0) at = Next(at);
  const int cell = __builtin_ctz(mask);
  const Ref ref = chunks_[at].refs[cell];
  chunks_[at].used &= static_cast<uint8_t>(~(1u << cell));
  for (uint32_t passed = Home(hash); passed != at; passed = Next(passed)) {
    if (chunks_[passed].overflow != 255) --chunks_[passed].overflow;
  }
  std::memcpy(row(ref), &free_, sizeof(free_));
  free_ = ref;
  --size_;
}

Segment::Ref Segment::AllocateRow() {
  if (free_ != kNone) {
    const Ref ref = free_;
    free_ = NextFree(ref);
    return ref;
  }
  if ((rows_.empty() || fresh_ == block_rows_.back()) && !AddBlock()) return kNone;
  return static_cast<Ref>((rows_.size() - 1) << 16 | fresh_++);
}

bool Segment::AddBlock() {
  if (rows_.size() == kMaxBlocks) return false;
  const int64_t most = std::clamp<int64_t>(kMaxBlockBytes / layout_.row_bytes, 1, kMaxBlockRows);
  const uint32_t n = static_cast<uint32_t>(std::min(most, std::max(kMinBlockRows, size_ / 32)));
  char* rows = static_cast<char*>(row_arena_->Allocate(n * layout_.row_bytes));
  if (rows == nullptr) return false;
  rows_.push_back(rows);
  block_rows_.push_back(n);
  fresh_ = 0;
  return true;
}

// The fewest chunks, a whole number or not, that hold so many rows.
double Segment::ChunksFor(int64_t rows) {
  return std::max(1.0, static_cast<double>(rows) / (kMaxLoad * kCells));
}

bool Segment::ReserveIndex(int64_t rows) {
  // Some segments have more room than others: when it ends they do not all grow at once.
  return rows <= max_rows_ || Rehash(std::ceil(ChunksFor(rows) * (1 + phase_ / 4)));
}

bool Segment::GrowIndex() {
  // Sizes are kGrowth^(i + phase) chunks.
  const double least = std::max(ChunksFor(size_ + 1), kLeastGrowth * chunk_count_);
  const double steps = std::log(least) / std::log(kGrowth);
  return Rehash(std::ceil(std::pow(kGrowth, std::ceil(steps - phase_) + phase_)));
}

bool Segment::Rehash(double chunks_wanted) {
  if (chunks_wanted > 4e9) return false;
  uint32_t chunk_count = static_cast<uint32_t>(chunks_wanted);
  Chunk* chunks = static_cast<Chunk*>(index_arena_->Allocate(int64_t{chunk_count} * sizeof(Chunk)));
  if (chunks == nullptr) return false;
  std::swap(chunks, chunks_);
  std::swap(chunk_count, chunk_count_);
  max_rows_ = static_cast<int64_t>(kMaxLoad * kCells * chunk_count_);
  for (uint32_t at = 0; at < chunk_count; ++at) {
    const Chunk& chunk = chunks[at];
    for (uint32_t used = chunk.used; used != 0; used &= used - 1) {
      const int cell = __builtin_ctz(used);
      const int64_t key = chunk.keys[cell];
      Link(key, Mix64(static_cast<uint64_t>(key)), chunk.refs[cell]);
    }
  }
  if (chunks != nullptr) index_arena_->Free(chunks, int64_t{chunk_count} * sizeof(Chunk));
  return true;
}

void Segment::AppendRange(HashRange hashes, std::vector<Entry>* entries) const {
  if (chunk_count_ == 0) return;
  const size_t begin = entries->size();
  const uint32_t homes = Home(hashes.last) - Home(hashes.first) + 1;
  uint32_t at = Home(hashes.first);
  for (uint32_t probes = 1; probes <= chunk_count_; ++probes, at = Next(at)) {
    const Chunk& chunk = chunks_[at];
    for (uint32_t used = chunk.used; used != 0; used &= used - 1) {
      const int cell = __builtin_ctz(used);
      const uint64_t hash = Mix64(static_cast<uint64_t>(chunk.keys[cell]));
      if (hashes.first <= hash && hash <= hashes.last) {
        entries->push_back({hash, chunk.keys[cell], chunk.refs[cell]});
      }
    }
    if (probes >= homes && chunk.overflow == 0) break;
  }
  std::sort(entries->begin() + static_cast<std::ptrdiff_t>(begin), entries->end(),
            [](const Entry& a, const Entry& b) { return a.hash < b.hash; });
}

void Segment::PrefetchRange(HashRange hashes) const {
  if (chunk_count_ == 0) return;
  const uint32_t last = Home(hashes.last);
  for (uint32_t at = Home(hashes.first); at <= last; ++at) __builtin_prefetch(&chunks_[at]);
}

int Segment::StripeBits() const {
  int bits = 0;
  while (bits < Stripes::kMaxBits && chunk_count_ >> (bits + 2) != 0) ++bits;
  return bits;
}

void Segment::FreeRows(std::vector<char*>* rows, int64_t row_bytes) {
  for (size_t b = 0; b < rows->size(); ++b) {
    row_arena_->Free((*rows)[b], block_rows_[b] * row_bytes);
  }
  rows->clear();
}

void Segment::Clear() {
  FreeRows(&rows_, layout_.row_bytes);
  block_rows_.clear();
  if (chunks_ != nullptr) {
    index_arena_->Free(chunks_, int64_t{chunk_count_} * sizeof(Chunk));
  }
  chunks_ = nullptr;
  chunk_count_ = 0;
  max_rows_ = 0;
  size_ = 0;
  fresh_ = 0;
  free_ = kNone;
}

}  // namespace dynemb

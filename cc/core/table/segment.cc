#include "cc/core/table/segment.h"

#include <algorithm>
#include <cmath>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace dynemb {
namespace {

constexpr double kMaxLoad = 0.8;
constexpr int64_t kMaxBlockBytes = int64_t{2} << 20;
constexpr int64_t kMaxBlockRows = 1 << 16;
constexpr int64_t kMinBlockRows = 8;
constexpr int64_t kMaxBlocks = (1 << 16) - 1;  // the last number would make kNone a reference

}  // namespace

Segment::Segment(SlabArena* arena, const RowLayout& layout, double phase)
    : arena_(arena), layout_(layout), stride_(kKeyBytes + layout.row_bytes), phase_(phase) {}

Segment::~Segment() { Clear(); }

uint32_t Segment::Match(const Chunk& chunk, uint8_t tag) {
#if defined(__SSE2__)
  const __m128i tags = _mm_load_si128(reinterpret_cast<const __m128i*>(&chunk));
  const __m128i equal = _mm_cmpeq_epi8(tags, _mm_set1_epi8(static_cast<char>(tag)));
  return static_cast<uint32_t>(_mm_movemask_epi8(equal)) & ((1u << kCells) - 1);
#else
  uint32_t mask = 0;
  for (int c = 0; c < kCells; ++c) mask |= static_cast<uint32_t>(chunk.tags[c] == tag) << c;
  return mask;
#endif
}

Segment::Ref Segment::Find(int64_t wanted, uint64_t hash) const {
  if (chunk_count_ == 0) return kNone;
  uint32_t at = Home(hash);
  for (uint32_t probes = 0; probes < chunk_count_; ++probes, at = Next(at)) {
    const Chunk& chunk = chunks_[at];
    for (uint32_t mask = Match(chunk, Tag(hash)); mask != 0; mask &= mask - 1) {
      const Ref ref = chunk.refs[__builtin_ctz(mask)];
      if (key(ref) == wanted) return ref;
    }
    if (chunk.overflow == 0) break;
  }
  return kNone;
}

Segment::Ref Segment::FindCandidate(uint64_t hash) const {
  if (chunk_count_ == 0) return kNone;
  uint32_t at = Home(hash);
  for (uint32_t probes = 0; probes < chunk_count_; ++probes, at = Next(at)) {
    const Chunk& chunk = chunks_[at];
    if (const uint32_t mask = Match(chunk, Tag(hash))) return chunk.refs[__builtin_ctz(mask)];
    if (chunk.overflow == 0) break;
  }
  return kNone;
}

Segment::Ref Segment::Insert(int64_t key, uint64_t hash) {
  if (size_ + 1 > max_rows_ && !ReserveIndex(size_ + 1)) return kNone;
  const Ref ref = AllocateRow();
  if (ref == kNone) return kNone;
  std::memcpy(RowStart(ref), &key, sizeof(key));
  Link(hash, ref);
  ++size_;
  return ref;
}

void Segment::Link(uint64_t hash, Ref ref) {
  uint32_t at = Home(hash);
  for (;;) {
    Chunk& chunk = chunks_[at];
    if (const uint32_t empty = Match(chunk, 0)) {
      const int cell = __builtin_ctz(empty);
      chunk.tags[cell] = Tag(hash);
      chunk.refs[cell] = ref;
      return;
    }
    if (chunk.overflow != 255) ++chunk.overflow;
    at = Next(at);
  }
}

void Segment::Erase(int64_t wanted, uint64_t hash) {
  for (uint32_t at = Home(hash);; at = Next(at)) {
    Chunk& chunk = chunks_[at];
    for (uint32_t mask = Match(chunk, Tag(hash)); mask != 0; mask &= mask - 1) {
      const int cell = __builtin_ctz(mask);
      const Ref ref = chunk.refs[cell];
      if (key(ref) != wanted) continue;
      chunk.tags[cell] = 0;
      for (uint32_t passed = Home(hash); passed != at; passed = Next(passed)) {
        if (chunks_[passed].overflow != 255) --chunks_[passed].overflow;
      }
      blocks_[ref >> 16].live[(ref & 0xffffu) / 64] &= ~(uint64_t{1} << (ref & 63u));
      std::memcpy(RowStart(ref), &free_, sizeof(free_));
      free_ = ref;
      --size_;
      return;
    }
  }
}

Segment::Ref Segment::AllocateRow() {
  Ref ref;
  if (free_ != kNone) {
    ref = free_;
    std::memcpy(&free_, RowStart(ref), sizeof(free_));
  } else {
    if ((blocks_.empty() || fresh_ == blocks_.back().rows) && !AddBlock()) return kNone;
    ref = static_cast<Ref>((blocks_.size() - 1) << 16 | fresh_++);
  }
  blocks_[ref >> 16].live[(ref & 0xffffu) / 64] |= uint64_t{1} << (ref & 63u);
  return ref;
}

bool Segment::AddBlock() {
  if (static_cast<int64_t>(blocks_.size()) == kMaxBlocks) return false;
  const int64_t most = std::clamp<int64_t>(kMaxBlockBytes / stride_, 1, kMaxBlockRows);
  const int64_t rows = std::min(most, std::max(kMinBlockRows, size_ / 8));
  char* data = static_cast<char*>(arena_->Allocate(rows * stride_));
  if (data == nullptr) return false;
  blocks_.push_back({data, static_cast<uint32_t>(rows), std::vector<uint64_t>((rows + 63) / 64)});
  fresh_ = 0;
  return true;
}

bool Segment::ReserveIndex(int64_t rows) {
  if (rows <= max_rows_) return true;
  // Sizes are 2^(i + phase) chunks, the smallest of them that holds the rows.
  const double chunks = std::max(1.0, static_cast<double>(rows) / (kMaxLoad * kCells));
  const double size = std::exp2(std::ceil(std::log2(chunks) - phase_) + phase_);
  if (size > 4e9) return false;
  return Rehash(static_cast<uint32_t>(std::ceil(size)));
}

bool Segment::Rehash(uint32_t chunk_count) {
  Chunk* chunks = static_cast<Chunk*>(AllocateZeroed(int64_t{chunk_count} * sizeof(Chunk)));
  if (chunks == nullptr) return false;
  FreeZeroed(chunks_, index_bytes());
  chunks_ = chunks;
  chunk_count_ = chunk_count;
  max_rows_ = static_cast<int64_t>(kMaxLoad * kCells * chunk_count);
  for (Ref ref = NextLive(0); ref != kNone; ref = NextLive(ref + 1)) {
    Link(Mix64(static_cast<uint64_t>(key(ref))), ref);
  }
  return true;
}

Segment::Ref Segment::NextLive(Ref ref) const {
  uint32_t row = ref & 0xffffu;
  for (size_t b = ref >> 16; b < blocks_.size(); ++b, row = 0) {
    const std::vector<uint64_t>& live = blocks_[b].live;
    for (size_t word = row / 64; word < live.size(); ++word, row = 0) {
      const uint64_t bits = live[word] >> (row % 64) << (row % 64);
      if (bits != 0) return static_cast<Ref>(b << 16 | (word * 64 + __builtin_ctzll(bits)));
    }
  }
  return kNone;
}

void Segment::FreeBlocks(std::vector<Block>* blocks, int64_t stride) {
  for (const Block& block : *blocks) arena_->Free(block.data, BlockBytes(block, stride));
  blocks->clear();
}

void Segment::Clear() {
  FreeBlocks(&blocks_, stride_);
  FreeZeroed(chunks_, index_bytes());
  chunks_ = nullptr;
  chunk_count_ = 0;
  max_rows_ = 0;
  size_ = 0;
  fresh_ = 0;
  free_ = kNone;
}

}  // namespace dynemb

#include "cc/core/table/segment.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <new>

#include "cc/core/table/for_each_key.h"

namespace dynemb {
namespace {

constexpr double kGrowth = 1.5;       // of the index
constexpr double kLeastGrowth = 1.2;  // where its size was reserved
// A smaller index, of 256 KiB, grows at once. A larger one has moved after 1/32 as many insertions
// as it has keys.
constexpr uint32_t kGrowsAtOnce = 4096, kChunksPerInsert = 8;
constexpr int64_t kMaxBlockBytes = int64_t{2} << 20;
constexpr int64_t kMaxBlockRows = 1 << 16;
constexpr int64_t kMinBlockRows = 8;
constexpr size_t kMaxBlocks = (1 << 16) - 1;  // the last number would make kNone a reference

}  // namespace

Segment::Segment(SlabArena* row_arena, SlabArena* index_arena, const RowLayout& layout,
                 double phase)
    : row_arena_(row_arena), index_arena_(index_arena), layout_(layout), phase_(phase) {}

Segment::~Segment() { Clear(); }

int64_t Segment::allocated_rows() const {
  int64_t rows = 0;
  for (const Block& block : blocks_) rows += block.row_count;
  return rows;
}

Segment::Ref Segment::Insert(int64_t key, uint64_t hash) {
  if (size_ + 1 > index_.capacity() && !GrowIndex()) return kNone;
  const Ref ref = AllocateRow();
  if (ref == kNone) return kNone;
  ContinueGrowth(kChunksPerInsert);
  // In the array that it wants, whose last chunks make way where there is no cell before them: past
  // these are keys that have moved already.
  while (InOldIndex(hash) && !old_index_.Insert(key, hash, ref, false, old_end_)) MoveLastChunks();
  if (!InOldIndex(hash)) index_.Insert({hash, key, ref}, false);
  ++size_;
  return ref;
}

bool Segment::Erase(int64_t key, uint64_t hash) {
  bool marked;
  const Ref ref = IndexOf(hash).Erase(key, hash, &marked);
  std::memcpy(row(ref), &free_, sizeof(free_));
  free_ = ref;
  --size_;
  return marked;
}

Segment::Ref Segment::AllocateRow() {
  if (free_ != kNone) {
    const Ref ref = free_;
    free_ = NextFree(ref);
    // Erased rows lie anywhere: the next one is on its way while this one is written.
    if (free_ != kNone) PrefetchRow(row(free_), layout_.row_bytes);
    return ref;
  }
  if (blocks_.empty() || fresh_ == blocks_.back().row_count) {
    if (!AddBlock(static_cast<uint32_t>(RowsOfBlock(size_, layout_)))) return kNone;
    fresh_ = 0;
  }
  return static_cast<Ref>((blocks_.size() - 1) << 16 | fresh_++);
}

bool Segment::AddBlock(uint32_t row_count) {
  if (blocks_.size() == kMaxBlocks) return false;
  if (blocks_.size() == blocks_.capacity()) {
    try {
      blocks_.reserve(std::max<size_t>(4, 2 * blocks_.size()));
    } catch (const std::bad_alloc&) {
      return false;
    }
  }
  char* rows = static_cast<char*>(row_arena_->Allocate(row_count * layout_.row_bytes));
  if (rows == nullptr) return false;
  blocks_.push_back({rows, row_count});
  return true;
}

void Segment::FreeBlock(Block* block) {
  row_arena_->Free(block->rows, block->row_count * layout_.row_bytes);
}

bool Segment::AllocateRowsOf(const Segment& from) {
  for (const Block& block : from.blocks_) {
    if (!AddBlock(block.row_count)) return false;
  }
  return true;
}

// The fewest chunks, a whole number or not, that hold so many rows.
double Segment::ChunksFor(int64_t rows) {
  return std::max(1.0, static_cast<double>(rows) / (KeyIndex::kMaxLoad * KeyIndex::kCells));
}

// Some segments have more room than others: when it ends they do not all grow at once.
double Segment::ReservedChunks(int64_t rows, double phase) {
  return std::ceil(ChunksFor(rows) * (1 + phase / 4));
}

bool Segment::ReserveIndex(int64_t rows) {
  return rows <= index_.capacity() || BeginGrowth(ReservedChunks(rows, phase_));
}

int64_t Segment::IndexBytes(int64_t rows, double phase) {
  return rows == 0 ? 0 : KeyIndex::Bytes(ReservedChunks(rows, phase));
}

int64_t Segment::RowsOfBlock(int64_t rows, const RowLayout& layout) {
  const int64_t most = std::clamp<int64_t>(kMaxBlockBytes / layout.row_bytes, 1, kMaxBlockRows);
  return std::min(most, std::max(kMinBlockRows, rows / 32));
}

int64_t Segment::RowBytes(int64_t rows, const RowLayout& layout) {
  return (rows + RowsOfBlock(rows, layout)) * layout.row_bytes;
}

bool Segment::GrowIndex() {
  // Sizes are kGrowth^(i + phase) chunks.
  const double least = std::max(ChunksFor(size_ + 1), kLeastGrowth * index_.chunk_count());
  const double steps = std::log(least) / std::log(kGrowth);
  return BeginGrowth(std::ceil(std::pow(kGrowth, std::ceil(steps - phase_) + phase_)));
}

bool Segment::BeginGrowth(double chunks_wanted) {
  KeyIndex larger;
  if (!larger.Allocate(index_arena_, chunks_wanted)) return false;
  ContinueGrowth(old_end_);
  old_index_ = std::exchange(index_, larger);
  if (old_index_.empty()) return true;
  old_begin_ = 0;
  old_end_ = old_index_.chunk_count();
  // Keys that want the last chunks may lie in the first ones: both move now.
  const bool wraps = old_index_.overflows(old_end_ - 1);
  while (old_end_ > 0 && old_index_.overflows(old_end_ - 1)) MoveChunk(--old_end_);
  if (old_index_.chunk_count() < kGrowsAtOnce) {
    ContinueGrowth(old_end_);
  } else if (wraps) {
    ContinueGrowth(1);
  }
  return true;
}

void Segment::ContinueGrowth(uint32_t chunks) {
  if (old_index_.empty()) return;
  for (uint32_t moved = 0; old_begin_ < old_end_; ++moved) {
    // Not between a chunk that keys want and one that they lie in.
    if (moved >= chunks && !old_index_.overflows(old_begin_ - 1)) return;
    MoveChunk(old_begin_++);
  }
  old_index_.Free(index_arena_);
}

void Segment::MoveLastChunks() {
  do {
    MoveChunk(--old_end_);
  } while (old_begin_ < old_end_ && old_index_.overflows(old_end_ - 1));
  if (old_begin_ == old_end_) old_index_.Free(index_arena_);
}

void Segment::MoveChunk(uint32_t at) {
  old_index_.ForEachInChunk(
      at, [this](const Entry& entry, bool marked) { index_.Insert(entry, marked); });
}

void Segment::AppendRange(HashRange hashes, std::vector<Entry>* entries) const {
  const size_t begin = entries->size();
  ForEachInRange(
      hashes, [](const char*) {}, [&](const Entry& entry) { entries->push_back(entry); });
  std::sort(entries->begin() + static_cast<std::ptrdiff_t>(begin), entries->end(),
            [](const Entry& a, const Entry& b) { return a.hash < b.hash; });
}

void Segment::PrefetchRange(HashRange hashes) const {
  if (!index_.empty()) index_.PrefetchRange(hashes);
  if (!old_index_.empty()) old_index_.PrefetchRange(hashes);
}

int Segment::StripeBits() const {
  int bits = 0;
  while (bits < Stripes::kMaxBits && index_.chunk_count() >> (bits + 2) != 0) ++bits;
  return bits;
}

void Segment::Clear() {
  for (Block& block : blocks_) FreeBlock(&block);
  blocks_.clear();
  index_.Free(index_arena_);
  old_index_.Free(index_arena_);
  size_ = 0;
  fresh_ = 0;
  free_ = kNone;
}

}  // namespace dynemb

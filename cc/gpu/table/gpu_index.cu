#include <algorithm>

#include "cc/gpu/for_each.cu.h"
#include "cc/gpu/table/gpu_index.h"

namespace dynemb {
namespace {

constexpr int64_t kLeastChunks = 8, kMostChunks = 0xffffffff;
// Shares of the cells: when the index begins to grow, and by when it must have grown.
constexpr double kStart = 0.75, kLimit = 0.85;
// The same of one whose size was asked for: it is filled as far as searches stay short.
constexpr double kReservedStart = 0.9, kReservedLimit = 0.95;
constexpr double kGrowth = 1.5;
constexpr double kNewLoad = 0.6;  // at most, after growing for a large batch

struct MoveHome {
  IndexPart from, to;
  uint32_t first;

  DYNEMB_HOST_DEVICE void operator()(int64_t i) const {
    ForEachOfHome(from, first + static_cast<uint32_t>(i),
                  [this](Key key, uint64_t hash, RowRef row, uint32_t, int) {
                    InsertKey(to, key, hash, row);
                  });
  }
};

// Of an index that is reserved for so many keys.
int64_t ReservedChunks(int64_t rows) {
  return static_cast<int64_t>(static_cast<double>(rows) / kReservedStart / IndexChunk::kCells) + 1;
}

int64_t Share(int64_t cells, double share) {
  return static_cast<int64_t>(static_cast<double>(cells) * share);
}

}  // namespace

Status GpuIndex::Clear(const Context& context) {
  DeviceBuffer chunks;
  constexpr int64_t kBytes = kLeastChunks * sizeof(IndexChunk);
  if (!chunks.Allocate(memory_, kBytes)) return ResourceExhausted("no GPU memory for an index");
  DYNEMB_RETURN_IF_ERROR(FillBytes(context, chunks.as<char>(), 0, kBytes));
  next_.Free();
  current_ = std::move(chunks);
  view_ = Index();
  view_.current = {current_.as<IndexChunk>(), kLeastChunks};
  moved_chunks_ = 0;
  start_ = Share(kLeastChunks * kCells, kStart);
  limit_ = Share(kLeastChunks * kCells, kLimit);
  return {};
}

Status GpuIndex::Empty(const Context& context) {
  if (growing()) return Clear(context);
  return FillBytes(context, current_.as<char>(), 0, current_.bytes());
}

Status GpuIndex::Begin(const Context& context, int64_t chunks, int64_t start, int64_t limit,
                       bool* begun) {
  *begun = false;
  if (chunks > kMostChunks) return {};
  const int64_t bytes = chunks * static_cast<int64_t>(sizeof(IndexChunk));
  if (!next_.Allocate(memory_, bytes)) return {};
  *begun = true;
  DYNEMB_RETURN_IF_ERROR(FillBytes(context, next_.as<char>(), 0, bytes));
  view_.next = {next_.as<IndexChunk>(), static_cast<uint32_t>(chunks)};
  view_.moved = 0;
  moved_chunks_ = 0;
  next_start_ = start;
  next_limit_ = limit;
  return {};
}

Status GpuIndex::Move(const Context& context, int64_t chunks) {
  const int64_t count = view_.current.count;
  chunks = std::min(chunks, count - moved_chunks_);
  DYNEMB_RETURN_IF_ERROR(ForEach(
      context, chunks, MoveHome{view_.current, view_.next, static_cast<uint32_t>(moved_chunks_)}));
  moved_chunks_ += chunks;
  if (moved_chunks_ < count) {
    view_.moved = view_.current.FirstHash(static_cast<uint64_t>(moved_chunks_));
    return {};
  }
  // Freeing GPU memory waits for the kernels that use it; another allocator's may not.
  DYNEMB_RETURN_IF_ERROR(Wait(context));
  current_ = std::move(next_);
  next_.Free();
  view_ = Index{view_.next, {}, 0};
  start_ = next_start_;
  limit_ = next_limit_;
  return {};
}

Status GpuIndex::MakeRoom(const Context& context, int64_t rows, int64_t inserting, int64_t ahead) {
  const int64_t count = view_.current.count;
  if (growing() && rows > limit_) {
    DYNEMB_RETURN_IF_ERROR(Move(context, count));
  }
  const int64_t wanted = rows > start_ ? rows : ahead;
  if (!growing() && wanted > start_) {
    const double least = static_cast<double>(wanted) / kNewLoad / kCells;
    const auto chunks =
        static_cast<int64_t>(std::max(least, kGrowth * static_cast<double>(view_.current.count)));
    bool begun;
    DYNEMB_RETURN_IF_ERROR(Begin(context, chunks, Share(chunks * kCells, kStart),
                                 Share(chunks * kCells, kLimit), &begun));
    if (begun && rows > limit_) return Move(context, view_.current.count);
  }
  if (!growing()) return {};
  const double share = static_cast<double>(inserting) / static_cast<double>(limit_ - start_);
  return Move(context, 1 + static_cast<int64_t>(share * static_cast<double>(view_.current.count)));
}

int64_t GpuIndex::ReservedBytes(int64_t rows) {
  const int64_t chunks = std::max(ReservedChunks(rows), kLeastChunks);
  return chunks * static_cast<int64_t>(sizeof(IndexChunk));
}

Status GpuIndex::Reserve(const Context& context, int64_t rows) {
  if (growing()) DYNEMB_RETURN_IF_ERROR(Move(context, view_.current.count));
  if (rows <= start_) return {};
  // Without memory to grow an index may have more keys than were to be reserved.
  rows = std::max(rows, limit_);
  const int64_t chunks = ReservedChunks(rows);
  bool begun = false;
  if (chunks > kMostChunks) {
    return ResourceExhausted("rows: got ", rows, ", more than an index can have");
  }
  DYNEMB_RETURN_IF_ERROR(Begin(context, chunks,
                               std::max(rows, Share(chunks * kCells, kReservedStart)),
                               Share(chunks * kCells, kReservedLimit), &begun));
  if (!begun) return ResourceExhausted("no GPU memory for an index of ", rows, " rows");
  return Move(context, view_.current.count);
}

}  // namespace dynemb

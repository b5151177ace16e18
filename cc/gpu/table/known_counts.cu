#include <utility>

#include "cc/gpu/for_each.cu.h"
#include "cc/gpu/table/known_counts.h"

namespace dynemb {

KnownCounts& KnownCounts::operator=(KnownCounts&& o) noexcept {
  std::swap(buffer_, o.buffer_);
  std::swap(reads_, o.reads_);
  std::swap(sent_, o.sent_);
  std::swap(came_, o.came_);
  std::swap(under_way_, o.under_way_);
  std::swap(inserted_since_, o.inserted_since_);
  std::swap(most_rows_, o.most_rows_);
  return *this;
}

KnownCounts::~KnownCounts() {
  if (sent_ != nullptr) cudaFreeHost(sent_);
  if (came_ != nullptr) cudaEventDestroy(came_);
}

Status KnownCounts::Init(const Context& context, DeviceMemory* memory) {
  constexpr int64_t kReadBytes = ReadCounts::kCounts * sizeof(ReadCounts::Count);
  if (!buffer_.Allocate(memory, sizeof(RowCounts)) || !reads_.Allocate(memory, kReadBytes)) {
    return ResourceExhausted("no GPU memory for a table");
  }
  DYNEMB_RETURN_IF_ERROR(FillBytes(context, reads_.as<char>(), 0, kReadBytes));
  if (!RunsOnHost(context.space)) {
    DYNEMB_RETURN_IF_ERROR(
        FromCuda(cudaMallocHost(reinterpret_cast<void**>(&sent_), sizeof(RowCounts)),
                 "allocating pinned memory"));
    DYNEMB_RETURN_IF_ERROR(
        FromCuda(cudaEventCreateWithFlags(&came_, cudaEventDisableTiming), "making an event"));
  }
  return Clear(context);
}

Status KnownCounts::Clear(const Context& context) {
  under_way_ = false;
  most_rows_ = 0;
  return FillBytes(context, there(), 0, sizeof(RowCounts));
}

void KnownCounts::Poll() {
  if (!under_way_) return;
  if (cudaEventQuery(came_) != cudaSuccess) {
    cudaGetLastError();  // they are still under way
    return;
  }
  under_way_ = false;
  most_rows_ = sent_->rows() + inserted_since_;
}

Status KnownCounts::Read(const Context& context, RowCounts* counts) {
  DYNEMB_RETURN_IF_ERROR(CopyAny(context, counts, there(), sizeof(*counts)));
  DYNEMB_RETURN_IF_ERROR(Wait(context));
  under_way_ = false;
  most_rows_ = counts->rows();
  return {};
}

Status KnownCounts::AddReads(const Context& context, TableCounters* counters) const {
  ReadCounts::Count counts[ReadCounts::kCounts];
  DYNEMB_RETURN_IF_ERROR(CopyAny(context, counts, reads_.as<char>(), sizeof(counts)));
  DYNEMB_RETURN_IF_ERROR(Wait(context));
  for (const ReadCounts::Count& count : counts) {
    counters->found += static_cast<int64_t>(count.found);
    counters->missing += static_cast<int64_t>(count.missing);
  }
  return {};
}

Status KnownCounts::ReadAndForgetFull(const Context& context, RowCounts* counts) {
  DYNEMB_RETURN_IF_ERROR(Read(context, counts));
  return FillBytes(context, &there()->full, 0, sizeof(there()->full));
}

Status KnownCounts::ForgetTaken(const Context& context) {
  return FillBytes(context, &there()->taken, 0, sizeof(there()->taken));
}

Status KnownCounts::EndCall(const Context& context, int64_t limit, int64_t inserted) {
  DYNEMB_RETURN_IF_ERROR(ForEach(context, 1, Ending(context, limit, inserted)));
  return Ended(context, inserted);
}

Status KnownCounts::Ended(const Context& context, int64_t inserted) {
  most_rows_ += inserted;
  if (RunsOnHost(context.space)) {
    most_rows_ = there()->rows();
    return {};
  }
  inserted_since_ += inserted;
  if (under_way_ || inserted == 0) return {};
  DYNEMB_RETURN_IF_ERROR(FromCuda(cudaEventRecord(came_, StreamOf(context)), "sending counts"));
  under_way_ = true;
  inserted_since_ = 0;
  return {};
}

}  // namespace dynemb

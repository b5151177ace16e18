#include "cc/core/storage/read_many.h"

#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "cc/core/base/no_memory.h"
#include "cc/core/base/worker_threads.h"
#include "cc/core/storage/io_uring.h"

namespace dynemb {
namespace {

constexpr int64_t kReadsOfTask = 16;      // that a thread does one after the other
constexpr int64_t kReadsOfRing = 256;     // for which another ring is worth its thread
constexpr int64_t kKeptBytes = 64 << 10;  // of a buffer between calls

// The first error of several threads.
class FirstError {
 public:
  void Set(Status status) {
    if (status.ok()) return;
    const std::lock_guard<std::mutex> lock(mutex_);
    if (status_.ok()) status_ = std::move(status);  // which needs no memory
    is_set_.store(true, std::memory_order_relaxed);
  }
  bool is_set() const { return is_set_.load(std::memory_order_relaxed); }
  Status Take() { return std::move(status_); }

 private:
  std::mutex mutex_;
  Status status_;
  std::atomic<bool> is_set_{false};
};

void Fit(int64_t bytes, std::vector<char>* buffer) {
  if (static_cast<int64_t>(buffer->size()) < bytes) buffer->resize(static_cast<size_t>(bytes));
}

// A read as the system takes it: from `offset` on, `bytes` of which the first `before` are others',
// to `to`, in a buffer that is long enough.
struct AlignedRead {
  AlignedRead(const FileRead& read, std::vector<char>* buffer) {
    const int64_t alignment = read.file->alignment();
    before = read.offset % alignment;
    offset = read.offset - before;
    bytes = (before + read.bytes + alignment - 1) / alignment * alignment;
    Fit(bytes + alignment - 1, buffer);
    const int64_t address = static_cast<int64_t>(reinterpret_cast<uintptr_t>(buffer->data()));
    to = buffer->data() + (alignment - address % alignment) % alignment;
  }
  int64_t before, offset, bytes;
  char* to;
};

Status ReadOne(const FileRead& read, int64_t i, const ReadDone& done, std::vector<char>* buffer) {
  return OrNoMemory([&] {
    Fit(read.bytes, buffer);
    DYNEMB_RETURN_IF_ERROR(read.file->Read(read.offset, read.bytes, buffer->data()));
    return done(i, buffer->data());
  });
}

// A ring and a buffer for each read that may be under way.
struct RingOfBuffers {
  std::vector<char> buffers[IoUring::kEntries];
  std::unique_ptr<IoUring> ring;
  const pid_t process = ::getpid();
};

// The rings that no call uses; they live for ever.
class Rings {
 public:
  static Rings* Get() {
    static Rings* const rings = new Rings;
    return rings;
  }
  // Null: there is none.
  std::unique_ptr<RingOfBuffers> Take() {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (is_refused_) return nullptr;
      while (!free_.empty()) {
        std::unique_ptr<RingOfBuffers> ring = std::move(free_.back());
        free_.pop_back();
        // A process that was forked shares the rings of the other one, which may use them.
        if (ring->process == ::getpid()) return ring;
      }
    }
    auto made = std::make_unique<RingOfBuffers>();
    made->ring = IoUring::Make();
    if (made->ring != nullptr) return made;
    Refuse();
    return nullptr;
  }
  void Give(std::unique_ptr<RingOfBuffers> ring) {
    for (std::vector<char>& buffer : ring->buffers) {
      if (static_cast<int64_t>(buffer.size()) > kKeptBytes) std::vector<char>().swap(buffer);
    }
    const std::lock_guard<std::mutex> lock(mutex_);
    free_.push_back(std::move(ring));
  }
  // That no ring can be made, or none that reads: it is not tried again.
  void Refuse() {
    const std::lock_guard<std::mutex> lock(mutex_);
    is_refused_ = true;
  }

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<RingOfBuffers>> free_;
  bool is_refused_ = false;
};

// Reads [begin, end) by a ring, as many at a time as it takes.
void ReadByRing(Span<const FileRead> reads, int64_t begin, int64_t end, const ReadDone& done,
                RingOfBuffers* ring, FirstError* error) {
  int64_t number_of[IoUring::kEntries];  // the read that has a buffer
  const char* bytes_of[IoUring::kEntries];
  int free[IoUring::kEntries], free_buffers = IoUring::kEntries;
  for (int b = 0; b < IoUring::kEntries; ++b) free[b] = b;
  std::vector<int64_t> by_hand;                       // which the ring could not do, or not wholly
  by_hand.reserve(static_cast<size_t>(end - begin));  // no memory is asked for while reads go on
  int64_t next = begin;
  while (next < end || free_buffers < IoUring::kEntries) {
    for (; next < end && free_buffers > 0 && !error->is_set(); ++next) {
      const int b = free[free_buffers - 1];
      error->Set(OrNoMemory([&] {
        const AlignedRead read(reads[next], &ring->buffers[b]);
        ring->ring->Add(reads[next].file->descriptor(), read.offset, read.bytes, read.to,
                        static_cast<uint64_t>(b));
        --free_buffers;
        number_of[b] = next;
        bytes_of[b] = read.to + read.before;
      }));
    }
    if (free_buffers == IoUring::kEntries) break;  // after an error
    uint64_t number;
    int64_t result;
    if (!ring->ring->Wait(&number, &result)) {
      // Nothing is under way any more.
      Rings::Get()->Refuse();
      bool is_free[IoUring::kEntries] = {};
      for (int f = 0; f < free_buffers; ++f) is_free[free[f]] = true;
      for (int b = 0; b < IoUring::kEntries; ++b) {
        if (!is_free[b]) by_hand.push_back(number_of[b]);
      }
      for (; next < end; ++next) by_hand.push_back(next);
      break;
    }
    const int b = static_cast<int>(number);
    const int64_t i = number_of[b];
    // An aligned read may go beyond the end of the file.
    const int64_t before = reads[i].offset % reads[i].file->alignment();
    if (result >= before + reads[i].bytes) {
      if (!error->is_set()) error->Set(OrNoMemory([&] { return done(i, bytes_of[b]); }));
    } else {
      if (result == -EINVAL) Rings::Get()->Refuse();  // a kernel before 5.6
      by_hand.push_back(i);
    }
    free[free_buffers++] = b;
  }
  // What went wrong says the file itself.
  for (const int64_t i : by_hand) {
    if (error->is_set()) return;
    error->Set(ReadOne(reads[i], i, done, &ring->buffers[0]));
  }
}

}  // namespace

Status ReadByThreads(Span<const FileRead> reads, const ReadDone& done) {
  const int64_t tasks = (reads.size + kReadsOfTask - 1) / kReadsOfTask;
  FirstError error;
  DYNEMB_RETURN_IF_ERROR(ReadThreads()->Run(tasks, 0, [&](int64_t task) {
    std::vector<char> buffer;
    const int64_t end = std::min(reads.size, (task + 1) * kReadsOfTask);
    for (int64_t i = task * kReadsOfTask; i < end && !error.is_set(); ++i) {
      error.Set(ReadOne(reads[i], i, done, &buffer));
    }
  }));
  return error.Take();
}

Status ReadByIoUring(Span<const FileRead> reads, const ReadDone& done, bool* possible) {
  *possible = false;
  if (reads.size == 0 || reads[0].file->descriptor() < 0) return Status();
  std::unique_ptr<RingOfBuffers> first = Rings::Get()->Take();
  if (first == nullptr) return Status();
  *possible = true;
  FirstError error;
  const int64_t most = ComputeThreads()->concurrency();
  const int64_t tasks = std::clamp<int64_t>(reads.size / kReadsOfRing, 1, most);
  std::atomic<RingOfBuffers*> ring_of_caller{first.get()};
  const Status ran = ComputeThreads()->Run(tasks, 0, [&](int64_t task) {
    const int64_t begin = reads.size * task / tasks, end = reads.size * (task + 1) / tasks;
    error.Set(OrNoMemory([&] {
      // One task has the first ring.
      RingOfBuffers* ring = ring_of_caller.exchange(nullptr);
      std::unique_ptr<RingOfBuffers> own;
      if (ring == nullptr) {
        own = Rings::Get()->Take();
        if (own == nullptr) {
          std::vector<char> buffer;
          for (int64_t i = begin; i < end && !error.is_set(); ++i) {
            error.Set(ReadOne(reads[i], i, done, &buffer));
          }
          return Status();
        }
        ring = own.get();
      }
      ReadByRing(reads, begin, end, done, ring, &error);
      if (own != nullptr) Rings::Get()->Give(std::move(own));
      return Status();
    }));
  });
  Rings::Get()->Give(std::move(first));
  return ran.ok() ? error.Take() : ran;
}

Status ReadMany(Span<const FileRead> reads, const ReadDone& done) {
  bool possible;
  const Status read = ReadByIoUring(reads, done, &possible);
  return possible ? read : ReadByThreads(reads, done);
}

}  // namespace dynemb

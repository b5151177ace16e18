#include "cc/core/storage/io_uring.h"

#if defined(__linux__) && __has_include(<linux/io_uring.h>)
#include <linux/io_uring.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace dynemb {
namespace {

// Memory that is shared with the kernel.
class Shared {
 public:
  ~Shared() {
    if (at_ != nullptr) ::munmap(at_, bytes_);
  }
  bool Map(int ring, size_t bytes, off_t what) {
    void* const at =
        ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, ring, what);
    if (at == MAP_FAILED) return false;
    at_ = at;
    bytes_ = bytes;
    return true;
  }
  template <typename T>
  T* At(uint32_t offset) const {
    return reinterpret_cast<T*>(static_cast<char*>(at_) + offset);
  }

 private:
  void* at_ = nullptr;
  size_t bytes_ = 0;
};

class Ring final : public IoUring {
 public:
  ~Ring() override {
    if (ring_ >= 0) ::close(ring_);
  }

  bool Open() {
    io_uring_params params;
    std::memset(&params, 0, sizeof(params));
    ring_ = static_cast<int>(::syscall(__NR_io_uring_setup, kEntries, &params));
    if (ring_ < 0) return false;
    if (!submissions_.Map(ring_, params.sq_off.array + params.sq_entries * sizeof(uint32_t),
                          IORING_OFF_SQ_RING) ||
        !completions_.Map(ring_, params.cq_off.cqes + params.cq_entries * sizeof(io_uring_cqe),
                          IORING_OFF_CQ_RING) ||
        !entries_.Map(ring_, params.sq_entries * sizeof(io_uring_sqe), IORING_OFF_SQES)) {
      return false;
    }
    submission_mask_ = *submissions_.At<uint32_t>(params.sq_off.ring_mask);
    submission_tail_ = submissions_.At<uint32_t>(params.sq_off.tail);
    submission_head_ = submissions_.At<uint32_t>(params.sq_off.head);
    submission_array_ = submissions_.At<uint32_t>(params.sq_off.array);
    completion_mask_ = *completions_.At<uint32_t>(params.cq_off.ring_mask);
    completion_head_ = completions_.At<uint32_t>(params.cq_off.head);
    completion_tail_ = completions_.At<uint32_t>(params.cq_off.tail);
    completion_entries_ = completions_.At<io_uring_cqe>(params.cq_off.cqes);
    return true;
  }

  void Add(int descriptor, int64_t offset, int64_t bytes, char* out, uint64_t number) override {
    const uint32_t tail = *submission_tail_;  // which only this side moves
    const uint32_t at = tail & submission_mask_;
    io_uring_sqe* const entry = entries_.At<io_uring_sqe>(0) + at;
    std::memset(entry, 0, sizeof(*entry));
    entry->opcode = IORING_OP_READ;
    entry->fd = descriptor;
    entry->off = static_cast<uint64_t>(offset);
    entry->addr = reinterpret_cast<uint64_t>(out);
    entry->len = static_cast<uint32_t>(bytes);
    entry->user_data = number;
    submission_array_[at] = at;
    __atomic_store_n(submission_tail_, tail + 1, __ATOMIC_RELEASE);
    ++added_;
  }

  bool Wait(uint64_t* number, int64_t* result) override {
    // A call of the system for each read would cost as much as the read.
    constexpr uint32_t kAtOnce = kEntries / 4;
    while (added_ >= kAtOnce || !HasCompletion()) {
      // What is done already is taken before it is waited for more.
      const uint32_t least = HasCompletion() ? 0 : 1;
      const long taken =
          ::syscall(__NR_io_uring_enter, ring_, added_, least, IORING_ENTER_GETEVENTS, nullptr, 0);
      if (taken >= 0) {
        under_way_ += static_cast<uint32_t>(taken);
        added_ -= static_cast<uint32_t>(taken);
        if (HasCompletion()) break;
        continue;
      }
      if (errno == EINTR) continue;
      if (HasCompletion()) break;
      // Short of memory: there is more when something is done.
      if ((errno == EAGAIN || errno == EBUSY) && under_way_ > 0) {
        ::sched_yield();
        continue;
      }
      Forget();
      return false;
    }
    const uint32_t head = *completion_head_;
    const io_uring_cqe& entry = completion_entries_[head & completion_mask_];
    *number = entry.user_data;
    *result = entry.res;
    __atomic_store_n(completion_head_, head + 1, __ATOMIC_RELEASE);
    --under_way_;
    return true;
  }

 private:
  bool HasCompletion() const {
    return *completion_head_ != __atomic_load_n(completion_tail_, __ATOMIC_ACQUIRE);
  }
  // Waits for what is under way, whose buffers the kernel writes, and takes back what is not.
  void Forget() {
    for (; under_way_ > 0; --under_way_) {
      while (!HasCompletion()) ::sched_yield();
      __atomic_store_n(completion_head_, *completion_head_ + 1, __ATOMIC_RELEASE);
    }
    __atomic_store_n(submission_tail_, __atomic_load_n(submission_head_, __ATOMIC_ACQUIRE),
                     __ATOMIC_RELEASE);
    added_ = 0;
  }

  int ring_ = -1;
  Shared submissions_, completions_, entries_;
  uint32_t submission_mask_ = 0, completion_mask_ = 0;
  uint32_t *submission_head_ = nullptr, *submission_tail_ = nullptr, *submission_array_ = nullptr;
  uint32_t *completion_head_ = nullptr, *completion_tail_ = nullptr;
  io_uring_cqe* completion_entries_ = nullptr;
  uint32_t added_ = 0, under_way_ = 0;
};

}  // namespace

std::unique_ptr<IoUring> IoUring::Make() {
  auto ring = std::make_unique<Ring>();
  if (!ring->Open()) return nullptr;
  return ring;
}

}  // namespace dynemb

#else

namespace dynemb {
std::unique_ptr<IoUring> IoUring::Make() { return nullptr; }
}  // namespace dynemb

#endif

#include "cc/core/shard/shared_rings.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <new>
#include <string>
#include <utility>

#include "cc/core/base/status.h"

namespace dynemb {

// Counts of bytes only grow. An end sets its flag before it looks at the other's count for the last
// time, and the other end moves its count before it looks at the flag, all in the one order of
// std::memory_order_seq_cst: so one of the two sees the other.
struct SharedRings::Ring {
  alignas(64) std::atomic<uint64_t> written;
  alignas(64) std::atomic<uint64_t> read;
  alignas(64) std::atomic<uint32_t> reader_waits;
  alignas(64) std::atomic<uint32_t> writer_waits;
  alignas(64) char bytes[kRingBytes];
};

// New memory is zeros: two empty rings.
struct SharedRings::Memory {
  uint64_t stamp[2];
  Ring to_opener;
  Ring to_maker;
};

namespace {

static_assert(std::atomic<uint64_t>::is_always_lock_free &&
                  std::atomic<uint32_t>::is_always_lock_free,
              "a lock would be of one process");

// The memory of a descriptor; null: it cannot be mapped.
template <typename Memory>
std::shared_ptr<Memory> Map(int descriptor) {
  void* const mapped =
      mmap(nullptr, sizeof(Memory), PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  if (mapped == MAP_FAILED) return nullptr;
  return std::shared_ptr<Memory>(new (mapped) Memory,
                                 [](Memory* memory) { munmap(memory, sizeof(Memory)); });
}

// Calls copy(bytes, place in the ring, size) for what of the pieces is next, `size` bytes in all.
template <typename CopyPart>
void CopyPieces(const iovec* pieces, size_t count, uint64_t at, uint64_t size, CopyPart copy) {
  for (size_t p = 0; p < count && size > 0; ++p) {
    char* bytes = static_cast<char*>(pieces[p].iov_base);
    uint64_t left = std::min<uint64_t>(pieces[p].iov_len, size);
    size -= left;
    while (left > 0) {
      const uint64_t place = at % kRingBytes;
      const uint64_t part = std::min<uint64_t>(left, kRingBytes - place);
      copy(bytes, place, part);
      bytes += part;
      at += part;
      left -= part;
    }
  }
}

uint64_t SizeOf(const iovec* pieces, size_t count, uint64_t most) {
  uint64_t size = 0;
  for (size_t p = 0; p < count && size < most; ++p)
    size += std::min<uint64_t>(pieces[p].iov_len, most - size);
  return size;
}

}  // namespace

SharedRings::SharedRings(std::shared_ptr<Memory> memory, bool is_maker)
    : memory_(std::move(memory)),
      is_maker_(is_maker),
      outgoing_(is_maker ? &memory_->to_opener : &memory_->to_maker),
      incoming_(is_maker ? &memory_->to_maker : &memory_->to_opener) {}

SharedRings::~SharedRings() { EndOffer(); }

std::unique_ptr<SharedRings> SharedRings::Make() {
  const int descriptor = memfd_create("tf_dynemb", MFD_CLOEXEC);
  if (descriptor < 0) return nullptr;
  // Reserved: without it a full machine would be a signal (SIGBUS) at the first use.
  int error;
  do {
    error = posix_fallocate(descriptor, 0, sizeof(Memory));
  } while (error == EINTR);
  std::shared_ptr<Memory> memory = error == 0 ? Map<Memory>(descriptor) : nullptr;
  RingsOffer offer;
  if (memory == nullptr ||
      getrandom(offer.stamp, sizeof(offer.stamp), 0) != ssize_t{sizeof(offer.stamp)}) {
    close(descriptor);
    return nullptr;
  }
  memcpy(memory->stamp, offer.stamp, sizeof(offer.stamp));
  offer.process = getpid();
  offer.descriptor = descriptor;
  std::unique_ptr<SharedRings> rings(new SharedRings(std::move(memory), true));
  rings->offer_ = offer;
  rings->descriptor_ = descriptor;
  return rings;
}

std::unique_ptr<SharedRings> SharedRings::Open(const RingsOffer& offer) {
  if (offer.process <= 0 || offer.descriptor < 0) return nullptr;
  const std::string path = StrCat("/proc/", offer.process, "/fd/", offer.descriptor);
  const int descriptor = open(path.c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0) return nullptr;
  struct stat status = {};
  const bool is_there = fstat(descriptor, &status) == 0 && S_ISREG(status.st_mode) &&
                        status.st_size == off_t{sizeof(Memory)};
  std::shared_ptr<Memory> memory = is_there ? Map<Memory>(descriptor) : nullptr;
  close(descriptor);
  // A process of that number in another container has files of its own.
  if (memory == nullptr || memcmp(memory->stamp, offer.stamp, sizeof(offer.stamp)) != 0)
    return nullptr;
  return std::unique_ptr<SharedRings>(new SharedRings(std::move(memory), false));
}

std::unique_ptr<SharedRings> SharedRings::OtherEnd() const {
  return std::unique_ptr<SharedRings>(new SharedRings(memory_, !is_maker_));
}

void SharedRings::EndOffer() {
  if (descriptor_ >= 0) close(std::exchange(descriptor_, -1));
}

ssize_t SharedRings::Write(const iovec* pieces, size_t count, bool* wake_peer) {
  Ring& ring = *outgoing_;
  *wake_peer = false;
  uint64_t room = kRingBytes - (written_ - ring.read.load(std::memory_order_acquire));
  if (room == 0) {
    ring.writer_waits.store(1);
    room = kRingBytes - (written_ - ring.read.load());
  }
  if (room > kRingBytes) return -1;
  const uint64_t size = SizeOf(pieces, count, room);
  CopyPieces(pieces, count, written_, size, [&](const char* from, uint64_t place, uint64_t part) {
    memcpy(ring.bytes + place, from, part);
  });
  if (size == 0) return 0;
  written_ += size;
  ring.written.store(written_);
  *wake_peer = ring.reader_waits.load() != 0 && ring.reader_waits.exchange(0) != 0;
  return static_cast<ssize_t>(size);
}

ssize_t SharedRings::Read(const iovec* pieces, size_t count, bool* wake_peer) {
  Ring& ring = *incoming_;
  *wake_peer = false;
  uint64_t there = ring.written.load(std::memory_order_acquire) - read_;
  if (there == 0) {
    ring.reader_waits.store(1);
    there = ring.written.load() - read_;
  }
  if (there > kRingBytes) return -1;
  const uint64_t size = SizeOf(pieces, count, there);
  CopyPieces(pieces, count, read_, size, [&](char* to, uint64_t place, uint64_t part) {
    memcpy(to, ring.bytes + place, part);
  });
  if (size == 0) return 0;
  read_ += size;
  ring.read.store(read_);
  // Not for every little room: each wake is a call of the system at both ends.
  *wake_peer = there - size <= kRingBytes / 2 && ring.writer_waits.load() != 0 &&
               ring.writer_waits.exchange(0) != 0;
  return static_cast<ssize_t>(size);
}

bool SharedRings::has_room() const { return written_ - outgoing_->read.load() <= kRingBytes / 2; }

bool SharedRings::has_bytes() const { return incoming_->written.load() != read_; }

}  // namespace dynemb

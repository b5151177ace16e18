#include "cc/core/shard/shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <random>
#include <utility>

namespace dynemb {

// Both ends count bytes for ever. A flag is set before its end looks for the last time, and read
// after the other end has moved its count: all in one order, so that one of the two sees the other.
struct Ring {
  alignas(64) std::atomic<uint64_t> written;
  alignas(64) std::atomic<uint64_t> read;
  alignas(64) std::atomic<uint32_t> reader_waits;
  alignas(64) std::atomic<uint32_t> writer_waits;
  alignas(64) char bytes[kRingBytes];
};

namespace {

static_assert(std::atomic<uint64_t>::is_always_lock_free, "counts are shared between processes");

constexpr char kPrefix[] = "/tf_dynemb-";
constexpr size_t kRandomLetters = 32;

// What is mapped: zeros are two empty rings.
struct Rings {
  Ring of_maker;  // to the process that made them
  Ring of_opener;
};

std::string NewName() {
  std::random_device random;
  std::string name = kPrefix;
  while (name.size() < strlen(kPrefix) + kRandomLetters) name += "0123456789abcdef"[random() % 16];
  return name;
}

bool IsName(const std::string& name) {
  return name.size() == strlen(kPrefix) + kRandomLetters && name.rfind(kPrefix, 0) == 0 &&
         name.find_first_not_of("0123456789abcdef", strlen(kPrefix)) == std::string::npos;
}

// The descriptor of an object of shared memory, until it is mapped.
class Descriptor {
 public:
  explicit Descriptor(int number) : number_(number) {}
  Descriptor(const Descriptor&) = delete;
  ~Descriptor() {
    if (number_ >= 0) close(number_);
  }
  int number() const { return number_; }

 private:
  const int number_;
};

// Null: it cannot be mapped.
void* Map(const Descriptor& descriptor) {
  void* const memory =
      mmap(nullptr, sizeof(Rings), PROT_READ | PROT_WRITE, MAP_SHARED, descriptor.number(), 0);
  return memory == MAP_FAILED ? nullptr : memory;
}

// Calls copy(bytes, of ring, size) for parts of pieces that are next in the ring, up to `size`.
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

SharedMemory::SharedMemory(std::string name, void* memory, bool is_maker)
    : name_(std::move(name)),
      memory_(memory),
      outgoing_(is_maker ? &static_cast<Rings*>(memory)->of_opener
                         : &static_cast<Rings*>(memory)->of_maker),
      incoming_(is_maker ? &static_cast<Rings*>(memory)->of_maker
                         : &static_cast<Rings*>(memory)->of_opener) {}

SharedMemory::~SharedMemory() {
  RemoveName();
  munmap(memory_, sizeof(Rings));
}

std::unique_ptr<SharedMemory> SharedMemory::Make() {
  std::string name = NewName();
  const Descriptor descriptor(shm_open(name.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (descriptor.number() < 0) return nullptr;
  // Memory that is not there would be a signal at its first use.
  void* const memory =
      posix_fallocate(descriptor.number(), 0, sizeof(Rings)) == 0 ? Map(descriptor) : nullptr;
  if (memory == nullptr) {
    shm_unlink(name.c_str());
    return nullptr;
  }
  return std::unique_ptr<SharedMemory>(new SharedMemory(std::move(name), memory, true));
}

std::unique_ptr<SharedMemory> SharedMemory::Open(const std::string& name) {
  if (!IsName(name)) return nullptr;
  const Descriptor descriptor(shm_open(name.c_str(), O_RDWR | O_CLOEXEC, 0));
  struct stat status = {};
  if (descriptor.number() < 0 || fstat(descriptor.number(), &status) != 0 ||
      status.st_size != sizeof(Rings)) {
    return nullptr;
  }
  void* const memory = Map(descriptor);
  if (memory == nullptr) return nullptr;
  return std::unique_ptr<SharedMemory>(new SharedMemory(name, memory, false));
}

void SharedMemory::RemoveName() {
  if (!name_.empty()) shm_unlink(name_.c_str());
  name_.clear();
}

ssize_t SharedMemory::Write(const iovec* pieces, size_t count, bool* wake) {
  Ring& ring = *outgoing_;
  *wake = false;
  const uint64_t written = ring.written.load(std::memory_order_relaxed);
  uint64_t room = kRingBytes - (written - ring.read.load(std::memory_order_acquire));
  if (room == 0) {
    ring.writer_waits.store(1);
    room = kRingBytes - (written - ring.read.load());
  }
  if (room > kRingBytes) return -1;
  const uint64_t size = SizeOf(pieces, count, room);
  CopyPieces(pieces, count, written, size, [&](const char* from, uint64_t place, uint64_t part) {
    memcpy(ring.bytes + place, from, part);
  });
  if (size == 0) return 0;
  ring.written.store(written + size);
  *wake = ring.reader_waits.load() != 0 && ring.reader_waits.exchange(0) != 0;
  return static_cast<ssize_t>(size);
}

ssize_t SharedMemory::Read(const iovec* pieces, size_t count, bool* wake) {
  Ring& ring = *incoming_;
  *wake = false;
  const uint64_t read = ring.read.load(std::memory_order_relaxed);
  uint64_t there = ring.written.load(std::memory_order_acquire) - read;
  if (there == 0) {
    ring.reader_waits.store(1);
    there = ring.written.load() - read;
  }
  if (there > kRingBytes) return -1;
  const uint64_t size = SizeOf(pieces, count, there);
  CopyPieces(pieces, count, read, size, [&](char* to, uint64_t place, uint64_t part) {
    memcpy(to, ring.bytes + place, part);
  });
  if (size == 0) return 0;
  ring.read.store(read + size);
  // Not for every little room: each wake is a call of the system at both ends.
  *wake = there - size <= kRingBytes / 2 && ring.writer_waits.load() != 0 &&
          ring.writer_waits.exchange(0) != 0;
  return static_cast<ssize_t>(size);
}

bool SharedMemory::has_room() const {
  return outgoing_->written.load() - outgoing_->read.load() < kRingBytes;
}

bool SharedMemory::has_bytes() const { return incoming_->written.load() != incoming_->read.load(); }

}  // namespace dynemb

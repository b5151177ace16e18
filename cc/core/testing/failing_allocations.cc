#include "cc/core/testing/failing_allocations.h"

#include <cstddef>
#include <cstdlib>
#include <new>

namespace dynemb {
thread_local int64_t allocations_left = -1;
}  // namespace dynemb

void* operator new(size_t bytes) {
  if (dynemb::allocations_left == 0) throw std::bad_alloc();
  if (dynemb::allocations_left > 0) --dynemb::allocations_left;
  void* const data = std::malloc(bytes + (bytes == 0));
  if (data == nullptr) throw std::bad_alloc();
  return data;
}
void operator delete(void* data) noexcept { std::free(data); }
void operator delete(void* data, size_t) noexcept { std::free(data); }

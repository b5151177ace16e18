#include "cc/core/policy/clock.h"

#include <algorithm>
#include <atomic>
#include <chrono>

namespace dynemb {

int64_t NextMicrosecond() {
  static std::atomic<int64_t> last{0};
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const int64_t clock = std::chrono::duration_cast<std::chrono::microseconds>(now).count();
  int64_t before = last.load();
  int64_t next;
  do {
    next = std::max(clock, before + 1);
  } while (!last.compare_exchange_weak(before, next));
  return next;
}

}  // namespace dynemb

#include "cc/core/table/evicted_rows.h"

#include <new>
#include <utility>

namespace dynemb {

void EvictedRows::Add(const KeptRows& rows) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const int64_t before = rows_.size();
  try {
    rows_.keys.reserve(static_cast<size_t>(before + rows.size()));
    rows_.values.reserve(rows_.values.size() + rows.values.size());
    rows_.Add(rows);
  } catch (const std::bad_alloc&) {
    dropped_ += rows.size();
    return;
  }
  const int64_t over = rows_.size() - most_;
  if (over <= 0) return;
  dropped_ += over;
  rows_.EraseFirst(over, value_bytes_);
}

KeptRows EvictedRows::Take(int64_t* dropped) {
  const std::lock_guard<std::mutex> lock(mutex_);
  *dropped = std::exchange(dropped_, 0);
  return std::exchange(rows_, KeptRows());
}

}  // namespace dynemb

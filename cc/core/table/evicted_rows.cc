#include "cc/core/table/evicted_rows.h"

#include <new>
#include <utility>

namespace dynemb {

void EvictedRows::Add(KeptRows rows) {
  if (rows.size() == 0) return;
  const std::lock_guard<std::mutex> lock(mutex_);
  const int64_t count = rows.size();
  try {
    chunks_.push_back(std::move(rows));
    rows_ += count;
  } catch (const std::bad_alloc&) {
    dropped_ += count;
  }
  Trim();
}

void EvictedRows::AddDropped(int64_t rows) {
  const std::lock_guard<std::mutex> lock(mutex_);
  dropped_ += rows;
}

void EvictedRows::Trim() {
  while (rows_ > most_) {
    const int64_t over = rows_ - most_, in_first = chunks_.front().size() - first_;
    const int64_t going = over < in_first ? over : in_first;
    first_ += going;
    rows_ -= going;
    dropped_ += going;
    if (going < in_first) return;
    chunks_.pop_front();
    first_ = 0;
  }
}

KeptRows EvictedRows::Take(int64_t* dropped) {
  const std::lock_guard<std::mutex> lock(mutex_);
  KeptRows all;
  if (rows_ > 0) {
    const int64_t value_bytes = chunks_.front().value_bytes();
    all.Reserve(rows_, value_bytes);
    int64_t skipped = first_;
    for (const KeptRows& chunk : chunks_) {
      all.keys.insert(all.keys.end(), chunk.keys.begin() + skipped, chunk.keys.end());
      all.values.insert(all.values.end(), chunk.values.begin() + skipped * value_bytes,
                        chunk.values.end());
      skipped = 0;
    }
  }
  chunks_.clear();
  first_ = rows_ = 0;
  *dropped = std::exchange(dropped_, 0);
  return all;
}

void EvictedRows::PutBack(KeptRows rows, int64_t dropped) {
  const std::lock_guard<std::mutex> lock(mutex_);
  dropped_ += dropped;
  if (rows.size() == 0) return;
  const int64_t count = rows.size(), value_bytes = rows.value_bytes();
  try {
    if (first_ > 0) {  // the chunk that follows is to begin with its first row
      KeptRows& next = chunks_.front();
      next.keys.erase(next.keys.begin(), next.keys.begin() + first_);
      next.values.erase(next.values.begin(), next.values.begin() + first_ * value_bytes);
      first_ = 0;
    }
    chunks_.push_front(std::move(rows));
    rows_ += count;
  } catch (const std::bad_alloc&) {
    dropped_ += count;
  }
  Trim();
}

}  // namespace dynemb

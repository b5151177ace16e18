#include "cc/core/table/change_log.h"

#include <algorithm>
#include <cstddef>
#include <new>
#include <utility>

namespace dynemb {
namespace {

constexpr int64_t kFirstRoom = 16;

}  // namespace

void ChangeLog::BeginEpoch(int64_t epoch, int64_t rows) {
  if (!tracking()) known_since_ = epoch - 1;
  if (!current_.empty()) {
    try {
      past_.push_back({epoch_, std::move(current_)});
      past_keys_ += static_cast<int64_t>(past_.back().keys.size());
    } catch (const std::bad_alloc&) {
      Forget();
    }
    current_ = {};
  }
  // The largest of the epochs here; counted anew where none is left.
  most_rows_ = past_.empty() ? rows : std::max(most_rows_, rows);
  room_ = 0;
  epoch_ = epoch;
}

void ChangeLog::MakeRoom(int64_t rows) {
  if (known_since_ >= epoch_) return;  // this epoch has been forgotten
  const int64_t most = kLeastKeys + 2 * std::max(rows, most_rows_);
  while (!past_.empty() && past_keys_ + room_ >= most) Trim(past_.front().number);
  if (room_ >= most) {
    RemoveRepetitions(0, &current_);
    // So that the next time is not soon.
    if (static_cast<int64_t>(current_.size()) > most / 2) return Forget();
  }
  const int64_t listed = static_cast<int64_t>(current_.size());
  const int64_t room = std::clamp(2 * listed, kFirstRoom, most);
  try {
    current_.reserve(static_cast<size_t>(room));
    room_ = room;
  } catch (const std::bad_alloc&) {
    Forget();
  }
}

void ChangeLog::Forget() {
  known_since_ = epoch_;
  past_ = {};
  past_keys_ = 0;
  current_ = {};
  room_ = 0;
}

void ChangeLog::Trim(int64_t through) {
  size_t gone = 0;
  while (gone < past_.size() && past_[gone].number <= through) {
    past_keys_ -= static_cast<int64_t>(past_[gone++].keys.size());
  }
  past_.erase(past_.begin(), past_.begin() + static_cast<std::ptrdiff_t>(gone));
  known_since_ = std::max(known_since_, std::min(through, epoch_ - 1));
}

bool ChangeLog::AppendSince(int64_t since, std::vector<Key>* keys) const {
  if (!tracking() || since < known_since_) return false;
  for (const Epoch& epoch : past_) {
    if (epoch.number > since) keys->insert(keys->end(), epoch.keys.begin(), epoch.keys.end());
  }
  if (epoch_ > since) keys->insert(keys->end(), current_.begin(), current_.end());
  return true;
}

void ChangeLog::RemoveRepetitions(size_t begin, std::vector<Key>* keys) {
  const auto first = keys->begin() + static_cast<std::ptrdiff_t>(begin);
  std::sort(first, keys->end());
  keys->erase(std::unique(first, keys->end()), keys->end());
}

int64_t ChangeLog::memory_bytes() const {
  size_t keys = current_.capacity();
  for (const Epoch& epoch : past_) keys += epoch.keys.capacity();
  return static_cast<int64_t>(keys * sizeof(Key));
}

}  // namespace dynemb

#include "cc/core/table/change_log.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
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
      past_.push_back({epoch_, epoch_, std::move(current_), false});
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
  if (past_keys_ + std::max(room_, kFirstRoom) >= most) {
    for (Epochs& epochs : past_) Sort(&epochs);
    RemoveRepetitions(0, &current_);
    const int64_t left = static_cast<int64_t>(current_.size());
    // So that the next time is not soon.
    while (!past_.empty() && past_keys_ + left > most - most / 8) {
      ForgetThrough(past_.front().last);
    }
    if (past_.empty() && left > most / 2) return Forget();
  }
  const int64_t listed = static_cast<int64_t>(current_.size());
  const int64_t room = std::clamp(2 * listed, kFirstRoom, most - past_keys_);
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

void ChangeLog::ForgetThrough(int64_t epoch) {
  size_t gone = 0;
  while (gone < past_.size() && past_[gone].last <= epoch) {
    past_keys_ -= static_cast<int64_t>(past_[gone++].keys.size());
  }
  past_.erase(past_.begin(), past_.begin() + static_cast<std::ptrdiff_t>(gone));
  known_since_ = std::max(known_since_, std::min(epoch, epoch_ - 1));
}

void ChangeLog::Sort(Epochs* epochs) {
  if (epochs->sorted) return;
  past_keys_ -= static_cast<int64_t>(epochs->keys.size());
  RemoveRepetitions(0, &epochs->keys);
  epochs->keys.shrink_to_fit();  // which leaves it as it is where there is no memory
  past_keys_ += static_cast<int64_t>(epochs->keys.size());
  epochs->sorted = true;
}

bool ChangeLog::Merge(Epochs* before, Epochs* after) {
  Sort(before);
  Sort(after);
  std::vector<Key> keys;
  try {
    keys.reserve(before->keys.size() + after->keys.size());
  } catch (const std::bad_alloc&) {
    return false;
  }
  std::set_union(before->keys.begin(), before->keys.end(), after->keys.begin(), after->keys.end(),
                 std::back_inserter(keys));
  past_keys_ -= static_cast<int64_t>(before->keys.size() + after->keys.size() - keys.size());
  before->keys = std::move(keys);
  before->last = after->last;
  return true;
}

void ChangeLog::Trim(const std::vector<int64_t>& positions) {
  if (positions.empty()) return;
  ForgetThrough(positions.front());
  const auto may_be_merged = [&positions](const Epochs& before, const Epochs& after) {
    // Does nobody ask for what came in the later one and not for what came in the earlier one?
    const auto asks = std::lower_bound(positions.begin(), positions.end(), before.last);
    return asks != positions.end() && *asks >= after.last &&
           before.keys.size() / 2 <= after.keys.size();
  };
  size_t kept = 0;
  for (size_t next = 0; next < past_.size(); ++next) {
    if (kept != next) past_[kept] = std::move(past_[next]);
    ++kept;
    while (kept > 1 && may_be_merged(past_[kept - 2], past_[kept - 1]) &&
           Merge(&past_[kept - 2], &past_[kept - 1])) {
      --kept;
    }
  }
  past_.erase(past_.begin() + static_cast<std::ptrdiff_t>(kept), past_.end());
}

bool ChangeLog::AppendSince(int64_t since, std::vector<Key>* keys) const {
  if (!tracking() || since < known_since_) return false;
  for (const Epochs& epochs : past_) {
    if (epochs.last <= since) continue;
    if (epochs.first <= since) return false;
    keys->insert(keys->end(), epochs.keys.begin(), epochs.keys.end());
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
  for (const Epochs& epochs : past_) keys += epochs.keys.capacity();
  return static_cast<int64_t>(keys * sizeof(Key));
}

}  // namespace dynemb

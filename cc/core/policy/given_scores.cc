#include "cc/core/policy/given_scores.h"

#include <algorithm>
#include <utility>

#include "cc/core/base/hash.h"

namespace dynemb {

int32_t GivenScores::Find(Key key, size_t* cell) {
  if (next_ < static_cast<int32_t>(entries_.size()) && entries_[next_].key == key) return next_++;
  const size_t mask = cells_.size() - 1;
  *cell = Mix64(static_cast<uint64_t>(key)) & mask;
  while (cells_[*cell] != kNone && entries_[cells_[*cell]].key != key) *cell = (*cell + 1) & mask;
  const int32_t place = cells_[*cell];
  if (place != kNone) next_ = place + 1;
  return place;
}

void GivenScores::Rebuild(size_t entries) {
  size_t cells = 16;
  while (cells < 2 * entries) cells *= 2;
  std::vector<Entry> left;
  left.reserve(entries);
  for (const Entry& entry : entries_) {
    if (entry.taken == 0) left.push_back(entry);
  }
  std::vector<int32_t> cells_of_left(cells, kNone);
  for (size_t place = 0; place < left.size(); ++place) {
    size_t at = Mix64(static_cast<uint64_t>(left[place].key)) & (cells - 1);
    while (cells_of_left[at] != kNone) at = (at + 1) & (cells - 1);
    cells_of_left[at] = static_cast<int32_t>(place);
  }
  entries_ = std::move(left);
  cells_ = std::move(cells_of_left);
  next_ = 0;
}

void GivenScores::Forget() {
  entries_.clear();
  std::fill(cells_.begin(), cells_.end(), kNone);
  left_ = 0;
  next_ = 0;
}

void GivenScores::Add(Span<const Key> keys, Span<const int64_t> scores, Several several,
                      int64_t most) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto count = static_cast<size_t>(keys.size);
  if (2 * (entries_.size() + count) > cells_.size()) {
    Rebuild(static_cast<size_t>(left_) + count);
  }
  for (int64_t i = 0; i < keys.size; ++i) {
    size_t cell = 0;
    const int32_t place = Find(keys[i], &cell);
    if (place != kNone && entries_[place].taken == 0) {
      int64_t& score = entries_[place].score;
      if (several == Several::kHighest) {
        score = std::max(score, scores[i]);
      } else {
        score += std::min(scores[i], INT64_MAX - score);
      }
      continue;
    }
    if (left_ >= most) {
      Forget();
      Find(keys[i], &cell);
    }
    ++left_;
    if (place != kNone && !entries_.empty()) {
      entries_[place] = {keys[i], scores[i], 0};
      continue;
    }
    cells_[cell] = static_cast<int32_t>(entries_.size());
    entries_.push_back({keys[i], scores[i], 0});
  }
}

void GivenScores::Clear() {
  const std::lock_guard<std::mutex> lock(mutex_);
  Forget();
}

bool GivenScores::Take(Span<const Key> keys, int64_t* scores, std::vector<int64_t>* without) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (left_ == 0) return false;
  ++calls_;
  next_ = 0;
  for (int64_t i = 0; i < keys.size; ++i) {
    size_t cell;
    const int32_t place = Find(keys[i], &cell);
    // One of this call may come again.
    if (place == kNone || (entries_[place].taken != 0 && entries_[place].taken != calls_)) {
      without->push_back(i);
      continue;
    }
    Entry& entry = entries_[place];
    scores[i] = entry.score;
    left_ -= entry.taken == 0;
    entry.taken = calls_;
  }
  if (left_ == 0) {
    if (cells_.size() / 64 > entries_.size()) cells_.clear();  // of a time when there were more
    Forget();
  }
  return true;
}

void GivenScores::TakeAll(std::vector<Key>* keys, std::vector<int64_t>* scores) {
  const std::lock_guard<std::mutex> lock(mutex_);
  keys->reserve(static_cast<size_t>(left_));
  scores->reserve(static_cast<size_t>(left_));
  for (const Entry& entry : entries_) {
    if (entry.taken != 0) continue;
    keys->push_back(entry.key);
    scores->push_back(entry.score);
  }
  Forget();
}

}  // namespace dynemb

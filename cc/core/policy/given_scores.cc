#include "cc/core/policy/given_scores.h"

#include <algorithm>

namespace dynemb {

void GivenScores::Add(Span<const Key> keys, Span<const int64_t> scores, int64_t most) {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (int64_t i = 0; i < keys.size; ++i) {
    if (static_cast<int64_t>(scores_.size()) >= most && scores_.count(keys[i]) == 0) {
      scores_.clear();
    }
    const auto at = scores_.emplace(keys[i], scores[i]).first;
    at->second = std::max(at->second, scores[i]);
  }
}

void GivenScores::Clear() {
  const std::lock_guard<std::mutex> lock(mutex_);
  scores_.clear();
}

bool GivenScores::Take(Span<const Key> keys, int64_t* scores, std::vector<int64_t>* without) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (scores_.empty()) return false;
  for (int64_t i = 0; i < keys.size; ++i) {
    const auto at = scores_.find(keys[i]);
    if (at == scores_.end()) {
      without->push_back(i);
    } else {
      scores[i] = at->second;
    }
  }
  // Not before: a key may come again.
  for (int64_t i = 0; i < keys.size; ++i) scores_.erase(keys[i]);
  return true;
}

void GivenScores::TakeAll(std::vector<Key>* keys, std::vector<int64_t>* scores) {
  const std::lock_guard<std::mutex> lock(mutex_);
  keys->reserve(scores_.size());
  scores->reserve(scores_.size());
  for (const auto& [key, score] : scores_) {
    keys->push_back(key);
    scores->push_back(score);
  }
  scores_.clear();
}

}  // namespace dynemb

// How often every table with a limit of rows finds the keys of a stream. A program that links this
// defines MakeBoundedTable.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <random>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "cc/core/base/hash.h"
#include "cc/core/testing/bounded.h"
#include "gtest/gtest.h"

namespace dynemb {
namespace {

// Hit rates of a stream beside those of an exact cache of the same size and order.
double ExactHitRate(const std::vector<Keys>& batches, int64_t rows, bool lfu) {
  // Keys by (score, hash of the key), the lowest first.
  std::set<std::pair<std::pair<int64_t, uint64_t>, Key>> order;
  std::unordered_map<Key, int64_t> score;
  int64_t hits = 0, all = 0, now = 0;
  for (const Keys& batch : batches) {
    ++now;
    Keys missing;
    Set seen;
    for (const Key key : batch) {
      const auto found = score.find(key);
      ++all;
      hits += found != score.end();
      if (!seen.insert(key).second) continue;
      if (found == score.end()) {
        missing.push_back(key);
        continue;
      }
      const uint64_t hash = Mix64(static_cast<uint64_t>(key));
      order.erase({{found->second, hash}, key});
      found->second = lfu ? found->second + 1 : now;
      order.insert({{found->second, hash}, key});
    }
    while (static_cast<int64_t>(order.size() + missing.size()) > rows) {
      score.erase(order.begin()->second);
      order.erase(order.begin());
    }
    for (const Key key : missing) {
      score[key] = lfu ? 1 : now;
      order.insert({{score[key], Mix64(static_cast<uint64_t>(key))}, key});
    }
  }
  return static_cast<double>(hits) / static_cast<double>(all);
}

TEST(EvictionTest, HitRatesAreThoseOfAnExactCache) {
  // Zipf(1.05) over 200,000 keys, by the inverse of its cumulated weights.
  constexpr int64_t kKeys = 200'000, kBatch = 1024, kBatches = kUnderThreadSanitizer ? 60 : 600;
  std::vector<double> cumulated(kKeys);
  double sum = 0;
  for (int64_t k = 0; k < kKeys; ++k) {
    cumulated[static_cast<size_t>(k)] = sum += std::pow(static_cast<double>(k + 1), -1.05);
  }
  std::mt19937_64 random(5);
  std::vector<Keys> batches(kBatches, Keys(kBatch));
  Set distinct;
  for (Keys& batch : batches) {
    for (Key& key : batch) {
      const double at = sum * static_cast<double>(random() >> 11) / static_cast<double>(1ull << 53);
      key = std::upper_bound(cumulated.begin(), cumulated.end(), at) - cumulated.begin();
      distinct.insert(key);
    }
  }
  for (const char* policy : {"lru", "lfu"}) {
    for (const double share : {0.1, 0.25, 0.5}) {
      const int64_t rows = static_cast<int64_t>(share * static_cast<double>(distinct.size()));
      const Bounded bounded(Options(rows, policy));
      int64_t now = 0;
      for (const Keys& batch : batches) {
        Floats values;
        ASSERT_OK(bounded.call->Find(batch, &values));
        ASSERT_OK(bounded.Upsert(batch, ++now));
      }
      const TableCounters counters = bounded.table->counters();
      const double hits = static_cast<double>(counters.found) /
                          static_cast<double>(counters.found + counters.missing);
      const double exact = ExactHitRate(batches, rows, std::string(policy) == "lfu");
      std::printf("%s, %.0f %% of %d keys: hit rate %.4f, of an exact cache %.4f\n", policy,
                  100 * share, static_cast<int>(distinct.size()), hits, exact);
      EXPECT_GE(hits, 0.98 * exact);
    }
  }
}

}  // namespace
}  // namespace dynemb

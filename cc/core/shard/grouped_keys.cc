#include "cc/core/shard/grouped_keys.h"

#include "cc/core/shard/routing.h"

namespace dynemb {

GroupedKeys GroupByProcess(Span<const Key> keys, int64_t processes, bool by_hash) {
  GroupedKeys grouped;
  grouped.keys.resize(static_cast<size_t>(keys.size));
  grouped.counts.assign(static_cast<size_t>(processes), 0);
  grouped.places.resize(static_cast<size_t>(keys.size));
  for (int64_t i = 0; i < keys.size; ++i) {  // places have the processes at first
    const int32_t process = ProcessOf(keys[i], processes, by_hash);
    grouped.places[static_cast<size_t>(i)] = process;
    ++grouped.counts[static_cast<size_t>(process)];
  }
  std::vector<int64_t> next(static_cast<size_t>(processes), 0);
  for (size_t p = 1; p < next.size(); ++p) next[p] = next[p - 1] + grouped.counts[p - 1];
  for (int64_t i = 0; i < keys.size; ++i) {
    int64_t& place = grouped.places[static_cast<size_t>(i)];
    place = next[static_cast<size_t>(place)]++;
    grouped.keys[static_cast<size_t>(place)] = keys[i];
  }
  return grouped;
}

}  // namespace dynemb

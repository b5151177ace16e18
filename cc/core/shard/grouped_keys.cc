#include "cc/core/shard/grouped_keys.h"

#include "cc/core/base/sort_by_part.h"
#include "cc/core/shard/routing.h"

namespace dynemb {

Status GroupByProcess(const Context& context, Span<const Key> keys, int64_t processes, bool by_hash,
                      GroupedKeys* grouped) {
  grouped->keys.resize(static_cast<size_t>(keys.size));
  grouped->places.resize(static_cast<size_t>(keys.size));
  std::vector<int64_t> begins(static_cast<size_t>(processes) + 1);
  DYNEMB_RETURN_IF_ERROR(SortByPart(
      context, keys.size, processes,
      [&](int64_t i) { return ProcessOf(keys[i], processes, by_hash); },
      [&](int64_t i, int64_t, int64_t place) {
        grouped->places[static_cast<size_t>(i)] = place;
        grouped->keys[static_cast<size_t>(place)] = keys[i];
      },
      begins.data()));
  grouped->counts.clear();
  for (size_t p = 1; p < begins.size(); ++p) grouped->counts.push_back(begins[p] - begins[p - 1]);
  return Status();
}

}  // namespace dynemb

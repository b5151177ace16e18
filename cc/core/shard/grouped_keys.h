// GroupedKeys: the keys of a batch with those of one process together.
#ifndef TF_DYNEMB_CC_CORE_SHARD_GROUPED_KEYS_H_
#define TF_DYNEMB_CC_CORE_SHARD_GROUPED_KEYS_H_

#include <cstdint>
#include <vector>

#include "cc/core/base/context.h"
#include "cc/core/base/span.h"
#include "cc/core/base/status.h"
#include "cc/core/table/table.h"

namespace dynemb {

struct GroupedKeys {
  std::vector<Key> keys;        // those of the first process first, in batch order within each
  std::vector<int64_t> counts;  // of each process
  std::vector<int64_t> places;  // of each key of the batch in `keys`
};

// By ProcessOf.
Status GroupByProcess(const Context& context, Span<const Key> keys, int64_t processes, bool by_hash,
                      GroupedKeys* grouped);

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_CORE_SHARD_GROUPED_KEYS_H_

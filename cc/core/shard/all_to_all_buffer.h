// All-to-all buffer: what one process sends to each of several, as blocks of one size.
//
// A collective moves a tensor (receivers, words) of 8-byte words, of which each receiver gets a
// row, its buffer. A buffer holds parts one after the other: of part p so many items of
// `item_bytes` as `counts` says for the receiver, then zeros to a whole word; after the last part
// there is padding. What parts mean (keys, rows, whether they exist) is the caller's: items are
// bytes. Counts come from another process, so they are checked before anything is read by them.
#ifndef TF_DYNEMB_CC_CORE_SHARD_ALL_TO_ALL_BUFFER_H_
#define TF_DYNEMB_CC_CORE_SHARD_ALL_TO_ALL_BUFFER_H_

#include <cstdint>
#include <vector>

#include "cc/core/base/context.h"
#include "cc/core/base/span.h"
#include "cc/core/base/status.h"
#include "cc/core/table/table.h"

namespace dynemb {

// Keys with those of one shard together, in batch order.
struct GroupedKeys {
  std::vector<Key> keys;
  std::vector<int64_t> counts;  // of each shard
  std::vector<int64_t> places;  // of each key of the batch in `keys`
};

// `shard_ids` has the shard of each key, or is empty: then it is key mod `count`, rounded down.
// Errors: not one shard per key; an id outside [0, count), naming the key.
Status GroupByShard(Span<const Key> keys, Span<const int32_t> shard_ids, int64_t count,
                    GroupedKeys* grouped);

// How the parts of all buffers lie. Items of one part are of one size, those of all receivers lie
// one after the other: receiver 0's first.
struct AllToAllLayout {
  int64_t receivers = 0;
  int64_t words = 0;                // of a buffer
  std::vector<int64_t> item_bytes;  // of each part
  Span<const int64_t> counts;       // (receivers, parts)

  int64_t parts() const { return static_cast<int64_t>(item_bytes.size()); }
  int64_t count(int64_t receiver, int64_t part) const { return counts[receiver * parts() + part]; }
  // Items of a part, for all receivers.
  int64_t total(int64_t part) const;
  // Errors: counts that are negative, or that do not fit a buffer; not receivers * parts of them;
  // items of no bytes.
  Status Check() const;
};

// Both want a layout that is checked. `buffers`: receivers * words words; `parts`: of each part its
// items.
Status PackAllToAll(const Context& context, const AllToAllLayout& layout,
                    const std::vector<const char*>& parts, int64_t* buffers);
Status UnpackAllToAll(const Context& context, const AllToAllLayout& layout, const int64_t* buffers,
                      const std::vector<char*>& parts);

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_CORE_SHARD_ALL_TO_ALL_BUFFER_H_

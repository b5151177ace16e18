// Parcels: what one process sends to each of several, as blocks of one size.
//
// A collective moves a tensor (receivers, words) of 8-byte words, of which each receiver gets a
// row, its parcel. A parcel holds parts one after the other: of part p so many items of
// `item_bytes` as `counts` says for the receiver, then zeros to a whole word; after the last part
// there is padding. What parts mean (keys, rows, whether they exist) is the caller's: items are
// bytes. Counts come from another process, so they are checked before anything is read by them.
#ifndef TF_DYNEMB_CC_CORE_SHARD_PARCELS_H_
#define TF_DYNEMB_CC_CORE_SHARD_PARCELS_H_

#include <cstdint>
#include <vector>

#include "cc/core/base/context.h"
#include "cc/core/base/span.h"
#include "cc/core/base/status.h"
#include "cc/core/table/table.h"

namespace dynemb {

// Keys with those of one owner together, in batch order.
struct GroupedKeys {
  std::vector<Key> keys;
  std::vector<int64_t> counts;  // of each owner
  std::vector<int64_t> places;  // of each key of the batch in `keys`
};

// `owners` has the owner of each key, or is empty: then it is key mod `count`, rounded down.
// Errors: not one owner per key; an owner outside [0, count), naming the key.
Status GroupByOwner(Span<const Key> keys, Span<const int32_t> owners, int64_t count,
                    GroupedKeys* grouped);

// How the parts of all parcels lie. Items of one part are of one size, those of all receivers lie
// one after the other: receiver 0's first.
struct ParcelLayout {
  int64_t receivers = 0;
  int64_t words = 0;                // of a parcel
  std::vector<int64_t> item_bytes;  // of each part
  Span<const int64_t> counts;       // (receivers, parts)

  int64_t parts() const { return static_cast<int64_t>(item_bytes.size()); }
  int64_t count(int64_t receiver, int64_t part) const { return counts[receiver * parts() + part]; }
  // Items of a part, for all receivers.
  int64_t total(int64_t part) const;
  // Errors: counts that are negative, or that do not fit a parcel; not receivers * parts of them;
  // items of no bytes.
  Status Check() const;
};

// Both want a layout that is checked. `parcels`: receivers * words words; `parts`: of each part its
// items.
void PackParcels(const Context& context, const ParcelLayout& layout,
                 const std::vector<const char*>& parts, int64_t* parcels);
void UnpackParcels(const Context& context, const ParcelLayout& layout, const int64_t* parcels,
                   const std::vector<char*>& parts);

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_CORE_SHARD_PARCELS_H_

// Routing: which positions of a batch go to which shard.
//
// The shard id of each key comes from outside (a partitioner is the user's function); here shard
// ids are checked and turned into one list of positions per shard, in batch order. Tables take such
// a list as Batch::select, so nothing is copied.
#ifndef TF_DYNEMB_CC_CORE_SHARD_ROUTING_H_
#define TF_DYNEMB_CC_CORE_SHARD_ROUTING_H_

#include <cstdint>
#include <vector>

#include "cc/core/base/context.h"
#include "cc/core/base/hash.h"
#include "cc/core/base/span.h"
#include "cc/core/base/status.h"
#include "cc/core/table/table.h"

namespace dynemb {

// The shard of a key by default: the remainder, from 0 up also for negative keys.
inline int32_t KeyMod(Key key, int64_t shards) {
  const int64_t rest = key % shards;
  return static_cast<int32_t>(rest < 0 ? rest + shards : rest);
}
std::vector<int32_t> KeyMod(Span<const Key> keys, int64_t shards);

// Which of several processes has the row of a key: by a hash of it, or by its remainder. Folders of
// storage are those of a process, so this never changes.
inline int32_t ProcessOf(Key key, int64_t processes, bool by_hash) {
  if (!by_hash) return KeyMod(key, processes);
  // Mixed twice: the bits of Mix64(key) say where in the table of its process a row is.
  const uint64_t hash = Mix64(Mix64(static_cast<uint64_t>(key)));
  return static_cast<int32_t>(
      ReduceRange(static_cast<uint32_t>(hash >> 32), static_cast<uint32_t>(processes)));
}

// What one process of several holds of a table.
struct KeyPart {
  int64_t index = 0;
  int64_t of = 1;
  bool by_hash = false;
  bool has(Key key) const { return of == 1 || ProcessOf(key, of, by_hash) == index; }
};

class Routing {
 public:
  // With one shard `shard_ids` may be empty. Keys that are not in `part` go to no shard; with one
  // shard `shard_ids` may say which part each key is in. Errors: not one shard per key; a shard
  // outside [0, shards), naming the key.
  static Status Make(const Context& context, Span<const Key> keys, Span<const int32_t> shard_ids,
                     int shards, Routing* routing, const KeyPart& part = KeyPart());

  // The share of a shard, as the select of a batch; the routing must outlive it. Null: all keys.
  const Positions* share(int shard) const {
    return shares_.empty() ? nullptr : &shares_[static_cast<size_t>(shard)].positions;
  }

 private:
  struct Share {
    int64_t count = 0;
    Positions positions;
  };
  std::vector<int64_t> at_;  // the positions of all shares, one share after the other
  std::vector<Share> shares_;
};

// Inserts rows, with their keys, into the shards that own them.
Status InsertRows(const Context& context, const std::vector<Table*>& shards, const Routing& routing,
                  const ConstRowParts& rows);

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_CORE_SHARD_ROUTING_H_

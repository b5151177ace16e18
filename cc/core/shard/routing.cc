#include "cc/core/shard/routing.h"

#include <utility>

namespace dynemb {

std::vector<int32_t> KeyMod(Span<const Key> keys, int64_t shards) {
  std::vector<int32_t> shard_ids(static_cast<size_t>(keys.size));
  for (int64_t i = 0; i < keys.size; ++i)
    shard_ids[static_cast<size_t>(i)] = KeyMod(keys[i], shards);
  return shard_ids;
}

Status Routing::Make(Span<const Key> keys, Span<const int32_t> shard_ids, int shards,
                     Routing* routing, const KeyPart& part) {
  routing->shares_.clear();
  if (shards == 1 && part.of == 1) return Status();
  if (shards > 1 && shard_ids.size != keys.size) {
    return InvalidArgument("shard_ids: got ", shard_ids.size, ", want one per key, ", keys.size,
                           ", of the keys' shape, from the partitioner");
  }
  std::vector<Share> shares(shards);
  for (int64_t i = 0; i < keys.size; ++i) {
    const int32_t shard_id = shards > 1 ? shard_ids[i] : 0;
    if (shard_id < 0 || shard_id >= shards) {
      return InvalidArgument("partitioner: got shard ", shard_id, " for key ", keys[i],
                             ", want 0 to ", shards - 1);
    }
    if (part.has(keys[i])) shares[shard_id].at.push_back(i);
  }
  for (Share& share : shares) {
    share.count = static_cast<int64_t>(share.at.size());
    share.positions.at = share.at;
    share.positions.count = &share.count;
  }
  routing->shares_ = std::move(shares);  // moves the buffers of a vector, not its elements
  return Status();
}

Status InsertRows(const Context& context, const std::vector<Table*>& shards, const Routing& routing,
                  const ConstRowParts& rows) {
  for (size_t s = 0; s < shards.size(); ++s) {
    Batch batch;
    batch.keys = rows.keys;
    batch.select = routing.share(static_cast<int>(s));
    DYNEMB_RETURN_IF_ERROR(shards[s]->InsertRows(context, batch, rows, RowParts(), Report()));
  }
  return Status();
}

}  // namespace dynemb

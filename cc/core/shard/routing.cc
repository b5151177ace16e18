#include "cc/core/shard/routing.h"

#include "cc/core/base/sort_by_part.h"

namespace dynemb {

std::vector<int32_t> KeyMod(Span<const Key> keys, int64_t shards) {
  std::vector<int32_t> shard_ids(static_cast<size_t>(keys.size));
  for (int64_t i = 0; i < keys.size; ++i)
    shard_ids[static_cast<size_t>(i)] = KeyMod(keys[i], shards);
  return shard_ids;
}

Status Routing::Make(const Context& context, Span<const Key> keys, Span<const int32_t> shard_ids,
                     int shards, Routing* routing, const KeyPart& part) {
  routing->shares_.clear();
  if (shards == 1 && part.of == 1) return Status();
  const bool names_parts = shards == 1 && shard_ids.size > 0;
  if (shards > 1 || names_parts) {
    if (shard_ids.size != keys.size) {
      return InvalidArgument("shard_ids: got ", shard_ids.size, ", want one per key, ", keys.size,
                             ", of the keys' shape, from the partitioner");
    }
    const int64_t ids = names_parts ? part.of : shards;
    const int64_t outside = FirstOutside(shard_ids, ids);
    if (outside < keys.size) {
      return InvalidArgument("partitioner: got shard ", shard_ids[outside], " for key ",
                             keys[outside], ", want 0 to ", ids - 1);
    }
  }
  std::vector<int64_t> begins(static_cast<size_t>(shards) + 1);
  routing->at_.resize(static_cast<size_t>(keys.size));
  int64_t* const at = routing->at_.data();
  const auto shard_of = [&](int64_t i) {
    if (names_parts) return shard_ids[i] == part.index ? 0 : -1;
    if (!part.has(keys[i])) return -1;
    return shards > 1 ? shard_ids[i] : 0;
  };
  DYNEMB_RETURN_IF_ERROR(SortByPart(
      context, keys.size, shards, shard_of,
      [&](int64_t i, int64_t, int64_t place) { at[place] = i; }, begins.data()));
  routing->shares_.resize(static_cast<size_t>(shards));
  for (size_t s = 0; s < routing->shares_.size(); ++s) {
    Share& share = routing->shares_[s];
    share.count = begins[s + 1] - begins[s];
    share.positions = {{at + begins[s], share.count}, &share.count};
  }
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

#include "cc/core/shard/routing.h"

namespace dynemb {

Status Routing::Make(Span<const Key> keys, Span<const int32_t> owners, int shards,
                     Routing* routing) {
  routing->shares_.clear();
  if (shards == 1) return Status();
  if (owners.size != keys.size) {
    return InvalidArgument("owners: got ", owners.size, ", want one per key, ", keys.size,
                           ", of the keys' shape, from the partitioner");
  }
  std::vector<Share> shares(shards);
  for (int64_t i = 0; i < keys.size; ++i) {
    const int32_t owner = owners[i];
    if (owner < 0 || owner >= shards) {
      return InvalidArgument("partitioner: got shard ", owner, " for key ", keys[i], ", want 0 to ",
                             shards - 1);
    }
    shares[owner].at.push_back(i);
  }
  for (Share& share : shares) {
    share.count = static_cast<int64_t>(share.at.size());
    share.positions.at = share.at;
    share.positions.count = &share.count;
  }
  routing->shares_ = std::move(shares);  // moves the buffers of a vector, not its elements
  return Status();
}

}  // namespace dynemb

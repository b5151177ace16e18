#include "cc/core/shard/routing.h"

#include <algorithm>
#include <cstring>

namespace dynemb {

namespace {

// The rows at positions at[0] to at[count - 1], collected.
struct CollectedRows {
  CollectedRows(const RowLayout& layout, const ConstRowParts& rows, const int64_t* at,
                int64_t count)
      : keys(static_cast<size_t>(count)) {
    const ConstRows* from[] = {&rows.values, &rows.slots, &rows.meta};
    ConstRows* to[] = {&parts.values, &parts.slots, &parts.meta};
    const int64_t widths[] = {layout.value_bytes, layout.slots_bytes, layout.meta_bytes};
    for (int64_t i = 0; i < count; ++i) keys[static_cast<size_t>(i)] = rows.keys[at[i]];
    parts.keys = keys;
    for (int p = 0; p < 3; ++p) {
      const int64_t width = widths[p];
      if (width == 0) continue;
      bytes[p].resize(static_cast<size_t>(count * width));
      for (int64_t i = 0; i < count; ++i) {
        std::memcpy(&bytes[p][static_cast<size_t>(i * width)], (*from[p])[at[i]],
                    static_cast<size_t>(width));
      }
      *to[p] = ConstRows(bytes[p].data(), count, width);
    }
  }

  ConstRowParts parts;
  std::vector<Key> keys;
  std::vector<char> bytes[3];
};

}  // namespace

std::vector<int32_t> KeyMod(Span<const Key> keys, int64_t shards) {
  std::vector<int32_t> owners(static_cast<size_t>(keys.size));
  for (int64_t i = 0; i < keys.size; ++i) owners[static_cast<size_t>(i)] = KeyMod(keys[i], shards);
  return owners;
}

Status Routing::Make(Span<const Key> keys, Span<const int32_t> owners, int shards, Routing* routing,
                     const KeyPart& part) {
  routing->shares_.clear();
  if (shards == 1 && part.of == 1) return Status();
  if (shards > 1 && owners.size != keys.size) {
    return InvalidArgument("owners: got ", owners.size, ", want one per key, ", keys.size,
                           ", of the keys' shape, from the partitioner");
  }
  std::vector<Share> shares(shards);
  for (int64_t i = 0; i < keys.size; ++i) {
    const int32_t owner = shards > 1 ? owners[i] : 0;
    if (owner < 0 || owner >= shards) {
      return InvalidArgument("partitioner: got shard ", owner, " for key ", keys[i], ", want 0 to ",
                             shards - 1);
    }
    if (part.has(keys[i])) shares[owner].at.push_back(i);
  }
  for (Share& share : shares) {
    share.count = static_cast<int64_t>(share.at.size());
    share.positions.at = share.at;
    share.positions.count = &share.count;
  }
  routing->shares_ = std::move(shares);  // moves the buffers of a vector, not its elements
  return Status();
}

Status ImportRows(const Context& context, const std::vector<Table*>& shards, const Routing& routing,
                  const ConstRowParts& rows) {
  constexpr int64_t kChunk = 4096;
  for (size_t s = 0; s < shards.size(); ++s) {
    const Positions* share = routing.share(static_cast<int>(s));
    if (share == nullptr || *share->count == rows.keys.size) {
      return shards[s]->Import(context, rows);
    }
    const RowLayout layout(shards[s]->schema());
    for (int64_t first = 0; first < *share->count; first += kChunk) {
      const CollectedRows chunk(layout, rows, share->at.data + first,
                                std::min(kChunk, *share->count - first));
      DYNEMB_RETURN_IF_ERROR(shards[s]->Import(context, chunk.parts));
    }
  }
  return Status();
}

}  // namespace dynemb

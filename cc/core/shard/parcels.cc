#include "cc/core/shard/parcels.h"

#include <cstring>
#include <functional>

#include "cc/core/shard/routing.h"

namespace dynemb {
namespace {

constexpr int64_t kWordBytes = sizeof(int64_t);
constexpr int64_t kMostWords = int64_t{1} << 40;

int64_t WordsOf(int64_t bytes) { return (bytes + kWordBytes - 1) / kWordBytes; }

// Calls visit(receiver, part, first item of it, byte in the receiver's parcel), and at the end of a
// parcel end(receiver, byte). Receivers in parallel.
void ForEachPart(const Context& context, const ParcelLayout& layout,
                 const std::function<void(int64_t, int64_t, int64_t, int64_t)>& visit,
                 const std::function<void(int64_t, int64_t)>& end) {
  context.executor->Run(layout.receivers, 1 + layout.words, [&](int64_t receiver) {
    int64_t at = 0;
    for (int64_t part = 0; part < layout.parts(); ++part) {
      int64_t first = 0;
      for (int64_t r = 0; r < receiver; ++r) first += layout.count(r, part);
      visit(receiver, part, first, at);
      at += kWordBytes * WordsOf(layout.count(receiver, part) * layout.item_bytes[part]);
    }
    end(receiver, at);
  });
}

}  // namespace

Status GroupByOwner(Span<const Key> keys, Span<const int32_t> owners, int64_t count,
                    GroupedKeys* grouped) {
  std::vector<int32_t> by_default;
  if (owners.size == 0 && keys.size > 0) {
    by_default = KeyMod(keys, count);
    owners = by_default;
  }
  Routing routing;
  DYNEMB_RETURN_IF_ERROR(Routing::Make(keys, owners, static_cast<int>(count), &routing));
  grouped->keys.clear();
  grouped->counts.assign(static_cast<size_t>(count), 0);
  grouped->places.resize(static_cast<size_t>(keys.size));
  grouped->keys.reserve(static_cast<size_t>(keys.size));
  for (int64_t owner = 0; owner < count; ++owner) {
    const Positions* share = routing.share(static_cast<int>(owner));
    const int64_t size = share == nullptr ? keys.size : *share->count;
    grouped->counts[static_cast<size_t>(owner)] = size;
    for (int64_t i = 0; i < size; ++i) {
      const int64_t at = share == nullptr ? i : share->at[i];
      grouped->places[static_cast<size_t>(at)] = static_cast<int64_t>(grouped->keys.size());
      grouped->keys.push_back(keys[at]);
    }
  }
  return Status();
}

int64_t ParcelLayout::total(int64_t part) const {
  int64_t sum = 0;
  for (int64_t receiver = 0; receiver < receivers; ++receiver) sum += count(receiver, part);
  return sum;
}

Status ParcelLayout::Check() const {
  if (receivers < 0 || counts.size != receivers * parts()) {
    return InvalidArgument("counts: got ", counts.size, " numbers, want one for each of ", parts(),
                           " parts of ", receivers, " parcels");
  }
  if (words < 0 || words > kMostWords) {
    return InvalidArgument("words: got parcels of ", words, ", want 0 to ", kMostWords);
  }
  for (int64_t receiver = 0; receiver < receivers; ++receiver) {
    int64_t left = words;
    for (int64_t part = 0; part < parts(); ++part) {
      const int64_t items = count(receiver, part);
      // Each division is by what an item takes, so that nothing overflows.
      const bool fits =
          items >= 0 && item_bytes[part] > 0 && items <= left * kWordBytes / item_bytes[part];
      if (fits) left -= WordsOf(items * item_bytes[part]);
      if (!fits || left < 0) {
        return InvalidArgument("counts: got ", items, " items of ", item_bytes[part],
                               " bytes for part ", part, " of parcel ", receiver,
                               ", which do not fit a parcel of ", words, " words");
      }
    }
  }
  return Status();
}

void PackParcels(const Context& context, const ParcelLayout& layout,
                 const std::vector<const char*>& parts, int64_t* parcels) {
  const auto at = [&](int64_t receiver, int64_t byte) {
    return reinterpret_cast<char*>(parcels + receiver * layout.words) + byte;
  };
  ForEachPart(
      context, layout,
      [&](int64_t receiver, int64_t part, int64_t first, int64_t byte) {
        const int64_t size = layout.item_bytes[part];
        const int64_t bytes = layout.count(receiver, part) * size;
        if (bytes == 0) return;
        std::memset(at(receiver, byte + kWordBytes * (WordsOf(bytes) - 1)), 0, kWordBytes);
        std::memcpy(at(receiver, byte), parts[part] + first * size, static_cast<size_t>(bytes));
      },
      [&](int64_t receiver, int64_t byte) {
        const int64_t rest = kWordBytes * layout.words - byte;
        if (rest > 0) std::memset(at(receiver, byte), 0, static_cast<size_t>(rest));
      });
}

void UnpackParcels(const Context& context, const ParcelLayout& layout, const int64_t* parcels,
                   const std::vector<char*>& parts) {
  ForEachPart(
      context, layout,
      [&](int64_t receiver, int64_t part, int64_t first, int64_t byte) {
        const int64_t size = layout.item_bytes[part];
        const int64_t bytes = layout.count(receiver, part) * size;
        if (bytes == 0) return;
        std::memcpy(parts[part] + first * size,
                    reinterpret_cast<const char*>(parcels + receiver * layout.words) + byte,
                    static_cast<size_t>(bytes));
      },
      [](int64_t, int64_t) {});
}

}  // namespace dynemb

#include "cc/core/shard/all_to_all_buffer.h"

#include <cstring>
#include <functional>

#include "cc/core/shard/routing.h"

namespace dynemb {
namespace {

constexpr int64_t kWordBytes = sizeof(int64_t);
constexpr int64_t kMostWords = int64_t{1} << 40;

int64_t WordsOf(int64_t bytes) { return (bytes + kWordBytes - 1) / kWordBytes; }

// Calls visit(receiver, part, first item of it, byte in the receiver's buffer), and at the end of a
// buffer end(receiver, byte). Receivers in parallel.
Status ForEachPart(const Context& context, const AllToAllLayout& layout,
                   const std::function<void(int64_t, int64_t, int64_t, int64_t)>& visit,
                   const std::function<void(int64_t, int64_t)>& end) {
  return context.executor->Run(layout.receivers, 1 + layout.words, [&](int64_t receiver) {
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

Status GroupByShard(Span<const Key> keys, Span<const int32_t> shard_ids, int64_t count,
                    GroupedKeys* grouped) {
  std::vector<int32_t> by_default;
  if (shard_ids.size == 0 && keys.size > 0) {
    by_default = KeyMod(keys, count);
    shard_ids = by_default;
  }
  Routing routing;
  DYNEMB_RETURN_IF_ERROR(Routing::Make(keys, shard_ids, static_cast<int>(count), &routing));
  grouped->keys.clear();
  grouped->counts.assign(static_cast<size_t>(count), 0);
  grouped->places.resize(static_cast<size_t>(keys.size));
  grouped->keys.reserve(static_cast<size_t>(keys.size));
  for (int64_t shard_id = 0; shard_id < count; ++shard_id) {
    const Positions* share = routing.share(static_cast<int>(shard_id));
    const int64_t size = share == nullptr ? keys.size : *share->count;
    grouped->counts[static_cast<size_t>(shard_id)] = size;
    for (int64_t i = 0; i < size; ++i) {
      const int64_t at = share == nullptr ? i : share->at[i];
      grouped->places[static_cast<size_t>(at)] = static_cast<int64_t>(grouped->keys.size());
      grouped->keys.push_back(keys[at]);
    }
  }
  return Status();
}

int64_t AllToAllLayout::total(int64_t part) const {
  int64_t sum = 0;
  for (int64_t receiver = 0; receiver < receivers; ++receiver) sum += count(receiver, part);
  return sum;
}

Status AllToAllLayout::Check() const {
  if (receivers < 0 || counts.size != receivers * parts()) {
    return InvalidArgument("counts: got ", counts.size, " numbers, want one for each of ", parts(),
                           " parts of ", receivers, " buffers");
  }
  if (words < 0 || words > kMostWords) {
    return InvalidArgument("words: got buffers of ", words, ", want 0 to ", kMostWords);
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
                               " bytes for part ", part, " of buffer ", receiver,
                               ", which do not fit a buffer of ", words, " words");
      }
    }
  }
  return Status();
}

Status PackAllToAll(const Context& context, const AllToAllLayout& layout,
                    const std::vector<const char*>& parts, int64_t* buffers) {
  const auto at = [&](int64_t receiver, int64_t byte) {
    return reinterpret_cast<char*>(buffers + receiver * layout.words) + byte;
  };
  return ForEachPart(
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

Status UnpackAllToAll(const Context& context, const AllToAllLayout& layout, const int64_t* buffers,
                      const std::vector<char*>& parts) {
  return ForEachPart(
      context, layout,
      [&](int64_t receiver, int64_t part, int64_t first, int64_t byte) {
        const int64_t size = layout.item_bytes[part];
        const int64_t bytes = layout.count(receiver, part) * size;
        if (bytes == 0) return;
        std::memcpy(parts[part] + first * size,
                    reinterpret_cast<const char*>(buffers + receiver * layout.words) + byte,
                    static_cast<size_t>(bytes));
      },
      [](int64_t, int64_t) {});
}

}  // namespace dynemb

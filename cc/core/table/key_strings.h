// KeyStrings: the strings that the keys of a table are fingerprints of, for tables that keep them.
//
// Invariant: every row's key has its string here; two strings are never taken for one key. The
// strings of a key are recorded before the key can get a row, and stay while it has one:
//
//   Record   on every call that may lead to a row: an upsert, or the gradient of a lookup, whose
//            row is inserted by a later apply
//   PinGuard held by a call while it inserts rows; it finds that all of its keys have strings
//   Check    on every other call by strings: a read must not give one string's row to another. What
//            it finds counts as recorded, so that a gradient records only what its lookup missed
//   Sweep    drops, now and then, the strings of keys without rows, when rows were removed or
//            gradients never applied. Not those of the last kGraceCalls calls that pinned, which
//            may be on their way to a row
//
// All calls are safe from any number of threads, and share what the executor of the context has. A
// call that runs out of memory is kResourceExhausted, and keeps and drops nothing, but for a sweep,
// which may have dropped some of what it was to drop.
//
// Keys lie in 64 parts by the top bits of their hashes, each with a lock that is shared by all but
// those who add or drop strings. Those are one at a time: who adds knows under that lock whether
// any string of the batch is refused, and has all memory, before the first one is added.
#ifndef TF_DYNEMB_CC_CORE_TABLE_KEY_STRINGS_H_
#define TF_DYNEMB_CC_CORE_TABLE_KEY_STRINGS_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <string_view>
#include <vector>

#include "cc/core/base/context.h"
#include "cc/core/base/fair_shared_mutex.h"
#include "cc/core/base/hash.h"
#include "cc/core/base/span.h"
#include "cc/core/base/status.h"
#include "cc/core/table/batch_order.h"
#include "cc/core/table/slab_arena.h"
#include "cc/core/table/string_segment.h"
#include "cc/core/table/table.h"

namespace dynemb {

class KeyStrings {
 public:
  // For how many calls that pin a string without a row is kept.
  static constexpr int64_t kGraceCalls = 1000;

  KeyStrings();

  // Keeps strings[i] for keys[i]. kInvalidArgument, naming both strings, if a key has another one,
  // here or in the batch; then none is kept. Keys may repeat.
  Status Record(Span<const Key> keys, Span<const std::string_view> strings,
                const Context& context = OneThread());

  // kInvalidArgument, naming both strings, if a key has another string than strings[i]. Keys that
  // have none are fine, and their positions are put into `missing`, in order.
  Status Check(Span<const Key> keys, Span<const std::string_view> strings,
               std::vector<int64_t>* missing, const Context& context = OneThread());

  // While it lives strings stay. An export holds one of no keys.
  class PinGuard {
   public:
    // kFailedPrecondition if a key has no string. `strings` may be null, for a table that keeps
    // none, and then nothing is done.
    static Status Begin(KeyStrings* strings, Span<const Key> keys, PinGuard* guard,
                        const Context& context = OneThread());

   private:
    std::shared_lock<std::shared_mutex> lock_;
  };

  // Gives `found` the string of each key, in order. The caller holds a PinGuard since before it
  // knew that the keys have rows, and the strings stay where they are as long as it does. kInternal
  // if a key has none.
  Status Get(Span<const Key> keys, const std::function<void(int64_t i, std::string_view)>& found);

  // If there are more than twice as many strings as rows, drops those of keys without rows, but
  // not again before a quarter has been added. For those who record to call.
  Status Sweep(const Context& context, const std::vector<std::shared_ptr<Table>>& shards);

  int64_t size() const { return size_.load(); }
  // What the strings and their index take.
  int64_t memory_bytes() const { return slab_arena_.memory_bytes() + index_arena_.memory_bytes(); }

 private:
  struct alignas(64) Part {
    mutable FairSharedMutex mutex;
    std::optional<StringSegment> segment;
  };
  // Calls visit(position, segment, cell or nullptr) for all keys, on all threads, with their parts
  // held for reading. With with_string their strings are fetched ahead.
  template <bool with_string, typename Visit>
  Status ForEach(const Context& context, Span<const Key> keys, Span<const std::string_view> strings,
                 const Visit& visit) const;
  Status Insert(const Context& context, Span<const Key> keys, Span<const std::string_view> strings,
                const Positions& missing, uint32_t stamp);
  Status SweepAlone(const Context& context, const std::vector<std::shared_ptr<Table>>& shards);
  // Drops what has expired from a part and has no row. Returns how many strings, or -1: no memory.
  int64_t DropFrom(int number, uint32_t now);

  SlabArena slab_arena_, index_arena_;
  // Not in the object: under AddressSanitizer GCC 12 misaligns locals that want 64 bytes (its PR
  // 110027).
  const std::unique_ptr<Part[]> parts_ = std::make_unique<Part[]>(BatchOrder::kSegments);
  // Of who adds or drops strings, before the mutex of a part. Nobody waits for an executor under
  // it: the threads of that may wait for it.
  std::mutex write_mutex_;
  std::atomic<int64_t> size_{0};
  std::atomic<int64_t> calls_{0};
  std::shared_mutex pin_mutex_;            // shared by pins, taken alone by a sweep; before these
  std::atomic<int64_t> sweep_at_{kLeast};  // not with fewer strings than this
  static constexpr int64_t kLeast = 4096;
};

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_CORE_TABLE_KEY_STRINGS_H_

// KeyStrings: the strings that the keys of a table are fingerprints of, for tables that keep them.
//
// Invariant: every row's key has its string here; two strings are never taken for one key. The
// strings of a key are recorded before the key can get a row, and stay while it has one:
//
//   Record   on every call that may lead to a row: an upsert, or the gradient of a lookup, whose
//            row is born by a later apply
//   Birth    held by a call while it makes rows; it finds that all of its keys have strings
//   Check    on every other call by strings: a read must not give one string's row to another
//   Sweep    drops, now and then, the strings of keys without rows, when rows were removed or
//            gradients never applied. Not those of the last kGraceBirths births, which may be on
//            their way to a row
//
// All calls are safe from any number of threads.
#ifndef TF_DYNEMB_CC_CORE_TABLE_KEY_STRINGS_H_
#define TF_DYNEMB_CC_CORE_TABLE_KEY_STRINGS_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <shared_mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "cc/core/base/context.h"
#include "cc/core/base/hash.h"
#include "cc/core/base/span.h"
#include "cc/core/base/status.h"
#include "cc/core/table/table.h"

namespace dynemb {

class KeyStrings {
 public:
  // For how many births a string without a row is kept.
  static constexpr int64_t kGraceBirths = 1000;

  // Keeps strings[i] for keys[i]. kInvalidArgument, naming both strings, if a key has another one,
  // here or in the batch; then none is kept. Keys may repeat.
  Status Record(Span<const Key> keys, Span<const std::string_view> strings);

  // kInvalidArgument, naming both strings, if a key has another string than strings[i]. Keys that
  // have none are fine.
  Status Check(Span<const Key> keys, Span<const std::string_view> strings) const;

  // While it lives strings stay. An export holds one of no keys.
  class Birth {
   public:
    // kFailedPrecondition if a key has no string. `strings` may be null, for a table that keeps
    // none, and then nothing is done.
    static Status Begin(KeyStrings* strings, Span<const Key> keys, Birth* birth);

   private:
    std::shared_lock<std::shared_mutex> lock_;
  };

  // Gives `found` the string of each key, in order. The caller holds a Birth since before it knew
  // that the keys have rows, and the strings stay where they are as long as it does. kInternal if a
  // key has none.
  Status Get(Span<const Key> keys, const std::function<void(int64_t i, const std::string&)>& found);

  // If there are more than twice as many strings as rows, drops those of keys without rows, but
  // not again before a quarter has been added. For those who record to call.
  Status Sweep(const Context& context, const std::vector<std::shared_ptr<Table>>& shards);

  int64_t size() const;

 private:
  struct Kept {
    explicit Kept(std::string_view string, int64_t birth) : string(string), birth(birth) {}
    const std::string string;
    std::atomic<int64_t> birth;  // the number of the last birth that asked for it, or came before
  };
  struct Hash {
    size_t operator()(Key key) const { return Mix64(static_cast<uint64_t>(key)); }
  };

  mutable std::shared_mutex mutex_;  // of kept_
  std::unordered_map<Key, Kept, Hash> kept_;
  std::atomic<int64_t> births_{0};
  std::shared_mutex birth_mutex_;  // shared by births, taken alone by a sweep; before mutex_
  std::atomic<int64_t> sweep_at_{kLeast};  // not with fewer strings than this
  static constexpr int64_t kLeast = 4096;
};

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_CORE_TABLE_KEY_STRINGS_H_

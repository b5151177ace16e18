#include "cc/core/table/key_strings.h"

#include <algorithm>
#include <iterator>
#include <mutex>
#include <unordered_set>
#include <utility>

namespace dynemb {

namespace {

Status CheckSizes(Span<const Key> keys, Span<const std::string_view> strings) {
  if (strings.size == keys.size) return Status();
  return InvalidArgument("strings: got ", strings.size, ", want one per key, ", keys.size);
}

// The string of a key must be the same; an error that names both.
Status CheckSame(Key key, const std::string& kept, std::string_view got) {
  if (kept == got) return Status();
  return InvalidArgument("keys: got the string '", got, "', whose 64-bit fingerprint ", key,
                         " is that of '", kept,
                         "', which the table keeps; want strings of different fingerprints: spell "
                         "one of them differently");
}

}  // namespace

Status KeyStrings::Record(Span<const Key> keys, Span<const std::string_view> strings) {
  DYNEMB_RETURN_IF_ERROR(CheckSizes(keys, strings));
  const int64_t birth = births_.load();
  std::vector<int64_t> fresh;
  {
    // The common case, all keys known, is done side by side.
    std::shared_lock<std::shared_mutex> lock(mutex_);
    for (int64_t i = 0; i < keys.size; ++i) {
      const auto at = kept_.find(keys[i]);
      if (at == kept_.end()) {
        fresh.push_back(i);
        continue;
      }
      DYNEMB_RETURN_IF_ERROR(CheckSame(keys[i], at->second.string, strings[i]));
      at->second.birth.store(birth, std::memory_order_relaxed);
    }
  }
  if (fresh.empty()) return Status();
  std::unique_lock<std::shared_mutex> lock(mutex_);
  std::vector<Key> inserted;
  for (const int64_t i : fresh) {
    const auto [at, is_new] = kept_.try_emplace(keys[i], strings[i], birth);
    if (is_new) {
      inserted.push_back(keys[i]);
      continue;
    }
    if (Status same = CheckSame(keys[i], at->second.string, strings[i]); !same.ok()) {
      for (const Key key : inserted) kept_.erase(key);
      return same;
    }
  }
  return Status();
}

Status KeyStrings::Check(Span<const Key> keys, Span<const std::string_view> strings) const {
  DYNEMB_RETURN_IF_ERROR(CheckSizes(keys, strings));
  std::shared_lock<std::shared_mutex> lock(mutex_);
  for (int64_t i = 0; i < keys.size; ++i) {
    const auto at = kept_.find(keys[i]);
    if (at == kept_.end()) continue;
    DYNEMB_RETURN_IF_ERROR(CheckSame(keys[i], at->second.string, strings[i]));
  }
  return Status();
}

Status KeyStrings::Birth::Begin(KeyStrings* strings, Span<const Key> keys, Birth* birth) {
  if (strings == nullptr) return Status();
  std::shared_lock<std::shared_mutex> births(strings->birth_mutex_);
  const int64_t number = strings->births_.fetch_add(1);
  std::shared_lock<std::shared_mutex> lock(strings->mutex_);
  for (int64_t i = 0; i < keys.size; ++i) {
    const auto at = strings->kept_.find(keys[i]);
    if (at == strings->kept_.end()) {
      return Status(
          Code::kFailedPrecondition,
          StrCat("keys: the table keeps the strings of its keys and has none for ", keys[i],
                 "; look the strings up, in this process, before their gradient is "
                 "applied, and apply it soon"));
    }
    at->second.birth.store(number, std::memory_order_relaxed);
  }
  birth->lock_ = std::move(births);
  return Status();
}

Status KeyStrings::Get(Span<const Key> keys,
                       const std::function<void(int64_t, const std::string&)>& found) {
  std::shared_lock<std::shared_mutex> lock(mutex_);
  for (int64_t i = 0; i < keys.size; ++i) {
    const auto at = kept_.find(keys[i]);
    if (at == kept_.end()) {
      return Status(Code::kInternal, StrCat("key ", keys[i], " has a row and no string"));
    }
    found(i, at->second.string);
  }
  return Status();
}

Status KeyStrings::Sweep(const Context& context,
                         const std::vector<std::shared_ptr<Table>>& shards) {
  const int64_t strings = size();
  if (strings < sweep_at_.load()) return Status();
  int64_t rows = 0;
  for (const auto& shard : shards) rows += shard->size();  // for which one on a GPU waits
  if (strings < 2 * rows) return Status();
  std::unique_lock<std::shared_mutex> births(birth_mutex_, std::try_to_lock);
  if (!births.owns_lock()) return Status();  // the next call will do it
  // No row is born while the lock is held: a key that is not exported has none.
  std::unordered_set<Key, Hash> with_row;
  std::vector<Key> keys(kLeast);
  for (const auto& shard : shards) {
    Cursor cursor;
    while (!cursor.done) {
      RowParts out;
      out.keys = keys;
      DYNEMB_RETURN_IF_ERROR(shard->Export(context, &cursor, out, &rows));
      with_row.insert(keys.begin(), keys.begin() + rows);
    }
  }
  std::unique_lock<std::shared_mutex> lock(mutex_);
  const int64_t expired = births_.load() - kGraceBirths;
  for (auto at = kept_.begin(); at != kept_.end();) {
    const bool drop = at->second.birth.load() < expired && with_row.count(at->first) == 0;
    at = drop ? kept_.erase(at) : std::next(at);
  }
  const int64_t left = static_cast<int64_t>(kept_.size());
  sweep_at_.store(std::max(kLeast, left + left / 4));
  return Status();
}

int64_t KeyStrings::size() const {
  std::shared_lock<std::shared_mutex> lock(mutex_);
  return static_cast<int64_t>(kept_.size());
}

}  // namespace dynemb

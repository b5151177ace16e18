#include <algorithm>
#include <utility>

#include "cc/core/base/hash.h"
#include "cc/gpu/table/erase_log.h"

namespace dynemb {

ErasedKeys EraseLog::there(int64_t epoch) const {
  constexpr auto kKeyBytes = static_cast<int64_t>(sizeof(ErasedKey));
  if (there_.bytes() == 0) return {};
  return {reinterpret_cast<ErasedKey*>(there_.as<char>() + kCountBytes),
          (there_.bytes() - kCountBytes) / kKeyBytes, there_.as<int64_t>(), epoch};
}

Status EraseLog::MakeRoom(const Context& context, int64_t more) {
  if (!HasRoom(more)) {
    const int64_t keys = std::max(more, kLeastRoom);
    DeviceBuffer larger;
    if (!larger.Allocate(memory_, kCountBytes + keys * static_cast<int64_t>(sizeof(ErasedKey)))) {
      return ResourceExhausted("no GPU memory to note ", more, " erased keys");
    }
    DYNEMB_RETURN_IF_ERROR(FillBytes(context, larger.as<char>(), 0, kCountBytes));
    DYNEMB_RETURN_IF_ERROR(Wait(context));  // for what uses the smaller one
    there_ = std::move(larger);
  }
  most_there_ += more;
  return {};
}

Status EraseLog::Drain(const Context& context, bool* overflow) {
  if (overflow != nullptr) *overflow = false;
  if (there_.bytes() == 0) return {};
  const ErasedKeys list = there(0);
  int64_t wanted = 0;
  DYNEMB_RETURN_IF_ERROR(CopyAny(context, &wanted, list.count, sizeof(wanted)));
  DYNEMB_RETURN_IF_ERROR(Wait(context));
  if (overflow != nullptr) *overflow = wanted > list.room;
  const int64_t count = std::min(wanted, list.room);
  std::vector<ErasedKey> keys(static_cast<size_t>(count));
  const Status copied =
      CopyAny(context, keys.data(), list.keys, count * static_cast<int64_t>(sizeof(ErasedKey)));
  DYNEMB_RETURN_IF_ERROR(Wait(context));
  DYNEMB_RETURN_IF_ERROR(copied);
  for (const ErasedKey& erased : keys) {
    if (erased.epoch > known_since_) here_.push_back(erased);
  }
  most_there_ = 0;
  return FillBytes(context, list.count, 0, sizeof(*list.count));
}

void EraseLog::Limit(int64_t most_keys) {
  const auto keys = static_cast<int64_t>(here_.size());
  if (keys > most_keys) Forget(here_[keys - most_keys - 1].epoch);
}

void EraseLog::Forget(int64_t through) {
  if (through <= known_since_) return;
  known_since_ = through;
  const auto kept = std::find_if(here_.begin(), here_.end(),
                                 [&](const ErasedKey& erased) { return erased.epoch > through; });
  here_.erase(here_.begin(), kept);
}

Status EraseLog::ForgetAll(const Context& context, int64_t through) {
  Forget(through);
  most_there_ = 0;
  if (there_.bytes() == 0) return {};
  return FillBytes(context, there_.as<int64_t>(), 0, sizeof(int64_t));
}

std::vector<Key> EraseLog::Since(int64_t since, uint64_t first, uint64_t last) const {
  std::vector<Key> keys;
  for (const ErasedKey& erased : here_) {
    const uint64_t hash = Mix64(static_cast<uint64_t>(erased.key));
    if (erased.epoch > since && hash >= first && hash <= last) keys.push_back(erased.key);
  }
  std::sort(keys.begin(), keys.end());
  keys.erase(std::unique(keys.begin(), keys.end()), keys.end());
  return keys;
}

}  // namespace dynemb

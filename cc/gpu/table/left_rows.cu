#include <algorithm>
#include <new>
#include <numeric>
#include <utility>
#include <vector>

#include "cc/core/base/hash.h"
#include "cc/gpu/for_each.cu.h"
#include "cc/gpu/table/left_rows.h"

namespace dynemb {

Status LeftRows::Begin(const Context& context, int64_t rows, bool all, int64_t value_bytes,
                       LeavingRows* leaving) {
  constexpr int64_t kBytesAtOnce = int64_t{4} << 20;
  const int64_t of_count = Scratch::Bytes<int64_t>(1);
  if (!all) rows = std::min(rows, std::max<int64_t>(1, kBytesAtOnce / value_bytes));
  Status begun;
  for (;; rows = (rows + 1) / 2) {
    begun = scratch_.Begin(
        context, of_count + Scratch::Bytes<Key>(rows) + Scratch::Bytes<char>(rows * value_bytes));
    if (begun.code() != Code::kResourceExhausted || all || rows <= 1) break;
  }
  if (begun.code() == Code::kResourceExhausted) {
    DYNEMB_RETURN_IF_ERROR(scratch_.Begin(context, of_count));
  } else {
    DYNEMB_RETURN_IF_ERROR(begun);
  }
  *leaving = LeavingRows();
  leaving->count = scratch_.Take<int64_t>(1);
  if (begun.ok()) {
    leaving->keys = scratch_.Take<Key>(rows);
    leaving->values = scratch_.Take<char>(rows * value_bytes);
    leaving->value_bytes = value_bytes;
    leaving->room = rows;
  }
  return FillBytes(context, leaving->count, 0, sizeof(int64_t));
}

Status LeftRows::End(const Context& context, const LeavingRows& leaving, EvictedRows* to,
                     bool* overflow) {
  int64_t count = 0;
  DYNEMB_RETURN_IF_ERROR(CopyAny(context, &count, leaving.count, sizeof(count)));
  DYNEMB_RETURN_IF_ERROR(Wait(context));
  *overflow = leaving.keys != nullptr && count > leaving.room;
  if (leaving.keys == nullptr) {
    to->AddDropped(count);
    return {};
  }
  count = std::min(count, leaving.room);
  if (count == 0) return {};
  KeptRows rows, sorted;
  std::vector<int64_t> order;
  try {
    rows.keys.resize(static_cast<size_t>(count));
    rows.values.resize(static_cast<size_t>(count * leaving.value_bytes));
    sorted.Reserve(count, leaving.value_bytes);
    order.resize(static_cast<size_t>(count));
  } catch (const std::bad_alloc&) {
    to->AddDropped(count);
    return {};
  }
  const Status copied = [&]() -> Status {
    DYNEMB_RETURN_IF_ERROR(CopyAny(context, rows.keys.data(), leaving.keys,
                                   count * static_cast<int64_t>(sizeof(Key))));
    return CopyAny(context, rows.values.data(), leaving.values, count * leaving.value_bytes);
  }();
  DYNEMB_RETURN_IF_ERROR(Wait(context));
  DYNEMB_RETURN_IF_ERROR(copied);
  // Threads have put them there in any order.
  std::iota(order.begin(), order.end(), 0);
  const auto hash = [&](int64_t i) { return Mix64(static_cast<uint64_t>(rows.keys[i])); };
  std::sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return hash(a) < hash(b); });
  for (const int64_t i : order) {
    sorted.Add(rows.keys[i], rows.values.data() + i * leaving.value_bytes, leaving.value_bytes);
  }
  to->Add(std::move(sorted));
  return {};
}

}  // namespace dynemb

#include <algorithm>
#include <new>
#include <utility>

#include "cc/gpu/for_each.cu.h"
#include "cc/gpu/table/left_rows.h"

namespace dynemb {

Status LeftRows::Begin(const Context& context, int64_t rows, int64_t value_bytes,
                       LeavingRows* leaving) {
  const int64_t of_count = Scratch::Bytes<int64_t>(1);
  const Status begun = scratch_.Begin(
      context, of_count + Scratch::Bytes<Key>(rows) + Scratch::Bytes<char>(rows * value_bytes));
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
  KeptRows rows;
  try {
    rows.keys.resize(static_cast<size_t>(count));
    rows.values.resize(static_cast<size_t>(count * leaving.value_bytes));
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
  to->Add(std::move(rows));
  return {};
}

}  // namespace dynemb

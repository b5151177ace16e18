#include "cc/core/table/row_adapter.h"

#include <algorithm>
#include <cstring>

namespace dynemb {

RowAdapter::RowAdapter(const TableSchema& from, const TableSchema& to) : from_(from), to_(to) {
  if (from_.slots_bytes == 0 && to_.slots_bytes > 0) {
    initial_slots_.resize(static_cast<size_t>(to_.slots_bytes));
    FillInitialSlots(to, initial_slots_.data());
  }
}

ConstRowParts RowAdapter::Adapt(const ConstRowParts& rows) {
  const int64_t n = rows.keys.size;
  ConstRowParts adapted = rows;
  if (!initial_slots_.empty()) {
    slots_.resize(static_cast<size_t>(n * to_.slots_bytes));
    for (int64_t i = 0; i < n; ++i) {
      std::copy(initial_slots_.begin(), initial_slots_.end(), &slots_[i * to_.slots_bytes]);
    }
    adapted.slots = ConstRows(slots_.data(), n, to_.slots_bytes);
  } else if (to_.slots_bytes == 0) {
    adapted.slots = ConstRows();
  }
  if (!std::equal(from_.meta_field, from_.meta_field + kMetaFields, to_.meta_field)) {
    meta_.assign(static_cast<size_t>(n * to_.meta_bytes), 0);
    for (int field = 0; field < kMetaFields; ++field) {
      const int64_t source = from_.meta_field[field], target = to_.meta_field[field];
      if (source < 0 || target < 0) continue;
      for (int64_t i = 0; i < n; ++i) {
        std::memcpy(&meta_[i * to_.meta_bytes + target], rows.meta[i] + source, sizeof(int64_t));
      }
    }
    adapted.meta = ConstRows(meta_.data(), n, to_.meta_bytes);
  }
  return adapted;
}

}  // namespace dynemb

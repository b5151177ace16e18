#include "cc/gpu/for_each.cu.h"
#include "cc/gpu/table/group_batch.h"
#include "cc/gpu/table/sort_pairs.h"

namespace dynemb {
namespace {

constexpr uint32_t kEmpty = 0xffffffffu;

// For an entry: its place in an open hash table of entries. The table keeps one entry of each key:
// in order the first one, otherwise the last.
struct FindSlot {
  Entries entries;
  uint32_t* table;
  uint32_t mask;  // the table's size - 1
  bool in_order;
  uint32_t* slot;  // kEmpty: it is no entry

  DYNEMB_HOST_DEVICE void operator()(int64_t i) const {
    const int64_t position = entries.position(i);
    slot[i] = position < 0 ? kEmpty : SlotOf(static_cast<uint32_t>(i), entries.keys[position]);
  }
  DYNEMB_HOST_DEVICE uint32_t SlotOf(uint32_t i, Key key) const {
    auto at = static_cast<uint32_t>(Mix64(static_cast<uint64_t>(key))) & mask;
    for (;; at = (at + 1) & mask) {
      uint32_t other = AtomicLoad(&table[at]);
      if (other == kEmpty) {
        other = AtomicCas(&table[at], kEmpty, i);
        if (other == kEmpty) return at;
      }
      if (entries.keys[entries.position(other)] != key) continue;
      if (in_order && i < other) AtomicMin(&table[at], i);
      if (!in_order && i > other) AtomicMax(&table[at], i);
      return at;
    }
  }
};

// The group of each entry, in place of its slot.
struct NameGroup {
  const uint32_t* table;
  uint32_t no_group;
  uint32_t* group;
  uint32_t* entry;  // or null

  DYNEMB_HOST_DEVICE void operator()(int64_t i) const {
    if (entry != nullptr) entry[i] = static_cast<uint32_t>(i);
    group[i] = group[i] == kEmpty ? no_group : table[group[i]];
  }
};

}  // namespace

Status GroupBatch(const Context& context, const Batch& batch, bool in_order, int64_t more_bytes,
                  Scratch* scratch, GroupedBatch* grouped) {
  *grouped = GroupedBatch();
  grouped->entries = Entries(batch);
  const int64_t n = grouped->size = grouped->end = grouped->entries.most;
  constexpr int64_t kMost = 1 << 29;  // so that no slot is kEmpty
  if (n >= kMost) return InvalidArgument("keys: got ", n, ", want less than ", kMost, " at a time");
  int64_t table_size = 64;
  while (table_size < 3 * n) table_size *= 2;
  int64_t temp_bytes = 0;
  if (in_order) DYNEMB_RETURN_IF_ERROR(SortTempBytes(context, n, &temp_bytes));
  const int64_t numbers = Scratch::Bytes<uint32_t>(n);
  DYNEMB_RETURN_IF_ERROR(scratch->Begin(
      context, Scratch::Bytes<uint32_t>(table_size) + (in_order ? 5 : 2) * numbers +
                   Scratch::Bytes<Outcome>(n) + Scratch::Bytes<char>(temp_bytes) + more_bytes));
  uint32_t* const table = scratch->Take<uint32_t>(table_size);
  uint32_t* group = scratch->Take<uint32_t>(n);
  uint32_t* entry = in_order ? scratch->Take<uint32_t>(n) : nullptr;
  grouped->row = scratch->Take<RowRef>(n);
  grouped->outcome = scratch->Take<Outcome>(n);
  DYNEMB_RETURN_IF_ERROR(FillBytes(context, table, 0xff, table_size * sizeof(uint32_t)));
  DYNEMB_RETURN_IF_ERROR(ForEach(
      context, n,
      FindSlot{grouped->entries, table, static_cast<uint32_t>(table_size - 1), in_order, group}));
  DYNEMB_RETURN_IF_ERROR(
      ForEach(context, n, NameGroup{table, static_cast<uint32_t>(n), group, entry}));
  if (in_order && n > 0) {
    int bits = 1;
    while (int64_t{1} << bits <= n) ++bits;
    uint32_t* const sorted_group = scratch->Take<uint32_t>(n);
    uint32_t* const sorted_entry = scratch->Take<uint32_t>(n);
    DYNEMB_RETURN_IF_ERROR(SortPairs(context, n, bits, {group, entry, sorted_group, sorted_entry},
                                     scratch->Take<char>(temp_bytes), temp_bytes));
    grouped->head = table;  // which has done its work
    group = sorted_group;
    entry = sorted_entry;
  }
  grouped->group = group;
  grouped->entry = entry;
  return {};
}

}  // namespace dynemb

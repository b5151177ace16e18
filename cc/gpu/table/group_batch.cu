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
  uint32_t first_group, no_group;
  uint32_t* group;
  uint32_t* entry;  // or null

  DYNEMB_HOST_DEVICE void operator()(int64_t i) const {
    if (entry != nullptr) entry[i] = static_cast<uint32_t>(i);
    group[i] = first_group + (group[i] == kEmpty ? no_group : table[group[i]]);
  }
};

// How many slots the hash table of a batch has.
int64_t TableSize(int64_t entries) {
  int64_t size = 64;
  while (size < 3 * entries) size *= 2;
  return size;
}

}  // namespace

Status GroupBatches(const std::vector<Batch>& batches, bool in_order, int64_t more_bytes,
                    Launches* launches, Scratch* scratch, std::vector<GroupedBatch>* grouped) {
  const Context& context = launches->context();
  std::vector<int64_t> sizes;
  int64_t n = 0, slots = 0;
  grouped->clear();
  for (const Batch& batch : batches) {
    GroupedBatch of;
    of.entries = Entries(batch);
    of.size = of.end = of.entries.most;
    sizes.push_back(of.size);
    n += of.size;
    slots += TableSize(of.size);
    grouped->push_back(of);
  }
  // Each batch has a group more than entries, of what is no entry.
  const int64_t most_group = n + static_cast<int64_t>(batches.size()) - 1;
  constexpr int64_t kMost = 1 << 29;  // so that no slot is kEmpty
  if (most_group >= kMost) {
    return InvalidArgument("keys: got ", n, ", want less than ", kMost, " at a time");
  }
  int64_t temp_bytes = 0;
  if (in_order) DYNEMB_RETURN_IF_ERROR(SortTempBytes(context, n, &temp_bytes));
  const int64_t numbers = Scratch::Bytes<uint32_t>(n);
  DYNEMB_RETURN_IF_ERROR(scratch->Begin(
      context, Scratch::Bytes<uint32_t>(slots) + (in_order ? 5 : 2) * numbers +
                   Scratch::Bytes<Outcome>(n) + Scratch::Bytes<char>(temp_bytes) + more_bytes));
  uint32_t* const table = scratch->Take<uint32_t>(slots);
  uint32_t* const group = scratch->Take<uint32_t>(n);
  uint32_t* const entry = in_order ? scratch->Take<uint32_t>(n) : nullptr;
  RowRef* const row = scratch->Take<RowRef>(n);
  Outcome* const outcome = scratch->Take<Outcome>(n);
  const bool sorts = in_order && n > 0;
  uint32_t* const sorted_group = sorts ? scratch->Take<uint32_t>(n) : group;
  uint32_t* const sorted_entry = sorts ? scratch->Take<uint32_t>(n) : entry;
  char* const temp = scratch->Take<char>(temp_bytes);

  std::vector<FindSlot> find;
  std::vector<NameGroup> name;
  int64_t first = 0, first_slot = 0;
  for (GroupedBatch& of : *grouped) {
    const int64_t table_size = TableSize(of.size);
    uint32_t* const slots_of = table + first_slot;
    const auto first_group = static_cast<uint32_t>(first + (&of - grouped->data()));
    find.push_back(
        {of.entries, slots_of, static_cast<uint32_t>(table_size - 1), in_order, group + first});
    name.push_back({slots_of, first_group, static_cast<uint32_t>(of.size), group + first,
                    in_order ? entry + first : nullptr});
    of.first_group = first_group;
    of.group = sorted_group + first;
    of.entry = in_order ? sorted_entry + first : nullptr;
    of.head = sorts ? slots_of : nullptr;  // which have done their work
    of.row = row + first;
    of.outcome = outcome + first;
    first += of.size;
    first_slot += table_size;
  }
  DYNEMB_RETURN_IF_ERROR(
      launches->Do([=] { return FillBytes(context, table, 0xff, slots * sizeof(uint32_t)); }));
  DYNEMB_RETURN_IF_ERROR(launches->For(find, sizes));
  DYNEMB_RETURN_IF_ERROR(launches->For(name, sizes));
  if (!sorts) return {};
  int bits = 1;
  while (int64_t{1} << bits <= most_group) ++bits;
  return launches->Do([=] {
    return SortPairs(context, n, bits, {group, entry, sorted_group, sorted_entry}, temp,
                     temp_bytes);
  });
}

Status GroupBatch(const Context& context, const Batch& batch, bool in_order, int64_t more_bytes,
                  Scratch* scratch, GroupedBatch* grouped) {
  std::vector<GroupedBatch> all;
  Launches launches(context);
  *grouped = GroupedBatch();
  grouped->entries = Entries(batch);
  DYNEMB_RETURN_IF_ERROR(GroupBatches({batch}, in_order, more_bytes, &launches, scratch, &all));
  *grouped = all[0];
  return {};
}

}  // namespace dynemb

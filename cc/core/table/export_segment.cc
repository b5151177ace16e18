#include "cc/core/table/export_segment.h"

#include <algorithm>
#include <vector>

#include "cc/core/base/copy_bytes.h"
#include "cc/core/table/for_each_key.h"
#include "cc/core/table/stripes.h"

namespace dynemb {
namespace {

constexpr int64_t kGroup = 4;  // stripes whose rows are fetched together

// Copies a row to row n of `out`, unless it was not written since a version.
bool ExportRow(const Segment& segment, const RowLayout& layout, const Segment::Entry& entry,
               int64_t since, const RowParts& out, int64_t n) {
  const char* const row = segment.row(entry.ref);
  // The version's place is the segment's, whose layout may be ahead of the table's.
  if (since >= 0 && ReadInt64(row + segment.layout().version_offset) <= since) return false;
  if (out.keys.data) out.keys[n] = entry.key;
  if (out.values.data) CopyBytes(out.values[n], row, layout.value_bytes);
  if (out.slots.data) CopyBytes(out.slots[n], row + layout.slots_offset, layout.slots_bytes);
  if (out.meta.data) CopyBytes(out.meta[n], row + layout.meta_offset, layout.meta_bytes);
  return true;
}

}  // namespace

bool ExportSegment(const Segment& segment, const RowLayout& layout, const RowParts& out,
                   Cursor* cursor, int64_t* n) {
  uint64_t& hash = cursor->position[0];
  uint64_t& bits = cursor->position[1];
  if (bits == 0) bits = 1 + static_cast<uint64_t>(segment.StripeBits());
  const Stripes stripes(BatchOrder::SegmentOf(hash), static_cast<int>(bits) - 1);
  const bool whole_rows = out.values.data || out.slots.data || out.meta.data;
  std::vector<Segment::Entry> entries;
  const int64_t from = stripes.NumberOf(hash);
  for (int64_t t = from; t < stripes.count(); t += kGroup) {
    entries.clear();
    for (int64_t i = t; i < std::min(t + kGroup, stripes.count()); ++i) {
      HashRange stripe = stripes[i];
      if (i == from) stripe.first = hash;
      const size_t begin = entries.size();
      segment.AppendRange(stripe, &entries);
      for (size_t e = begin; whole_rows && e < entries.size(); ++e) {
        PrefetchRow(segment.row(entries[e].ref), layout.row_bytes);
      }
      if (i + 2 * kGroup < stripes.count()) segment.PrefetchRange(stripes[i + 2 * kGroup]);
    }
    for (const Segment::Entry& entry : entries) {
      if (*n == out.keys.size) {
        hash = entry.hash;
        return false;
      }
      if (ExportRow(segment, layout, entry, cursor->since_version, out, *n)) ++*n;
    }
  }
  return true;
}

}  // namespace dynemb

#include "cc/core/policy/restrict.h"

#include <algorithm>
#include <numeric>

#include "cc/core/table/call_checks.h"

namespace dynemb {
namespace {

using Shards = std::vector<std::shared_ptr<Table>>;

constexpr int kDigitBits = 16;

// The order of any row, or of none if there is none.
Status AnyOrder(const Context& context, const Shards& shards, MetaField field, RowOrder* order) {
  *order = RowOrder();
  for (const auto& shard : shards) {
    const RowLayout layout(shard->schema());
    DYNEMB_RETURN_IF_ERROR(CheckMetaField(layout, field));
    std::vector<char> meta(static_cast<size_t>(layout.meta_bytes));
    Key key = 0;
    RowParts out;
    out.keys = {&key, 1};
    out.meta = {meta.data(), 1, layout.meta_bytes};
    Cursor cursor;
    int64_t rows = 0;
    DYNEMB_RETURN_IF_ERROR(shard->Export(context, &cursor, out, &rows));
    if (rows == 0) continue;
    *order = {ReadInt64(meta.data() + layout.meta_field[static_cast<int>(field)]), 0};
    break;
  }
  return Status();
}

// The lowest order that stays when the highest `rows` rows do, rows >= 1.
Status SelectBound(const Context& context, const Shards& shards, MetaField field, int64_t rows,
                   RowOrder* bound) {
  constexpr uint64_t kSignBit = uint64_t{1} << 63;
  std::vector<int64_t> counts(size_t{1} << kDigitBits);
  uint64_t words[2] = {0, 0};  // the bound as a number, with the score's sign bit flipped
  const auto order = [&] { return RowOrder{static_cast<int64_t>(words[0] ^ kSignBit), words[1]}; };
  const auto count = [&](int prefix_bits) {
    std::fill(counts.begin(), counts.end(), 0);
    for (const auto& shard : shards) {
      DYNEMB_RETURN_IF_ERROR(shard->Histogram(context, field, order(), prefix_bits, counts));
    }
    return Status();
  };
  // Scores are mostly times or counts, whose upper half is the same: one histogram tells whether it
  // is, which saves two.
  int64_t all = 0;
  for (const auto& shard : shards) all += shard->size();
  RowOrder any;
  DYNEMB_RETURN_IF_ERROR(AnyOrder(context, shards, field, &any));
  int prefix_bits = 32;
  words[0] = (static_cast<uint64_t>(any.score) ^ kSignBit) >> prefix_bits << prefix_bits;
  DYNEMB_RETURN_IF_ERROR(count(prefix_bits));
  if (std::accumulate(counts.begin(), counts.end(), int64_t{0}) < all) {
    prefix_bits = 0;
    words[0] = 0;
    DYNEMB_RETURN_IF_ERROR(count(prefix_bits));
  }
  int64_t keep = rows;  // of those that agree with the digits found so far
  for (;;) {
    size_t digit = counts.size() - 1;
    while (digit > 0 && keep > counts[digit]) keep -= counts[digit--];
    words[prefix_bits / 64] |= uint64_t{digit} << (64 - prefix_bits % 64 - kDigitBits);
    prefix_bits += kDigitBits;
    // All rows with this digit stay; or there are fewer by now than the histogram before counted.
    if (prefix_bits == 128 || keep >= counts[digit]) break;
    DYNEMB_RETURN_IF_ERROR(count(prefix_bits));
  }
  *bound = order();
  return Status();
}

}  // namespace

Status RestrictTo(const Context& context, const Shards& shards, MetaField field, int64_t rows,
                  int64_t* erased) {
  if (rows < 0) return InvalidArgument("rows: got ", rows, ", want 0 or more");
  for (const auto& shard : shards) DYNEMB_RETURN_IF_ERROR(shard->RemoveExpired(context));
  // With no row to keep the search ends at the highest order of all, below which is not all.
  RowOrder bound;
  DYNEMB_RETURN_IF_ERROR(SelectBound(context, shards, field, std::max<int64_t>(rows, 1), &bound));
  *erased = 0;
  int64_t all = 0;
  for (const auto& shard : shards) all += shard->size();
  if (rows > 0 && all <= rows) return Status();
  for (const auto& shard : shards) {
    int64_t count = rows == 0 ? shard->size() : 0;
    DYNEMB_RETURN_IF_ERROR(rows == 0 ? shard->Clear(context)
                                     : shard->EraseBelow(context, field, bound, &count));
    *erased += count;
  }
  return Status();
}

}  // namespace dynemb

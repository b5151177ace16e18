#include "cc/core/policy/restrict.h"

#include <algorithm>

namespace dynemb {
namespace {

using Shards = std::vector<std::shared_ptr<Table>>;

constexpr int kDigitBits = 8;

// The lowest order that stays when the highest `rows` rows do, rows >= 1.
Status SelectBound(const Context& context, const Shards& shards, MetaField field, int64_t rows,
                   RowOrder* bound) {
  std::vector<int64_t> counts(size_t{1} << kDigitBits);
  uint64_t words[2] = {0, 0};  // the bound as a number, with the score's sign bit flipped
  const auto order = [&] {
    return RowOrder{static_cast<int64_t>(words[0] ^ (uint64_t{1} << 63)), words[1]};
  };
  int64_t keep = rows;  // of those that agree with the digits found so far
  for (int prefix_bits = 0; prefix_bits < 128; prefix_bits += kDigitBits) {
    std::fill(counts.begin(), counts.end(), 0);
    for (const auto& shard : shards) {
      DYNEMB_RETURN_IF_ERROR(shard->Histogram(context, field, order(), prefix_bits, counts));
    }
    size_t digit = counts.size() - 1;
    while (digit > 0 && keep > counts[digit]) keep -= counts[digit--];
    words[prefix_bits / 64] |= uint64_t{digit} << (64 - prefix_bits % 64 - kDigitBits);
    // All rows with this digit stay; or there are fewer by now than the histogram before counted.
    if (keep >= counts[digit]) break;
  }
  *bound = order();
  return Status();
}

}  // namespace

Status RestrictTo(const Context& context, const Shards& shards, MetaField field, int64_t rows,
                  int64_t* erased) {
  if (rows < 0) return InvalidArgument("rows: got ", rows, ", want 0 or more");
  // With no row to keep the search ends at the highest order of all, below which is not all.
  RowOrder bound;
  DYNEMB_RETURN_IF_ERROR(SelectBound(context, shards, field, std::max<int64_t>(rows, 1), &bound));
  *erased = 0;
  for (const auto& shard : shards) {
    int64_t count = rows == 0 ? shard->size() : 0;
    DYNEMB_RETURN_IF_ERROR(rows == 0 ? shard->Clear(context)
                                     : shard->EraseBelow(context, field, bound, &count));
    *erased += count;
  }
  return Status();
}

}  // namespace dynemb

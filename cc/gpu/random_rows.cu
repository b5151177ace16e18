// Initial values drawn on the device.
#include "cc/gpu/for_each.cu.h"
#include "cc/gpu/random_rows.h"

namespace dynemb {
namespace {

// Each index is a Philox block, which is four columns of a row.
template <typename V>
struct FillBlocks {
  Distribution distribution;
  uint64_t seed;
  Span<const int64_t> keys;
  int64_t dim, blocks_per_row;
  Rows values;

  DYNEMB_HOST_DEVICE void operator()(int64_t i) const {
    const int64_t row = i / blocks_per_row;
    FillRandomBlock(distribution, seed, keys[row], i % blocks_per_row, dim,
                    reinterpret_cast<V*>(values[row]));
  }
};

}  // namespace

Status FillRandomRows(const Context& context, const Distribution& distribution, uint64_t seed,
                      const Span<const int64_t>& keys, DType dtype, int64_t dim,
                      const Rows& values) {
  if (keys.space != context.space || values.space != context.space) {
    return InvalidArgument("keys, values: want both in the memory space of the context");
  }
  if (distribution.kind == Distribution::Kind::kConstant) {
    return InvalidArgument("distribution: got a constant, want one of random numbers");
  }
  if (values.count < keys.size) {
    return InvalidArgument("values: got ", values.count, " rows, want ", keys.size);
  }
  const int64_t blocks_per_row = (dim + 3) / 4;
  return VisitDType(dtype, [&](auto tag) {
    using V = typename decltype(tag)::type;
    return ForEach(context, keys.size * blocks_per_row,
                   FillBlocks<V>{distribution, seed, keys, dim, blocks_per_row, values});
  });
}

}  // namespace dynemb

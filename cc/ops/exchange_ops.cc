// The ops with which processes exchange keys and rows of tables that are spread over them. The
// exchange itself is TensorFlow's all-to-all; these make what it carries and take it apart. No
// logic; the kernels are in cc/kernels.
#include <algorithm>
#include <cstdint>
#include <vector>

#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace dynemb {
namespace {

using tensorflow::shape_inference::DimensionHandle;
using tensorflow::shape_inference::InferenceContext;

absl::Status GroupByShardShape(InferenceContext* c) {
  int tables;
  int64_t receivers;
  bool distinct;
  TF_RETURN_IF_ERROR(c->GetAttr("T", &tables));
  TF_RETURN_IF_ERROR(c->GetAttr("receivers", &receivers));
  TF_RETURN_IF_ERROR(c->GetAttr("distinct", &distinct));
  for (int t = 0; t < tables; ++t) {
    tensorflow::shape_inference::ShapeHandle keys;
    TF_RETURN_IF_ERROR(c->WithRank(c->input(t), 1, &keys));
    c->set_output(t, distinct ? c->Vector(c->UnknownDim()) : keys);
    c->set_output(tables + t, keys);
  }
  c->set_output(2 * tables, c->Matrix(receivers, tables));
  return absl::OkStatus();
}

absl::Status UnpackShape(InferenceContext* c) {
  std::vector<int64_t> dims;
  TF_RETURN_IF_ERROR(c->GetAttr("dims", &dims));
  for (int p = 0; p < std::min<int>(c->num_outputs(), dims.size()); ++p) {
    const DimensionHandle items = c->UnknownDim();
    c->set_output(p, dims[p] < 0 ? c->Vector(items) : c->Matrix(items, dims[p]));
  }
  return absl::OkStatus();
}

REGISTER_OP("DynembGroupByShard")
    .Input("keys: T * int64")
    .Input("shard_ids: T * int32")
    .Output("grouped: T * int64")
    .Output("places: T * int64")
    .Output("counts: int64")
    .Attr("T: int >= 1")
    .Attr("receivers: int >= 1")
    .Attr("distinct: bool = true")
    .SetShapeFn(GroupByShardShape)
    .Doc(R"doc(
The keys of tables with those of one shard together, the first shard's first.

keys: shape (n,) for each table.
shard_ids: of the keys of each table, or empty for key mod receivers, rounded down.
grouped: shape (m,), in batch order within a shard; each key once if `distinct`.
places: shape (n,), the place of each key in `grouped`.
counts: shape (receivers, T), how many of `grouped` are of each shard.
)doc");

REGISTER_OP("DynembPack")
    .Input("parts: P")
    .Input("counts: int64")
    .Input("words: int64")
    .Output("buffers: int64")
    .Attr("P: list({int64, int32, float, double, half, bfloat16, int8, uint8, bool})")
    .SetShapeFn([](InferenceContext* c) {
      c->set_output(0, c->Matrix(c->UnknownDim(), c->UnknownDim()));
      return absl::OkStatus();
    })
    .Doc(R"doc(
Lays tensors out as buffers of one size, one for each receiver.

parts: each of shape (items,) or (items, dim), the items for the first receiver first.
counts: shape (receivers, parts), how many items of each part each receiver gets.
words: of a buffer. What it needs: sum over parts of items * bytes of an item / 8, rounded up.
buffers: shape (receivers, words).
)doc");

REGISTER_OP("DynembUnpack")
    .Input("buffers: int64")
    .Input("counts: int64")
    .Output("parts: P")
    .Attr("P: list({int64, int32, float, double, half, bfloat16, int8, uint8, bool})")
    .Attr("dims: list(int)")
    .SetShapeFn(UnpackShape)
    .Doc(R"doc(
What DynembPack was given, of the buffers that one process got: those from the first sender first.

counts: shape (senders, parts), how many items of each part each sent. Refused if they do not fit the buffers.
dims: of each part, -1 for items that are numbers.
)doc");

REGISTER_OP("DynembFetchedRowsView")
    .Input("keys: int64")
    .Input("values: dtype")
    .Output("table: resource")
    .Attr("dtype: {float, double, half, bfloat16, int8, int32, int64}")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::ScalarShape)
    .Doc(R"doc(
A table of rows that were fetched for a step, which can only be looked up.

table: the handle. The rows live as long as it is held.
keys: shape (n,), distinct; any other reads as zeros.
values: shape (n, dim).
)doc");

}  // namespace
}  // namespace dynemb

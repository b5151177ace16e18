// The lookup, and what its gradient needs.
#include "cc/ops/op_schemas.h"

namespace dynemb {
namespace {

using tensorflow::shape_inference::DimensionHandle;
using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

absl::Status LookupShape(InferenceContext* c) {
  int64_t dim;
  TF_RETURN_IF_ERROR(c->GetAttr("dim", &dim));
  const ShapeHandle keys = c->input(2);
  ShapeHandle values;
  TF_RETURN_IF_ERROR(c->Concatenate(keys, c->Vector(dim), &values));
  c->set_output(0, values);
  c->set_output(1, keys);
  return absl::OkStatus();
}

absl::Status SumByKeyShape(InferenceContext* c) {
  ShapeHandle keys, rows;
  TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 1, &keys));
  TF_RETURN_IF_ERROR(c->WithRank(c->input(1), 2, &rows));
  const DimensionHandle distinct = c->UnknownDim();
  c->set_output(0, c->Vector(distinct));
  c->set_output(1, c->Matrix(distinct, c->Dim(rows, 1)));
  c->set_output(2, keys);
  return absl::OkStatus();
}

REGISTER_OP("DynembLookup")
    .Input("weight: dtype")
    .Input("table: resource")
    .Input("keys: int64")
    .Input("shard_ids: int32")
    .Output("values: dtype")
    .Output("exists: bool")
    .Attr("dtype: " DYNEMB_VALUE_TYPES)
    .Attr("dim: int >= 1")
    .Attr("repeats: int >= 1 = 1")
    .SetIsStateful()
    .SetShapeFn(LookupShape)
    .Doc(R"doc(
Reads the values of keys; a key without a row reads its initial value. Never inserts.

dtype: what values are returned as: the table's dtype, or a wider floating one.
weight: the value of the variable's handle weight, of shape (0, dim); not used. It is an input so that
  the gradient of the lookup belongs to the handle: its value and not its resource, which under
  tf.distribute and on GPUs lives on another device than the table.
values: shape (..., dim).
exists: shape (...), whether the key has a row.
repeats: for the gradient, which is a DynembSumByKey.
)doc");

REGISTER_OP("DynembSumByKey")
    .Input("keys: int64")
    .Input("rows: dtype")
    .Output("distinct_keys: int64")
    .Output("sums: dtype")
    .Output("inverse: int64")
    .Attr("dtype: " DYNEMB_TRAINED_TYPES)
    .Attr("repeats: int >= 1 = 1")
    .SetShapeFn(SumByKeyShape)
    .Doc(R"doc(
Adds up the rows of equal keys.

keys: shape (n,).
rows: shape (n, dim).
distinct_keys: shape (m,), in the order of first appearance.
sums: shape (m, dim).
inverse: shape (n,), the place of each key in distinct_keys.
repeats: for a table whose admission counts occurrences. After the distinct keys come more copies of those that
  occur more than once, up to so many in all, with rows of zeros.
)doc");

}  // namespace
}  // namespace dynemb

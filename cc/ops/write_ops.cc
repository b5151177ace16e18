// Ops that change rows by key: upsert, accum, remove; and that keep strings. Apply is in
// apply_ops.cc.
#include "cc/ops/op_schemas.h"

namespace dynemb {
namespace {

using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::NoOutputs;

absl::Status WithStringsShapes(InferenceContext* c) {
  c->set_output(0, c->input(0));
  for (const int missing : {1, 2}) c->set_output(missing, c->Vector(InferenceContext::kUnknownDim));
  return absl::OkStatus();
}

REGISTER_OP("DynembUpsert")
    .Input("table: resource")
    .Input("keys: int64")
    .Input("shard_ids: int32")
    .Input("values: dtype")
    .Input("now: int64")
    .Input("scores: int64")
    .Attr("dtype: " DYNEMB_VALUE_TYPES)
    .SetIsStateful()
    .SetShapeFn(NoOutputs)
    .Doc(R"doc(
Sets the values of keys. Of equal keys the last wins. Slots of rows that exist stay as they are.

scores: as those of DynembApply.
)doc");

REGISTER_OP("DynembAccum")
    .Input("table: resource")
    .Input("keys: int64")
    .Input("shard_ids: int32")
    .Input("values_or_deltas: dtype")
    .Input("exists: bool")
    .Input("now: int64")
    .Input("scores: int64")
    .Attr("dtype: " DYNEMB_VALUE_TYPES)
    .SetIsStateful()
    .SetShapeFn(NoOutputs)
    .Doc(R"doc(
Adds to the values of keys that were seen and are there, inserts those that were not seen and are not
there, and ignores the others. Equal keys count one after the other.

exists: shape (...), what an earlier lookup said.
scores: as those of DynembApply.
)doc");

REGISTER_OP("DynembCheckRoom")
    .Input("table: resource")
    .Input("keys: int64")
    .Input("shard_ids: int32")
    .Input("exists: bool")
    .Output("problem: string")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::ScalarShape)
    .Doc(R"doc(
Whether a table that refuses calls when it is full has room for those of the keys that have no row.

exists: of which keys a DynembAccum is told that they have a row, shape (n,), and inserts none; shape (0,): all come in.
problem: that it has none, and for what; empty if it has.
)doc");

REGISTER_OP("DynembRoom")
    .Input("table: resource")
    .Output("rows: int64")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::ScalarShape)
    .Doc(R"doc(
For how many rows there is room in the table, whatever keys they are of. 0 where an optimizer's slots are yet to come.
)doc");

REGISTER_OP("DynembRecordKeyStrings")
    .Input("table: resource")
    .Input("keys: int64")
    .Input("strings: string")
    .SetIsStateful()
    .SetShapeFn(NoOutputs)
    .Doc(R"doc(
Keeps what keys are fingerprints of, for keys that may get rows. A table that keeps strings makes no row
without this.

Two strings of one key are refused; then none of the batch is kept.

strings: one per key, of a shape of as many elements.
)doc");

REGISTER_OP("DynembWithStrings")
    .Input("weight: dtype")
    .Input("table: resource")
    .Input("keys: int64")
    .Input("strings: string")
    .Output("same_weight: dtype")
    .Output("missing_keys: int64")
    .Output("missing_strings: string")
    .Attr("dtype: " DYNEMB_VALUE_TYPES)
    .SetIsStateful()
    .SetShapeFn(WithStringsShapes)
    .Doc(R"doc(
Passes on the weight that a DynembLookup takes, unless the table keeps another string of a key. Its gradient
runs DynembRecordKeyStrings for the keys of which the table kept none: so strings are kept of what is trained,
and not of what is only read.

missing_keys: those without a string, in the order of the batch, which may have them more than once.
missing_strings: the string of each.
)doc");

REGISTER_OP("DynembRemove")
    .Input("table: resource")
    .Input("keys: int64")
    .Input("shard_ids: int32")
    .SetIsStateful()
    .SetShapeFn(NoOutputs)
    .Doc("Removes the rows of keys; keys without a row are ignored.");

}  // namespace
}  // namespace dynemb

// Ops that carry whole rows out of tables and back: export and import.
#include "cc/ops/op_schemas.h"

namespace dynemb {
namespace {

using tensorflow::shape_inference::DimensionHandle;
using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::NoOutputs;

absl::Status ExportShape(InferenceContext* c) {
  const DimensionHandle rows = c->UnknownDim();
  c->set_output(0, c->Vector(rows));
  for (int part = 1; part < 4; ++part) c->set_output(part, c->Matrix(rows, c->UnknownDim()));
  c->set_output(4, c->Scalar());
  c->set_output(5, c->Vector(3));
  c->set_output(6, c->Vector(c->UnknownDim()));
  return absl::OkStatus();
}

REGISTER_OP("DynembExport")
    .Input("table: resource")
    .Input("cursor: int64")
    .Input("limit: int64")
    .Output("keys: int64")
    .Output("values: dtype")
    .Output("slots: uint8")
    .Output("meta: uint8")
    .Output("schema: string")
    .Output("next: int64")
    .Output("strings: string")
    .Attr("dtype: " DYNEMB_VALUE_TYPES)
    .Attr("whole_rows: bool = true")
    .SetIsStateful()
    .SetShapeFn(ExportShape)
    .Doc(R"doc(
Copies rows out, shard after shard.

dtype: as in DynembLookup. The schema says what the table holds.
cursor: where to begin: (0, 0, 0), or what the call before returned as next.
limit: at most so many rows; -1 for all, 0 for the schema alone.
whole_rows: if false, values and slots have no columns: for callers that want keys and meta alone.
keys: shape (n,).
values: shape (n, dim).
slots: shape (n, bytes): the optimizer's numbers of each row.
meta: shape (n, bytes).
schema: what the rows are made of.
next: where to go on; its first number is the number of shards when there is no more.
strings: shape (n,), what keys are fingerprints of, of a table that keeps them; otherwise (0,).
)doc");

REGISTER_OP("DynembImport")
    .Input("table: resource")
    .Input("keys: int64")
    .Input("shard_ids: int32")
    .Input("values: dtype")
    .Input("slots: uint8")
    .Input("meta: uint8")
    .Input("schema: string")
    .Input("strings: string")
    .Input("snapshots: string")
    .Attr("dtype: " DYNEMB_VALUE_TYPES)
    .Attr("replace: bool = false")
    .Attr("adopt_seed: bool = false")
    .SetIsStateful()
    .SetShapeFn(NoOutputs)
    .Doc(R"doc(
Puts exported rows back: keys, values, slots and meta as DynembExport gave them, on any number of shards.

Refused, with the table as it was, if the schema does not fit it or the parts do not fit the
schema.

strings: shape (n,) for a table that keeps the strings of its keys; otherwise not looked at.
snapshots: shape (m,), as DynembSnapshots gave them before the rows were exported; only with replace.
replace: the rows take the place of all that is there, at once; otherwise they are added.
adopt_seed: take over the seed of the initial values as well.
)doc");

}  // namespace
}  // namespace dynemb

// The ops that train. The one that trains on bags is in bag_ops.cc.
#include "cc/ops/op_schemas.h"

namespace dynemb {
namespace {

using tensorflow::shape_inference::NoOutputs;

REGISTER_OP("DynembApply")
    .Input("tables: N * resource")
    .Input("keys: N * int64")
    .Input("shard_ids: N * int32")
    .Input("gradients: N * dtype")
    .Input("hyper: double")
    .Input("now: int64")
    .Input("candidates: C * resource")
    .Input("admitted: N * bool")
    .Input("scores: N * int64")
    .Attr("N: int >= 1")
    .Attr("C: int >= 0")
    .Attr("dtype: {float, double}")
    .Attr("rule: string")
    .Attr("slot_initial: float = 0.0")
    .Attr("admission: list(string)")
    .SetIsStateful()
    .SetShapeFn(NoOutputs)
    .Doc(R"doc(
Runs an optimizer rule over the rows of keys of tables: find or insert, update value and slots in place.

Gradients of equal keys are added up first, in batch order. The first call gives the rows their slots;
a table that another rule trains is refused. What is wrong with one table is found before any changes.

keys: shape (n,) for each table.
shard_ids: of the keys of each table.
gradients: shape (n, dim), in float32 or, for tables of float64, in float64.
hyper: shape (N, h), of each table the rule's hyper-parameters in the order of cc/core/optimizer/rule.h.
now: shape (N,).
rule: name of the rule.
slot_initial: start of the slots that take it from the user.
admission: of each table which of its keys without a row get one: '' for all, 'min_count 3', 'min_count 3 sketch 64
  process 0 of 2' (64 blocks), 'probability 0.25 seed 7' or 'given'. The gradients of others are dropped.
candidates: of each table with 'min_count', in their order, the table that counts occurrences of keys without a row;
  of float, dim 1, in one shard, and keeping the rows that are evicted if there is a sketch; and after it the table of
  the sketch, of int8, in one shard.
admitted: of each table with 'given' whether each key is admitted, shape (n,); of the others shape (0,).
scores: of each table whose eviction is 'score' the score of each key, shape (n,), equal ones for equal keys; or shape
  (0,), for which rows keep theirs.
)doc");

REGISTER_OP("DynembCheckUpdates")
    .Input("tables: N * resource")
    .Input("keys: N * int64")
    .Input("shard_ids: N * int32")
    .Input("hyper: double")
    .Input("now: int64")
    .Input("candidates: C * resource")
    .Input("admitted: N * bool")
    .Output("problem: string")
    .Attr("N: int >= 1")
    .Attr("C: int >= 0")
    .Attr("dtype: {float, double}")
    .Attr("rule: string")
    .Attr("slot_initial: float = 0.0")
    .Attr("admission: list(string)")
    .Attr("fails: bool = false")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::ScalarShape)
    .Doc(R"doc(
What a DynembApply of these inputs does before any row changes: it checks them, gives rows the slots of the rule, and
sees whether the tables have room.

fails: whether that a table has no room is an error of this op.
problem: which table has no room, and for what; empty if all have.
)doc");

}  // namespace
}  // namespace dynemb

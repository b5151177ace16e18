// Ops of policies: restrict, the removal of what has expired, the clock, and counts of
// admission.
#include "cc/ops/op_schemas.h"

namespace dynemb {
namespace {

using tensorflow::shape_inference::NoOutputs;

REGISTER_OP("DynembRestrict")
    .Input("table: resource")
    .Input("num_reserved: int64")
    .Input("trigger: int64")
    .Output("removed: int64")
    .Attr("field: {'used', 'count', 'score'}")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::ScalarShape)
    .Doc(R"doc(
Removes the rows with the lowest numbers until num_reserved are left, over all shards; ties by the hash of
the key, the lower going first.

num_reserved: how many rows stay.
trigger: nothing happens unless there are more rows than this.
removed: how many rows went.
field: which number of the row's meta.
)doc");

REGISTER_OP("DynembRemoveExpired")
    .Input("table: resource")
    .SetIsStateful()
    .SetShapeFn(NoOutputs)
    .Doc("Removes all rows whose time is over, by a pass over the table if there may be some.");

REGISTER_OP("DynembNow")
    .Input("table: resource")
    .Output("now: int64")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::ScalarShape)
    .Doc(R"doc(
Microseconds since 1970; more than any execution before it in this process gave.

table: the table whose rows the number is for. In a tf.function it makes the clock be read between the writes
  before and after it, and on the table's device.
)doc");

REGISTER_OP("DynembSketchCounts")
    .Input("candidates: resource")
    .Input("sketch: resource")
    .Attr("admission: string")
    .SetIsStateful()
    .SetShapeFn(NoOutputs)
    .Doc(R"doc(
Puts the counts into a sketch that have left the candidates of a table outside of DynembApply, as in a restore.

candidates: as those of DynembApply, with the sketch after them.
admission: as that of DynembApply, of a policy with a sketch.
)doc");

}  // namespace
}  // namespace dynemb

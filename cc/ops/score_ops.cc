// Ops that carry the scores of keys from lookups to the update that stamps them.
#include "cc/ops/op_schemas.h"

namespace dynemb {
namespace {

using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::NoOutputs;

REGISTER_OP("DynembWithScores")
    .Input("weight: dtype")
    .Input("table: resource")
    .Input("keys: int64")
    .Input("scores: int64")
    .Output("same_weight: dtype")
    .Attr("dtype: " DYNEMB_VALUE_TYPES)
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::UnchangedShape)
    .Doc(R"doc(
Passes on the weight that a DynembLookup takes. Its gradient runs DynembGiveScores: so scores are those of what is
trained, and not of what is only read.

scores: one per key, of a shape of as many elements.
)doc");

REGISTER_OP("DynembGiveScores")
    .Input("table: resource")
    .Input("keys: int64")
    .Input("scores: int64")
    .SetIsStateful()
    .SetShapeFn(NoOutputs)
    .Doc(R"doc(
Keeps scores of keys until DynembTakeScores asks for them. Of several of one key the highest counts,
or of a table whose scores add up their sum.

scores: one per key, of a shape of as many elements.
)doc");

REGISTER_OP("DynembTakeScores")
    .Input("table: resource")
    .Input("keys: int64")
    .Input("shard_ids: int32")
    .Output("scores: int64")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) {
      c->set_output(0, c->Vector(c->UnknownDim()));
      return absl::OkStatus();
    })
    .Doc(R"doc(
The scores that were kept of keys, which are forgotten then; where there is none that of the key's row, or 0,
or of a table whose scores add up 0.

shard_ids: of the keys.
scores: shape (n,) in the order of the keys; or (0,), if the table keeps none of any key.
)doc");

REGISTER_OP("DynembTakeAllScores")
    .Input("table: resource")
    .Output("keys: int64")
    .Output("scores: int64")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) {
      c->set_output(0, c->Vector(c->UnknownDim()));
      c->set_output(1, c->output(0));
      return absl::OkStatus();
    })
    .Doc(R"doc(
All keys of which scores are kept, each once, and these, which are forgotten then.

scores: shape (n,), as keys.
)doc");

}  // namespace
}  // namespace dynemb

// The ops by which a SavedModel follows a feed of generations, wherever it is loaded. No logic; the
// kernels are in cc/kernels/follower_ops.cc.
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace dynemb {
namespace {

using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::NoOutputs;
using tensorflow::shape_inference::ScalarShape;

REGISTER_OP("DynembFollower")
    .Output("follower: resource")
    .Attr("container: string = ''")
    .Attr("shared_name: string = ''")
    .SetIsStateful()
    .SetShapeFn(ScalarShape)
    .Doc(R"doc(
What the requests of a model go through, and what makes the model follow a feed, from DynembFollow on.

Lives as long as a handle of it is held; with a shared_name as DynembTable. The thread that follows ends with it.

follower: the handle.
)doc");

REGISTER_OP("DynembFollow")
    .Input("follower: resource")
    .Input("tables: N * resource")
    .Input("variables: M * resource")
    .Attr("N: int >= 1")
    .Attr("M: int >= 0")
    .Attr("path: string")
    .Attr("weight_names: list(string) >= 0 = []")
    .Attr("optional: list(bool) >= 0 = []")
    .Attr("poll_seconds: float = 0.05")
    .Attr("heartbeat_seconds: float = 10.0")
    .Attr("longest_wait_seconds: float = 1.0")
    .Attr("serve_while_loading: bool = true")
    .SetIsStateful()
    .SetShapeFn(NoOutputs)
    .Doc(R"doc(
Begins to follow a feed by a thread of the op library, and returns at once. A second time it does nothing.

tables: in the host's memory; by their attributes table_name they are found in the feed.
variables: resource variables in the host's memory, the dense weights.
path: the folder of the feed, on any of TensorFlow's file systems.
weight_names: of the variables, by which the feed has them.
optional: of each variable whether it may stay as it is where the feed does not have it, as what the model writes
  itself; or none, then those may that are not of floats.
poll_seconds: how often the thread looks for a new generation.
heartbeat_seconds: how often the publisher is told that this follower lives.
longest_wait_seconds: so long a switch to the next generation waits for requests that have begun; if they take
  longer it is tried again later.
serve_while_loading: while a full copy is loaded, what was there before is served; if false nothing is, and its rows
  are freed before.
)doc");

REGISTER_OP("DynembPin")
    .Input("follower: resource")
    .Output("pin: variant")
    .SetIsStateful()
    .SetShapeFn(ScalarShape)
    .Doc(R"doc(
Begins a request: until DynembUnpin all tables and variables that follow stay at one generation.

If a switch to the next generation is under way, it waits for that, without a thread; not in a step that is pinned
already. An error if applying a generation failed half-way, until the next full copy.

pin: is dropped with the request, should it fail before DynembUnpin.
)doc");

REGISTER_OP("DynembUnpin")
    .Input("pin: variant")
    .Input("outputs: T")
    .Attr("T: list(type) >= 0 = []")
    .SetIsStateful()
    .SetShapeFn(NoOutputs)
    .Doc(R"doc(
Ends a request.

pin: from DynembPin.
outputs: what the request has computed, which is there before it ends. A control dependency on a function's call waits
  for its outputs only if they depend on its control outputs.
)doc");

REGISTER_OP("DynembFollowerStatus")
    .Input("follower: resource")
    .Output("numbers: int64")
    .Output("last_error: string")
    .Output("path: string")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) {
      c->set_output(0, c->Vector(9));
      c->set_output(1, c->Scalar());
      c->set_output(2, c->Scalar());
      return absl::OkStatus();
    })
    .Doc(R"doc(
Where a follower is.

numbers: the generation that is served or -1, the newest of the feed, the one that it is pinned to or -1, microseconds since there is a newer one than
  that which is served, and since that was published, rows put in, keys erased, full copies loaded, errors.
last_error: what went wrong last.
path: of the feed; '' before DynembFollow.
)doc");

}  // namespace
}  // namespace dynemb

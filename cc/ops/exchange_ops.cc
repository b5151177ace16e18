// The ops with which processes exchange keys and rows of tables that are spread over them. No
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

absl::Status GroupByProcessShape(InferenceContext* c) {
  int tables;
  int64_t processes;
  bool distinct;
  TF_RETURN_IF_ERROR(c->GetAttr("T", &tables));
  TF_RETURN_IF_ERROR(c->GetAttr("processes", &processes));
  TF_RETURN_IF_ERROR(c->GetAttr("distinct", &distinct));
  for (int t = 0; t < tables; ++t) {
    tensorflow::shape_inference::ShapeHandle keys;
    TF_RETURN_IF_ERROR(c->WithRank(c->input(t), 1, &keys));
    c->set_output(t, distinct ? c->Vector(c->UnknownDim()) : keys);
    c->set_output(tables + t, keys);
  }
  c->set_output(2 * tables, c->Matrix(processes, tables));
  return absl::OkStatus();
}

absl::Status ExchangeShape(InferenceContext* c) {
  std::vector<int64_t> dims;
  TF_RETURN_IF_ERROR(c->GetAttr("dims", &dims));
  c->set_output(0, c->input(2));
  tensorflow::shape_inference::ShapeHandle counts;
  TF_RETURN_IF_ERROR(c->WithRank(c->input(3), 2, &counts));
  c->set_output(1, c->Matrix(c->UnknownDim(), c->Dim(counts, 1)));
  for (int p = 0; p < std::min<int>(c->num_outputs() - 2, dims.size()); ++p) {
    const DimensionHandle items = c->UnknownDim();
    c->set_output(2 + p, dims[p] < 0 ? c->Vector(items) : c->Matrix(items, dims[p]));
  }
  return absl::OkStatus();
}

REGISTER_OP("DynembGroupByProcess")
    .Input("keys: T * int64")
    .Output("grouped: T * int64")
    .Output("places: T * int64")
    .Output("counts: int64")
    .Attr("T: int >= 1")
    .Attr("processes: int >= 1")
    .Attr("by_hash: list(bool)")
    .Attr("distinct: bool = true")
    .SetShapeFn(GroupByProcessShape)
    .Doc(R"doc(
The keys of tables with those of one process together, the first process' first.

keys: shape (n,) for each table.
by_hash: of each table, whether a hash says which process has a key; else key mod processes, rounded down.
grouped: shape (m,), in batch order within a process; each key once if `distinct`.
places: shape (n,), the place of each key in `grouped`.
counts: shape (processes, T), how many of `grouped` are of each process.
)doc");

REGISTER_OP("DynembOwned")
    .Input("keys: int64")
    .Output("owned: bool")
    .Attr("process: int >= 0")
    .Attr("processes: int >= 1")
    .Attr("by_hash: bool")
    .SetShapeFn(tensorflow::shape_inference::UnchangedShape)
    .Doc(R"doc(
Whether a process has the row of each key, by the rule of DynembGroupByProcess.
)doc");

REGISTER_OP("DynembListen")
    .Output("exchange: resource")
    .Output("chosen_port: int64")
    .Attr("port: int = 0")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) {
      c->set_output(0, c->Scalar());
      c->set_output(1, c->Scalar());
      return absl::OkStatus();
    })
    .Doc(R"doc(
Listens for the processes with which this one will exchange rows.

exchange: the handle. Connections are closed when it is gone.
chosen_port: on which it listens, on all addresses of this machine: the attr, or a free one if that is 0.
)doc");

REGISTER_OP("DynembConnect")
    .Input("exchange: resource")
    .Input("addresses: string")
    .Input("secret: string")
    .Attr("index: int >= 0")
    .Attr("stages: int = 1")
    .Attr("shared_memory: bool = true")
    .Attr("timeout_seconds: float")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::NoOutputs)
    .Doc(R"doc(
Connects this process to those to which it sends, which do the same.

addresses: shape (processes,), "host:port" of where each listens, the same in all.
secret: 16 bytes that these processes alone know.
index: the number of this process.
stages: 1: every process sends to every other; 2: along the rows and columns of a grid; the same in all.
shared_memory: processes of one machine that both say so exchange through memory that both map, if it can be had.
)doc");

REGISTER_OP("DynembExchange")
    .Input("exchange: resource")
    .Input("problem: string")
    .Input("numbers: int64")
    .Input("counts: int64")
    .Input("parts: P")
    .Output("largest: int64")
    .Output("sent: int64")
    .Output("got: P")
    .Attr("P: list({int64, int32, float, double, half, bfloat16, int8, uint8, bool}) >= 0")
    .Attr("dims: list(int)")
    .Attr("program: string")
    .Attr("to_all: bool = false")
    .Attr("refusal: {'invalid', 'exhausted'} = 'invalid'")
    .Attr("timeout_seconds: float = 0.0")
    .SetIsStateful()
    .SetShapeFn(ExchangeShape)
    .Doc(R"doc(
Sends every process its part of tensors, once all have said that they do the same; all call it.

problem: why this process cannot, a scalar; empty: it can.
numbers: shape (n,), as many in all.
counts: shape (processes, tables), how many items of each table go to each process; shape (1, tables) to all.
parts: for each table, one or more times, shape (items,) or (items, dim), those for the first process first.
largest: shape (n,), of each of the numbers over all processes.
sent: shape (processes, tables), how many items of each table each process sent.
got: like parts, what the processes sent to this one, the first process' first.
dims: of each part, -1 for items that are numbers.
program: what is done, in words; where it differs, or its numbers or parts, all processes get an error.
to_all: whether every process gets all items.
refusal: the error in all processes if one has a problem.
timeout_seconds: how long to wait for the others; 0: for ever.
)doc");

REGISTER_OP("DynembExchangeCalls")
    .Input("exchange: resource")
    .Output("calls: int64")
    .Output("sent_bytes: int64")
    .Output("sent_messages: int64")
    .Output("shared_memory_peers: int64")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) {
      for (int output = 0; output < 4; ++output) c->set_output(output, c->Scalar());
      return absl::OkStatus();
    })
    .Doc(R"doc(
How often this process has exchanged with the others, and how many bytes and messages it has sent them,
with what it passed on; and with how many of them it exchanges through shared memory.
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

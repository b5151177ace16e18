// Ops about a table as a whole: make, clear, size.
#include "cc/ops/op_schemas.h"

namespace dynemb {
namespace {

using tensorflow::shape_inference::DimensionHandle;
using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::NoOutputs;
using tensorflow::shape_inference::ShapeHandle;

absl::Status SizeShape(InferenceContext* c) {
  const DimensionHandle shards = c->UnknownDim();
  c->set_output(0, c->Vector(shards));
  c->set_output(1, c->Vector(shards));
  return absl::OkStatus();
}

// What makes a table, in host memory or on a GPU.
#define DYNEMB_TABLE(op)                               \
  op.Output("table: resource")                         \
      .Attr("schema: string")                          \
      .Attr("shards: int >= 1 = 1")                    \
      .Attr("init_rows: int >= 0 = 0")                 \
      .Attr("track_changes: bool = false")             \
      .Attr("max_rows: int = -1")                      \
      .Attr("max_bytes: int = -1")                     \
      .Attr("on_full: {'error', 'decline'} = 'error'") \
      .Attr("eviction: string = ''")                   \
      .Attr("keep_evicted: int >= 0 = 0")              \
      .Attr("missing_value: list(float) = []")         \
      .Attr("storage: string = ''")                    \
      .Attr("table_name: string = 'table'")            \
      .Attr("container: string = ''")                  \
      .Attr("shared_name: string = ''")                \
      .SetIsStateful()                                 \
      .SetShapeFn(tensorflow::shape_inference::ScalarShape)

DYNEMB_TABLE(REGISTER_OP("DynembTable")).Doc(R"doc(
Makes the shards of a table.

A table lives as long as a handle of it is held. With an empty shared_name every execution makes a new one.
With a name it is made once and lives as long as the kernels of that name as well: what a graph needs whose
session executes this op in every run. It goes with the session.

table: the handle.
schema: what a row is made of, in the text form of TableSchema.
shards: how many.
init_rows: rows for which the index of each shard is made large enough at once.
track_changes: whether the keys that change are noted from the start, and each snapshot can be a base.
max_rows: how many rows the shards may have together; -1 for any number.
max_bytes: how many bytes of memory their rows and indices may take together; -1 for any number. Each shard has
  an equal share.
on_full: what a full table does with the keys that it has no room for, unless it evicts: the call is an error,
  or the last keys of the batch are not inserted and their gradients dropped.
eviction: which rows leave to make room, and when they expire: '', 'lru', 'lfu', 'lfu half_life 100',
  'lfu epoch 100', 'lfu lru', 'norm', 'score' or 'score sum', and after it ' ttl 1000', in units of `now`;
  last ' steps' or ' microseconds', if rows may come whose times are the other. Shards that evict have equal shares of max_rows.
keep_evicted: how many rows that have left by the policy are kept for DynembTakeEvicted.
missing_value: what each number of a key without a row reads as; none: its initial value.
storage: where rows are: '', in memory; or lines as 'host 1000000 owner a reopen 1 keep_seed 0 direct 0 key_mod 1 part -' and '/path', in
  so many bytes of memory, and those for which there is no room in files in that folder, or in several. Tables of one
  owner may share it. Of a table on a GPU before these, or alone, 'device 1000000': in so many bytes of its memory. See StorageOptions of cc/core/storage/storage_options.h.
table_name: for errors.
)doc");

DYNEMB_TABLE(REGISTER_OP("DynembGpuTable")).Doc(R"doc(
DynembTable in the memory of a GPU: of one shard. The ops that take it follow it there.
)doc");

REGISTER_OP("DynembClear")
    .Input("table: resource")
    .SetIsStateful()
    .SetShapeFn(NoOutputs)
    .Doc("Removes all rows.");

REGISTER_OP("DynembResetOptimizer")
    .Input("table: resource")
    .SetIsStateful()
    .SetShapeFn(NoOutputs)
    .Doc(R"doc(
Removes the slots of all rows, so that another optimizer can train them. Deltas of earlier snapshots are refused.
)doc");

REGISTER_OP("DynembSize")
    .Input("table: resource")
    .Output("rows: int64")
    .Output("memory_bytes: int64")
    .SetIsStateful()
    .SetShapeFn(SizeShape)
    .Doc(R"doc(
Number of rows and bytes of memory of each shard.
)doc");

REGISTER_OP("DynembCounters")
    .Input("table: resource")
    .Output("names: string")
    .Output("counters: int64")
    .Output("by_shard: int64")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) {
      c->set_output(0, c->Vector(c->UnknownDim()));
      c->set_output(1, c->output(0));
      c->set_output(2, c->Matrix(c->UnknownDim(), c->UnknownDim()));
      return absl::OkStatus();
    })
    .Doc(R"doc(
What has happened to a table since it was made, over all shards. Numbers only grow, also over restores.

names: of the counters; TableCounters of cc/core/table/table.h says what each is.
by_shard: (shards, counters), those of each shard; 0 where the table alone counts.
)doc");

REGISTER_OP("DynembTakeEvicted")
    .Input("table: resource")
    .Output("keys: int64")
    .Output("values: dtype")
    .Output("dropped: int64")
    .Attr("dtype: " DYNEMB_VALUE_TYPES)
    .Attr("dim: int >= 1")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) {
      int64_t dim;
      TF_RETURN_IF_ERROR(c->GetAttr("dim", &dim));
      c->set_output(0, c->Vector(c->UnknownDim()));
      c->set_output(1, c->Matrix(c->UnknownDim(), c->MakeDim(dim)));
      c->set_output(2, c->Scalar());
      return absl::OkStatus();
    })
    .Doc(R"doc(
Takes the rows that have left by the eviction policy since the last time, those of earlier calls first.

keys: shape (n,).
values: shape (n, dim), as they were.
dropped: how many more there were than keep_evicted; the oldest are dropped.
)doc");

REGISTER_OP("DynembTierStats")
    .Input("table: resource")
    .Output("names: string")
    .Output("numbers: int64")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) {
      c->set_output(0, c->Vector(c->UnknownDim()));
      c->set_output(1, c->output(0));
      return absl::OkStatus();
    })
    .Doc(R"doc(
What there is in the tiers of a table, and what has moved between them since its shards were made.

names: of the numbers; TierStats of cc/core/storage/tiered_table.h and GpuTierStats of
  cc/gpu/table/gpu_tiered_table.h say what each is, and "flushed_step" is that of
  the last flush or -1. None for a table without storage.
)doc");

REGISTER_OP("DynembFlush")
    .Input("table: resource")
    .Input("step: int64")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) {
      ShapeHandle step;
      return c->WithRank(c->input(1), 0, &step);
    })
    .Doc(R"doc(
Has all rows of a table on disk, so that its folder can be opened again as of now; see cc/core/storage/flush.h.

step: what the flush is called; not negative.
)doc");

REGISTER_OP("DynembReopen")
    .Input("table: resource")
    .Input("shard_ids: int32")
    .Output("keys: int64")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) {
      c->set_output(0, c->Vector(c->UnknownDim()));
      return absl::OkStatus();
    })
    .Doc(R"doc(
Gives rows of the last flush of its folder to the shards of a table that was made with storage and 'key_mod 0', some in
each call. Until that is done the table is for nothing else.

shard_ids: for each of the keys that the call before gave, its shard; in the first call none.
keys: those of the next rows; none: all rows are there.
)doc");

REGISTER_OP("DynembDescribe")
    .Input("table: resource")
    .Output("name: string")
    .Output("schema: string")
    .Output("id: int64")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) {
      for (int output = 0; output < 3; ++output) c->set_output(output, c->Scalar());
      return absl::OkStatus();
    })
    .Doc(R"doc(
What a table is called and what its rows are made of, for who has nothing but its handle.

name: the attribute table_name of the op that made the table.
schema: in the text form of TableSchema.
id: drawn when the table was made; handles of one table have the same.
)doc");

}  // namespace
}  // namespace dynemb

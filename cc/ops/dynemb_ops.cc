// The ops, as TensorFlow sees them: names, types, shapes, documentation. No logic; the kernels are
// in cc/kernels. Those about bags are in bag_ops.cc.
//
// Conventions. `tables` are the shards of one variable, all of one schema. `keys` are int64 of any
// shape (...); rows that go with them have shape (..., dim). `shard_ids`, int32, has one shard
// number per key in the order of the flattened keys, or is empty where there is one table. `now` is
// a scalar that goes to the meta field `used` of the rows that are written, where the schema has
// one.
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace dynemb {
namespace {

using tensorflow::shape_inference::DimensionHandle;
using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

#define DYNEMB_VALUE_TYPES "{float, double, half, bfloat16, int8, int32, int64}"
#define DYNEMB_TRAINED_TYPES "{float, double, half, bfloat16}"

absl::Status NoOutputs(InferenceContext*) { return absl::OkStatus(); }

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

absl::Status ExportShape(InferenceContext* c) {
  const DimensionHandle rows = c->UnknownDim();
  c->set_output(0, c->Vector(rows));
  for (int part = 1; part < 4; ++part) c->set_output(part, c->Matrix(rows, c->UnknownDim()));
  c->set_output(4, c->Scalar());
  c->set_output(5, c->Vector(3));
  c->set_output(6, c->Vector(c->UnknownDim()));
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
  'lfu epoch 100', 'norm' or 'score', and after it ' ttl 1000', in units of `now`. Shards that evict have equal shares of max_rows.
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
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::ScalarShape)
    .Doc(R"doc(
What a DynembApply of these inputs does before any row changes: it checks them, gives rows the slots of the rule, and
sees whether the tables have room.

problem: which table has no room, and for what; empty if all have.
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
    .Attr("dtype: " DYNEMB_VALUE_TYPES)
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::UnchangedShape)
    .Doc(R"doc(
Passes on the weight that a DynembLookup takes, unless the table keeps another string of a key. Its gradient
runs DynembRecordKeyStrings: so strings are kept of what is trained, and not of what is only read.
)doc");

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

REGISTER_OP("DynembRemove")
    .Input("table: resource")
    .Input("keys: int64")
    .Input("shard_ids: int32")
    .SetIsStateful()
    .SetShapeFn(NoOutputs)
    .Doc("Removes the rows of keys; keys without a row are ignored.");

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

REGISTER_OP("DynembSnapshotBegin")
    .Input("path: string")
    .Output("save: resource")
    .Output("id: string")
    .Attr("durable: bool = true")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) {
      c->set_output(0, c->Scalar());
      c->set_output(1, c->Scalar());
      return absl::OkStatus();
    })
    .Doc(R"doc(
Begins a snapshot (cc/core/snapshot/FORMAT.md) in a folder, of which what is there stays until
DynembSnapshotCommit.

path: a folder; made if need be.
durable: whether the snapshot survives a crash of the machine, once it is committed; if not, damage is found when it
  is read. A kill of the process it survives either way.
save: until it is ended, nobody else can save into the folder.
id: of the snapshot, 16 hex digits.
)doc");

REGISTER_OP("DynembSnapshotWrite")
    .Input("tables: N * resource")
    .Input("names: string")
    .Input("remote: string")
    .Input("path: string")
    .Input("snapshot: string")
    .Input("base: string")
    .Output("part: string")
    .Attr("N: int >= 1")
    .Attr("writer: int >= 0 = 0")
    .Attr("writers: int >= 1 = 1")
    .Attr("follow: bool = false")
    .Attr("values_alone: bool = false")
    .Attr("durable: bool = true")
    .Attr("value_dtype: {float, double, half, bfloat16, int8} = DT_DOUBLE")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::ScalarShape)
    .Doc(R"doc(
Writes the rows of tables to files of a snapshot that has begun. Others may write to the tables meanwhile: of
each row, what it was at one moment.

names: shape (T,), the names in the snapshot of all tables that any writer writes.
remote: shape (T,), the schema of each table whose rows are not here; empty for `tables`, which come in order.
path: the folder of the snapshot.
snapshot: the id that DynembSnapshotBegin gave.
base: empty, or the id of an earlier snapshot: write what has changed since.
writer: which of several writers this is, each of which writes rows of its own.
writers: how many write the snapshot, in any processes.
follow: from here on follow changes, so that this snapshot can be a base.
values_alone: leave out slots and meta, which a server does not need.
durable: whether it survives a crash of the machine, as DynembSnapshotBegin says.
value_dtype: with values_alone, what wider floating values are rounded to; int8: with a scale for each row.
part: what has been written, for DynembSnapshotCommit.
)doc");

REGISTER_OP("DynembSnapshotCommit")
    .Input("save: resource")
    .Input("parts: string")
    .SetIsStateful()
    .SetShapeFn(NoOutputs)
    .Doc(R"doc(
Makes the snapshot be, in one step, in which it takes the place of an earlier one.

save: as DynembSnapshotBegin gave it.
parts: shape (writers,), what each writer has written, in their order.
)doc");

REGISTER_OP("DynembSnapshotEnd")
    .Input("save: resource")
    .SetIsStateful()
    .SetShapeFn(NoOutputs)
    .Doc(R"doc(
Ends a save, as does the end of its handle: the folder is free for the next one, and what has been written and not
committed is removed.

save: as DynembSnapshotBegin gave it.
)doc");

REGISTER_OP("DynembSnapshotKeys")
    .Input("path: string")
    .Input("snapshot: string")
    .Input("table_name: string")
    .Input("cursor: int64")
    .Output("keys: int64")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) {
      c->set_output(0, c->Vector(c->UnknownDim()));
      return absl::OkStatus();
    })
    .Doc(R"doc(
The keys of the rows that DynembSnapshotLoad loads next, for a partitioner.

They are not checked: the load does that before it uses what they led to.

path, snapshot, table_name, cursor: as of DynembSnapshotLoad.
keys: shape (n,), in order; empty if there are no more.
)doc");

REGISTER_OP("DynembSnapshotLoad")
    .Input("table: resource")
    .Input("path: string")
    .Input("snapshot: string")
    .Input("table_name: string")
    .Input("cursor: int64")
    .Input("shard_ids: int32")
    .Output("next: int64")
    .Output("done: bool")
    .Attr("key_mod: bool = false")
    .Attr("part: int >= 0 = 0")
    .Attr("parts: int >= 1 = 1")
    .Attr("by_hash: bool = false")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) {
      c->set_output(0, c->Vector(3));
      c->set_output(1, c->Scalar());
      return absl::OkStatus();
    })
    .Doc(R"doc(
Puts rows of one table of a snapshot into a table; first, at the beginning, removes the keys that it erases and
has no rows of.

Slots that the table does not have are left out.

path: the folder of the snapshot.
snapshot: its id. If another one has taken its place in the folder, that is an error, so that calls which
  belong together load rows of one snapshot.
table_name: the table's name in the snapshot.
cursor: where to begin: (0, 0, 0), or what the call before returned as next.
shard_ids: the shard of each key that DynembSnapshotKeys gives for this cursor.
key_mod: load all rows that are left, each into shard key mod shards, rounded down; shard_ids are not looked at.
part, parts, by_hash: leave out the rows that process `part` of so many does not have, by the rule of DynembGroupByProcess.
done: there is no more.
)doc");

REGISTER_OP("DynembSnapshotVerify")
    .Input("tables: N * resource")
    .Input("names: string")
    .Input("path: string")
    .Output("id: string")
    .Attr("N: int >= 1")
    .Attr("read: bool = true")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::ScalarShape)
    .Doc(R"doc(
Finds out, before anything changes, whether a delta can be loaded into tables: it must be undamaged from end to
end, have each table, with rows that fit it, and continue what it holds, where that is known.

names: shape (N,), the tables' names in the delta.
path: the folder of the delta.
read: whether it is read from end to end; otherwise only whether the tables can have it is found out.
id: of the delta.
)doc");

REGISTER_OP("DynembSnapshots")
    .Input("table: resource")
    .Output("snapshots: string")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) {
      c->set_output(0, c->Vector(c->UnknownDim()));
      return absl::OkStatus();
    })
    .Doc(R"doc(
The snapshots of which the table has all rows, so that deltas of them can be loaded.

snapshots: shape (n,), their ids: of the one that was loaded last and those that were saved since, with
  follow or as deltas.
)doc");

REGISTER_OP("DynembSetSnapshot")
    .Input("table: resource")
    .Input("snapshot: string")
    .Attr("follow: bool = false")
    .SetIsStateful()
    .SetShapeFn(NoOutputs)
    .Doc(R"doc(
Says that the table holds what a snapshot holds.

snapshot: the id of the snapshot.
follow: from here on follow changes, so that the snapshot can be the base of a delta.
)doc");

REGISTER_OP("DynembSwap")
    .Input("table: resource")
    .Input("other: resource")
    .SetIsStateful()
    .SetShapeFn(NoOutputs)
    .Doc(R"doc(
Exchanges the content of two tables in one step. They must have as many shards, and `other` rows that fit
`table`.
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

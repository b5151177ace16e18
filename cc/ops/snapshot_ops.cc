// Ops that save tables to snapshots and load snapshots into tables.
#include "cc/ops/op_schemas.h"

namespace dynemb {
namespace {

using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::NoOutputs;

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
follow: from here on track changes, so that this snapshot can be a base.
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
Atomically commits the snapshot, which takes the place of an earlier one.

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
part, parts, by_hash: leave out the rows that process `part` of so many does not have, by the rule of DynembGroupByProcess;
  without key_mod into a table of one shard, those of which shard_ids says another part.
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
follow: from here on track changes, so that the snapshot can be the base of a delta.
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

}  // namespace
}  // namespace dynemb

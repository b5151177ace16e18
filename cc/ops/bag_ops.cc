// The ops that look up and train bags of many features in many tables, as TensorFlow sees them. No
// logic; the kernels are in cc/kernels.
#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "tensorflow/core/common_runtime/input_colocation_exemption_registry.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace dynemb {
namespace {

using tensorflow::shape_inference::DimensionHandle;
using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

// The dims of the tables are those of the weights, which come first.
absl::Status LookupBagsShape(InferenceContext* c) {
  std::vector<int64_t> tables;
  std::vector<std::string> poolings;
  TF_RETURN_IF_ERROR(c->GetAttr("feature_tables", &tables));
  TF_RETURN_IF_ERROR(c->GetAttr("poolings", &poolings));
  // Pooled features stand side by side; others have all one dim.
  const bool pooled = !poolings.empty() && poolings[0] != "none";
  DimensionHandle columns = c->MakeDim(0);
  for (const int64_t table : tables) {
    if (table < 0 || table >= c->num_inputs()) {
      return absl::InvalidArgumentError("feature_tables: got a table that there is not");
    }
    ShapeHandle weight;
    TF_RETURN_IF_ERROR(c->WithRank(c->input(static_cast<int>(table)), 2, &weight));
    const DimensionHandle dim = c->Dim(weight, 1);
    if (pooled) {
      TF_RETURN_IF_ERROR(c->Add(columns, dim, &columns));
    } else {
      columns = dim;
    }
  }
  c->set_output(0, c->Matrix(c->UnknownDim(), columns));
  return absl::OkStatus();
}

// A dim that an attr gives; the kernels refuse those that cannot be.
DimensionHandle DimOf(InferenceContext* c, int64_t dim) {
  return dim >= 0 ? c->MakeDim(dim) : c->UnknownDim();
}

absl::Status SumBagsShape(InferenceContext* c) {
  std::vector<int64_t> dims;
  TF_RETURN_IF_ERROR(c->GetAttr("dims", &dims));
  const int tables = c->num_outputs() / 2;
  for (int t = 0; t < std::min<int>(tables, dims.size()); ++t) {
    const DimensionHandle distinct = c->UnknownDim();
    c->set_output(t, c->Vector(distinct));
    c->set_output(tables + t, c->Matrix(distinct, DimOf(c, dims[t])));
  }
  return absl::OkStatus();
}

// Weights that are never looked at may be on any devices.
namespace input_colocation_exemption_registration =
    tensorflow::input_colocation_exemption_registration;
REGISTER_INPUT_COLOCATION_EXEMPTION("DynembHandles");

REGISTER_OP("DynembHandles")
    .Input("handles: N * resource")
    .Output("weights: N * dtype")
    .Attr("N: int >= 1")
    .Attr("dtype: {float, double}")
    .Attr("dims: list(int)")
    .SetShapeFn([](InferenceContext* c) {
      std::vector<int64_t> dims;
      TF_RETURN_IF_ERROR(c->GetAttr("dims", &dims));
      for (int i = 0; i < std::min<int>(c->num_outputs(), dims.size()); ++i) {
        c->set_output(i, c->Matrix(0, DimOf(c, dims[i])));
      }
      return absl::OkStatus();
    })
    .Doc(R"doc(
The handle weights of several tables, for DynembLookupBags: one node, where reading each would be one for each.

handles: the resources of the weights, which are not looked at.
weights: of each, shape (0, dim). Their gradients are those of the handles.
dims: of each table.
)doc");

// What the ops about bags have in common, after their own inputs.
#define DYNEMB_BAGS(op)                                \
  op.Input("ids: int64")                               \
      .Input("lengths: length_type")                   \
      .Input("id_weights: dtype")                      \
      .Input("table_ids: int32")                       \
      .Input("strides: int64")                         \
      .Input("inverse: int64")                         \
      .Attr("dtype: {float, double}")                  \
      .Attr("length_type: {int32, int64}")             \
      .Attr("inputs: int >= 1")                        \
      .Attr("features: list(int)")                     \
      .Attr("feature_tables: list(int)")               \
      .Attr("poolings: list({'sum', 'mean', 'none'})") \
      .Attr("hash_sizes: list(int) = []")

DYNEMB_BAGS(
    REGISTER_OP("DynembLookupBags").Input("weights: T * dtype").Input("tables: T * resource"))
    .Output("values: dtype")
    .Attr("T: int >= 1")
    .Attr("repeats: list(int) = []")
    .SetIsStateful()
    .SetShapeFn(LookupBagsShape)
    .Doc(R"doc(
Reads the rows of bags of ids, of many features in many tables, and pools each to one vector. Never inserts.

weights: of the tables, from DynembHandles; not used, as in DynembLookup.
ids: shape (n,), those of each input feature together, and in it those of each bag.
lengths: how many ids each bag has, shape (features * bags,) or (sum of strides,).
id_weights: shape (n,), or (0,) for none.
table_ids: for each output feature in turn the table of each of its ids, in place of the feature's; or (0,).
strides: how many bags each input feature has, shape (inputs,), or (0,) if all have as many.
inverse: which bag of a feature each example has, shape (inputs, examples), or (0,): each has its own.
values: (examples, sum of the features' dims); if nothing is pooled, (ids of the features, dim).
inputs: number of input features.
features: of each output feature, its number in the input.
feature_tables: its table.
hash_sizes: of each table into how many rows ids are hashed, 0 for a row for each id; empty: of all tables 0.
poolings: sum: sum(w v); mean: sum(w v) / sum(w), zeros where the sum is 0; none: of all features or of no feature.
repeats: for the gradient, a DynembSumBags.
)doc");

DYNEMB_BAGS(REGISTER_OP("DynembRouteOverflow").Input("tables: T * resource"))
    .Output("new_table_ids: int32")
    .Attr("T: int >= 1")
    .Attr("limits: list(int)")
    .Attr("instead: list(int)")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) {
      c->set_output(0, c->Vector(c->UnknownDim()));
      return absl::OkStatus();
    })
    .Doc(R"doc(
The table_ids of a lookup whose tables have limits: ids without a row are in another table once a table is full.
Of those that a batch has, the first get what room there is.

limits: how many rows each table may have; -1 for any number.
instead: the table of the others, of each table that has a limit.
new_table_ids: the input table_ids of the ops about bags.
)doc");

DYNEMB_BAGS(REGISTER_OP("DynembSumBags").Input("gradient: dtype"))
    .Output("keys: T * int64")
    .Output("sums: T * dtype")
    .Attr("T: int >= 1")
    .Attr("dims: list(int)")
    .Attr("repeats: list(int) = []")
    .SetShapeFn(SumBagsShape)
    .Doc(R"doc(
The gradient of DynembLookupBags to its tables: for each the distinct keys, and the sum of what each key's
vectors got.

gradient: of the values.
keys: shape (m,), in the order of first appearance.
sums: shape (m, dim).
dims: of each table.
repeats: of each table, as of DynembSumByKey; empty: of all 1.
)doc");

DYNEMB_BAGS(REGISTER_OP("DynembApplyBags")
                .Input("tables: N * resource")
                .Input("hyper: double")
                .Input("now: int64")
                .Input("candidates: C * resource")
                .Input("gradient: dtype"))
    .Attr("N: int >= 1")
    .Attr("C: int >= 0")
    .Attr("trained: list(int)")
    .Attr("dims: list(int)")
    .Attr("rule: string")
    .Attr("slot_initial: float = 0.0")
    .Attr("admission: list(string)")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext*) { return absl::OkStatus(); })
    .Doc(R"doc(
DynembApply on what DynembSumBags would give, without it: tables add up the gradient where it is.

tables: those to be trained.
trained: which of the tables of the lookup they are.
dims: of all tables of the lookup.
admission: as of DynembApply, but 'given'.
)doc");

DYNEMB_BAGS(REGISTER_OP("DynembBagWeightsGradient")
                .Input("tables: T * resource")
                .Input("gradient: dtype")
                .Input("values: dtype"))
    .Output("id_weights_gradient: dtype")
    .Attr("T: int >= 1")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) {
      c->set_output(0, c->Vector(c->UnknownDim()));
      return absl::OkStatus();
    })
    .Doc(R"doc(
The gradient of DynembLookupBags to the weights of ids.

gradient, values: of the lookup.
id_weights_gradient: shape (n,).
)doc");

}  // namespace
}  // namespace dynemb

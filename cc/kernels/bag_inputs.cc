#include "cc/kernels/bag_inputs.h"

#include <string>
#include <utility>

namespace dynemb {

using tensorflow::OpInputList;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;

absl::Status BagInputs::Init(OpKernelConstruction* context) {
  std::vector<int64_t> features, tables;
  std::vector<std::string> poolings;
  TF_RETURN_IF_ERROR(context->GetAttr("dtype", &dtype_));
  TF_RETURN_IF_ERROR(context->GetAttr("inputs", &inputs_));
  TF_RETURN_IF_ERROR(context->GetAttr("features", &features));
  TF_RETURN_IF_ERROR(context->GetAttr("feature_tables", &tables));
  TF_RETURN_IF_ERROR(context->GetAttr("poolings", &poolings));
  TF_RETURN_IF_ERROR(context->GetAttr("hash_sizes", &hash_sizes_));
  for (const int64_t size : hash_sizes_) {
    if (size < 0)
      return ToTensorFlow(InvalidArgument("hash_sizes: got ", size, ", want 0 or more"));
  }
  if (features.empty() || tables.size() != features.size() || poolings.size() != features.size()) {
    return ToTensorFlow(InvalidArgument("features: got ", features.size(), " with ", tables.size(),
                                        " tables and ", poolings.size(),
                                        " poolings, want one or more and as many of each"));
  }
  for (size_t f = 0; f < features.size(); ++f) {
    const Pooling pooling = poolings[f] == "sum"    ? Pooling::kSum
                            : poolings[f] == "mean" ? Pooling::kMean
                                                    : Pooling::kNone;
    features_.push_back({features[f], tables[f], pooling});
  }
  return absl::OkStatus();
}

absl::Status BagInputs::Get(OpKernelContext* context, const std::vector<int64_t>& dims,
                            Bags* bags) const {
  std::vector<BagTable> tables;
  for (const int64_t dim : dims) tables.push_back({{}, ToCore(dtype_), dim});
  return Get(context, std::move(tables), bags);
}

absl::Status BagInputs::Get(OpKernelContext* context, std::vector<TableInput>* held,
                            Bags* bags) const {
  OpInputList handles;
  TF_RETURN_IF_ERROR(context->input_list("tables", &handles));
  TF_RETURN_IF_ERROR(GetTablesOf(context, TensorsOf(handles), true, held));
  std::vector<BagTable> tables;
  for (const TableInput& table : *held) {
    tables.push_back(
        {table.readers(MemorySpace::kHost), table.schema.value_dtype, table.schema.dim});
  }
  return Get(context, std::move(tables), bags);
}

absl::Status BagInputs::Get(OpKernelContext* context, std::vector<BagTable> tables,
                            Bags* bags) const {
  const Tensor *ids, *lengths, *weights, *table_ids, *strides, *inverse;
  TF_RETURN_IF_ERROR(context->input("ids", &ids));
  TF_RETURN_IF_ERROR(context->input("lengths", &lengths));
  TF_RETURN_IF_ERROR(context->input("id_weights", &weights));
  TF_RETURN_IF_ERROR(context->input("table_ids", &table_ids));
  TF_RETURN_IF_ERROR(context->input("strides", &strides));
  TF_RETURN_IF_ERROR(context->input("inverse", &inverse));
  const int64_t n = ids->NumElements();
  if (!hash_sizes_.empty() && hash_sizes_.size() != tables.size()) {
    return ToTensorFlow(InvalidArgument("hash_sizes: got ", hash_sizes_.size(),
                                        ", want one per table, ", tables.size(), ", or none"));
  }
  for (size_t t = 0; t < hash_sizes_.size(); ++t) tables[t].hash_size = hash_sizes_[t];
  if (weights->NumElements() != 0 && weights->NumElements() != n) {
    return ToTensorFlow(InvalidArgument("id_weights: got ", weights->NumElements(),
                                        ", want one per id, ", n, ", or none"));
  }
  if (inverse->NumElements() > 0 && (inverse->dims() != 2 || inverse->dim_size(0) != inputs_)) {
    return ToTensorFlow(InvalidArgument("inverse: got shape ", inverse->shape().DebugString(),
                                        ", want (", inputs_, ", examples)"));
  }
  BagInput input;
  input.features = inputs_;
  input.ids = {ids->flat<int64_t>().data(), n};
  if (weights->NumElements() > 0) input.weights = weights->tensor_data().data();
  input.table_ids = {table_ids->flat<int32_t>().data(), table_ids->NumElements()};
  input.strides = {strides->flat<int64_t>().data(), strides->NumElements()};
  input.inverse = {inverse->flat<int64_t>().data(), inverse->NumElements()};
  const auto make = [&](auto number) {
    using Length = decltype(number);
    return Bags::Make(input,
                      Span<const Length>(lengths->flat<Length>().data(), lengths->NumElements()),
                      features_, std::move(tables), ToCore(dtype_), bags);
  };
  return ToTensorFlow(lengths->dtype() == tensorflow::DT_INT32 ? make(int32_t()) : make(int64_t()));
}

absl::Status GetLikeOutput(OpKernelContext* context, const char* name, const Bags& bags,
                           const char** numbers) {
  const Tensor* tensor;
  TF_RETURN_IF_ERROR(context->input(name, &tensor));
  const TensorShape want({bags.rows(), bags.columns()});
  if (tensor->shape() != want) {
    return ToTensorFlow(InvalidArgument(name, ": got shape ", tensor->shape().DebugString(),
                                        ", want that of the lookup's values, ",
                                        want.DebugString()));
  }
  *numbers = tensor->tensor_data().data();
  return absl::OkStatus();
}

}  // namespace dynemb

#include "cc/kernels/gpu_bags.h"

#include <cstring>
#include <utility>

#include "cc/core/lookup/widen.h"

namespace dynemb {

using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;

namespace {

// Arrays of the host, laid out one after the other to go to the GPU in one copy.
class StagingBuffer {
 public:
  // The place of the array; what is there now.
  template <typename T>
  int64_t Add(Span<const T> array) {
    constexpr int64_t kAlignment = 64;
    const auto place =
        (static_cast<int64_t>(bytes_.size()) + kAlignment - 1) / kAlignment * kAlignment;
    bytes_.resize(place + array.size * sizeof(T));
    if (array.size > 0) std::memcpy(&bytes_[place], array.data, array.size * sizeof(T));
    return place;
  }

  // Once.
  absl::Status Send(OpKernelContext* context, const DeviceContext& core, Tensor* there) {
    const auto size = static_cast<int64_t>(bytes_.size());
    TF_RETURN_IF_ERROR(context->allocate_temp(tensorflow::DT_UINT8, TensorShape({size}), there));
    return ToTensorFlow(CopyToGpu(core, there->data(), std::move(bytes_)));
  }

 private:
  std::vector<char> bytes_;
};

template <typename T>
Span<const T> At(const DeviceContext& core, const Tensor& there, int64_t place, int64_t size) {
  return {reinterpret_cast<const T*>(static_cast<const char*>(there.data()) + place), size,
          core.space};
}

// The ids of a feature, in the order of its rows.
struct FeatureIds {
  explicit FeatureIds(const Bags& bags, int64_t f) : weighted(bags.input().weights != nullptr) {
    const BagTable& table = bags.table(bags.feature(f).table);
    const bool single = bags.feature(f).pooling == Pooling::kNone;
    for (int64_t row = 0; row < bags.rows(f); ++row) {
      const Bags::Bag bag = bags.bag(f, row);
      begins.push_back(static_cast<int64_t>(keys.size()));
      for (int64_t id = bag.begin; id < bag.end; ++id) {
        keys.push_back(table.key_of(bags.input().ids[id]));
        if (weighted && !single) weights.push_back(bags.weight(id));
      }
    }
    begins.push_back(static_cast<int64_t>(keys.size()));
  }

  bool weighted;
  std::vector<Key> keys;
  std::vector<int64_t> begins;
  std::vector<double> weights;
};

// Reads with the host and copies the result.
absl::Status FindBagsOnHost(OpKernelContext* context, const DeviceContext& core, const Bags& bags,
                            char* out) {
  std::vector<char> values(bags.rows() * bags.columns() * SizeOf(bags.dtype()));
  TF_RETURN_IF_ERROR(ToTensorFlow(FindBags(PoolContext(context), bags, values.data())));
  return ToTensorFlow(CopyToGpu(core, out, std::move(values)));
}

}  // namespace

absl::Status FindBagsOnGpu(OpKernelContext* context, const DeviceContext& core,
                           const std::vector<TableInput>& tables, const Bags& bags, char* out) {
  if (!bags.input().table_ids.empty()) return FindBagsOnHost(context, core, bags, out);
  struct Places {
    int64_t keys, begins, weights;
    int64_t key_count, begin_count, weight_count;
  };
  StagingBuffer staging;
  std::vector<Places> places;
  for (int64_t f = 0; f < bags.feature_count(); ++f) {
    const FeatureIds ids(bags, f);
    const DType dtype = GradientDType(bags.table(bags.feature(f).table).value_dtype);
    Places of;
    of.keys = staging.Add<Key>(ids.keys);
    of.begins = staging.Add<int64_t>(ids.begins);
    if (dtype == DType::kFloat64) {
      of.weights = staging.Add<double>(ids.weights);
    } else {
      of.weights = staging.Add<float>(std::vector<float>(ids.weights.begin(), ids.weights.end()));
    }
    of.key_count = static_cast<int64_t>(ids.keys.size());
    of.begin_count = static_cast<int64_t>(ids.begins.size());
    of.weight_count = static_cast<int64_t>(ids.weights.size());
    places.push_back(of);
  }
  Tensor there;
  TF_RETURN_IF_ERROR(staging.Send(context, core, &there));
  for (int64_t f = 0; f < bags.feature_count(); ++f) {
    const Places& of = places[f];
    const BagFeature& feature = bags.feature(f);
    const TableInput& table = tables[feature.table];
    const int64_t dim = table.schema.dim;
    const DType dtype = GradientDType(table.schema.value_dtype);
    const Rows rows(out + bags.offset(f, 0), bags.rows(f), bags.columns() * SizeOf(bags.dtype()),
                    core.space);
    DeviceBags of_feature;
    of_feature.ids = At<Key>(core, there, of.keys, of.key_count);
    of_feature.begins = At<int64_t>(core, there, of.begins, of.begin_count);
    of_feature.pooling = feature.pooling == Pooling::kMean ? Pooling::kMean : Pooling::kSum;
    if (of.weight_count > 0) {
      of_feature.weights = At<char>(core, there, of.weights, 0).data;
    }
    const Rows narrow = NarrowRows(rows, dtype, bags.dtype(), dim);
    TF_RETURN_IF_ERROR(
        ToTensorFlow(FindBagsInPlace(table.in_place[0].get(), core, of_feature, narrow)));
    TF_RETURN_IF_ERROR(ToTensorFlow(WidenInPlace(core, rows, dtype, bags.dtype(), dim)));
  }
  return absl::OkStatus();
}

absl::Status GpuBagGradient::Copy(OpKernelContext* context, const DeviceContext& core,
                                  const BagGradient& from, const char* gradient) {
  const ConstRows rows = from.rows(gradient);
  const int64_t n = from.keys().size;
  StagingBuffer staging;
  const int64_t keys = staging.Add<Key>(from.keys());
  const int64_t scales = staging.Add<double>(from.scales());
  const int64_t offsets = staging.Add<int64_t>({rows.offsets, rows.offsets == nullptr ? 0 : n});
  TF_RETURN_IF_ERROR(staging.Send(context, core, &held_));
  keys_ = At<Key>(core, held_, keys, n);
  scales_ = At<double>(core, held_, scales, from.scales().size);
  rows_ = rows;
  rows_.space = core.space;
  if (rows.offsets != nullptr) rows_.offsets = At<int64_t>(core, held_, offsets, n).data;
  return absl::OkStatus();
}

}  // namespace dynemb

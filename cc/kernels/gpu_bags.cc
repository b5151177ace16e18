#include "cc/kernels/gpu_bags.h"

#include <algorithm>
#include <cstring>

#include "cc/core/lookup/widen.h"

namespace dynemb {

using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;

namespace {

constexpr int64_t kNanosecondsPerId = 4;  // to lay out

// Arrays of the host, laid out one after the other in pinned memory to go to the GPU in one copy.
class StagingBuffer {
 public:
  // The place of an array of so many; all are added before the first is written.
  template <typename T>
  int64_t Add(int64_t size) {
    constexpr int64_t kAlignment = 64;
    const int64_t place = (bytes_ + kAlignment - 1) / kAlignment * kAlignment;
    bytes_ = place + size * static_cast<int64_t>(sizeof(T));
    return place;
  }
  absl::Status Allocate(OpKernelContext* context) {
    tensorflow::AllocatorAttributes pinned;
    pinned.set_on_host(true);
    pinned.set_gpu_compatible(true);
    return context->allocate_temp(tensorflow::DT_UINT8, TensorShape({bytes_}), &here_, pinned);
  }
  template <typename T>
  T* At(int64_t place) const {
    return reinterpret_cast<T*>(static_cast<char*>(here_.data()) + place);
  }
  template <typename T>
  void Write(int64_t place, Span<const T> array) const {
    if (array.size > 0) std::memcpy(At<T>(place), array.data, array.size * sizeof(T));
  }

  const Tensor& tensor() const { return here_; }
  absl::Status Send(OpKernelContext* context, const DeviceContext& core, Tensor* there) const {
    TF_RETURN_IF_ERROR(context->allocate_temp(tensorflow::DT_UINT8, here_.shape(), there));
    return ToTensorFlow(CopyToGpu(core, there->data(), here_));
  }

 private:
  int64_t bytes_ = 0;
  Tensor here_;
};

template <typename T>
Span<const T> At(const DeviceContext& core, const Tensor& there, int64_t place, int64_t size) {
  return {reinterpret_cast<const T*>(static_cast<const char*>(there.data()) + place), size,
          core.space};
}

// The ids of a feature in the order of its rows, where each row's begin, and their weights.
class FeatureIds {
 public:
  FeatureIds(const Bags& bags, int64_t f, StagingBuffer* staging)
      : bags_(bags),
        f_(f),
        dtype_(GradientDType(bags.table(bags.feature(f).table).value_dtype)),
        weighted_(bags.input().weights != nullptr && bags.feature(f).pooling != Pooling::kNone),
        count_(CountIds()) {
    keys_ = staging->Add<Key>(count_);
    begins_ = staging->Add<int64_t>(bags.rows(f) + 1);
    if (!weighted_) return;
    weights_ =
        dtype_ == DType::kFloat64 ? staging->Add<double>(count_) : staging->Add<float>(count_);
  }

  void Write(const StagingBuffer& staging) const {
    const BagTable& table = bags_.table(bags_.feature(f_).table);
    Key* const keys = staging.At<Key>(keys_);
    int64_t* const begins = staging.At<int64_t>(begins_);
    int64_t next = 0;
    for (int64_t row = 0; row < bags_.rows(f_); ++row) {
      const Bags::Bag bag = bags_.bag(f_, row);
      begins[row] = next;
      for (int64_t id = bag.begin; id < bag.end; ++id, ++next) {
        keys[next] = table.key_of(bags_.input().ids[id]);
        if (!weighted_) continue;
        if (dtype_ == DType::kFloat64) {
          staging.At<double>(weights_)[next] = bags_.weight(id);
        } else {
          staging.At<float>(weights_)[next] = static_cast<float>(bags_.weight(id));
        }
      }
    }
    begins[bags_.rows(f_)] = next;
  }

  DeviceBags There(const DeviceContext& core, const Tensor& there) const {
    DeviceBags of;
    of.ids = At<Key>(core, there, keys_, count_);
    of.begins = At<int64_t>(core, there, begins_, bags_.rows(f_) + 1);
    of.pooling = bags_.feature(f_).pooling == Pooling::kMean ? Pooling::kMean : Pooling::kSum;
    if (weighted_ && count_ > 0) of.weights = At<char>(core, there, weights_, 0).data;
    return of;
  }

  int64_t size() const { return count_; }

 private:
  int64_t CountIds() const {
    if (bags_.input().inverse.empty()) return bags_.ids(f_).second - bags_.ids(f_).first;
    int64_t count = 0;
    for (int64_t row = 0; row < bags_.rows(f_); ++row) {
      const Bags::Bag bag = bags_.bag(f_, row);
      count += bag.end - bag.begin;
    }
    return count;
  }

  const Bags& bags_;
  const int64_t f_;
  const DType dtype_;
  const bool weighted_;
  const int64_t count_;
  int64_t keys_ = 0, begins_ = 0, weights_ = 0;  // in the buffer
};

// Reads with the host and copies the result.
absl::Status FindBagsOnHost(OpKernelContext* context, const DeviceContext& core, const Bags& bags,
                            char* out) {
  StagingBuffer staging;
  const int64_t values = staging.Add<char>(bags.rows() * bags.columns() * SizeOf(bags.dtype()));
  TF_RETURN_IF_ERROR(staging.Allocate(context));
  TF_RETURN_IF_ERROR(ToTensorFlow(FindBags(PoolContext(context), bags, staging.At<char>(values))));
  return ToTensorFlow(CopyToGpu(core, out, staging.tensor()));
}

}  // namespace

absl::Status FindBagsOnGpu(OpKernelContext* context, const DeviceContext& core,
                           const std::vector<TableInput>& tables, const Bags& bags, char* out) {
  if (!bags.input().table_ids.empty()) return FindBagsOnHost(context, core, bags, out);
  StagingBuffer staging;
  std::vector<FeatureIds> features;
  int64_t ids = 0;
  for (int64_t f = 0; f < bags.feature_count(); ++f) {
    features.emplace_back(bags, f, &staging);
    ids += features.back().size() + bags.rows(f);
  }
  TF_RETURN_IF_ERROR(staging.Allocate(context));
  const int64_t ns = kNanosecondsPerId * ids / std::max<int64_t>(bags.feature_count(), 1);
  TF_RETURN_IF_ERROR(ToTensorFlow(core.executor->Run(
      bags.feature_count(), ns, [&](int64_t f) { features[f].Write(staging); })));
  Tensor there;
  TF_RETURN_IF_ERROR(staging.Send(context, core, &there));
  const auto schema = [&](int64_t f) -> const TableSchema& {
    return tables[bags.feature(f).table].schema;
  };
  std::vector<Rows> rows;
  std::vector<BagsOfTable> calls;
  for (int64_t f = 0; f < bags.feature_count(); ++f) {
    rows.emplace_back(out + bags.offset(f, 0), bags.rows(f), bags.columns() * SizeOf(bags.dtype()),
                      core.space);
    calls.push_back(
        {static_cast<const GpuTable*>(tables[bags.feature(f).table].in_place[0].get()),
         features[f].There(core, there),
         NarrowRows(rows[f], GradientDType(schema(f).value_dtype), bags.dtype(), schema(f).dim)});
  }
  TF_RETURN_IF_ERROR(ToTensorFlow(FindBagsInPlace(core, calls)));
  for (int64_t f = 0; f < bags.feature_count(); ++f) {
    TF_RETURN_IF_ERROR(ToTensorFlow(WidenInPlace(
        core, rows[f], GradientDType(schema(f).value_dtype), bags.dtype(), schema(f).dim)));
  }
  return absl::OkStatus();
}

absl::Status CopyGradients(OpKernelContext* context, const DeviceContext& core,
                           const std::vector<BagGradient>& from, const char* gradient, Tensor* held,
                           std::vector<GpuBagGradient>* to) {
  struct Places {
    int64_t keys, scales, offsets;
  };
  StagingBuffer staging;
  std::vector<Places> places;
  int64_t ids = 0;
  for (const BagGradient& of_table : from) {
    const int64_t n = of_table.keys().size;
    const int64_t offsets = of_table.rows(gradient).offsets == nullptr ? 0 : n;
    places.push_back({staging.Add<Key>(n), staging.Add<double>(of_table.scales().size),
                      staging.Add<int64_t>(offsets)});
    ids += n;
  }
  TF_RETURN_IF_ERROR(staging.Allocate(context));
  const auto tables = static_cast<int64_t>(from.size());
  const int64_t ns = kNanosecondsPerId * ids / std::max<int64_t>(tables, 1);
  TF_RETURN_IF_ERROR(ToTensorFlow(core.executor->Run(tables, ns, [&](int64_t t) {
    const Span<const Key> keys = from[t].keys();
    const int64_t* const offsets = from[t].rows(gradient).offsets;
    staging.Write(places[t].keys, keys);
    staging.Write(places[t].scales, from[t].scales());
    staging.Write(places[t].offsets,
                  Span<const int64_t>(offsets, offsets == nullptr ? 0 : keys.size));
  })));
  TF_RETURN_IF_ERROR(staging.Send(context, core, held));
  for (int64_t t = 0; t < tables; ++t) {
    const int64_t n = from[t].keys().size;
    GpuBagGradient of_table = {At<Key>(core, *held, places[t].keys, n), from[t].rows(gradient),
                               At<double>(core, *held, places[t].scales, from[t].scales().size)};
    of_table.rows.space = core.space;
    if (of_table.rows.offsets != nullptr) {
      of_table.rows.offsets = At<int64_t>(core, *held, places[t].offsets, n).data;
    }
    to->push_back(of_table);
  }
  return absl::OkStatus();
}

}  // namespace dynemb

#include "examples/online/server/json_tensors.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "tensorflow/core/framework/partial_tensor_shape.h"
#include "tensorflow/core/framework/types.h"

namespace model_server {
namespace {

using tensorflow::DataType;
using tensorflow::Tensor;
using tensorflow::tstring;

bool IsBytes(const Json& value) {
  return value.is_object() && value.size() == 1 && value.contains("b64") &&
         value["b64"].is_string();
}

// A scalar of JSON as one of a tensor; false if it is none of that dtype.
bool Read(const Json& value, bool* to) {
  if (!value.is_boolean()) return false;
  *to = value.get<bool>();
  return true;
}

bool Read(const Json& value, float* to) {
  if (!value.is_number()) return false;
  *to = static_cast<float>(value.get<double>());
  return std::isfinite(*to);
}

bool Read(const Json& value, double* to) {
  if (!value.is_number()) return false;
  *to = value.get<double>();
  return std::isfinite(*to);
}

bool Read(const Json& value, int64_t* to) {
  // What the parser calls unsigned may be too large.
  if (!value.is_number_integer()) return false;
  if (value.is_number_unsigned() &&
      value.get<uint64_t>() > uint64_t{std::numeric_limits<int64_t>::max()}) {
    return false;
  }
  *to = value.get<int64_t>();
  return true;
}

bool Read(const Json& value, int32_t* to) {
  int64_t wide = 0;
  if (!Read(value, &wide)) return false;
  *to = static_cast<int32_t>(wide);
  return *to == wide;
}

bool Read(const Json& value, tstring* to) {
  if (value.is_string()) {
    *to = value.get_ref<const std::string&>();
    return true;
  }
  std::string bytes;
  if (!IsBytes(value) ||
      !absl::Base64Unescape(value["b64"].get_ref<const std::string&>(), &bytes)) {
    return false;
  }
  *to = bytes;
  return true;
}

// What a message shows of a value that may be large.
std::string Shortened(const Json& value) {
  std::string text = value.dump(-1, ' ', false, Json::error_handler_t::replace);
  if (text.size() > 60) text.replace(57, std::string::npos, "...");
  return text;
}

// The lengths of nested lists, by the first of each.
std::vector<int64_t> LengthsOf(const Json& value) {
  std::vector<int64_t> lengths;
  for (const Json* part = &value; part->is_array(); part = &part->front()) {
    lengths.push_back(static_cast<int64_t>(part->size()));
    if (part->empty()) break;
  }
  return lengths;
}

// Appends what is in the lists below `depth`. Before a tensor is allocated: what a body of some
// bytes says of its shape may be far larger than what it has.
absl::Status AppendScalars(const Json& value, const std::vector<int64_t>& lengths, size_t depth,
                           const std::string& name, std::vector<const Json*>* scalars) {
  if (depth == lengths.size()) {
    scalars->push_back(&value);
    return absl::OkStatus();
  }
  if (!value.is_array() || static_cast<int64_t>(value.size()) != lengths[depth]) {
    return absl::InvalidArgumentError(absl::StrCat(name, ": got ", Shortened(value),
                                                   " beside lists of ", lengths[depth],
                                                   ", want lists of one length"));
  }
  for (const Json& part : value) {
    if (absl::Status status = AppendScalars(part, lengths, depth + 1, name, scalars);
        !status.ok()) {
      return status;
    }
  }
  return absl::OkStatus();
}

template <typename T>
absl::Status Fill(const std::vector<const Json*>& scalars, const std::string& name,
                  Tensor* tensor) {
  T* to = tensor->flat<T>().data();
  for (const Json* scalar : scalars) {
    if (!Read(*scalar, to++)) {
      return absl::InvalidArgumentError(absl::StrCat(name, ": got ", Shortened(*scalar), ", want ",
                                                     tensorflow::DataTypeString(tensor->dtype())));
    }
  }
  return absl::OkStatus();
}

template <typename T>
Json Scalar(const T& value, bool) {
  return value;
}

Json Scalar(const tstring& value, bool as_bytes) {
  if (as_bytes) return {{"b64", absl::Base64Escape(std::string(value))}};
  return std::string(value);
}

template <typename T>
Json Lists(const Tensor& tensor, int depth, bool as_bytes, const T** from) {
  if (depth == tensor.dims()) return Scalar(*(*from)++, as_bytes);
  Json list = Json::array();
  for (int64_t i = 0; i < tensor.dim_size(depth); ++i) {
    list.push_back(Lists(tensor, depth + 1, as_bytes, from));
  }
  return list;
}

template <typename T>
Json AllLists(const Tensor& tensor, bool as_bytes) {
  const T* from = tensor.flat<T>().data();
  return Lists(tensor, 0, as_bytes, &from);
}

absl::Status Unsupported(const std::string& what, DataType dtype) {
  return absl::UnimplementedError(
      absl::StrCat(what, ": got the dtype ", tensorflow::DataTypeString(dtype),
                   ", want float, double, int32, int64, bool or string"));
}

}  // namespace

absl::Status ToTensor(const Json& value, const tensorflow::TensorInfo& info,
                      const std::string& name, Tensor* tensor) {
  const std::vector<int64_t> lengths = LengthsOf(value);
  if (lengths.size() > tensorflow::TensorShape::MaxDimensions()) {
    return absl::InvalidArgumentError(absl::StrCat(name, ": got lists too deep for a tensor"));
  }
  std::vector<const Json*> scalars;
  if (absl::Status status = AppendScalars(value, lengths, 0, name, &scalars); !status.ok()) {
    return status;
  }
  const tensorflow::TensorShape shape(lengths);
  const tensorflow::PartialTensorShape wanted(info.tensor_shape());
  if (!wanted.IsCompatibleWith(shape)) {
    return absl::InvalidArgumentError(absl::StrCat(name, ": got the shape ", shape.DebugString(),
                                                   ", want ", wanted.DebugString()));
  }
  *tensor = Tensor(info.dtype(), shape);
  switch (info.dtype()) {
    case tensorflow::DT_FLOAT:
      return Fill<float>(scalars, name, tensor);
    case tensorflow::DT_DOUBLE:
      return Fill<double>(scalars, name, tensor);
    case tensorflow::DT_INT32:
      return Fill<int32_t>(scalars, name, tensor);
    case tensorflow::DT_INT64:
      return Fill<int64_t>(scalars, name, tensor);
    case tensorflow::DT_BOOL:
      return Fill<bool>(scalars, name, tensor);
    case tensorflow::DT_STRING:
      return Fill<tstring>(scalars, name, tensor);
    default:
      return Unsupported(name, info.dtype());
  }
}

absl::Status ToJson(const Tensor& tensor, bool as_bytes, Json* value) {
  switch (tensor.dtype()) {
    case tensorflow::DT_FLOAT:
      *value = AllLists<float>(tensor, as_bytes);
      break;
    case tensorflow::DT_DOUBLE:
      *value = AllLists<double>(tensor, as_bytes);
      break;
    case tensorflow::DT_INT32:
      *value = AllLists<int32_t>(tensor, as_bytes);
      break;
    case tensorflow::DT_INT64:
      *value = AllLists<int64_t>(tensor, as_bytes);
      break;
    case tensorflow::DT_BOOL:
      *value = AllLists<bool>(tensor, as_bytes);
      break;
    case tensorflow::DT_STRING:
      *value = AllLists<tstring>(tensor, as_bytes);
      break;
    default:
      return Unsupported("output", tensor.dtype());
  }
  return absl::OkStatus();
}

}  // namespace model_server

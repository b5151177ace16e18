// Tensors from JSON and back, in the form of TensorFlow Serving's REST API: nested lists, in
// row-major order. Strings that are no UTF-8 are objects {"b64": "..."}. Integers are exact: int64
// ids do not go through a double. Floats are the nearest that the dtype has. A number beyond the
// range of the dtype is an error.
#ifndef TF_DYNEMB_EXAMPLES_ONLINE_SERVER_JSON_TENSORS_H_
#define TF_DYNEMB_EXAMPLES_ONLINE_SERVER_JSON_TENSORS_H_

#include <string>

#include "absl/status/status.h"
#include "nlohmann/json.hpp"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/protobuf/meta_graph.pb.h"

namespace model_server {

using Json = nlohmann::json;

// The tensor of an input of a signature. `name` is what messages call it. INVALID_ARGUMENT: lists
// of unequal lengths, a shape that `info` does not allow, a value that is not of its dtype.
// UNIMPLEMENTED: a dtype other than float, double, int32, int64, bool and string.
absl::Status ToTensor(const Json& value, const tensorflow::TensorInfo& info,
                      const std::string& name, tensorflow::Tensor* tensor);

// The nested lists of a tensor of one of these dtypes. `as_bytes`: strings become {"b64": ...}.
// NaN and infinities, which JSON does not have, become null when they are printed.
absl::Status ToJson(const tensorflow::Tensor& tensor, bool as_bytes, Json* value);

}  // namespace model_server

#endif  // TF_DYNEMB_EXAMPLES_ONLINE_SERVER_JSON_TENSORS_H_

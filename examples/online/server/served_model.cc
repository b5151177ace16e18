#include "examples/online/server/served_model.h"

#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tensorflow/core/framework/types.h"
#include "tensorflow/core/public/session.h"

namespace model_server {
namespace {

using tensorflow::SignatureDef;
using tensorflow::Tensor;

// What requests nest at most: the dimensions of a tensor and what is around them. Copying and
// printing JSON is recursive.
constexpr int kDeepest = 260;

bool IsTooDeep(const std::string& body) {
  int depth = 0;
  bool in_string = false;
  for (size_t i = 0; i < body.size(); ++i) {
    const char c = body[i];
    if (c == '"') in_string = !in_string;
    if (in_string) {
      if (c == '\\') ++i;
    } else if (c == '[' || c == '{') {
      if (++depth > kDeepest) return true;
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
  return false;
}

// The columns of rows: {"user": [1, 2]} of [{"user": 1}, {"user": 2}]. Where the signature has one
// input alone, rows may be its values. What is in `rows` is moved.
absl::Status ToColumns(Json rows, const SignatureDef& signature, Json* columns) {
  if (!rows.is_array() || rows.empty()) {
    return absl::InvalidArgumentError("instances: got no list with something in it");
  }
  *columns = Json::object();
  for (Json& row : rows) {
    const bool is_named = row.is_object() && !row.contains("b64");
    if (!is_named && signature.inputs().size() != 1) {
      return absl::InvalidArgumentError(absl::StrCat("instances: want objects, for the model has ",
                                                     signature.inputs().size(), " inputs"));
    }
    if (!is_named) {
      (*columns)[signature.inputs().begin()->first].push_back(std::move(row));
      continue;
    }
    for (const auto& [name, value] : row.items()) (*columns)[name].push_back(std::move(value));
  }
  for (const auto& [name, column] : columns->items()) {
    if (column.size() != rows.size()) {
      return absl::InvalidArgumentError(absl::StrCat("instances: got ", name, " in ", column.size(),
                                                     " of ", rows.size(), ", want it in all"));
    }
  }
  return absl::OkStatus();
}

// The other way round, for outputs of `count` rows.
absl::Status ToRows(Json columns, size_t count, Json* rows) {
  *rows = Json::array();
  for (const auto& [name, column] : columns.items()) {
    if (!column.is_array() || column.size() != count) {
      return absl::InvalidArgumentError(absl::StrCat("instances: the output ", name,
                                                     " has no value for each; ask by \"inputs\""));
    }
    if (columns.size() == 1) {
      *rows = std::move(column);
      return absl::OkStatus();
    }
    for (size_t i = 0; i < count; ++i) (*rows)[i][name] = std::move(column[i]);
  }
  return absl::OkStatus();
}

Json About(const tensorflow::protobuf::Map<std::string, tensorflow::TensorInfo>& tensors) {
  Json about = Json::object();
  for (const auto& [name, info] : tensors) {
    about[name] = {
        {"dtype", tensorflow::DataTypeString(info.dtype())},
        {"shape", tensorflow::PartialTensorShape(info.tensor_shape()).DebugString()},
    };
  }
  return about;
}

}  // namespace

absl::Status ServedModel::Load(const std::string& path) {
  const std::string last = path.substr(path.find_last_of('/') + 1);
  const bool is_number = last.find_first_not_of("0123456789") == std::string::npos;
  version_ = is_number && !last.empty() ? last : "1";
  return tensorflow::LoadSavedModel({}, {}, path, {"serve"}, &bundle_);
}

absl::Status ServedModel::Predict(const std::string& body, Json* reply) const {
  if (IsTooDeep(body)) return absl::InvalidArgumentError("the body is nested too deep");
  Json request = Json::parse(body, nullptr, /*allow_exceptions=*/false);
  if (request.is_discarded()) return absl::InvalidArgumentError("the body is no JSON");
  if (!request.is_object() || request.contains("instances") == request.contains("inputs")) {
    return absl::InvalidArgumentError("want an object with either \"instances\" or \"inputs\"");
  }
  const Json name = request.value("signature_name", Json("serving_default"));
  const auto& signatures = bundle_.GetSignatures();
  const auto found = name.is_string() ? signatures.find(name.get<std::string>()) : signatures.end();
  if (found == signatures.end()) {
    return absl::InvalidArgumentError(absl::StrCat("signature_name: there is no ", name.dump()));
  }
  const SignatureDef& signature = found->second;

  const bool by_row = request.contains("instances");
  const size_t rows = by_row ? request["instances"].size() : 0;
  Json inputs;
  if (by_row) {
    if (absl::Status status = ToColumns(std::move(request["instances"]), signature, &inputs);
        !status.ok()) {
      return status;
    }
  } else {
    inputs = std::move(request["inputs"]);
    if (signature.inputs().size() == 1 && (!inputs.is_object() || inputs.contains("b64"))) {
      inputs = {{signature.inputs().begin()->first, std::move(inputs)}};
    }
  }
  std::vector<Tensor> tensors;
  if (absl::Status status = Run(signature, inputs, &tensors); !status.ok()) return status;

  Json outputs = Json::object();
  auto tensor = tensors.begin();
  for (const auto& [output, info] : signature.outputs()) {
    const bool as_bytes = absl::EndsWith(output, "_bytes");
    if (absl::Status status = ToJson(*tensor++, as_bytes, &outputs[output]); !status.ok()) {
      return status;
    }
  }
  if (by_row) return ToRows(std::move(outputs), rows, &(*reply)["predictions"]);
  (*reply)["outputs"] = std::move(outputs.size() == 1 ? *outputs.begin() : outputs);
  return absl::OkStatus();
}

absl::Status ServedModel::Run(const SignatureDef& signature, const Json& inputs,
                              std::vector<Tensor>* outputs) const {
  if (!inputs.is_object()) {
    return absl::InvalidArgumentError("inputs: want an object, the model has several");
  }
  for (const auto& [name, value] : inputs.items()) {
    if (!signature.inputs().contains(name)) {
      return absl::InvalidArgumentError(absl::StrCat(name, ": the model has no such input; it has ",
                                                     About(signature.inputs()).dump()));
    }
  }
  std::vector<std::pair<std::string, Tensor>> feeds;
  for (const auto& [name, info] : signature.inputs()) {
    if (!inputs.contains(name)) {
      return absl::InvalidArgumentError(absl::StrCat(name, ": this input is missing"));
    }
    Tensor tensor;
    if (absl::Status status = ToTensor(inputs[name], info, name, &tensor); !status.ok()) {
      return status;
    }
    feeds.emplace_back(info.name(), std::move(tensor));
  }
  std::vector<std::string> fetches;
  for (const auto& [name, info] : signature.outputs()) fetches.push_back(info.name());
  return bundle_.GetSession()->Run(feeds, fetches, {}, outputs);
}

Json ServedModel::Metadata() const {
  Json signatures = Json::object();
  for (const auto& [name, signature] : bundle_.GetSignatures()) {
    if (absl::StartsWith(name, "__")) continue;  // the initializer's
    signatures[name] = {{"inputs", About(signature.inputs())},
                        {"outputs", About(signature.outputs())}};
  }
  return signatures;
}

}  // namespace model_server

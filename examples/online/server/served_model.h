// A SavedModel, loaded by TensorFlow's C++ loader, that answers requests in the form of TensorFlow
// Serving's REST API: https://www.tensorflow.org/tfx/serving/api_rest.
//
// A model that was exported with tf_dynemb.for_serving(follow=...) follows its feed from when it is
// loaded to when it is destroyed; nothing here has to do with that. Thread-safe.
#ifndef TF_DYNEMB_EXAMPLES_ONLINE_SERVER_SERVED_MODEL_H_
#define TF_DYNEMB_EXAMPLES_ONLINE_SERVER_SERVED_MODEL_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "examples/online/server/json_tensors.h"
#include "tensorflow/cc/saved_model/loader.h"

namespace model_server {

class ServedModel {
 public:
  // Loads the SavedModel in the folder `path`. To be called once.
  absl::Status Load(const std::string& path);

  // The last part of the path where that is a number, as in TensorFlow Serving's folders; else "1".
  const std::string& version() const { return version_; }

  // The reply to the body of a :predict request, which has "instances" or "inputs" and may name a
  // signature by "signature_name".
  absl::Status Predict(const std::string& body, Json* reply) const;

  // The signatures: names, dtypes and shapes of their inputs and outputs.
  Json Metadata() const;

 private:
  absl::Status Run(const tensorflow::SignatureDef& signature, const Json& inputs,
                   std::vector<tensorflow::Tensor>* outputs) const;

  tensorflow::SavedModelBundle bundle_;
  std::string version_;
};

}  // namespace model_server

#endif  // TF_DYNEMB_EXAMPLES_ONLINE_SERVER_SERVED_MODEL_H_

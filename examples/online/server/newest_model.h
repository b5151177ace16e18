// The newest version of a model, in the folders of TensorFlow Serving: `path` has a SavedModel in a
// folder for each version, named by its number. The one of the highest number is loaded beside the
// one that serves, then takes its place, which no request notices. Whatever cannot be loaded, or
// not yet, is tried again. Where `path` is a SavedModel itself, it is the only one. Thread-safe.
#ifndef TF_DYNEMB_EXAMPLES_ONLINE_SERVER_NEWEST_MODEL_H_
#define TF_DYNEMB_EXAMPLES_ONLINE_SERVER_NEWEST_MODEL_H_

#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "examples/online/server/served_model.h"

namespace model_server {

class NewestModel {
 public:
  ~NewestModel();

  // Loads what is there now, and then looks every second for what is newer. To be called once.
  absl::Status Load(const std::string& path);

  // Lives as long as somebody has it.
  std::shared_ptr<const ServedModel> Get() const;

  // The version that was to take the place of the one that serves, and why it cannot; OK if there
  // is none.
  absl::Status failure(std::string* version) const;

 private:
  void Watch();
  void LookForANewer();

  std::string path_;  // of the folder of versions
  mutable std::mutex mutex_;
  std::shared_ptr<const ServedModel> serving_;
  std::string failed_version_;
  absl::Status failure_;
  bool is_over_ = false;
  std::condition_variable over_;
  // Freed by the thread, so that no request waits for it: Watch's own.
  std::vector<std::shared_ptr<const ServedModel>> replaced_;
  std::thread thread_;
};

}  // namespace model_server

#endif  // TF_DYNEMB_EXAMPLES_ONLINE_SERVER_NEWEST_MODEL_H_

// The newest version of a model, in the folders of TensorFlow Serving: `path` has a SavedModel in a
// folder for each version, named by its number. The one of the highest number is loaded beside the
// one that serves, then takes its place, which no request notices; if it follows a feed, as soon as
// it is as far as the one before. One that cannot be loaded, or not yet, is tried again, after a
// second, two, four and so on up to a minute, while the one before serves. Where `path` is a
// SavedModel itself, it is the only one. Thread-safe.
#ifndef TF_DYNEMB_EXAMPLES_ONLINE_SERVER_NEWEST_MODEL_H_
#define TF_DYNEMB_EXAMPLES_ONLINE_SERVER_NEWEST_MODEL_H_

#include <chrono>
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

  // Loads the newest of those that can be loaded, and then looks every second for what is newer. To
  // be called once.
  absl::Status Load(const std::string& path);

  // Lives as long as somebody has it.
  std::shared_ptr<const ServedModel> Get() const;

  // The version that was to take the place of the one that serves, and why it cannot; OK if there
  // is none.
  absl::Status failure(std::string* version) const;

 private:
  void Watch();
  void LookForANewer();
  // Until what has just been loaded is as far in its feed as what serves was before; not for ever.
  void WaitUntilItHasFollowed(double generation);
  bool ended() const;
  // Of a version that cannot be loaded.
  void Failed(const std::string& version, const absl::Status& status);

  std::string path_;  // of the folder of versions

  // Of the thread alone, once there is one.
  std::vector<std::shared_ptr<const ServedModel>> replaced_;  // freed when no request has them
  std::chrono::seconds pause_{0};                             // after the next failure
  std::chrono::steady_clock::time_point try_at_;

  mutable std::mutex mutex_;  // of what follows
  std::shared_ptr<const ServedModel> serving_;
  std::string failed_version_;
  absl::Status failure_;
  bool is_over_ = false;
  std::condition_variable over_;

  std::thread thread_;
};

}  // namespace model_server

#endif  // TF_DYNEMB_EXAMPLES_ONLINE_SERVER_NEWEST_MODEL_H_

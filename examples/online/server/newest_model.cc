#include "examples/online/server/newest_model.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "tensorflow/cc/saved_model/loader.h"
#include "tensorflow/core/platform/env.h"

namespace model_server {
namespace {

constexpr std::chrono::seconds kBetweenLooks{1};

// The name of the folder of the highest number; empty if there is none.
std::string NewestVersion(const std::string& path) {
  std::vector<std::string> names;
  tensorflow::Env::Default()->GetChildren(path, &names).IgnoreError();  // as without one
  std::string newest;
  int64_t highest = -1, number = 0;
  for (const std::string& name : names) {
    const bool is_number = name.find_first_not_of("0123456789") == std::string::npos;
    if (is_number && absl::SimpleAtoi(name, &number) && number > highest) {
      newest = name;
      highest = number;
    }
  }
  return newest;
}

}  // namespace

NewestModel::~NewestModel() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    is_over_ = true;
  }
  over_.notify_all();
  thread_.join();
}

absl::Status NewestModel::Load(const std::string& path) {
  const bool has_versions = !tensorflow::MaybeSavedModelDirectory(path);
  const std::string newest = has_versions ? NewestVersion(path) : "";
  if (has_versions && newest.empty()) {
    return absl::NotFoundError(absl::StrCat(path,
                                            " has neither a SavedModel nor folders of one, "
                                            "named by the number of its version"));
  }
  auto model = std::make_shared<ServedModel>();
  const absl::Status status = model->Load(has_versions ? absl::StrCat(path, "/", newest) : path);
  if (!status.ok()) return status;
  serving_ = std::move(model);
  if (has_versions) {
    path_ = path;
    thread_ = std::thread([this] { Watch(); });
  }
  return absl::OkStatus();
}

std::shared_ptr<const ServedModel> NewestModel::Get() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return serving_;
}

absl::Status NewestModel::failure(std::string* version) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  *version = failed_version_;
  return failure_;
}

void NewestModel::Watch() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (!over_.wait_for(lock, kBetweenLooks, [this] { return is_over_; })) {
    lock.unlock();
    LookForANewer();
    replaced_.erase(std::remove_if(replaced_.begin(), replaced_.end(),
                                   [](const auto& model) { return model.use_count() == 1; }),
                    replaced_.end());
    lock.lock();
  }
}

void NewestModel::LookForANewer() {
  const std::string newest = NewestVersion(path_);
  absl::Status status;
  std::shared_ptr<ServedModel> model;
  if (!newest.empty() && newest != Get()->version()) {
    model = std::make_shared<ServedModel>();
    status = model->Load(absl::StrCat(path_, "/", newest));
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  const bool is_known = status.ok() || (newest == failed_version_ && status == failure_);
  failed_version_ = status.ok() ? "" : newest;
  failure_ = status;
  if (!is_known) {
    std::fprintf(stderr, "version %s, which is tried again: %s\n", newest.c_str(),
                 status.ToString().c_str());
  }
  if (!status.ok() || model == nullptr) return;
  replaced_.push_back(std::exchange(serving_, std::move(model)));
  std::printf("version %s serves\n", newest.c_str());
  std::fflush(stdout);
}

}  // namespace model_server

#include "examples/online/server/newest_model.h"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "examples/online/server/metrics.h"
#include "tensorflow/cc/saved_model/loader.h"
#include "tensorflow/core/platform/env.h"

namespace model_server {
namespace {

using std::chrono::steady_clock;

constexpr std::chrono::seconds kBetweenLooks{1}, kFirstPause{1}, kLongestPause{60};
constexpr std::chrono::minutes kLongestWait{10};  // for a follower

// The names of the folders of versions, the highest number first.
std::vector<std::string> Versions(const std::string& path) {
  std::vector<std::string> names;
  tensorflow::Env* const env = tensorflow::Env::Default();
  env->GetChildren(path, &names).IgnoreError();  // as without one
  std::vector<std::pair<int64_t, std::string>> numbered;
  for (const std::string& child : names) {
    const std::string name(absl::StripSuffix(child, "/"));
    const bool is_number = name.find_first_not_of("0123456789") == std::string::npos;
    int64_t number = 0;
    if (is_number && absl::SimpleAtoi(name, &number) &&
        env->IsDirectory(absl::StrCat(path, "/", name)).ok()) {
      numbered.emplace_back(number, name);
    }
  }
  std::sort(numbered.rbegin(), numbered.rend());
  std::vector<std::string> versions;
  for (auto& [number, name] : numbered) versions.push_back(std::move(name));
  return versions;
}

// Of the feed that is followed; of several followers that of the last. -1: none.
double GenerationOfAll() {
  const Json status = FollowerStatus();
  const auto found = status.is_object() ? status.find("generation") : status.end();
  return found != status.end() && found->is_number() ? found->get<double>() : -1;
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
  auto model = std::make_shared<ServedModel>();
  if (tensorflow::MaybeSavedModelDirectory(path)) {
    const absl::Status status = model->Load(path);
    serving_ = std::move(model);
    return status;
  }
  path_ = path;
  const std::vector<std::string> versions = Versions(path);
  absl::Status of_newest = absl::NotFoundError(absl::StrCat(
      path, " has neither a SavedModel nor folders of one, named by the number of its version"));
  for (const std::string& version : versions) {
    const absl::Status status = model->Load(absl::StrCat(path, "/", version));
    if (status.ok()) {
      if (version != versions[0]) Failed(versions[0], of_newest);
      serving_ = std::move(model);
      thread_ = std::thread([this] { Watch(); });
      return status;
    }
    if (version == versions[0]) of_newest = status;
    model = std::make_shared<ServedModel>();
  }
  return of_newest;
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

bool NewestModel::ended() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return is_over_;
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
  const std::vector<std::string> versions = Versions(path_);
  std::string failed;
  const bool failed_before = !failure(&failed).ok();
  const bool is_new = !versions.empty() && versions[0] != Get()->version();
  if (is_new && failed_before && failed == versions[0] && steady_clock::now() < try_at_) return;
  if (!is_new || failed != versions[0]) {  // another one, or the one that failed has gone
    const std::lock_guard<std::mutex> lock(mutex_);
    failed_version_.clear();
    failure_ = absl::OkStatus();
    pause_ = std::chrono::seconds(0);
  }
  if (!is_new) return;
  const double generation = GenerationOfAll();
  auto model = std::make_shared<ServedModel>();
  const absl::Status status = model->Load(absl::StrCat(path_, "/", versions[0]));
  if (!status.ok()) return Failed(versions[0], status);
  WaitUntilItHasFollowed(generation);
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    replaced_.push_back(std::exchange(serving_, std::move(model)));
    failed_version_.clear();
    failure_ = absl::OkStatus();
  }
  std::printf("version %s serves\n", versions[0].c_str());
  std::fflush(stdout);
}

void NewestModel::WaitUntilItHasFollowed(double generation) {
  const auto until = steady_clock::now() + kLongestWait;
  while (GenerationOfAll() < generation && !ended() && steady_clock::now() < until) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
}

void NewestModel::Failed(const std::string& version, const absl::Status& status) {
  pause_ = std::clamp(2 * pause_, kFirstPause, kLongestPause);
  try_at_ = steady_clock::now() + pause_;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    const bool is_known = version == failed_version_ && status == failure_;
    failed_version_ = version;
    failure_ = status;
    if (is_known) return;
  }
  std::fprintf(stderr, "version %s, which is tried again: %s\n", version.c_str(),
               status.ToString().c_str());
}

}  // namespace model_server

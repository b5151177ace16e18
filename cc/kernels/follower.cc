#include "cc/kernels/follower.h"

#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <exception>
#include <new>
#include <utility>

#include "cc/core/base/no_memory.h"
#include "cc/kernels/followers.h"
#include "cc/kernels/http_client.h"
#include "tensorflow/core/platform/env.h"
#include "tensorflow/core/platform/host_info.h"
#include "tensorflow/core/platform/logging.h"
#include "tensorflow/core/platform/random.h"

namespace dynemb {
namespace {

using std::chrono::steady_clock;
using tensorflow::core::RefCountPtr;

constexpr std::chrono::seconds kFarewell{2};
// Of generations that are applied in one switch, unless the first alone has more.
constexpr int64_t kMostRowsAtOnce = 1'000'000;
// Before what has failed twice is tried a third time, and at most.
constexpr std::chrono::seconds kFirstPause{1}, kLongestPause{60};

// As that of a Follower in Python.
std::string NewName() {
  char number[16];
  std::snprintf(number, sizeof number, "%08x", static_cast<unsigned>(tensorflow::random::New64()));
  std::string host = tensorflow::port::Hostname();
  for (char& c : host) {
    if (std::isalnum(static_cast<unsigned char>(c)) == 0 && c != '.' && c != '-') c = '-';
  }
  return StrCat(host, "-", getpid(), "-", number);
}

// By this machine's clock; 0 for 0.
int64_t MicrosecondsSince(double seconds) {
  if (seconds == 0) return 0;
  const double now = static_cast<double>(tensorflow::Env::Default()->NowMicros());
  return static_cast<int64_t>(std::max(0.0, now - seconds * 1e6));
}

// Of a generation with a delta.
bool Continues(const Generation& generation, const Generation& before) {
  return generation.feed == before.feed && generation.delta->base == before.state();
}

Status DoesNotContinue(const std::string& path, int64_t number, int64_t before,
                       const char* which = "") {
  return Status(Code::kDataLoss, StrCat(path, ": generation ", number,
                                        " does not continue the generation ", before, which));
}

}  // namespace

int64_t FollowerStatus::lag_microseconds() const { return MicrosecondsSince(newer_since_seconds); }

int64_t FollowerStatus::age_microseconds() const { return MicrosecondsSince(created_seconds); }

Follower::Follower(FollowerOptions options, std::vector<RefCountPtr<TableResource>> tables,
                   std::vector<FollowedWeight> weights, std::shared_ptr<RequestGate> gate)
    : options_(std::move(options)),
      feed_(options_.path),
      name_(NewName()),
      tables_(std::move(tables)),
      weights_(std::move(weights)),
      gate_(std::move(gate)) {
  AddFollower(this);
  try {
    thread_ = std::thread([this] { Run(); });
  } catch (const std::exception&) {  // a process that has no thread left has no memory for one
    RemoveFollower(this);
    throw std::bad_alloc();
  }
}

Follower::~Follower() {
  Stop();
  RemoveFollower(this);
}

void Follower::Stop() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    ended_ = true;
    ending_.notify_all();
  }
  gate_->End();
  std::lock_guard<std::mutex> lock(join_mutex_);
  if (thread_.joinable()) thread_.join();
}

bool Follower::ended() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return ended_;
}

FollowerStatus Follower::status() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return status_;
}

Status Follower::CheckWhole() const {
  std::lock_guard<std::mutex> lock(mutex_);
  if (whole_) return Status();
  if (dropped_) {
    return FailedPrecondition(
        feed_.path(),
        ": a full copy is being loaded, and with serve_while_loading=False the "
        "model serves nothing meanwhile (last error: ",
        status_.last_error.empty() ? "none" : status_.last_error, ")");
  }
  return FailedPrecondition(feed_.path(),
                            ": the model is between two generations, since applying "
                            "one failed (",
                            status_.last_error, "); it serves again after the next full copy");
}

void Follower::Run() {
  LOG(INFO) << "tf_dynemb: " << tables_.size() << " tables and " << weights_.size()
            << " dense weights follow " << feed_.path();
  // What this poll has no memory for the next one tries again.
  const auto attempt = [this](void (Follower::*step)()) {
    const Status done = OrNoMemory([&] { (this->*step)(); });
    if (!done.ok()) static_cast<void>(OrNoMemory([&] { Failed(done); }));
  };
  {
    const HttpInterrupt interrupt([this] { return ended(); });
    while (!ended()) {
      attempt(&Follower::Poll);
      attempt(&Follower::Beat);
      attempt(&Follower::Wait);
    }
  }
  // Not for long: a server that has gone would keep the model that is being unloaded.
  const auto until = steady_clock::now() + kFarewell;
  const HttpInterrupt interrupt([until] { return steady_clock::now() > until; });
  if (is_known_ || !feed_.is_stream())
    static_cast<void>(OrNoMemory([this] { feed_.RemoveHeartbeat(name_); }));
}

void Follower::Wait() {
  const FollowerStatus now = status();
  const int64_t newest = now.newest;
  const bool has_all = newest == (now_ ? now_->number : 0) || now.pinned >= 0;
  // Where the last answer told of a newer one than there was, it would be told again at once.
  if (feed_.is_stream() && has_all && told_ <= newest) {
    const Status waited = feed_.WaitForNewer(newest, &told_);
    if (waited.ok()) return;
    Failed(waited);
  }
  told_ = 0;
  std::unique_lock<std::mutex> lock(mutex_);
  ending_.wait_for(lock, std::chrono::duration<double>(options_.poll_seconds),
                   [this] { return ended_; });
}

void Follower::Poll() {
  std::vector<int64_t> numbers;
  std::optional<FeedPin> pinned;
  const Status listed = feed_.Look(&numbers, &pinned);
  if (!listed.ok()) return Failed(listed);
  unusable_.clear();
  too_long_ = false;
  for (auto at = manifests_.begin(); at != manifests_.end();) {
    at = std::binary_search(numbers.begin(), numbers.end(), at->first) ? std::next(at)
                                                                       : manifests_.erase(at);
  }
  const int64_t newest = numbers.empty() ? 0 : numbers.back();
  {
    std::lock_guard<std::mutex> lock(mutex_);
    status_.newest = newest;
    status_.pinned = pinned ? pinned->number : -1;
  }
  if (numbers.empty() && !pinned) return;
  if (now_ && !pinned && newest <= now_->number && !IsInFeed()) {
    now_.reset();
    manifests_.clear();
    tried_.clear();
  }
  NoteLag(numbers);
  const int64_t last = pinned ? pinned->number : newest;
  const auto is_there = [&] {
    if (!CheckWhole().ok() || !now_) return false;
    return pinned ? now_->number == last && now_->state() == pinned->state : now_->number >= last;
  };
  std::vector<int64_t> way(numbers.begin(), std::upper_bound(numbers.begin(), numbers.end(), last));
  if (pinned) way.insert(way.end(), {pinned->number, static_cast<int64_t>(pinned->state)});
  if (is_there()) {
    tried_.clear();
  } else if (IsInPause(std::move(way))) {
    return;
  }
  while (!ended() && !is_there()) {
    const bool may_apply = now_ && now_->number < last;
    if (!may_apply || !ApplyNext(numbers, last)) {
      if (too_long_) break;
      if (!(pinned ? LoadPinned(numbers, *pinned) : LoadFull(numbers))) {
        if (!too_long_) Pause();
        break;
      }
    }
    Beat();  // before the next one, too
  }
  NoteLag(numbers);
}

bool Follower::IsInFeed() {
  const auto now = steady_clock::now();
  const std::chrono::duration<double> since = now - looked_at_;
  if (!feed_.is_local() && since.count() < options_.heartbeat_seconds) return true;
  looked_at_ = now;
  return feed_.MayHold(*now_);
}

void Follower::NoteLag(const std::vector<int64_t>& numbers) {
  const auto newer = std::upper_bound(numbers.begin(), numbers.end(), now_ ? now_->number : 0);
  const Generation* generation = nullptr;
  double since = 0;
  if (newer != numbers.end() && ReadGeneration(*newer, &generation).ok()) {
    since = generation->created_seconds;
  }
  std::lock_guard<std::mutex> lock(mutex_);
  status_.newer_since_seconds = since;
}

Status Follower::ReadGeneration(int64_t number, const Generation** generation) {
  auto found = manifests_.find(number);
  if (found == manifests_.end()) {
    Generation read;
    DYNEMB_RETURN_IF_ERROR(feed_.Read(number, &read));
    found = manifests_.emplace(number, std::move(read)).first;
  }
  *generation = &found->second;
  return Status();
}

void Follower::Failed(const Status& status) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (ended_) return;  // requests are broken off
  ++status_.errors;
  if (status_.last_error == status.message()) return;  // is logged once
  status_.last_error = status.message();
  LOG(WARNING) << "tf_dynemb: following " << feed_.path() << ": " << status.message()
               << "; the model serves generation " << status_.generation;
}

bool Follower::ApplyNext(const std::vector<int64_t>& numbers, int64_t last) {
  if (!now_ || !CheckWhole().ok()) return false;
  const Generation* generation = nullptr;
  std::vector<const Generation*> next;
  Status status;
  int64_t rows = 0;
  for (const Generation* before = &*now_; static_cast<int>(next.size()) < at_once_;
       before = generation) {
    if (before->number == last || unusable_.count(before->number + 1) != 0) break;
    status = CheckNext(numbers, *before, &generation);
    if (!status.ok() || !generation->delta) break;
    rows += generation->delta->rows + generation->delta->erased;
    if (!next.empty() && rows > kMostRowsAtOnce) break;
    next.push_back(generation);
  }
  if (!next.empty()) {
    status = OrNoMemory([&] { return Apply(next); });
    if (!status.ok() && !too_long_ && CheckWhole().ok() && at_once_ > 1) {
      at_once_ = 1;  // as far as they can be applied
      return ApplyNext(numbers, last);
    }
  }
  if (status.ok()) return !next.empty();
  Failed(status);
  if (too_long_) return false;
  // Another feed may have been put into the folder since manifests were read.
  if (generation != nullptr && generation->feed != now_->feed) {
    manifests_.clear();
  } else {
    manifests_.erase(now_->number + 1);
    unusable_.insert(now_->number + 1);
  }
  return false;
}

Status Follower::CheckNext(const std::vector<int64_t>& numbers, const Generation& before,
                           const Generation** generation) {
  const int64_t number = before.number + 1;
  if (!std::binary_search(numbers.begin(), numbers.end(), number)) {
    return Status(Code::kDataLoss, StrCat(feed_.path(), ": generation ", number, " is missing"));
  }
  DYNEMB_RETURN_IF_ERROR(ReadGeneration(number, generation));
  const std::optional<FeedPart>& delta = (*generation)->delta;
  if (!delta || Continues(**generation, before)) return Status();
  return DoesNotContinue(feed_.path(), number, before.number, " that is served");
}

bool Follower::LoadFull(const std::vector<int64_t>& numbers) {
  const bool whole = CheckWhole().ok();
  // The newest full copy. If it does not, here or in memory, another one mends nothing.
  std::optional<bool> fits;
  for (auto number = numbers.rbegin(); number != numbers.rend() && !ended(); ++number) {
    const Generation* generation = nullptr;
    Status status = ReadGeneration(*number, &generation);
    if (status.ok()) {
      const bool is_older = now_ && generation->feed == now_->feed && *number <= now_->number;
      if (whole && is_older) break;
      if (!generation->full) continue;
      status = OrNoMemory([&] { return Load({generation}); });
      if (status.ok()) return true;
    }
    Failed(status);
    if (too_long_) {
      wants_full_ = fits.value_or(false);  // not for want of this one
      return false;
    }
    manifests_.erase(*number);  // as in ApplyNext
    const bool has_no_memory = status.code() == Code::kResourceExhausted;
    if (!fits) fits = !has_no_memory && status.code() != Code::kInvalidArgument;
    if (has_no_memory) break;
  }
  if (!now_ && !fits && !ended()) {
    Failed(Status(Code::kNotFound, StrCat(feed_.path(), ": there is no full copy to begin with")));
  }
  wants_full_ = fits.value_or(true);
  return false;
}

Status Follower::ChainToPin(const std::vector<int64_t>& numbers, const FeedPin& pin,
                            std::vector<const Generation*>* chain) {
  const auto cannot = [&](const char* why) {
    return Status(Code::kNotFound, StrCat(feed_.path(), ": pinned to generation ", pin.number, ", ",
                                          why, "; pin another one, or unpin the feed"));
  };
  if (!std::binary_search(numbers.begin(), numbers.end(), pin.number)) {
    return cannot("which has been removed");
  }
  const Generation* generation = nullptr;
  DYNEMB_RETURN_IF_ERROR(ReadGeneration(pin.number, &generation));
  if (generation->state() != pin.state) {
    return cannot("of another feed than the one that has been put in its place");
  }
  return ChainTo(pin.number, chain);
}

bool Follower::LoadPinned(const std::vector<int64_t>& numbers, const FeedPin& pin) {
  std::vector<const Generation*> chain;
  Status status = ChainToPin(numbers, pin, &chain);
  if (status.ok()) status = OrNoMemory([&] { return Load(chain); });
  if (status.ok()) return true;
  Failed(status);
  if (!too_long_) manifests_.clear();  // as in ApplyNext
  return false;
}

bool Follower::IsInPause(std::vector<int64_t> way) {
  if (way == tried_) return steady_clock::now() < try_at_;
  tried_ = std::move(way);
  pause_ = std::chrono::seconds(0);
  return false;
}

void Follower::Pause() {
  try_at_ = steady_clock::now() + pause_;
  // Where nothing is served meanwhile it does not wait for long.
  const std::chrono::seconds longest = CheckWhole().ok() ? kLongestPause : kFirstPause;
  pause_ = std::min(std::max(2 * pause_, kFirstPause), longest);
}

Status Follower::ChainTo(int64_t number, std::vector<const Generation*>* chain) {
  for (int64_t each = number; each > 0; --each) {
    const Generation* generation = nullptr;
    DYNEMB_RETURN_IF_ERROR(ReadGeneration(each, &generation));
    const Generation* const after = chain->empty() ? nullptr : chain->front();
    if (after != nullptr && !Continues(*after, *generation)) {
      return DoesNotContinue(feed_.path(), each + 1, each);
    }
    chain->insert(chain->begin(), generation);
    if (generation->full) return Status();
    if (!generation->delta) break;
  }
  return Status(Code::kNotFound, StrCat(feed_.path(), ": the feed has no full copy from which to ",
                                        "reach generation ", number));
}

void Follower::Beat() {
  const int64_t pinned = status().pinned;
  const std::string said =
      StrCat("\"generation\": ", now_ ? StrCat(now_->number) : "null",
             ", \"wants_full\": ", wants_full_ && pinned < 0 && !needs_ ? "true" : "false",
             ", \"pinned\": ", pinned >= 0 ? StrCat(pinned) : "null",
             ", \"needs\": ", needs_ ? StrCat(*needs_) : "null");
  const std::chrono::duration<double> since = steady_clock::now() - beat_at_;
  if (said == beat_said_ && since.count() < options_.heartbeat_seconds) return;
  const std::string json = StrCat("{", said, ", \"beat\": ", ++beats_, ", \"host\": \"",
                                  tensorflow::port::Hostname(), "\", \"pid\": ", getpid(), "}");
  beat_at_ = steady_clock::now();
  beat_said_ = said;
  // A feed that does not exist yet gets its heartbeats later.
  const Status put = feed_.PutHeartbeat(name_, json);
  is_known_ = put.ok();
  if (!put.ok() && status().newest > 0) Failed(put);
}

}  // namespace dynemb

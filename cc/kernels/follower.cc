#include "cc/kernels/follower.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <limits>
#include <new>
#include <utility>

#include "cc/core/base/no_memory.h"
#include "cc/core/snapshot/loader.h"
#include "cc/core/snapshot/reader.h"
#include "cc/kernels/http_client.h"
#include "cc/kernels/monitoring.h"
#include "tensorflow/core/platform/env.h"
#include "tensorflow/core/platform/host_info.h"
#include "tensorflow/core/platform/logging.h"
#include "tensorflow/core/platform/random.h"

namespace dynemb {
namespace {

using std::chrono::steady_clock;
using tensorflow::Tensor;
using tensorflow::core::RefCountPtr;

constexpr std::chrono::seconds kFarewell{2};
// Of a full copy, between two looks at whether the follower still lives and says so.
constexpr int64_t kRowsAtATime = int64_t{1} << 20;
// Between two attempts to reach the generation that a feed is pinned to.
constexpr std::chrono::seconds kFirstPause{1}, kLongestPause{60};

double NowSeconds() { return static_cast<double>(tensorflow::Env::Default()->NowMicros()) * 1e-6; }

// The followers of this process, for monitoring, and so that none runs on when the process exits
// and what it works with is destroyed.
class Followers {
 public:
  static Followers& Get() {
    static Followers* const followers = new Followers();
    return *followers;
  }
  void Add(Follower* follower) {
    std::lock_guard<std::mutex> lock(mutex_);
    running_.insert(follower);
  }
  void Remove(Follower* follower) {
    std::lock_guard<std::mutex> lock(mutex_);
    running_.erase(follower);
    AddCounters(follower->status(), &gone_[follower->path()]);
  }

 private:
  Followers() {
    std::atexit([] {
      std::lock_guard<std::mutex> lock(Get().mutex_);
      for (Follower* follower : Get().running_) follower->Stop();
    });
    Register("rows", "Rows that followers of feeds have put in", &FollowerStatus::rows);
    Register("erased", "Keys that followers of feeds have erased", &FollowerStatus::erased);
    Register("full_copies", "Full copies that followers have loaded", &FollowerStatus::full_copies);
    Register("errors", "What went wrong with following feeds", &FollowerStatus::errors);
    RegisterGauge("/tf_dynemb/follower/generation",
                  "The generation that is served; -1: the model is as it was loaded", "feed", [] {
                    return Get().Last([](const FollowerStatus& one) { return one.generation; },
                                      std::less<int64_t>());
                  });
    RegisterGauge("/tf_dynemb/follower/newest", "The newest generation of a feed", "feed", [] {
      return Get().Last([](const FollowerStatus& one) { return one.newest; },
                        std::greater<int64_t>());
    });
    RegisterGauge("/tf_dynemb/follower/pinned",
                  "The generation that a feed has its followers stay at; -1: none", "feed", [] {
                    return Get().Last([](const FollowerStatus& one) { return one.pinned; },
                                      std::greater<int64_t>());
                  });
    RegisterGauge(
        "/tf_dynemb/follower/lag_microseconds",
        "Since the feed has had something newer, by the clocks of both machines", "feed", [] {
          return Get().Last([](const FollowerStatus& one) { return one.lag_microseconds(); },
                            std::greater<int64_t>());
        });
  }

  static void AddCounters(const FollowerStatus& status, FollowerStatus* sum) {
    sum->rows += status.rows;
    sum->erased += status.erased;
    sum->full_copies += status.full_copies;
    sum->errors += status.errors;
  }

  static void Register(const char* name, const char* about, int64_t FollowerStatus::* what) {
    RegisterCounter(StrCat("/tf_dynemb/follower/", name), about, "feed", [what] {
      std::lock_guard<std::mutex> lock(Get().mutex_);
      std::map<std::string, FollowerStatus> sums = Get().gone_;
      for (Follower* one : Get().running_) AddCounters(one->status(), &sums[one->path()]);
      NumbersByLabel numbers;
      for (const auto& [path, sum] : sums) numbers[path] = sum.*what;
      return numbers;
    });
  }

  template <typename Number, typename ComesFirst>
  NumbersByLabel Last(const Number& number, const ComesFirst& comes_first) {
    std::lock_guard<std::mutex> lock(mutex_);
    NumbersByLabel last;
    for (Follower* follower : running_) {
      const int64_t mine = number(follower->status());
      const auto [found, is_first] = last.emplace(follower->path(), mine);
      if (!is_first && comes_first(mine, found->second)) found->second = mine;
    }
    return last;
  }

  std::mutex mutex_;  // of what follows; held while a follower is read, so that it does not go
  std::set<Follower*> running_;
  std::map<std::string, FollowerStatus> gone_;  // by feed
};

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

Status About(const std::string& what, const Status& status) {
  return status.ok() ? status : Status(status.code(), StrCat(what, ": ", status.message()));
}

Status CheckId(const std::string& folder, uint64_t got, uint64_t want) {
  if (got == want) return Status();
  return Status(Code::kDataLoss, StrCat(folder, ": got snapshot ", IdText(got), ", want ",
                                        IdText(want), ", as the manifest says"));
}

// The table of a snapshot that goes into `table`.
Status FindTable(SnapshotReader* reader, TableResource* table, int64_t* number) {
  DYNEMB_RETURN_IF_ERROR(reader->FindTable(table->name(), number));
  const Shards shards = table->shards()->shards();
  return About(StrCat("table '", table->name(), "'"), reader->FitTo(shards[0]->schema(), *number));
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

// Calls `go_on` before each `rows_at_a_time` rows; its error ends it.
Status LoadAllRows(
    const Context& context, const SnapshotReader& reader, int64_t table,
    const std::vector<Table*>& shards, KeyStrings* strings,
    int64_t rows_at_a_time = std::numeric_limits<int64_t>::max(),
    const std::function<Status()>& go_on = [] { return Status(); }) {
  SnapshotPlace place;
  for (;;) {
    std::vector<BlockEntry> blocks;
    DYNEMB_RETURN_IF_ERROR(go_on());
    DYNEMB_RETURN_IF_ERROR(reader.List(table, rows_at_a_time, &place, &blocks));
    if (blocks.empty()) return Status();
    DYNEMB_RETURN_IF_ERROR(LoadRows(context, reader, blocks, nullptr, shards, strings));
  }
}

}  // namespace

int64_t FollowerStatus::lag_microseconds() const {
  if (newer_since_seconds == 0) return 0;
  return static_cast<int64_t>(std::max(0.0, NowSeconds() - newer_since_seconds) * 1e6);
}

Follower::Follower(FollowerOptions options, std::vector<RefCountPtr<TableResource>> tables,
                   std::vector<FollowedWeight> weights, std::shared_ptr<RequestGate> gate)
    : options_(std::move(options)),
      feed_(options_.path),
      name_(NewName()),
      tables_(std::move(tables)),
      weights_(std::move(weights)),
      gate_(std::move(gate)) {
  Followers::Get().Add(this);
  try {
    thread_ = std::thread([this] { Run(); });
  } catch (const std::exception&) {  // a process that has no thread left has no memory for one
    Followers::Get().Remove(this);
    throw std::bad_alloc();
  }
}

Follower::~Follower() {
  Stop();
  Followers::Get().Remove(this);
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
  if (now_ && !pinned && newest < now_->number) {
    const Generation* last;
    const Status read = ReadGeneration(newest, &last);
    if (!read.ok()) return Failed(read);
    if (last->feed == now_->feed) return;
    now_.reset();  // another feed was put into the folder
    manifests_.clear();
  }
  NoteLag(numbers);
  const int64_t last = pinned ? pinned->number : newest;
  const auto is_there = [&] {
    if (!CheckWhole().ok() || !now_) return false;
    return pinned ? now_->number == last && now_->state() == pinned->state : now_->number >= last;
  };
  if (!pinned) way_.clear();
  if (pinned && !is_there() && IsInPause(numbers, *pinned)) return;
  while (!ended() && !is_there()) {
    const bool may_apply = now_ && now_->number < last;
    if (may_apply && ApplyNext(numbers)) continue;
    if (too_long_ || !(pinned ? LoadPinned(numbers, *pinned) : LoadFull(numbers))) break;
  }
  NoteLag(numbers);
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

bool Follower::ApplyNext(const std::vector<int64_t>& numbers) {
  if (!now_ || !CheckWhole().ok() || unusable_.count(now_->number + 1) != 0) return false;
  const Generation* generation = nullptr;
  Status status = CheckNext(numbers, &generation);
  if (status.ok()) {
    if (!generation->delta) return false;
    status = Apply(*generation);
  }
  if (status.ok()) return true;
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

Status Follower::CheckNext(const std::vector<int64_t>& numbers, const Generation** generation) {
  const int64_t number = now_->number + 1;
  if (!std::binary_search(numbers.begin(), numbers.end(), number)) {
    return Status(Code::kDataLoss, StrCat(feed_.path(), ": generation ", number, " is missing"));
  }
  DYNEMB_RETURN_IF_ERROR(ReadGeneration(number, generation));
  const std::optional<FeedPart>& delta = (*generation)->delta;
  if (!delta || Continues(**generation, *now_)) return Status();
  return DoesNotContinue(feed_.path(), number, now_->number, " that is served");
}

Status Follower::ReadWeights(const Generation& generation, Weights* weights) const {
  std::map<std::string, Tensor> named;
  DYNEMB_RETURN_IF_ERROR(feed_.ReadWeights(generation, &named));
  for (const FollowedWeight& weight : weights_) {
    const auto found = named.find(weight.name);
    tensorflow::tf_shared_lock lock(*weight.variable->mu());
    const Tensor& there = *weight.variable->tensor();
    if (found == named.end()) {
      // Others are counters, or the state of a random generator, which no publisher has.
      if (!generation.tables_alone && tensorflow::DataTypeIsFloating(there.dtype())) {
        return InvalidArgument(feed_.path(), ": got a feed without the dense weight '", weight.name,
                               "' of the model, which would grow old; want a feed of the whole model "
                               "or of tables alone, Publisher(model) or Publisher(layer.table); or "
                               "export the model again");
      }
      weights->emplace_back();
      continue;
    }
    if (found->second.dtype() != there.dtype() || found->second.shape() != there.shape()) {
      return InvalidArgument(feed_.path(), ": got ",
                             tensorflow::DataTypeString(found->second.dtype()), " ",
                             found->second.shape().DebugString(), " for the dense weight '",
                             weight.name, "', want ", tensorflow::DataTypeString(there.dtype()),
                             " ", there.shape().DebugString(), ", as the model has it");
    }
    weights->emplace_back(found->second);
  }
  return Status();
}

Status Follower::Apply(const Generation& generation) {
  const FileContext core;
  const std::string folder = feed_.Folder(generation, "delta");
  Weights weights;
  std::unique_ptr<FileSystem> files;
  std::unique_ptr<SnapshotReader> reader;
  DYNEMB_RETURN_IF_ERROR(ReadWeights(generation, &weights));
  DYNEMB_RETURN_IF_ERROR(CopyToMemory(folder, &files));
  DYNEMB_RETURN_IF_ERROR(SnapshotReader::Open(files.get(), folder, &reader));
  const uint64_t id = generation.delta->snapshot;
  DYNEMB_RETURN_IF_ERROR(CheckId(folder, reader->manifest().id, id));
  std::vector<int64_t> numbers(tables_.size());
  for (size_t t = 0; t < tables_.size(); ++t) {
    DYNEMB_RETURN_IF_ERROR(About(folder, FindTable(reader.get(), tables_[t].get(), &numbers[t])));
  }
  DYNEMB_RETURN_IF_ERROR(reader->Verify(core));
  return Switch(generation, {&*generation.delta}, false, weights, [&] {
    for (size_t t = 0; t < tables_.size(); ++t) {
      const ShardSet::Lease held = tables_[t]->shards()->Acquire();
      const std::vector<Table*> shards = Pointers(held->shards);
      DYNEMB_RETURN_IF_ERROR(LoadErased(core, *reader, numbers[t], shards));
      DYNEMB_RETURN_IF_ERROR(LoadAllRows(core, *reader, numbers[t], shards, held->strings.get()));
      tables_[t]->set_snapshot(id);
    }
    return Status();
  });
}

bool Follower::LoadFull(const std::vector<int64_t>& numbers) {
  const bool whole = CheckWhole().ok();
  for (auto number = numbers.rbegin(); number != numbers.rend() && !ended(); ++number) {
    const Generation* generation = nullptr;
    Status status = ReadGeneration(*number, &generation);
    if (status.ok()) {
      const bool is_older = now_ && generation->feed == now_->feed && *number <= now_->number;
      if (whole && is_older) break;
      if (!generation->full) continue;
      status = Load({generation});
      if (status.ok()) return true;
    }
    Failed(status);
    if (too_long_) return false;
    manifests_.erase(*number);  // as in ApplyNext
  }
  wants_full_ = true;
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
  if (status.ok()) status = Load(chain);
  if (status.ok()) {
    way_.clear();
    return true;
  }
  Failed(status);
  if (!too_long_) {
    manifests_.clear();  // as in ApplyNext
    try_at_ = steady_clock::now() + pause_;
    pause_ = std::min(2 * pause_, kLongestPause);
  }
  return false;
}

bool Follower::IsInPause(const std::vector<int64_t>& numbers, const FeedPin& pin) {
  std::vector<int64_t> way(numbers.begin(),
                           std::upper_bound(numbers.begin(), numbers.end(), pin.number));
  way.insert(way.end(), {pin.number, static_cast<int64_t>(pin.state)});
  if (way == way_) return steady_clock::now() < try_at_;
  way_ = std::move(way);
  pause_ = kFirstPause;
  return false;
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

Status Follower::LoadTable(const std::vector<std::unique_ptr<SnapshotReader>>& readers,
                           TableResource* table, ShardSet::Contents* contents) {
  const FileContext core;
  int64_t want = 0;
  for (size_t r = 0; r < readers.size(); ++r) {
    SnapshotReader* const reader = readers[r].get();
    int64_t number = 0;
    DYNEMB_RETURN_IF_ERROR(FindTable(reader, table, &number));
    if (r == 0) {
      for (const SnapshotFile& file : reader->manifest().files) {
        if (file.table == number) want += file.rows;
      }
      const Shards like = table->shards()->shards();
      TableSchema schema = like[0]->schema();
      schema.initializer.seed =
          reader->manifest().tables[static_cast<size_t>(number)].schema.initializer.seed;
      const auto count = static_cast<int64_t>(like.size());
      Shards shards;
      DYNEMB_RETURN_IF_ERROR(MakeHostShards(core, schema, table->options(), table->storage(), count,
                                            want / count, &shards));
      *contents = ContentsOf(std::move(shards));
    }
    const std::vector<Table*> shards = Pointers(contents->shards);
    if (r > 0) DYNEMB_RETURN_IF_ERROR(LoadErased(core, *reader, number, shards));
    const auto go_on = [this] {
      if (ended()) return FailedPrecondition("the model is being unloaded");
      Beat();
      return Status();
    };
    DYNEMB_RETURN_IF_ERROR(
        LoadAllRows(core, *reader, number, shards, contents->strings.get(), kRowsAtATime, go_on));
    int64_t rows = 0;
    for (const auto& shard : contents->shards) rows += shard->size();
    if (r == 0 && rows != want) {
      return Status(Code::kDataLoss,
                    StrCat("got ", rows, " rows of table '", table->name(), "', want ", want));
    }
  }
  return Status();
}

Status Follower::Load(const std::vector<const Generation*>& chain) {
  const Generation& last = *chain.back();
  Weights weights;
  std::vector<std::unique_ptr<SnapshotReader>> readers(chain.size());
  std::vector<const FeedPart*> parts;
  DYNEMB_RETURN_IF_ERROR(ReadWeights(last, &weights));
  for (size_t g = 0; g < chain.size(); ++g) {
    const std::string folder = feed_.Folder(*chain[g], g == 0 ? "full" : "delta");
    parts.push_back(&*(g == 0 ? chain[g]->full : chain[g]->delta));
    DYNEMB_RETURN_IF_ERROR(SnapshotReader::Open(TensorFlowFiles(), folder, &readers[g]));
    DYNEMB_RETURN_IF_ERROR(CheckId(folder, readers[g]->manifest().id, parts[g]->snapshot));
  }
  // It may take longer than the publisher keeps generations that nobody needs.
  needs_ = chain[0]->number;
  struct Ending {
    std::optional<int64_t>* needs;
    ~Ending() { needs->reset(); }
  } const ending{&needs_};
  // Beside the rows that are served, which serve on.
  std::vector<ShardSet::Contents> loaded(tables_.size());
  for (size_t t = 0; t < tables_.size(); ++t) {
    DYNEMB_RETURN_IF_ERROR(
        About(feed_.Folder(*chain[0], "full"), LoadTable(readers, tables_[t].get(), &loaded[t])));
  }
  return Switch(last, parts, true, weights, [&] {
    for (size_t t = 0; t < tables_.size(); ++t) {
      tables_[t]->Replace(std::move(loaded[t]), {last.state()});
    }
    return Status();
  });
}

Status Follower::Switch(const Generation& generation, const std::vector<const FeedPart*>& parts,
                        bool is_full, const Weights& weights,
                        const std::function<Status()>& change) {
  struct Opening {  // however this ends
    RequestGate* gate;
    ~Opening() {
      // Not on this thread, on which a request must not run.
      gate->Open([](std::function<void()> entered) {
        tensorflow::Env::Default()->SchedClosure(std::move(entered));
      });
    }
  } opening{gate_.get()};
  if (!gate_->Close(std::chrono::duration<double>(options_.longest_wait_seconds))) {
    too_long_ = true;
    return Status(Code::kFailedPrecondition,
                  StrCat("requests took longer than ", options_.longest_wait_seconds,
                         " s; the switch to the next generation is tried again"));
  }
  const auto set_whole = [this](bool whole) {
    std::lock_guard<std::mutex> lock(mutex_);
    whole_ = whole;
  };
  set_whole(false);
  DYNEMB_RETURN_IF_ERROR(change());
  Assign(weights);
  now_ = generation;
  wants_full_ = false;
  std::lock_guard<std::mutex> lock(mutex_);
  whole_ = true;
  status_.generation = generation.number;
  status_.newer_since_seconds = 0;
  for (const FeedPart* part : parts) {
    status_.rows += part->rows;
    status_.erased += part->erased;
  }
  status_.full_copies += is_full ? 1 : 0;
  return Status();
}

void Follower::Assign(const Weights& weights) {
  for (size_t w = 0; w < weights_.size(); ++w) {
    if (!weights[w]) continue;
    tensorflow::Var* const variable = weights_[w].variable.get();
    tensorflow::mutex_lock lock(*variable->mu());
    *variable->tensor() = *weights[w];  // who has read the one before keeps it
    variable->is_initialized = true;
  }
}

void Follower::Beat() {
  const int64_t pinned = status().pinned;
  const std::string said =
      StrCat("\"generation\": ", now_ ? StrCat(now_->number) : "null",
             ", \"wants_full\": ", wants_full_ && pinned < 0 ? "true" : "false",
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

// Follower: a thread that makes the tables and dense weights of a SavedModel follow a feed. What
// tf_dynemb/serving/follower.py does for Python, without Python.
//
// It applies the generations of the feed in order, each one whole: it reads and checks the next one
// first, and then closes the gate that requests go through, puts rows and weights in place, and
// opens it again. What is missing, damaged, or does not continue the generation that is served is
// noticed before anything changes; the next full copy takes its place. If the feed is pinned to a
// generation, it goes to that one and stays.
//
// follower.cc finds the generation that comes next; follower_load.cc puts it in place.
//
// In TensorFlow's monitoring registry (followers.cc), by the label `feed`, the folder:
// /tf_dynemb/follower/rows, erased, full_copies, errors, counters; generation, newest, pinned,
// lag_microseconds, age_microseconds, gauges. Of several followers of one feed counters are added
// up; gauges are of the one that is last.
#ifndef TF_DYNEMB_CC_KERNELS_FOLLOWER_H_
#define TF_DYNEMB_CC_KERNELS_FOLLOWER_H_

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "cc/core/base/request_gate.h"
#include "cc/core/snapshot/loader.h"
#include "cc/core/snapshot/reader.h"
#include "cc/kernels/feed.h"
#include "cc/kernels/table_resource.h"
#include "tensorflow/core/framework/resource_var.h"

namespace dynemb {

struct FollowerOptions {
  std::string path;
  double poll_seconds = 0;
  double heartbeat_seconds = 0;
  double longest_wait_seconds = 0;
  bool serve_while_loading = true;
};

struct FollowedWeight {
  std::string name;
  tensorflow::core::RefCountPtr<tensorflow::Var> variable;  // in the host's memory
  bool is_optional = false;  // stays as it is where the feed does not have it
};

struct FollowerStatus {
  int64_t generation = -1;         // that is served; -1: the model is as it was loaded
  int64_t newest = 0;              // of the feed
  int64_t pinned = -1;             // which the feed has it stay at; -1: none
  double created_seconds = 0;      // when `generation` was published; 0: there is none
  double newer_since_seconds = 0;  // when that after `generation` was published; 0: there is none
  int64_t rows = 0, erased = 0, full_copies = 0, errors = 0;
  std::string last_error;

  // Since there is something newer than `generation`, and since that was published; 0: never.
  int64_t lag_microseconds() const;
  int64_t age_microseconds() const;
};

class Follower {
 public:
  // Begins to follow. Tables are found in the feed by their names. std::bad_alloc: no thread.
  Follower(FollowerOptions options,
           std::vector<tensorflow::core::RefCountPtr<TableResource>> tables,
           std::vector<FollowedWeight> weights, std::shared_ptr<RequestGate> gate);
  // Ends the thread.
  ~Follower();

  // Ends the thread; nothing changes any more. Any number of times.
  void Stop();

  FollowerStatus status() const;
  const std::string& path() const { return feed_.path(); }
  // Of requests: an error if applying a generation failed half-way, or while a full copy is loaded
  // and nothing is to be served meanwhile.
  Status CheckWhole() const;

 private:
  void Run();
  // Applies what there is.
  void Poll();
  // When what is newer than what is served was published, as far as it can be read.
  void NoteLag(const std::vector<int64_t>& numbers);
  // Whether the feed still has the generation that is served, of which a listing may not know yet,
  // or cannot say so. It has not if another feed, or one from a backup, was put into the folder.
  // Where each look is a request it looks at heartbeats alone.
  bool IsInFeed();
  Status ReadGeneration(int64_t number, const Generation** generation);
  void Failed(const Status& status);
  // Both say whether they have put a generation in place. ApplyNext goes no further than to `last`.
  bool ApplyNext(const std::vector<int64_t>& numbers, int64_t last);
  bool LoadFull(const std::vector<int64_t>& numbers);
  // Loads the generation that the feed is pinned to.
  bool LoadPinned(const std::vector<int64_t>& numbers, const FeedPin& pin);
  // Whether `way`, what there is to go by, has failed not long ago. What has failed once is tried
  // again at the next poll, and then after pauses: it may be a full copy, which takes long to read.
  bool IsInPause(std::vector<int64_t> way);
  void Pause();
  // The generation that the feed is pinned to, and all on the way there.
  Status ChainToPin(const std::vector<int64_t>& numbers, const FeedPin& pin,
                    std::vector<const Generation*>* chain);
  // The generation after `before`; an error if there is none that can be applied to it.
  Status CheckNext(const std::vector<int64_t>& numbers, const Generation& before,
                   const Generation** generation);
  // The newest generation with a full copy that is not after `number`, and all up to it.
  Status ChainTo(int64_t number, std::vector<const Generation*>* chain);
  void Beat();
  // Between parts of what takes long: beats, or an error if the follower has ended.
  Status GoOn();
  // Until it is worth while to poll again.
  void Wait();
  bool ended() const;

  // The changes of generations that follow each other, in one switch.
  Status Apply(const std::vector<const Generation*>& generations);
  // Those of one, for each table, into memory.
  Status ReadChanges(const Generation& generation, std::vector<TableChanges>* changes);
  // The full copy of the first, and the changes of those after it.
  Status Load(const std::vector<const Generation*>& chain);
  Status LoadTable(const std::vector<std::unique_ptr<SnapshotReader>>& readers,
                   TableResource* table, ShardSet::Contents* contents);
  // The weights that the model has of a generation, in the order of weights_; nothing for those
  // that the feed does not have, which stay as they are.
  using Weights = std::vector<std::optional<tensorflow::Tensor>>;
  Status ReadWeights(const Generation& generation, Weights* weights) const;
  // Calls `change` while no request is under way. An error if requests take too long.
  Status WhileNoRequest(const std::function<Status()>& change);
  // Serves nothing from now on, and frees the rows.
  Status DropRows();
  // Calls `change` while no request is under way, and notes that `generation` is served if it
  // succeeds. If it fails, nothing is served but errors until the next full copy.
  // `parts`: what is put in, for the counters.
  Status Switch(const Generation& generation, const std::vector<const FeedPart*>& parts,
                bool is_full, const Weights& weights, const std::function<Status()>& change);
  void Assign(const Weights& weights);
  void NoteServed(const Generation& generation, const std::vector<const FeedPart*>& parts,
                  bool is_full);

  const FollowerOptions options_;
  const Feed feed_;
  const std::string name_;  // in the feed
  const std::vector<tensorflow::core::RefCountPtr<TableResource>> tables_;
  const std::vector<FollowedWeight> weights_;
  const std::shared_ptr<RequestGate> gate_;

  // Of the thread alone.
  std::optional<Generation> now_;            // that is served
  std::map<int64_t, Generation> manifests_;  // by number
  std::set<int64_t> unusable_;               // numbers that this poll could not apply
  bool too_long_ = false;                    // requests took longer than a switch waits
  // How many generations a switch applies: more where it is long until it can take place.
  int at_once_ = 1;
  bool wants_full_ = false;
  std::optional<int64_t> needs_;   // the first generation of those that are being loaded
  std::vector<int64_t> tried_;     // what was listed, up to the pin if there is one, and that
  std::chrono::seconds pause_{0};  // after the next failure
  std::chrono::steady_clock::time_point try_at_;
  int64_t beats_ = 0;
  bool is_known_ = false;  // the feed has its last heartbeat
  int64_t told_ = 0;       // the newest number that a stream has told of
  std::chrono::steady_clock::time_point beat_at_;
  std::chrono::steady_clock::time_point looked_at_;  // for the generation that is served
  std::string beat_said_;

  mutable std::mutex mutex_;  // of what follows
  std::condition_variable ending_;
  bool ended_ = false;
  bool whole_ = true;     // what is served is of one generation
  bool dropped_ = false;  // nothing is served until a full copy is loaded
  FollowerStatus status_;

  std::mutex join_mutex_;  // of thread_
  std::thread thread_;
};

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_KERNELS_FOLLOWER_H_

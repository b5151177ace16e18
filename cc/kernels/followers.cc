#include "cc/kernels/followers.h"

#include <cstdlib>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <string>

#include "cc/kernels/monitoring.h"

namespace dynemb {
namespace {

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
    RegisterGauge(
        "/tf_dynemb/follower/age_microseconds",
        "Since the generation that is served was published, by the clocks of both machines", "feed",
        [] {
          return Get().Last([](const FollowerStatus& one) { return one.age_microseconds(); },
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

}  // namespace

void AddFollower(Follower* follower) { Followers::Get().Add(follower); }
void RemoveFollower(Follower* follower) { Followers::Get().Remove(follower); }

}  // namespace dynemb

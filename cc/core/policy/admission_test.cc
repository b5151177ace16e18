// Admission of keys against a model that is a map of counts.
#include "cc/core/policy/admission.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <thread>

#include "cc/core/table/evicted_rows.h"
#include "cc/core/table/host_table.h"
#include "cc/core/testing/caller.h"
#include "gtest/gtest.h"

namespace dynemb {
namespace {

AdmissionPolicy Policy(const std::string& text) {
  AdmissionPolicy policy;
  EXPECT_TRUE(AdmissionPolicy::Parse(text, &policy).ok()) << text;
  return policy;
}

// A table of dim 1 that begins with zeros, trained by SGD, and its candidates.
struct Admitting {
  explicit Admitting(const std::string& policy, int64_t max_rows = -1,
                     int64_t max_candidates = -1) {
    TableSchema schema;
    schema.dim = 1;
    schema.rule = CandidateOptimizer();
    TableOptions options;
    options.max_rows = max_rows;
    options.on_full = OnFull::kDecline;
    EXPECT_TRUE(MakeHostTable(schema, options, &table).ok());
    TableOptions of_candidates;
    of_candidates.max_rows = max_candidates;
    if (max_candidates >= 0) {
      EXPECT_TRUE(EvictionPolicy::Parse("lru", &of_candidates.eviction).ok());
      schema.meta = of_candidates.eviction.meta();
      of_candidates.keep_evicted = max_candidates;
    }
    of_candidates = OptionsOfShards(of_candidates, 1)[0];
    EXPECT_TRUE(MakeHostTable(schema, of_candidates, &candidates).ok());
    admission.policy = Policy(policy);
    admission.candidates = candidates.get();
    admission.step = 1;
    TableSchema of_sketch;
    of_sketch.value_dtype = DType::kInt8;
    of_sketch.dim = 256;
    EXPECT_TRUE(MakeHostTable(of_sketch, TableOptions(), &sketch).ok());
    admission.sketch = sketch.get();
    admission.calls = &calls;
  }

  // Adds 1 to the row of each key of the batch that has one, or is given one.
  int64_t Train(const Keys& keys, const Admission& of_step, const Context& context = OneThread()) {
    const Floats gradients(keys.size(), -1.0f);
    const ConstRows rows = {reinterpret_cast<const char*>(gradients.data()),
                            static_cast<int64_t>(gradients.size()), sizeof(float)};
    const OptimizerSpec rule = CandidateOptimizer();
    const double hyper[] = {1, static_cast<double>(of_step.step), 0};
    Update update;
    update.rule = &rule;
    update.hyper = {hyper, 3};
    int64_t declined = -1;
    EXPECT_TRUE(
        ApplyAdmitted(context, table.get(), {keys}, rows, update, Stamp(), of_step, &declined)
            .ok());
    return declined;
  }
  // The same by one thread, which can foresee what it does.
  int64_t Step(const Keys& keys, int64_t step = 1, const bool* given = nullptr) {
    Admission of_step = admission;
    of_step.step = step;
    of_step.given = {given, given == nullptr ? 0 : static_cast<int64_t>(keys.size())};
    std::vector<Key> foreseen;
    EXPECT_TRUE(AppendAdmitted(OneThread(), *table, {keys}, of_step, &foreseen).ok());
    const int64_t before = table->size();
    const int64_t declined = Train(keys, of_step);
    if (table->room() > static_cast<int64_t>(foreseen.size())) {
      EXPECT_EQ(table->size() - before, static_cast<int64_t>(foreseen.size()));
    }
    return declined;
  }
  static std::map<Key, float> Values(Table* of) {
    std::map<Key, float> values;
    for (const auto& [key, row] : Caller(of, HostTestMemory()).Export()) {
      values[key] = Numbers<float>(row.value)[0];
    }
    return values;
  }
  std::map<Key, float> values() const { return Values(table.get()); }
  std::map<Key, float> counts() const { return Values(candidates.get()); }

  std::unique_ptr<Table> table, candidates, sketch;
  AdmissionCalls calls;
  Admission admission;
};

using Map = std::map<Key, float>;

TEST(AdmissionTest, TextForms) {
  EXPECT_TRUE(Policy("").admits_all());
  EXPECT_EQ(Policy("min_count 3").min_count, 3);
  EXPECT_EQ(Policy("probability 0.25 seed -7").probability, 0.25);
  EXPECT_EQ(Policy("probability 0.25 seed -7").seed, -7);
  EXPECT_EQ(Policy("given").kind, AdmissionPolicy::Kind::kGiven);
  const AdmissionPolicy sketch = Policy("min_count 128 sketch 64 process 1 of 2");
  EXPECT_EQ(sketch.min_count, 128);
  EXPECT_EQ(sketch.sketch.blocks, 64);
  EXPECT_EQ(sketch.sketch.process, 1);
  EXPECT_EQ(sketch.sketch.processes, 2);
  EXPECT_FALSE(Policy("min_count 3").has_sketch());
  for (const char* wrong :
       {"min_count", "min_count 0", "min_count x", "min_count 3 4", "all", "probability 2 seed 1",
        "probability 0.5", "probability nan seed 1", "probability 0.5 seed", "given 1",
        "min_count 3 sketch", "min_count 3 sketch 0 process 0 of 1",
        "min_count 3 sketch 64 process 2 of 2", "min_count 3 sketch 64 process -1 of 2",
        "min_count 3 sketch 64 process 0 of 1 x", "min_count 3 sketch 64 process 0",
        "min_count 129 sketch 64 process 0 of 1", "min_count 3 sketch 64 processes 0 of 1"}) {
    AdmissionPolicy policy;
    EXPECT_EQ(AdmissionPolicy::Parse(wrong, &policy).code(), Code::kInvalidArgument) << wrong;
  }
}

TEST(AdmissionTest, AKeyGetsItsRowWhenItHasOccurredOftenEnough) {
  Admitting three("min_count 3");
  EXPECT_EQ(three.Step({5, 6, 5}), 2);  // a key counts once
  EXPECT_EQ(three.values(), Map());
  EXPECT_EQ(three.counts(), (Map{{5, 2}, {6, 1}}));
  // The gradients of the batch that admits count, those before are lost.
  EXPECT_EQ(three.Step({7, 5}), 1);
  EXPECT_EQ(three.values(), (Map{{5, 1}}));
  EXPECT_EQ(three.counts(), (Map{{6, 1}, {7, 1}}));
  EXPECT_EQ(three.Step({8, 5, 8, 8, 6}), 1);
  EXPECT_EQ(three.values(), (Map{{5, 2}, {8, 3}}));
  EXPECT_EQ(three.counts(), (Map{{6, 2}, {7, 1}}));
  // A row that goes begins anew.
  ASSERT_OK(Caller(three.table.get(), HostTestMemory()).Erase({5}));
  EXPECT_EQ(three.Step({5}), 1);
  EXPECT_EQ(three.counts(), (Map{{5, 1}, {6, 2}, {7, 1}}));
}

TEST(AdmissionTest, TheSameForAnySplitOfTheBatch) {
  std::mt19937 random(1);
  Keys stream;
  for (int i = 0; i < 20'000; ++i)
    stream.push_back(static_cast<Key>(random() % 97 * (random() % 97)));
  std::map<Key, int> occurred;
  for (const Key key : stream) ++occurred[key];
  for (const size_t batch : {1, 7, 1024, 20'000}) {
    Admitting five("min_count 5");
    for (size_t at = 0; at < stream.size(); at += batch) {
      five.Step(Keys(stream.begin() + static_cast<int64_t>(at),
                     stream.begin() + static_cast<int64_t>(std::min(stream.size(), at + batch))));
    }
    const Map values = five.values(), counts = five.counts();
    for (const auto& [key, times] : occurred) {
      ASSERT_EQ(values.count(key) == 1, times >= 5) << key;
      ASSERT_EQ(counts.count(key) == 1, times < 5) << key;
      if (times < 5) {
        ASSERT_EQ(counts.at(key), static_cast<float>(times));
      }
    }
    ASSERT_EQ(values.size() + counts.size(), occurred.size());
  }
}

TEST(AdmissionTest, CandidatesAreBounded) {
  Admitting two("min_count 2", -1, 100);
  for (int64_t step = 1; step <= 50; ++step) {
    Keys keys = {-1 - step / 2};  // each occurs twice, in successive steps
    for (Key k = 0; k < 40; ++k) keys.push_back(step * 40 + k);
    two.Step(keys, step);
    ASSERT_LE(two.candidates->size(), 100);
  }
  EXPECT_EQ(two.table->size(), 24);  // the first and the last of the others came once
}

TEST(AdmissionTest, WithASketchAKeyThatComesRarelyIsAdmittedAtLast) {
  for (const bool sketch : {false, true}) {
    Admitting three(sketch ? "min_count 3 sketch 64 process 0 of 1" : "min_count 3", -1, 100);
    for (int64_t step = 1; step <= 50; ++step) {
      Keys keys;
      for (Key k = 0; k < 40; ++k) keys.push_back(step * 40 + k);
      if (step % 20 == 0 || step == 1) keys.push_back(-1);  // with 760 others between
      three.Step(keys, step);
      ASSERT_LE(three.candidates->size(), 100);
      ASSERT_EQ(three.values().count(-1), sketch && step >= 40 ? 1 : 0) << step;
    }
    EXPECT_EQ(three.table->size(), sketch ? 1 : 0);
    EXPECT_EQ(three.sketch->size() > 0, sketch);
  }
}

TEST(AdmissionTest, WithASketchNoneIsAdmittedTooLateAndFewTooEarly) {
  std::mt19937 random(1);
  Admitting three("min_count 3 sketch 256 process 0 of 1", -1, 500);
  std::map<Key, int> occurred;
  std::map<Key, int> admitted;  // after how many occurrences
  for (int64_t step = 1; step <= 100; ++step) {
    Keys keys;
    for (int i = 0; i < 200; ++i) keys.push_back(static_cast<Key>(random() % 12'000));
    for (const Key key : keys) ++occurred[key];
    three.Step(keys, step);
    for (const auto& [key, value] : three.values()) admitted.emplace(key, occurred[key]);
  }
  int64_t early = 0;
  for (const auto& [key, times] : occurred) {
    const auto at = admitted.find(key);
    ASSERT_EQ(at != admitted.end() || times < 3, true) << key << " came " << times;
    if (at == admitted.end()) continue;
    early += at->second < 3;
  }
  EXPECT_GT(admitted.size(), 1000u);
  EXPECT_LE(static_cast<double>(early) / static_cast<double>(occurred.size()), std::exp(-4));
}

TEST(AdmissionTest, WithASketchTheSameForTheSameCalls) {
  const auto run = [](int64_t batch, int64_t max_candidates) {
    std::mt19937 random(2);
    Admitting three("min_count 3 sketch 16 process 0 of 1", -1, max_candidates);
    for (int64_t step = 1; step <= 6000 / batch; ++step) {
      Keys keys;
      for (int64_t i = 0; i < batch; ++i) keys.push_back(static_cast<Key>(random() % 3000));
      three.Step(keys, step);
    }
    std::set<Key> rows;  // whose values depend on the batch that brings them
    for (const auto& [key, value] : three.values()) rows.insert(key);
    return std::make_pair(rows, three.counts());
  };
  EXPECT_EQ(run(100, 50), run(100, 50));
  // As long as no candidate has to leave, for any batches.
  EXPECT_EQ(run(100, 4000), run(1, 4000));
}

TEST(AdmissionTest, WhatTheCandidatesHaveNoRoomForGoesIntoTheSketch) {
  Admitting two("min_count 2 sketch 16 process 0 of 1", -1, 10);
  Keys keys;
  for (Key key = 0; key < 50; ++key) keys.push_back(key);
  EXPECT_EQ(two.Step(keys, 1), 50);
  EXPECT_EQ(two.candidates->size(), 10);
  EXPECT_EQ(two.Step(keys, 2), 0);
  EXPECT_EQ(two.table->size(), 50);
}

// As a restore brings candidates: rows that are inserted, of which some leave again.
TEST(AdmissionTest, CountsThatHaveLeftOutsideOfAStepGoIntoTheSketch) {
  Admitting from("min_count 3", -1, 50), to("min_count 3 sketch 16 process 0 of 1", -1, 50);
  Keys keys;
  for (Key key = 0; key < 50; ++key) keys.push_back(key);
  from.Step(keys, 1);
  from.Step(keys, 2);
  const TableContent counted = Caller(from.candidates.get(), HostTestMemory()).Export();
  ASSERT_OK(Caller(to.candidates.get(), HostTestMemory()).InsertRows(counted));
  keys.clear();
  for (Key key = 100; key < 140; ++key) keys.push_back(key);
  to.Step(keys, 3);  // for which 40 of the others leave
  EXPECT_EQ(to.candidates->size(), 50);
  TableContent more;
  for (Key key = 200; key < 230; ++key) more[key] = counted.begin()->second;
  ASSERT_OK(Caller(to.candidates.get(), HostTestMemory()).InsertRows(more));
  EXPECT_EQ(to.candidates->size(), 50);
  ASSERT_OK(SketchCountsThatLeft(OneThread(), to.admission));
  int64_t dropped;
  EXPECT_EQ(to.candidates->evicted()->Take(&dropped).size(), 0);
  for (const auto& [key, row] : counted) EXPECT_EQ(to.Step({key}, 4), 0) << key;
}

TEST(AdmissionTest, ProbabilityIsAFunctionOfSeedKeyAndStep) {
  Admitting a("probability 0.25 seed 7"), b("probability 0.25 seed 7"),
      c("probability 0.25 seed 8");
  Keys keys;
  for (Key key = 0; key < 4000; ++key) keys.push_back(key);
  const int64_t declined = a.Step(keys, 3);
  EXPECT_NEAR(static_cast<double>(declined) / 4000, 0.75, 0.035);  // 5 standard deviations
  const Keys backwards(keys.rbegin(), keys.rend());
  b.Step(backwards, 3);
  c.Step(keys, 3);
  EXPECT_EQ(a.values(), b.values());
  EXPECT_NE(a.values(), c.values());
  // In another step others are drawn: after n steps a share of 0.75^n is left.
  for (int64_t step = 4; step < 6; ++step) a.Step(keys, step);
  EXPECT_NEAR(static_cast<double>(a.table->size()) / 4000, 1 - 0.75 * 0.75 * 0.75, 0.04);
  Admitting none("probability 0 seed 1"), all("probability 1 seed 1");
  EXPECT_EQ(none.Step(keys), 4000);
  EXPECT_EQ(all.Step(keys), 0);
}

TEST(AdmissionTest, TheCallerSays) {
  Admitting given("given");
  const bool first[] = {true, false, true};
  EXPECT_EQ(given.Step({1, 2, 1}, 1, first), 1);
  const bool second[] = {false, false};
  EXPECT_EQ(given.Step({1, 3}, 2, second), 1);  // 1 has a row
  EXPECT_EQ(given.values(), (Map{{1, 3}}));
}

TEST(AdmissionTest, AFullTableDeclinesWhatWasAdmitted) {
  Admitting two("min_count 2", 1);
  EXPECT_EQ(two.Step({1, 1, 2, 2}), 0);
  EXPECT_EQ(two.values(), (Map{{1, 2}}));
  EXPECT_EQ(two.table->counters().declined, 1);
}

// Threads that train batches of keys which are never admitted, all in turn, `steps` times each.
void TrainInThreads(Admitting* never, int threads, int steps, const std::vector<Keys>& batches) {
  std::vector<std::thread> running;
  for (int t = 0; t < threads; ++t) {
    running.emplace_back([&] {
      for (int i = 0; i < steps; ++i) {
        for (const Keys& keys : batches) {
          ASSERT_EQ(never->Train(keys, never->admission),
                    static_cast<int64_t>(std::set<Key>(keys.begin(), keys.end()).size()));
        }
      }
    });
  }
  for (std::thread& thread : running) thread.join();
}

TEST(AdmissionTest, OccurrencesOfThreadsAddUp) {
  Admitting never("min_count 1000000");
  constexpr int kThreads = 8, kSteps = 200;
  TrainInThreads(&never, kThreads, kSteps, {{1, 2, 1}});
  EXPECT_EQ(never.counts(), (Map{{1, 2 * kThreads * kSteps}, {2, kThreads * kSteps}}));
}

// Each key gets its row with its 5th occurrence, whose gradient is the first that counts, whatever
// other threads do at the time.
TEST(AdmissionTest, KeysAreAdmittedByThreadsAsByOne) {
  for (const char* policy : {"min_count 5", "min_count 5 sketch 1024 process 0 of 1"}) {
    Admitting five(policy, -1, 10'000);
    constexpr int kThreads = 8, kRounds = 200;
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([&] {
        for (Key key = 0; key < kRounds; ++key) five.Train({key, key + 1000}, five.admission);
      });
    }
    for (std::thread& thread : threads) thread.join();
    Map want;
    for (Key key = 0; key < kRounds; ++key) want[key] = want[key + 1000] = kThreads - 4;
    EXPECT_EQ(five.values(), want) << policy;
    EXPECT_EQ(five.counts(), Map()) << policy;
  }
}

// The calling thread, which calls functions before and after each run of tasks.
class WatchedExecutor : public Executor {
 public:
  std::function<void()> before = [] {}, after = [] {};
  int concurrency() const override { return 1; }

 private:
  void RunEach(int64_t tasks, int64_t, const std::function<void(int64_t)>& task) override {
    before();
    for (int64_t i = 0; i < tasks; ++i) task(i);
    after();
  }
};

// Calls that look for a key at each moment of the one that gives it its row.
TEST(AdmissionTest, AKeyThatGetsItsRowMeanwhileIsNoCandidate) {
  Admitting two("min_count 2");
  const auto train = [&two](Key key, WatchedExecutor* executor) {
    Context context;
    context.executor = executor;
    two.Train({key}, two.admission, context);
  };
  two.Step({1, 1});
  int runs_of_looking = 0;
  WatchedExecutor counting;
  counting.after = [&] { ++runs_of_looking; };
  train(1, &counting);
  ASSERT_GT(runs_of_looking, 0);

  two.Step({7});
  std::vector<std::thread> others;
  WatchedExecutor inserting;
  inserting.before = [&, runs = 0]() mutable {
    if (++runs <= runs_of_looking) return;
    const auto has_looked = std::make_shared<std::promise<void>>();
    others.emplace_back([&, has_looked, runs = 0]() mutable {
      WatchedExecutor looking;
      looking.after = [&] {
        if (++runs == runs_of_looking) has_looked->set_value();
      };
      train(7, &looking);
    });
    const auto looked = has_looked->get_future().wait_for(std::chrono::minutes(1));
    EXPECT_EQ(looked, std::future_status::ready);
  };
  train(7, &inserting);
  for (std::thread& thread : others) thread.join();
  EXPECT_GT(others.size(), 2u);
  EXPECT_EQ(two.values(), (Map{{1, 3}, {7, 1 + static_cast<float>(others.size())}}));
  EXPECT_EQ(two.counts(), Map());
}

TEST(AdmissionTest, ThreadsTakeTurnsAtASketch) {
  // One candidate at a time: the others are in the sketch, from which no thread loses a count.
  Admitting never("min_count 128 sketch 1024 process 0 of 1", -1, 1);
  constexpr int kThreads = 4, kSteps = 20;
  TrainInThreads(&never, kThreads, kSteps, {{1}, {2}, {3}});
  const Keys keys = {1, 2, 3};
  Floats estimates(3);
  ASSERT_OK(CountSketch(never.sketch.get(), never.admission.policy.sketch)
                .Estimate(OneThread(), keys, estimates.data()));
  for (const auto& [key, count] : never.counts()) {
    estimates[static_cast<size_t>(key - 1)] = count;
  }
  EXPECT_EQ(estimates, Floats(3, kThreads * kSteps));
}

TEST(AdmissionTest, AMissingKeyReadsTheValueForIt) {
  TableSchema schema;
  schema.dim = 2;
  schema.initializer.distribution = {Distribution::Kind::kUniform, 1, 2};
  schema.rule = CandidateOptimizer();
  TableOptions options;
  options.missing_value = 0.5;
  std::unique_ptr<Table> table;
  ASSERT_OK(MakeHostTable(schema, options, &table));
  const Caller call(table.get(), HostTestMemory());
  Floats values;
  ASSERT_OK(call.Find({3}, &values));
  EXPECT_EQ(values, Floats({0.5f, 0.5f}));
  // Its row begins with the initial value nevertheless.
  ASSERT_OK(call.Apply({3}, {0, 0}, CandidateOptimizer(), {1, 1, 0}));
  ASSERT_OK(call.Find({3}, &values));
  EXPECT_GE(values[0], 1);
}

}  // namespace
}  // namespace dynemb

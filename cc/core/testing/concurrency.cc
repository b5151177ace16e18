#include "cc/core/testing/concurrency.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <thread>
#include <utility>

#include "cc/core/testing/caller.h"
#include "cc/core/testing/histories.h"

namespace dynemb {

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(TableConcurrency);

// Out of line, so that instantiating the suite links this file.
TableConcurrency::TableConcurrency() = default;

namespace {

constexpr int kThreads = 6;
// Long enough that copying a row takes a while; no multiple of a cache line.
constexpr int64_t kDim = 45;

using Random = std::mt19937_64;

// The clock of histories. Under ThreadSanitizer it must not order the threads' memory accesses, or
// it would hide the races that are looked for; x86's atomic addition orders the calls all the same.
uint64_t Now() {
  static std::atomic<uint64_t> ticks{1};
  return ticks.fetch_add(
      1, kUnderThreadSanitizer ? std::memory_order_relaxed : std::memory_order_seq_cst);
}

// How many calls a thread makes: fewer under the sanitizers, where each costs 5 to 100 times as
// much and, for ThreadSanitizer, one unordered pair of accesses is enough.
constexpr int Calls(int calls) {
  return kUnderThreadSanitizer ? calls / 5 : kUnderAddressSanitizer ? calls / 2 : calls;
}

// Runs work(0) .. work(threads - 1), each in a thread of its own, all from the same moment.
template <typename F>
void InThreads(int threads, const F& work) {
  std::atomic<int> ready{0};
  std::vector<std::thread> all;
  for (int t = 0; t < threads; ++t) {
    all.emplace_back([&, t] {
      ready.fetch_add(1, std::memory_order_relaxed);
      while (ready.load(std::memory_order_relaxed) < threads) std::this_thread::yield();
      work(t);
    });
  }
  for (std::thread& thread : all) thread.join();
}

// SGD with momentum 1: with learning rate 1 all numbers stay integers, and value and slot are tied.
const OptimizerSpec& Momentum() {
  static const OptimizerSpec* const rule = new OptimizerSpec(UsualRule("sgd_momentum"));
  return *rule;
}
const std::vector<double>& MomentumHyper() {
  static const auto* const hyper = new std::vector<double>{1, 1, 0, 1};
  return *hyper;
}

// Rows whose column c is column 0 plus c, at every moment: a row that does not look like
// that is a mixture. With meta "count" and "score".
TableSchema WholeRows(const OptimizerSpec& rule) {
  TableSchema schema;
  schema.dim = kDim;
  schema.rule = rule;
  schema.meta.add(MetaField::kCount);
  schema.meta.add(MetaField::kScore);
  schema.initializer.constant.clear();
  for (int64_t c = 0; c < kDim; ++c) schema.initializer.constant.push_back(static_cast<double>(c));
  return schema;
}
void AppendRow(int64_t number, Floats* values) {
  for (int64_t c = 0; c < kDim; ++c) values->push_back(static_cast<float>(number + c));
}
// Column 0 of a row, or a failure of the test if the row is a mixture.
int64_t WholeRow(const float* row) {
  for (int64_t c = 0; c < kDim; ++c) {
    if (row[c] != row[0] + static_cast<float>(c)) {
      ADD_FAILURE() << "a mixed row: column 0 is " << row[0] << ", column " << c << " " << row[c];
      break;
    }
  }
  return static_cast<int64_t>(row[0]);
}
// The same for the bytes of an exported row with value, slots and meta.
RowState WholeState(const RowBytes& row) {
  RowState state;
  state.present = true;
  state.value = WholeRow(Numbers<float>(row.value).data());
  if (!row.slots.empty()) {
    const Floats slots = Numbers<float>(row.slots);
    EXPECT_EQ(std::count(slots.begin(), slots.end(), slots[0]), kDim) << "mixed slots";
    state.slot = static_cast<int64_t>(slots[0]);
  }
  state.count = Numbers<int64_t>(row.meta)[0];
  return state;
}
// A row to insert whole.
RowBytes RowOf(int64_t value, int64_t slot, int64_t count) {
  Floats values;
  AppendRow(value, &values);
  return {Bytes(values), Bytes(Floats(kDim, static_cast<float>(slot))),
          Bytes(std::vector<int64_t>{count, 0})};
}
// Is this a row that only Apply with gradient -1 has written? After k of them the slot is k and the
// value 1 + 2 + ... + k.
void ExpectOneMoment(const RowBytes& row) {
  const RowState state = WholeState(row);
  EXPECT_EQ(state.slot, state.count);
  EXPECT_EQ(state.value, state.slot * (state.slot + 1) / 2);
}

// n distinct ones of `from`.
Keys Some(const Keys& from, size_t n, Random* random) {
  Keys keys = from;
  std::shuffle(keys.begin(), keys.end(), *random);
  keys.resize(std::min(n, keys.size()));
  return keys;
}

// What one thread saw of the hot keys.
using Recording = std::vector<std::pair<Key, Event>>;

void Record(Event event, const Keys& keys, const std::set<Key>& hot, const Outcomes& outcomes,
            const std::vector<int64_t>& arguments, Recording* recording) {
  for (size_t i = 0; i < keys.size(); ++i) {
    if (hot.count(keys[i]) == 0) continue;
    event.outcome = outcomes[i];
    event.argument = arguments.empty() ? 0 : arguments[i];
    recording->emplace_back(keys[i], event);
  }
}

// One thread of the histories: random calls on hot keys with some of its own among them.
void MakeHistory(const Caller& call, const Keys& hot, int thread, int calls, Recording* recording) {
  using Kind = Event::Kind;
  Random random(static_cast<uint64_t>(thread) + 1);
  const std::set<Key> is_hot(hot.begin(), hot.end());
  int64_t written = 0;
  Key own = (thread + 1) * 1'000'000;
  for (int i = 0; i < calls; ++i) {
    Keys keys = Some(hot, 1 + random() % hot.size(), &random);
    for (uint64_t n = random() % 8; n > 0; --n) keys.push_back(own++);
    std::shuffle(keys.begin(), keys.end(), random);
    std::vector<int64_t> arguments;
    for (size_t k = 0; k < keys.size(); ++k) {
      arguments.push_back(static_cast<int64_t>(random() % 3) - 1);
    }
    Event event;
    Outcomes outcomes;
    Floats values;
    const uint64_t dice = random() % 100;
    event.begin = Now();
    if (dice < 30) {
      event.kind = Kind::kFind;
      EXPECT_OK(call.Find(keys, &values, &outcomes));
      event.end = Now();
      for (size_t k = 0; k < keys.size(); ++k) {
        event.seen.value = WholeRow(&values[k * kDim]);
        Record(event, {keys[k]}, is_hot, {outcomes[k]}, {}, recording);
      }
      continue;
    }
    if (dice < 39) {
      event.kind = Kind::kReadRows;
      TableContent rows;
      event.begin = Now();
      EXPECT_OK(call.ReadRows(keys, &rows, &outcomes));
      event.end = Now();
      for (size_t k = 0; k < keys.size(); ++k) {
        event.seen = outcomes[k] == Outcome::kFound ? WholeState(rows.at(keys[k])) : RowState();
        Record(event, {keys[k]}, is_hot, {outcomes[k]}, {}, recording);
      }
      continue;
    }
    if (dice < 41) {
      event.kind = Kind::kExport;
      for (Cursor cursor; !cursor.done;) {
        event.begin = Now();
        const auto rows = ExportSome(*call.table(), call.memory(), 500, true, &cursor);
        event.end = Now();
        for (const auto& [key, row] : rows) {
          event.seen = WholeState(row);
          Record(event, {key}, is_hot, {Outcome::kFound}, {}, recording);
        }
      }
      continue;
    }
    if (dice < 48) {
      event.kind = Kind::kInsertRows;
      TableContent rows, displaced;
      for (const Key key : keys) {
        const int64_t value = thread * 100'000 + written++, number = value % Event::kRowNumbers;
        rows[key] = RowOf(value, number, number);
      }
      event.begin = Now();
      EXPECT_OK(call.InsertRows(rows, &displaced, &outcomes));
      event.end = Now();
      size_t k = 0;
      for (const auto& [key, row] : rows) {
        const auto before = displaced.find(key);
        event.seen = before != displaced.end() ? WholeState(before->second) : RowState();
        Record(event, {key}, is_hot, {outcomes[k++]}, {WholeState(row).value}, recording);
      }
      continue;
    }
    if (dice < 65) {
      event.kind = Kind::kApply;
      event.reports = random() % 3 == 0;
      for (const int64_t g : arguments) values.insert(values.end(), kDim, static_cast<float>(g));
      event.begin = Now();
      EXPECT_OK(call.Apply(keys, values, Momentum(), MomentumHyper(), {}, &outcomes,
                           event.reports ? IfMissing::kReport : IfMissing::kInsert));
    } else if (dice < 78) {
      event.kind = Kind::kUpsert;
      // No two upserts write the same number, so that what is read names its writer.
      for (int64_t& v : arguments) v = thread * 100'000 + written++;
      for (const int64_t v : arguments) AppendRow(v, &values);
      event.begin = Now();
      EXPECT_OK(call.Upsert(keys, values, {}, &outcomes));
    } else if (dice < 89) {
      event.kind = Kind::kAccumulate;
      event.exists = random() % 2 == 0;
      for (const int64_t d : arguments) {
        // A row to insert, or a delta that keeps the columns in step.
        if (event.exists) {
          values.insert(values.end(), kDim, static_cast<float>(d));
        } else {
          AppendRow(d, &values);
        }
      }
      event.begin = Now();
      EXPECT_OK(call.Accumulate(keys, values, std::vector<bool>(keys.size(), event.exists), {},
                                &outcomes));
    } else {
      event.kind = Kind::kErase;
      EXPECT_OK(call.Erase(keys, &outcomes));
    }
    event.end = Now();
    Record(event, keys, is_hot, outcomes, arguments, recording);
  }
}

}  // namespace

// Each operation is atomic per key: everything that the threads saw of a few hot keys can be
// explained by giving each call one moment. Value, slot and count of a row are seen together.
TEST_P(TableConcurrency, HistoriesCanBeExplained) {
  constexpr int kCalls = Calls(2000);
  for (int64_t round = 0; round < SoakFactor() && !HasFailure(); ++round) {
    const std::unique_ptr<Table> table = GetParam().Make(WholeRows(Momentum()));
    const Caller call(table.get(), GetParam().memory);
    const Keys hot = {INT64_MIN, -1, 0, 1, 77, INT64_MAX};
    std::vector<Recording> recordings(kThreads);
    InThreads(kThreads, [&](int t) {
      MakeHistory(call, hot, t + static_cast<int>(round) * kThreads % 60, kCalls, &recordings[t]);
    });
    std::map<Key, std::vector<Event>> histories;
    for (const Recording& recording : recordings) {
      for (const auto& [key, event] : recording) histories[key].push_back(event);
    }
    int64_t overlapping = 0;
    for (const Key key : hot) {
      EXPECT_EQ(ExplainHistory(histories[key]), "") << "key " << key;
      auto& events = histories[key];
      std::sort(events.begin(), events.end(),
                [](const Event& a, const Event& b) { return a.begin < b.begin; });
      for (size_t i = 1; i < events.size(); ++i) overlapping += events[i].begin < events[i - 1].end;
    }
    EXPECT_GT(overlapping, 0) << "nothing happened at once: this has shown nothing";
  }
}

// No update is lost: gradients and deltas are integers, so the sums are exact.
TEST_P(TableConcurrency, SumsAreExact) {
  constexpr int kCalls = Calls(2000);
  const OptimizerSpec sgd = UsualRule("sgd");
  const std::unique_ptr<Table> table = GetParam().Make(WholeRows(sgd));
  const Caller call(table.get(), GetParam().memory);
  Keys keys;
  for (Key key = 0; key < 40; ++key) keys.push_back(key * 3 - 50);
  std::atomic<int64_t> inserted{0};
  std::vector<std::map<Key, int64_t>> sums(kThreads);
  InThreads(kThreads, [&](int t) {
    Random random(static_cast<uint64_t>(t) + 100);
    std::map<Key, int64_t> last;
    for (int i = 0; i < kCalls; ++i) {
      const Keys some = Some(keys, 20, &random);
      const int64_t add = 1 + static_cast<int64_t>(random() % 3);
      Outcomes outcomes;
      if (random() % 2 == 0) {
        EXPECT_OK(call.Apply(some, Floats(some.size() * kDim, static_cast<float>(-add)), sgd,
                             {1, 1, 0}, {}, &outcomes));
        inserted += std::count(outcomes.begin(), outcomes.end(), Outcome::kInserted);
        for (const Key key : some) sums[t][key] += add;
      } else {
        EXPECT_OK(call.Accumulate(some, Floats(some.size() * kDim, static_cast<float>(add)),
                                  std::vector<bool>(some.size(), true), {}, &outcomes));
        for (size_t k = 0; k < some.size(); ++k) {
          if (outcomes[k] == Outcome::kFound) sums[t][some[k]] += add;
        }
      }
      // Everybody only adds: what one thread reads never goes back.
      Floats values;
      EXPECT_OK(call.Find(some, &values));
      for (size_t k = 0; k < some.size(); ++k) {
        const int64_t value = WholeRow(&values[k * kDim]);
        EXPECT_GE(value, last[some[k]]);
        last[some[k]] = value;
      }
    }
  });
  std::map<Key, int64_t> want;
  for (const auto& thread : sums) {
    for (const auto& [key, sum] : thread) want[key] += sum;
  }
  std::map<Key, int64_t> got;
  for (const auto& [key, row] : call.Export()) got[key] = WholeState(row).value;
  EXPECT_EQ(got, want);
  EXPECT_EQ(inserted, static_cast<int64_t>(keys.size())) << "each key is inserted once";
}

// Exports while others write: a key that is there all the time appears exactly once, one that comes
// and goes at most once per life, and each row is of one moment.
TEST_P(TableConcurrency, ExportsAreComplete) {
  constexpr int kWriters = 4, kExporters = 2, kExports = 20;
  constexpr int kCalls = Calls(500);
  const std::unique_ptr<Table> table = GetParam().Make(WholeRows(Momentum()));
  const Caller call(table.get(), GetParam().memory);
  Keys stable, passing;
  for (Key key = 0; key < 1500; ++key) stable.push_back(key * 977 - 500'000);
  for (Key key = 0; key < 60; ++key) passing.push_back(10'000'000 + key);
  const auto apply = [&](const Keys& keys, Outcomes* outcomes) {
    EXPECT_OK(call.Apply(keys, Floats(keys.size() * kDim, -1.0f), Momentum(), MomentumHyper(), {},
                         outcomes));
  };
  apply(stable, nullptr);
  struct Interval {
    uint64_t begin, end;
  };
  std::vector<std::map<Key, std::vector<Interval>>> inserted(kWriters);
  std::vector<std::pair<Interval, std::map<Key, int64_t>>> exports(kExporters * kExports);
  InThreads(kWriters + kExporters, [&](int t) {
    Random random(static_cast<uint64_t>(t) + 200);
    if (t < kExporters) {
      for (int e = 0; e < kExports; ++e) {
        auto& [interval, seen] = exports[t * kExports + e];
        interval.begin = Now();
        for (Cursor cursor; !cursor.done;) {
          const int64_t chunk = 1 + static_cast<int64_t>(random() % 300);
          for (const auto& [key, row] :
               ExportSome(*table, GetParam().memory, chunk, true, &cursor)) {
            ExpectOneMoment(row);
            ++seen[key];
          }
        }
        interval.end = Now();
      }
      return;
    }
    Key fresh = t * 100'000'000;
    for (int i = 0; i < kCalls; ++i) {
      Keys keys = Some(stable, 15, &random);
      const Keys some = Some(passing, 10, &random);
      keys.insert(keys.end(), some.begin(), some.end());
      for (int n = 0; n < 5; ++n) keys.push_back(fresh++);  // so that the table keeps growing
      Outcomes outcomes;
      Interval interval;
      interval.begin = Now();
      apply(keys, &outcomes);
      interval.end = Now();
      for (size_t k = 0; k < keys.size(); ++k) {
        if (outcomes[k] == Outcome::kInserted)
          inserted[t - kExporters][keys[k]].push_back(interval);
      }
      EXPECT_OK(call.Erase(Some(passing, 10, &random)));
    }
  });
  const std::set<Key> is_stable(stable.begin(), stable.end());
  for (const auto& [interval, seen] : exports) {
    size_t stable_seen = 0;
    for (const auto& [key, times] : seen) {
      stable_seen += is_stable.count(key);
      // At most once for each life that began during the export, and for one from before.
      int64_t during = 0;
      bool before = is_stable.count(key) != 0;
      for (const auto& writer : inserted) {
        const auto intervals = writer.find(key);
        if (intervals == writer.end()) continue;
        for (const Interval& insert : intervals->second) {
          before |= insert.begin < interval.begin;
          during += insert.end > interval.begin && insert.begin < interval.end;
        }
      }
      if (times > during + before)
        ADD_FAILURE() << "key " << key << " appears " << times << " times";
    }
    EXPECT_EQ(stable_seen, stable.size()) << "keys that were there all the time are missing";
  }
  for (const auto& [key, row] : call.Export()) ExpectOneMoment(row);
}

// Somebody who has a copy of the table: a full one, and then what has changed, epoch by epoch.
class Follower {
 public:
  // What followers of one table share: they take turns to begin epochs and to trim changes.
  struct Shared {
    std::mutex mutex;
    int64_t epoch = 0;
    std::vector<const Follower*> followers;
  };

  Follower(const Caller& call, uint64_t seed, Shared* shared)
      : call_(call), random_(seed), shared_(shared) {
    shared->followers.push_back(this);
  }

  // Brings the copy up to date. Writes that are under way may be in it or not, but none from before
  // is left out.
  void Follow() {
    BeginEpoch();
    if (since_ < 0 || !TakeChanges()) {
      copy_ = call_.Export(400);
      ++full_copies_;
      for (const auto& [key, row] : copy_) WholeState(row);
    }
    // Writes of the epoch before have ended; its own go on.
    std::lock_guard<std::mutex> lock(shared_->mutex);
    since_ = ended_;
    std::vector<int64_t> positions;
    for (const Follower* follower : shared_->followers) {
      positions.push_back(follower->since_);
      positions.push_back(follower->ended_);
    }
    std::sort(positions.begin(), positions.end());
    call_.table()->TrimChanges(positions);
  }

  const TableContent& copy() const { return copy_; }
  int64_t full_copies() const { return full_copies_; }
  int64_t changes() const { return changes_; }

 private:
  void BeginEpoch() {
    std::lock_guard<std::mutex> lock(shared_->mutex);
    EXPECT_OK(call_.BeginEpoch(++shared_->epoch));
    ended_ = shared_->epoch - 1;
  }

  // False: they are not known any more.
  bool TakeChanges() {
    TablePart part;
    part.parts = 1 + static_cast<int64_t>(random_() % 3);
    for (; part.part < part.parts; ++part.part) {
      Keys keys;
      const Status status = call_.ChangedKeys(since_, &keys, part);
      if (status.code() == Code::kFailedPrecondition) return false;
      EXPECT_OK(status);
      EXPECT_EQ(std::set<Key>(keys.begin(), keys.end()).size(), keys.size()) << "a key twice";
      TableContent rows;
      EXPECT_OK(call_.ReadRows(keys, &rows));
      for (const Key key : keys) copy_.erase(key);
      for (auto& [key, row] : rows) {
        WholeState(row);
        copy_[key] = std::move(row);
      }
      changes_ += static_cast<int64_t>(keys.size());
    }
    return true;
  }

  const Caller& call_;
  Random random_;
  Shared* const shared_;
  // Since when the copy lacks changes, and since when it will. Of another follower: read under the
  // mutex.
  int64_t since_ = -1, ended_ = -1;
  TableContent copy_;
  int64_t full_copies_ = 0, changes_ = 0;
};

// A copy that is kept up to date by changes becomes the table, however others write, erase and
// clear meanwhile: no change is lost between two epochs.
TEST_P(TableConcurrency, ChangesMakeUpTheTable) {
  constexpr int kWriters = 4, kFollowers = 2;
  constexpr int kCalls = Calls(400);
  int64_t changes = 0;  // that were told while others wrote
  for (int64_t round = 0; round < 4 * SoakFactor() && !HasFailure(); ++round) {
    const bool clears = round % 4 == 3;
    SCOPED_TRACE(StrCat("round ", round));
    const std::unique_ptr<Table> table = GetParam().Make(WholeRows(Momentum()));
    const Caller call(table.get(), GetParam().memory);
    Keys keys;
    for (Key key = 0; key < 600; ++key) keys.push_back(key * 977 - 100'000);
    EXPECT_OK(call.Apply(keys, Floats(keys.size() * kDim, -1.0f), Momentum(), MomentumHyper()));
    Follower::Shared shared;
    std::vector<std::unique_ptr<Follower>> followers;
    for (uint64_t f = 0; f < kFollowers; ++f) {
      followers.push_back(std::make_unique<Follower>(call, f, &shared));
    }
    std::atomic<int> writing{kWriters};
    InThreads(kWriters + kFollowers, [&](int t) {
      if (t < kFollowers) {
        while (writing.load(std::memory_order_relaxed) > 0) followers[t]->Follow();
        return;
      }
      Random random(static_cast<uint64_t>(round * 100 + t));
      Key fresh = t * 1'000'000;
      for (int i = 0; i < kCalls; ++i) {
        Keys some = Some(keys, 1 + random() % 20, &random);
        const size_t shared_keys = some.size();
        for (int n = 0; n < 3; ++n) some.push_back(fresh++);
        const int64_t number = static_cast<int64_t>(random() % 1000);
        Floats values;
        for (size_t k = 0; k < some.size(); ++k) AppendRow(number, &values);
        switch (random() % 8) {
          case 0:
          case 1:
            EXPECT_OK(call.Apply(some, Floats(values.size(), -1.0f), Momentum(), MomentumHyper(),
                                 {}, nullptr,
                                 i % 2 == 0 ? IfMissing::kInsert : IfMissing::kReport));
            break;
          case 2:
            EXPECT_OK(call.Upsert(some, values));
            break;
          case 3: {
            TableContent rows, displaced;
            for (const Key key : some) rows[key] = RowOf(number, 1, i);
            EXPECT_OK(call.InsertRows(rows, &displaced));
            for (const auto& key_and_row : displaced) WholeState(key_and_row.second);
            break;
          }
          case 4:
            EXPECT_OK(call.Accumulate(some, values, std::vector<bool>(some.size(), false)));
            break;
          case 5:
          case 6:  // of its own keys, too
            for (size_t k = 0; k < shared_keys; ++k) some.push_back(--fresh);
            EXPECT_OK(call.Erase(some));
            break;
          default: {
            int64_t erased = -1;  // about one in thirty
            if (random() % 4 == 0) {
              EXPECT_OK(call.EraseBelow(MetaField::kScore, {0, ~uint64_t{0} / 30}, &erased));
            } else if (clears && random() % 10 == 0) {
              EXPECT_OK(call.Clear());
            }
          }
        }
      }
      writing.fetch_sub(1, std::memory_order_relaxed);
    });
    for (const auto& follower : followers) changes += follower->changes();
    const TableContent content = call.Export();
    for (const auto& follower : followers) {
      follower->Follow();
      EXPECT_EQ(Difference(content, follower->copy()), "");
      if (!clears) {
        EXPECT_EQ(follower->full_copies(), 1) << "changes were forgotten";
      }
    }
  }
  EXPECT_GT(changes, 0) << "nobody followed while others wrote: this has shown nothing";
}

// All operations at once, those on whole tables too. The books balance: rows inserted less rows
// erased are the rows left.
TEST_P(TableConcurrency, EverythingAtOnce) {
  constexpr int kCalls = Calls(1000);
  for (const bool clear : {false, true}) {
    const std::unique_ptr<Table> table = GetParam().Make(WholeRows(Momentum()));
    const Caller call(table.get(), GetParam().memory);
    TestMemory* const memory = GetParam().memory;
    Keys keys;
    for (Key key = 0; key < 300; ++key) keys.push_back(key << 33);
    std::atomic<int64_t> balance{0};
    InThreads(kThreads, [&](int t) {
      Random random(static_cast<uint64_t>(t) + 300);
      Key fresh = (t + 1) * 1'000'000;
      for (int i = 0; i < kCalls; ++i) {
        Keys some = Some(keys, 1 + random() % 30, &random);
        const size_t shared = some.size();
        for (int n = 0; n < 4; ++n) some.push_back(fresh++);
        Outcomes outcomes;
        Floats values;
        switch (random() % 10) {
          case 0:
          case 1:
          case 2:
            EXPECT_OK(call.Apply(some, Floats(some.size() * kDim, -1.0f), Momentum(),
                                 MomentumHyper(), {}, &outcomes,
                                 i % 4 == 0 ? IfMissing::kReport : IfMissing::kInsert));
            balance += std::count(outcomes.begin(), outcomes.end(), Outcome::kInserted);
            break;
          case 3:
            for (size_t k = 0; k < shared; ++k) some.push_back(--fresh);
            EXPECT_OK(call.Erase(some, &outcomes));
            balance -= std::count(outcomes.begin(), outcomes.end(), Outcome::kFound);
            break;
          case 4:
            EXPECT_OK(call.Find(some, &values));
            for (size_t k = 0; k < some.size(); ++k) WholeRow(&values[k * kDim]);
            break;
          case 5:
            for (Cursor cursor; !cursor.done;) {
              for (const auto& key_and_row : ExportSome(*table, memory, 250, true, &cursor)) {
                ExpectOneMoment(key_and_row.second);
              }
            }
            break;
          case 6: {
            EXPECT_OK(call.Reserve(static_cast<int64_t>(random() % 3000)));
            Mirror<int64_t> counts(memory, 256);
            EXPECT_OK(table->Histogram(memory->context(), MetaField::kScore, {}, 0, counts.span()));
            counts.Pull();
            EXPECT_EQ(std::count(counts.host(), counts.host() + 256, 0),
                      counts[128] == 0 ? 256 : 255)
                << "all scores are 0";
            EXPECT_GT(table->memory_bytes(), -1);
            break;
          }
          case 7: {
            TableContent rows;
            EXPECT_OK(call.ReadRows(some, &rows));
            for (const auto& key_and_row : rows) ExpectOneMoment(key_and_row.second);
            break;
          }
          case 8: {  // as if Apply had been called so many times
            TableContent rows, displaced;
            const int64_t k = static_cast<int64_t>(random() % 50);
            for (const Key key : some) rows[key] = RowOf(k * (k + 1) / 2, k, k);
            EXPECT_OK(call.InsertRows(rows, &displaced, &outcomes));
            balance += std::count(outcomes.begin(), outcomes.end(), Outcome::kInserted);
            EXPECT_EQ(std::count(outcomes.begin(), outcomes.end(), Outcome::kFound),
                      static_cast<int64_t>(displaced.size()));
            for (const auto& key_and_row : displaced) ExpectOneMoment(key_and_row.second);
            break;
          }
          default: {
            if (clear && random() % 4 == 0) {
              EXPECT_OK(call.Clear());
            } else {
              int64_t erased = -1;  // about one in thirty
              EXPECT_OK(call.EraseBelow(MetaField::kScore, {0, ~uint64_t{0} / 30}, &erased));
              balance -= erased;
            }
          }
        }
        EXPECT_GE(table->size(), 0);
      }
    });
    const TableContent content = call.Export();
    EXPECT_EQ(static_cast<int64_t>(content.size()), table->size());
    for (const auto& key_and_row : content) ExpectOneMoment(key_and_row.second);
    if (!clear) {
      EXPECT_EQ(table->size(), balance);
    }
    EXPECT_OK(call.Clear());
    EXPECT_EQ(table->size(), 0);
  }
}

}  // namespace dynemb

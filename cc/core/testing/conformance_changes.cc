// Changes: which keys a table says have changed, against a plain record of what was done.
#include <algorithm>
#include <map>
#include <random>
#include <set>

#include "cc/core/testing/caller.h"
#include "cc/core/testing/conformance_checks.h"
#include "gtest/gtest.h"

namespace dynemb {
namespace {

constexpr Key kKeys = 200;

// A table with random writes, and the record of them: for each key the last epoch in which it was
// written or erased.
class Changes {
 public:
  Changes(const TableHarness& harness, uint64_t seed)
      : random_(seed), t_(harness, FloatSchema(1, "", {MetaField::kScore})) {}

  Tested& tested() { return t_; }

  void Begin(int64_t epoch) {
    ASSERT_OK(t_.call.BeginEpoch(epoch));
    EXPECT_EQ(t_.table->epoch(), epoch);
    epoch_ = epoch;
  }

  void WriteAtRandom() {
    Keys keys;
    for (int64_t n = 1 + Below(20); n > 0; --n) keys.push_back(Below(kKeys) - kKeys / 2);
    if (Below(2) == 0) keys.push_back(keys[0]);
    const Floats values(keys.size(), static_cast<float>(Below(1000)));
    const OptimizerSpec& rule = t_.table->schema().rule;
    switch (Below(9)) {
      case 0:
        ASSERT_OK(t_.call.Upsert(keys, values));
        for (const Key key : keys) Written(key);
        break;
      case 1:
      case 2:
        ASSERT_OK(t_.call.Erase(keys));
        for (const Key key : keys) Erased(key);
        break;
      case 3: {  // some of which are there, as it says, and some not: then nothing happens
        std::vector<bool> exists;
        for (size_t i = 0; i < keys.size(); ++i) exists.push_back(Below(2) == 0);
        ASSERT_OK(t_.call.Accumulate(keys, values, exists));
        for (size_t i = 0; i < keys.size(); ++i) {
          if (exists[i] == (present_.count(keys[i]) > 0)) Written(keys[i]);
        }
        break;
      }
      case 4: {
        TableContent rows, displaced;
        const std::string slots(static_cast<size_t>(RowLayout(t_.table->schema()).slots_bytes), 0);
        for (const Key key : keys) rows[key] = {Bytes<float>({2}), slots, Bytes<int64_t>({key})};
        ASSERT_OK(t_.call.InsertRows(rows, Below(2) == 0 ? nullptr : &displaced));
        for (const Key key : keys) Written(key);
        break;
      }
      case 5:
        if (rule.name.empty()) break;
        ASSERT_OK(t_.call.Apply(keys, values, rule, UsualHyper("adagrad", 1)));
        for (const Key key : keys) Written(key);
        break;
      case 6:
        if (rule.name.empty()) break;
        ASSERT_OK(t_.call.Apply(keys, values, rule, UsualHyper("adagrad", 1), {}, nullptr,
                                IfMissing::kReport));
        for (const Key key : keys) {
          if (present_.count(key) > 0) Written(key);
        }
        break;
      case 7: {  // scores are 0 or those of InsertRows
        int64_t erased;
        const int64_t bound = -Below(kKeys / 2);
        std::set<Key> below;
        for (const auto& [key, row] : t_.call.Export()) {
          if (Numbers<int64_t>(row.meta)[0] < bound) below.insert(key);
        }
        ASSERT_OK(t_.call.EraseBelow(MetaField::kScore, {bound, 0}, &erased));
        EXPECT_EQ(erased, static_cast<int64_t>(below.size()));
        for (const Key key : below) Erased(key);
        break;
      }
      default: {  // what is no write
        Floats found;
        TableContent rows;
        ASSERT_OK(t_.call.Find(keys, &found));
        ASSERT_OK(t_.call.ReadRows(keys, &rows));
        ASSERT_OK(t_.call.Reserve(Below(1000)));
        if (Below(5) == 0) ASSERT_OK(t_.SetOptimizer(UsualRule("adagrad")));
      }
    }
  }

  // Compares what the table says has changed since an epoch, whole and in parts, with the record.
  void CompareSince(int64_t since) {
    SCOPED_TRACE(StrCat("since epoch ", since));
    std::set<Key> want;
    for (const auto& [key, epoch] : changed_in_) {
      if (epoch > since) want.insert(key);
    }
    for (const int64_t parts : {1, 3, 64, 100}) {
      std::set<Key> got;
      for (int64_t part = 0; part < parts; ++part) {
        Keys keys = {12345};  // what was there is no key that has changed
        ASSERT_OK(t_.call.ChangedKeys(since, &keys, {part, parts}));
        for (const Key key : keys) {
          EXPECT_TRUE(got.insert(key).second) << "key " << key << " appears twice";
        }
        if (parts != 3) continue;
        // The same share as that of an export.
        std::set<Key> exported;
        Cursor cursor;
        cursor.part = part, cursor.parts = parts;
        while (!cursor.done) {
          for (const auto& row : ExportSome(*t_.table, t_.call.memory(), 100, true, &cursor)) {
            exported.insert(row.first);
          }
        }
        for (const Key key : keys) EXPECT_EQ(exported.count(key), present_.count(key)) << key;
      }
      EXPECT_EQ(got, want) << parts << " parts";
    }
    TableContent rows;
    ASSERT_OK(t_.call.ReadRows(Keys(want.begin(), want.end()), &rows));
    for (const Key key : want) EXPECT_EQ(rows.count(key), present_.count(key)) << "key " << key;
  }

  void ExpectUnknown(int64_t since) {
    Keys keys;
    const Status status = t_.call.ChangedKeys(since, &keys);
    EXPECT_EQ(status.code(), Code::kFailedPrecondition) << "since epoch " << since;
    EXPECT_NE(status.message(), "");
    EXPECT_TRUE(keys.empty());
  }

  int64_t Below(int64_t n) { return static_cast<int64_t>(random_() % static_cast<uint64_t>(n)); }

 private:
  void Written(Key key) {
    present_.insert(key);
    if (epoch_ > 0) changed_in_[key] = epoch_;
  }
  void Erased(Key key) {
    if (present_.erase(key) > 0 && epoch_ > 0) changed_in_[key] = epoch_;
  }

  std::mt19937_64 random_;
  Tested t_;
  int64_t epoch_ = 0;
  std::set<Key> present_;
  std::map<Key, int64_t> changed_in_;
};

}  // namespace

void CheckChanges(const TableHarness& harness) {
  for (const uint64_t seed : {20, 21, 22}) {
    SCOPED_TRACE(StrCat("seed ", seed));
    Changes changes(harness, seed);
    for (int i = 0; i < 40; ++i) changes.WriteAtRandom();
    EXPECT_EQ(changes.tested().table->epoch(), 0);
    const TableContent before = changes.tested().call.Export();
    // A copy that gets the changes of each epoch after its end.
    TableContent copy;
    int64_t since = 4;
    std::vector<int64_t> epochs;
    for (const int64_t epoch : {5, 6, 7, 100, 101, 102}) {
      changes.Begin(epoch);
      if (epoch == 5) {
        copy = changes.tested().call.Export();
        EXPECT_EQ(Difference(before, copy), "");
      }
      Keys keys;
      ASSERT_OK(changes.tested().call.ChangedKeys(since, &keys));
      TableContent rows;
      ASSERT_OK(changes.tested().call.ReadRows(keys, &rows));
      for (const Key key : keys) copy.erase(key);
      for (const auto& [key, row] : rows) copy[key] = row;
      TableContent values = changes.tested().call.Export();
      // Slots of a rule that was set since then are no change.
      for (auto* content : {&copy, &values}) {
        for (auto& key_and_row : *content) key_and_row.second.slots.clear();
      }
      EXPECT_EQ(Difference(values, copy), "") << "epoch " << epoch;
      since = epoch - 1;

      epochs.push_back(epoch - 1);
      for (int i = 0; i < 30; ++i) changes.WriteAtRandom();
      for (const int64_t earlier : epochs) changes.CompareSince(earlier);
    }
    changes.CompareSince(102);
    changes.CompareSince(1000);
    changes.ExpectUnknown(3);
    // Older epochs are forgotten, newer ones stay.
    changes.tested().table->TrimChanges({6});
    changes.ExpectUnknown(5);
    for (const int64_t later : {6, 7, 99, 100}) changes.CompareSince(later);
    changes.tested().table->TrimChanges({50});
    changes.ExpectUnknown(6);
    changes.ExpectUnknown(49);
    for (const int64_t later : {50, 100, 101, 102}) changes.CompareSince(later);
    for (int i = 0; i < 10; ++i) changes.WriteAtRandom();
    for (const int64_t later : {50, 100, 101, 102}) changes.CompareSince(later);
  }
}

void CheckEpochs(const TableHarness& harness) {
  Tested t(harness, FloatSchema(1, "", {}));
  const auto expect = [&](int64_t since, Keys want) {
    Keys got;
    ASSERT_OK(t.call.ChangedKeys(since, &got));
    std::sort(got.begin(), got.end());
    EXPECT_EQ(got, want) << "since " << since;
  };
  const auto expect_unknown = [&](int64_t since) {
    Keys keys;
    EXPECT_EQ(t.call.ChangedKeys(since, &keys).code(), Code::kFailedPrecondition) << since;
  };
  // Not tracked yet; trimming nothing is no error.
  ASSERT_OK(t.call.Upsert({1, 2, 3}, {1, 1, 1}));
  EXPECT_EQ(t.table->epoch(), 0);
  for (const int64_t since : {-1, 0, 7}) expect_unknown(since);
  t.table->TrimChanges({100});

  // The first epoch: nothing has changed. Its number is the caller's.
  ASSERT_OK(t.call.BeginEpoch(int64_t{1} << 40));
  constexpr int64_t kFirst = int64_t{1} << 40;
  expect(kFirst - 1, {});
  expect_unknown(kFirst - 2);
  // Written, erased, erased and inserted again, inserted and erased again, erased in vain.
  ASSERT_OK(t.call.Upsert({1}, {2}));
  ASSERT_OK(t.call.Erase({2, 3}));
  ASSERT_OK(t.call.Upsert({3, 4}, {2, 2}));
  ASSERT_OK(t.call.Erase({4, 5}));
  expect(kFirst - 1, {1, 2, 3, 4});
  TableContent rows;
  ASSERT_OK(t.call.ReadRows({1, 2, 3, 4}, &rows));
  EXPECT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows.count(1) + rows.count(3), 2u);
  // The same keys again in the same epoch, over and over: each is listed once.
  for (int i = 0; i < 20; ++i) {
    ASSERT_OK(t.call.Erase({1, 3}));
    ASSERT_OK(t.call.Upsert({1, 3}, {1, 1}));
  }
  expect(kFirst - 1, {1, 2, 3, 4});
  expect(kFirst, {});

  // Epochs without changes, and one with.
  ASSERT_OK(t.call.BeginEpoch(kFirst + 1));
  ASSERT_OK(t.call.BeginEpoch(kFirst + 2));
  ASSERT_OK(t.call.Upsert({3, 6}, {1, 1}));
  ASSERT_OK(t.call.BeginEpoch(kFirst + 3));
  expect(kFirst + 2, {});
  expect(kFirst + 1, {3, 6});
  expect(kFirst, {3, 6});
  expect(kFirst - 1, {1, 2, 3, 4, 6});

  // Trimming: twice the same, backwards, and ahead of time, which leaves epochs to come alone.
  t.table->TrimChanges({kFirst});
  t.table->TrimChanges({kFirst});
  t.table->TrimChanges({5});
  expect_unknown(kFirst - 1);
  expect(kFirst, {3, 6});
  t.table->TrimChanges({INT64_MAX});
  expect_unknown(kFirst + 1);
  ASSERT_OK(t.call.BeginEpoch(kFirst + 4));
  ASSERT_OK(t.call.Erase({6}));
  expect(kFirst + 3, {6});

  // What Clear erased is not known; what comes in later epochs is.
  ASSERT_OK(t.call.Clear());
  expect_unknown(kFirst + 3);
  ASSERT_OK(t.call.Upsert({7}, {1}));
  expect_unknown(kFirst + 3);
  expect(kFirst + 4, {});
  ASSERT_OK(t.call.BeginEpoch(kFirst + 5));
  expect(kFirst + 4, {});
  ASSERT_OK(t.call.Upsert({1, 2}, {1, 1}));
  ASSERT_OK(t.call.Erase({2, 7}));
  expect(kFirst + 4, {1, 2, 7});
  expect_unknown(kFirst + 3);
}

// However a table remembers which keys it has listed in an epoch, it must not take an epoch of long
// ago for this one: each key comes back after a number of epochs of its own.
void CheckManyEpochs(const TableHarness& harness) {
  Tested t(harness, FloatSchema(1, "", {}));
  const std::vector<int64_t> periods = {1, 3, 64, 256, 1000, 1024, 2047, 2048, 4096};
  for (int64_t epoch = 1; epoch <= 2 * 4096; ++epoch) {
    Keys due, got;
    for (size_t key = 0; key < periods.size(); ++key) {
      if (epoch % periods[key] == 0) due.push_back(static_cast<Key>(key));
    }
    ASSERT_OK(t.call.BeginEpoch(epoch));
    ASSERT_OK(t.call.Upsert(due, Floats(due.size(), 1)));
    ASSERT_OK(t.call.ChangedKeys(epoch - 1, &got));
    std::sort(got.begin(), got.end());
    ASSERT_EQ(got, due) << "epoch " << epoch;
    t.table->TrimChanges({epoch - 1});
  }
}

}  // namespace dynemb

// When rows of every table expire, and when they leave. A program that links this defines
// MakeBoundedTable.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <set>
#include <vector>

#include "cc/core/table/evicted_rows.h"
#include "cc/core/testing/bounded.h"
#include "gtest/gtest.h"

namespace dynemb {
namespace {

TEST(ExpiryTest, AnExpiredRowIsMissingFromThatMoment) {
  const Bounded bounded(Options(-1, "lru ttl 10"), "sgd");
  ASSERT_OK(bounded.Upsert({1, 2}, 100));
  ASSERT_OK(bounded.Upsert({3}, 105));
  Outcomes outcomes;
  Floats values;
  ASSERT_OK(bounded.Upsert({4}, 110));
  ASSERT_OK(bounded.call->Find({1, 3}, &values, &outcomes));
  EXPECT_EQ(outcomes, Outcomes({kFound, kFound}));  // at the age of 10
  ASSERT_OK(bounded.Upsert({4}, 111));
  ASSERT_OK(bounded.call->Find({1, 2, 3}, &values, &outcomes));
  EXPECT_EQ(outcomes, Outcomes({kMissing, kMissing, kFound}));
  EXPECT_NE(values[0], 1);
  EXPECT_EQ(bounded.keys(), Set({3, 4}));
  TableContent rows;
  ASSERT_OK(bounded.call->ReadRows({1, 3}, &rows));
  EXPECT_EQ(rows.size(), 1u);
  // A clock that goes back lets no row expire, and none come back.
  ASSERT_OK(bounded.Upsert({5}, 3));
  EXPECT_EQ(bounded.keys(), Set({3, 4, 5}));
  ASSERT_OK(bounded.Upsert({6}, Stamp::kLatest));
  ASSERT_OK(bounded.Upsert({4}, 122));
  EXPECT_EQ(bounded.keys(), Set({4}));
  // Training it makes a new row.
  const std::vector<double> hyper = PlainSgd();
  Floats initial;
  ASSERT_OK(bounded.call->Find({1}, &initial));
  Stamp stamp;
  stamp.now = 123;
  ASSERT_OK(bounded.call->Apply({1}, {1, 1}, UsualRule("sgd"), hyper, stamp, &outcomes));
  EXPECT_EQ(outcomes, Outcomes({kInserted}));
  ASSERT_OK(bounded.call->Find({1}, &values));
  EXPECT_EQ(values[0], initial[0] - static_cast<float>(hyper[0]));
}

// As rows are that come from a table or file without times.
TEST(ExpiryTest, ARowWithoutATimeDoesNotExpireBeforeItIsWritten) {
  const Bounded from(Options(-1, "lru ttl 10")), bounded(Options(-1, "lru ttl 10"));
  ASSERT_OK(from.Upsert({1, 2}, 5));
  TableContent rows = from.call->Export();
  for (auto& [key, row] : rows) std::fill(row.meta.begin(), row.meta.end(), '\0');
  ASSERT_OK(bounded.call->InsertRows(rows));
  ASSERT_OK(bounded.Upsert({4}, 0));  // which is written, before any time
  EXPECT_EQ(bounded.keys(), Set({1, 2, 4}));
  for (int64_t now = 1000; now < 1100; ++now) ASSERT_OK(bounded.Upsert({3}, now));
  EXPECT_EQ(bounded.keys(), Set({1, 2, 3}));
  ASSERT_OK(bounded.Upsert({1}, 1100));
  ASSERT_OK(bounded.Upsert({3}, 1111));
  EXPECT_EQ(bounded.keys(), Set({2, 3}));
}

// Rows whose time is over are handed out as well, whether a hand comes by or a write of their key.
TEST(ExpiryTest, ExpiredRowsCanBeTaken) {
  TableOptions options = Options(-1, "ttl 5");
  options.evicted = std::make_shared<EvictedRows>(1000);
  const Bounded bounded(options);
  ASSERT_OK(bounded.Upsert({1, 2, 3}, 1));
  ASSERT_OK(bounded.Upsert({2}, 20));
  for (int64_t now = 20; now < 40; ++now) ASSERT_OK(bounded.Upsert({9}, now - now % 2));
  int64_t dropped;
  const KeptRows rows = options.evicted->Take(&dropped);
  // 2 expired twice.
  EXPECT_EQ(std::multiset<Key>(rows.keys.begin(), rows.keys.end()),
            std::multiset<Key>({1, 2, 2, 3}));
}

// The lowest score that can be given is no sign that a row has expired.
TEST(ExpiryTest, RowsOfTheLowestScoreDoNotExpire) {
  const Bounded bounded(Options(100, "score ttl 1000"));
  const std::vector<int64_t> lowest(50, INT64_MIN);
  Keys keys;
  for (Key key = 0; key < 50; ++key) keys.push_back(key);
  ASSERT_OK(bounded.call->Upsert(keys, Floats(100, 1), {1, lowest}));
  for (int64_t now = 2; now < 30; ++now) {
    ASSERT_OK(bounded.call->Upsert({7}, {1, 1}, {now, {lowest.data(), 1}}));
  }
  EXPECT_EQ(bounded.table->size(), 50);
  EXPECT_EQ(bounded.table->counters().expired, 0);
}

// Expired rows leave with the calls that come, without one that looks at all of them.
TEST(ExpiryTest, ExpiredRowsLeaveAndGiveTheirRoomBack) {
  const Bounded bounded(Options(20000, "lru ttl 10", OnFull::kDecline));
  Keys keys(20000);
  for (size_t i = 0; i < keys.size(); ++i) keys[i] = static_cast<Key>(i);
  ASSERT_OK(bounded.Upsert(keys, 1));
  for (int64_t now = 12; now < 12 + 2 * 20000 / 64; ++now) {
    ASSERT_OK(bounded.Upsert({-1}, now));
  }
  EXPECT_EQ(bounded.table->size(), 1);
  EXPECT_EQ(bounded.table->room(), 19999);
  // The first key found the table full: one of them made room for it, or was found to have expired.
  const TableCounters counters = bounded.table->counters();
  EXPECT_EQ(counters.expired + counters.evicted, 20000);
  EXPECT_LE(counters.evicted, 1);
}

// A full table whose rows have expired has room, whatever it does when it is full.
TEST(ExpiryTest, ExpiredRowsAreNoReasonToRefuse) {
  for (const OnFull on_full : {OnFull::kError, OnFull::kDecline}) {
    const Bounded bounded(Options(3000, "ttl 10", on_full));
    Keys keys(3000), others(3000);
    for (size_t i = 0; i < keys.size(); ++i) {
      keys[i] = static_cast<Key>(i);
      others[i] = 10'000 + keys[i];
    }
    ASSERT_OK(bounded.Upsert(keys, 1));
    Outcomes outcomes;
    if (on_full == OnFull::kError) {
      EXPECT_EQ(bounded.Upsert(others, 1).code(), Code::kResourceExhausted);
    }
    // Once the time is over, which a call must say.
    ASSERT_OK(bounded.Upsert({keys[0]}, 1000));
    others.pop_back();
    ASSERT_OK(bounded.Upsert(others, 1000, &outcomes));
    if (on_full == OnFull::kError) {
      EXPECT_EQ(outcomes, Outcomes(2999, kInserted));
    }
    ASSERT_OK(bounded.table->RemoveExpired(OneThread()));
    EXPECT_EQ(bounded.table->size(), static_cast<int64_t>(bounded.keys().size()));
  }
}

// They leave as fast as new ones come, so that keys without end find an end.
TEST(ExpiryTest, KeysWithoutEndAreForgotten) {
  const Bounded bounded(Options(-1, "ttl 10"));
  Key next = 0;
  for (int64_t now = 1; now < 500; ++now) {
    Keys keys(200);
    for (Key& key : keys) key = next++;
    ASSERT_OK(bounded.Upsert(keys, now));
    ASSERT_LE(bounded.table->size(), 3 * 11 * 200) << now;
  }
}

// After laps in which none has expired, and with rows that come from elsewhere and are older.
TEST(ExpiryTest, ExpiredRowsLeaveAfterAQuietTime) {
  const Bounded bounded(Options(-1, "ttl 1000"));
  Keys keys(300);
  for (size_t i = 0; i < keys.size(); ++i) keys[i] = static_cast<Key>(i);
  ASSERT_OK(bounded.Upsert(keys, 5000));
  const Bounded older(Options(-1, "ttl 1000"));
  ASSERT_OK(older.Upsert({1000, 1001}, 4900));
  for (int64_t now = 5001; now < 5100; ++now) ASSERT_OK(bounded.Upsert(keys, now));
  ASSERT_OK(bounded.call->InsertRows(older.call->Export()));
  EXPECT_EQ(bounded.table->size(), 302);
  for (int64_t now = 5901; now < 5921; ++now) ASSERT_OK(bounded.Upsert({0}, now));
  EXPECT_EQ(bounded.table->size(), 300);
  EXPECT_EQ(bounded.table->counters().expired, 2);
  for (int64_t now = 6100; now < 6120; ++now) ASSERT_OK(bounded.Upsert({0}, now));
  EXPECT_EQ(bounded.table->size(), 1);
  EXPECT_EQ(bounded.table->counters().expired, 301);
}

// Rows that come from elsewhere bring their time with them.
TEST(ExpiryTest, InsertedRowsSetTheClock) {
  const Bounded from(Options(-1, "lru ttl 10")), to(Options(-1, "lru ttl 10"));
  ASSERT_OK(from.Upsert({1}, 100));
  ASSERT_OK(from.Upsert({2}, 109));
  ASSERT_OK(to.call->InsertRows(from.call->Export()));
  ASSERT_OK(to.Upsert({3}, 5));  // at 109
  EXPECT_EQ(to.keys(), Set({1, 2, 3}));
  ASSERT_OK(to.Upsert({3}, 111));
  EXPECT_EQ(to.keys(), Set({2, 3}));
}

// Of a table whose policy counts steps, and this one's clock is that of the world; and back.
TEST(ExpiryTest, TimesInAnotherUnitAreNone) {
  const int64_t clock = EvictionPolicy::kFirstMicrosecond;
  const std::string units[] = {" steps", " microseconds"};
  for (const int64_t begin : {int64_t{0}, clock}) {
    const Bounded from(Options(-1, "lru ttl 10" + units[begin == 0]));
    const Bounded to(Options(-1, "lru ttl 10" + units[begin != 0]));
    ASSERT_OK(from.Upsert({1, 2}, clock - begin + 5));
    ASSERT_OK(to.call->InsertRows(from.call->Export()));
    ASSERT_OK(to.Upsert({3}, begin + 100));
    EXPECT_EQ(to.keys(), Set({1, 2, 3}));
    ASSERT_OK(to.Upsert({1, 4}, begin + 200));
    EXPECT_EQ(to.keys(), Set({1, 2, 4}));
    ASSERT_OK(to.Upsert({5}, begin + 300));
    EXPECT_EQ(to.keys(), Set({2, 5}));
  }
}

}  // namespace
}  // namespace dynemb

// The judge is judged: histories that can and cannot be explained.
#include "cc/core/testing/histories.h"

#include "gtest/gtest.h"

namespace dynemb {
namespace {

using Kind = Event::Kind;
constexpr Outcome kMissing = Outcome::kMissing;
constexpr Outcome kFound = Outcome::kFound;
constexpr Outcome kInserted = Outcome::kInserted;

Event Call(Kind kind, int64_t argument, uint64_t begin, uint64_t end, Outcome outcome,
           int64_t seen = 0) {
  Event event;
  event.kind = kind;
  event.argument = argument;
  event.begin = begin;
  event.end = end;
  event.outcome = outcome;
  event.seen.value = seen;
  return event;
}

bool Explained(const std::vector<Event>& events) { return ExplainHistory(events).empty(); }

TEST(ExplainHistory, OneAfterTheOther) {
  const std::vector<Event> events = {
      Call(Kind::kFind, 0, 1, 2, kMissing),         Call(Kind::kUpsert, 5, 3, 4, kInserted),
      Call(Kind::kFind, 0, 5, 6, kFound, 5),        Call(Kind::kApply, -1, 7, 8, kFound),
      Call(Kind::kFind, 0, 9, 10, kFound, 6),       Call(Kind::kApply, -1, 11, 12, kFound),
      Call(Kind::kFind, 0, 13, 14, kFound, 8),      Call(Kind::kErase, 0, 15, 16, kFound),
      Call(Kind::kAccumulate, 9, 17, 18, kInserted)};
  EXPECT_TRUE(Explained(events));
  for (size_t i = 0; i < events.size(); ++i) {  // no event can see something else
    std::vector<Event> wrong = events;
    wrong[i].outcome = wrong[i].outcome == kFound ? kMissing : kFound;
    EXPECT_FALSE(Explained(wrong)) << i;
    if (events[i].kind != Kind::kFind) continue;
    wrong = events;
    ++wrong[i].seen.value;
    EXPECT_FALSE(Explained(wrong)) << i;
  }
}

TEST(ExplainHistory, OverlappingCallsInEitherOrder) {
  const Event a = Call(Kind::kUpsert, 1, 1, 10, kInserted),
              b = Call(Kind::kUpsert, 2, 2, 9, kFound);
  for (const int64_t last : {1, 2}) {
    const Outcome first = last == 2 ? kInserted : kFound;
    Event a1 = a, b1 = b;
    a1.outcome = first;
    b1.outcome = first == kInserted ? kFound : kInserted;
    EXPECT_TRUE(Explained({a1, b1, Call(Kind::kFind, 0, 11, 12, kFound, last)}));
    EXPECT_FALSE(Explained({a1, b1, Call(Kind::kFind, 0, 11, 12, kFound, 3 - last)}));
  }
}

TEST(ExplainHistory, StaleReadAndReadFromTheFuture) {
  const Event first = Call(Kind::kUpsert, 1, 1, 2, kInserted);
  const Event second = Call(Kind::kUpsert, 2, 5, 6, kFound);
  EXPECT_TRUE(Explained({first, second, Call(Kind::kFind, 0, 3, 4, kFound, 1)}));
  EXPECT_FALSE(Explained({first, second, Call(Kind::kFind, 0, 3, 4, kFound, 2)}));
  EXPECT_FALSE(Explained({first, second, Call(Kind::kFind, 0, 7, 8, kFound, 1)}));
  // Two reads that agree with the write one by one but not with each other.
  const Event slow = Call(Kind::kUpsert, 2, 3, 12, kFound);
  EXPECT_TRUE(Explained(
      {first, slow, Call(Kind::kFind, 0, 4, 5, kFound, 1), Call(Kind::kFind, 0, 6, 7, kFound, 2)}));
  EXPECT_FALSE(Explained(
      {first, slow, Call(Kind::kFind, 0, 4, 5, kFound, 2), Call(Kind::kFind, 0, 6, 7, kFound, 1)}));
}

TEST(ExplainHistory, WholeRows) {
  Event insert = Call(Kind::kInsertRows, 5, 1, 2, kInserted);
  Event other = Call(Kind::kInsertRows, 9, 5, 8, kFound);
  other.seen = {true, 11, 6, 6};  // the row that it displaced: the one inserted, trained once
  Event read = Call(Kind::kReadRows, 0, 6, 7, kFound);
  const std::vector<Event> events = {insert, Call(Kind::kApply, -1, 3, 4, kFound), other, read};
  for (const RowState& seen : {RowState{true, 11, 6, 6}, RowState{true, 9, 9, 9}}) {
    std::vector<Event> whole = events;
    whole[3].seen = seen;  // before the other row or after it
    EXPECT_TRUE(Explained(whole));
    whole[3].outcome = kMissing;
    EXPECT_FALSE(Explained(whole));
  }
  for (const RowState& seen : {RowState{true, 9, 6, 6}, RowState{true, 11, 6, 9}}) {
    std::vector<Event> mixed = events;
    mixed[3].seen = seen;
    EXPECT_FALSE(Explained(mixed));
  }
  std::vector<Event> lost = {events[0], events[1], events[2]};
  EXPECT_TRUE(Explained(lost));
  lost[2].seen = {true, 5, 5, 5};  // it displaced the row without the training
  EXPECT_FALSE(Explained(lost));
}

TEST(ExplainHistory, UpdatesOfFoundRows) {
  Event first = Call(Kind::kApply, -1, 1, 2, kMissing);
  first.reports = true;
  Event second = Call(Kind::kApply, -1, 5, 6, kFound);
  second.reports = true;
  const std::vector<Event> events = {first, Call(Kind::kUpsert, 5, 3, 4, kInserted), second,
                                     Call(Kind::kFind, 0, 7, 8, kFound, 6)};
  EXPECT_TRUE(Explained(events));
  for (size_t i = 0; i < events.size(); ++i) {
    std::vector<Event> wrong = events;
    wrong[i].outcome = wrong[i].outcome == kFound ? kMissing : kFound;
    EXPECT_FALSE(Explained(wrong)) << i;
  }
}

TEST(ExplainHistory, LostUpdateAndMixedRow) {
  std::vector<Event> events = {Call(Kind::kApply, -1, 1, 4, kInserted),
                               Call(Kind::kApply, -1, 2, 3, kFound)};
  Event row;
  row.kind = Kind::kExport;
  row.begin = 5;
  row.end = 6;
  row.seen = {true, 3, 2, 2};
  events.push_back(row);
  EXPECT_TRUE(Explained(events));
  events[2].seen = {true, 1, 1, 1};  // one of the two is lost
  EXPECT_FALSE(Explained(events));
  events[2].seen = {true, 3, 1, 2};  // a slot of another moment
  EXPECT_FALSE(Explained(events));
  events[2].begin = 0;  // an export that overlaps both may see either
  events[2].seen = {true, 1, 1, 1};
  EXPECT_TRUE(Explained(events));
}

}  // namespace
}  // namespace dynemb

#include "cc/core/testing/histories.h"

#include <algorithm>
#include <set>
#include <utility>

#include "cc/core/base/status.h"

namespace dynemb {
namespace {

bool SameNumbers(const RowState& a, const RowState& b) {
  return a.value == b.value && a.slot == b.slot && a.count == b.count;
}

// Does the event on the row as it is; false if it would have seen something else.
bool Step(const Event& event, RowState* row) {
  const bool present = row->present;
  const Outcome found = present ? Outcome::kFound : Outcome::kMissing;
  const Outcome found_or_inserted = present ? Outcome::kFound : Outcome::kInserted;
  const RowState& seen = event.seen;
  switch (event.kind) {
    case Event::Kind::kFind:
      return event.outcome == found && seen.value == (present ? row->value : 0);
    case Event::Kind::kReadRows:
      return event.outcome == found && (!present || SameNumbers(seen, *row));
    case Event::Kind::kExport:
      return present && SameNumbers(seen, *row);
    case Event::Kind::kInsertRows: {
      const bool explained =
          event.outcome == found_or_inserted && (!present || SameNumbers(seen, *row));
      const int64_t number = event.argument % Event::kRowNumbers;
      *row = {true, event.argument, number, number};
      return explained;
    }
    case Event::Kind::kApply:
      if (!present && event.reports) return event.outcome == Outcome::kMissing;
      if (!present) *row = RowState();
      row->present = true;
      row->slot -= event.argument;
      row->value += row->slot;
      ++row->count;
      return event.outcome == found_or_inserted;
    case Event::Kind::kUpsert:
      if (!present) *row = RowState();
      row->present = true;
      row->value = event.argument;
      ++row->count;
      return event.outcome == found_or_inserted;
    case Event::Kind::kAccumulate:
      if (event.exists != present) return event.outcome == found;
      if (!present) *row = RowState();
      row->present = true;
      row->value += event.argument;
      ++row->count;
      return event.outcome == found_or_inserted;
    case Event::Kind::kErase:
      *row = RowState();
      return event.outcome == found;
  }
  return false;
}

std::string Text(const Event& event) {
  constexpr const char* kNames[] = {"find",   "read rows",  "export", "apply",
                                    "upsert", "accumulate", "erase",  "insert rows"};
  return StrCat("\n  [", event.begin, ", ", event.end, "] ", kNames[static_cast<int>(event.kind)],
                " ", event.argument, event.exists ? " exists" : "", event.reports ? " reports" : "",
                ": outcome ", static_cast<int>(event.outcome), ", value ", event.seen.value,
                ", slot ", event.seen.slot, ", count ", event.seen.count);
}

// An explanation up to now: the row, and which of the open calls have had their moment.
using Explanation = std::pair<RowState, uint64_t>;

// Gives open calls their moments until `wanted` has had its own, in all possible orders.
void Advance(const std::vector<const Event*>& open, int wanted, const Explanation& from,
             std::set<Explanation>* seen, std::set<Explanation>* reached) {
  if (!seen->insert(from).second) return;
  for (size_t slot = 0; slot < open.size(); ++slot) {
    const uint64_t bit = uint64_t{1} << slot;
    if (open[slot] == nullptr || (from.second & bit) != 0) continue;
    Explanation next = from;
    if (!Step(*open[slot], &next.first)) continue;
    next.second |= bit;
    if (static_cast<int>(slot) == wanted) {
      reached->insert(next);
    } else {
      Advance(open, wanted, next, seen, reached);
    }
  }
}

}  // namespace

std::string ExplainHistory(std::vector<Event> events) {
  // Begins and ends in the order of time.
  std::vector<std::pair<uint64_t, const Event*>> moments;
  for (const Event& event : events) {
    moments.emplace_back(event.begin, &event);
    moments.emplace_back(event.end, &event);
  }
  std::sort(moments.begin(), moments.end());
  std::vector<const Event*> open;  // by slot; null where a slot is free
  std::set<Explanation> explanations = {{RowState(), 0}};
  for (const auto& [time, event] : moments) {
    auto slot = std::find(open.begin(), open.end(), time == event->begin ? nullptr : event);
    if (time == event->begin) {
      if (slot == open.end()) slot = open.insert(slot, nullptr);
      *slot = event;
      continue;
    }
    const int wanted = static_cast<int>(slot - open.begin());
    const uint64_t bit = uint64_t{1} << wanted;
    std::set<Explanation> seen, reached;
    for (const Explanation& explanation : explanations) {
      if ((explanation.second & bit) != 0) {
        reached.insert(explanation);
      } else {
        Advance(open, wanted, explanation, &seen, &reached);
      }
    }
    if (reached.empty()) {
      std::string text = "no order of these calls explains what the first one saw:" + Text(*event);
      for (const Event& other : events) {
        if (&other != event && other.end + 40 > event->begin && other.begin < event->end) {
          text += Text(other);
        }
      }
      return text;
    }
    explanations.clear();
    for (Explanation explanation : reached) {
      explanation.second &= ~bit;
      explanations.insert(explanation);
    }
    *slot = nullptr;
  }
  return "";
}

}  // namespace dynemb

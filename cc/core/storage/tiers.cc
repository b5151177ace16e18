#include "cc/core/storage/tiers.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>
#include <utility>

#include "cc/core/base/hash.h"
#include "cc/core/base/no_memory.h"
#include "cc/core/storage/worker_threads.h"
#include "cc/core/table/batch_order.h"
#include "cc/core/table/evictor.h"
#include "cc/core/table/host_table.h"
#include "cc/core/table/memory_bound.h"

namespace dynemb {
namespace {

constexpr int64_t kHands = BatchOrder::kSegments;  // of the clock
constexpr int64_t kHandKeys = 1024;           // that leave at once, and most that a hand looks at
constexpr int64_t kScanKeys = 2048;           // that a scan asks for at once
constexpr int64_t kEvictedAtOnce = 64 << 10;  // rows, of which each is read if it is kept
constexpr int64_t kReadBytes = int64_t{4} << 20;  // of rows that are read at once
constexpr int64_t kKeysPerTask = 4096;            // that a task looks up
constexpr int64_t kAhead = 8;                     // keys that are fetched ahead
constexpr int kLeastUsedBits = 10, kMostUsedBits = 30;

// Calls look(begin, end), which takes no memory, for shares of [0, n), on several threads if there
// are many. An error: there is no memory for these, and nothing has been called.
template <typename Look>
Status InShares(int64_t n, const Look& look) {
  if (n <= 2 * kKeysPerTask) {
    look(int64_t{0}, n);
    return Status();
  }
  const int64_t tasks = (n + kKeysPerTask - 1) / kKeysPerTask;
  return ComputeThreads()->Run(tasks, 0, [&](int64_t task) {
    look(task * kKeysPerTask, std::min(n, (task + 1) * kKeysPerTask));
  });
}

// At the beginning of its lap.
Cursor Hand(int64_t part) {
  Cursor hand;
  hand.part = part;
  hand.parts = kHands;
  hand.with_expired = true;
  return hand;
}

// Moves those of the first n rows that have been found, and their keys, together.
void MoveFoundForward(const std::vector<Outcome>& outcomes, int64_t n, int64_t row_bytes,
                      char* rows, Key* keys) {
  int64_t next = 0;
  for (int64_t i = 0; i < n; ++i) {
    if (outcomes[static_cast<size_t>(i)] != Outcome::kFound) continue;
    if (next < i)
      std::memcpy(rows + next * row_bytes, rows + i * row_bytes, static_cast<size_t>(row_bytes));
    keys[next++] = keys[i];
  }
}

// What ties are broken by, as in Evictor.
uint64_t TieOf(Key key) { return TieOfHash(Mix64(static_cast<uint64_t>(key))); }

Context Threads() {
  Context context;
  context.executor = ComputeThreads();
  return context;
}

}  // namespace

Context Tiers::Inner(const Context& context) {
  static InlineExecutor* const alone = new InlineExecutor;
  Context inner;
  inner.executor = context.executor->concurrency() > 1 ? ComputeThreads() : alone;
  return inner;
}

Status Tiers::Make(const TableSchema& schema, const TableOptions& options,
                   const StorageOptions& storage, std::unique_ptr<Tiers>* tiers) {
  std::unique_ptr<Tiers> made(new Tiers(schema, options, storage));
  DYNEMB_RETURN_IF_ERROR(made->MakeAbove(schema, &made->above_));
  made->below_ = std::make_unique<DiskRows>(storage.disk, storage.least_file_bytes,
                                            options.eviction, made->options_.clock);
  if (storage.flushed != nullptr) {
    DYNEMB_RETURN_IF_ERROR(
        made->below_->Reopen(storage.flushed->shards[static_cast<size_t>(storage.shard)]));
  }
  DiskRows::NextSchema next;
  DYNEMB_RETURN_IF_ERROR(made->below_->PrepareSchema(schema, &next));
  made->below_->SetSchema(std::move(next));
  if (storage.flushed != nullptr) DYNEMB_RETURN_IF_ERROR(made->below_->ReadNumbers());
  made->MakeUsed();
  *tiers = std::move(made);
  return Status();
}

void Tiers::SetScores() {
  if (options_.evicted != nullptr && expired_above_ == nullptr) {
    expired_above_ = std::make_shared<EvictedRows>(INT64_MAX);
  }
  if (!options_.eviction.evicts() && !options_.eviction.expires()) return;
  if (options_.clock == nullptr) options_.clock = std::make_shared<PolicyClock>();
  scores_.emplace(options_.eviction, layout_, schema_.value_dtype, options_.clock);
}

Status Tiers::MakeAbove(const TableSchema& schema, std::unique_ptr<Table>* table) const {
  TableOptions of_above;
  of_above.missing_value = options_.missing_value;
  of_above.eviction = options_.eviction;
  of_above.removes_rows = false;
  of_above.clock = options_.clock;
  of_above.evicted = expired_above_;
  of_above.max_rows = storage_.max_rows;
  if (storage_.max_bytes >= 0) {
    const RowLayout layout(schema);
    const int64_t rows = RowsWithin(storage_.max_bytes, layout, 0);
    if (rows == 0) {
      return InvalidArgument("storage: got ", storage_.max_bytes,
                             " bytes of host memory for a shard, want at least ",
                             IndexBytes(1) + RowBytes(1, layout), ", for a row of ",
                             layout.row_bytes, " bytes; give a larger HostMemory");
    }
    of_above.max_rows = storage_.max_rows < 0 ? rows : std::min(rows, storage_.max_rows);
  }
  DYNEMB_RETURN_IF_ERROR(MakeHostTable(schema, of_above, table));
  // So that the index does not grow to more, twice for a moment, than it was counted as.
  return storage_.max_bytes < 0 ? Status() : (*table)->Reserve(OneThread(), of_above.max_rows);
}

void Tiers::MakeUsed() {
  int bits = kLeastUsedBits;
  while (bits < kMostUsedBits && int64_t{1} << bits < max_rows_above()) ++bits;
  used_size_ = size_t{1} << bits;
  used_shift_ = 64 - bits;
  used_.reset(new std::atomic<uint8_t>[used_size_]());
  ResetHands();
}

RowParts Tiers::PartsOf(char* rows, int64_t count) const {
  RowParts parts;
  parts.values = Rows(rows, count, layout_.row_bytes);
  if (layout_.slots_bytes > 0) {
    parts.slots = Rows(rows + layout_.slots_offset, count, layout_.row_bytes);
  }
  if (layout_.meta_bytes > 0) {
    parts.meta = Rows(rows + layout_.meta_offset, count, layout_.row_bytes);
  }
  return parts;
}

bool Tiers::NoneBelow(const Batch& batch) {
  if (below_->empty()) return true;
  std::atomic<bool> none{true};
  const Status looked = InShares(PositionsOf(batch), [&](int64_t begin, int64_t end) {
    uint64_t ahead[kAhead];
    const auto fetch = [&](int64_t j) {
      if (j >= end) return;
      const uint64_t hash = DiskHash(batch.keys[PositionOf(batch, j)]);
      ahead[j % kAhead] = hash;
      below_->Prefetch(hash);
      __builtin_prefetch(&Used(hash));
    };
    for (int64_t j = begin; j < begin + kAhead; ++j) fetch(j);
    for (int64_t j = begin; j < end; ++j) {
      const uint64_t hash = ahead[j % kAhead];
      fetch(j + kAhead);
      std::atomic<uint8_t>& used = Used(hash);
      if (used.load(std::memory_order_relaxed) == 0) used.store(1, std::memory_order_relaxed);
      if (below_->FindAny(hash) != kNowhere) none.store(false, std::memory_order_relaxed);
    }
  });
  return looked.ok() && none;
}

void Tiers::Touch(const Batch& batch) {
  // An error only makes rows seem unused.
  static_cast<void>(InShares(PositionsOf(batch), [&](int64_t begin, int64_t end) {
    for (int64_t j = begin; j < end; ++j) {
      std::atomic<uint8_t>& used = Used(DiskHash(batch.keys[PositionOf(batch, j)]));
      if (used.load(std::memory_order_relaxed) == 0) used.store(1, std::memory_order_relaxed);
    }
  }));
}

bool Tiers::TakeRoom(int64_t keys) {
  // The calls under way may need what they have taken, so that it does not count as room; if it was
  // needed already, it is counted twice, and this one waits for no harm.
  const int64_t taken = calls_.fetch_add(keys, std::memory_order_acq_rel) + keys;
  if (taken <= std::min(above_->room(), room())) return true;
  GiveRoom(keys);
  return false;
}

void Tiers::CountRead(int64_t found, int64_t missing) const {
  own_found_.fetch_add(found, std::memory_order_relaxed);
  own_missing_.fetch_add(missing, std::memory_order_relaxed);
}

void Tiers::CountWritten(int64_t keys, int64_t TableCounters::* what) {
  own_writes_.written += keys;
  own_writes_.distinct += keys;
  own_writes_.*what += keys;
}

void Tiers::CountErased(int64_t positions) {
  if (positions == 0) return;
  own_writes_.written -= positions;
  --own_writes_.distinct;
  --own_writes_.erased;
}

TableCounters Tiers::own_calls() const {
  TableCounters counters = own_writes_;
  counters.found += own_found_;
  counters.missing += own_missing_;
  return counters;
}

Status Tiers::FindAbove(Span<const Key> keys, std::vector<Outcome>* outcomes) const {
  outcomes->assign(static_cast<size_t>(keys.size), Outcome::kMissing);
  Batch batch;
  batch.keys = keys;
  Report report;
  report.outcomes = *outcomes;
  DYNEMB_RETURN_IF_ERROR(above_->ReadRows(Threads(), batch, RowParts(), report));
  const int64_t found = std::count(outcomes->begin(), outcomes->end(), Outcome::kFound);
  CountRead(found, keys.size - found);
  return Status();
}

Status Tiers::InsertAbove(Span<const Key> keys, char* rows) {
  if (keys.size == 0) return Status();
  std::vector<Outcome> outcomes(static_cast<size_t>(keys.size), Outcome::kFull);
  Batch batch;
  batch.keys = keys;
  Report report;
  report.outcomes = outcomes;
  const RowParts parts = PartsOf(rows, keys.size);
  const Status inserted = above_->InsertRows(
      Threads(), batch, {{}, parts.values, parts.slots, parts.meta}, RowParts(), report);
  const int64_t done = std::count(outcomes.begin(), outcomes.end(), Outcome::kInserted);
  copies_ += done;
  CountWritten(done, &TableCounters::inserted);
  return inserted;
}

Status Tiers::CopyDown(const std::vector<Key>& keys) {
  std::vector<Key> changed;  // that have no copy below
  below_->ForEachHash(keys, [&](int64_t i, uint64_t hash) {
    if (below_->FindAny(hash) == kNowhere) changed.push_back(keys[static_cast<size_t>(i)]);
  });
  const int64_t at_once = std::max<int64_t>(1, kReadBytes / layout_.row_bytes);
  const int64_t most = std::min(at_once, static_cast<int64_t>(changed.size()));
  std::vector<char> rows(static_cast<size_t>(most * layout_.row_bytes));
  std::vector<Outcome> outcomes(static_cast<size_t>(most));
  Status put;
  int64_t done = 0;
  while (put.ok() && done < static_cast<int64_t>(changed.size())) {
    const int64_t n = std::min(at_once, static_cast<int64_t>(changed.size()) - done);
    Batch batch;
    batch.keys = {&changed[static_cast<size_t>(done)], n};
    Report report;
    report.outcomes = {outcomes.data(), n};
    put = above_->ReadRows(Threads(), batch, PartsOf(rows.data(), n), report);
    const int64_t found = std::count(outcomes.begin(), outcomes.begin() + n, Outcome::kFound);
    CountRead(found, n - found);
    // Those that have expired need no copy.
    if (found < n)
      MoveFoundForward(outcomes, n, layout_.row_bytes, rows.data(),
                       &changed[static_cast<size_t>(done)]);
    const int64_t below = below_->size();
    if (put.ok()) put = below_->Put({batch.keys.data, found}, rows.data());
    copies_ += below_->size() - below;
    done += n;
  }
  return put;
}

Status Tiers::Down(const std::vector<Key>& keys) {
  if (keys.empty()) return Status();
  const Status put = CopyDown(keys);
  // What is below now leaves, also where the disk had no room for all.
  std::vector<Key> some;
  for (size_t i = 0; !put.ok() && i < keys.size(); ++i) {
    if (below_->FindAny(DiskHash(keys[i])) != kNowhere) some.push_back(keys[i]);
  }
  const std::vector<Key>& gone = put.ok() ? keys : some;
  std::vector<Outcome> outcomes(gone.size(), Outcome::kFull);
  gone_.reserve(gone_.size() + gone.size());
  Batch batch;
  batch.keys = gone;
  Report report;
  report.outcomes = outcomes;
  const Status erased = above_->Erase(Threads(), batch, report);
  const int64_t left = std::count(outcomes.begin(), outcomes.end(), Outcome::kFound);
  copies_ -= left;
  for (size_t i = 0; i < gone.size(); ++i) {
    if (outcomes[i] != Outcome::kMissing) continue;
    // It had expired, and its copy with it.
    gone_.push_back(gone[i]);
    if (below_->Remove(DiskHash(gone[i]))) --copies_;
  }
  rows_left_ += left;
  CountWritten(left, &TableCounters::erased);
  return put.ok() ? erased : put;
}

void Tiers::ResetHands() {
  for (auto* hands : {&hands_, &evicting_, &sweeping_}) {
    hands->resize(kHands);
    for (int64_t part = 0; part < kHands; ++part) (*hands)[static_cast<size_t>(part)] = Hand(part);
  }
}

Status Tiers::MakeRoom(int64_t need, int64_t next, const Stays& stays) {
  const int64_t most = max_rows_above();
  const int64_t room = above_->room();
  if (room >= need && room >= std::min(next, most / 4)) return Status();
  const int64_t wanted = std::min(most, need + std::min(std::max(next, most / 16), most / 4));
  // A hand's turn is a small part of its segment, so that segments stay about as full.
  std::vector<Key> keys(
      static_cast<size_t>(std::clamp<int64_t>(most / (32 * kHands), 4, kHandKeys)));
  std::vector<Key> leaving;
  Status left;
  for (int laps = 0; laps < 3 && above_->room() < wanted && left.ok();) {
    Cursor& hand = hands_[turn_];
    turn_ = (turn_ + 1) % hands_.size();
    RowParts out;
    out.keys = keys;
    int64_t count = 0;
    if (!hand.done) left = above_->Export(OneThread(), &hand, out, &count);
    const int64_t most_leave = wanted - above_->room();
    for (int64_t i = 0; i < count && static_cast<int64_t>(leaving.size()) < most_leave; ++i) {
      const Key key = keys[static_cast<size_t>(i)];
      std::atomic<uint8_t>& used = Used(DiskHash(key));
      // In the second lap nothing is spared that need not stay.
      if (laps < 2 && used.load(std::memory_order_relaxed) != 0) {
        used.store(0, std::memory_order_relaxed);
      } else if (!stays(key)) {
        leaving.push_back(key);
      }
    }
    const bool lap_is_over = turn_ == 0 && std::all_of(hands_.begin(), hands_.end(),
                                                       [](const Cursor& h) { return h.done; });
    const int64_t found = static_cast<int64_t>(leaving.size());
    if (left.ok() && (lap_is_over || found >= std::min(kHandKeys, most_leave))) {
      left = Down(leaving);
      leaving.clear();
    }
    if (lap_is_over) {
      for (int64_t part = 0; part < kHands; ++part) hands_[static_cast<size_t>(part)] = Hand(part);
      ++laps;
    }
  }
  // The room for next calls can wait, and so can the disk's space.
  if (left.ok()) static_cast<void>(below_->Compact());
  if (above_->room() >= need) return Status();
  return left.ok() ? ResourceExhausted("storage: no room for ", need, " rows of ", most,
                                       " in host memory; give a larger HostMemory")
                   : left;
}

Status Tiers::BringUp(const std::vector<Key>& keys, const std::vector<Location>& locations,
                      const std::vector<char>& rows, int64_t locations_made) {
  if (locations_made != below_->locations_made()) return Status();
  const size_t row_bytes = static_cast<size_t>(layout_.row_bytes);
  if (rows.size() != keys.size() * row_bytes) return Status();  // the schema has changed
  const DistinctKeys all{Span<const Key>(keys)};
  DYNEMB_RETURN_IF_ERROR(MakeRoom(static_cast<int64_t>(keys.size()),
                                  static_cast<int64_t>(keys.size()),
                                  [&](Key key) { return all.NumberOf(key) >= 0; }));
  std::vector<Outcome> outcomes;
  DYNEMB_RETURN_IF_ERROR(FindAbove(keys, &outcomes));
  std::vector<Key> up;
  std::vector<char> up_rows;
  for (size_t i = 0; i < keys.size(); ++i) {
    if (outcomes[i] == Outcome::kFound) continue;
    if (below_->Find(DiskHash(keys[i])) != locations[i]) continue;
    up.push_back(keys[i]);
    up_rows.insert(up_rows.end(), rows.begin() + static_cast<std::ptrdiff_t>(i * row_bytes),
                   rows.begin() + static_cast<std::ptrdiff_t>((i + 1) * row_bytes));
  }
  return InsertAbove(up, up_rows.data());
}

Status Tiers::MakeResident(Span<const Key> keys, int64_t next, const Stays& stays) {
  std::vector<Outcome> outcomes;
  DYNEMB_RETURN_IF_ERROR(RemoveExpired(keys, &outcomes));
  const int64_t missing = std::count(outcomes.begin(), outcomes.end(), Outcome::kMissing);
  DYNEMB_RETURN_IF_ERROR(MakeRoom(missing, next, stays));
  if (below_->empty()) return Status();
  std::vector<std::pair<Location, Key>> wanted;
  below_->ForEachHash(keys, [&](int64_t i, uint64_t hash) {
    if (outcomes[static_cast<size_t>(i)] == Outcome::kFound) return;
    const Location location = below_->Find(hash);
    if (location != kNowhere) wanted.emplace_back(location, keys[i]);
  });
  std::sort(wanted.begin(), wanted.end());
  AddMisses(static_cast<int64_t>(wanted.size()));
  const size_t at_once = static_cast<size_t>(std::max<int64_t>(1, kReadBytes / layout_.row_bytes));
  std::vector<Key> some;
  std::vector<Location> locations;
  std::vector<char> rows;
  for (size_t begin = 0; begin < wanted.size(); begin += at_once) {
    const size_t end = std::min(wanted.size(), begin + at_once);
    some.clear();
    locations.clear();
    for (size_t i = begin; i < end; ++i) {
      locations.push_back(wanted[i].first);
      some.push_back(wanted[i].second);
    }
    rows.resize(some.size() * static_cast<size_t>(layout_.row_bytes));
    DYNEMB_RETURN_IF_ERROR(below_->Read(locations, rows.data()));
    DYNEMB_RETURN_IF_ERROR(InsertAbove(some, rows.data()));
  }
  below_->ForEachHash(keys, [&](int64_t, uint64_t hash) { copies_ -= below_->Remove(hash); });
  return Status();
}

Status Tiers::ForEachAbove(const TablePart& part, bool with_expired,
                           const KeysFunction& keys) const {
  std::vector<Key> some;
  Cursor cursor;
  static_cast<TablePart&>(cursor) = part;
  cursor.with_expired = with_expired;
  while (!cursor.done) {
    some.resize(static_cast<size_t>(kScanKeys));
    RowParts out;
    out.keys = some;
    int64_t count = 0;
    DYNEMB_RETURN_IF_ERROR(above_->Export(OneThread(), &cursor, out, &count));
    some.resize(static_cast<size_t>(count));
    DYNEMB_RETURN_IF_ERROR(keys(some));
  }
  return Status();
}

Status Tiers::AllDown() {
  return ForEachAbove({}, true, [&](const std::vector<Key>& keys) { return Down(keys); });
}

Status Tiers::RemoveRows(Span<const Key> keys, int64_t TableCounters::* reason, int64_t* removed) {
  *removed = 0;
  const int64_t at_once = std::max<int64_t>(1, kReadBytes / layout_.row_bytes);
  for (int64_t begin = 0; begin < keys.size; begin += at_once) {
    const int64_t end = std::min(keys.size, begin + at_once);
    // Of more rows than are kept the first would be dropped.
    const bool keeps = evicted() != nullptr && end > keys.size - evicted()->most();
    // A row above that has expired is not seen there. Its copy tells, if it has one.
    std::vector<Key> expired, others;
    const Span<const Key> these = {keys.data + begin, end - begin};
    below_->ForEachHash(these, [&](int64_t i, uint64_t hash) {
      const bool is_over = below_->FindAny(hash) != kNowhere && below_->Find(hash) == kNowhere;
      (is_over ? expired : others).push_back(these[i]);
    });
    DYNEMB_RETURN_IF_ERROR(RemoveAlike(expired, true, keeps, reason, removed));
    DYNEMB_RETURN_IF_ERROR(RemoveAlike(others, false, keeps, reason, removed));
  }
  return Status();
}

Status Tiers::RemoveAlike(const std::vector<Key>& keys, bool expired_below, bool keeps,
                          int64_t TableCounters::* reason, int64_t* removed) {
  if (keys.empty()) return Status();
  gone_.insert(gone_.end(), keys.begin(), keys.end());
  std::vector<Outcome> outcomes(keys.size(), Outcome::kFull);
  Batch batch;
  batch.keys = keys;
  Report report;
  report.outcomes = outcomes;
  // Values of rows that are seen above or are below. The others the table above gives away itself.
  KeptRows values;
  if (keeps && !expired_below) values = ReadToKeep(keys);
  static_cast<void>(KeepExpiredAbove());
  const int64_t before = above_->counters().expired;
  const Status erased = above_->Erase(Threads(), batch, report);
  const int64_t unseen = above_->counters().expired - before;  // rows above that have expired
  std::set<Key> given;
  if (keeps && expired_below && KeepExpiredAbove(&given).ok()) {
    // Without memory, or the disk, rows leave without being kept.
    static_cast<void>(OrNoMemory([&] {
      std::vector<Key> others;
      std::copy_if(keys.begin(), keys.end(), std::back_inserter(others),
                   [&](Key key) { return given.count(key) == 0; });
      values = ReadToKeep(others);
    }));
  }
  int64_t found = 0, only_below = 0, copies = 0;
  below_->ForEachHash(keys, [&](int64_t i, uint64_t hash) {
    const Outcome outcome = outcomes[static_cast<size_t>(i)];
    if (outcome == Outcome::kFull) return;  // it is still there
    found += outcome == Outcome::kFound;
    if (below_->Remove(hash)) ++(outcome == Outcome::kFound ? copies : only_below);
  });
  if (expired_below) {  // each row above has its copy
    only_below -= unseen;
    copies += unseen;
  }
  copies_ -= copies;
  CountWritten(found, &TableCounters::erased);
  own_writes_.expired += unseen;
  own_writes_.*reason -= found + unseen + only_below;
  *removed += found + unseen + only_below;
  if (evicted() != nullptr) {
    if (!erased.ok()) values = KeptRows();  // some of them are still there
    evicted()->AddDropped(found + only_below - values.size());
    evicted()->Add(std::move(values));
  }
  return erased;
}

Status Tiers::KeepExpiredAbove(std::set<Key>* keys) {
  if (expired_above_ == nullptr) return Status();
  return OrNoMemory([&] {
    int64_t dropped;
    KeptRows rows = expired_above_->Take(&dropped);  // or they wait for the next time
    const Status known = OrNoMemory([&] {
      if (keys != nullptr) keys->insert(rows.keys.begin(), rows.keys.end());
    });
    evicted()->AddDropped(dropped);
    evicted()->Add(std::move(rows));
    return known;
  });
}

KeptRows Tiers::ReadToKeep(const std::vector<Key>& keys) {
  const int64_t n = static_cast<int64_t>(keys.size()), row_bytes = layout_.row_bytes;
  KeptRows kept;
  // Those of an error are not kept.
  static_cast<void>(OrNoMemory([&] {
    std::vector<char> rows(static_cast<size_t>(n * row_bytes));
    std::vector<Outcome> outcomes(keys.size(), Outcome::kMissing);
    Batch batch;
    batch.keys = keys;
    Report report;
    report.outcomes = outcomes;
    DYNEMB_RETURN_IF_ERROR(above_->ReadRows(Threads(), batch, PartsOf(rows.data(), n), report));
    const int64_t found = std::count(outcomes.begin(), outcomes.end(), Outcome::kFound);
    CountRead(found, n - found);
    std::vector<std::pair<Location, Key>> below;
    kept.Reserve(n, layout_.value_bytes);
    for (size_t i = 0; i < keys.size(); ++i) {
      if (outcomes[i] == Outcome::kFound) {
        kept.Add(keys[i], &rows[i * static_cast<size_t>(row_bytes)], layout_.value_bytes);
      } else if (const Location at = below_->FindAny(DiskHash(keys[i])); at != kNowhere) {
        below.emplace_back(at, keys[i]);
      }
    }
    std::sort(below.begin(), below.end());
    std::vector<Location> locations;
    for (const auto& [location, key] : below) locations.push_back(location);
    DYNEMB_RETURN_IF_ERROR(below_->Read(locations, rows.data()));
    for (size_t i = 0; i < below.size(); ++i) {
      kept.Add(below[i].second, &rows[i * static_cast<size_t>(row_bytes)], layout_.value_bytes);
    }
    return Status();
  }));
  return kept;
}

Status Tiers::GatherAbove(int64_t wanted, int64_t most_score, std::vector<Cursor>* hands,
                          std::vector<Candidate>* candidates) {
  if (wanted <= 0) return Status();
  const bool all = wanted >= rows_above();
  const int64_t at_once = all ? kScanKeys : (wanted + kHands - 1) / kHands;
  std::vector<Key> keys(static_cast<size_t>(at_once));
  const int64_t value_bytes = scores_->reads_values() ? layout_.value_bytes : 0;
  std::vector<char> values(static_cast<size_t>(at_once * value_bytes));
  std::vector<char> meta(static_cast<size_t>(at_once * layout_.meta_bytes));
  RowParts out;
  out.keys = keys;
  if (value_bytes > 0) out.values = Rows(values.data(), at_once, value_bytes);
  out.meta = Rows(meta.data(), at_once, layout_.meta_bytes);
  for (int64_t part = 0; part < kHands; ++part) {
    Cursor& hand = (*hands)[static_cast<size_t>(part)];
    if (all || hand.done) hand = Hand(part);
    do {
      int64_t count = 0;
      DYNEMB_RETURN_IF_ERROR(above_->Export(OneThread(), &hand, out, &count));
      for (int64_t i = 0; i < count; ++i) {
        const Key key = keys[static_cast<size_t>(i)];
        const char* const value = value_bytes > 0 ? out.values[i] : nullptr;
        const int64_t score = scores_->Score(value, out.meta[i]);
        if (score <= most_score) candidates->push_back({{score, TieOf(key)}, key});
      }
    } while (all && !hand.done);
  }
  return Status();
}

void Tiers::GatherBelow(int64_t wanted, int64_t most_score, uint64_t* hand,
                        std::vector<Candidate>* candidates) {
  if (wanted <= 0) return;
  constexpr uint64_t kHashes = uint64_t{1} << (64 - DiskIndex::kPartBits);  // of a part
  // What the hand passes over in each part, which may begin anew.
  uint64_t size = kHashes;
  if (wanted < below_->size()) {
    size = static_cast<uint64_t>(static_cast<double>(kHashes) * static_cast<double>(wanted) /
                                 static_cast<double>(below_->size()));
  }
  const uint64_t begin = *hand, end = begin + size;
  *hand = end % kHashes;
  for (int part = 0; part < DiskIndex::kParts; ++part) {
    const uint64_t first = static_cast<uint64_t>(part) * kHashes;
    const auto gather = [&](uint64_t from, uint64_t to) {
      if (from == to) return;
      below_->index().ForEach(part, first + from, [&](const DiskIndex::Entry& entry) {
        if (entry.hash - first >= to) return false;
        const int64_t score = below_->Score(entry);
        if (score > most_score) return true;
        const Key key = KeyOfDiskHash(entry.hash);
        candidates->push_back({{score, TieOf(key)}, key});
        return true;
      });
    };
    gather(begin, std::min(end, kHashes));
    gather(0, end > kHashes ? end - kHashes : 0);
  }
}

Status Tiers::Gather(int64_t wanted, int64_t most_score, std::vector<Cursor>* hands, uint64_t* hand,
                     std::vector<Candidate>* candidates) {
  candidates->clear();
  const int64_t above = rows_above(), below = below_->size();
  const double share = std::min(1.0, static_cast<double>(wanted) / static_cast<double>(size()));
  const auto of = [&](int64_t rows) {
    return static_cast<int64_t>(std::ceil(share * static_cast<double>(rows)));
  };
  DYNEMB_RETURN_IF_ERROR(GatherAbove(of(above), most_score, hands, candidates));
  GatherBelow(of(below), most_score, hand, candidates);
  return Status();
}

// The keys of the lowest `most` candidates, and of no others. A row that is above and below has
// been met twice, perhaps.
std::vector<Key> Tiers::Lowest(int64_t most, std::vector<Candidate>* candidates) {
  const auto end = candidates->begin() + std::min(most, static_cast<int64_t>(candidates->size()));
  std::nth_element(candidates->begin(), end, candidates->end());
  std::sort(candidates->begin(), end);
  std::vector<Key> keys;
  for (auto candidate = candidates->begin(); candidate != end; ++candidate) {
    if (keys.empty() || keys.back() != candidate->key) keys.push_back(candidate->key);
  }
  return keys;
}

Status Tiers::Evict(int64_t wanted) {
  std::vector<Candidate> candidates;
  int64_t evicted = 0, removed = 1;
  Status status;
  // Again where the hands met fewer rows, or some twice.
  for (int64_t passed = 0; status.ok() && (removed > 0 || passed <= 2 * size());) {
    const int64_t left = std::min({wanted - evicted, size(), kEvictedAtOnce});
    if (left <= 0) break;
    const int64_t some = std::max(Evictor::kUnitRows, left * Evictor::kCandidates);
    passed += some;
    status = Gather(some, INT64_MAX, &evicting_, &evicting_below_, &candidates);
    if (!status.ok()) break;
    status = RemoveRows(Lowest(left, &candidates), &TableCounters::evicted, &removed);
    evicted += removed;
  }
  static_cast<void>(below_->Compact());  // the disk's space can wait
  return status;
}

Status Tiers::RemoveExpired(Span<const Key> keys, std::vector<Outcome>* above) {
  DYNEMB_RETURN_IF_ERROR(FindAbove(keys, above));
  if (!options_.eviction.expires()) return Status();
  std::vector<Key> expired;  // or without a row, as it seems above
  below_->ForEachHash(keys, [&](int64_t i, uint64_t hash) {
    if ((*above)[static_cast<size_t>(i)] == Outcome::kFound) return;
    if (below_->Find(hash) == kNowhere) expired.push_back(keys[i]);
  });
  int64_t removed;
  return RemoveRows(expired, &TableCounters::expired, &removed);
}

Status Tiers::SweepExpired(int64_t rows) {
  if (size() == 0) return Status();
  std::vector<Candidate> candidates;
  DYNEMB_RETURN_IF_ERROR(Gather(rows, INT64_MIN, &sweeping_, &sweeping_below_, &candidates));
  int64_t removed;
  const Status status = RemoveRows(Lowest(static_cast<int64_t>(candidates.size()), &candidates),
                                   &TableCounters::expired, &removed);
  if (removed > 0) static_cast<void>(below_->Compact());
  return status;
}

Status Tiers::BeginFlush() {
  DYNEMB_RETURN_IF_ERROR(below_->MoveUnsynced());
  // The disk's space can wait.
  static_cast<void>(below_->Compact());
  below_->HoldSlots(true);
  return Status();
}

Status Tiers::FlushPart(int part, IndexEntries* entries, FlushedShard* flushed) {
  DYNEMB_RETURN_IF_ERROR(
      ForEachAbove({part, DiskIndex::kParts}, false,
                   [&](const std::vector<Key>& keys) { return CopyDown(keys); }));
  below_->ForFlush(part, entries, flushed);
  return Status();
}

void Tiers::EndFlush(const std::set<uint64_t>& unsynced) {
  below_->HoldSlots(false);
  if (unsynced.empty()) return;
  for (const uint64_t number : unsynced) below_->SetUnsynced(number);
  // Copies there are not to be trusted: a row that is above is written when it leaves. Without
  // memory for this they are written to another file by the next flush, as other rows there.
  static_cast<void>(OrNoMemory([&] {
    return ForEachAbove({}, true, [&](const std::vector<Key>& keys) {
      for (const Key key : keys) {
        const Location location = below_->FindAny(DiskHash(key));
        if (location == kNowhere || !below_->IsUnsynced(location)) continue;
        below_->Remove(DiskHash(key));
        --copies_;
      }
      return Status();
    });
  }));
}

Status Tiers::Clear(const Context& context) {
  const int64_t only_below = below_->size() - copies_;
  DYNEMB_RETURN_IF_ERROR(above_->Clear(Inner(context)));
  CountRemoved(only_below);
  below_->Clear();
  copies_ = 0;
  ResetHands();
  return Status();
}

Status Tiers::PrepareSchema(const TableSchema& schema, Next* next) {
  DYNEMB_RETURN_IF_ERROR(MakeAbove(schema, &next->above));
  return below_->PrepareSchema(schema, &next->schema);
}

void Tiers::SetSchema(Next next) {
  // What was counted goes on.
  TableCounters before = above_->counters();
  own_writes_.Add(before, -1);
  above_ = std::move(next.above);
  below_->SetSchema(std::move(next.schema));
  schema_ = above_->schema();
  layout_ = RowLayout(schema_);
  SetScores();
  ResetHands();
}

TierStats Tiers::stats() const {
  TierStats stats;
  stats.rows_above = above_->size();
  stats.bytes_above = above_->memory_bytes();
  stats.rows_below = below_->size() - copies_;
  stats.bytes_below = below_->file_bytes();
  stats.index_bytes = below_->memory_bytes();
  stats.misses = misses_;
  stats.rows_read = below_->rows_read();
  stats.rows_written = below_->rows_written();
  stats.rows_left = rows_left_;
  return stats;
}

}  // namespace dynemb

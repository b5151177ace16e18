#include "cc/core/storage/tiers.h"

#include <algorithm>
#include <cstring>
#include <mutex>
#include <utility>

#include "cc/core/base/hash.h"
#include "cc/core/base/no_memory.h"
#include "cc/core/base/worker_threads.h"
#include "cc/core/table/batch_order.h"
#include "cc/core/table/host_table.h"
#include "cc/core/table/memory_bound.h"

namespace dynemb {
namespace {

constexpr int64_t kHandKeys = 1024;     // that leave at once, and most that a hand looks at
constexpr int64_t kKeysPerTask = 4096;  // that a task looks up

// Calls look(begin, end) for shares of [0, n), on several threads if there are many. An error:
// there is no memory for these, and nothing has been called.
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

}  // namespace

Context Tiers::Threads() {
  Context context;
  context.executor = ComputeThreads();
  return context;
}

Cursor Tiers::Hand(int64_t part) {
  Cursor hand;
  hand.part = part;
  hand.parts = kHands;
  hand.with_expired = true;
  return hand;
}

Context Tiers::Inner(const Context& context) {
  static InlineExecutor* const alone = new InlineExecutor;
  Context inner;
  inner.executor = context.executor->concurrency() > 1 ? ComputeThreads() : alone;
  return inner;
}

Status Tiers::Make(const TableSchema& schema, const TableOptions& options,
                   const StorageOptions& storage, std::unique_ptr<Tiers>* tiers) {
  std::unique_ptr<Tiers> made(new Tiers(schema, options, storage));
  if (made->RowsWithinDisk(made->layout_) == 0) {
    return InvalidArgument("Disk(max_bytes): got ", options.max_bytes,
                           " for a shard, in which no row of ", made->layout_.row_bytes,
                           " bytes has room; want more");
  }
  DYNEMB_RETURN_IF_ERROR(made->MakeAbove(schema, &made->above_));
  // So that dead rows and the file that is written are a small part of what there may be.
  constexpr int64_t kFiles = 64;
  const int64_t least_file_bytes =
      options.max_bytes < 0 ? storage.least_file_bytes
                            : std::min(storage.least_file_bytes, options.max_bytes / kFiles);
  made->below_ = std::make_unique<DiskRows>(storage.disk, least_file_bytes, options.eviction,
                                            made->options_.clock);
  std::vector<TableSchema> schemas;
  if (storage.flushed != nullptr) schemas = storage.flushed->shards[0].schemas;
  schemas.push_back(schema);
  for (const TableSchema& each : schemas) {
    DiskRows::NextSchema next;
    DYNEMB_RETURN_IF_ERROR(made->below_->PrepareSchema(each, &next));
    made->below_->SetSchema(std::move(next));
  }
  made->use_marks_.emplace(made->max_rows_above());
  made->ResetHands();
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

Status Tiers::MakeAbove(const TableSchema& schema, std::unique_ptr<CacheTable>* table) const {
  TableOptions of_above;
  of_above.missing_value = options_.missing_value;
  of_above.eviction = options_.eviction;
  of_above.removes = TableOptions::Removes::kNone;
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
  DYNEMB_RETURN_IF_ERROR(MakeCacheTable(schema, of_above, table));
  // So that the index does not grow to more, twice for a moment, than it was counted as.
  return storage_.max_bytes < 0 ? Status() : (*table)->Reserve(OneThread(), of_above.max_rows);
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

Status Tiers::KeysBelow(const Context& context, const Batch& batch, std::vector<Key>* keys) {
  keys->clear();
  if (below_->empty()) return Status();
  std::vector<Key> asked;  // of which the table above cannot tell that they have no row below
  DYNEMB_RETURN_IF_ERROR(above_->KeysNotDirty(Using(context), batch, &asked));
  std::mutex mutex;  // of `keys`
  const int64_t n = static_cast<int64_t>(asked.size());
  DYNEMB_RETURN_IF_ERROR(InShares(n, [&](int64_t begin, int64_t end) {
    const Span<const Key> share = {asked.data() + begin, end - begin};
    std::vector<Key> some;
    below_->ForEachHash(share, [&](int64_t i, uint64_t hash) {
      if (below_->FindAny(hash) != kNowhere) some.push_back(share[i]);
    });
    const std::lock_guard<std::mutex> lock(mutex);
    keys->insert(keys->end(), some.begin(), some.end());
  }));
  std::sort(keys->begin(), keys->end());
  keys->erase(std::unique(keys->begin(), keys->end()), keys->end());
  return Status();
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
  above_->Clean(changed);  // before there is a copy
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

Status Tiers::Leave(int64_t wanted, int64_t most, int64_t most_looks, const Stays& stays,
                    int64_t* looks) {
  const int64_t max_rows = max_rows_above();
  // A hand's turn is a small part of its segment, so that segments stay about as full.
  std::vector<Key> keys(
      static_cast<size_t>(std::clamp<int64_t>(max_rows / (32 * kHands), 4, kHandKeys)));
  std::vector<Key> leaving;
  Status left;
  *looks = 0;
  const bool spares = most_looks < INT64_MAX;
  const int64_t most_laps = kSparedLaps + (spares ? 0 : 1);
  for (int64_t laps = 0; laps < most_laps && above_->room() < wanted && most > 0 &&
                         *looks < most_looks && left.ok();) {
    Cursor& hand = hands_[turn_];
    turn_ = (turn_ + 1) % hands_.size();
    RowParts out;
    out.keys = keys;
    int64_t count = 0;
    if (!hand.done) left = above_->Export(OneThread(), &hand, out, &count);
    *looks += count;
    const int64_t most_leave = std::min(most, wanted - above_->room());
    for (int64_t i = 0; i < count && static_cast<int64_t>(leaving.size()) < most_leave; ++i) {
      const Key key = keys[static_cast<size_t>(i)];
      // In the last lap nothing is spared that need not stay.
      if (laps < kSparedLaps && use_marks_->Spare(Mix64(static_cast<uint64_t>(key)))) continue;
      if (!stays(key)) leaving.push_back(key);
    }
    const bool lap_is_over = turn_ == 0 && std::all_of(hands_.begin(), hands_.end(),
                                                       [](const Cursor& h) { return h.done; });
    const int64_t found = static_cast<int64_t>(leaving.size());
    if (left.ok() &&
        (lap_is_over || *looks >= most_looks || found >= std::min(kHandKeys, most_leave))) {
      left = Down(leaving);
      most -= found;
      leaving.clear();
    }
    if (lap_is_over) {
      for (int64_t part = 0; part < kHands; ++part) hands_[static_cast<size_t>(part)] = Hand(part);
      ++laps;
    }
  }
  return left;
}

Status Tiers::MakeRoom(int64_t need, int64_t next, const Stays& stays) {
  most_keys_ = std::max(next, most_keys_ - most_keys_ / 4);
  const int64_t most = max_rows_above();
  const int64_t room = above_->room();
  if (room >= need && room >= std::min(next, most / 4)) return Status();
  const int64_t wanted = std::min(most, need + std::min(std::max(next, most / 16), most / 4));
  ahead_looks_ = 0;
  int64_t looks;
  const Status left = Leave(wanted, most, INT64_MAX, stays, &looks);
  if (above_->room() >= need) return Status();  // that for next calls can wait
  return left.ok() ? ResourceExhausted("storage: no room for ", need, " rows of ", most,
                                       " in host memory; give a larger HostMemory")
                   : left;
}

bool Tiers::HasUpkeep() const {
  return WantsRoomAhead() || below_->HasMoreBytesThan(DiskRows::kCompactedBytes);
}

bool Tiers::MakeRoomAhead() {
  constexpr int64_t kMostLooks = 64 << 10;
  if (!WantsRoomAhead()) return false;
  const int64_t before = rows_left_;
  int64_t looks;
  const Status left = Leave(room_ahead(), kHandKeys, kMostLooks, [](Key) { return false; }, &looks);
  ahead_looks_ = rows_left_ > before ? 0 : ahead_looks_ + std::max<int64_t>(looks, 1);
  return left.ok();
}

Status Tiers::BringUp(const std::vector<Location>& locations, const std::vector<uint64_t>& numbers,
                      std::vector<Key>* keys, std::vector<char>* rows) {
  const size_t row_bytes = static_cast<size_t>(layout_.row_bytes);
  if (rows->size() != keys->size() * row_bytes) return Status();  // the schema has changed
  const int64_t n = static_cast<int64_t>(keys->size());
  const DistinctKeys all{Span<const Key>(*keys)};
  DYNEMB_RETURN_IF_ERROR(MakeRoom(n, n, [&](Key key) { return all.NumberOf(key) >= 0; }));
  std::vector<Outcome> outcomes;
  DYNEMB_RETURN_IF_ERROR(FindAbove(*keys, &outcomes));
  size_t up = 0;
  below_->ForEachHash(*keys, [&](int64_t number, uint64_t hash) {
    const size_t i = static_cast<size_t>(number);
    if (outcomes[i] == Outcome::kFound || below_->Find(hash) != locations[i]) return;
    if (below_->NumberOf(locations[i]) != numbers[i]) return;
    if (up < i) {
      (*keys)[up] = (*keys)[i];
      std::memcpy(&(*rows)[up * row_bytes], &(*rows)[i * row_bytes], row_bytes);
    }
    ++up;
  });
  return InsertAbove({keys->data(), static_cast<int64_t>(up)}, rows->data());
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

Status Tiers::BeginFlush() {
  DYNEMB_RETURN_IF_ERROR(below_->MoveUnsynced());
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

#include <algorithm>
#include <utility>

#include "cc/core/base/hash.h"
#include "cc/core/base/no_memory.h"
#include "cc/core/base/worker_threads.h"
#include "cc/core/storage/tier_changes.h"
#include "cc/gpu/for_each.cu.h"
#include "cc/gpu/table/atomics.cu.h"
#include "cc/gpu/table/gpu_tiers.h"
#include "cc/gpu/table/grouped_batch.cu.h"
#include "cc/gpu/table/sort_pairs.h"

namespace dynemb {
namespace {

constexpr int64_t kScanKeys = 1 << 16;  // that a scan asks for at once
constexpr int64_t kCandidates = 4;      // for each row that leaves
constexpr int64_t kLeastCandidates = 1 << 10, kMostCandidates = 1 << 18;  // at once

struct NoteUse {
  Entries entries;
  uint32_t* last_use;
  int shift;
  uint32_t now;

  DYNEMB_HOST_DEVICE void operator()(int64_t entry) const {
    const int64_t position = entries.position(entry);
    if (position < 0) return;
    // What several threads write at once is the same.
    last_use[Mix64(static_cast<uint64_t>(entries.keys[position])) >> shift] = now;
  }
};

// Of candidates: for how many calls they have not been named, the most first.
struct SinceUse {
  const Key* keys;
  const uint32_t* last_use;
  int shift;
  uint32_t now;
  uint32_t* since;
  uint32_t* numbers;

  DYNEMB_HOST_DEVICE void operator()(int64_t i) const {
    since[i] = ~(now - last_use[Mix64(static_cast<uint64_t>(keys[i])) >> shift]);
    numbers[i] = static_cast<uint32_t>(i);
  }
};

// The first candidates of that order, and how many of them are not used now.
struct TakeUnused {
  const Key* keys;
  const uint32_t* since;
  const uint32_t* order;
  Key* out;
  int64_t* unused;

  DYNEMB_HOST_DEVICE void operator()(int64_t i) const {
    out[i] = keys[order[i]];
    if (since[i] != ~uint32_t{0}) AtomicAdd(unused, int64_t{1});
  }
};

// The keys at some positions, each once, in any order.
struct TakeDistinct {
  const Key* keys;
  const int64_t* at;
  uint32_t* cells;  // of a hash table: numbers of positions; kNone: none
  uint64_t mask;
  Key* out;
  int64_t* count;

  DYNEMB_HOST_DEVICE void operator()(int64_t i) const {
    const Key key = keys[at[i]];
    uint64_t cell = Mix64(static_cast<uint64_t>(key)) & mask;
    for (;; cell = (cell + 1) & mask) {
      const uint32_t first = AtomicCas(&cells[cell], kNone, static_cast<uint32_t>(i));
      if (first == kNone) break;
      if (keys[at[first]] == key) return;
    }
    out[AtomicAdd(count, int64_t{1})] = key;
  }
  static constexpr uint32_t kNone = ~uint32_t{0};
};

template <typename T>
Status CopyToHost(const Context& context, const T* from, int64_t n, std::vector<T>* to) {
  to->resize(static_cast<size_t>(n));
  DYNEMB_RETURN_IF_ERROR(CopyAny(context, to->data(), from, n * static_cast<int64_t>(sizeof(T))));
  return Wait(context);
}

Batch BatchOf(Span<const Key> keys) {
  Batch batch;
  batch.keys = keys;
  return batch;
}

}  // namespace

Status GpuTiers::Make(const TableSchema& schema, const TableOptions& options,
                      const GpuBudget& budget, DeviceMemory* memory, std::unique_ptr<Table> below,
                      std::unique_ptr<GpuTiers>* tiers) {
  std::unique_ptr<GpuTiers> made(new GpuTiers(schema, options, budget, memory));
  DYNEMB_RETURN_IF_ERROR(made->Init());
  made->SetBelow(std::move(below));
  *tiers = std::move(made);
  return {};
}

Status GpuTiers::Init() {
  TableOptions of_above = options_;
  of_above.max_bytes = budget_.max_bytes;
  of_above.max_rows = budget_.max_rows;
  of_above.track_changes = false;
  of_above.on_full = OnFull::kError;
  of_above.removes = TableOptions::Removes::kExpired;
  if (expires() && expired_above_ == nullptr) {
    expired_above_ = std::make_shared<EvictedRows>(INT64_MAX);
  }
  of_above.evicted = expired_above_;
  std::unique_ptr<GpuTable> above;
  DYNEMB_RETURN_IF_ERROR(MakeGpuTable(schema_, of_above, memory_, &above));
  above_ = std::move(above);
  above_of_host_ = MakeHostAccess(above_, memory_);
  int bits = 6;
  while (int64_t{1} << bits < 2 * above_->max_rows()) ++bits;
  use_shift_ = 64 - bits;
  const int64_t bytes = (int64_t{1} << bits) * static_cast<int64_t>(sizeof(uint32_t));
  if (!last_use_.Allocate(memory_, bytes)) return ResourceExhausted("no GPU memory for a table");
  DYNEMB_RETURN_IF_ERROR(FillBytes(OwnContext(), last_use_.as<char>(), 0, bytes));
  return Wait(OwnContext());
}

void GpuTiers::SetBelow(std::unique_ptr<Table> below) {
  below_ = std::move(below);
  counted_below_ = below_->counters();
  mover_.emplace(above_.get(), below_.get(), layout_, memory_, OwnContext(), Below());
}

Context GpuTiers::OwnContext() const {
  Context context;
  context.space = memory_->space();
  context.executor = ComputeThreads();
  context.stream = memory_->stream();
  return context;
}

Context GpuTiers::Below() {
  Context context;
  context.executor = ComputeThreads();
  return context;
}

Status GpuTiers::ToHost(const Context& context, const Batch& batch, std::vector<Key>* keys,
                        std::vector<int64_t>* positions) {
  const int64_t size = batch.keys.size;
  std::vector<Key> all;
  DYNEMB_RETURN_IF_ERROR(CopyToHost(context, batch.keys.data, size, &all));
  keys->clear();
  positions->clear();
  if (batch.select == nullptr) {
    for (int64_t i = 0; i < size; ++i) positions->push_back(i);
    *keys = std::move(all);
    return {};
  }
  std::vector<int64_t> count, at;
  DYNEMB_RETURN_IF_ERROR(CopyToHost(context, batch.select->count, 1, &count));
  DYNEMB_RETURN_IF_ERROR(
      CopyToHost(context, batch.select->at.data, std::min(count[0], batch.select->at.size), &at));
  for (const int64_t position : at) {
    if (position < 0 || position >= size) continue;
    positions->push_back(position);
    keys->push_back(all[static_cast<size_t>(position)]);
  }
  return {};
}

Status GpuTiers::OutcomesToHost(const Context& context, const Report& report,
                                std::vector<Outcome>* outcomes) {
  return CopyToHost(context, report.outcomes.data, report.outcomes.size, outcomes);
}

Status GpuTiers::Use(const Context& context, const Batch& batch) {
  const Entries entries(batch);
  return ForEach(context, entries.most,
                 NoteUse{entries, last_use_.as<uint32_t>(), use_shift_, ++now_});
}

Status GpuTiers::ReadMisses(const Context& context, const Batch& batch, const Positions& misses,
                            int64_t* missing) {
  int64_t all = batch.keys.size;
  DYNEMB_RETURN_IF_ERROR(CopyAny(context, missing, misses.count, sizeof(*missing)));
  if (batch.select != nullptr) {
    DYNEMB_RETURN_IF_ERROR(CopyAny(context, &all, batch.select->count, sizeof(all)));
  }
  DYNEMB_RETURN_IF_ERROR(Wait(context));
  own_.missing += *missing;
  own_.found += all - *missing;
  return {};
}

Status GpuTiers::ReadAbove(const Context& context, const Batch& batch, const Report& report,
                           const std::function<Status(const Batch&, const Report&)>& read,
                           bool* found) {
  *found = true;
  const int64_t most = Entries(batch).most;
  DYNEMB_RETURN_IF_ERROR(Use(context, batch));
  if (most == 0 || below_->size() == 0) return read(batch, report);
  DYNEMB_RETURN_IF_ERROR(
      scratch_.Begin(context, Scratch::Bytes<int64_t>(most) + Scratch::Bytes<int64_t>(1)));
  Positions own = {{scratch_.Take<int64_t>(most), most, context.space}, scratch_.Take<int64_t>(1)};
  Report with_misses = report;
  if (report.misses == nullptr) with_misses.misses = &own;
  DYNEMB_RETURN_IF_ERROR(read(batch, with_misses));
  const TableCounters before = own_;
  int64_t missing;
  DYNEMB_RETURN_IF_ERROR(ReadMisses(context, batch, *with_misses.misses, &missing));
  *found = missing == 0;
  if (*found) own_ = before;
  return {};
}

Status GpuTiers::MissingAbove(const Context& context, const Batch& batch, std::vector<Key>* keys) {
  const int64_t most = Entries(batch).most;
  int64_t cells = 64;
  while (cells < 2 * most) cells *= 2;
  DYNEMB_RETURN_IF_ERROR(scratch_.Begin(
      context, Scratch::Bytes<int64_t>(most) + Scratch::Bytes<Key>(most) +
                   Scratch::Bytes<uint32_t>(cells) + 2 * Scratch::Bytes<int64_t>(1)));
  int64_t* const at = scratch_.Take<int64_t>(most);
  Key* const distinct = scratch_.Take<Key>(most);
  uint32_t* const table = scratch_.Take<uint32_t>(cells);
  int64_t* const count = scratch_.Take<int64_t>(1);
  int64_t* const distinct_count = scratch_.Take<int64_t>(1);
  Positions misses = {{at, most, context.space}, count};
  DYNEMB_RETURN_IF_ERROR(above_->ReadRows(context, batch, RowParts(), {{}, &misses}));
  int64_t missing;
  DYNEMB_RETURN_IF_ERROR(ReadMisses(context, batch, misses, &missing));
  keys->clear();
  if (missing == 0) return {};
  while (cells > 64 && cells >= 4 * missing) cells /= 2;
  DYNEMB_RETURN_IF_ERROR(FillBytes(context, table, 0xff, cells * int64_t{sizeof(*table)}));
  DYNEMB_RETURN_IF_ERROR(FillBytes(context, distinct_count, 0, sizeof(*distinct_count)));
  DYNEMB_RETURN_IF_ERROR(
      ForEach(context, missing,
              TakeDistinct{batch.keys.data, at, table, static_cast<uint64_t>(cells - 1), distinct,
                           distinct_count}));
  int64_t each_once = 0;
  DYNEMB_RETURN_IF_ERROR(CopyAny(context, &each_once, distinct_count, sizeof(each_once)));
  DYNEMB_RETURN_IF_ERROR(CopyToHost(context, distinct, missing, keys));
  keys->resize(static_cast<size_t>(each_once));
  return {};
}

Status GpuTiers::KeysBelow(const std::vector<Key>& keys, std::vector<Key>* below) const {
  below->clear();
  std::vector<Outcome> outcomes(keys.size(), Outcome::kMissing);
  DYNEMB_RETURN_IF_ERROR(below_->ReadRows(Below(), BatchOf(keys), RowParts(), {outcomes, nullptr}));
  for (size_t i = 0; i < keys.size(); ++i) {
    if (outcomes[i] == Outcome::kFound) below->push_back(keys[i]);
  }
  return {};
}

Status GpuTiers::MakeResident(const Context& context, const Batch& batch, bool inserts, bool* fits,
                              bool* within_limit) {
  *fits = true;
  const bool is_limited = inserts && within_limit != nullptr && options_.max_rows >= 0;
  if (within_limit != nullptr) *within_limit = true;
  const int64_t most = Entries(batch).most;
  if (most == 0) return {};
  DYNEMB_RETURN_IF_ERROR(Use(context, batch));
  const bool all_fit = !inserts || above_->HasRoom(most);
  if (below_->size() == 0 && all_fit && (!is_limited || most <= room())) return {};
  std::vector<Key> missing, from_below;
  DYNEMB_RETURN_IF_ERROR(MissingAbove(context, batch, &missing));
  if (missing.empty()) return {};
  DYNEMB_RETURN_IF_ERROR(KeysBelow(missing, &from_below));
  const auto wanted = static_cast<int64_t>(missing.size());
  const auto brought = static_cast<int64_t>(from_below.size());
  if (inserts && expires() && brought < wanted) {
    std::vector<Key> unseen;  // both are in the same order
    for (size_t i = 0, next = 0; i < missing.size(); ++i) {
      const bool is_below = next < from_below.size() && from_below[next] == missing[i];
      if (is_below)
        ++next;
      else
        unseen.push_back(missing[i]);
    }
    DYNEMB_RETURN_IF_ERROR(RemoveUnseen(unseen));
  }
  if (is_limited && wanted - brought > room()) {
    *within_limit = false;
    return {};
  }
  return Uncounted([&]() -> Status {
    DYNEMB_RETURN_IF_ERROR(MakeRoom(inserts ? wanted : brought, fits));
    if (!*fits) return {};
    return mover_->Up(from_below, &misses_);
  });
}

Status GpuTiers::BringUp(Span<const Key> keys) {
  std::vector<Key> from_below;
  DYNEMB_RETURN_IF_ERROR(KeysBelow({keys.data, keys.data + keys.size}, &from_below));
  return Uncounted([&] { return mover_->Up(from_below, &misses_); });
}

Status GpuTiers::MakeRoom(int64_t rows, bool* made) {
  *made = above_->HasRoom(rows);
  if (*made) return {};
  const int64_t room = above_->room();
  *made = rows <= room;
  if (*made || rows > above_->max_rows()) return {};
  // Some more, so that the next calls find room; but few of those that they may want.
  const int64_t least = rows - room, ahead = std::min(rows, above_->max_rows() / 16);
  int64_t left;
  DYNEMB_RETURN_IF_ERROR(Leave(least, least + ahead, &left));
  *made = left >= least;
  if (*made || !expires()) return {};
  DYNEMB_RETURN_IF_ERROR(above_->RemoveExpired(OwnContext()));  // which do not move
  *made = rows <= above_->room();
  return {};
}

// A hand goes over the rows in the order of their hashes. Of some at a time those leave that have
// not been named for the longest time.
Status GpuTiers::Leave(int64_t least, int64_t most, int64_t* left) {
  *left = 0;
  const int64_t rows = above_->size();
  std::vector<Key> keys;
  for (int64_t in_vain = 0; *left < least && in_vain <= 2 * rows;) {
    int64_t passed;
    DYNEMB_RETURN_IF_ERROR(LongestUnused(most - *left, &keys, &passed));
    in_vain = keys.empty() ? in_vain + passed + 1 : 0;
    DYNEMB_RETURN_IF_ERROR(mover_->Down(keys, &rows_left_));
    *left += static_cast<int64_t>(keys.size());
  }
  return {};
}

// Of the rows that the hand passes next, those that are not used now: up to `most`, and of all that
// it has `passed` as many as leave for each candidate.
Status GpuTiers::LongestUnused(int64_t most, std::vector<Key>* keys, int64_t* passed) {
  const Context context = OwnContext();
  const int64_t room = std::clamp(kCandidates * most, kLeastCandidates, kMostCandidates);
  int64_t temp_bytes;
  DYNEMB_RETURN_IF_ERROR(SortTempBytes(context, room, &temp_bytes));
  DYNEMB_RETURN_IF_ERROR(
      scratch_.Begin(context, 2 * Scratch::Bytes<Key>(room) + 4 * Scratch::Bytes<uint32_t>(room) +
                                  Scratch::Bytes<int64_t>(1) + Scratch::Bytes<char>(temp_bytes)));
  Key* const candidates = scratch_.Take<Key>(room);
  Key* const sorted = scratch_.Take<Key>(room);
  uint32_t* const since = scratch_.Take<uint32_t>(room);
  uint32_t* const numbers = scratch_.Take<uint32_t>(room);
  uint32_t* const by_since = scratch_.Take<uint32_t>(room);
  uint32_t* const order = scratch_.Take<uint32_t>(room);
  int64_t* const unused = scratch_.Take<int64_t>(1);
  char* const temp = scratch_.Take<char>(temp_bytes);

  keys->clear();
  RowParts out;
  out.keys = {candidates, room, context.space};
  if (hand_.done) hand_ = Cursor();
  DYNEMB_RETURN_IF_ERROR(above_->Export(context, &hand_, out, passed));
  if (*passed == 0) return {};
  DYNEMB_RETURN_IF_ERROR(FillBytes(context, unused, 0, sizeof(*unused)));
  DYNEMB_RETURN_IF_ERROR(
      ForEach(context, *passed,
              SinceUse{candidates, last_use_.as<uint32_t>(), use_shift_, now_, since, numbers}));
  DYNEMB_RETURN_IF_ERROR(
      SortPairs(context, *passed, 32, Pairs32{since, numbers, by_since, order}, temp, temp_bytes));
  const int64_t leaving = std::min((*passed + kCandidates - 1) / kCandidates, most);
  DYNEMB_RETURN_IF_ERROR(
      ForEach(context, leaving, TakeUnused{candidates, by_since, order, sorted, unused}));
  int64_t count = 0;
  DYNEMB_RETURN_IF_ERROR(CopyAny(context, &count, unused, sizeof(count)));
  DYNEMB_RETURN_IF_ERROR(CopyToHost(context, sorted, leaving, keys));
  keys->resize(static_cast<size_t>(count));  // the ones that are used come after them
  return {};
}

Status GpuTiers::AllDown() {
  return Uncounted([&]() -> Status {
    Cursor cursor;
    std::vector<Key> keys;
    while (!cursor.done) {
      keys.resize(static_cast<size_t>(kScanKeys));
      RowParts out;
      out.keys = keys;
      int64_t count = 0;
      DYNEMB_RETURN_IF_ERROR(above_of_host_->Export(Below(), &cursor, out, &count));
      keys.resize(static_cast<size_t>(count));
      DYNEMB_RETURN_IF_ERROR(mover_->Down(keys, &rows_left_));
    }
    return {};
  });
}

Status GpuTiers::Uncounted(const std::function<Status()>& move) {
  const TableCounters before = above_->counters();
  const Status status = OrNoMemory(move);
  TableCounters moved = above_->counters();
  moved.expired = before.expired;
  own_.Add(moved);
  own_.Add(before, -1);
  return status;
}

TableCounters GpuTiers::counters() const {
  TableCounters counters = above_->counters();
  counters.Add(own_, -1);
  const TableCounters below = below_->counters();
  counters.expired += below.expired - counted_below_.expired;
  counters.evicted += below.evicted - counted_below_.evicted;
  return counters;
}

RowParts GpuTiers::PartsOf(HostRows* rows, int64_t count) const {
  const auto part = [&](std::vector<char>* bytes, int64_t each) -> Rows {
    bytes->resize(static_cast<size_t>(count * each));
    return each == 0 ? Rows() : Rows(bytes->data(), count, each);
  };
  return {{},
          part(&rows->values, layout_.value_bytes),
          part(&rows->slots, layout_.slots_bytes),
          part(&rows->meta, layout_.meta_bytes)};
}

Status GpuTiers::KeysOf(int64_t part, std::vector<Key>* keys) const {
  keys->clear();
  std::vector<Key> some(static_cast<size_t>(kScanKeys));
  for (const Table* table :
       {static_cast<const Table*>(above_of_host_.get()), static_cast<const Table*>(below_.get())}) {
    Cursor cursor;
    cursor.part = part;
    cursor.parts = TierChanges::kParts;
    while (!cursor.done) {
      RowParts out;
      out.keys = some;
      int64_t count = 0;
      DYNEMB_RETURN_IF_ERROR(table->Export(Below(), &cursor, out, &count));
      keys->insert(keys->end(), some.begin(), some.begin() + count);
    }
  }
  return {};
}

Status GpuTiers::ReadRows(std::vector<Key>* keys, HostRows* rows) {
  const auto n = static_cast<int64_t>(keys->size());
  const RowParts parts = PartsOf(rows, n);
  std::vector<Outcome> above(keys->size(), Outcome::kMissing), below = above;
  // The row above last, which is the row if memory ran out in the middle of a move.
  DYNEMB_RETURN_IF_ERROR(below_->ReadRows(Below(), BatchOf(*keys), parts, {below, nullptr}));
  DYNEMB_RETURN_IF_ERROR(
      above_of_host_->ReadRows(Below(), BatchOf(*keys), parts, {above, nullptr}));
  const int64_t found = std::count(above.begin(), above.end(), Outcome::kFound);
  own_.found += found;
  own_.missing += n - found;
  // Those that are there move together.
  size_t next = 0;
  const auto move = [&](std::vector<char>* part, int64_t bytes, size_t i) {
    const auto each = static_cast<size_t>(bytes);
    std::copy_n(part->begin() + static_cast<std::ptrdiff_t>(i * each), each,
                part->begin() + static_cast<std::ptrdiff_t>(next * each));
  };
  for (size_t i = 0; i < above.size(); ++i) {
    if (above[i] != Outcome::kFound && below[i] != Outcome::kFound) continue;
    if (next < i) {
      (*keys)[next] = (*keys)[i];
      move(&rows->values, layout_.value_bytes, i);
      move(&rows->slots, layout_.slots_bytes, i);
      move(&rows->meta, layout_.meta_bytes, i);
    }
    ++next;
  }
  keys->resize(next);
  return {};
}

template <typename Visit>
Status GpuTiers::ForEachRow(const Table& table, const RowLayout& layout, const Visit& visit) {
  std::vector<Key> keys(static_cast<size_t>(kScanKeys));
  std::vector<char> meta(static_cast<size_t>(kScanKeys * layout.meta_bytes));
  Cursor cursor;
  while (!cursor.done) {
    RowParts out;
    out.keys = keys;
    out.meta = Rows(meta.data(), kScanKeys, layout.meta_bytes);
    int64_t count = 0;
    DYNEMB_RETURN_IF_ERROR(table.Export(Below(), &cursor, out, &count));
    for (int64_t i = 0; i < count; ++i) visit(keys[static_cast<size_t>(i)], out.meta[i]);
  }
  return {};
}

Status GpuTiers::EraseBelow(MetaField field, const RowOrder& bound, std::vector<Key>* gone,
                            int64_t* erased) {
  const int64_t offset = layout_.meta_field[static_cast<int>(field)];
  *erased = 0;
  for (Table* table : {static_cast<Table*>(above_of_host_.get()), below_.get()}) {
    if (gone != nullptr) {
      DYNEMB_RETURN_IF_ERROR(ForEachRow(*table, layout_, [&](Key key, const char* meta) {
        const RowOrder order = {ReadInt64(meta + offset), Mix64(static_cast<uint64_t>(key))};
        if (order < bound) gone->push_back(key);
      }));
    }
    int64_t of_table;
    DYNEMB_RETURN_IF_ERROR(table->EraseBelow(Below(), field, bound, &of_table));
    *erased += of_table;
    if (table == below_.get()) own_.erased -= of_table;
  }
  return {};
}

Status GpuTiers::Clear(const Context& context) {
  const int64_t rows_below = below_->size();
  DYNEMB_RETURN_IF_ERROR(above_->Clear(context));
  DYNEMB_RETURN_IF_ERROR(below_->Clear(Below()));
  own_.erased -= rows_below;
  hand_ = evicting_above_ = evicting_below_ = Cursor();
  scratch_.Free();
  return {};
}

Status GpuTiers::PrepareSchema(const TableSchema& schema, Next* next) {
  DYNEMB_RETURN_IF_ERROR(RemoveExpired());
  DYNEMB_RETURN_IF_ERROR(AllDown());
  // The memory of the rows goes to the next ones.
  DYNEMB_RETURN_IF_ERROR(Uncounted([&] { return above_->Clear(OwnContext()); }));
  next->tiers.reset(new GpuTiers(schema, options_, budget_, memory_));
  next->tiers->expired_above_ = expired_above_;
  DYNEMB_RETURN_IF_ERROR(next->tiers->Init());
  return below_->PrepareMove(Below(), schema, &next->below);
}

std::unique_ptr<GpuTiers> GpuTiers::TakeNext(Next next) {
  const TableCounters counted = counters();
  next.tiers->SetBelow(next.below->Run(Below()));
  next.tiers->misses_ = misses_;
  next.tiers->rows_left_ = rows_left_;
  // What was counted goes on.
  next.tiers->own_.Add(counted, -1);
  next.tiers->gone_ = std::move(gone_);
  next.tiers->knows_gone_ = knows_gone_;
  return std::move(next.tiers);
}

}  // namespace dynemb

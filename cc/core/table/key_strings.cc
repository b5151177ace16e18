#include "cc/core/table/key_strings.h"

#include <algorithm>
#include <utility>

#include "cc/core/table/read_locks.h"

namespace dynemb {

namespace {

constexpr int kParts = BatchOrder::kSegments;
constexpr int64_t kKeysPerTask = 4096;  // fewer are not worth another thread
constexpr int64_t kNanosecondsPerKey = 30;

// A cell's stamp is the number of the last call that pinned its string, or came before, modulo
// 2^31. A sweep sets the top bit where it finds a row. A string that is not used for 2^31 calls
// and more may look used, and be kept by the sweep.
constexpr uint32_t kHasRow = 1u << 31;
uint32_t StampOf(int64_t call) { return static_cast<uint32_t>(call) & ~kHasRow; }

void SetStamp(StringSegment::Cell* cell, uint32_t stamp) {
  // What is there already is not written: other threads have the line in their caches.
  if (cell->stamp.load(std::memory_order_relaxed) == stamp) return;
  cell->stamp.store(stamp, std::memory_order_relaxed);
}

Status CheckSizes(Span<const Key> keys, Span<const std::string_view> strings) {
  if (strings.size == keys.size) return Status();
  return InvalidArgument("strings: got ", strings.size, ", want one per key, ", keys.size);
}

Status TwoStrings(Key key, std::string_view kept, std::string_view got) {
  return InvalidArgument("keys: got the string '", got, "', whose 64-bit fingerprint ", key,
                         " is that of '", kept,
                         "', which the table keeps; want strings of different fingerprints: spell "
                         "one of them differently");
}

// The error of the key that comes first in the batch, whichever thread finds it.
class EarliestError {
 public:
  template <typename MakeStatus>
  void Add(int64_t position, const MakeStatus& make_status) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (position >= position_) return;
    status_ = make_status();
    position_ = position;
  }
  const Status& status() const { return status_; }

 private:
  std::mutex mutex_;
  int64_t position_ = INT64_MAX;
  Status status_;
};

}  // namespace

KeyStrings::KeyStrings() : slab_arena_(int64_t{4} << 20), index_arena_(int64_t{512} << 10) {
  for (int part = 0; part < kParts; ++part) {
    parts_[part].segment.emplace(&slab_arena_, &index_arena_, part);
  }
}

template <bool with_string, typename Visit>
Status KeyStrings::ForEach(const Context& context, Span<const Key> keys,
                           Span<const std::string_view> strings, const Visit& visit) const {
  const int64_t tasks = (keys.size + kKeysPerTask - 1) / kKeysPerTask;
  const auto part_of = [](uint64_t hash) { return BatchOrder::SegmentOf(hash); };
  return context.executor->Run(tasks, kKeysPerTask * kNanosecondsPerKey, [&](int64_t task) {
    const int64_t begin = task * kKeysPerTask, end = std::min(keys.size, begin + kKeysPerTask);
    const ReadLocks<kParts> locks(
        begin, end, [&](int64_t i) { return part_of(Mix64(static_cast<uint64_t>(keys[i]))); },
        [&](int part) { return &parts_[part].mutex; });
    ForEachString<with_string>(
        begin, end, [&](int64_t i) { return keys[i]; },
        [&](uint64_t hash) -> const StringSegment& { return *parts_[part_of(hash)].segment; },
        [&](int64_t i) {
          if (with_string) __builtin_prefetch(&strings[i]);
        },
        [&](int64_t i) {
          if (with_string) __builtin_prefetch(strings[i].data());
        },
        visit);
  });
}

Status KeyStrings::Check(Span<const Key> keys, Span<const std::string_view> strings,
                         std::vector<int64_t>* missing, const Context& context) {
  DYNEMB_RETURN_IF_ERROR(CheckSizes(keys, strings));
  const HostContext host(context);
  return OrNoMemory([&] {
    const uint32_t stamp = StampOf(calls_.load());
    std::vector<char> is_missing(static_cast<size_t>(keys.size));
    EarliestError error;
    const auto check = [&](int64_t i, const StringSegment& segment, StringSegment::Cell* cell) {
      if (cell == nullptr) {
        is_missing[static_cast<size_t>(i)] = true;
        return;
      }
      const std::string_view kept = segment.string(*cell);
      if (kept == strings[i]) return SetStamp(cell, stamp);
      error.Add(i, [&] { return TwoStrings(keys[i], kept, strings[i]); });
    };
    DYNEMB_RETURN_IF_ERROR(ForEach<true>(host, keys, strings, check));
    missing->clear();
    for (int64_t i = 0; i < keys.size; ++i) {
      if (is_missing[static_cast<size_t>(i)]) missing->push_back(i);
    }
    return error.status();
  });
}

Status KeyStrings::Record(Span<const Key> keys, Span<const std::string_view> strings,
                          const Context& context) {
  std::vector<int64_t> missing;
  DYNEMB_RETURN_IF_ERROR(Check(keys, strings, &missing, context));
  if (missing.empty()) return Status();
  int64_t count = static_cast<int64_t>(missing.size());
  const HostContext host(context);
  return OrNoMemory(
      [&] { return Insert(host, keys, strings, {missing, &count}, StampOf(calls_.load())); });
}

Status KeyStrings::Insert(const Context& context, Span<const Key> keys,
                          Span<const std::string_view> strings, const Positions& missing,
                          uint32_t stamp) {
  BatchOrder order(context, {keys, &missing});
  int64_t distinct[kParts] = {};
  DYNEMB_RETURN_IF_ERROR(
      context.executor->Run(kParts, kNanosecondsPerKey * order.size() / kParts, [&](int64_t part) {
        BatchOrder::Scratch scratch;
        distinct[part] = order.Group(part, &scratch);
      }));
  EarliestError error;
  std::lock_guard<std::mutex> lock(write_mutex_);
  // Whatever happens, nothing stays staged. (Not even by an exception.)
  struct Unstage {
    ~Unstage() {
      for (int part = 0; part < kParts; ++part) {
        if (distinct[part] > 0) parts[part].segment->Unstage();
      }
    }
    Part* const parts;
    const int64_t* const distinct;
  } unstage{parts_.get(), distinct};
  int64_t added = 0;
  bool no_memory = false;
  for (int number = 0; number < kParts; ++number) {
    if (distinct[number] == 0) continue;
    StringSegment& segment = *parts_[number].segment;
    int64_t coming_bytes = 0;
    for (int64_t i = 0; i < distinct[number]; ++i) {
      coming_bytes += static_cast<int64_t>(strings[order.positions(number, i)[0]].size()) + 4;
    }
    const auto nothing = [](int64_t) {};
    const auto key = [&](int64_t i) { return order.key(number, i); };
    ForEachString<true>(
        0, distinct[number], key, [&](uint64_t) -> const StringSegment& { return segment; },
        nothing, nothing,
        [&](int64_t i, const StringSegment&, const StringSegment::Cell* cell) {
          // The key may have come since.
          const Span<const int64_t> positions = order.positions(number, i);
          const std::string_view first =
              cell == nullptr ? strings[positions[0]] : segment.string(*cell);
          for (const int64_t at : positions) {
            if (strings[at] == first) continue;
            error.Add(at, [&] { return TwoStrings(keys[at], first, strings[at]); });
            break;
          }
          if (cell != nullptr || no_memory) return;
          const uint64_t hash = Mix64(static_cast<uint64_t>(key(i)));
          no_memory = !segment.Stage(key(i), hash, first, stamp, coming_bytes);
          coming_bytes -= static_cast<int64_t>(first.size()) + 4;
          ++added;
        });
    if (no_memory || !segment.StageIndex())
      return ResourceExhausted("no memory for the strings of keys");
  }
  DYNEMB_RETURN_IF_ERROR(error.status());
  for (int number = 0; number < kParts; ++number) {
    if (distinct[number] == 0) continue;
    std::unique_lock<FairSharedMutex> alone(parts_[number].mutex);
    parts_[number].segment->Commit();
  }
  size_ += added;
  return Status();
}

Status KeyStrings::PinGuard::Begin(KeyStrings* strings, Span<const Key> keys, PinGuard* guard,
                                   const Context& context) {
  if (strings == nullptr) return Status();
  const HostContext host(context);
  return OrNoMemory([&] {
    std::shared_lock<std::shared_mutex> pins(strings->pin_mutex_);
    const uint32_t stamp = StampOf(strings->calls_.fetch_add(1));
    if (keys.size > 0) {
      EarliestError error;
      const auto pin = [&](int64_t i, const StringSegment&, StringSegment::Cell* cell) {
        if (cell != nullptr) return SetStamp(cell, stamp);
        error.Add(i, [&] {
          return Status(
              Code::kFailedPrecondition,
              StrCat("keys: the table keeps the strings of its keys and has none for ", keys[i],
                     "; look the strings up, in this process, before their gradient is "
                     "applied, and apply it soon"));
        });
      };
      DYNEMB_RETURN_IF_ERROR(strings->ForEach<false>(host, keys, {}, pin));
      DYNEMB_RETURN_IF_ERROR(error.status());
    }
    guard->lock_ = std::move(pins);
    return Status();
  });
}

Status KeyStrings::Get(Span<const Key> keys,
                       const std::function<void(int64_t, std::string_view)>& found) {
  return OrNoMemory([&] {
    const OneThread context;
    EarliestError error;
    std::vector<std::string_view> strings(static_cast<size_t>(keys.size));
    const auto get = [&](int64_t i, const StringSegment& segment, const StringSegment::Cell* cell) {
      if (cell != nullptr) {
        strings[static_cast<size_t>(i)] = segment.string(*cell);
        return;
      }
      error.Add(i, [&] {
        return Status(Code::kInternal, StrCat("key ", keys[i], " has a row and no string"));
      });
    };
    DYNEMB_RETURN_IF_ERROR(ForEach<true>(context, keys, strings, get));
    DYNEMB_RETURN_IF_ERROR(error.status());
    for (int64_t i = 0; i < keys.size; ++i) found(i, strings[static_cast<size_t>(i)]);
    return Status();
  });
}

Status KeyStrings::Sweep(const Context& context,
                         const std::vector<std::shared_ptr<Table>>& shards) {
  const int64_t strings = size();
  if (strings < sweep_at_.load()) return Status();
  int64_t rows = 0;
  for (const auto& shard : shards) rows += shard->size();  // for which one on a GPU waits
  if (strings < 2 * rows) return Status();
  std::unique_lock<std::shared_mutex> alone(pin_mutex_, std::try_to_lock);
  if (!alone.owns_lock()) return Status();  // the next call will do it
  return OrNoMemory([&] { return SweepAlone(context, shards); });
}

Status KeyStrings::SweepAlone(const Context& context,
                              const std::vector<std::shared_ptr<Table>>& shards) {
  // No row is inserted while the lock is held: a key that is not exported has none.
  const OneThread one_thread;
  std::vector<Key> keys(kLeast);
  for (const auto& shard : shards) {
    Cursor cursor;
    while (!cursor.done) {
      RowParts out;
      out.keys = keys;
      int64_t rows = 0;
      DYNEMB_RETURN_IF_ERROR(shard->Export(context, &cursor, out, &rows));
      const auto mark = [](int64_t, const StringSegment&, StringSegment::Cell* cell) {
        if (cell != nullptr) cell->stamp.fetch_or(kHasRow, std::memory_order_relaxed);
      };
      DYNEMB_RETURN_IF_ERROR(ForEach<false>(one_thread, {keys.data(), rows}, {}, mark));
    }
  }
  for (int number = 0; number < kParts; ++number) {
    const int64_t dropped = DropFrom(number, StampOf(calls_.load()));
    if (dropped < 0) return ResourceExhausted("no memory for the strings of keys");
    size_ -= dropped;
  }
  const int64_t left = size();
  sweep_at_.store(std::max(kLeast, left + left / 4));
  return Status();
}

int64_t KeyStrings::DropFrom(int number, uint32_t now) {
  Part& part = parts_[number];
  std::lock_guard<std::mutex> write(write_mutex_);
  // Readers wait: a string that is recorded meanwhile would be lost.
  std::unique_lock<FairSharedMutex> lock(part.mutex);
  StringSegment& segment = *part.segment;
  const auto stays = [now](const StringSegment::Cell* cell) {
    const uint32_t stamp = cell->stamp.load(std::memory_order_relaxed);
    return (stamp & kHasRow) != 0 || StampOf(int64_t{now} - stamp) <= kGraceCalls;
  };
  int64_t staying = 0, bytes = 0;
  segment.ForEachCell([&](const StringSegment::Cell* cell) {
    if (!stays(cell)) return;
    ++staying;
    bytes += static_cast<int64_t>(segment.string(*cell).size()) + 4;
  });
  const int64_t dropped = segment.size() - staying;
  if (dropped > 0) {
    StringSegment left(&slab_arena_, &index_arena_, number);
    bool no_memory = false;
    segment.ForEachCell([&](const StringSegment::Cell* cell) {
      if (no_memory || !stays(cell)) return;
      const std::string_view string = segment.string(*cell);
      const uint32_t stamp = cell->stamp.load(std::memory_order_relaxed);
      no_memory = !left.Stage(cell->key, Mix64(static_cast<uint64_t>(cell->key)), string, stamp,
                              std::max(bytes, int64_t{0}));
      bytes -= static_cast<int64_t>(string.size()) + 4;
    });
    if (no_memory || !left.StageIndex()) return -1;
    left.Commit();
    left.Unstage();
    segment.Swap(&left);
  }
  segment.ForEachCell([](StringSegment::Cell* cell) {
    cell->stamp.fetch_and(~kHasRow, std::memory_order_relaxed);
  });
  return dropped;
}

}  // namespace dynemb

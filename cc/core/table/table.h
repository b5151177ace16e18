// Table: THE contract. Everything that holds rows by key is one: in host memory, in device memory,
// on disk, and any of them put over another as tiers.
//
// A table maps every possible 64-bit key (none is reserved) to a row `value | slots | meta` as its
// TableSchema says. The schema never changes: other slots or further meta fields are another table,
// into which the rows are moved (PrepareMove; schema_change.h does it for all shards of a table).
//
// The contract has faces, and who implements or calls one need not know the others: RowReader reads
// by key, RowWriter writes by key, RowScanner goes through all rows, ChangeTracker tells which keys
// have changed. A Table has all of them.
//
// All operations are bulk. They are safe to call from any number of threads at once, but for
// PrepareMove; each is atomic per key: nobody sees half a row, or a value of one moment beside a
// slot of another. No order is promised across keys of concurrent calls.
//
// Memory. Batches, buffers and outcomes must lie in the table's own memory space, which is also the
// context's; anything else is kInvalidArgument and nothing is done. A device table does its work in
// the order of the context's stream and reads nothing back: whatever depends on the data (outcomes,
// the number of misses) stays in device memory. A host table has finished when the call returns.
//
// Repetitions. A batch may name a key more than once. A call that changes rows touches each key
// once: Apply adds the gradients of a key up first, of the rows of an Upsert or InsertRows the last
// counts, Accumulate does one after the other; all in the order of the batch, so that the result
// does not depend on threads. The outcome of a key is that of all its positions, but for
// Accumulate, which has one for each.
//
// Room. A table may be bounded (TableOptions::max_rows, max_bytes), and never has more. A call
// that would need more makes room first, if the table evicts: it writes the keys that have rows,
// removes other rows, and then inserts. Otherwise, or if there are not so many rows to evict, the
// call is an error and has changed nothing, or the last keys of the batch are declined, as
// TableOptions::on_full says.
//
// Errors. A call that returns an error has changed nothing, with one exception that is not an error
// of the caller's: when memory runs out, the keys whose outcome is not kFull have been done, and
// the call returns kResourceExhausted. So it is if other calls take the last room, or erase rows of
// the batch, while a call goes on that had been found to fit.
#ifndef TF_DYNEMB_CC_CORE_TABLE_TABLE_H_
#define TF_DYNEMB_CC_CORE_TABLE_TABLE_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "cc/core/base/context.h"
#include "cc/core/base/span.h"
#include "cc/core/base/status.h"
#include "cc/core/table/row_layout.h"

namespace dynemb {

using Key = int64_t;

// What became of one key of a call.
enum class Outcome : uint8_t {
  kMissing,   // it has no row, and the call made none
  kFound,     // it had a row
  kInserted,  // it has one now
  kFull,      // it should have been inserted and there is no room
  kDeclined,  // the same, in a table that goes on without it (TableOptions::on_full)
};

// Positions in a batch. The number is read through `count`, which lies in the same memory space, so
// that one device call can consume what another produced without the host knowing how many there
// are.
struct Positions {
  Span<int64_t> at;
  int64_t* count = nullptr;
};

// The keys of a call. With `select`, only keys[select.at[j]] take part; buffers and outcomes keep
// the numbering of `keys`. That is how misses go to the next tier and how keys go to their shards:
// in place.
struct Batch {
  Span<const Key> keys;
  const Positions* select = nullptr;

  // How many positions take part, and which the j-th of them is. Not of a batch in the memory of a
  // device.
  int64_t size() const { return select == nullptr ? keys.size : *select->count; }
  int64_t position(int64_t j) const { return select == nullptr ? j : select->at[j]; }
};

// What a call reports per key. Both may be left empty. `misses` receives the positions whose
// outcome is neither kFound nor kInserted, in no promised order, those of one key in the order of
// the batch; it needs room for as many as may take part: all keys, or all of `select`.
struct Report {
  Span<Outcome> outcomes;
  Positions* misses = nullptr;
};

// What is written to the meta of the rows that a call writes, where the schema has such a field.
struct Stamp {
  // The time of what has none of its own, such as an upsert between two steps, where an eviction
  // policy goes by time: the latest that the table knows. Elsewhere a number like others.
  static constexpr int64_t kLatest = INT64_MIN;
  int64_t now = 0;
  // The score of each key of the batch, in the batch's memory, where an eviction policy goes by
  // scores that are given. Equal keys have equal scores. Empty: rows keep theirs; new ones have
  // EvictionPolicy::first_score().
  Span<const int64_t> scores = {};
};

// What Apply does with a key that has no row.
enum class IfMissing : uint8_t {
  kInsert,  // inserts it
  kReport,  // nothing: its outcome is kMissing (a row of a lower tier is to be brought first)
};

// Optimizer rule and hyper-parameters of one update; see optimizer/rule.h for their order.
struct Update {
  const OptimizerSpec* rule = nullptr;
  Span<const double> hyper;  // host memory, also for device tables
  // What the gradient of each key of the batch is multiplied by; empty: by nothing.
  Span<const double> scales;
  IfMissing if_missing = IfMissing::kInsert;
};

// Share number `part` of `parts`, about equal ones, by the hash of the key, which together are the
// table: so several threads can go through one.
struct TablePart {
  int64_t part = 0, parts = 1;
};

// A place in an export of a part of a table. Begin with a fresh one; `done` says that there is no
// more. The position is for the table that made it to read.
struct Cursor : TablePart {
  uint64_t position[2] = {0, 0};
  bool done = false;
  // Whether rows that have expired and are still there come, too: for who removes rows of a table
  // that lies in one place (TableOptions::removes).
  bool with_expired = false;
};

// Whole rows in buffers: values (n, dim), slots (n, slots_bytes), meta (n, meta_bytes), each packed
// per row as RowLayout says. Export fills as many as keys.size says, with their keys. Calls with a
// Batch take the keys from there, leave `keys` alone, and number rows as the batch does. What is
// read leaves out the parts with data == nullptr; what is written wants all that the schema has.
template <typename K, typename R>
struct BasicRowParts {
  Span<K> keys;
  R values;
  R slots;
  R meta;
};
using RowParts = BasicRowParts<Key, Rows>;
using ConstRowParts = BasicRowParts<const Key, ConstRows>;

// An order of rows by (meta field, Mix64(key)): scores first, ties broken by the hash of the key.
// It is total, the same on all shards and in all runs, and two numbers of it describe any
// restriction.
struct RowOrder {
  int64_t score = 0;
  uint64_t hash = 0;
  DYNEMB_HOST_DEVICE bool operator<(const RowOrder& o) const {
    return score != o.score ? score < o.score : hash < o.hash;
  }
};

// Reads orders as 128-bit numbers: the score with its sign bit flipped, the hash. The `bits` bits
// after the first prefix_bits, both as Table::Histogram takes them, or -1 where those are not the
// prefix's.
DYNEMB_HOST_DEVICE inline int64_t DigitOf(const RowOrder& order, const RowOrder& prefix,
                                          int prefix_bits, int bits) {
  const uint64_t words[2] = {static_cast<uint64_t>(order.score) ^ uint64_t{1} << 63, order.hash};
  const uint64_t wanted[2] = {static_cast<uint64_t>(prefix.score) ^ uint64_t{1} << 63, prefix.hash};
  for (int w = 0; w * 64 < prefix_bits; ++w) {
    const int left = prefix_bits - w * 64;
    const int low = left < 64 ? 64 - left : 0;
    if (words[w] >> low != wanted[w] >> low) return -1;
  }
  const int shift = 64 - prefix_bits % 64 - bits;
  return static_cast<int64_t>(words[prefix_bits / 64] >> shift & ((uint64_t{1} << bits) - 1));
}

// Reads by key.
class RowReader {
 public:
  virtual ~RowReader() = default;

  virtual MemorySpace space() const = 0;
  virtual const TableSchema& schema() const = 0;

  // Reads values: of a key without a row its initial value, or TableOptions::missing_value.
  // `values` row i is for keys[i]; its stride may be larger than a value. Never inserts.
  virtual Status Find(const Context& context, const Batch& batch, Rows values,
                      const Report& report) const = 0;

  // Copies whole rows, or the parts of them that are asked for, each of one moment. Row i of `rows`
  // is for keys[i]; a key that is missing leaves its row as it is.
  virtual Status ReadRows(const Context& context, const Batch& batch, const RowParts& rows,
                          const Report& report) const = 0;
};

// Writes by key.
class RowWriter {
 public:
  virtual ~RowWriter() = default;

  // Runs the rule over the rows of the batch, in place. A key without a row is inserted with
  // exactly its initial value and initial slots and then updated, also when its gradient is zero,
  // unless update.if_missing says otherwise. `gradients` are numbers of GradientDType(value dtype),
  // one row per key. kFailedPrecondition: the rule is not the schema's.
  virtual Status Apply(const Context& context, const Batch& batch, ConstRows gradients,
                       const Update& update, const Stamp& stamp, const Report& report) = 0;

  // Sets whole values. A new row gets initial slots; the slots of an existing one stay.
  virtual Status Upsert(const Context& context, const Batch& batch, ConstRows values,
                        const Stamp& stamp, const Report& report) = 0;

  // `exists[i]` is what the caller saw when it read key i. Where it was seen and is still there,
  // the row of `values_or_deltas` is added to the value; where it was not seen and is still
  // missing, the row is inserted as the value; the other two cases change nothing (somebody removed
  // or inserted it meanwhile). The semantics of TFRA's accum. Integers wrap around.
  virtual Status Accumulate(const Context& context, const Batch& batch, ConstRows values_or_deltas,
                            Span<const bool> exists, const Stamp& stamp, const Report& report) = 0;

  // Removes rows; kFound tells which there were. Their memory is used again by later inserts.
  virtual Status Erase(const Context& context, const Batch& batch, const Report& report) = 0;

  // Inserts or overwrites whole rows, which must have been made under the table's own schema; their
  // meta is taken as it is. A full table that evicts evicts by their scores too; any other refuses
  // them, whatever TableOptions::on_full says. The row that keys[i] had (its outcome is kFound) is
  // handed back as row i of `displaced`, with its key, as far as that has buffers: those parts, or
  // none. At the positions of a repeated key that is the row from before the call.
  virtual Status InsertRows(const Context& context, const Batch& batch, const ConstRowParts& rows,
                            const RowParts& displaced, const Report& report) = 0;
};

// Goes through all rows.
class RowScanner {
 public:
  virtual ~RowScanner() = default;

  // Copies the next rows, at most out.keys.size, and moves the cursor. A key that is present from
  // the first call to the last appears exactly once, its parts of one moment, whatever others write
  // in the meantime; one that comes or goes, even several times, at most once. After a Clear the
  // export goes on with what has been inserted since.
  virtual Status Export(const Context& context, Cursor* cursor, const RowParts& out,
                        int64_t* rows) const = 0;

  // For restrict, which keeps the n rows of highest order by a radix selection: its memory does not
  // depend on the number of rows. A row's order is the 128-bit number (score with its sign bit
  // flipped, hash). Histogram counts the rows whose order begins with the first `prefix_bits` bits
  // of `prefix`, by the log2(counts.size) bits that follow: it adds to counts[b] the number of rows
  // in which these are b. counts.size is a power of two up to 65536, and prefix_bits a multiple of
  // its logarithm. EraseBelow removes the rows whose order is less than `bound`, in slices between
  // which other calls run. kFailedPrecondition if the schema lacks `field`.
  virtual Status Histogram(const Context& context, MetaField field, const RowOrder& prefix,
                           int prefix_bits, Span<int64_t> counts) const = 0;
  virtual Status EraseBelow(const Context& context, MetaField field, const RowOrder& bound,
                            int64_t* erased) = 0;
};

// Tells which keys have changed (change data capture). Time is divided into epochs, which the
// caller numbers. An epoch begins in one segment of the table after the other, so that no call
// waits for the calls under way in all of them. Until BeginEpoch is called for the first time, or
// TableOptions ask for it, changes are not tracked, and the epoch is 0.
class ChangeTracker {
 public:
  virtual ~ChangeTracker() = default;

  // Ends the current epoch and begins this one: what is written from now on belongs to it, and what
  // others write during the call to either. Takes no time that grows with the number of rows.
  // kInvalidArgument: `epoch` is not larger than the current one.
  virtual Status BeginEpoch(const Context& context, int64_t epoch) = 0;
  virtual int64_t epoch() const = 0;

  // The keys of a part of the table that were written, inserted or erased in later epochs than
  // `since`, each once, in no order; a key that has a row now was written, one that has none was
  // erased. ReadRows tells. kFailedPrecondition if that is not known: changes were not tracked
  // then, the table was cleared, TrimChanges was told that nobody would ask, or so many keys have
  // changed since that all rows are less to copy (change_log.h says how many).
  virtual Status ChangedKeys(const Context& context, int64_t since, const TablePart& part,
                             std::vector<Key>* keys) const = 0;

  // Says since which epochs, ascending, changes will be asked for; and since any that is later than
  // the last of these. What is of no use then is forgotten, but for the current epoch. None:
  // nothing is.
  virtual void TrimChanges(const std::vector<int64_t>& positions) = 0;
};

// What has happened to a table of this process since it was made. Numbers only grow.
struct TableCounters {
  int64_t found = 0;     // keys of reads that had a row; repeated ones count each time
  int64_t missing = 0;   // and those that had none
  int64_t written = 0;   // keys of writes, likewise
  int64_t inserted = 0;  // rows
  int64_t erased = 0;    // rows that were removed by key, by restrict or by Clear
  int64_t evicted = 0;   // rows that left to make room
  int64_t expired = 0;   // rows that left because their time was over
  // Those from here on count repeated keys of a call once.
  int64_t declined = 0;      // keys that were not inserted, as kDeclined
  int64_t not_admitted = 0;  // keys of updates that an admission policy gave no row
  int64_t distinct = 0;      // keys that were written
  int64_t saves = 0;         // snapshots that have the table; of a whole table, and
  int64_t deltas = 0;        // of its changes
  int64_t save_microseconds = 0;
  int64_t delta_microseconds = 0;

  // Calls visit(name, pointer to member) for each, in the order above.
  template <typename Visit>
  static void ForEach(const Visit& visit) {
    visit("found", &TableCounters::found);
    visit("missing", &TableCounters::missing);
    visit("written", &TableCounters::written);
    visit("inserted", &TableCounters::inserted);
    visit("erased", &TableCounters::erased);
    visit("evicted", &TableCounters::evicted);
    visit("expired", &TableCounters::expired);
    visit("declined", &TableCounters::declined);
    visit("not_admitted", &TableCounters::not_admitted);
    visit("distinct", &TableCounters::distinct);
    visit("saves", &TableCounters::saves);
    visit("deltas", &TableCounters::deltas);
    visit("save_microseconds", &TableCounters::save_microseconds);
    visit("delta_microseconds", &TableCounters::delta_microseconds);
  }
  // Adds factor times the others.
  void Add(const TableCounters& others, int64_t factor = 1) {
    ForEach([&](const char*, int64_t TableCounters::* what) {
      this->*what += factor * (others.*what);
    });
  }
};

class EvictedRows;
class Table;

// A move of rows that has been prepared; see Table::PrepareMove.
class RowMove {
 public:
  virtual ~RowMove() = default;
  // Moves the rows, all of them, and returns the table that has them. Once. The table that they
  // came from has none and must not be used any more. Cannot fail.
  virtual std::unique_ptr<Table> Run(const Context& context) = 0;
};

class Table : public RowReader, public RowWriter, public RowScanner, public ChangeTracker {
 public:
  // Removes all rows and gives their memory back. What was erased by it is not known as changes.
  virtual Status Clear(const Context& context) = 0;

  // Prepares for `rows` rows in all, so that inserting up to there grows no index.
  virtual Status Reserve(const Context& context, int64_t rows) = 0;

  // Prepares to move all rows into a new table of another schema, which has the same key, value
  // dtype, dim and initializer: anything else is kInvalidArgument. Slots of the same rule go along,
  // those of another rule are as in a new row; so are meta fields that the rows do not have yet.
  // Changes that were tracked are known to the new table. All memory is asked for here, so that
  // this may fail, leaving everything as it was, and RowMove::Run cannot. Nobody else may call this
  // table from here until the move has run or is gone.
  virtual Status PrepareMove(const Context& context, const TableSchema& schema,
                             std::unique_ptr<RowMove>* move) = 0;

  // Removes all rows that have expired, by an eviction policy, at this moment.
  virtual Status RemoveExpired(const Context&) { return Status(); }
  // The same of about so many rows, or more, where it goes on the next time.
  virtual Status SweepExpired(const Context& context, int64_t /*rows*/) {
    return RemoveExpired(context);
  }

  // Number of rows. Exact when nobody writes. Rows that have expired count until they are removed.
  virtual int64_t size() const = 0;
  // How many rows can be inserted before the table is full; a large number if it never is. Calls
  // under way may have taken more than they need, and give it back.
  virtual int64_t room() const { return INT64_MAX; }
  // Whether so many fit. A table on a GPU need not wait for it, as for `room`, where it has a lot.
  virtual bool HasRoom(int64_t rows) const { return rows <= room(); }
  // How many rows it can have; of shards that are full together, all of them.
  virtual int64_t max_rows() const { return INT64_MAX; }
  virtual TableCounters counters() const { return TableCounters(); }
  // Where rows go that leave by an eviction policy; null: nowhere.
  virtual EvictedRows* evicted() const { return nullptr; }
  // Bytes taken from the system for rows and index.
  virtual int64_t memory_bytes() const = 0;
};

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_CORE_TABLE_TABLE_H_

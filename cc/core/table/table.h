// Table: THE contract. Everything that holds rows by key is one: in host memory, in device memory,
// on disk, and any of them put over another as tiers.
//
// A table maps every possible 64-bit key (none is reserved) to a row `value | slots | meta` as its
// TableSchema says. All operations are bulk. They are safe to call from any number of threads at
// once; each is atomic per key: nobody sees half a row, or a value of one moment beside a slot of
// another. No order is promised across keys of concurrent calls.
//
// Memory. Batches, buffers and outcomes must lie in the table's own memory space, which is also the
// context's; anything else is kInvalidArgument and nothing is done. A device table does its work in
// the order of the context's stream and reads nothing back: whatever depends on the data (outcomes,
// the number of misses) stays in device memory. A host table has finished when the call returns.
//
// Repetitions. A batch may name a key more than once. A call that changes rows touches each key
// once: Apply adds the gradients of a key up first, of the rows of an Upsert or Import the last
// counts, Accumulate does one after the other; all in the order of the batch, so that the result
// does not depend on threads. The outcome of a key is that of all its positions, but for
// Accumulate, which has one for each.
//
// Errors. A call that returns an error has changed nothing, with one exception that is not an error
// of the caller's: when memory runs out, the keys whose outcome is not kFull have been done, and
// the call returns kResourceExhausted.
#ifndef TF_DYNEMB_CC_CORE_TABLE_TABLE_H_
#define TF_DYNEMB_CC_CORE_TABLE_TABLE_H_

#include <cstdint>
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
  kDeclined,  // the table's admission did not want it
  kEvicted,   // inserted, and another key's row was removed to make room
  kFull,      // it should have been inserted and there is no room
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
};

// What a call reports per key. Both may be left empty. `misses` receives the positions whose
// outcome is kMissing, kDeclined or kFull, in no promised order; it needs room for as many as may
// take part: all keys, or all of `select`.
struct Report {
  Span<Outcome> outcomes;
  Positions* misses = nullptr;
};

// What Find writes for a key without a row.
enum class IfMissing : uint8_t {
  kInitialValue,  // the value that the row would be born with
  kLeave,         // nothing: the output keeps what it holds (the next tier will fill it)
};

// What is written to the meta of the rows that a call writes, where the schema has such a field.
struct Stamp {
  int64_t now = 0;
};

// Optimizer rule and hyper-parameters of one update; see optimizer/rule.h for their order.
struct Update {
  const RuleSpec* rule = nullptr;
  Span<const double> hyper;  // host memory, also for device tables
  // What the gradient of each key of the batch is multiplied by; empty: by nothing.
  Span<const double> scales;
};

// A place in an export. Begin with a fresh one; `done` says that there is no more. The position is
// for the table that made it to read. With since_version >= 0 the export is of the rows that were
// written in later versions (see BeginVersion). It is of share number `part` of `parts`, about
// equal ones, by key, which together are the table: so several threads can export one.
struct Cursor {
  uint64_t position[2] = {0, 0};
  bool done = false;
  int64_t since_version = -1;
  int64_t part = 0, parts = 1;
};

// Buffers for `keys.size` whole rows: values (n, dim), slots (n, slots_bytes), meta (n,
// meta_bytes), each packed per row as RowLayout says. Export leaves out what has data == nullptr;
// Import wants all parts that the schema has.
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

class Table {
 public:
  virtual ~Table() = default;

  virtual MemorySpace space() const = 0;
  // A copy: attaching a rule changes it.
  virtual TableSchema schema() const = 0;

  // Reads values. `values` row i is for keys[i]; its stride may be larger than a value. Never
  // inserts.
  virtual Status Find(const Context& context, const Batch& batch, IfMissing if_missing, Rows values,
                      const Report& report) const = 0;

  // Runs the rule over the rows of the batch, in place. A key without a row is inserted with
  // exactly its initial value and initial slots and then updated; also when its gradient is zero.
  // `gradients` are numbers of GradientDType(value dtype), one row per key. The rule must be the
  // attached one (see Attach).
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

  // Removes all rows and gives their memory back. Schema and rule stay.
  virtual Status Clear(const Context& context) = 0;

  // Gives every row the slots of the rule, at their initial values, keeping keys, values and meta.
  // Attaching the rule that is attached already does nothing; a different one is
  // kFailedPrecondition. Rows are laid out anew piece by piece, with one piece of extra memory at a
  // time.
  virtual Status Attach(const Context& context, const RuleSpec& rule) = 0;

  // Prepares for `rows` rows in all, so that inserting up to there grows no index.
  virtual Status Reserve(const Context& context, int64_t rows) = 0;

  // Copies the next rows, at most out.keys.size, and moves the cursor. A key that is present from
  // the first call to the last appears exactly once, its parts of one moment, whatever others write
  // in the meantime; one that comes or goes, even several times, at most once. Attach between two
  // calls is fine for the caller that asks for keys and values only; after a Clear the export goes
  // on with what has been inserted since. kFailedPrecondition: the cursor asks for a version and
  // the table does not follow changes.
  virtual Status Export(const Context& context, Cursor* cursor, const RowParts& out,
                        int64_t* rows) const = 0;

  // Inserts or overwrites whole rows. The parts must have been made under the table's own schema.
  virtual Status Import(const Context& context, const ConstRowParts& rows) = 0;

  // Following changes, for deltas. A new table does not; its version is 0. After BeginVersion(v)
  // it does: whatever writes a row, an import too, notes in it the version of the table, and erased
  // keys are logged with it. The call waits for writes under way, which belong to the version
  // before, as do all rows from before the first call. `version` must be larger than the one that
  // the table has. The first call lays the rows out anew, as Attach does.
  virtual Status BeginVersion(const Context& context, int64_t version) = 0;
  virtual int64_t version() const = 0;
  // The keys that were erased in versions later than `since`, some of which may be there again.
  // kFailedPrecondition if that is not known: the table did not follow changes then, it was
  // cleared, or more than kErasedLimit keys were erased.
  virtual Status Erased(const Context& context, int64_t since, std::vector<Key>* keys) const = 0;
  static constexpr int64_t kErasedLimit = int64_t{1} << 20;

  // The hook of restrict. Read a row's order as the 128-bit number (score with its sign bit
  // flipped, hash). Histogram looks at the rows that agree with `prefix` in the first `prefix_bits`
  // bits and adds to counts[b] the number of those with b in the next log2(counts.size) bits,
  // counts.size being a power of two up to 65536 and prefix_bits a multiple of that logarithm: so a
  // radix selection finds the bound that leaves exactly n rows, in memory that does not depend on
  // the number of rows. EraseBelow removes the rows whose order is less than `bound`.
  // kFailedPrecondition if the schema lacks `field`.
  virtual Status Histogram(const Context& context, MetaField field, const RowOrder& prefix,
                           int prefix_bits, Span<int64_t> counts) const = 0;
  virtual Status EraseBelow(const Context& context, MetaField field, const RowOrder& bound,
                            int64_t* erased) = 0;

  // Number of rows. Exact when nobody writes.
  virtual int64_t size() const = 0;
  // Bytes taken from the system for rows and index.
  virtual int64_t memory_bytes() const = 0;
};

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_CORE_TABLE_TABLE_H_

// CountSketch: about how often keys have occurred, in less memory than a row for each: a count-min
// sketch (Cormode and Muthukrishnan, "An Improved Data Stream Summary: The Count-Min Sketch and its
// Applications", 2005) with conservative update (Estan and Varghese, "New Directions in Traffic
// Measurement and Accounting", 2002).
//
// A key has a counter in each of kHashes rows of counters, and its estimate is the least of these.
// To note a count raises those that are less to it. So an estimate is never less than a count that
// was noted; and it is more by 1 or more with probability e^-kHashes at most, since what estimates
// were raised by adds up to no more than the width of a row over e. Before it would be more all
// counters are halved, rounded down, and so is the sum (the reset of TinyLFU: Einziger, Friedman,
// Manes, "TinyLFU: A Highly Efficient Cache Admission Policy", 2017).
//
// The counters are rows of a table: values of int8, blocks of neighbouring counters, which are
// inserted when the first of them is raised. So they are saved and restored as any rows are.
#ifndef TF_DYNEMB_CC_CORE_POLICY_COUNT_SKETCH_H_
#define TF_DYNEMB_CC_CORE_POLICY_COUNT_SKETCH_H_

#include <cstdint>
#include <vector>

#include "cc/core/base/context.h"
#include "cc/core/base/span.h"
#include "cc/core/base/status.h"
#include "cc/core/table/table.h"

namespace dynemb {

// Where the counters of a key are. What was noted under another shape is forgotten.
struct SketchShape {
  int64_t blocks = 0;                  // of each row of counters; 0: there is no sketch
  int64_t process = 0, processes = 1;  // the keys of its rows are those that this one has, by mod
};

class CountSketch {
 public:
  static constexpr int kHashes = 4;
  static constexpr int64_t kMostCount = 127;  // that a counter holds

  // kInvalidArgument: not a table for counters.
  static Status Check(const TableSchema& schema);

  // The table must outlive it.
  CountSketch(Table* table, const SketchShape& shape);

  // About how often each key has occurred, 0 of one that was never noted.
  Status Estimate(const Context& context, Span<const Key> keys, float* estimates) const;

  // Notes how often keys have occurred in all, estimates that they began with included. Counts of
  // more than kMostCount, or less than 1, count as these. One call at a time.
  Status Note(const Context& context, Span<const Key> keys, Span<const float> counts);

 private:
  // The row that says what the others are.
  struct Head {
    int64_t layout, blocks, processes, noted;
  };
  struct Counter {
    Key row;
    int64_t place;  // in the row
  };

  Key head_key() const { return shape_.process - shape_.processes; }
  Counter CounterOf(Key key, int hash) const;
  // Reads rows of the table, zeros where there are none.
  Status Read(const Context& context, const std::vector<Key>& rows, std::vector<int8_t>* counters,
              Outcome* outcomes = nullptr) const;
  Status Write(const Context& context, const std::vector<Key>& rows,
               const std::vector<int8_t>& counters);
  // *known: there is one, of this shape.
  Status ReadHead(const Context& context, Head* head, bool* known) const;
  Status WriteHead(const Context& context, const Head& head);
  // The rows of the counters of some keys, with these raised, and by how much their estimates are
  // more than before, in all.
  Status Raise(const Context& context, Span<const Key> keys, Span<const float> counts,
               std::vector<Key>* rows, std::vector<int8_t>* counters, int64_t* raised) const;
  // Divides all counters, and removes rows of zeros. Of 0: removes all rows.
  Status DivideAll(const Context& context, int divisor);

  Table* const table_;
  const SketchShape shape_;
  const int64_t dim_;
  const int64_t most_;  // that estimates may have been raised by
};

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_CORE_POLICY_COUNT_SKETCH_H_

// MemoryBound: how many rows a host table may have so that rows and index stay within a number of
// bytes.
//
// Hashing spreads n rows over the segments with a standard deviation of about sqrt(n / segments),
// and memory that a segment once took for rows stays with it. So each segment is counted with six
// standard deviations more than its share, and its index has that size from the start. What is
// counted so is made sure of by the limits of the arenas: keys that somebody has chosen to lie in
// one segment make the table full earlier. Small tables lose most: of rows of 200 bytes, and 8 of
// the key, 62 % of the bytes are used at 10,000 rows, 80 % at 100,000 and 88 % at a million.
#ifndef TF_DYNEMB_CC_CORE_TABLE_MEMORY_BOUND_H_
#define TF_DYNEMB_CC_CORE_TABLE_MEMORY_BOUND_H_

#include <cstdint>

#include "cc/core/table/row_layout.h"

namespace dynemb {

// The most rows that a segment has of a table of so many.
int64_t RowsOfSegment(int64_t rows_of_table);

// What the index and the rows of a table of so many rows may take.
int64_t IndexBytes(int64_t rows);
int64_t RowBytes(int64_t rows, const RowLayout& layout);

// The most rows for which these are within so many bytes, if the index has at least index_bytes; 0:
// not even one.
int64_t RowsWithin(int64_t bytes, const RowLayout& layout, int64_t index_bytes);

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_CORE_TABLE_MEMORY_BOUND_H_

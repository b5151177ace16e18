// ExportSegment: rows of a segment copied out in the order of stripes.h, from where a cursor is.
#ifndef TF_DYNEMB_CC_CORE_TABLE_EXPORT_SEGMENT_H_
#define TF_DYNEMB_CC_CORE_TABLE_EXPORT_SEGMENT_H_

#include <cstdint>

#include "cc/core/table/segment.h"
#include "cc/core/table/table.h"

namespace dynemb {

// Copies rows, of which `layout` says what they are made of, to `out` from row *n on, as many as
// there are or fit, and moves *n and the cursor. Its position is the hash from which to go on, of
// this segment, and the number of bits of the stripes plus 1, which is 0 where the segment begins.
// Returns whether the segment is done.
bool ExportSegment(const Segment& segment, const RowLayout& layout, const RowParts& out,
                   Cursor* cursor, int64_t* n);

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_CORE_TABLE_EXPORT_SEGMENT_H_

// FetchedRowsView: remote rows that a step has fetched, to be read by key as a table is.
//
// Rows of a table that is sharded across processes, or on parameter servers, are sent to where a
// step needs them. Whatever looks up a table reads them there as it reads any other. Nothing is
// copied: there is only an index over the keys.
#ifndef TF_DYNEMB_CC_CORE_LOOKUP_FETCHED_ROWS_VIEW_H_
#define TF_DYNEMB_CC_CORE_LOOKUP_FETCHED_ROWS_VIEW_H_

#include <cstdint>
#include <memory>

#include "cc/core/base/dtype.h"
#include "cc/core/base/span.h"
#include "cc/core/base/status.h"
#include "cc/core/table/table.h"

namespace dynemb {

// A view of the keys, of which a repeated one has the first of its rows; a key that is not among
// them reads as zeros. Keys and values, `dim` numbers of `dtype` each, are in host memory, which
// `memory` keeps.
Status MakeFetchedRowsView(Span<const Key> keys, ConstRows values, DType dtype, int64_t dim,
                           std::shared_ptr<const void> memory, std::unique_ptr<RowReader>* view);

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_CORE_LOOKUP_FETCHED_ROWS_VIEW_H_

// What can be checked about a call to a table without looking at its rows: `space` is where the
// table is. What lies in the memory of a device is not looked at.
#ifndef TF_DYNEMB_CC_CORE_TABLE_CALL_CHECKS_H_
#define TF_DYNEMB_CC_CORE_TABLE_CALL_CHECKS_H_

#include "cc/core/base/context.h"
#include "cc/core/base/span.h"
#include "cc/core/base/status.h"
#include "cc/core/table/table.h"

namespace dynemb {

inline Status WrongSpace(const char* what, MemorySpace space) {
  return InvalidArgument(what, ": the memory is not in ",
                         space == MemorySpace::kHost ? "host" : "device",
                         " memory, where the table is");
}

template <typename T>
Status CheckSpan(const char* what, const Span<T>& span, MemorySpace space = MemorySpace::kHost) {
  if (span.size == 0) return Status();  // wherever it lies
  if (span.space != space) return WrongSpace(what, space);
  if (span.size < 0) return InvalidArgument(what, ": got size ", span.size);
  if (span.size > 0 && span.data == nullptr) return InvalidArgument(what, ": got null");
  return Status();
}

Status CheckContext(const Context& context, MemorySpace space = MemorySpace::kHost);

// Context, keys, selection and report.
Status CheckBatch(const Context& context, const Batch& batch, const Report& report,
                  MemorySpace space = MemorySpace::kHost);

// Rows of `dim` numbers of `dtype`, one per key of the batch. Where they have offsets, what these
// say is the caller's word.
Status CheckValues(const char* what, const Batch& batch, ConstRows rows, DType dtype, int64_t dim,
                   MemorySpace space = MemorySpace::kHost);

// One scale per key of the batch, or none.
Status CheckScales(const Batch& batch, const Update& update,
                   MemorySpace space = MemorySpace::kHost);

// One score per key of the batch, or none.
Status CheckStamp(const Batch& batch, const Stamp& stamp, MemorySpace space = MemorySpace::kHost);

// One flag per key of the batch.
Status CheckExists(const Batch& batch, const Span<const bool>& exists,
                   MemorySpace space = MemorySpace::kHost);

// n packed parts of rows of `bytes` each; data == nullptr says that the part is left out.
Status CheckPart(const char* what, int64_t n, int64_t bytes, ConstRows rows,
                 MemorySpace space = MemorySpace::kHost);

// The buffers of an export; those of a batch to be filled, which leave out what is not wanted; and
// those to be inserted, which have all parts.
Status CheckExport(const RowLayout& layout, const RowParts& out,
                   MemorySpace space = MemorySpace::kHost);
Status CheckRowsToRead(const RowLayout& layout, const Batch& batch, const RowParts& rows,
                       MemorySpace space = MemorySpace::kHost);
Status CheckRowsToInsert(const RowLayout& layout, const Batch& batch, const ConstRowParts& rows,
                         MemorySpace space = MemorySpace::kHost);

// The counts of a histogram, one for each value of the `bits` bits after prefix_bits.
Status CheckCounts(const Span<int64_t>& counts, int prefix_bits, int* bits,
                   MemorySpace space = MemorySpace::kHost);

Status CheckTablePart(const TablePart& part);

// That rows have such a field.
Status CheckMetaField(const RowLayout& layout, MetaField field);

// That the table is trained by this rule.
Status CheckOptimizer(const TableSchema& schema, const OptimizerSpec& rule);

// That rows of a table can be moved into one of another schema: of the same key, value dtype, dim
// and initializer.
Status CheckMove(const TableSchema& from, const TableSchema& to);

// The errors of setting another optimizer than the table's, of beginning an epoch that is not
// later, and of asking for changes that are not known.
Status OtherRule(const OptimizerSpec& attached, const OptimizerSpec& got);
Status EpochNotLater(int64_t got, int64_t current);
Status ChangesNotKnown(int64_t since);

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_CORE_TABLE_CALL_CHECKS_H_

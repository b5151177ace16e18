// CandidateRows: the rows of a range of hashes in the order in which they leave a full table.
#ifndef TF_DYNEMB_CC_GPU_TABLE_EVICT_ROWS_H_
#define TF_DYNEMB_CC_GPU_TABLE_EVICT_ROWS_H_

#include <cstdint>

#include "cc/core/base/context.h"
#include "cc/core/base/status.h"
#include "cc/core/policy/eviction.h"
#include "cc/core/table/row_layout.h"
#include "cc/gpu/table/index.cu.h"
#include "cc/gpu/table/rows.cu.h"
#include "cc/gpu/table/scratch.h"
#include "cc/gpu/table/write_rows.cu.h"

namespace dynemb {

// The score of a row: that of the table in host memory (Evictor::Score), to the bit.
struct RowScore {
  int64_t meta_at = -1;  // of the number, from the begin of the row; -1: it is the norm
  int64_t dim = 0;
  DType dtype = DType::kFloat32;
  Expiry expiry;

  RowScore() = default;
  RowScore(const EvictionPolicy& policy, const TableSchema& schema, const RowLayout& layout,
           const Expiry& expires);
  DYNEMB_HOST_DEVICE int64_t operator()(const char* row) const;
};

// One after the other: Collect, and Erase. They wait for the stream.
class CandidateRows {
 public:
  explicit CandidateRows(DeviceMemory* memory) : scratch_(memory) {}

  // The rows with hashes in [first, last], or in [first, 2^64) and [0, last] where last < first;
  // about `expected`. *count: how many there are. kResourceExhausted.
  Status Collect(const Context& context, const Index& index, const RowSlabs& rows,
                 const RowScore& score, uint64_t first, uint64_t last, int64_t expected,
                 int64_t* count);
  // Erases the n with the lowest scores; of equal ones the hash decides as in host memory.
  Status Erase(const Context& context, const Index& index, const RowSlabs& rows, int64_t n,
               const FreedRows& freed);

  void Free() { scratch_.Free(); }

 private:
  Scratch scratch_;
  uint64_t* ties_ = nullptr;   // sorted
  uint32_t* order_ = nullptr;  // places in ties_, by score
};

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_GPU_TABLE_EVICT_ROWS_H_

// TableResource: a core table as a TensorFlow resource, and what every kernel needs to call it.
#ifndef TF_DYNEMB_CC_KERNELS_TABLE_RESOURCE_H_
#define TF_DYNEMB_CC_KERNELS_TABLE_RESOURCE_H_

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "cc/core/base/context.h"
#include "cc/core/base/dtype.h"
#include "cc/core/base/span.h"
#include "cc/core/base/status.h"
#include "cc/core/shard/routing.h"
#include "cc/core/table/table.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_mgr.h"

namespace dynemb {

// Holds the table of one shard. A restore puts another one in its place; calls under way finish on
// the one they began with.
class TableResource : public tensorflow::ResourceBase {
 public:
  explicit TableResource(std::shared_ptr<Table> table) : table_(std::move(table)) {}
  std::shared_ptr<Table> table() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return table_;
  }
  void Replace(std::shared_ptr<Table> table) {
    std::lock_guard<std::mutex> lock(mutex_);
    table_ = std::move(table);
  }
  std::string DebugString() const override;
  int64_t MemoryUsed() const override { return table()->memory_bytes(); }

 private:
  mutable std::mutex mutex_;
  std::shared_ptr<Table> table_;
};

// TensorFlow's intra-op threads.
class PoolExecutor : public Executor {
 public:
  explicit PoolExecutor(tensorflow::OpKernelContext* context);
  int concurrency() const override;
  void Run(int64_t tasks, int64_t nanoseconds_per_task,
           const std::function<void(int64_t)>& task) override;

 private:
  tensorflow::thread::ThreadPool* const pool_;
};

// The context of a kernel's calls into the core; lives as long as its Compute.
struct PoolContext : Context {
  explicit PoolContext(tensorflow::OpKernelContext* context) : pool(context) { executor = &pool; }
  PoolContext(const PoolContext&) = delete;
  PoolExecutor pool;
};

absl::Status ToTensorFlow(const Status& status);
DType ToCore(tensorflow::DataType dtype);

// The shards of a variable, held for the length of a kernel's Compute.
struct Shards {
  std::vector<tensorflow::core::RefCountPtr<TableResource>> resources;
  std::vector<std::shared_ptr<Table>> tables;
  TableSchema schema;  // of the first; all have the same value dtype and dim
  int count() const { return static_cast<int>(tables.size()); }
};

// Reads the input list "tables". Errors: not a table; shards of different shapes; a value dtype
// other than `dtype` (pass DT_INVALID where the op has none).
absl::Status GetShards(tensorflow::OpKernelContext* context, tensorflow::DataType dtype,
                       Shards* shards);

// keys and owners of an op as spans over its input tensors.
struct KeyInputs {
  const tensorflow::Tensor* keys_tensor;
  Span<const Key> keys;
  Span<const int32_t> owners;
};
absl::Status GetKeys(tensorflow::OpKernelContext* context, KeyInputs* inputs);

// Input `name` as rows, after checking that its shape is the keys' shape + (dim,).
absl::Status GetRows(tensorflow::OpKernelContext* context, const char* name,
                     const KeyInputs& inputs, const TableSchema& schema, ConstRows* rows);

// Input `name`, a scalar int64.
absl::Status GetScalar(tensorflow::OpKernelContext* context, const char* name, int64_t* value);

// Calls call(table, batch) for each shard with its share of `positions` (null: of all keys).
Status ForEachShard(const Shards& shards, Span<const Key> keys, Span<const int32_t> owners,
                    const std::vector<int64_t>* positions,
                    const std::function<Status(Table*, const Batch&)>& call);

// A row-major matrix (or any tensor whose last axis is the row) as rows.
ConstRows RowsOf(const tensorflow::Tensor& tensor, int64_t rows, int64_t row_bytes);
Rows MutableRowsOf(tensorflow::Tensor* tensor, int64_t rows, int64_t row_bytes);

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_KERNELS_TABLE_RESOURCE_H_

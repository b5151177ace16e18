// TableResource: a core table as a TensorFlow resource, and what every kernel needs to call it.
#ifndef TF_DYNEMB_CC_KERNELS_TABLE_RESOURCE_H_
#define TF_DYNEMB_CC_KERNELS_TABLE_RESOURCE_H_

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cc/core/base/context.h"
#include "cc/core/base/dtype.h"
#include "cc/core/base/span.h"
#include "cc/core/base/status.h"
#include "cc/core/shard/routing.h"
#include "cc/core/table/key_strings.h"
#include "cc/core/table/table.h"
#include "cc/kernels/gpu_place.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_mgr.h"

namespace dynemb {

// The shards of a table, all of one schema.
using Shards = std::vector<std::shared_ptr<Table>>;
std::vector<Table*> Pointers(const Shards& shards);

// An empty one where the op is placed.
absl::Status MakeShard(tensorflow::OpKernelContext* context, const TableSchema& schema,
                       std::shared_ptr<Table>* shard);

// What a table holds: its shards and, if it keeps them, the strings of its keys.
struct Contents {
  Shards shards;
  std::shared_ptr<KeyStrings> strings;

  // Empty strings beside shards whose schema says that they are kept.
  static Contents Of(Shards shards);
};

// Holds the contents. A restore puts others in their place; calls under way finish on those they
// began with.
class TableResource : public tensorflow::ResourceBase {
 public:
  explicit TableResource(Contents contents) : contents_(std::move(contents)) {}
  Contents contents() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return contents_;
  }
  Shards shards() const { return contents().shards; }
  void Replace(Contents contents, std::vector<uint64_t> snapshots) {
    std::lock_guard<std::mutex> lock(mutex_);
    contents_ = std::move(contents);
    versions_.clear();
    snapshots_ = std::move(snapshots);
  }
  // Exchanges the content of two tables.
  void Swap(TableResource* other);

  // The version that a snapshot ended, for the snapshots that this content can be a delta of: those
  // saved of it, and the one that it was restored from. `shards` are what the caller works on: if a
  // restore has put others in their place meanwhile, nothing is noted, and nothing is known.
  void SetVersionOf(uint64_t snapshot, const Shards& shards, int64_t version);
  Status VersionOf(uint64_t snapshot, const Shards& shards, int64_t* version) const;

  // The snapshots of which the rows have everything, so that deltas of them can be loaded: the one
  // that was loaded last, and those that were saved since.
  std::vector<uint64_t> snapshots() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return snapshots_;
  }
  void set_snapshot(uint64_t snapshot) {
    std::lock_guard<std::mutex> lock(mutex_);
    snapshots_ = {snapshot};
  }

  std::string DebugString() const override;
  int64_t MemoryUsed() const override;

 private:
  mutable std::mutex mutex_;
  Contents contents_;
  std::map<uint64_t, int64_t> versions_;
  std::vector<uint64_t> snapshots_;
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

// The context of calls in the memory of the op's device: on a GPU that and TensorFlow's stream,
// otherwise as above.
struct DeviceContext : PoolContext {
  explicit DeviceContext(tensorflow::OpKernelContext* context) : PoolContext(context) {
    UseGpu(context, this);
  }
};

absl::Status ToTensorFlow(const Status& status);
DType ToCore(tensorflow::DataType dtype);

// The table of an op's input "table", held for the length of a kernel's Compute.
struct TableInput {
  tensorflow::core::RefCountPtr<TableResource> resource;
  Shards shards;    // called with what is in the host's memory
  Shards in_place;  // with what is in the memory of the op's device: on a CPU the same ones
  std::shared_ptr<KeyStrings> strings;  // null if the table keeps none
  TableSchema schema;
  int64_t shard_count() const { return static_cast<int64_t>(shards.size()); }
};

// Errors: not a table; a value dtype other than `dtype` (DT_INVALID where the op has none).
absl::Status GetTable(tensorflow::OpKernelContext* context, tensorflow::DataType dtype,
                      TableInput* table);
// The same for a handle that is not the input "table".
absl::Status GetTableOf(tensorflow::OpKernelContext* context, const tensorflow::Tensor& handle,
                        TableInput* table);

// For ops that read values of `dtype`, the table's own or a wider one to which they Widen() them.
absl::Status GetTableToRead(tensorflow::OpKernelContext* context, tensorflow::DataType dtype,
                            TableInput* table);

// The inputs keys and owners of an op, and to which shards they go.
struct KeyInputs {
  const tensorflow::Tensor* keys_tensor;
  Span<const Key> keys;
  Routing routing;
};
// Of keys, and whatever goes with them, in the memory `space`; owners are always the host's.
// Errors: owners that are not, one for each key, shards of the table.
absl::Status GetKeys(tensorflow::OpKernelContext* context, const TableInput& table,
                     KeyInputs* inputs, MemorySpace space = MemorySpace::kHost);
// The same for given tensors.
absl::Status RouteKeys(const tensorflow::Tensor& keys, const tensorflow::Tensor& owners,
                       const TableInput& table, KeyInputs* inputs,
                       MemorySpace space = MemorySpace::kHost);

// Puts keys that are on the op's GPU into `copy`, and waits for it; others stay where they are.
absl::Status KeysToHost(const Context& core, Span<const Key>* keys, std::vector<Key>* copy);

// KeyStrings::Birth of a call that may give keys rows, wherever they are.
absl::Status BeginBirth(const Context& core, const TableInput& table, Span<const Key> keys,
                        KeyStrings::Birth* birth);

// Input `name`, one string per key, as views of it. Error: another number of them.
absl::Status GetStrings(tensorflow::OpKernelContext* context, const char* name,
                        const KeyInputs& inputs, std::vector<std::string_view>* strings);

// Input `name` as rows, after checking that its shape is the keys' shape + (dim,).
absl::Status GetRows(tensorflow::OpKernelContext* context, const char* name,
                     const KeyInputs& inputs, const TableSchema& schema, ConstRows* rows);
// The same for a given tensor, of any dtype.
absl::Status RowsOfKeys(const char* name, const tensorflow::Tensor& tensor, const KeyInputs& inputs,
                        int64_t dim, ConstRows* rows);

// Input `name`, a scalar: int64 or a string.
template <typename T>
absl::Status GetScalar(tensorflow::OpKernelContext* context, const char* name, T* value);

// Calls call(shard, batch) for each shard with its share of the keys, in the keys' memory.
Status ForEachShard(const TableInput& table, Span<const Key> keys, const Routing& routing,
                    const std::function<Status(Table*, const Batch&)>& call);
inline Status ForEachShard(const TableInput& table, const KeyInputs& inputs,
                           const std::function<Status(Table*, const Batch&)>& call) {
  return ForEachShard(table, inputs.keys, inputs.routing, call);
}

// The distinct keys that have no row, in the order of their first appearance.
Status MissingKeys(const TableInput& table, Span<const Key> keys, const Routing& routing,
                   std::vector<Key>* missing);

// A row-major matrix (or any tensor whose last axis is the row) as rows.
ConstRows RowsOf(const tensorflow::Tensor& tensor, int64_t rows, int64_t row_bytes,
                 MemorySpace space = MemorySpace::kHost);
Rows MutableRowsOf(tensorflow::Tensor* tensor, int64_t rows, int64_t row_bytes,
                   MemorySpace space = MemorySpace::kHost);

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_KERNELS_TABLE_RESOURCE_H_

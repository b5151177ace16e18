// TableResource: a core table as a TensorFlow resource, and what every kernel needs to call it.
#ifndef TF_DYNEMB_CC_KERNELS_TABLE_RESOURCE_H_
#define TF_DYNEMB_CC_KERNELS_TABLE_RESOURCE_H_

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cc/core/base/context.h"
#include "cc/core/base/dtype.h"
#include "cc/core/base/io_threads.h"
#include "cc/core/base/span.h"
#include "cc/core/base/status.h"
#include "cc/core/policy/given_scores.h"
#include "cc/core/shard/routing.h"
#include "cc/core/snapshot/lineage.h"
#include "cc/core/storage/storage_options.h"
#include "cc/core/table/key_strings.h"
#include "cc/core/table/shard_set.h"
#include "cc/core/table/table.h"
#include "cc/core/table/table_options.h"
#include "cc/kernels/gpu_place.h"
#include "cc/kernels/monitoring.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/platform/random.h"

namespace dynemb {

class Reopening;

std::vector<Table*> Pointers(const Shards& shards);

// How the rows of a table are stored; null: in memory alone.
using Storage = std::shared_ptr<const StorageOptions>;

// Empty ones where the op is placed, so many rows to be expected in each.
absl::Status MakeShards(tensorflow::OpKernelContext* context, const TableSchema& schema,
                        const TableOptions& options, const Storage& storage, int64_t number,
                        int64_t rows_of_shard, Shards* shards);

// The same in the host's memory, or on disk, outside of an op.
Status MakeHostShards(const Context& context, const TableSchema& schema,
                      const TableOptions& options, const Storage& storage, int64_t number,
                      int64_t rows_of_shard, Shards* shards);

// The contents of a new table: empty strings beside shards whose schema says that they are kept.
ShardSet::Contents ContentsOf(Shards shards);

// A table as a resource: its shards, and the snapshots that its rows contain. Or a view of rows
// that a step has fetched, which can only be looked up.
class TableResource : public tensorflow::ResourceBase {
 public:
  // `name`: of the table, for errors; it may be empty.
  TableResource(ShardSet::Contents contents, const TableOptions& options, Storage storage,
                std::string name)
      : options_(options),
        storage_(std::move(storage)),
        name_(std::move(name)),
        shards_(std::move(contents)) {
    AddToMonitoring(this);
  }
  explicit TableResource(std::shared_ptr<const RowReader> view)
      : shards_(ShardSet::Contents()), view_(std::move(view)) {}

  ~TableResource() override {
    if (view_ == nullptr) RemoveFromMonitoring(this);
  }

  ShardSet* shards() { return &shards_; }
  // Of the shards together, and of those that are put in their place.
  const TableOptions& options() const { return options_; }
  const Storage& storage() const { return storage_; }
  // The rows of the last flush are to come from `reopening`, of the shards of now.
  void set_reopening(std::shared_ptr<Reopening> reopening) { reopening_ = std::move(reopening); }
  // As of the op DynembReopen.
  Status Reopen(Span<const int32_t> shard_ids, std::vector<Key>* keys);
  bool is_reopening() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return reopening_ != nullptr;
  }
  const std::string& name() const { return name_; }

  // A reference to the table, or none if its destructor has been called.
  tensorflow::core::RefCountPtr<const TableResource> IfExists() const {
    return tensorflow::core::RefCountPtr<const TableResource>(TryRef() ? this : nullptr);
  }
  // Drawn when it is made: no other table has it, in any process.
  int64_t id() const { return id_; }
  // Whether it is an error if it is full.
  bool refuses_when_full() const {
    return options_.is_bounded() && !options_.eviction.evicts() &&
           options_.on_full == OnFull::kError;
  }
  // Of all shards that it had; and by shard, without what is counted of tables alone.
  TableCounters counters() const;
  std::vector<TableCounters> counters_by_shard() const;
  int64_t rows() const;
  // Counts keys that an admission policy gave no row.
  void AddNotAdmitted(int64_t keys);
  // Counts a snapshot that has the table, and the time that it took.
  void AddSave(bool is_delta, int64_t microseconds);
  const RowReader* view() const { return view_.get(); }
  // What lookups have given since the rows of these keys were written, for an eviction by scores.
  GivenScores* given_scores() { return &given_scores_; }
  // Of the updates of the table that these are the candidates of.
  AdmissionCalls* admission_calls() { return &admission_calls_; }

  // Puts other rows in place, which contain these snapshots.
  void Replace(ShardSet::Contents contents, const std::vector<uint64_t>& snapshots);
  // Exchanges the content of two tables. Rows that have left this one, and were not taken, stay its
  // own, as in Replace.
  void Swap(TableResource* other);

  // An epoch that a save or a load has ended. Changes since then are kept while it lives.
  using EndedEpoch = std::shared_ptr<const int64_t>;
  // That of a snapshot, if `shards`, on which the caller works, know the changes since.
  Status EpochOf(uint64_t snapshot, const Shards& shards, EndedEpoch* epoch);
  // Begins a new epoch in `shards`, on which the caller works.
  Status BeginEpoch(const Context& context, const Shards& shards, EndedEpoch* ended);
  // Notes that a snapshot, a delta of `base` or full, has been saved or loaded as of the end of an
  // epoch, and forgets changes that nobody can ask for any more. If a restore has put other shards
  // in place meanwhile, nothing is noted.
  void SetEpochOf(uint64_t snapshot, uint64_t base, const Shards& shards, const EndedEpoch& ended);

  // The snapshots of which the rows have everything, so that deltas of them can be loaded; the
  // latest is the last.
  std::vector<uint64_t> snapshots() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return lineage_.snapshots();
  }
  void set_snapshot(uint64_t snapshot) {
    std::lock_guard<std::mutex> lock(mutex_);
    lineage_.Loaded({snapshot});
  }
  // No delta continues what the rows are now.
  void forget_snapshots() {
    std::lock_guard<std::mutex> lock(mutex_);
    lineage_.Loaded({});
  }

  std::string DebugString() const override;
  int64_t MemoryUsed() const override;

 private:
  // Those of the shards of now.
  std::vector<TableCounters> CountersByShard() const;
  // Goes on counting when they are replaced, whose rows are erased by that.
  void CountShardsThatGo();
  // What has left the shards before, and was not taken.
  void KeepEvictedOf(const Shards& before);

  const TableOptions options_;
  const Storage storage_;
  const std::string name_;
  const int64_t id_ = static_cast<int64_t>(tensorflow::random::New64());
  ShardSet shards_;
  const std::shared_ptr<const RowReader> view_;
  GivenScores given_scores_;
  AdmissionCalls admission_calls_;
  mutable std::mutex mutex_;  // of what follows, and of the contents being those that it is of
  Lineage lineage_;
  std::vector<TableCounters> earlier_;    // by shard, of those that it had before
  TableCounters of_table_;                // what no shard counts
  std::shared_ptr<Reopening> reopening_;  // null: all rows are there
  bool awaits_shard_ids_ = false;
};

// TensorFlow's intra-op threads.
class PoolExecutor : public Executor {
 public:
  explicit PoolExecutor(tensorflow::OpKernelContext* context);
  int concurrency() const override;

 private:
  void RunEach(int64_t tasks, int64_t nanoseconds_per_task,
               const std::function<void(int64_t)>& task) override;

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

// The context of calls that read and write files.
struct FileContext : IoContext {
  FileContext() = default;
  FileContext(const FileContext&) = delete;
  FileContext& operator=(const FileContext&) = delete;
};

// The table of an op's input "table", held for the length of a kernel's Compute.
struct TableInput {
  tensorflow::core::RefCountPtr<TableResource> resource;
  ShardSet::Lease lease;
  Shards shards;    // called with what is in the host's memory; none: a view
  Shards in_place;  // with what is in the memory of the op's device: on a CPU the same ones
  std::shared_ptr<KeyStrings> strings;  // null if the table keeps none
  TableSchema schema;

  int64_t shard_count() const {
    return resource->view() != nullptr ? 1 : static_cast<int64_t>(shards.size());
  }
  // What is looked up with what is in this memory: the shards, or the view.
  std::vector<const RowReader*> readers(MemorySpace space) const;
};

// Errors: not a table; a view; a value dtype other than `dtype` (DT_INVALID where the op has none).
absl::Status GetTable(tensorflow::OpKernelContext* context, tensorflow::DataType dtype,
                      TableInput* table, CallLength length = CallLength::kShort);
// Gets the table of an op without a dtype, and calls call(context, shard) for each of its shards in
// turn: a long call.
absl::Status CallShards(tensorflow::OpKernelContext* context, TableInput* table,
                        const std::function<Status(const Context&, Table*)>& call);
// The tables of handles that are not the input "table", all that the op works on: see
// ShardSet::Acquire. Views only if `may_be_views`.
std::vector<const tensorflow::Tensor*> TensorsOf(const tensorflow::OpInputList& list);
absl::Status GetTablesOf(tensorflow::OpKernelContext* context,
                         const std::vector<const tensorflow::Tensor*>& handles, bool may_be_views,
                         std::vector<TableInput>* tables, CallLength length = CallLength::kShort);

// For ops that look up or export values of `dtype`, the table's own or a wider one to which they
// Widen() them. `may_be_view`: only lookups.
absl::Status GetTableToRead(tensorflow::OpKernelContext* context, tensorflow::DataType dtype,
                            bool may_be_view, TableInput* table,
                            CallLength length = CallLength::kShort);

// The inputs keys and shard_ids of an op, and to which shards they go.
struct KeyInputs {
  const tensorflow::Tensor* keys_tensor;
  Span<const Key> keys;
  Routing routing;
};
// Of keys, and whatever goes with them, in the memory `space`; shard ids are always the host's.
// Errors: shard_ids that are not, one for each key, shards of the table.
absl::Status GetKeys(tensorflow::OpKernelContext* context, const TableInput& table,
                     KeyInputs* inputs, MemorySpace space = MemorySpace::kHost);
// The same for given tensors.
absl::Status RouteKeys(const Context& context, const tensorflow::Tensor& keys,
                       const tensorflow::Tensor& shard_ids, const TableInput& table,
                       KeyInputs* inputs, MemorySpace space = MemorySpace::kHost);

// Puts keys that are on the op's GPU into `copy`, and waits for it; others stay where they are.
absl::Status KeysToHost(const Context& core, Span<const Key>* keys, std::vector<Key>* copy);

// KeyStrings::PinGuard of a call that may give keys rows, wherever they are.
absl::Status PinStrings(const Context& core, const TableInput& table, Span<const Key> keys,
                        KeyStrings::PinGuard* pin);

// Input `name`, one string per key, as views of it. Error: another number of them.
absl::Status GetStrings(tensorflow::OpKernelContext* context, const char* name,
                        const KeyInputs& inputs, std::vector<std::string_view>* strings);

// Input `name` as rows, after checking that its shape is the keys' shape + (dim,).
absl::Status GetRows(tensorflow::OpKernelContext* context, const char* name,
                     const KeyInputs& inputs, const TableSchema& schema, ConstRows* rows);
// The same for a given tensor, of any dtype.
absl::Status RowsOfKeys(const char* name, const tensorflow::Tensor& tensor, const KeyInputs& inputs,
                        int64_t dim, ConstRows* rows);

// Of scores, an int64 for each key or none, in the memory of the keys; of the inputs `now` and
// `scores` all that a call stamps its rows with.
absl::Status ScoresOfKeys(const tensorflow::Tensor& scores, const KeyInputs& inputs, Stamp* stamp);
absl::Status GetStamp(tensorflow::OpKernelContext* context, const KeyInputs& inputs, Stamp* stamp);

// Input `name`, a scalar: int64 or a string.
template <typename T>
absl::Status GetScalar(tensorflow::OpKernelContext* context, const char* name, T* value);

// Calls call(context, shard, batch) for each shard with its share of the keys, in the keys' memory;
// of a table that may be a view, to look keys up. As RunCalls.
Status ForEachShard(const Context& context, const TableInput& table, Span<const Key> keys,
                    const Routing& routing,
                    const std::function<Status(const Context&, Table*, const Batch&)>& call);
Status ForEachReader(
    const Context& context, const TableInput& table, const KeyInputs& inputs,
    const std::function<Status(const Context&, const RowReader*, const Batch&)>& call);

// Whether a table has room for keys that have no row, if it refuses calls when it is full. Of
// shards that fill up together, and of one table of several that a call writes, this is found here,
// before anything changes; that no table exceeds its limit is the table's own business.
// kResourceExhausted: it has not.
// `exists`: of DynembAccum, which inserts no key of which it is true; null: all are inserted.
absl::Status CheckRoom(const Context& core, const TableInput& table, Span<const Key> keys,
                       const Routing& routing, const bool* exists = nullptr);

// The same for distinct keys that are known to have no row.
struct KeyOfShard {
  Key key;
  int shard;
};
absl::Status CheckRoomFor(const TableInput& table, const std::vector<KeyOfShard>& inserted);
// Whether there is room for so many keys, whatever they are.
bool HasRoomFor(const TableInput& table, int64_t keys);
// Output 0, a string: what kResourceExhausted says, or nothing if all is well. Other errors stay.
absl::Status SetProblem(tensorflow::OpKernelContext* context, const absl::Status& status);

// The distinct keys that have no row, in the order of their first appearance.
Status MissingKeys(const Context& context, const TableInput& table, Span<const Key> keys,
                   const Routing& routing, std::vector<KeyOfShard>* missing);

// A row-major matrix (or any tensor whose last axis is the row) as rows.
ConstRows RowsOf(const tensorflow::Tensor& tensor, int64_t rows, int64_t row_bytes,
                 MemorySpace space = MemorySpace::kHost);
Rows MutableRowsOf(tensorflow::Tensor* tensor, int64_t rows, int64_t row_bytes,
                   MemorySpace space = MemorySpace::kHost);

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_KERNELS_TABLE_RESOURCE_H_

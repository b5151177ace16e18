// Kernels of the ops by which processes exchange keys and rows.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "cc/core/base/run_calls.h"
#include "cc/core/lookup/fetched_rows_view.h"
#include "cc/core/shard/connections.h"
#include "cc/core/shard/exchange.h"
#include "cc/core/shard/grid.h"
#include "cc/core/shard/grouped_keys.h"
#include "cc/core/shard/routing.h"
#include "cc/core/table/distinct_keys.h"
#include "cc/kernels/catching_kernel.h"
#include "cc/kernels/monitoring.h"
#include "cc/kernels/table_resource.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/profiler/lib/traceme.h"

namespace dynemb {
namespace {

using tensorflow::AsyncOpKernel;
using tensorflow::OpInputList;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::OpOutputList;
using tensorflow::Tensor;
using tensorflow::TensorShape;
using tensorflow::tstring;
using tensorflow::core::RefCountPtr;
using tsl::profiler::TraceMe;

class GroupByProcessOp : public CatchingKernel {
 public:
  explicit GroupByProcessOp(OpKernelConstruction* context) : CatchingKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("processes", &processes_));
    OP_REQUIRES_OK(context, context->GetAttr("by_hash", &by_hash_));
    OP_REQUIRES_OK(context, context->GetAttr("distinct", &distinct_));
    OP_REQUIRES(context, processes_ <= kMostProcesses,
                ToTensorFlow(InvalidArgument("processes: got ", processes_, ", want up to ",
                                             kMostProcesses)));
    OP_REQUIRES(
        context, static_cast<int>(by_hash_.size()) == context->num_inputs(),
        ToTensorFlow(InvalidArgument("by_hash: got ", by_hash_.size(), ", want one for each of ",
                                     context->num_inputs(), " tables")));
  }

  void TryCompute(OpKernelContext* context) override {
    OpInputList keys;
    OpOutputList grouped, places;
    OP_REQUIRES_OK(context, context->input_list("keys", &keys));
    OP_REQUIRES_OK(context, context->output_list("grouped", &grouped));
    OP_REQUIRES_OK(context, context->output_list("places", &places));
    const int tables = keys.size();
    Tensor* counts;
    OP_REQUIRES_OK(
        context, context->allocate_output(2 * tables, TensorShape({processes_, tables}), &counts));
    auto count = counts->matrix<int64_t>();
    std::vector<int64_t> sizes;
    for (int t = 0; t < tables; ++t) {
      OP_REQUIRES(context, keys[t].dims() == 1,
                  ToTensorFlow(InvalidArgument("keys: got shape ", keys[t].shape().DebugString(),
                                               ", want vectors")));
      sizes.push_back(keys[t].NumElements());
    }
    std::vector<GroupedKeys> grouped_keys(sizes.size());
    const PoolContext core(context);
    OP_REQUIRES_OK(context, ToTensorFlow(RunCalls(core, sizes, [&](int64_t t, const Context& core) {
                     const auto n = static_cast<size_t>(t);
                     const int64_t* const first = keys[static_cast<int>(t)].flat<int64_t>().data();
                     return Group(core, {first, sizes[n]}, by_hash_[n], &grouped_keys[n]);
                   })));
    for (int t = 0; t < tables; ++t) {
      const GroupedKeys& groups = grouped_keys[static_cast<size_t>(t)];
      Tensor *out, *place;
      const int64_t size = static_cast<int64_t>(groups.keys.size());
      OP_REQUIRES_OK(context, grouped.allocate(t, TensorShape({size}), &out));
      OP_REQUIRES_OK(context, places.allocate(t, keys[t].shape(), &place));
      std::copy(groups.keys.begin(), groups.keys.end(), out->flat<int64_t>().data());
      std::copy(groups.places.begin(), groups.places.end(), place->flat<int64_t>().data());
      for (int64_t p = 0; p < processes_; ++p) count(p, t) = groups.counts[p];
    }
  }

 private:
  static constexpr int64_t kMostProcesses = 1 << 20;

  Status Group(const Context& context, Span<const Key> keys, bool by_hash,
               GroupedKeys* groups) const {
    if (!distinct_) return GroupByProcess(context, keys, processes_, by_hash, groups);
    const DistinctKeys distinct(keys);
    DYNEMB_RETURN_IF_ERROR(GroupByProcess(context, distinct.keys(), processes_, by_hash, groups));
    std::vector<int64_t> places(distinct.numbers().size());
    for (size_t i = 0; i < places.size(); ++i)
      places[i] = groups->places[static_cast<size_t>(distinct.numbers()[i])];
    groups->places = std::move(places);
    return Status();
  }

  int64_t processes_;
  std::vector<bool> by_hash_;
  bool distinct_;
};

class OwnedOp : public CatchingKernel {
 public:
  explicit OwnedOp(OpKernelConstruction* context) : CatchingKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("process", &part_.index));
    OP_REQUIRES_OK(context, context->GetAttr("processes", &part_.of));
    OP_REQUIRES_OK(context, context->GetAttr("by_hash", &part_.by_hash));
  }

  void TryCompute(OpKernelContext* context) override {
    const auto keys = context->input(0).flat<int64_t>();
    Tensor* owned;
    OP_REQUIRES_OK(context, context->allocate_output(0, context->input(0).shape(), &owned));
    for (int64_t i = 0; i < keys.size(); ++i) owned->flat<bool>()(i) = part_.has(keys(i));
  }

 private:
  KeyPart part_;
};

// The connections of this process to the others, and once they are made the exchange over them.
class ExchangeResource : public tensorflow::ResourceBase {
 public:
  std::string DebugString() const override { return "an exchange between processes"; }

  Status Listen(int port) { return connections_.Listen(port); }
  int port() const { return connections_.port(); }

  Status Connect(const std::vector<std::string>& addresses, int index, int stages,
                 const std::string& secret, bool shared_memory, double timeout_seconds) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const int processes = static_cast<int>(addresses.size());
    if (index < 0 || index >= processes)
      return InvalidArgument("index: got ", index, ", want 0 to ", processes - 1);
    const Grid grid(processes, stages);
    DYNEMB_RETURN_IF_ERROR(connections_.Connect(addresses, index, grid.Peers(index), secret,
                                                shared_memory, timeout_seconds));
    return Exchange::Make(std::move(connections_), grid, &exchange_);
  }

  // Null before they are connected.
  Exchange* exchange() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return exchange_.get();
  }

 private:
  Connections connections_;
  mutable std::mutex mutex_;  // of what follows
  std::unique_ptr<Exchange> exchange_;
};

absl::Status GetExchange(OpKernelContext* context, RefCountPtr<ExchangeResource>* resource) {
  TF_RETURN_IF_ERROR(
      tensorflow::LookupResource(context, tensorflow::HandleFromInput(context, 0), resource));
  if ((*resource)->exchange() != nullptr) return absl::OkStatus();
  return ToTensorFlow(FailedPrecondition("exchange: it is not connected yet: DynembConnect does"));
}

class ListenOp : public CatchingKernel {
 public:
  explicit ListenOp(OpKernelConstruction* context) : CatchingKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("port", &port_));
  }

  void TryCompute(OpKernelContext* context) override {
    RefCountPtr<ExchangeResource> resource(new ExchangeResource());
    OP_REQUIRES_OK(context, ToTensorFlow(resource->Listen(static_cast<int>(port_))));
    Tensor *handle, *port;
    OP_REQUIRES_OK(context, context->allocate_output(0, TensorShape({}), &handle));
    OP_REQUIRES_OK(context, context->allocate_output(1, TensorShape({}), &port));
    port->scalar<int64_t>()() = resource->port();
    handle->scalar<tensorflow::ResourceHandle>()() =
        tensorflow::ResourceHandle::MakeRefCountingHandle(resource.release(),
                                                          context->device()->name());
  }

 private:
  int64_t port_;
};

class ConnectOp : public CatchingKernel {
 public:
  explicit ConnectOp(OpKernelConstruction* context) : CatchingKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("index", &index_));
    OP_REQUIRES_OK(context, context->GetAttr("stages", &stages_));
    OP_REQUIRES_OK(context, context->GetAttr("shared_memory", &shared_memory_));
    OP_REQUIRES_OK(context, context->GetAttr("timeout_seconds", &timeout_seconds_));
    OP_REQUIRES(context, stages_ == 1 || stages_ == 2,
                ToTensorFlow(InvalidArgument("stages: got ", stages_, ", want 1 or 2")));
  }

  void TryCompute(OpKernelContext* context) override {
    RefCountPtr<ExchangeResource> resource;
    OP_REQUIRES_OK(context, tensorflow::LookupResource(
                                context, tensorflow::HandleFromInput(context, 0), &resource));
    const auto texts = context->input(1).flat<tstring>();
    const auto secret = context->input(2).flat<tstring>();
    OP_REQUIRES(context, secret.size() == 1,
                ToTensorFlow(InvalidArgument("secret: got ", secret.size(), ", want one")));
    const std::vector<std::string> addresses(texts.data(), texts.data() + texts.size());
    OP_REQUIRES_OK(context, ToTensorFlow(resource->Connect(addresses, static_cast<int>(index_),
                                                           static_cast<int>(stages_), secret(0),
                                                           shared_memory_, timeout_seconds_)));
  }

 private:
  int64_t index_, stages_;
  bool shared_memory_;
  float timeout_seconds_;
};

class ExchangeOp : public AsyncOpKernel {
 public:
  explicit ExchangeOp(OpKernelConstruction* context) : AsyncOpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("program", &program_));
    OP_REQUIRES_OK(context, context->GetAttr("to_all", &to_all_));
    OP_REQUIRES_OK(context, context->GetAttr("timeout_seconds", &timeout_seconds_));
    OP_REQUIRES_OK(context, context->GetAttr("dims", &dims_));
    std::string refusal;
    OP_REQUIRES_OK(context, context->GetAttr("refusal", &refusal));
    refusal_ = refusal == "exhausted" ? Code::kResourceExhausted : Code::kInvalidArgument;
    std::vector<tensorflow::DataType> dtypes;
    OP_REQUIRES_OK(context, context->GetAttr("P", &dtypes));
    OP_REQUIRES(context, dims_.size() == dtypes.size(),
                ToTensorFlow(InvalidArgument("dims: got ", dims_.size(), ", want one for each of ",
                                             dtypes.size(), " parts")));
    for (size_t p = 0; p < dims_.size(); ++p) {
      OP_REQUIRES(context, dims_[p] == -1 || (dims_[p] >= 1 && dims_[p] <= kMostNumbers),
                  ToTensorFlow(InvalidArgument("dims: got ", dims_[p], ", want -1, or 1 to ",
                                               kMostNumbers)));
      item_bytes_.push_back((dims_[p] < 0 ? 1 : dims_[p]) * tensorflow::DataTypeSize(dtypes[p]));
    }
  }

  void ComputeAsync(OpKernelContext* context, DoneCallback done) override {
    // TensorFlow's profiler shows an asynchronous op until it has started; this shows until it is
    // done. It is moved to the thread where it ends: events that two threads start and end make
    // TensorFlow crash.
    bool is_started = false;
    CatchNoMemory(context, [&] {
      auto activity = std::make_shared<TraceMe>(
          [this] { return StrCat("DynembExchange: ", program_.substr(0, kMostLetters)); });
      is_started = Start(context, [activity, done] {
        activity->Stop();
        done();
      });
    });
    if (!is_started) done();
  }

 private:
  static constexpr int64_t kMostNumbers = 1 << 30;
  static constexpr size_t kMostLetters = 64;  // in a profile

  // False, with the context's status, if it cannot.
  bool Start(OpKernelContext* context, const DoneCallback& done) {
    // Shared: the exchange lives until its last call is done.
    auto held = std::make_shared<RefCountPtr<ExchangeResource>>();
    ExchangeCall call;
    const absl::Status status = [&] {
      TF_RETURN_IF_ERROR(GetExchange(context, held.get()));
      return Fill(context, &call);
    }();
    if (!status.ok()) {
      context->SetStatus(status);
      return false;
    }
    call.allocate = [this, context](const std::vector<int64_t>& counts, std::vector<char*>* parts) {
      return Allocate(context, counts, parts);
    };
    Exchange* const exchange = (*held)->exchange();
    call.done = [context, held, exchange, done](const Status& status,
                                                const ExchangeResult& result) {
      CatchNoMemory(context, [&] {
        AddAllToAllBytes(result.sent_bytes);
        context->SetStatus(status.ok() ? PutNumbers(context, exchange->processes(), result)
                                       : ToTensorFlow(status));
      });
      done();
    };
    // From here on the context may be gone, unless the call was refused.
    const Status started = exchange->Start(std::move(call));
    if (!started.ok()) context->SetStatus(ToTensorFlow(started));
    return started.ok();
  }

  absl::Status Fill(OpKernelContext* context, ExchangeCall* call) {
    const Tensor& problem = context->input(1);
    const Tensor& numbers = context->input(2);
    const Tensor& counts = context->input(3);
    OpInputList parts;
    TF_RETURN_IF_ERROR(context->input_list("parts", &parts));
    if (problem.NumElements() != 1 || numbers.dims() != 1 || counts.dims() != 2) {
      return ToTensorFlow(
          InvalidArgument("problem, numbers, counts: got shapes ", problem.shape().DebugString(),
                          ", ", numbers.shape().DebugString(), " and ",
                          counts.shape().DebugString(), ", want (), (n,) and (processes, tables)"));
    }
    call->program = program_;
    call->problem = std::string(problem.flat<tstring>()(0));
    call->refusal = refusal_;
    call->numbers.assign(numbers.flat<int64_t>().data(),
                         numbers.flat<int64_t>().data() + numbers.NumElements());
    call->tables = counts.dim_size(1);
    call->counts = {counts.flat<int64_t>().data(), counts.NumElements()};
    call->item_bytes = item_bytes_;
    call->to_all = to_all_;
    call->timeout_seconds = timeout_seconds_;
    if (parts.size() > 0 && counts.dim_size(1) == 0) {
      return ToTensorFlow(InvalidArgument("counts: got those of no tables for ", parts.size(),
                                          " parts, want one for each table"));
    }
    for (int p = 0; p < parts.size(); ++p) {
      const Tensor& part = parts[p];
      const int64_t dim = part.dims() == 2 ? part.dim_size(1) : -1;
      if (part.dims() < 1 || part.dims() > 2 || dim != dims_[p]) {
        return ToTensorFlow(InvalidArgument("parts: got shape ", part.shape().DebugString(),
                                            ", want (items,) or (items, dim), and dim ", dims_[p]));
      }
      int64_t items = 0;
      for (int64_t r = 0; r < counts.dim_size(0); ++r)
        items += counts.matrix<int64_t>()(r, p % counts.dim_size(1));
      if (items != part.dim_size(0)) {
        return ToTensorFlow(InvalidArgument("counts: got ", items, " for part ", p, ", which has ",
                                            part.dim_size(0), " items"));
      }
      call->parts.push_back(part.tensor_data().data());
    }
    return absl::OkStatus();
  }

  Status Allocate(OpKernelContext* context, const std::vector<int64_t>& counts,
                  std::vector<char*>* parts) {
    const size_t tables = static_cast<size_t>(context->input(3).dim_size(1));
    for (size_t p = 0; p < dims_.size(); ++p) {
      int64_t items = 0;
      for (size_t at = p % tables; at < counts.size(); at += tables) items += counts[at];
      TensorShape shape({items});
      if (dims_[p] >= 0) shape.AddDim(dims_[p]);
      Tensor* part;
      const absl::Status status = context->allocate_output(static_cast<int>(2 + p), shape, &part);
      if (!status.ok()) return Status(Code::kResourceExhausted, std::string(status.message()));
      parts->push_back(const_cast<char*>(part->tensor_data().data()));
    }
    return Status();
  }

  static absl::Status PutNumbers(OpKernelContext* context, int64_t processes,
                                 const ExchangeResult& result) {
    const int64_t tables = context->input(3).dim_size(1);
    Tensor *of_numbers, *of_counts;
    TF_RETURN_IF_ERROR(context->allocate_output(
        0, TensorShape({static_cast<int64_t>(result.largest.size())}), &of_numbers));
    TF_RETURN_IF_ERROR(context->allocate_output(1, TensorShape({processes, tables}), &of_counts));
    std::copy(result.largest.begin(), result.largest.end(), of_numbers->flat<int64_t>().data());
    std::copy(result.counts.begin(), result.counts.end(), of_counts->flat<int64_t>().data());
    return absl::OkStatus();
  }

  std::string program_;
  bool to_all_;
  float timeout_seconds_;
  Code refusal_;
  std::vector<int64_t> dims_, item_bytes_;
};

class ExchangeCallsOp : public CatchingKernel {
 public:
  using CatchingKernel::CatchingKernel;

  void TryCompute(OpKernelContext* context) override {
    RefCountPtr<ExchangeResource> resource;
    OP_REQUIRES_OK(context, GetExchange(context, &resource));
    Tensor *calls, *sent_bytes, *sent_messages, *shared_memory_peers;
    OP_REQUIRES_OK(context, context->allocate_output(0, TensorShape({}), &calls));
    OP_REQUIRES_OK(context, context->allocate_output(1, TensorShape({}), &sent_bytes));
    OP_REQUIRES_OK(context, context->allocate_output(2, TensorShape({}), &sent_messages));
    OP_REQUIRES_OK(context, context->allocate_output(3, TensorShape({}), &shared_memory_peers));
    calls->scalar<int64_t>()() = resource->exchange()->calls();
    sent_bytes->scalar<int64_t>()() = resource->exchange()->sent_bytes();
    sent_messages->scalar<int64_t>()() = resource->exchange()->sent_messages();
    shared_memory_peers->scalar<int64_t>()() = resource->exchange()->shared_memory_peers();
  }
};

class FetchedRowsViewOp : public CatchingKernel {
 public:
  using CatchingKernel::CatchingKernel;

  void TryCompute(OpKernelContext* context) override {
    const auto held = std::make_shared<const std::pair<Tensor, Tensor>>(Tensor(context->input(0)),
                                                                        Tensor(context->input(1)));
    const auto& [keys, values] = *held;
    OP_REQUIRES(
        context, keys.dims() == 1 && values.dims() == 2 && keys.dim_size(0) == values.dim_size(0),
        ToTensorFlow(InvalidArgument("keys and values: got shapes ", keys.shape().DebugString(),
                                     " and ", values.shape().DebugString(),
                                     ", want (n,) and (n, dim)")));
    const int64_t dim = values.dim_size(1);
    const DType dtype = ToCore(values.dtype());
    std::unique_ptr<RowReader> view;
    OP_REQUIRES_OK(context, ToTensorFlow(MakeFetchedRowsView(
                                {keys.flat<int64_t>().data(), keys.NumElements()},
                                RowsOf(values, keys.NumElements(), dim * SizeOf(dtype)), dtype, dim,
                                held, &view)));
    Tensor* output;
    OP_REQUIRES_OK(context, context->allocate_output(0, TensorShape({}), &output));
    output->scalar<tensorflow::ResourceHandle>()() =
        tensorflow::ResourceHandle::MakeRefCountingHandle(new TableResource(std::move(view)),
                                                          context->device()->name());
  }
};

REGISTER_KERNEL_BUILDER(Name("DynembFetchedRowsView").Device(tensorflow::DEVICE_CPU),
                        FetchedRowsViewOp);
REGISTER_KERNEL_BUILDER(Name("DynembGroupByProcess").Device(tensorflow::DEVICE_CPU),
                        GroupByProcessOp);
REGISTER_KERNEL_BUILDER(Name("DynembOwned").Device(tensorflow::DEVICE_CPU), OwnedOp);
REGISTER_KERNEL_BUILDER(Name("DynembListen").Device(tensorflow::DEVICE_CPU), ListenOp);
REGISTER_KERNEL_BUILDER(Name("DynembConnect").Device(tensorflow::DEVICE_CPU), ConnectOp);
REGISTER_KERNEL_BUILDER(Name("DynembExchange").Device(tensorflow::DEVICE_CPU), ExchangeOp);
REGISTER_KERNEL_BUILDER(Name("DynembExchangeCalls").Device(tensorflow::DEVICE_CPU),
                        ExchangeCallsOp);

}  // namespace
}  // namespace dynemb

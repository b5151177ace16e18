// Kernels of the ops by which a SavedModel follows a feed.
#include <atomic>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "cc/core/base/request_gate.h"
#include "cc/kernels/catching_kernel.h"
#include "cc/kernels/follower.h"
#include "cc/kernels/named_resource.h"
#include "cc/kernels/table_resource.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/variant.h"
#include "tensorflow/core/framework/variant_encode_decode.h"
#include "tensorflow/core/framework/variant_tensor_data.h"

namespace dynemb {
namespace {

using tensorflow::AsyncOpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;
using tensorflow::tstring;
using tensorflow::core::RefCountPtr;

// What the requests of a loaded model go through, and what makes the model follow, once that has
// begun. The thread ends with it.
class FollowerResource : public tensorflow::ResourceBase {
 public:
  std::string DebugString() const override { return "a follower of a feed"; }

  const std::shared_ptr<RequestGate>& gate() const { return gate_; }
  // Null before Follow.
  std::shared_ptr<Follower> follower() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return follower_;
  }
  // Begins to follow; if it does already, as after a second run of an initializer, goes on.
  void Follow(const FollowerOptions& options, std::vector<RefCountPtr<TableResource>> tables,
              std::vector<FollowedWeight> weights) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (follower_ != nullptr) return;
    follower_ = std::make_shared<Follower>(options, std::move(tables), std::move(weights), gate_);
  }

 private:
  const std::shared_ptr<RequestGate> gate_ = std::make_shared<RequestGate>();
  mutable std::mutex mutex_;  // of what follows
  std::shared_ptr<Follower> follower_;
};

absl::Status GetFollower(OpKernelContext* context, RefCountPtr<FollowerResource>* follower) {
  return tensorflow::LookupResource(context, tensorflow::HandleFromInput(context, 0), follower);
}

class FollowerOp : public CatchingKernel {
 public:
  explicit FollowerOp(OpKernelConstruction* context) : CatchingKernel(context) {
    OP_REQUIRES_OK(context, named_.Init(context));
  }
  void TryCompute(OpKernelContext* context) override {
    const auto make = [](FollowerResource** made) {
      *made = new FollowerResource();
      return absl::OkStatus();
    };
    OP_REQUIRES_OK(context, named_.SetHandle(context, make,
                                             [](FollowerResource*) { return absl::OkStatus(); }));
  }

 private:
  NamedResource<FollowerResource> named_;
};

class FollowOp : public CatchingKernel {
 public:
  explicit FollowOp(OpKernelConstruction* context) : CatchingKernel(context) {
    float poll, heartbeat, longest_wait;
    OP_REQUIRES_OK(context, context->GetAttr("path", &options_.path));
    OP_REQUIRES_OK(context, context->GetAttr("weight_names", &names_));
    OP_REQUIRES_OK(context, context->GetAttr("optional", &optional_));
    OP_REQUIRES(context, optional_.empty() || optional_.size() == names_.size(),
                ToTensorFlow(InvalidArgument("optional: got ", optional_.size(),
                                             ", want one for each variable, ", names_.size(),
                                             ", or none")));
    OP_REQUIRES_OK(context, context->GetAttr("poll_seconds", &poll));
    OP_REQUIRES_OK(context, context->GetAttr("heartbeat_seconds", &heartbeat));
    OP_REQUIRES_OK(context, context->GetAttr("longest_wait_seconds", &longest_wait));
    OP_REQUIRES_OK(context, context->GetAttr("serve_while_loading", &options_.serve_while_loading));
    OP_REQUIRES(context, !options_.path.empty(),
                ToTensorFlow(InvalidArgument("path: got '', want the folder of a feed")));
    for (const float seconds : {poll, heartbeat, longest_wait}) {
      OP_REQUIRES(context, seconds > 0 && seconds < 1e6f,
                  ToTensorFlow(InvalidArgument("poll_seconds, heartbeat_seconds, "
                                               "longest_wait_seconds: got ",
                                               seconds, ", want numbers > 0 and < 1000000")));
    }
    options_.poll_seconds = poll;
    options_.heartbeat_seconds = heartbeat;
    options_.longest_wait_seconds = longest_wait;
  }

  void TryCompute(OpKernelContext* context) override {
    RefCountPtr<FollowerResource> follower;
    tensorflow::OpInputList table_handles, variable_handles;
    OP_REQUIRES_OK(context, GetFollower(context, &follower));
    OP_REQUIRES_OK(context, context->input_list("tables", &table_handles));
    OP_REQUIRES_OK(context, context->input_list("variables", &variable_handles));
    OP_REQUIRES(
        context, static_cast<int>(names_.size()) == variable_handles.size(),
        ToTensorFlow(InvalidArgument("weight_names: got ", names_.size(),
                                     ", want one for each variable, ", variable_handles.size())));
    std::set<std::string> names;
    std::vector<TableInput> inputs;
    std::vector<RefCountPtr<TableResource>> tables;
    OP_REQUIRES_OK(context, GetTablesOf(context, TensorsOf(table_handles), false, &inputs));
    for (TableInput& input : inputs) {
      const std::string& name = input.resource->name();
      OP_REQUIRES(context, !name.empty() && names.insert(name).second,
                  ToTensorFlow(InvalidArgument("tables: got the name '", name,
                                               "', want tables "
                                               "with names of their own, by which a feed has "
                                               "them, and no partitioners of theirs")));
      OP_REQUIRES(context, input.in_place == input.shards,
                  ToTensorFlow(InvalidArgument("tables: got '", name,
                                               "' on a GPU, want tables in "
                                               "the host's memory")));
      tables.push_back(std::move(input.resource));
    }
    std::vector<FollowedWeight> weights(names_.size());
    for (int v = 0; v < variable_handles.size(); ++v) {
      FollowedWeight& weight = weights[static_cast<size_t>(v)];
      weight.name = names_[static_cast<size_t>(v)];
      OP_REQUIRES_OK(context,
                     tensorflow::LookupResource(
                         context, variable_handles[v].scalar<tensorflow::ResourceHandle>()(),
                         &weight.variable));
      tensorflow::tf_shared_lock lock(*weight.variable->mu());
      weight.is_optional = optional_.empty()
                               ? !tensorflow::DataTypeIsFloating(weight.variable->tensor()->dtype())
                               : optional_[static_cast<size_t>(v)];
    }
    inputs.clear();
    follower->Follow(options_, std::move(tables), std::move(weights));
  }

 private:
  FollowerOptions options_;
  std::vector<std::string> names_;
  std::vector<bool> optional_;
};

// That a request is under way, once it has entered. It ends with DynembUnpin; or, if the request
// fails before, when TensorFlow drops the tensor that holds this.
class Pin {
 public:
  Pin(std::shared_ptr<RequestGate> gate, int64_t request)
      : gate_(std::move(gate)), request_(request) {}
  Pin(const Pin&) = delete;
  Pin& operator=(const Pin&) = delete;
  ~Pin() { End(); }
  void Entered() { ended_ = false; }
  void End() {
    if (!ended_.exchange(true)) gate_->Leave(request_);
  }

 private:
  const std::shared_ptr<RequestGate> gate_;
  const int64_t request_;
  std::atomic<bool> ended_{true};
};

// A Pin in a tensor.
struct PinVariant {
  std::shared_ptr<Pin> pin;

  std::string TypeName() const { return "tf_dynemb::Pin"; }
  std::string DebugString() const { return "a request under way"; }
  void Encode(tensorflow::VariantTensorData*) const {}
  bool Decode(const tensorflow::VariantTensorData&) { return false; }
};

class PinOp : public AsyncOpKernel {
 public:
  using AsyncOpKernel::AsyncOpKernel;
  void ComputeAsync(OpKernelContext* context, DoneCallback done) override {
    RefCountPtr<FollowerResource> reference;
    OP_REQUIRES_OK_ASYNC(context, GetFollower(context, &reference), done);
    // The input of the op keeps it.
    FollowerResource* const follower = reference.get();
    const Status entered = OrNoMemory([&] {
      const std::shared_ptr<RequestGate> gate = follower->gate();
      auto pin = std::make_shared<Pin>(gate, context->step_id());
      gate->Enter(context->step_id(), [context, follower, pin = std::move(pin), done]() mutable {
        pin->Entered();
        CatchNoMemory(context, [&] { SetPin(context, follower, std::move(pin)); });
        done();
      });
    });
    OP_REQUIRES_OK_ASYNC(context, ToTensorFlow(entered), done);
  }

 private:
  // Not with OP_REQUIRES_OK, which ends the process in an AsyncOpKernel.
  static void SetPin(OpKernelContext* context, const FollowerResource* follower,
                     std::shared_ptr<Pin> pin) {
    const std::shared_ptr<Follower> following = follower->follower();
    absl::Status status;
    if (following != nullptr) status = ToTensorFlow(following->CheckWhole());
    Tensor* output = nullptr;
    tensorflow::AllocatorAttributes on_host;
    on_host.set_on_host(true);
    if (status.ok()) status = context->allocate_output(0, TensorShape({}), &output, on_host);
    if (!status.ok()) return context->SetStatus(status);
    output->scalar<tensorflow::Variant>()() = PinVariant{std::move(pin)};
  }
};

class UnpinOp : public CatchingKernel {
 public:
  using CatchingKernel::CatchingKernel;
  void TryCompute(OpKernelContext* context) override {
    const Tensor& input = context->input(0);
    const PinVariant* held = nullptr;
    if (tensorflow::TensorShapeUtils::IsScalar(input.shape())) {
      held = input.scalar<tensorflow::Variant>()().get<PinVariant>();
    }
    OP_REQUIRES(
        context, held != nullptr,
        ToTensorFlow(InvalidArgument("pin: got something else, want what DynembPin gives")));
    held->pin->End();
  }
};

class FollowerStatusOp : public CatchingKernel {
 public:
  using CatchingKernel::CatchingKernel;
  void TryCompute(OpKernelContext* context) override {
    RefCountPtr<FollowerResource> reference;
    OP_REQUIRES_OK(context, GetFollower(context, &reference));
    const std::shared_ptr<Follower> follower = reference->follower();
    const FollowerStatus status = follower == nullptr ? FollowerStatus() : follower->status();
    Tensor *numbers, *last_error, *path;
    OP_REQUIRES_OK(context, context->allocate_output(0, TensorShape({9}), &numbers));
    OP_REQUIRES_OK(context, context->allocate_output(1, TensorShape({}), &last_error));
    OP_REQUIRES_OK(context, context->allocate_output(2, TensorShape({}), &path));
    int n = 0;
    for (const int64_t number : {status.generation, status.newest, status.pinned,
                                 status.lag_microseconds(), status.age_microseconds(), status.rows,
                                 status.erased, status.full_copies, status.errors}) {
      numbers->vec<int64_t>()(n++) = number;
    }
    last_error->scalar<tstring>()() = status.last_error;
    path->scalar<tstring>()() = follower == nullptr ? "" : follower->path();
  }
};

REGISTER_KERNEL_BUILDER(Name("DynembFollower").Device(tensorflow::DEVICE_CPU), FollowerOp);
REGISTER_KERNEL_BUILDER(Name("DynembFollow").Device(tensorflow::DEVICE_CPU), FollowOp);
REGISTER_KERNEL_BUILDER(Name("DynembPin").Device(tensorflow::DEVICE_CPU), PinOp);
REGISTER_KERNEL_BUILDER(Name("DynembUnpin").Device(tensorflow::DEVICE_CPU), UnpinOp);
REGISTER_KERNEL_BUILDER(Name("DynembFollowerStatus").Device(tensorflow::DEVICE_CPU),
                        FollowerStatusOp);

}  // namespace
}  // namespace dynemb

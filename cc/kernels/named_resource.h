// NamedResource: the resource of a kernel whose op is executed in every run of a session.
#ifndef TF_DYNEMB_CC_KERNELS_NAMED_RESOURCE_H_
#define TF_DYNEMB_CC_KERNELS_NAMED_RESOURCE_H_

#include <functional>
#include <mutex>
#include <string>

#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_mgr.h"

namespace dynemb {

// A resource lives as long as one of its handles. One with a name lives as long as the kernels of
// that name as well: a session runs the op again in every run and holds no handle in between. So it
// goes with the session; and with a function that was called once to make it, as
// tf.saved_model.load does, when function and handle are gone.
template <typename Resource>
class NamedResource {
 public:
  // Of an op with the attrs container and shared_name.
  absl::Status Init(tensorflow::OpKernelConstruction* context) {
    TF_RETURN_IF_ERROR(context->GetAttr("container", &container_));
    return context->GetAttr("shared_name", &name_);
  }

  const std::string& name() const { return name_; }

  // Sets the output 0 to a handle of a new resource, or of that of this name. `check`: whether one
  // that another kernel made under this name is the one that is wanted here.
  absl::Status SetHandle(tensorflow::OpKernelContext* context,
                         const std::function<absl::Status(Resource** made)>& make,
                         const std::function<absl::Status(Resource* found)>& check) {
    Resource* resource = nullptr;
    TF_RETURN_IF_ERROR(name_.empty() ? make(&resource)
                                     : FindOrMake(context, make, check, &resource));
    tensorflow::core::RefCountPtr<Resource> reference(resource);
    tensorflow::Tensor* output;
    TF_RETURN_IF_ERROR(context->allocate_output(0, tensorflow::TensorShape({}), &output));
    output->scalar<tensorflow::ResourceHandle>()() =
        tensorflow::ResourceHandle::MakeRefCountingHandle(reference.release(),
                                                          context->device()->name());
    return absl::OkStatus();
  }

 private:
  // With a reference for the caller and one for this kernel. The resource manager knows it without
  // owning it.
  absl::Status FindOrMake(tensorflow::OpKernelContext* context,
                          const std::function<absl::Status(Resource** made)>& make,
                          const std::function<absl::Status(Resource* found)>& check,
                          Resource** resource) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (named_ == nullptr) {
      tensorflow::ResourceMgr* manager = context->resource_manager();
      const std::string& container = container_.empty() ? manager->default_container() : container_;
      Resource* found = nullptr;
      absl::Status status = manager->Lookup(container, name_, &found);
      if (absl::IsNotFound(status)) {
        TF_RETURN_IF_ERROR(make(&found));
        status = manager->CreateUnowned(container, name_, found);
        if (absl::IsAlreadyExists(status)) {  // another kernel was faster
          found->Unref();
          status = manager->Lookup(container, name_, &found);
        }
      }
      TF_RETURN_IF_ERROR(status);
      tensorflow::core::RefCountPtr<Resource> reference(found);
      TF_RETURN_IF_ERROR(check(found));
      named_ = std::move(reference);
    }
    named_->Ref();
    *resource = named_.get();
    return absl::OkStatus();
  }

  std::string container_, name_;
  std::mutex mutex_;  // of what follows
  tensorflow::core::RefCountPtr<Resource> named_;
};

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_KERNELS_NAMED_RESOURCE_H_

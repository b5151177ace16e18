// Launches: kernels for one table, or one kernel for several.
#ifndef TF_DYNEMB_CC_GPU_TABLE_LAUNCHES_CU_H_
#define TF_DYNEMB_CC_GPU_TABLE_LAUNCHES_CU_H_

#include <cstdint>
#include <cstring>
#include <functional>
#include <type_traits>
#include <utility>
#include <vector>

#include "cc/core/base/context.h"
#include "cc/core/base/macros.h"
#include "cc/core/base/no_memory.h"
#include "cc/core/base/status.h"
#include "cc/gpu/for_each.cu.h"
#include "cc/gpu/table/call_arguments.h"
#include "cc/gpu/table/tile.cu.h"

namespace dynemb {

// The bodies of a kernel for several tables as one: body t has the indices from ends[t - 1] to
// ends[t], and is called with its own, from 0 on. So the lanes of a tile work for one table.
template <typename Body>
struct EachBody {
  const Body* bodies;   // in the table's memory, as are
  const int64_t* ends;  // ascending
  int count;

  DYNEMB_HOST_DEVICE void operator()(const Tile& tile, int64_t i) const {
    const int t = BodyOf(i);
    bodies[t](tile, i - Begin(t));
  }
  DYNEMB_HOST_DEVICE void operator()(int64_t i) const {
    const int t = BodyOf(i);
    bodies[t](i - Begin(t));
  }

  DYNEMB_HOST_DEVICE int64_t Begin(int t) const { return t == 0 ? 0 : ends[t - 1]; }
  // The first that ends after index i; a body without indices is none's.
  DYNEMB_HOST_DEVICE int BodyOf(int64_t i) const {
    int first = 0, last = count - 1;
    while (first < last) {
      const int middle = (first + last) / 2;
      if (i < ends[middle]) {
        last = middle;
      } else {
        first = middle + 1;
      }
    }
    return first;
  }
};

// What a call starts, in its order. Of one table: at once, with the body as the kernel's parameter.
// Of several: each call of a function below has a body for each table, and is noted; Run sends the
// bodies of all kernels to the GPU in one copy and then starts the kernels. Other tables' bodies
// must not depend on what one's have done.
class Launches {
 public:
  // Of one table.
  explicit Launches(const Context& context) : context_(context) {}
  // Of several, which all can be called in that context.
  Launches(const Context& context, CallArguments* arguments)
      : context_(context), arguments_(arguments) {}
  Launches(const Launches&) = delete;
  Launches& operator=(const Launches&) = delete;

  // bodies[t](tile, i) for i in [0, sizes[t]), as ForEachTile of tile.cu.h.
  template <int kWidth, typename Body>
  Status ForTiles(const std::vector<Body>& bodies, const std::vector<int64_t>& sizes,
                  int width = kWidth) {
    return Start(bodies, sizes, [width](const Context& context, int64_t n, const auto& body) {
      return ForEachTile<kWidth>(context, n, body, width);
    });
  }
  // bodies[t](i), as ForEach of for_each.cu.h.
  template <typename Body>
  Status For(const std::vector<Body>& bodies, const std::vector<int64_t>& sizes) {
    return Start(bodies, sizes, [](const Context& context, int64_t n, const auto& body) {
      return ForEach(context, n, body);
    });
  }
  // Something else in between that is put into the stream, for all tables.
  Status Do(std::function<Status()> call) {
    if (arguments_ == nullptr) return call();
    noted_.push_back([call = std::move(call)](const char*) { return call(); });
    return {};
  }

  const Context& context() const { return context_; }

  // Of several tables: starts what was noted, up to the first error.
  Status Run();
  // How many have been noted, and started.
  int64_t noted() const { return static_cast<int64_t>(noted_.size()); }
  int64_t started() const { return started_; }

 private:
  template <typename Body, typename StartKernel>
  Status Start(const std::vector<Body>& bodies, const std::vector<int64_t>& sizes,
               const StartKernel& start) {
    if (arguments_ == nullptr) return start(context_, sizes[0], bodies[0]);
    std::vector<int64_t> ends;
    for (const int64_t size : sizes) ends.push_back((ends.empty() ? 0 : ends.back()) + size);
    const int64_t all = ends.back();
    if (all == 0) return {};
    const int64_t bodies_at = Put(bodies), ends_at = Put(ends);
    const auto count = static_cast<int>(bodies.size());
    noted_.push_back([this, start, all, bodies_at, ends_at, count](const char* there) {
      return start(context_, all,
                   EachBody<Body>{reinterpret_cast<const Body*>(there + bodies_at),
                                  reinterpret_cast<const int64_t*>(there + ends_at), count});
    });
    return {};
  }

  // Where they will be, in bytes from the begin of all.
  template <typename T>
  int64_t Put(const std::vector<T>& objects) {
    static_assert(std::is_trivially_copyable_v<T>, "it goes to the GPU byte by byte");
    constexpr size_t kAlignment = 64;
    static_assert(kAlignment % alignof(T) == 0);
    const size_t at = (bytes_.size() + kAlignment - 1) / kAlignment * kAlignment;
    bytes_.resize(at + objects.size() * sizeof(T));
    std::memcpy(bytes_.data() + at, static_cast<const void*>(objects.data()),
                objects.size() * sizeof(T));
    return static_cast<int64_t>(at);
  }

  const Context context_;
  CallArguments* const arguments_ = nullptr;
  std::vector<char> bytes_;
  std::vector<std::function<Status(const char*)>> noted_;
  int64_t started_ = 0;
};

inline Status Launches::Run() {
  const char* there;
  DYNEMB_RETURN_IF_ERROR(arguments_->Send(context_, bytes_, &there));
  Status status;
  for (const auto& start : noted_) {
    status = OrNoMemory([&] { return start(there); });
    if (!status.ok()) break;
    ++started_;
  }
  const Status done = arguments_->Done(context_);
  return status.ok() ? done : status;
}

}  // namespace dynemb

#endif  // TF_DYNEMB_CC_GPU_TABLE_LAUNCHES_CU_H_

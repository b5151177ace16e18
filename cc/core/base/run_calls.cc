#include "cc/core/base/run_calls.h"

#include <algorithm>
#include <numeric>

namespace dynemb {

Status RunCalls(const Context& context, const std::vector<int64_t>& sizes,
                const std::function<Status(int64_t, const Context&)>& call, int64_t nanoseconds) {
  FirstError error;
  if (context.space != MemorySpace::kHost) {  // one stream, whose calls do not wait
    for (size_t i = 0; i < sizes.size(); ++i) error.Add(call(static_cast<int64_t>(i), context));
    return error.Or(Status());
  }
  const int64_t total = std::accumulate(sizes.begin(), sizes.end(), int64_t{0});
  const int64_t threads = context.executor->concurrency();
  std::vector<int64_t> small;
  small.reserve(sizes.size());  // so that memory does not run out between calls
  for (size_t i = 0; i < sizes.size(); ++i) {
    const int64_t at = static_cast<int64_t>(i);
    if (threads == 1 || sizes[i] * 2 * threads > total) {
      error.Add(OrNoMemory([&] { return call(at, context); }));
    } else {
      small.push_back(at);
    }
  }
  // The largest first, so that none begins when the others are done.
  std::stable_sort(small.begin(), small.end(),
                   [&](int64_t a, int64_t b) { return sizes[a] > sizes[b]; });
  const int64_t mean = small.empty() ? 0 : total / static_cast<int64_t>(small.size());
  return error.Or(
      context.executor->Run(static_cast<int64_t>(small.size()), mean * nanoseconds,
                            [&](int64_t i) { error.Add(call(small[i], OneThread())); }));
}

}  // namespace dynemb
